/* SPDX-License-Identifier: Apache-2.0 */
/* How long planning takes: a model of given layers and width on given ranks, in one mode or (mode
 * "table") in every mode, as the what-if table has it. Nothing is trained; the bytes of the plan
 * are checked against the formula of its lasting state before the time is believed. One thread. */
#include <math.h>
#include <sys/resource.h>

#include "bench/bench.h"
#include "engine/plan/plan.h"

static const struct zt_cost_device device = {
    .name = "bench",
    .queued = true,
    .memory_bytes = (int64_t)80 << 30,
    .launch_ns = 3000,
    .host_ns = 3000,
    .memory_bytes_per_second = 1.6e12,
    .flops = {[ZT_COST_GEMM] = {[ZT_F32] = 1.5e13, [ZT_BF16] = 2.4e14, [ZT_F16] = 2.4e14}},
    .ranks_per_host = 8,
    .within = {10000, 2e11, 0},
    .across = {20000, 2.5e10, 0}};

struct counts {
    int64_t calls, collectives, peak;
};

static void count(void *arg, const struct zt_alloc_event *e) {
    (void)e;
    ++*(int64_t *)arg;
}

/* One plan; its lasting parameters must be the model's, cut by the ranks where the mode cuts them.
 */
static void plan_one(const struct zt_spec *spec, struct counts *c) {
    struct zt_plan_config pc = {.spec = spec,
                                .device = &device,
                                .valid_samples = -1,
                                .details = true, /* as a schedule or a trace wants it */
                                .watch = {count, &c->calls}};
    struct zt_plan *p = NULL;
    struct zt_error err;
    if (zt_plan_make(&pc, &p, &err)) bench_fail("plan_speed", err.msg);
    bool cut = spec->parallelism.mode == ZT_ZERO3 || spec->parallelism.mode == ZT_FSDP;
    double want = 2.0 * (double)p->parameters / (cut ? spec->parallelism.shard : 1);
    if (!(fabs((double)p->persistent.parameters - want) < 0.01 * want))
        bench_fail("plan_speed", "the lasting bytes are wrong");
    c->collectives += p->n_collectives;
    if (p->peak_allocated_bytes > c->peak) c->peak = p->peak_allocated_bytes;
    zt_plan_free(p);
}

static void plan_table(const struct zt_spec *spec, struct counts *c) {
    struct zt_error err;
    for (int m = 0; m < ZT_MODE_COUNT; m++) {
        struct zt_spec one;
        if (zt_plan_mode(spec, (enum zt_mode)m, &one, &err)) bench_fail("plan_speed", err.msg);
        plan_one(&one, c);
    }
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " layers dim heads vocab seq batch micro mode ranks repeat ");
    const char *mode = bench_text(argc, argv, "mode", "fsdp");
    bool table = strcmp(mode, "table") == 0;
    int64_t layers = bench_int(argc, argv, "layers", 96), dim = bench_int(argc, argv, "dim", 12288);
    int ranks = (int)bench_int(argc, argv, "ranks", 1024);
    int64_t batch = bench_int(argc, argv, "batch", 1), micro = bench_int(argc, argv, "micro", 1);
    int64_t repeat = bench_int(argc, argv, "repeat", 5);
    double wall[100], cpu[100];
    struct counts c = {0};
    struct zt_spec spec;
    struct zt_error err;
    struct rusage use;
    char text[1024];
    if (repeat < 1 || repeat > 100) bench_fail("plan_speed", "--repeat is 1 to 100");
    snprintf(text, sizeof text,
             "version: 1\nname: speed\nmodel: {family: gpt2, layers: %lld, dim: %lld, heads: %lld, "
             "vocab_size: %lld, seq_len_max: %lld}\ndataset: {path: /nowhere, tokenizer: none}\n"
             "training: {steps: 1000, seq_len: %lld, local_batch_size: %lld, global_batch_size: "
             "%lld}\n"
             "precision: {recipe: mixed16, reduce_dtype: fp32}\nparallelism: {mode: %s}\n",
             (long long)layers, (long long)dim, (long long)bench_int(argc, argv, "heads", 96),
             (long long)bench_int(argc, argv, "vocab", 50257),
             (long long)bench_int(argc, argv, "seq", 2048),
             (long long)bench_int(argc, argv, "seq", 2048), (long long)batch,
             (long long)(batch * ranks * micro), table ? "fsdp" : mode);
    if (zt_spec_parse(text, strlen(text), "speed.yaml", NULL, 0, &spec, &err) ||
        zt_spec_resolve_up_to(&spec, ranks, ZT_PLAN_RANKS_MAX, "speed.yaml", &err))
        bench_fail("plan_speed", err.msg);
    struct bench_load load = bench_load_now();
    for (int64_t i = 0; i < repeat; i++) {
        double t = bench_now(), own = bench_cpu();
        memset(&c, 0, sizeof c);
        if (table)
            plan_table(&spec, &c);
        else
            plan_one(&spec, &c);
        wall[i] = bench_now() - t;
        cpu[i] = bench_cpu() - own;
    }
    double other = bench_other_load(load);
    getrusage(RUSAGE_SELF, &use);
    printf("{\"bench\":\"plan_speed\",\"impl\":\"ztrain\",\"mode\":\"%s\",\"layers\":%lld,"
           "\"dim\":%lld,\"ranks\":%d,\"micro\":%lld,\"seconds\":%.4f,"
           "\"cpu_seconds\":%.4f,\"calls\":%lld,\"collectives\":%lld,\"peak_gib\":%.3f,\"resident_"
           "mib\":%.1f,\"other_load\":%.2f}\n",
           mode, (long long)layers, (long long)dim, ranks, (long long)micro,
           bench_median(wall, (int)repeat), bench_median(cpu, (int)repeat), (long long)c.calls,
           (long long)c.collectives, (double)c.peak / 1073741824.0, (double)use.ru_maxrss / 1024.0,
           other);
    zt_spec_free(&spec);
    return 0;
}
