/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: order, windows, cursor, ends and errors. The bodies run under Criterion and, for
 * TSan, under a plain main (ZT_PLAIN_MAIN). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

#include "engine/data/data.h"
#include "tests/engine/data_util.h"

#ifdef ZT_PLAIN_MAIN
#define CHECK(e)                                                                                   \
    ((e) ? (void)0                                                                                 \
         : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #e), data_teardown(), exit(1)))
#else
#include <criterion/criterion.h>
#define CHECK(e) cr_assert(e)
#endif

#define T 8

/* n samples; sample i starts with token i * T % 251 of a .bin of n T + 1 tokens */
static struct zt_dataset *make_set(int64_t n) {
    const char *p = data_bin("set.bin", (size_t)(n * T + 1), 2, 0, 0, 0, 1, 50000);
    struct zt_dataset_config c = {.path = p, .seq_len = T, .vocab_size = 50257};
    struct zt_dataset *d;
    struct zt_error err = {0};
    if (zt_dataset_open(&c, &d, &err) != 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    return d;
}

static struct zt_loader_config make_config(const struct zt_dataset *d, int rank, int world,
                                           int64_t batch) {
    return (struct zt_loader_config){.dataset = d,
                                     .dp_index = rank,
                                     .dp_size = world,
                                     .local_batch = batch,
                                     .seq_len = T,
                                     .accumulation = 1,
                                     .shuffle = true,
                                     .seed = 1234};
}

static struct zt_loader *create(struct zt_loader_config c) {
    struct zt_loader *l = NULL;
    struct zt_error err = {0};
    int rc = zt_loader_create(&c, &l, &err);
    if (rc != 0) fprintf(stderr, "%s\n", err.msg);
    CHECK(rc == 0);
    return l;
}

static void check_content(const struct zt_micro_batch *b) {
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t t = 0; t < T; t++) {
            int64_t at = b->sample_ids[r] * T + t;
            CHECK(b->all.tokens[r * T + t] == at % 50000);
            CHECK(b->all.targets[r * T + t] == (at + 1) % 50000);
        }
}

/* The ids of every rank and epoch are the sampler's, in order; content belongs to the ids. */
static void body_order_is_the_samplers(void) {
    static const struct {
        int64_t n;
        int world;
        int64_t batch;
        bool shuffle, drop;
    } row[] = {{24, 1, 4, true, true}, {24, 2, 3, true, false},  {25, 2, 3, true, false},
               {25, 4, 3, true, true}, {26, 3, 4, false, false}, {26, 3, 4, false, true},
               {7, 4, 1, true, false}, {101, 5, 20, true, false}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct zt_dataset *d = make_set(row[i].n);
        for (int rank = 0; rank < row[i].world; rank++) {
            struct zt_loader_config c = make_config(d, rank, row[i].world, row[i].batch);
            c.shuffle = row[i].shuffle;
            c.drop_last = row[i].drop;
            c.epochs = 3;
            struct zt_loader *l = create(c);
            struct zt_sampler s;
            CHECK(zt_sampler_init(&s, row[i].n, row[i].world, c.shuffle, c.drop_last, c.seed,
                                  NULL) == 0);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                CHECK(zt_sampler_set_epoch(&s, epoch, NULL) == 0);
                int64_t per = c.drop_last ? s.per_rank / c.local_batch * c.local_batch : s.per_rank;
                for (int64_t at = 0; at < per;) {
                    struct zt_micro_batch b;
                    CHECK(zt_loader_next(l, &b, NULL) == 0);
                    CHECK(b.rows == (per - at < c.local_batch ? per - at : c.local_batch));
                    for (int64_t r = 0; r < b.rows; r++)
                        CHECK(b.sample_ids[r] == zt_sampler_get(&s, rank, at + r));
                    check_content(&b);
                    at += b.rows;
                }
            }
            struct zt_micro_batch b;
            struct zt_error err = {0};
            CHECK(zt_loader_next(l, &b, &err) == ZT_ENOTFOUND);
            CHECK(zt_loader_next(l, &b, &err) == ZT_ENOTFOUND); /* and stays so */
            CHECK(strstr(err.msg, "3 epochs"));
            zt_sampler_free(&s);
            zt_loader_destroy(l);
        }
        zt_dataset_close(d);
    }
}

