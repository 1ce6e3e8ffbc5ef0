/* SPDX-License-Identifier: Apache-2.0 */
/* core/modes.h: what the sharding modes are called here and elsewhere (PyTorch's FSDP and FSDP2,
 * DeepSpeed, Megatron). Used by run files, `zctl explain` and `zctl convert`. Constant data; any thread. */
#ifndef ZT_CORE_MODES_H
#define ZT_CORE_MODES_H
#include <stdbool.h>
#include "core/layout.h"

struct zt_mode_word {
    const char *word;  /* as it is written where it comes from */
    enum zt_mode mode; /* what it is here */
    bool keep;         /* with reshard_after_forward: false */
    bool hybrid;       /* with data_parallel_replicate_degree above 1 */
    const char *from;  /* whose word it is; NULL: ours */
    const char *why;   /* one sentence on what it does there and why it is this here; NULL: nothing to say */
};
/* The row of a word; case and the signs - _ . and space do not count. NULL: not the name of a mode. */
const struct zt_mode_word *zt_mode_word_find(const char *text);
const struct zt_mode_word *zt_mode_word(int i); /* NULL past the end */
/* "fsdp with reshard_after_forward: false and data_parallel_replicate_degree above 1". */
const char *zt_mode_word_meaning(const struct zt_mode_word *w, char *buf, size_t n);

#endif
