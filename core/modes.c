/* SPDX-License-Identifier: Apache-2.0 */
/* core/modes.c: the one table of names of modes. Pure; constant data. */
#include "core/modes.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FSDP1 "PyTorch FSDP"
#define FSDP2 "PyTorch FSDP2"
#define DEEPSPEED "DeepSpeed"
#define MEGATRON "Megatron"

static const char keep_why[] =
    "gathered parameters are kept from forward to backward and freed after it; it is not ZeRO-2, which never "
    "cuts the parameters and sends updated ones once per step: mode zero2";
static const char hybrid_why[] =
    "the state is cut within a group of ranks, and each group holds a replica; PyTorch takes one group per "
    "node, here the two degrees say it";
static const char hybrid_keep_why[] =
    "it is SHARD_GRAD_OP within a group of ranks, and each group holds a replica; it is not ZeRO-2, which never "
    "cuts the parameters: mode zero2";

static const struct zt_mode_word words[] = {
    {"ddp", ZT_DDP, false, false, NULL, NULL},
    {"zero1", ZT_ZERO1, false, false, NULL, NULL},
    {"zero2", ZT_ZERO2, false, false, NULL, NULL},
    {"zero3", ZT_ZERO3, false, false, NULL, NULL},
    {"fsdp", ZT_FSDP, false, false, NULL, NULL},
    {"hsdp", ZT_FSDP, false, true, "torchtitan", hybrid_why},
    {"NO_SHARD", ZT_DDP, false, false, FSDP1, "everything is whole, gradients are all-reduced"},
    {"FULL_SHARD", ZT_FSDP, false, false, FSDP1,
     "gathered parameters are freed after forward, those of the root kept"},
    {"SHARD_GRAD_OP", ZT_FSDP, true, false, FSDP1, keep_why},
    {"HYBRID_SHARD", ZT_FSDP, false, true, FSDP1, hybrid_why},
    {"_HYBRID_SHARD_ZERO2", ZT_FSDP, true, true, FSDP1, hybrid_keep_why},
    {"fully_shard", ZT_FSDP, false, false, FSDP2, NULL},
    {"fsdp1", ZT_FSDP, false, false, FSDP1, NULL},
    {"fsdp2", ZT_FSDP, false, false, FSDP2, NULL},
    {"dp", ZT_DDP, false, false, NULL, NULL},
    {"DistributedDataParallel", ZT_DDP, false, false, "PyTorch", NULL},
    {"ZeroRedundancyOptimizer", ZT_ZERO1, false, false, "PyTorch", NULL},
    {"0", ZT_DDP, false, false, DEEPSPEED, "stage 0 is plain data parallelism"},
    {"1", ZT_ZERO1, false, false, DEEPSPEED, NULL},
    {"2", ZT_ZERO2, false, false, DEEPSPEED, NULL},
    {"3", ZT_ZERO3, false, false, DEEPSPEED, NULL},
    {"zero0", ZT_DDP, false, false, DEEPSPEED, "stage 0 is plain data parallelism"},
    {"stage0", ZT_DDP, false, false, DEEPSPEED, "stage 0 is plain data parallelism"},
    {"stage1", ZT_ZERO1, false, false, DEEPSPEED, NULL},
    {"stage2", ZT_ZERO2, false, false, DEEPSPEED, NULL},
    {"stage3", ZT_ZERO3, false, false, DEEPSPEED, NULL},
    {"zero_stage_0", ZT_DDP, false, false, DEEPSPEED, "stage 0 is plain data parallelism"},
    {"zero_stage_1", ZT_ZERO1, false, false, DEEPSPEED, NULL},
    {"zero_stage_2", ZT_ZERO2, false, false, DEEPSPEED, NULL},
    {"zero_stage_3", ZT_ZERO3, false, false, DEEPSPEED, NULL},
    {"MiCS", ZT_ZERO3, false, true, DEEPSPEED,
     "the state is cut within mics_shard_size ranks, and each such group holds a replica"},
    {"distributed_optimizer", ZT_ZERO1, false, false, MEGATRON,
     "the optimizer's state is cut; parameters and gradients stay whole"},
    {"optim", ZT_ZERO1, false, false, MEGATRON, NULL},
    {"optim_grads", ZT_ZERO2, false, false, MEGATRON, NULL},
    {"optim_grads_params", ZT_ZERO3, false, false, MEGATRON, NULL},
    {"megatron_fsdp", ZT_ZERO3, false, false, MEGATRON, NULL},
};
#define N_WORDS ((int)(sizeof words / sizeof words[0]))

const struct zt_mode_word *zt_mode_word(int i) { return i >= 0 && i < N_WORDS ? &words[i] : NULL; }

/* The next letter or digit, in lower case; 0 at the end. */
static int next_letter(const char **p) {
    while (**p && strchr("-_. ", **p))
        (*p)++;
    return **p ? tolower((unsigned char)*(*p)++) : 0;
}

static bool same_word(const char *a, const char *b) {
    int x, y;
    do {
        x = next_letter(&a);
        y = next_letter(&b);
    } while (x == y && x != 0);
    return x == y;
}

const struct zt_mode_word *zt_mode_word_find(const char *text) {
    static const char prefix[] = "ShardingStrategy.";
    if (strncmp(text, prefix, sizeof prefix - 1) == 0)
        text += sizeof prefix - 1;
    for (int i = 0; i < N_WORDS; i++)
        if (same_word(words[i].word, text))
            return &words[i];
    return NULL;
}

const char *zt_mode_word_meaning(const struct zt_mode_word *w, char *buf, size_t n) {
    snprintf(buf, n, "%s%s%s%s", zt_mode_name(w->mode), w->keep || w->hybrid ? " with " : "",
             w->keep ? w->hybrid ? "reshard_after_forward: false and " : "reshard_after_forward: false" : "",
             w->hybrid ? "data_parallel_replicate_degree above 1" : "");
    return buf;
}
