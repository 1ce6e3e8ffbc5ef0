/* SPDX-License-Identifier: Apache-2.0 */
/* bench/checkpoint.c: what saving costs the step loop, and how fast a checkpoint is written and read beside the
 * disk itself. The real trainer (zt_train) on K forked ranks, without daemons, saves every --every steps into
 * --folder; then every rank writes as many bytes plainly (write, fsync) and reads them back, in the same folder;
 * then the trainer goes on from the newest checkpoint. Page caches are dropped before each reading as far as the
 * system takes the hint.
 * checkpoint [--layers 6] [--dim 384] [--heads 6] [--seq 256] [--vocab 256] [--batch 4] [--steps 24] [--every 8]
 * [--threads 1] [--world 2] [--mode fsdp] [--interval 500] [--folder /tmp] -> one JSON line
 *
 * stall_ms: the step loop stands still for a save (median, of the slowest rank). blocked_percent: stall over
 * --interval steps of median length, the share that is blocked at that interval. writer_ms: how much longer the steps
 * during which a writer was at work took than steps with none, summed per save (median); writer_percent: that, spread
 * over --interval steps.
 * save_mib_s: bytes of all ranks over the slowest writer, which also hashes and reads all back; disk_write_mib_s: the
 * same bytes, plainly. load_mib_s: of the slowest rank, verified; disk_read_mib_s: plainly. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bench/bench.h"
#include "core/rng.h"
#include "engine/train.h"
#include "kernels/ops.h"

#define STEPS_MAX 1000
#define SAVES_MAX 128
#define WORLD_MAX 16
#define BLOCK ((size_t)4 << 20)

struct board { /* shared by the forked ranks */
    _Atomic int posted, there;
    struct zt_comm_id id;
    struct zt_shard_done part[SAVES_MAX][WORLD_MAX];
    _Atomic int in[SAVES_MAX][WORLD_MAX];
    _Atomic int busy[WORLD_MAX]; /* its writer is at work */
    double seconds[WORLD_MAX][STEPS_MAX], stall[WORLD_MAX][STEPS_MAX];
    int beside[WORLD_MAX][STEPS_MAX]; /* a writer was at work in the step */
    struct zt_commit commit;
    int commits;
    int64_t bytes[WORLD_MAX];
    double write_s[WORLD_MAX], read_s[WORLD_MAX], load_s[WORLD_MAX];
};

struct job {
    int64_t layers, dim, heads, seq, vocab, batch, steps, every, interval;
    int threads, world;
    const char *mode, *folder;
};

struct rank {
    const struct job *j;
    struct board *board;
    int rank, was_busy;
};

static void fail_errno(const char *what) { bench_fail("checkpoint", what); }

/* ---- hooks ---- */

static int on_id(void *arg, int rank, struct zt_comm_id *id, struct zt_error *err) {
    struct board *b = ((struct rank *)arg)->board;
    if (rank == 0) {
        b->id = *id;
        atomic_store(&b->posted, 1);
        return 0;
    }
    for (double end = bench_now() + 60; !atomic_load(&b->posted); usleep(1000))
        if (bench_now() > end) return zt_fail(err, ZT_ETIMEOUT, "rank 0 never made the group");
    *id = b->id;
    return 0;
}

static int any_busy(const struct rank *r) {
    int n = 0;
    for (int i = 0; i < r->j->world; i++) n += atomic_load(&r->board->busy[i]);
    return n;
}

static int on_step(void *arg, const struct zt_step_report *s, struct zt_error *err) {
    struct rank *r = arg;
    int busy = any_busy(r);
    (void)err;
    if (s->step > r->j->steps) return 0; /* after a load */
    r->board->seconds[r->rank][s->step - 1] = s->step_seconds;
    r->board->stall[r->rank][s->step - 1] = s->checkpoint_seconds;
    r->board->beside[r->rank][s->step - 1] = r->was_busy || busy;
    if (s->step % r->j->every == 0) atomic_store(&r->board->busy[r->rank], 1);
    r->was_busy = any_busy(r);
    return 0;
}

static void on_event(void *arg, enum zt_event_level level, const char *kind, const char *message) {
    if (level >= ZT_EVENT_WARNING)
        fprintf(stderr, "rank %d: %s: %s\n", ((struct rank *)arg)->rank, kind, message);
}

