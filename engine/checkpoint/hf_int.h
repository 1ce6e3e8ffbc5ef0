/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/hf_int.h: what hf.c (opening and checking) and hf_read.c (reading) share. */
#ifndef ZT_ENGINE_CHECKPOINT_HF_INT_H
#define ZT_ENGINE_CHECKPOINT_HF_INT_H
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/safetensors.h"

#define ZT_HF_BUFFER ((size_t)1 << 20) /* bytes of a stretch that is read at once */
#define ZT_HF_COLUMNS 8192             /* rows of ours, columns of the file, that are turned together */

struct zt_hf_file { char name[256]; int fd; int64_t bytes; struct zt_safetensors *st; };
/* Where a tensor of the table lies; file -1: not found yet. */
struct zt_hf_place { int file; int64_t at; enum zt_dtype type; bool turned; };

struct zt_hf {
    const struct zt_sys *sys;
    char folder[1024];
    struct zt_hf_config config;
    struct zt_model_table table;
    struct zt_hf_file *files;
    int n_files;
    struct zt_hf_place *place;    /* by tensor */
    int *by_name;                 /* tensors of the table in the order of their names */
    void *raw, *turned;           /* ZT_HF_BUFFER; ZT_HF_COLUMNS numbers */
    int64_t *part_from, *part_n, *part_at; /* ZT_HF_COLUMNS each */
    int64_t read_bytes;
};

int zt_hf_find(const struct zt_hf *h, const char *name);
/* Elements [first, first + n) of what lies at p, as they lie, into raw. */
int zt_hf_load(struct zt_hf *h, const struct zt_hf_place *p, int64_t first, int64_t n, void *to, struct zt_error *err);

#endif
