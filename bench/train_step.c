/* SPDX-License-Identifier: Apache-2.0 */
/* bench/train_step.c: the real trainer (zt_train) on K forked ranks, without daemons: a model of
 * the given shape on random bytes. train-step [--family gpt2] [--layers 4] [--dim 256] [--heads 4]
 * [--kv-heads 0] [--ffn 0] [--seq 256] [--vocab 256] [--batch 8] [--steps 12] [--warmup 3]
 * [--threads 2] [--world 1] [--mode ddp] [--set KEY=VALUE,...] [--predict DEVICE] [--alpha-us 0]
 * [--ps-per-byte 0] [--overhead 0]  -> one JSON line
 * --kv-heads 0: as many as heads; --ffn 0: 4 x dim. A llama has its head apart, a GPT-2 tied.
 * --batch is per rank; the time of a step is the slowest rank's, its median over --steps. --set are
 * keys of the run file. --predict DEVICE: what the planner says of the same run on that entry of
 * the table of devices, beside what was measured. --alpha-us and --ps-per-byte make every
 * collective cost that much longer (asleep): a link slower than memory. exposed_share: exposed /
 * all communication, ranks summed.
 * cpu_ms: of rank 0, all its threads; of one thread it is the time of a machine with nothing else
 * to do.
 * --overhead 1: every other step runs unmeasured (no intervals, no figures from the system), in
 * pairs whose order alternates; prints what measuring adds, the median over the pairs of rank 0. */
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bench/bench.h"
#include "core/rng.h"
#include "engine/plan/devices.h"
#include "engine/plan/plan.h"
#include "engine/train.h"
#include "kernels/ops.h"

#define STEPS_MAX 1000
#define WORLD_MAX 64

struct board { /* shared by the forked ranks */
    _Atomic int posted;
    struct zt_comm_id id;
    double seconds[WORLD_MAX][STEPS_MAX], exposed[WORLD_MAX][STEPS_MAX], comm[WORLD_MAX][STEPS_MAX];
    double phase[3][STEPS_MAX];      /* rank 0: forward, backward, optimizer */
    double cpu[STEPS_MAX], last_cpu; /* rank 0: CPU time from hook to hook, all threads */
    int64_t collectives, sent_bytes; /* of rank 0 in the last step */
    double loss_first, loss_last;
    double last_hook, pair[STEPS_MAX]; /* rank 0: time of the last hook; on / off - 1 by pair */
    double half;                       /* the first step of the pair in progress */
    int64_t peak_bytes[WORLD_MAX], tokens;
    char parameter_hash[33];
};

struct job {
    int64_t layers, dim, heads, kv_heads, ffn, seq, vocab, batch, steps, warmup;
    int64_t alpha_us, ps_per_byte;
    int threads, world, overhead;
    const char *family, *mode, *set, *predict;
};

struct rank {
    const struct job *j;
    struct board *board;
    int rank;
    struct zt_train_config *config;
};

/* Steps 2k and 2k + 1 after the warm-up are a pair: off, on, then on, off, ... */
static bool unmeasured(int64_t i) { return (i % 4 == 0) || (i % 4 == 3); }

/* A step's time here is from hook to hook: all that reporting costs is in it. */
static void overhead_step(struct rank *r, int64_t i) {
    struct board *b = r->board;
    double now = bench_now(), took = now - b->last_hook;
    r->config->unmeasured = unmeasured(i + 1);
    if (r->rank) return;
    b->last_hook = now;
    if (i < 0) return;
    if (i % 2 == 0)
        b->half = took;
    else
        b->pair[i / 2] = (unmeasured(i) ? b->half / took : took / b->half) - 1;
}

static int on_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    struct rank *r = arg;
    if (rank == 0) {
        r->board->id = *id;
        atomic_store(&r->board->posted, 1);
        return ZT_OK;
    }
    double deadline = bench_now() + 60;
    while (!atomic_load(&r->board->posted)) {
        if (bench_now() > deadline) return zt_fail(err, ZT_ETIMEOUT, "rank 0 never made the group");
        usleep(1000);
    }
    *id = r->board->id;
    return ZT_OK;
}