static int on_part(void *arg, const struct zt_shard_done *d, struct zt_error *err) {
    struct rank *r = arg;
    int64_t i = d->step / r->j->every - 1;
    (void)err;
    r->board->part[i][r->rank] = *d;
    atomic_store(&r->board->in[i][r->rank], 1);
    if (r->rank) atomic_store(&r->board->busy[r->rank], 0);
    return 0;
}

static int on_parts(void *arg, int64_t step, struct zt_shard_done *all, int world,
                    struct zt_error *err) {
    struct rank *r = arg;
    int64_t i = step / r->j->every - 1;
    double end = bench_now() + 120;
    for (int k = 0; k < world; k++)
        for (; !atomic_load(&r->board->in[i][k]); usleep(1000))
            if (bench_now() > end) return zt_fail(err, ZT_ETIMEOUT, "rank %d wrote nothing", k);
    memcpy(all, r->board->part[i], (size_t)world * sizeof *all);
    return 0;
}

static int on_commit(void *arg, const struct zt_commit *c, int64_t **remove, int *n,
                     struct zt_error *err) {
    struct rank *r = arg;
    (void)err;
    *n = 0;
    if (r->board->commits++ > 1) { /* two are kept */
        *remove = malloc(sizeof **remove);
        **remove = c->step - 2 * r->j->every;
        *n = 1;
    }
    r->board->commit = *c;
    atomic_store(&r->board->busy[0], 0);
    return 0;
}

static int on_failed(void *arg, int64_t step, bool full, const char *message, struct zt_error *err) {
    (void)arg, (void)full, (void)err, (void)step;
    bench_fail("checkpoint", message);
}

static int on_loaded(void *arg, int64_t step, double seconds, int64_t file_bytes,
                     int64_t memory_bytes, struct zt_error *err) {
    struct rank *r = arg;
    (void)step, (void)file_bytes, (void)memory_bytes, (void)err;
    r->board->load_s[r->rank] = seconds;
    return 0;
}

/* ---- runs ---- */

static void make_spec(const struct job *j, const char *data, int64_t steps, struct zt_spec *spec) {
    char text[1024];
    struct zt_error err = {0};
    int n = snprintf(text, sizeof text,
                     "version: 1\nname: bench\n"
                     "model: {family: gpt2, layers: %lld, dim: %lld, heads: %lld, ffn_dim: %lld, "
                     "vocab_size: %lld, seq_len_max: %lld}\ndataset: {path: %s}\n"
                     "training: {steps: %lld, seq_len: %lld, local_batch_size: %lld}\n"
                     "parallelism: {mode: %s}\ncheckpoint: {interval: %lld}\n",
                     (long long)j->layers, (long long)j->dim, (long long)j->heads,
                     (long long)(4 * j->dim), (long long)j->vocab, (long long)j->seq, data,
                     (long long)steps, (long long)j->seq, (long long)j->batch, j->mode,
                     (long long)j->every);
    if (zt_spec_parse(text, (size_t)n, "bench", NULL, 0, spec, &err) != 0 ||
        zt_spec_resolve(spec, j->world, "bench", &err) != 0)
        bench_fail("checkpoint", err.msg);
}

/* The run, or (resume) one more step after the newest checkpoint. */
static int train(struct rank *r, const char *data, bool resume) {
    static struct zt_spec spec;
    struct zt_error err = {0};
    struct zt_train_result result;
    make_spec(r->j, data, r->j->steps + resume, &spec);
    struct zt_sha256 manifest = r->board->commit.manifest;
    struct zt_checkpoint_config k = {.folder = r->j->folder,
                                     .run_id = "bench",
                                     .resume_step = resume ? r->board->commit.step : 0,
                                     .resume_folder = resume ? r->j->folder : NULL,
                                     .resume_manifest = resume ? &manifest : NULL,
                                     .hooks = {.arg = r,
                                               .shard_done = on_part,
                                               .shards = on_parts,
                                               .commit = on_commit,
                                               .failed = on_failed},
                                     .loaded = on_loaded};
    if (resume) spec.checkpoint.enabled = false; /* of what it would save nothing is asked */
    struct zt_train_config c = {.spec = &spec,
                                .rank = r->rank,
                                .local_rank = r->rank,
                                .world = r->j->world,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .capacity_bytes = zt_default_capacity(r->j->world),
                                .threads = r->j->threads,
                                .checkpoint = &k};
    struct zt_train_hooks h = {.arg = r, .comm_id = on_id, .step = on_step, .event = on_event};
    if (zt_train(&c, &h, &result, &err) != 0) {
        fprintf(stderr, "rank %d: %s\n", r->rank, err.msg);
        return 1;
    }
    zt_spec_free(&spec);
    return 0;
}

