/* SPDX-License-Identifier: Apache-2.0 */
/* engine/model/tensor.c: what tensor parallelism sends inside the model (Shoeybi et al. 2019,
 * Korthikanti et al. 2022). A layer cut by columns takes all rows whole and gives its own columns;
 * the layer cut by rows behind it gives sums of which every rank has a part. Without sequence
 * parallelism the parts are summed where they lie, on all ranks; with it each rank gets the sums of
 * its own rows, and gathers rows before the next cut layer. */
#include "engine/model/model_int.h"

static struct zt_coll_why why_of(const struct zt_model *m, const struct zt_batch *b, int unit,
                                 const char *reason) {
    return (struct zt_coll_why){m->table->units[unit].name, reason, b->step, false};
}

static void busy(const struct zt_model *m, bool computing) {
    const struct zt_tensor_group *g = m->env.tensor;
    if (g->busy != NULL) g->busy(g->arg, computing);
}

int zt_tensor_reduce(struct zt_model *m, const struct zt_batch *b, int unit, void *v, int64_t n,
                     enum zt_dtype t, enum zt_redop op, const char *reason, struct zt_error *err) {
    if (zt_tensor_degree(m) == 1) return 0;
    const struct zt_coll_why why = why_of(m, b, unit, reason);
    busy(m, false);
    int rc = zt_all_reduce(m->env.tensor->comm, v, n, t, op, zt_device_compute(m->env.device), &why,
                           err);
    busy(m, true);
    return rc;
}

int zt_tensor_gather(struct zt_model *m, const struct zt_batch *b, int unit, const void *own,
                     const char *name, int block, void **whole, const char *reason,
                     struct zt_error *err) {
    const int64_t C = m->table->config.dim;
    const struct zt_coll_why why = why_of(m, b, unit, reason);
    int rc = zt_model_buffer(m, b->B * b->T, C, m->env.compute, ZT_TAG_TEMPORARY, name, block,
                             whole, err);
    if (rc != 0) return rc;
    busy(m, false);
    rc = zt_all_gather(m->env.tensor->comm, own, *whole, zt_own_rows(m, b) * C, m->env.compute,
                       zt_device_compute(m->env.device), &why, err);
    busy(m, true);
    return rc;
}

int zt_tensor_sum(struct zt_model *m, const struct zt_batch *b, int unit, void **v, enum zt_tag tag,
                  const char *name, int block, const char *reason, struct zt_error *err) {
    const int64_t n = zt_own_rows(m, b) * m->table->config.dim;
    void *own = NULL;
    if (!zt_tensor_sequence(m))
        return zt_tensor_reduce(m, b, unit, *v, n, m->env.compute, ZT_SUM, reason, err);
    const struct zt_coll_why why = why_of(m, b, unit, reason);
    int rc = zt_model_buffer(m, zt_own_rows(m, b), m->table->config.dim, m->env.compute, tag, name,
                             block, &own, err);
    if (rc != 0) return rc;
    busy(m, false);
    rc = zt_reduce_scatter(m->env.tensor->comm, *v, own, n, m->env.compute, ZT_SUM,
                           zt_device_compute(m->env.device), &why, err);
    busy(m, true);
    zt_free(m->env.alloc, *v);
    *v = own;
    return rc;
}