static int on_step(void *arg, const struct zt_step_report *s, struct zt_error *err) {
    struct rank *r = arg;
    struct board *b = r->board;
    (void)err;
    int64_t i = s->step - 1 - r->j->warmup;
    if (s->peak_allocated_bytes > b->peak_bytes[r->rank])
        b->peak_bytes[r->rank] = s->peak_allocated_bytes;
    if (i >= 0 && i < STEPS_MAX) {
        b->seconds[r->rank][i] = s->step_seconds;
        b->exposed[r->rank][i] = s->exposed.exposed_comm_seconds;
        b->comm[r->rank][i] = s->exposed.comm_seconds;
    }
    if (r->rank == 0) {
        double now = bench_cpu();
        if (i >= 0 && i < STEPS_MAX) b->cpu[i] = now - b->last_cpu;
        b->last_cpu = now;
    }
    if (i >= 0 && i < STEPS_MAX && r->rank == 0) {
        b->phase[0][i] = s->forward_seconds;
        b->phase[1][i] = s->backward_seconds;
        b->phase[2][i] = s->optimizer_seconds;
    }
    if (r->j->overhead) overhead_step(r, i);
    if (r->rank == 0) {
        b->sent_bytes = s->sent_bytes;
        *(s->step == 1 ? &b->loss_first : &b->loss_last) = s->loss;
        if (s->step == 1) b->loss_last = s->loss;
    }
    return ZT_OK;
}

static void on_collectives(void *arg, const struct zt_step_trace *t) {
    struct rank *r = arg;
    if (r->rank) return;
    r->board->collectives = 0;
    for (int64_t i = 0; i < t->n; i++) r->board->collectives += !t->records[i].control;
}

static int nothing(void *arg, struct zt_error *err) {
    (void)arg, (void)err;
    return ZT_OK;
}
static void on_event(void *arg, enum zt_event_level level, const char *kind, const char *message) {
    const struct rank *r = arg;
    if (level >= ZT_EVENT_WARNING) fprintf(stderr, "rank %d: %s: %s\n", r->rank, kind, message);
}
static bool never(void *arg) {
    (void)arg;
    return false;
}

/* "a=1,b=2" as overrides of the run file; `room` holds the cut text. */
static int cut_set(const char *set, char room[512], const char *out[16]) {
    int n = 0;
    snprintf(room, 512, "%s", set);
    for (char *save = NULL, *p = strtok_r(room, ",", &save); p && n < 16;
         p = strtok_r(NULL, ",", &save))
        out[n++] = p;
    return n;
}

static void make_spec(const struct job *j, const char *data, struct zt_spec *spec) {
    char text[2048], llama[80] = "";
    if (strcmp(j->family, "llama") == 0)
        snprintf(llama, sizeof llama, "kv_heads: %lld, tied_head: false, ", (long long)j->kv_heads);
    int n = snprintf(
        text, sizeof text,
        "version: 1\nname: bench\n"
        "model: {family: %s, layers: %lld, dim: %lld, heads: %lld, %sffn_dim: %lld, "
        "vocab_size: %lld, seq_len_max: %lld}\n"
        "dataset: {path: %s, tokenizer: bytes}\n"
        "training: {steps: %lld, seq_len: %lld, local_batch_size: %lld}\n"
        "optimizer: {lr: 3e-4, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_norm: 1.0}\n"
        "parallelism: {mode: %s}\n",
        j->family, (long long)j->layers, (long long)j->dim, (long long)j->heads, llama,
        (long long)j->ffn, (long long)j->vocab, (long long)j->seq, data,
        (long long)(j->steps + j->warmup), (long long)j->seq, (long long)j->batch, j->mode);
    char room[512];
    const char *set[16];
    struct zt_error err = {0};
    if (zt_spec_parse(text, (size_t)n, "bench", set, cut_set(j->set, room, set), spec, &err) != 0 ||
        zt_spec_resolve(spec, j->world, "bench", &err) != 0)
        bench_fail("train-step", err.msg);
}

static int run_rank(const struct job *j, int rank, struct board *board, const char *data) {
    static struct zt_spec spec;
    struct zt_error err = {0};
    struct zt_train_result result;
    struct rank r = {.j = j, .board = board, .rank = rank};
    make_spec(j, data, &spec);
    struct zt_comm_inject cost = {.alpha_ns = j->alpha_us * 1000,
                                  .ns_per_byte = 1e-3 * (double)j->ps_per_byte};
    struct zt_train_config c = {.spec = &spec,
                                .rank = rank,
                                .local_rank = rank,
                                .world = j->world,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .capacity_bytes = zt_default_capacity(j->world),
                                .threads = j->threads,
                                .inject = j->alpha_us || j->ps_per_byte ? &cost : NULL};
    r.config = &c;
    struct zt_train_hooks h = {.arg = &r,
                               .ready = nothing,
                               .comm_id = on_id,
                               .in_comm = nothing,
                               .step = on_step,
                               .collectives = on_collectives,
                               .event = on_event,
                               .stop = never};
    if (zt_train(&c, &h, &result, &err) != 0) {
        fprintf(stderr, "rank %d: %s\n", rank, err.msg);
        return 1;
    }
    if (rank == 0)
        memcpy(board->parameter_hash, result.parameter_hash, sizeof board->parameter_hash);
    zt_spec_free(&spec);
    return result.steps == j->steps + j->warmup ? 0 : 1;
}