static int forked(const struct job *j, struct board *b, const char *data,
                  int (*fn)(struct rank *r, const char *data)) {
    pid_t pid[WORLD_MAX];
    int bad = 0;
    atomic_store(&b->posted, 0);
    atomic_store(&b->there, 0);
    for (int i = 0; i < j->world; i++) {
        if ((pid[i] = fork()) < 0) fail_errno("fork failed");
        struct rank r = {j, b, i, 0};
        if (pid[i] == 0) _exit(fn(&r, data));
    }
    for (int i = 0; i < j->world; i++) {
        int status;
        bad |= waitpid(pid[i], &status, 0) < 0 || status != 0;
    }
    return bad;
}

static int saving(struct rank *r, const char *data) { return train(r, data, false); }
static int loading(struct rank *r, const char *data) { return train(r, data, true); }

/* All ranks begin at once. */
static void meet(struct rank *r) {
    atomic_fetch_add(&r->board->there, 1);
    while (atomic_load(&r->board->there) < r->j->world) usleep(100);
}

/* As many bytes as this rank saved, plainly. */
static int plain(struct rank *r, const char *data) {
    char path[600], *block = malloc(BLOCK);
    int64_t left = r->board->bytes[r->rank];
    (void)data;
    snprintf(path, sizeof path, "%s/plain%d", r->j->folder, r->rank);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || !block) return 1;
    for (size_t i = 0; i < BLOCK; i++) block[i] = (char)(i * 2654435761u >> 13);
    meet(r);
    double start = bench_now();
    for (size_t n; left > 0; left -= (int64_t)n) {
        n = left < (int64_t)BLOCK ? (size_t)left : BLOCK;
        if (write(fd, block, n) != (ssize_t)n) return 1;
    }
    if (fsync(fd)) return 1;
    r->board->write_s[r->rank] = bench_now() - start;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    start = bench_now();
    for (off_t at = 0, n = 1; n > 0; at += n) n = pread(fd, block, BLOCK, at);
    r->board->read_s[r->rank] = bench_now() - start;
    close(fd);
    unlink(path);
    free(block);
    return 0;
}

/* ---- figures ---- */

static double slowest(const double *v, int n) {
    double most = 0;
    for (int i = 0; i < n; i++) most = fmax(most, v[i]);
    return most;
}

struct steps {
    double stall[STEPS_MAX], alone[STEPS_MAX], slowed[STEPS_MAX]; /* slowed: beyond `step`, by save */
    int n_stall, n_alone, n_slowed;
    double step; /* median of those with no writer at work */
};

/* A step: as long as that of the slowest rank. */
static double took(const struct job *j, const struct board *b, int64_t i, bool *beside) {
    double most = 0;
    *beside = false;
    for (int r = 0; r < j->world; r++) {
        most = fmax(most, b->seconds[r][i]);
        *beside |= b->beside[r][i] != 0;
    }
    return most;
}

/* The first steps warm the machine up, and the first save makes its buffer: neither is counted. */
static void sort_steps(const struct job *j, const struct board *b, struct steps *s) {
    bool beside;
    for (int64_t i = 2; i < j->steps; i++) {
        double t = took(j, b, i, &beside), stood = 0;
        for (int r = 0; r < j->world; r++)
            if (!isnan(b->stall[r][i])) stood = fmax(stood, b->stall[r][i]);
        if (stood > 0 && i >= j->every) s->stall[s->n_stall++] = stood;
        if (!beside) s->alone[s->n_alone++] = t;
    }
    s->step = s->n_alone ? bench_median(s->alone, s->n_alone) : NAN;
    for (int64_t save = j->every; save < j->steps; save += j->every) {
        double more = 0;
        for (int64_t i = save; i < save + j->every; i++) {
            double t = took(j, b, i, &beside);
            if (beside) more += t - s->step;
        }
        s->slowed[s->n_slowed++] = more;
    }
}

