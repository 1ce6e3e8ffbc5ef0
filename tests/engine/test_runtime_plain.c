/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_runtime_plain.c: the sharding runtime under a plain main, for ThreadSanitizer,
 * which Criterion does not survive: every mode, with and without overlap and with cut and merged
 * buckets, on forked ranks whose gradients are reduced by a thread while backward goes on. Same
 * bits everywhere. */
#include "tests/engine/bench.h"

static struct bench_job *run(int world, struct bench_options o, int64_t micros) {
    struct bench_job *j = ranks_map(sizeof *j);
    j->o = o;
    j->global = 12;
    j->micros = micros;
    if (ranks_run(world, 300, bench_steps, j, NULL)) exit(1);
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
    int bad = 0;
    struct bench_job *ddp = run(2, (struct bench_options){.threads = 2}, 1);
    for (int m = 0; m < ZT_MODE_COUNT; m++)
        for (int k = 0; k < 3; k++) {
            struct bench_options o = {.row = bench_mode((enum zt_mode)m),
                                      .shard = m == ZT_DDP ? 1 : 2,
                                      .no_overlap = k == 1,
                                      .bucket_mib = k == 2 ? 0.06 : 0};
            struct bench_job *j = run(2, o, 1);
            struct zt_hash128 a = last_hash(ddp, 1), b = last_hash(j, o.shard);
            if (a.lo != b.lo || a.hi != b.hi) {
                fprintf(stderr, "%s, variant %d: other bits than ddp\n",
                        zt_mode_name((enum zt_mode)m), k);
                bad = 1;
            }
            run(2, o, 3); /* accumulation: buffers are used again while reductions are in flight */
        }
    return bad;
}