static void body_ranks_see_each_sample_once(void) {
    enum { N = 48 };
    struct zt_dataset *d = make_set(N);
    for (int world = 1; world <= 4; world++) {
        int seen[N] = {0};
        for (int rank = 0; rank < world; rank++) {
            struct zt_loader_config c = make_config(d, rank, world, 4);
            c.epochs = 1;
            struct zt_loader *l = create(c);
            struct zt_micro_batch b;
            while (zt_loader_next(l, &b, NULL) == 0)
                for (int64_t r = 0; r < b.rows; r++) seen[b.sample_ids[r]]++;
            zt_loader_destroy(l);
        }
        for (int i = 0; i < N; i++) CHECK(seen[i] == 1);
    }
    zt_dataset_close(d);
}

/* One global batch: whatever the number of ranks and the accumulation, a window holds the same
 * samples. */
static void body_a_window_holds_the_same_samples_for_any_world(void) {
    enum { N = 100, G = 12, WINDOWS = 8 };
    struct zt_dataset *d = make_set(N);
    int expected[WINDOWS][N] = {{0}};
    static const struct {
        int world;
        int64_t batch, accum;
    } row[] = {{1, 12, 1}, {1, 4, 3}, {2, 6, 1}, {3, 4, 1}, {4, 3, 1}, {4, 1, 3}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int seen[WINDOWS][N] = {{0}};
        for (int rank = 0; rank < row[i].world; rank++) {
            struct zt_loader_config c = make_config(d, rank, row[i].world, row[i].batch);
            c.accumulation = row[i].accum;
            c.drop_last = true;
            struct zt_loader *l = create(c);
            CHECK(zt_loader_windows(l) == -1);
            for (int w = 0; w < WINDOWS; w++)
                for (int64_t m = 0; m < row[i].accum; m++) {
                    struct zt_micro_batch b;
                    CHECK(zt_loader_next(l, &b, NULL) == 0);
                    CHECK(b.micro == m && b.window_micros == row[i].accum &&
                          b.rows == row[i].batch);
                    for (int64_t r = 0; r < b.rows; r++) seen[w][b.sample_ids[r]]++;
                }
            zt_loader_destroy(l);
        }
        if (i == 0) memcpy(expected, seen, sizeof seen);
        CHECK(memcmp(expected, seen, sizeof seen) == 0);
    }
    zt_dataset_close(d);
}

static void expect_windows(struct zt_loader *l, const int64_t *sizes, int n) {
    struct zt_micro_batch b;
    for (int w = 0; w < n; w++)
        for (int64_t m = 0; m < sizes[w]; m++) {
            CHECK(zt_loader_next(l, &b, NULL) == 0);
            CHECK(b.micro == m && b.window_micros == sizes[w]);
        }
}

static void body_windows(void) {
    struct zt_dataset *d = make_set(40); /* 2 ranks x batch 2: 10 micro-batches an epoch */
    struct zt_micro_batch b;
    struct zt_loader_config c = make_config(d, 1, 2, 2);
    c.accumulation = 4;
    c.epochs = 2;
    struct zt_loader *l = create(c);
    CHECK(zt_loader_windows(l) == 6);
    expect_windows(l, (int64_t[]){4, 4, 2, 4, 4, 2}, 6);
    CHECK(zt_loader_next(l, &b, NULL) == ZT_ENOTFOUND);
    zt_loader_destroy(l);
    c.tail = ZT_TAIL_DROP;
    l = create(c);
    CHECK(zt_loader_windows(l) == 4);
    expect_windows(l, (int64_t[]){4, 4, 4, 4}, 4);
    CHECK(zt_loader_next(l, &b, NULL) == ZT_ENOTFOUND);
    zt_loader_destroy(l);
    c.epochs = 0; /* endless: windows run on across the epochs */
    l = create(c);
    expect_windows(l, (int64_t[]){4, 4, 4, 4, 4, 4, 4}, 7);
    CHECK(zt_loader_cursor(l).epoch == 2 && zt_loader_cursor(l).consumed == 8 * 4);
    zt_loader_destroy(l);
    zt_dataset_close(d);
}

