/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/deepspeed.h: a DeepSpeed configuration as a run file, with a word on every key: nothing is
 * dropped in silence. Sizes there are numbers of elements; what the file cannot know (model, data, steps)
 * becomes ZT_FILL_IN, which `zctl validate` refuses by name. Pure apart from malloc; the caller owns the
 * result (zt_ds_free). One thread per call. */
#ifndef ZT_ZCTL_DEEPSPEED_H
#define ZT_ZCTL_DEEPSPEED_H
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"

#define ZT_DS_MAX_BYTES ((size_t)1 << 20)
#define ZT_DS_MAX_DEPTH 16

enum zt_ds_outcome {
    ZT_DS_REFUSED = 0, /* asks for what is not done here: no run file is made */
    ZT_DS_OPEN,        /* has to be filled in */
    ZT_DS_WARNED,      /* no counterpart: left out */
    ZT_DS_MAPPED,
    ZT_DS_ABSENT,      /* not in the file, and its default there is not ours */
    ZT_DS_SAME,        /* the default, off, or always so here */
    ZT_DS_OUTCOMES
};
struct zt_ds_row {
    enum zt_ds_outcome outcome;
    uint32_t line, column; /* of the key; 0: not in the file */
    char key[128], value[64], text[640];
};
struct zt_ds_result {
    struct zt_ds_row *row; /* in the order of the file, then what is not in it */
    int n, count[ZT_DS_OUTCOMES];
    char *yaml; /* NULL when something is refused */
};
/* "refused", "to fill in", ... */
const char *zt_ds_outcome_name(enum zt_ds_outcome o);

/* workers 0: not known. ZT_EINVAL with file:line:column when the text is not a configuration at all; what
 * single keys ask for is told by the rows and is no failure of the call. */
int zt_ds_convert(const char *text, size_t bytes, const char *file, int workers, struct zt_ds_result *r,
                  struct zt_error *err);
void zt_ds_free(struct zt_ds_result *r);

#endif
