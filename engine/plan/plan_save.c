/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan_save.c: the host buffer that saves are copied into: exactly the files of the rank that
 * writes the most. Pure. */
#include <stdlib.h>

#include "engine/checkpoint/parts.h"
#include "engine/plan/plan_int.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0) goto out;                                                                     \
    } while (0)

/* A place in the tensor group: its table and layout. */
struct place {
    struct zt_model_table table;
    struct zt_unit_layout layout;
};

static void close_place(struct place *p) {
    zt_unit_layout_free(&p->layout);
    zt_model_table_free(&p->table);
}

static int open_place(const struct zt_spec *s, int tensor, struct place *p, struct zt_error *err) {
    const struct zt_layout_options o =
        zt_layout_options_of(s, zt_policy(s->parallelism.mode), s->parallelism.shard);
    int rc = 0;
    *p = (struct place){0};
    TRY(zt_spec_table(s, &p->table, err));
    TRY(zt_model_table_cut(&p->table, s->parallelism.tensor, tensor, err));
    TRY(zt_unit_layout_build(&p->table, &o, &p->layout, err));
out:
    if (rc) close_place(p);
    return rc;
}

static struct zt_save_who who(const struct zt_spec *s, const struct place *p) {
    return (struct zt_save_who){s, &p->table, &p->layout, zt_spec_mesh(s), true};
}

struct most {
    int64_t bytes;
    int rank;
};

/* The rank at this place that writes the most values; of several the first. */
static int most_of(const struct zt_save_who *w, int tensor, int64_t *bytes, struct most *m,
                   struct zt_error *err) {
    for (int s = 0; s < w->mesh.shard; s++) {
        int rc = zt_save_bytes(w, s, bytes, err);
        if (rc) return rc;
        for (int r = 0; r < w->mesh.replicate; r++) {
            int rank = zt_mesh_rank(w->mesh, (struct zt_coords){r, s, tensor});
            if (bytes[r] < m->bytes || (bytes[r] == m->bytes && rank > m->rank)) continue;
            *m = (struct most){bytes[r], rank};
        }
    }
    return 0;
}

/* Its files: the values with their heads. */
static int files_of(const struct zt_spec *s, int rank, int64_t *bytes, struct zt_error *err) {
    struct zt_save_parts parts = {0};
    struct zt_shard_layout layout = {0};
    struct place p;
    int rc = open_place(s, zt_mesh_coords(zt_spec_mesh(s), rank).tensor, &p, err);
    if (rc) return rc;
    const struct zt_save_who w = who(s, &p);
    TRY(zt_save_parts_build(&w, rank, &parts, err));
    const struct zt_shard_write shard = {.rank = rank,
                                         .tensors = parts.tensors,
                                         .n_tensors = parts.n_tensors,
                                         .pieces = parts.pieces,
                                         .n_pieces = parts.n_pieces};
    TRY(zt_shard_layout_build(&shard, &layout, err));
    *bytes = layout.bytes;
out:
    zt_shard_layout_free(&layout);
    zt_save_parts_free(&parts);
    close_place(&p);
    return rc;
}

int plan_save(const struct zt_spec *s, int64_t *bytes, int *rank, struct zt_error *err) {
    struct most m = {-1, 0};
    int rc = 0;
    int64_t *each = NULL;
    *bytes = 0;
    *rank = 0;
    if (!s->checkpoint.enabled) return 0;
    each = calloc((size_t)s->parallelism.replicate, sizeof *each);
    if (!each) return zt_fail(err, ZT_ENOMEM, "plan: no host memory");
    for (int t = 0; t < s->parallelism.tensor && rc == 0; t++) {
        struct place p;
        TRY(open_place(s, t, &p, err));
        const struct zt_save_who w = who(s, &p);
        rc = most_of(&w, t, each, &m, err);
        close_place(&p);
    }
    if (rc == 0) rc = files_of(s, m.rank, bytes, err);
    *rank = m.rank;
out:
    free(each);
    return rc;
}