/* Without an end the epochs are one stream: whatever the ranks, micro-batches and drop_last, place w G + p
 * of it is sample p' of the permutations one behind the other. 29 samples: no batch divides them. */
static void body_endless_epochs_are_one_stream(void) {
    enum { N = 29, G = 12, WINDOWS = 20 };
    struct zt_dataset *d = make_set(N);
    int64_t stream[WINDOWS * G];
    struct zt_sampler s;
    CHECK(zt_sampler_init(&s, N, 1, true, false, 1234, NULL) == 0);
    for (int64_t i = 0; i < WINDOWS * G; i++) {
        CHECK(zt_sampler_set_epoch(&s, i / N, NULL) == 0);
        stream[i] = zt_sampler_get(&s, 0, i % N);
    }
    zt_sampler_free(&s);
    static const struct {
        int world;
        int64_t batch, accum;
    } row[] = {{1, 12, 1}, {1, 1, 12}, {2, 3, 2}, {3, 4, 1}, {4, 3, 1}, {4, 1, 3}, {6, 2, 1}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (int rank = 0; rank < row[i].world; rank++) {
            struct zt_loader_config c = make_config(d, rank, row[i].world, row[i].batch);
            c.accumulation = row[i].accum;
            c.drop_last = i % 2;
            struct zt_loader *l = create(c);
            struct zt_micro_batch b;
            for (int64_t m = 0; m < WINDOWS * row[i].accum; m++) {
                CHECK(zt_loader_next(l, &b, NULL) == 0 && b.rows == row[i].batch);
                CHECK(b.micro == m % row[i].accum && b.window_micros == row[i].accum);
                for (int64_t r = 0; r < b.rows; r++)
                    CHECK(b.sample_ids[r] ==
                          stream[(m * row[i].batch + r) * row[i].world + rank]);
                check_content(&b);
                int64_t used = (m + 1) * row[i].batch * row[i].world;
                CHECK(zt_loader_cursor(l).epoch == used / N);
                CHECK(zt_loader_cursor(l).consumed == used % N);
            }
            zt_loader_destroy(l);
        }
    zt_dataset_close(d);
}

/* The windows still to come, from every cursor at a window's end, are those that then come. */
static void body_windows_left(void) {
    struct zt_dataset *d = make_set(45); /* 2 ranks x batch 2: 11 micro-batches, or 12 with repeats */
    for (int k = 0; k < 8; k++) {
        struct zt_loader_config c = make_config(d, 0, 2, 2);
        struct zt_micro_batch b;
        c.accumulation = k & 1 ? 4 : 3;
        c.drop_last = k & 2;
        c.tail = k & 4 ? ZT_TAIL_DROP : ZT_TAIL_SHORT;
        c.epochs = 3;
        struct zt_loader *l = create(c), *from = create(c);
        int64_t all = zt_loader_windows(l), left;
        CHECK(zt_loader_windows_left(from) == all);
        for (left = all; left > 0; left--) {
            zt_loader_destroy(from);
            do
                CHECK(zt_loader_next(l, &b, NULL) == 0);
            while (b.micro < b.window_micros - 1);
            c.start = zt_loader_cursor(l);
            from = create(c);
            CHECK(zt_loader_windows_left(from) == left - 1);
            CHECK(zt_loader_windows(from) == all);
        }
        CHECK(zt_loader_next(l, &b, NULL) == ZT_ENOTFOUND);
        CHECK(zt_loader_next(from, &b, NULL) == ZT_ENOTFOUND);
        zt_loader_destroy(from);
        zt_loader_destroy(l);
    }
    zt_dataset_close(d);
}

/* From the cursor after any micro-batch, a new loader goes on as the first one would have. */
static void body_cursor_resumes(void) {
    enum { STEPS = 23, BATCH = 3 };
    struct zt_dataset *d = make_set(26);
    for (int drop = 0; drop < 2; drop++) {
        struct zt_loader_config c = make_config(d, 1, 2, BATCH);
        c.drop_last = drop != 0;
        int64_t ids[STEPS][BATCH], rows[STEPS];
        struct zt_cursor after[STEPS];
        struct zt_micro_batch b;
        struct zt_loader *l = create(c);
        for (int i = 0; i < STEPS; i++) {
            CHECK(zt_loader_next(l, &b, NULL) == 0);
            rows[i] = b.rows;
            memcpy(ids[i], b.sample_ids, (size_t)b.rows * sizeof(int64_t));
            after[i] = zt_loader_cursor(l);
        }
        zt_loader_destroy(l);
        for (int from = 0; from < STEPS - 1; from++) {
            c.start = after[from];
            l = create(c);
            for (int i = from + 1; i < STEPS; i++) {
                CHECK(zt_loader_next(l, &b, NULL) == 0);
                CHECK(b.rows == rows[i] &&
                      memcmp(b.sample_ids, ids[i], (size_t)b.rows * sizeof(int64_t)) == 0);
            }
            zt_loader_destroy(l);
        }
    }
    zt_dataset_close(d);
}

/* 4 ranks stop inside an epoch, 3 others finish it: every sample once. */
static void body_cursor_survives_a_resize(void) {
    enum { N = 48 };
    struct zt_dataset *d = make_set(N);
    int seen[N] = {0};
    struct zt_cursor at = {0, 0};
    struct zt_micro_batch b;
    for (int rank = 0; rank < 4; rank++) {
        struct zt_loader_config c = make_config(d, rank, 4, 3);
        c.epochs = 1;
        struct zt_loader *l = create(c);
        for (int i = 0; i < 2; i++) {
            CHECK(zt_loader_next(l, &b, NULL) == 0);
            for (int64_t r = 0; r < b.rows; r++) seen[b.sample_ids[r]]++;
        }
        at = zt_loader_cursor(l);
        CHECK(at.epoch == 0 && at.consumed == 24);
        zt_loader_destroy(l);
    }
    for (int rank = 0; rank < 3; rank++) {
        struct zt_loader_config c = make_config(d, rank, 3, 4);
        c.epochs = 1;
        c.start = at;
        struct zt_loader *l = create(c);
        while (zt_loader_next(l, &b, NULL) == 0)
            for (int64_t r = 0; r < b.rows; r++) seen[b.sample_ids[r]]++;
        zt_loader_destroy(l);
    }
    for (int i = 0; i < N; i++) CHECK(seen[i] == 1);
    zt_dataset_close(d);
}

static void body_a_batch_stays_until_the_next_call(void) {
    struct zt_dataset *d = make_set(64);
    struct zt_loader *l = create(make_config(d, 0, 1, 2));
    for (int i = 0; i < 200; i++) {
        struct zt_micro_batch b;
        CHECK(zt_loader_next(l, &b, NULL) == 0);
        check_content(&b); /* the reader fills the other slots meanwhile */
        check_content(&b);
    }
    zt_loader_destroy(l);
    zt_dataset_close(d);
}

static void body_destroyed_at_any_moment(void) {
    struct zt_dataset *d = make_set(64);
    for (int taken = 0; taken < 50; taken++) {
        struct zt_loader *l = create(make_config(d, 0, 2, 4));
        struct zt_micro_batch b;
        for (int i = 0; i < taken % 7; i++) CHECK(zt_loader_next(l, &b, NULL) == 0);
        zt_loader_destroy(l);
    }
    zt_loader_destroy(NULL);
    zt_dataset_close(d);
}

/* A table whose reads fail from the Nth on (the reader's thread counts). */
static atomic_int reads_left;
static ssize_t failing_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    (void)arg;
    if (atomic_fetch_sub(&reads_left, 1) <= 0) return -EIO;
    return zt_sys_posix.pread(zt_sys_posix.arg, fd, buf, n, at);
}

