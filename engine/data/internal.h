/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/internal.h: what the files of this folder share. */
#ifndef ZT_ENGINE_DATA_INTERNAL_H
#define ZT_ENGINE_DATA_INTERNAL_H
#include "engine/data/data.h"

/* ---- list.c: from a path to file names ---- */
struct zt_file_list {
    char **names; /* malloc'ed, in byte order */
    size_t count;
    bool single;           /* the path itself is the file */
    int64_t links, others; /* entries passed over: symbolic links; folders and special files */
};
int zt_file_list_make(const char *path, struct zt_file_list *l, struct zt_error *err);
void zt_file_list_free(struct zt_file_list *l);

/* ---- dataset.c ---- */
/* ZT_EDATA when the set has fewer than `need` samples, naming file, what it has and what it needs.
 */
int zt_dataset_need(const struct zt_dataset *d, int64_t need, const char *need_what,
                    struct zt_error *err);
int64_t zt_dataset_seq_len(const struct zt_dataset *d);
#endif
