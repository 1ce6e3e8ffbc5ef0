/* SPDX-License-Identifier: Apache-2.0 */
/* bench/collective.c: one collective over K processes of this host.
 *   collective [--op all_reduce|all_gather|reduce_scatter|broadcast|barrier] [--world 2]
 *              [--bytes 4194304] [--repeat 9]                       -> one JSON line
 * bytes is the full (largest) buffer. The result is checked on every rank before the clock starts.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "bench/bench.h"
#include "core/units.h"
#include "engine/comm/comm.h"

struct board { /* shared by the forked ranks: how the group's id reaches everyone */
    _Atomic int posted;
    struct zt_comm_id id;
};

struct job {
    int world;
    enum zt_coll op;
    int64_t count; /* floats of the full buffer, a multiple of world */
    int64_t repeat, inner;
};

struct rank {
    const struct job *j;
    struct zt_device *device;
    struct zt_stream *stream;
    struct zt_comm *comm;
    int rank;
    float *full, *part; /* [count] and [count / world] */
};

static void must(int rc, const struct zt_error *err) {
    if (rc != 0) bench_fail("collective", err->msg);
}

static void launch(struct rank *r) {
    static const struct zt_coll_why why = {.unit = "bench", .reason = "measured"};
    struct zt_error err = {0};
    int64_t n = r->j->count, share = n / r->j->world;
    switch (r->j->op) {
    case ZT_COLL_ALL_REDUCE:
        must(zt_all_reduce(r->comm, r->full, n, ZT_F32, ZT_SUM, r->stream, &why, &err), &err);
        break;
    case ZT_COLL_ALL_GATHER:
        must(zt_all_gather(r->comm, r->part, r->full, share, ZT_F32, r->stream, &why, &err), &err);
        break;
    case ZT_COLL_REDUCE_SCATTER:
        must(zt_reduce_scatter(r->comm, r->full, r->part, share, ZT_F32, ZT_SUM, r->stream, &why,
                               &err),
             &err);
        break;
    case ZT_COLL_BROADCAST:
        must(zt_broadcast(r->comm, r->full, n, ZT_F32, 0, ZT_ROOT_NONE, r->stream, &why, &err),
             &err);
        break;
    default:
        must(zt_barrier(r->comm, r->stream, &why, &err), &err);
    }
}

static void finish(struct rank *r) {
    struct zt_error err = {0};
    must(zt_device_ops(r->device)->stream_sync(r->stream, &err), &err);
}

static void fill(float *p, int64_t n, float v) {
    for (int64_t i = 0; i < n; i++) p[i] = v;
}

/* One collective on known numbers, then again on ones and zeros that stay finite for ever. */
static void check_result(struct rank *r) {
    int64_t n = r->j->count, share = n / r->j->world, K = r->j->world;
    float all = (float)(K * (K + 1) / 2), *got = r->full;
    fill(r->full, n, (float)(r->rank + 1));
    fill(r->part, share, (float)(r->rank + 1));
    launch(r);
    finish(r);
    if (r->j->op == ZT_COLL_REDUCE_SCATTER) n = share, got = r->part;
    for (int64_t i = 0; i < n; i++) {
        float want = r->j->op == ZT_COLL_ALL_GATHER  ? (float)(i / share + 1)
                     : r->j->op == ZT_COLL_BROADCAST ? 1.0f
                     : r->j->op == ZT_COLL_BARRIER   ? (float)(r->rank + 1)
                                                     : all;
        if (got[i] != want) bench_fail("collective", "the result is wrong");
    }
    fill(r->full, r->j->count, 0);
    fill(r->part, share, 0);
}