static void body_an_error_comes_in_its_place_and_stays(void) {
    struct zt_sys sys = zt_sys_posix;
    sys.pread = failing_pread;
    for (int good = 0; good < 7; good++) {
        const char *p = data_bin("bad.bin", 64 * T + 1, 2, 0, 0, 0, 1, 50000);
        struct zt_dataset_config c = {.path = p, .seq_len = T, .vocab_size = 50257, .sys = &sys};
        struct zt_dataset *d;
        atomic_store(&reads_left, 1); /* the header's look */
        CHECK(zt_dataset_open(&c, &d, NULL) == 0);
        atomic_store(&reads_left, 2 * good + 1); /* batches of 2: the next one's second row fails */
        struct zt_loader *l = create(make_config(d, 0, 1, 2));
        struct zt_micro_batch b;
        struct zt_error err = {0};
        for (int i = 0; i < good; i++) CHECK(zt_loader_next(l, &b, &err) == 0);
        struct zt_cursor at = zt_loader_cursor(l);
        for (int i = 0; i < 3; i++) {
            memset(&err, 0, sizeof err);
            CHECK(zt_loader_next(l, &b, &err) == ZT_EDATA);
            CHECK(err.code == ZT_EDATA && strstr(err.msg, "bad.bin") &&
                  strstr(err.msg, "Input/output"));
        }
        CHECK(zt_loader_cursor(l).consumed == at.consumed);
        zt_loader_destroy(l);
        zt_dataset_close(d);
    }
}

