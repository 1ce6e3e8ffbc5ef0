/* SPDX-License-Identifier: Apache-2.0 */
/* core/layout.h: the byte arithmetic of sharded state (the formulas of docs/memory.md).
 *
 * In a flat group every tensor starts at a multiple of 16 elements and the total is padded to a
 * multiple of 16*S:  N_pad(group) = 16 S ceil( sum_i 16 ceil(n_i/16) / (16 S) ).
 * Pure; any thread. */
#ifndef ZT_CORE_LAYOUT_H
#define ZT_CORE_LAYOUT_H
#include <stddef.h>
#include <stdint.h>
#include "core/dtype.h"
#include "core/mesh.h"
#include "core/model.h"

#define ZT_ALIGN_ELEMENTS 16

enum zt_mode { ZT_DDP = 0, ZT_ZERO1, ZT_ZERO2, ZT_ZERO3, ZT_FSDP, ZT_MODE_COUNT };
const char *zt_mode_name(enum zt_mode m);

/* Elements of one padded group of n tensors of numel[i], for shard degree S. */
int64_t zt_group_padded(const int64_t *numel, int n, int shard_degree);
/* Sum over the units of the table. */
int64_t zt_model_padded(const struct zt_model_table *t, int shard_degree);

struct zt_state_bytes { int64_t parameters, gradients, optimizer; };
/* One flat group: elements with padding, for the shard degree asked about. A persistent one (small
 * tensors) is stored whole in every mode; its gradients and moments are cut like any other's. */
struct zt_group_size { int64_t elements; bool trainable, persistent; };
/* Persistent bytes per rank of a mode: each group's buffer rounded up to 512, requested bytes (D4).
 * Gradients are those that last: whole ones, or the shard; not a unit's whole ones on their way to
 * the shard. Replicas never divide. */
struct zt_state_bytes zt_state_of_groups(const struct zt_group_size *g, int n, enum zt_mode mode,
                                         int shard_degree, const struct zt_recipe *r);
/* The same for a model cut into one group per unit and trainability: bucket_mib 0, threshold 0. */
struct zt_state_bytes zt_state_formula(const struct zt_model_table *t, enum zt_mode mode,
                                       int shard_degree, const struct zt_recipe *r);

/* The plain formula, for those who know a number of parameters and no model: one group, a shard of
 * ceil(elements / S), nothing rounded up to grains: a lower bound of the above. */
struct zt_state_bytes zt_state_plain(int64_t elements, bool trainable, enum zt_mode mode,
                                     int shard_degree, const struct zt_recipe *r);

/* Most bytes that equal units of so many elements take beside the state in forward and in backward, when a
 * mode gathers (docs/memory.md): `ahead` units gathered ahead, `in_flight` reductions not yet over. */
struct zt_unit_peak { int64_t forward, backward; };
struct zt_unit_peak zt_unit_peak_formula(int64_t elements, bool gathers, int ahead, int in_flight,
                                         enum zt_dtype reduce, const struct zt_recipe *r);

/* Bytes that a rank sends per optimizer step and parameter element, of a model of many equal units all
 * of which train: a gather or a scatter in a group of K sends (K-1)/K of the buffer, an all-reduce twice
 * that. What a real model's edges change (the root is gathered once or three times) is not in it. */
struct zt_volume_case {
    enum zt_mode mode;
    int replicate, shard;
    int64_t micro_steps;
    bool keep;          /* reshard_after_forward: false */
    int slices;         /* reshard_after_forward: m; 0: not */
    bool no_sync;
    enum zt_dtype reduce;
};
struct zt_volume { double gather, scatter, all_reduce; };
struct zt_volume zt_volume_formula(const struct zt_volume_case *c, const struct zt_recipe *r);
#endif