static void print(const struct job *j, struct board *b, double other) {
    static struct steps s;
    double write[WORLD_MAX], mib = 0;
    int last = b->commits ? (int)(b->commit.step / j->every - 1) : 0;
    for (int r = 0; r < j->world; r++) {
        write[r] = b->part[last][r].write_seconds;
        mib += (double)b->bytes[r] / 1048576.0;
    }
    sort_steps(j, b, &s);
    double stall = s.n_stall ? bench_median(s.stall, s.n_stall) : NAN, w = slowest(write, j->world);
    double slowed = s.n_slowed ? bench_median(s.slowed, s.n_slowed) : NAN;
    double period = s.step * (double)j->interval;
    printf("{\"bench\":\"checkpoint\",\"impl\":\"ztrain\",\"mode\":\"%s\",\"layers\":%lld,\"dim\":%lld,"
           "\"seq\":%lld,\"batch\":%lld,\"world\":%d,\"threads\":%d,\"interval\":%lld,",
           j->mode, (long long)j->layers, (long long)j->dim, (long long)j->seq, (long long)j->batch,
           j->world, j->threads, (long long)j->interval);
    printf("\"mib\":%.3f,\"step_ms\":%.3f,\"stall_ms\":%.3f,\"blocked_percent\":%.4f,\"writer_ms\":%.3f,"
           "\"writer_percent\":%.4f,",
           mib, 1e3 * s.step, 1e3 * stall, 100 * stall / period, 1e3 * slowed, 100 * slowed / period);
    printf("\"save_mib_s\":%.1f,\"disk_write_mib_s\":%.1f,\"load_mib_s\":%.1f,\"disk_read_mib_s\":%.1f,",
           mib / w, mib / slowest(b->write_s, j->world), mib / slowest(b->load_s, j->world),
           mib / slowest(b->read_s, j->world));
    printf("\"write_ms\":%.1f,\"commits\":%d,\"other_load\":%.2f}\n", 1e3 * w,
           b->commits, other);
}

static void make_data(const struct job *j, const char *path) {
    FILE *f = fopen(path, "wb");
    int64_t n = j->world * j->batch * (j->steps + 2) * j->seq + 1;
    if (!f) fail_errno("no temporary file");
    for (int64_t i = 0; i < n; i += 16) {
        uint32_t w[4];
        zt_rng_words(1, ZT_RNG_TEST, 0, 0, (uint64_t)i, w);
        fwrite(w, 1, (size_t)(n - i < 16 ? n - i : 16), f);
    }
    if (fclose(f) != 0) fail_errno("writing the temporary file failed");
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " layers dim heads seq vocab batch steps every threads world mode interval folder ");
    char folder[512], data[600], command[640];
    struct job j = {.layers = bench_int(argc, argv, "layers", 6),
                    .dim = bench_int(argc, argv, "dim", 384),
                    .heads = bench_int(argc, argv, "heads", 6),
                    .seq = bench_int(argc, argv, "seq", 256),
                    .vocab = bench_int(argc, argv, "vocab", 256),
                    .batch = bench_int(argc, argv, "batch", 4),
                    .steps = bench_int(argc, argv, "steps", 24),
                    .every = bench_int(argc, argv, "every", 8),
                    .interval = bench_int(argc, argv, "interval", 500),
                    .threads = (int)bench_int(argc, argv, "threads", 1),
                    .world = (int)bench_int(argc, argv, "world", 2),
                    .mode = bench_text(argc, argv, "mode", "fsdp"),
                    .folder = folder};
    if (j.every < 1 || j.steps > STEPS_MAX || j.steps % j.every || j.steps <= j.every || j.steps / j.every > SAVES_MAX ||
        j.world < 1 || j.world > WORLD_MAX)
        bench_fail("checkpoint", "--steps is a multiple of --every, at least twice it and at most 1000; --world is 1 to 16");
    snprintf(folder, sizeof folder, "%s/zt-bench-XXXXXX", bench_text(argc, argv, "folder", "/tmp"));
    if (!mkdtemp(folder)) fail_errno("the folder cannot be made");
    snprintf(data, sizeof data, "%s/data.txt", folder);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) fail_errno("no memory");
    make_data(&j, data);
    struct bench_load load = bench_load_now();
    int bad = forked(&j, b, data, saving);
    for (int r = 0; r < j.world && b->commits; r++)
        b->bytes[r] = b->part[b->commit.step / j.every - 1][r].bytes;
    if (!bad && b->commits) bad = forked(&j, b, data, plain) || forked(&j, b, data, loading);
    double other = bench_other_load(load);
    if (system(command) != 0) fail_errno("the folder cannot be removed");
    if (bad || !b->commits) bench_fail("checkpoint", "the run failed");
    print(&j, b, other);
    return 0;
}
