/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain_words.c: see explain.h. Letters: N parameters, b bytes of one (p stored, g gradient,
 * o optimizer, c gathered copy, r as it is reduced), S shards, R replicas, n micro-steps per step. */
#include "clients/zctl/explain.h"
#include <stddef.h>

#define SHARED_ENGINE                                                                              \
    "zero3 and fsdp are one engine with one layout: each unit's tensors in one flat buffer, cut in S equal "   \
    "slices, gathered before use, gradients scattered as soon as a unit's backward is done. "
#define SCATTER(n) {ZT_SEND_SCATTER, "gradients of a unit, after its backward" , n "(S-1)/S N b_r"}
#define REPLICAS(n) {ZT_SEND_ALL_REDUCE, "the scattered shard, over replicas", n "2 (R-1)/R N b_r / S"}

static const struct zt_mode_words words[] = {
    {.name = "ddp",
     .title = "data parallel: every rank keeps everything, only gradients travel",
     .parameters = "N b_p", .gradients = "N b_g", .optimizer = "N b_o",
     .transient = "nothing is gathered and gradients are reduced in place; where they are reduced in another "
                  "format, a copy of the units under way",
     .sends = {{ZT_SEND_ALL_REDUCE, "gradients of a unit, in the last micro-step", "2 (R-1)/R N b_r"}},
     .accumulation = "micro-steps are added up on each rank and reduced once per step, with the last one "
                     "(elsewhere: no_sync; here it needs no switch). Same bits as zero1.",
     .good_for = "the state fits with room to spare: fewest bytes and fewest collectives.",
     .options = "wrap, bucket_mib, overlap, max_inflight_reduces",
     .differs = "The replicas are data_parallel_replicate_degree; the shard degree is 1. zero1 costs the same "
                "traffic without accumulation and divides the largest part, the optimizer's state.",
     .names = {"replicate mesh", "NO_SHARD", "stage 0", "DDP"},
     .mistakes = {"choosing it because it is the fastest: at one micro-step zero1 sends the same bytes",
                  "expecting more ranks to make a model fit: only activations per rank get smaller"}},
    {.name = "zero1",
     .title = "the optimizer's state is cut, parameters and gradients are whole",
     .parameters = "N b_p", .gradients = "N b_g", .optimizer = "N b_o / S",
     .transient = "as ddp",
     .sends = {{ZT_SEND_SCATTER, "gradients of a unit, in the last micro-step", "(S-1)/S N b_r"},
               REPLICAS(""),
               {ZT_SEND_UPDATED, "parameters of a unit, after its update", "(S-1)/S N b_p"}},
     .accumulation = "micro-steps are added up on each rank and reduced once per step. Same bits as ddp.",
     .good_for = "the optimizer's state is what does not fit; long accumulation windows, which it reduces once.",
     .options = "wrap, bucket_mib, overlap, max_inflight_reduces",
     .differs = "zero2 cuts the gradients too and pays with a reduction in every micro-step.",
     .names = {"-", "-", "stage 1", "distributed optimizer"},
     .mistakes = {"expecting gradients to shrink: they stay whole until the update",
                  "calling DeepSpeed's stage 1 with overlap the cause of a bigger peak here: its two buckets "
                  "(reduce_bucket_size elements each) have no counterpart, gradients are reduced in place"}},
    {.name = "zero2",
     .title = "gradients and optimizer state are cut, parameters are whole",
     .parameters = "N b_p", .gradients = "N b_g / S", .optimizer = "N b_o / S",
     .transient = "whole gradients of the units under way in backward: each goes when it is reduced",
     .sends = {SCATTER("n "), REPLICAS("n "),
               {ZT_SEND_UPDATED, "parameters of a unit, after its update", "(S-1)/S N b_p"}},
     .accumulation = "every micro-step is reduced and added to the shard: whole gradients never exist, so "
                     "there is nothing to wait with (no_sync is refused). Same bits as zero3 and fsdp; ddp and "
                     "zero1 differ in rounding when there is more than one micro-step.",
     .good_for = "gradients do not fit whole, parameters do; few micro-steps.",
     .options = "wrap, bucket_mib, overlap, max_inflight_reduces",
     .differs = "Not SHARD_GRAD_OP: that cuts the parameters as well, gathers them in forward and frees them "
                "after backward (fsdp with reshard_after_forward: false).",
     .names = {"reshard False is near", "SHARD_GRAD_OP is near", "stage 2", "optim_grads"},
     .mistakes = {"raising accumulation to save memory and finding the step slower: each micro-step reduces",
                  "taking SHARD_GRAD_OP for it: other memory in forward, other traffic"}},
    {.name = "zero3",
     .title = "parameters, gradients and optimizer state are cut; units are gathered when they are used",
     .parameters = "N b_p / S", .gradients = "N b_g / S", .optimizer = "N b_o / S",
     .transient = "gathered copies of 1 + prefetch units; in backward also whole gradients of the units under "
                  "way; reshard_after_forward: false or a number m keeps N b_c or N b_c / m from forward to "
                  "backward",
     .sends = {{ZT_SEND_FORWARD, "parameters of a unit, before its forward", "n (S-1)/S N b_c"},
               {ZT_SEND_BACKWARD, "parameters of a unit, before its backward", "n (S-1)/S N b_c"},
               SCATTER("n "), REPLICAS("n ")},
     .accumulation = "every micro-step gathers and reduces again. no_sync: true reduces once per step and "
                     "keeps whole gradients (N b_g) until then.",
     .good_for = "the model does not fit otherwise; state per rank falls with every shard.",
     .options = "reshard_after_forward, prefetch, persistence_threshold, no_sync, wrap, bucket_mib, overlap, "
                "max_inflight_reduces",
     .differs = SHARED_ENGINE "They differ in one default: zero3 frees the root (embeddings, final norm, head) "
                "after its forward like any unit, fsdp keeps it until backward. DeepSpeed cuts each tensor "
                "by itself in flat pieces, PyTorch's FSDP2 along its first dimension; results do not depend on it. "
                "persistence_threshold (tensors up to so many elements stay whole) is 0 in both; "
                "DeepSpeed's default is 1e5.",
     .names = {"reshard True", "FULL_SHARD", "stage 3", "optim_grads_params"},
     .mistakes = {"prefetch above what the memory allows: each unit ahead costs a whole unit",
                  "a persistence_threshold that keeps most of a small model whole",
                  "long accumulation: n micro-steps send n times the parameters, twice"}},
    {.name = "fsdp",
     .title = "as zero3, but the root stays whole from forward to backward",
     .parameters = "N b_p / S", .gradients = "N b_g / S", .optimizer = "N b_o / S",
     .transient = "gathered copies of 1 + prefetch units and of the root; in backward also whole gradients of "
                  "the units under way; reshard_after_forward: false or a number m keeps N b_c or N b_c / m "
                  "from forward to backward",
     .sends = {{ZT_SEND_FORWARD, "parameters of a unit, before its forward", "n (S-1)/S N b_c"},
               {ZT_SEND_BACKWARD, "parameters of a unit, before its backward", "n (S-1)/S N b_c"},
               SCATTER("n "), REPLICAS("n ")},
     .accumulation = "every micro-step gathers and reduces again. no_sync: true reduces once per step and "
                     "keeps whole gradients (N b_g) until then.",
     .good_for = "the usual choice when a model does not fit whole; with recipe fsdp_mixed gathered copies are bf16.",
     .options = "reshard_after_forward, prefetch, persistence_threshold, no_sync, wrap, bucket_mib, overlap, "
                "max_inflight_reduces",
     .differs = SHARED_ENGINE "They differ in one default: fsdp keeps the root (embeddings, final norm, head) "
                "from forward to backward, zero3 frees it like any unit. With replicas it is hsdp. "
                "PyTorch's FSDP2 cuts each tensor along its first dimension and copies in and out of its "
                "collectives, here a gathered buffer is the parameters; persistence_threshold has no "
                "counterpart there.",
     .names = {"fully_shard", "FULL_SHARD", "stage 3 is near", "Megatron-FSDP"},
     .mistakes = {"reshard_after_forward: false taken for zero2: parameters are cut again after backward",
                  "no_sync to save traffic on a model that only fits cut: whole gradients come back",
                  "one unit for the whole model (wrap as large as layers): then everything is gathered at once"}},
    {.name = "hsdp",
     .title = "fsdp within groups of S ranks, R groups that each hold a replica",
     .parameters = "N b_p / S", .gradients = "N b_g / S", .optimizer = "N b_o / S",
     .transient = "as fsdp",
     .sends = {{ZT_SEND_FORWARD, "parameters of a unit, before its forward", "n (S-1)/S N b_c"},
               {ZT_SEND_BACKWARD, "parameters of a unit, before its backward", "n (S-1)/S N b_c"},
               SCATTER("n "), REPLICAS("n ")},
     .accumulation = "as fsdp; the replicas are summed after the shards, so it agrees with one group of R x S "
                     "ranks to rounding, not in bits.",
     .good_for = "fast links within a group (a node), slow ones between: only 1/S of the gradients crosses.",
     .options = "data_parallel_replicate_degree (R), data_parallel_shard_degree (S), and those of fsdp",
     .differs = "It is mode fsdp with data_parallel_replicate_degree above 1. Replicas never divide the state: "
                "memory is that of S, whatever R is. zero1, zero2 and zero3 take replicas too.",
     .names = {"2-D mesh (R, S)", "HYBRID_SHARD", "MiCS", "hybrid"},
     .mistakes = {"dividing memory by all ranks: only the shard degree divides",
                  "a shard group that spans hosts: ranks are numbered shard first, so S up to the ranks of a "
                  "host keeps it inside"}},
};

const struct zt_mode_words *zt_mode_words(int i) {
    return i >= 0 && (size_t)i < sizeof words / sizeof words[0] ? &words[i] : NULL;
}