static void body_less_than_a_global_batch_is_refused(void) {
    static const int64_t tokens[] = {257, 256, 65};
    for (int i = 0; i < 3; i++) {
        const char *p = data_bin("shard.bin", (size_t)tokens[i], 2, 0, 0, 0, 1, 50000);
        struct zt_dataset_config dc = {.path = p, .seq_len = 64, .vocab_size = 50257};
        struct zt_dataset *d;
        CHECK(zt_dataset_open(&dc, &d, NULL) == 0);
        for (int rank = 0; rank < 2; rank++) {
            struct zt_loader_config c = make_config(d, rank, 2, 2);
            struct zt_loader *l = NULL;
            struct zt_error err = {0};
            struct zt_micro_batch b;
            c.seq_len = 64;
            c.epochs = 1;
            int rc = zt_loader_create(&c, &l, &err);
            if (tokens[i] == 257) { /* exactly one batch */
                CHECK(rc == 0 && zt_loader_windows(l) == 1);
                CHECK(zt_loader_next(l, &b, NULL) == 0 && b.rows == 2);
                CHECK(zt_loader_next(l, &b, NULL) == ZT_ENOTFOUND);
                zt_loader_destroy(l);
            } else {
                CHECK(rc == ZT_EDATA && !l && strstr(err.msg, "shard.bin") &&
                      strstr(err.msg, "257"));
            }
        }
        zt_dataset_close(d);
    }
}

static void body_wrong_arguments_are_refused(void) {
    struct zt_dataset *d = make_set(20);
    struct zt_loader *l = NULL;
    struct zt_error err = {0};
    struct zt_loader_config c = make_config(d, 2, 2, 1);
    CHECK(zt_loader_create(&c, &l, &err) == ZT_EINVAL && strstr(err.msg, "rank 2 of 2"));
    c = make_config(d, 0, 2, 0);
    CHECK(zt_loader_create(&c, &l, &err) == ZT_EINVAL);
    c = make_config(d, 0, 2, 1);
    c.seq_len = T + 1;
    CHECK(zt_loader_create(&c, &l, &err) == ZT_EINVAL && strstr(err.msg, "8 tokens") && !l);
    zt_dataset_close(d);
}

