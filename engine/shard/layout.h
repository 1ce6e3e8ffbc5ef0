/* SPDX-License-Identifier: Apache-2.0 */
/* engine/shard/layout.h: where each tensor of the model lies in the flat buffers.
 *
 * A flat group is the atom of storage, padding and collectives: the tensors of one unit with one
 * dtype and one trainability, in table order, each start a multiple of 16 elements, the total
 * padded to a multiple of 16 S. A shard is the contiguous 1/S slice, so a gather or a reduce is one
 * collective on one buffer with no copy in or out. `bucket_bytes` is applied here and nowhere else:
 * small neighbouring units are merged into one group (a tied root, which is needed twice in forward,
 * stays alone), big units are cut between tensors (a tensor is never cut; one that is larger than
 * the bucket is a group of its own).
 *
 * Ownership: zt_unit_layout_free. Immutable after the build; any thread may read it. */
#ifndef ZT_ENGINE_LAYOUT_H
#define ZT_ENGINE_LAYOUT_H
#include <stdbool.h>
#include "core/layout.h"
#include "engine/shard/policy.h"

struct zt_flat_entry {
    int tensor, unit;      /* indices into the table */
    int64_t offset, numel; /* elements inside the group; numel without padding */
};
struct zt_flat_group {
    char name[32]; /* the unit's name; "block0+2" merged with two more; "root.1" second piece */
    enum zt_dtype dtype;
    bool trainable, persistent; /* persistent: stays whole in modes that gather before use */
    int64_t elements, shard;    /* padded total; elements / S */
    int first_entry, n_entries;
    int n_units; /* distinct units with tensors here */
};
struct zt_unit_layout {
    int shard_degree, n_groups, n_entries, n_units;
    struct zt_flat_group *groups;
    struct zt_flat_entry *entries; /* by group, table order inside */
    int *entry_of;                 /* tensor -> entry */
    int *group_of;                 /* tensor -> group */
    int *unit_first,
        *unit_groups; /* groups of unit u: unit_groups[unit_first[u] .. unit_first[u+1]) */
};
struct zt_layout_options {
    int shard_degree;
    enum zt_dtype dtype, frozen; /* of the stored parameters, of those that do not train */
    double bucket_bytes; /* in the reduce dtype; 0 = one group per unit */
    enum zt_dtype reduce_dtype;
    int64_t persistence_threshold; /* tensors up to this many elements are persistent; 0 = none */
};
struct zt_model_table;
int zt_unit_layout_build(const struct zt_model_table *t, const struct zt_layout_options *o,
                         struct zt_unit_layout *out, struct zt_error *err);
void zt_unit_layout_free(struct zt_unit_layout *l);

/* The part of entry e inside elements [from, to) of its group: first logical element, its offset
 * from `from`, and the count (0: nothing). */
struct zt_flat_part {
    int64_t first, at, count;
};
struct zt_flat_part zt_flat_part(const struct zt_flat_entry *e, int64_t from, int64_t to);

/* How a specification wants its tables laid out in a mode. */
struct zt_spec;
struct zt_layout_options zt_layout_options_of(const struct zt_spec *s, const struct zt_policy *row,
                                              int shard_degree);

/* Elements of a group that a rank stores, and those that are its own: what its optimizer steps and
 * what it speaks for; those lie within the others. */
struct zt_flat_range {
    int64_t from, count;
};
struct zt_flat_range zt_flat_stored(const struct zt_policy *row, const struct zt_flat_group *g,
                                    int shard_index);
struct zt_flat_range zt_flat_owned(const struct zt_policy *row, const struct zt_flat_group *g,
                                   int shard_index);

/* A stretch of one tensor inside a range of a group: `at` from the range's start, and where in the
 * logical tensor. Vocabulary padding is in none. */
struct zt_flat_piece {
    int tensor;
    int64_t at, count;
    struct zt_span span;
    int entry; /* of the group, and elements of its part that were walked over; zero before the */
    int64_t done; /* first call */
};
/* The next piece of g's elements [from, from + count), in order; false: no more. The layout is that
 * of the table. */
bool zt_flat_piece_next(const struct zt_unit_layout *l, const struct zt_model_table *t,
                        const struct zt_flat_group *g, int64_t from, int64_t count,
                        struct zt_flat_piece *p);
/* Whether a tensor rank speaks for a tensor in what is told of all ranks: the first for what each
 * of its group holds whole. */
bool zt_table_speaks(const struct zt_model_table *t, int tensor);

/* Elements with partial gradients (zt_tensor_is_partial) that a rank owns, trainable groups only:
 * of the shard that owns most of them, or, uncut, all. Every shard sums as many, so that every rank
 * allocates and sends the same. 0 for a table that is not cut. */
int zt_partial_elements(const struct zt_unit_layout *l, const struct zt_model_table *t,
                        bool sequence_parallel, bool cut, int64_t *most, struct zt_error *err);

#endif