static void make_data(const struct job *j, const char *path) {
    FILE *f = fopen(path, "wb");
    int64_t n = j->world * j->batch * (j->steps + j->warmup) * j->seq + 1;
    if (!f) bench_fail("train-step", "no temporary file");
    for (int64_t i = 0; i < n; i += 16) {
        uint32_t w[4];
        zt_rng_words(1, ZT_RNG_TEST, 0, 0, (uint64_t)i, w);
        fwrite(w, 1, (size_t)(n - i < 16 ? n - i : 16), f);
    }
    if (fclose(f) != 0) bench_fail("train-step", "writing the temporary file failed");
}

static int run_all(const struct job *j, struct board *board, const char *data) {
    pid_t pid[WORLD_MAX];
    int bad = 0;
    for (int rank = 0; rank < j->world; rank++) {
        pid[rank] = fork();
        if (pid[rank] < 0) bench_fail("train-step", "fork failed");
        if (pid[rank] == 0) _exit(run_rank(j, rank, board, data));
    }
    for (int rank = 0; rank < j->world; rank++) {
        int status;
        bad |= waitpid(pid[rank], &status, 0) < 0 || status != 0;
    }
    return bad;
}

/* The planner's words, and how far they are from the measured time. */
static void print_plan(const struct job *j, const char *data, double ms) {
    static struct zt_spec spec;
    struct zt_devices *table;
    struct zt_plan *p;
    struct zt_error err = {0};
    struct zt_plan_config c = {.spec = &spec, .valid_samples = -1};
    make_spec(j, data, &spec);
    if (zt_devices_load(&table, &err) != 0 ||
        zt_device_find(table, j->predict, &c.device, &err) != 0 || zt_plan_make(&c, &p, &err) != 0)
        bench_fail("train-step", err.msg);
    printf("\"predicted_ms\":%.3f,\"predicted_forward_ms\":%.3f,\"predicted_backward_ms\":%.3f,"
           "\"predicted_optimizer_ms\":%.3f,\"predicted_comm_ms\":%.3f,\"plan_error\":%.4f,"
           "\"predicted_peak_mib\":%.3f,",
           p->step_seconds * 1e3, p->forward_seconds * 1e3, p->backward_seconds * 1e3,
           p->optimizer_seconds * 1e3, p->exposed.comm_seconds * 1e3,
           p->step_seconds * 1e3 / ms - 1, (double)p->peak_allocated_bytes / 1048576.0);
    zt_plan_free(p);
    zt_devices_free(table);
    zt_spec_free(&spec);
}

static void print_row(const struct job *j, struct board *b, const char *data, const char *kernels) {
    double slowest[STEPS_MAX], exposed[STEPS_MAX], comm[STEPS_MAX], share[STEPS_MAX];
    int64_t peak = 0;
    for (int64_t i = 0; i < j->steps; i++) {
        double all = 0, bare = 0;
        slowest[i] = exposed[i] = comm[i] = 0;
        for (int r = 0; r < j->world; r++) {
            slowest[i] = fmax(slowest[i], b->seconds[r][i]);
            exposed[i] = fmax(exposed[i], b->exposed[r][i]);
            comm[i] = fmax(comm[i], b->comm[r][i]);
            all += b->comm[r][i];
            bare += b->exposed[r][i];
        }
        share[i] = all > 0 ? bare / all : 0;
    }
    for (int r = 0; r < j->world; r++) peak = b->peak_bytes[r] > peak ? b->peak_bytes[r] : peak;
    double ms = bench_median(slowest, (int)j->steps) * 1e3;
    printf("{\"bench\":\"train_step\",\"impl\":\"ztrain\",\"mode\":\"%s\",\"set\":\"%s\",", j->mode,
           j->set);
    printf("\"family\":\"%s\",\"layers\":%lld,\"dim\":%lld,\"heads\":%lld,\"kv_heads\":%lld,",
           j->family, (long long)j->layers, (long long)j->dim, (long long)j->heads,
           (long long)j->kv_heads);
    printf("\"ffn\":%lld,\"seq\":%lld,\"vocab\":%lld,\"batch\":%lld,", (long long)j->ffn,
           (long long)j->seq, (long long)j->vocab, (long long)j->batch);
    printf("\"world\":%d,\"threads\":%d,\"alpha_us\":%lld,\"ps_per_byte\":%lld,\"ms\":%.3f,\"min_"
           "ms\":%.3f,",
           j->world, j->threads, (long long)j->alpha_us, (long long)j->ps_per_byte, ms,
           slowest[0] * 1e3);
    printf("\"tokens_per_second\":%.1f,\"comm_ms\":%.3f,\"exposed_comm_ms\":%.3f,\"exposed_share\":"
           "%.4f,",
           (double)(j->world * j->batch * j->seq) / ms * 1e3,
           bench_median(comm, (int)j->steps) * 1e3, bench_median(exposed, (int)j->steps) * 1e3,
           bench_median(share, (int)j->steps));
    static const char *const phases[] = {"forward", "backward", "optimizer"};
    for (int k = 0; k < 3; k++)
        printf("\"%s_ms\":%.3f,", phases[k], bench_median(b->phase[k], (int)j->steps) * 1e3);
    printf("\"cpu_ms\":%.3f,", bench_median(b->cpu, (int)j->steps) * 1e3);
    if (j->predict[0]) print_plan(j, data, ms);
    printf("\"collectives\":%lld,\"sent_mib\":%.3f,\"peak_allocated_mib\":%.3f,",
           (long long)b->collectives, (double)b->sent_bytes / 1048576.0, (double)peak / 1048576.0);
    printf("\"loss_first\":%.4f,\"loss_last\":%.4f,\"parameter_hash\":\"%s\",\"kernels\":\"%s\"}\n",
           b->loss_first, b->loss_last, b->parameter_hash, kernels);
}

