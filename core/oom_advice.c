/* SPDX-License-Identifier: Apache-2.0 */
/* core/oom_advice.c: see oom_advice.h; docs/memory.md shows the table. */
#include "core/oom_advice.h"
#include <stdio.h>
#include <string.h>

static const struct zt_oom_line lines[ZT_OOM_PLACE_COUNT] = {
    [ZT_OOM_AT_INIT] = {"init",
                        "the persistent state alone: parameters, and with optimizer.state_init: eager masters and "
                        "moments; no activation is in it yet",
                        "a mode that shards more of the state (zero1, zero2, then zero3 or fsdp), a higher "
                        "data_parallel_shard_degree, a recipe of fewer bytes per parameter"},
    [ZT_OOM_AT_FORWARD_ACTIVATIONS] = {"forward, activations most of it",
                                       "the activations of one micro-batch beside the state and the gathered units",
                                       "activation_checkpoint.mode: selective, then full, loss.chunk_tokens, a smaller "
                                       "training.local_batch_size at the same global_batch_size, a shorter "
                                       "training.seq_len, a recipe with 16-bit activations"},
    [ZT_OOM_AT_FORWARD_STATE] = {"forward, state most of it",
                                 "whole parameters and what belongs to them, or the units gathered and those ahead of "
                                 "them",
                                 "zero1 (masters and moments), then zero3 or fsdp; where parameters are gathered "
                                 "reshard_after_forward: true, prefetch: 0, a smaller bucket_mib, wrap: part"},
    [ZT_OOM_AT_BACKWARD_ACTIVATIONS] = {"backward, activations most of it",
                                        "what forward kept, the first gradients, and the units gathered ahead",
                                        "activation_checkpoint.mode: selective, then full, loss.chunk_tokens, a smaller "
                                        "training.local_batch_size at the same global_batch_size, a shorter "
                                        "training.seq_len, prefetch: 0, a smaller bucket_mib"},
    [ZT_OOM_AT_BACKWARD_STATE] = {"backward, state and gradients most of it",
                                  "gradients as they come into being, on top of the state and the gathered units",
                                  "zero1 (masters and moments), zero2 (gradients too), then zero3 or fsdp; "
                                  "max_inflight_reduces: 1, no_sync: false, a smaller bucket_mib, prefetch: 0"},
    [ZT_OOM_AT_OPTIMIZER] = {"optimizer",
                             "the update: with optimizer.state_init: lazy masters and moments come into being here, on "
                             "top of the gradients",
                             "zero1 or a mode that shards more, a higher data_parallel_shard_degree; state_init: eager "
                             "makes such a run fail before its first step"},
    [ZT_OOM_AT_EVAL] = {"eval",
                        "an evaluation batch: its logits, and the units gathered for it, on top of the state",
                        "a smaller training.local_batch_size (evaluation has batches of that size too), prefetch: 0"},
    [ZT_OOM_AT_SAVE] = {"save", "state made whole in one place to be written", "saving shards, each rank its own"},
    [ZT_OOM_AT_LOAD] = {"load", "state read whole in one place before it is cut up", "loading shards, each rank its own"},
    [ZT_OOM_GROWN] = {"a step after others that fitted",
                      "something that was not there before: a buffer that is kept, or free memory cut up by what came "
                      "between (an evaluation)",
                      "see the event MEMORY_GROWTH in zctl events and compare the windows in zctl memory; "
                      "memory.max_split_size_mib against cut-up memory"},
    [ZT_OOM_ONE_RANK] = {"one rank only",
                         "no more than on the other ranks, which had room: its worker offers less memory",
                         "more memory for that worker (zworker --memory-gib), or requirements.memory_gib in the run "
                         "file, which keeps the run off it"},
    [ZT_OOM_FRAGMENTED] = {"fragmentation",
                           "enough reserved memory that is free, in pieces too small for the request",
                           "memory.max_split_size_mib or memory.gc_threshold; wrap and bucket_mib change the sizes that "
                           "are asked for"},
};

static bool is(const char *a, const char *b) { return a && strcmp(a, b) == 0; }

/* The request belongs to what was asked for. */
static int64_t with_request(const struct zt_oom_site *s, const char *tag, int64_t live) {
    return live + (is(s->tag, tag) ? s->request : 0);
}

static bool activations_lead(const struct zt_oom_site *s) {
    int64_t a = with_request(s, "activations", s->activations) + with_request(s, "temporary", s->temporary);
    int64_t state = with_request(s, "parameters", s->parameters) + with_request(s, "gradients", s->gradients) +
                    with_request(s, "optimizer", s->optimizer) + with_request(s, "communication", s->communication);
    return a >= state;
}

/* The plan's allocated peak alone is above the capacity: no arrangement of blocks would do. */
static bool above_capacity(const struct zt_oom_site *s) { return s->capacity > 0 && s->needs > s->capacity; }

enum zt_oom_place zt_oom_place_of(const struct zt_oom_site *s) {
    if (s->fragmentation && !above_capacity(s) && s->reserved - s->allocated >= s->reserved / ZT_OOM_CUT_UP)
        return ZT_OOM_FRAGMENTED;
    if (s->one_rank)
        return ZT_OOM_ONE_RANK;
    if (is(s->phase, "init"))
        return ZT_OOM_AT_INIT;
    if (is(s->phase, "eval"))
        return ZT_OOM_AT_EVAL;
    if (is(s->phase, "save"))
        return ZT_OOM_AT_SAVE;
    if (is(s->phase, "load"))
        return ZT_OOM_AT_LOAD;
    if (s->step >= ZT_OOM_GROWN_STEP)
        return ZT_OOM_GROWN;
    if (is(s->phase, "optimizer"))
        return ZT_OOM_AT_OPTIMIZER;
    if (is(s->phase, "backward"))
        return activations_lead(s) ? ZT_OOM_AT_BACKWARD_ACTIVATIONS : ZT_OOM_AT_BACKWARD_STATE;
    return activations_lead(s) ? ZT_OOM_AT_FORWARD_ACTIVATIONS : ZT_OOM_AT_FORWARD_STATE;
}

const struct zt_oom_line *zt_oom_line(enum zt_oom_place p) {
    return p >= 0 && p < ZT_OOM_PLACE_COUNT ? &lines[p] : &lines[ZT_OOM_AT_INIT];
}

const char *zt_oom_text(const struct zt_oom_site *s, char *buf, size_t n) {
    const struct zt_oom_line *l = zt_oom_line(zt_oom_place_of(s));
    snprintf(buf, n, "%s: %s; what helps: %s", l->where, l->holds, l->change);
    return buf;
}
