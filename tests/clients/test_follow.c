/* SPDX-License-Identifier: Apache-2.0 */
/* Following a run to its end: the last lines come after the end and are waited for; those of a trainer that
 * died with its worker are not waited for for ever; a run that ended long ago is not waited for at all. */
#include <sys/wait.h>
#include <time.h>
#include "clients/zctl/cmd.h"
#include "tests/coordinator/store_util.h"

static struct bench b;
static struct zt_row_run row;

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void put_log(const char *text, uint64_t offset, bool end) {
    struct zt_batch *batch = zt_batch_new();
    zt_batch_log(batch, RUN1, 1, 0, offset, false, end, text, strlen(text), 1);
    cr_assert_eq(bench_commit(&b, batch), 0);
}

/* A run of one rank that ended `ago` milliseconds ago, with its first line stored. */
static void ended(int64_t ago) {
    bench_folder(&b);
    bench_open(&b, NULL);
    add_run(&b, RUN1, "llama", 1, 1, 1000, 0);
    row = a_run(RUN1, "llama", 1, ZT_RUN_SUCCEEDED, 1, 1);
    row.ended_ms = wall_ms() - ago;
    struct zt_batch *batch = zt_batch_new();
    zt_batch_run(batch, &row, NULL);
    cr_assert_eq(bench_commit(&b, batch), 0);
    put_log("first\n", 0, false);
}

/* What following prints; seconds: how long it took. */
static char *follow(double *seconds) {
    struct zt_options o = {.command = ZT_CMD_LOGS, .subject = "llama", .state = b.dir, .follow = true, .color = ZT_COLOR_NEVER};
    struct zt_source s;
    struct zt_answer a = {0};
    struct zt_error err;
    char *out = NULL;
    size_t n = 0;
    double start = zt_now();
    FILE *f = open_memstream(&out, &n);
    struct zt_follow *follow = zt_follow_new(&o, "llama");
    cr_assert_eq(zt_source_open(&o, &s, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_follow_to_end(follow, &s, true, false, f, &a, &err), 0, "%s", err.msg);
    cr_assert_str_eq(a.env->run_detail->summary->state, "SUCCEEDED");
    zt_follow_flush(follow, f);
    zt_answer_free(&a);
    zt_follow_free(follow);
    zt_source_close(&s);
    fclose(f);
    *seconds = zt_now() - start;
    return out;
}

Test(follow, last_lines_come_after_the_end) {
    double seconds;
    ended(0);
    bench_close(&b);
    pid_t pid = fork(); /* the worker's last words, later than the first look */
    if (pid == 0) {
        nanosleep(&(struct timespec){0, 700000000}, NULL);
        bench_open(&b, NULL);
        put_log("last\n", 6, true);
        bench_close(&b);
        _exit(0);
    }
    char *out = follow(&seconds);
    cr_expect_str_eq(out, "box:0| first\nbox:0| last\n");
    free(out);
    waitpid(pid, NULL, 0);
    bench_end(&b);
}

Test(follow, a_stream_that_never_ends_is_given_up) {
    double seconds;
    ended(4500);
    char *out = follow(&seconds);
    cr_expect_str_eq(out, "box:0| first\n");
    cr_expect_lt(seconds, 30);
    free(out);
    bench_end(&b);
}

Test(follow, a_run_of_long_ago_is_read_once) {
    ended(3600 * 1000);
    double seconds;
    char *out = follow(&seconds);
    cr_expect_str_eq(out, "box:0| first\n");
    free(out);
    bench_end(&b);
}
