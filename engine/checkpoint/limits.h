/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/limits.h: limits of manifest and index, and readers that both use. */
#ifndef ZT_ENGINE_CHECKPOINT_LIMITS_H
#define ZT_ENGINE_CHECKPOINT_LIMITS_H
#include "core/hash128.h"
#include "engine/checkpoint/json.h"

enum { ZT_CKPT_WORLD_MAX = 4096, ZT_CKPT_TENSORS_MAX = 65536, ZT_CKPT_FILES_MAX = 4096, ZT_CKPT_PARTS_MAX = 1 << 22 };
#define ZT_CKPT_STEP_MAX ((int64_t)1 << 40)

/* *(T **)table holds n entries of `size` bytes: room for one more, zeroed; NULL after a fault. */
void *zt_json_grow(struct zt_json *j, void *table, int64_t n, int64_t most, size_t size);
void zt_json_hash(struct zt_json *j, struct zt_hash128 *h);
int zt_json_format(struct zt_json *j); /* ZT_EVERSION: newer than this program */
#endif
