/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/parts.h: what of a model a rank writes. Pure: of the specification, the layout and the
 * rank's place alone, so that every rank knows it without asking, and a plan without a device.
 *
 * A rank writes of what it owns (zt_flat_owned). What several own alike is dealt: tensors that each rank of
 * a tensor group holds whole are the first one's; what replicas own alike (HSDP: R of them, ddp: all) goes
 * to them by whole tensors, the largest first, each to the replica with the fewest bytes so far. So every
 * logical element is written once, and replicas write about as much each.
 *
 * The caller owns a zt_save_parts until zt_save_parts_free. Any thread. */
#ifndef ZT_ENGINE_CHECKPOINT_PARTS_H
#define ZT_ENGINE_CHECKPOINT_PARTS_H
#include "core/spec.h"
#include "engine/checkpoint/write.h"
#include "engine/shard/layout.h"

/* Deals n things of bytes[i] to `hands`: writer[i] in [0, hands). Largest first, ties by index; each to the
 * hand with the fewest bytes, ties by its number. Things of 0 bytes go to hand 0. */
int zt_save_deal(const int64_t *bytes, int n, int hands, int *writer, struct zt_error *err);

struct zt_save_who {
    const struct zt_spec *spec;            /* resolved */
    const struct zt_model_table *table;    /* cut for the rank's place in its tensor group */
    const struct zt_unit_layout *layout;   /* of that table */
    struct zt_mesh mesh;
    bool moments;                          /* they are there; not so, lazily, before the first update */
};

/* Where the values of a piece come from: element `at` of the rank's own part of the group, in the buffer of
 * the piece's kind (zt_runtime_owned). */
struct zt_save_origin { int group; int64_t at; };

struct zt_save_parts {
    int n_tensors;
    struct zt_saved_tensor *tensors;       /* of the whole model, table order */
    int n_pieces;
    struct zt_saved_piece *pieces;         /* of this rank, by group and table order; values NULL */
    struct zt_save_origin *from;           /* beside them */
    int64_t bytes;                         /* of the values */
};
int zt_save_parts_build(const struct zt_save_who *w, int rank, struct zt_save_parts *out,
                        struct zt_error *err);
void zt_save_parts_free(struct zt_save_parts *p);

/* Bytes of values that each of the replicas writes of what the ranks at (shard, the table's tensor rank)
 * own: bytes[mesh.replicate]. */
int zt_save_bytes(const struct zt_save_who *w, int shard, int64_t *bytes, struct zt_error *err);

/* Bytes of values of the whole model. */
int64_t zt_save_model_bytes(const struct zt_save_parts *p);

#endif