static void print_overhead(const struct job *j, struct board *b) {
    int n = (int)(j->steps / 2);
    double middle = bench_median(b->pair, n);
    printf(
        "{\"bench\":\"overhead\",\"impl\":\"ztrain\",\"mode\":\"%s\",\"layers\":%lld,\"dim\":%lld,"
        "\"seq\":%lld,\"batch\":%lld,\"world\":%d,\"threads\":%d,\"pairs\":%d,"
        "\"overhead_percent\":%.3f,\"quarter_percent\":%.3f,\"three_quarter_percent\":%.3f}\n",
        j->mode, (long long)j->layers, (long long)j->dim, (long long)j->seq, (long long)j->batch,
        j->world, j->threads, n, 100 * middle, 100 * b->pair[n / 4], 100 * b->pair[n * 3 / 4]);
}

int main(int argc, char **argv) {
    bench_check_args(
        argc, argv,
        " family layers dim heads kv-heads ffn seq vocab batch steps warmup threads world mode set "
        "alpha-us ps-per-byte overhead predict ");
    struct job j = {.layers = bench_int(argc, argv, "layers", 4),
                    .dim = bench_int(argc, argv, "dim", 256),
                    .heads = bench_int(argc, argv, "heads", 4),
                    .kv_heads = bench_int(argc, argv, "kv-heads", 0),
                    .ffn = bench_int(argc, argv, "ffn", 0),
                    .seq = bench_int(argc, argv, "seq", 256),
                    .vocab = bench_int(argc, argv, "vocab", 256),
                    .batch = bench_int(argc, argv, "batch", 8),
                    .steps = bench_int(argc, argv, "steps", 12),
                    .warmup = bench_int(argc, argv, "warmup", 3),
                    .threads = (int)bench_int(argc, argv, "threads", 2),
                    .world = (int)bench_int(argc, argv, "world", 1),
                    .overhead = (int)bench_int(argc, argv, "overhead", 0),
                    .alpha_us = bench_int(argc, argv, "alpha-us", 0),
                    .ps_per_byte = bench_int(argc, argv, "ps-per-byte", 0),
                    .family = bench_text(argc, argv, "family", "gpt2"),
                    .set = bench_text(argc, argv, "set", ""),
                    .predict = bench_text(argc, argv, "predict", ""),
                    .mode = bench_text(argc, argv, "mode", "ddp")};
    if (j.steps < 1 || j.steps > STEPS_MAX || j.world < 1 || j.world > WORLD_MAX || j.vocab < 256)
        bench_fail("train-step", "--steps is 1 to 1000, --world 1 to 64, --vocab at least 256");
    if (j.kv_heads == 0) j.kv_heads = j.heads;
    if (j.ffn == 0) j.ffn = 4 * j.dim;
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char folder[] = "/tmp/zt-bench-XXXXXX", data[64];
    if (board == MAP_FAILED || !mkdtemp(folder))
        bench_fail("train-step", "no shared memory or no temporary folder");
    snprintf(data, sizeof data, "%s/random.txt", folder);
    make_data(&j, data);
    int bad = run_all(&j, board, data);
    unlink(data);
    rmdir(folder);
    if (bad) return 1;
    /* uniform bytes cannot be learned: the loss stays near ln(vocab) falling to ln 256 at best */
    if (!(board->loss_last > 4 && board->loss_last < log((double)j.vocab) + 1))
        bench_fail("train-step", "the loss is not that of random bytes");
    if (j.overhead) {
        print_overhead(&j, board);
        return 0;
    }
    struct zt_error err = {0};
    struct zt_ops_ctx *x;
    if (zt_ops_cpu_create(j.threads, NULL, NULL, &x, &err) != 0) bench_fail("train-step", err.msg);
    print_row(&j, board, data, zt_ops_cpu_describe(x));
    zt_ops_cpu_destroy(x);
    return 0;
}