static void open_rank(struct rank *r, struct board *board) {
    struct zt_error err = {0};
    size_t full = zt_round_up((size_t)r->j->count * sizeof(float), 2 * ZT_MIB);
    struct zt_device_config dc = {.name = "cpu", .capacity_bytes = 2 * full + 4 * ZT_MIB};
    must(zt_device_open(&dc, &r->device, &err), &err);
    const struct zt_device_ops *ops = zt_device_ops(r->device);
    void *a, *b;
    must(ops->segment_alloc(r->device, full, &a, &err), &err);
    must(ops->segment_alloc(r->device, full, &b, &err), &err);
    r->full = a;
    r->part = b;
    must(ops->stream_create(r->device, ZT_STREAM_REDUCE, &r->stream, &err), &err);
    if (r->rank == 0) {
        must(zt_comm_mint(&board->id, &err), &err);
        atomic_store(&board->posted, 1);
    }
    double deadline = bench_now() + 20;
    while (!atomic_load(&board->posted)) {
        if (bench_now() > deadline) bench_fail("collective", "rank 0 never made the group");
        usleep(1000);
    }
    must(zt_comm_init(&board->id, r->rank, r->j->world, r->device, 20, &r->comm, &err), &err);
}

static void close_rank(struct rank *r) {
    const struct zt_device_ops *ops = zt_device_ops(r->device);
    size_t full = zt_round_up((size_t)r->j->count * sizeof(float), 2 * ZT_MIB);
    zt_comm_destroy(r->comm);
    ops->stream_destroy(r->stream);
    ops->segment_free(r->device, r->full, full);
    ops->segment_free(r->device, r->part, full);
    zt_device_close(r->device);
}

static void run_rank(const struct job *j, int rank, struct board *board) {
    struct rank r = {.j = j, .rank = rank};
    struct zt_error err = {0};
    double t[1000];
    open_rank(&r, board);
    check_result(&r);
    for (int64_t i = -1; i < j->repeat; i++) {
        must(zt_barrier(r.comm, r.stream, NULL, &err), &err);
        finish(&r);
        double t0 = bench_now();
        for (int64_t k = 0; k < j->inner; k++) {
            launch(&r);
            finish(&r);
        }
        if (i >= 0) t[i] = (bench_now() - t0) / (double)j->inner;
    }
    close_rank(&r);
    if (rank != 0) return;
    double us = bench_median(t, (int)j->repeat) * 1e6, bytes = 4.0 * (double)j->count;
    double moved = j->op == ZT_COLL_BARRIER ? 0 : (j->op == ZT_COLL_ALL_REDUCE ? 2.0 : 1.0);
    printf("{\"bench\":\"collective\",\"impl\":\"ztrain\",\"op\":\"%s\",\"world\":%d,\"bytes\":%."
           "0f,\"us\":%.2f,"
           "\"min_us\":%.2f,\"bus_gb_per_s\":%.3f}\n",
           zt_coll_name(j->op), j->world, bytes, us, t[0] * 1e6,
           moved * (j->world - 1) / j->world * bytes / us * 1e-3);
    fflush(stdout);
}

int main(int argc, char **argv) {
    bench_check_args(argc, argv, " op world bytes repeat ");
    struct job j = {.world = (int)bench_int(argc, argv, "world", 2),
                    .op = ZT_COLL_COUNT,
                    .repeat = bench_int(argc, argv, "repeat", 9)};
    int64_t bytes = bench_int(argc, argv, "bytes", 4 << 20);
    const char *name = bench_text(argc, argv, "op", "all_reduce");
    for (int c = 0; c < ZT_COLL_COUNT; c++)
        if (strcmp(name, zt_coll_name((enum zt_coll)c)) == 0) j.op = (enum zt_coll)c;
    if (j.op == ZT_COLL_COUNT || j.world < 1 || j.world > 64 || j.repeat < 1 || j.repeat > 1000)
        bench_fail("collective", "--op names a collective, --world is 1 to 64, --repeat 1 to 1000");
    j.count = zt_ceil_div(bytes > 4 ? bytes / 4 : 1, j.world) * j.world;
    j.inner = bytes <= 1 << 20 ? 20 : bytes <= 16 << 20 ? 6 : 3;
    struct board *board =
        mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) bench_fail("collective", "no shared memory");
    for (int rank = 0; rank < j.world; rank++) {
        pid_t pid = fork();
        if (pid < 0) bench_fail("collective", "fork failed");
        if (pid == 0) {
            run_rank(&j, rank, board);
            exit(0);
        }
    }
    int bad = 0;
    for (int i = 0; i < j.world; i++) {
        int status;
        bad |= wait(&status) < 0 || status != 0;
    }
    return bad;
}