/* Packed rows are dealt like any others: the sampler's order, with starts, weights and padding. */
static void body_packed_rows_are_dealt_in_the_samplers_order(void) {
    enum { N = 30, WORLD = 3, BATCH = 2 };
    char text[N * 128], *p = text;
    for (int i = 0; i < N; i++) /* one to a row of T inputs: 9 tokens, or 6 and padding */
        p += sprintf(p, "{\"prompt\": \"%02d\", \"completion\": \"%.*s\"}\n", i, i % 2 ? 6 : 3,
                     "abcdef");
    struct zt_dataset_config dc = {.path = data_write("set.jsonl", text, (size_t)(p - text)),
                                   .seq_len = T,
                                   .vocab_size = 256,
                                   .document_starts = true,
                                   .average = ZT_AVERAGE_SQUARE};
    struct zt_dataset *d;
    CHECK(zt_dataset_open(&dc, &d, NULL) == 0 && zt_dataset_samples(d) == N);
    for (int rank = 0; rank < WORLD; rank++) {
        struct zt_loader_config c = make_config(d, rank, WORLD, BATCH);
        c.epochs = 2;
        struct zt_loader *l = create(c);
        struct zt_sampler s;
        CHECK(zt_sampler_init(&s, N, WORLD, true, false, c.seed, NULL) == 0);
        for (int64_t at = 0; at < 2 * N / WORLD; at += BATCH) {
            struct zt_micro_batch b;
            int64_t padding = 0;
            CHECK(zt_sampler_set_epoch(&s, at / (N / WORLD), NULL) == 0);
            CHECK(zt_loader_next(l, &b, NULL) == 0 && b.rows == BATCH);
            for (int64_t r = 0; r < b.rows; r++) {
                int64_t id = zt_sampler_get(&s, rank, at % (N / WORLD) + r);
                struct zt_row row = zt_row_at(&b.all, r * T);
                int n = id % 2 ? 7 : 4; /* targets */
                CHECK(b.sample_ids[r] == id);
                CHECK(row.tokens[0] == '0' + id / 10 && row.tokens[1] == '0' + id % 10);
                for (int i = 0; i < T; i++) {
                    bool counts = i >= 1 && i < 1 + n, filling = i >= n + 2;
                    CHECK((row.targets[i] != -1) == counts);
                    CHECK(row.starts[i] == (filling ? i : 0));
                    CHECK(counts ? row.weights[i] == (id % 2 ? (float)(1 / sqrt(7)) : 0.5f)
                                 : row.weights[i] == 0);
                    padding += filling;
                }
            }
            CHECK(b.all.padding == padding);
        }
        zt_sampler_free(&s);
        zt_loader_destroy(l);
    }
    zt_dataset_close(d);
}

#define BODIES(X)                                                                                  \
    X(order_is_the_samplers)                                                                       \
    X(ranks_see_each_sample_once)                                                                  \
    X(a_window_holds_the_same_samples_for_any_world)                                               \
    X(endless_epochs_are_one_stream) X(windows_left) X(windows) X(cursor_resumes)                  \
        X(cursor_survives_a_resize) X(a_batch_stays_until_the_next_call)                           \
            X(destroyed_at_any_moment) X(an_error_comes_in_its_place_and_stays)                    \
                X(less_than_a_global_batch_is_refused) X(wrong_arguments_are_refused)              \
                    X(packed_rows_are_dealt_in_the_samplers_order)

#ifdef ZT_PLAIN_MAIN
int main(void) {
#define RUN(name)                                                                                  \
    data_setup();                                                                                  \
    body_##name();                                                                                 \
    data_teardown();
    BODIES(RUN)
    puts("all bodies passed");
    return 0;
}
#else
TestSuite(data_loader, .init = data_setup, .fini = data_teardown);
#define WRAP(name)                                                                                 \
    Test(data_loader, name) { body_##name(); }
BODIES(WRAP)
#endif
