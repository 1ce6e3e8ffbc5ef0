/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/copy.h: copies of what a rank wrote in a host's memory, beside those that its ranks keep of their
 * own part (save.h): whoever goes on reads them there (read.h, `memory`). Blocking; any thread. */
#ifndef ZT_ENGINE_CHECKPOINT_COPY_H
#define ZT_ENGINE_CHECKPOINT_COPY_H
#include "core/sys.h"
#include "engine/checkpoint/format.h"

/* Copies the files of `rank` of the checkpoint in `folder` (.../step-NNNNNNNN) to `memory`, each piece checked against
 * its hash on the way; its index last, so that a copy is valid exactly when the index is there. *bytes: of its files.
 * Anything else of that rank in `memory` is not valid any more, whatever the end. ZT_ENOTFOUND: no such checkpoint or
 * rank; ZT_ECORRUPT: not what was written, names the file; ZT_EBUSY: memory is full; ZT_ECANCELLED: *stop became
 * true (may be NULL). */
int zt_ckpt_copy_rank(const struct zt_sys *sys, const char *folder, int rank, const char *memory, const _Atomic bool *stop,
                      int64_t *bytes, struct zt_error *err);
#endif
