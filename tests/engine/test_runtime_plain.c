/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_runtime_plain.c: the sharding runtime under a plain main, for ThreadSanitizer,
 * which Criterion does not survive: every mode on forked ranks whose gathers and reductions are
 * done by threads while the rank computes, with and without overlap, far ahead, with cut and merged
 * buckets, slices, staging buffers, and collectives that are late by chance. Same bits everywhere.
 */
#include "tests/engine/bench.h"

struct variant {
    const char *recipe;
    enum zt_reshard reshard;
    int world, m, prefetch, inflight;
    bool no_overlap, late;
    double bucket_mib;
};

static void tune(struct zt_spec *s, const void *arg) {
    const struct variant *v = arg;
    if (v->recipe) snprintf(s->precision.recipe, sizeof s->precision.recipe, "%s", v->recipe);
    s->parallelism.reshard = v->reshard;
    s->parallelism.reshard_int = v->m;
    s->parallelism.prefetch = v->prefetch;
    s->parallelism.max_inflight_reduces = v->inflight;
    s->parallelism.overlap = !v->no_overlap;
    s->parallelism.bucket_mib = v->bucket_mib;
}

static struct bench_job *run(const struct variant *v, enum zt_mode m, int shard, int64_t micros) {
    struct bench_job *j = ranks_map(sizeof *j);
    j->o = (struct bench_options){.row = bench_mode(m),
                                  .shard = shard,
                                  .threads = 2,
                                  .late_ns = v->late ? 300000 : 0,
                                  .poison = v->late,
                                  .tune = tune,
                                  .tune_arg = v};
    j->global = 12;
    j->micros = micros;
    if (ranks_run(v->world, 300, bench_steps, j, NULL)) exit(1);
    return j;
}

static struct zt_hash128 last_hash(const struct bench_job *j, int shards) {
    struct zt_hash128 sum = {0, 0};
    for (int r = 0; r < shards; r++)
        zt_hash128_add(
            &sum, (struct zt_hash128){j->r[BENCH_STEPS][r].hash[0], j->r[BENCH_STEPS][r].hash[1]});
    return sum;
}

int main(void) {
    static const struct variant variants[] = {
        {.world = 2, .prefetch = 1, .inflight = 1},
        {.world = 2, .prefetch = 0, .inflight = 1, .no_overlap = true},
        {.world = 2, .prefetch = 4, .inflight = 2, .late = true},
        {.world = 2, .prefetch = 2, .inflight = 2, .bucket_mib = 0.06, .late = true},
        {.world = 2, .prefetch = 1, .inflight = 1, .reshard = ZT_RESHARD_FALSE, .late = true},
        {.world = 4, .prefetch = 2, .inflight = 1, .reshard = ZT_RESHARD_INT, .m = 2, .late = true},
        {.world = 2, .prefetch = 2, .inflight = 2, .recipe = "mixed16", .late = true}};
    int bad = 0;
    for (size_t k = 0; k < sizeof variants / sizeof *variants; k++) {
        const struct variant *v = &variants[k];
        struct zt_hash128 a = last_hash(run(v, ZT_DDP, 1, 1), 1);
        for (int m = ZT_ZERO1; m < ZT_MODE_COUNT; m++) {
            struct zt_hash128 b = last_hash(run(v, (enum zt_mode)m, v->world, 1), v->world);
            if (a.lo != b.lo || a.hi != b.hi) {
                fprintf(stderr, "%s, variant %zu: other bits than ddp\n",
                        zt_mode_name((enum zt_mode)m), k);
                bad = 1;
            }
            /* accumulation: buffers are used again while reductions are in flight */
            if (v->world == 2) run(v, (enum zt_mode)m, 2, 3);
        }
    }
    return bad;
}
