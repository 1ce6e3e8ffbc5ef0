/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/plan_host.c: what a rank takes of its host's memory beside the device's: a stated
 * figure by the formulas of docs/planner.md, "Host memory". Pure. */
#include "engine/plan/plan_int.h"
#include "kernels/workspace.h"

#define PROGRAM                                                                                    \
    (INT64_C(16) << 20)               /* code, libraries, heap of a trainer that has nothing to do \
                                       */
#define A_THREAD (INT64_C(1) << 20)   /* stack and scratch */
#define TCP_STAGES (INT64_C(8) << 20) /* of a group that spans hosts (comm/tcp) */
#define READER_SLOTS 3                /* data/loader.c */
#define RING INT64_C(1048576)         /* event log of collectives, 4096 entries */

/* fp32 copies of both operands and the result of rows x n x C, and the packed one. */
static int64_t product(int64_t rows, int64_t n, int64_t c) {
    int64_t packed = (int64_t)zt_gemm_workspace(ZT_GEMM_FWD, rows, n, c, ZT_F32);
    return 4 * (rows * c + n * c + rows * n) + packed;
}

static int64_t largest_product(const struct zt_spec *s) {
    const struct zt_model_config *m = &s->model;
    int64_t rows = s->training.local_batch_size * s->training.seq_len, most = 0;
    const int64_t wide[] = {m->vocab_size, m->ffn_dim, 3 * m->dim};
    for (int i = 0; i < 3; i++) {
        int64_t bytes = product(rows, wide[i], m->dim);
        if (bytes > most) most = bytes;
    }
    return most;
}

int plan_host(const struct zt_plan_config *c, int world, int ranks_per_host,
              struct zt_plan_host *h, struct zt_error *err) {
    const struct zt_spec *s = c->spec;
    const struct zt_recipe *r = zt_recipe_find(s->precision.recipe);
    int64_t micro = s->training.local_batch_size * s->training.seq_len;
    /* token and target, then where its document begins and its weight */
    int64_t token = 8 + 4 * s->dataset.document_masks + 4 * (s->loss.average != ZT_AVERAGE_TOKEN);
    bool far = ranks_per_host > 0 && world > ranks_per_host;
    *h = (struct zt_plan_host){
        .window = zt_spec_accumulation(s) * (token * micro + 8),
        .reader = READER_SLOTS * (token * micro + 8 * s->training.local_batch_size),
        .staging = far ? 2 * TCP_STAGES : 0, /* shard group and replicas */
        .products = !c->device->queued && r->compute != ZT_F32 ? largest_product(s) : 0,
        .control = RING + (int64_t)world * 256,
        .program = PROGRAM + 2 * A_THREAD};
    int rc = plan_save(s, &h->checkpoint, &h->checkpoint_rank, err);
    if (far && s->checkpoint.memory_copies > 1) h->neighbour = h->checkpoint;
    h->total = h->window + h->reader + h->staging + h->products + h->control + h->program +
               h->checkpoint + h->neighbour;
    return rc;
}
