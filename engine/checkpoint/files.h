/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/files.h: what writing and reading share: paths, whole texts, one pass over values.
 * Inside this folder only. */
#ifndef ZT_ENGINE_CHECKPOINT_FILES_H
#define ZT_ENGINE_CHECKPOINT_FILES_H
#include "core/sys.h"
#include "engine/checkpoint/format.h"

enum { CKPT_PATH = 4096 };
/* a/b, or a/b/c; ZT_EINVAL: too long. */
int ckpt_path(char out[CKPT_PATH], const char *a, const char *b, const char *c, struct zt_error *err);
/* ZT_EIO with "PATH: WHAT: errno's text"; sets *disk_full (may be NULL) where that is the cause. */
int ckpt_io_failed(const char *path, const char *what, int rc, bool *disk_full, struct zt_error *err);

/* "[a, b]", or "[a]" of one dimension. */
void ckpt_pair(char out[64], int ndim, int64_t a, int64_t b);

/* A whole file of text: written, fsynced, read back and compared. */
int ckpt_write_text(const struct zt_sys *sys, const char *path, const char *text, size_t n, bool *disk_full, struct zt_error *err);
/* At most ZT_CKPT_TEXT_MAX bytes; *text is malloc'ed with one byte behind it. ZT_ENOTFOUND: no such file. */
int ckpt_read_text(const struct zt_sys *sys, const char *path, char **text, size_t *n, struct zt_error *err);

/* Looks at n values once: the first that is not finite, -1: none; and adds their hashes to *sum (NULL:
 * not wanted), as elements from `first` on that follow one another. */
int64_t ckpt_look(enum zt_dtype type, const void *values, int64_t n, uint32_t word, uint64_t first, struct zt_hash128 *sum);
/* The same for elements [from, from + n) of a rectangle of a tensor of `columns` columns; returns the place
 * in the rectangle. */
int64_t ckpt_look_rect(enum zt_dtype type, const void *values, const struct zt_rect *r, int64_t columns, int64_t from, int64_t n,
                       uint32_t word, struct zt_hash128 *sum);
/* Which hash a kind counts to: 0 none, 1 the parameters', 2 the state's; and its word. */
int ckpt_hash_of(const struct zt_saved_tensor *t, enum zt_saved kind, uint32_t *word);
#endif
