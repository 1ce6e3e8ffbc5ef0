/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C in `zctl run`: once cancels the run, twice ends everything at once, also while zctl waits for a
 * coordinator that does not answer. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/integration/harness.h"

struct started { pid_t pid; int err; char said[16384]; size_t n; };

static void start_run(struct cluster *c, struct started *s) {
    int p[2];
    char state[300];
    snprintf(state, sizeof state, "%s/own", c->dir);
    const char *file = cluster_run_file(c, "long", 100000, 2, "");
    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    memset(s, 0, sizeof *s);
    s->pid = fork();
    if (s->pid == 0) {
        setenv("ZT_TEST_ID", c->id, 1);
        dup2(open("/dev/null", O_WRONLY), 1);
        dup2(p[1], 2);
        execl(zctl_path(), "zctl", "run", file, "--workers", "2", "--state", state, (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    s->err = p[0];
}

static void until_it_says(struct started *s, const char *text) {
    double end = now_s() + 60;
    while (!strstr(s->said, text)) {
        struct pollfd p = {s->err, POLLIN, 0};
        cr_assert_lt(now_s(), end, "no \"%s\" in: %s", text, s->said);
        if (poll(&p, 1, 100) <= 0)
            continue;
        ssize_t got = read(s->err, s->said + s->n, sizeof s->said - 1 - s->n);
        cr_assert_gt(got, 0, "zctl ended without \"%s\": %s", text, s->said);
        s->n += (size_t)got;
    }
}

static bool ended(void *arg) {
    pid_t *pid = arg; /* becomes minus its status */
    int status;
    if (waitpid(*pid, &status, WNOHANG) != *pid)
        return false;
    *pid = -(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return true;
}

static bool all_gone(void *arg) {
    pid_t left[8];
    return cluster_processes(arg, left, 8) == 0;
}

Test(interrupt, once_cancels_the_run, .timeout = 180) {
    struct cluster c = {0};
    struct started s;
    cluster_init(&c);
    start_run(&c, &s);
    until_it_says(&s, "with 2 workers");
    kill(s.pid, SIGINT);
    wait_for(ended, &s.pid, 60, "the end of zctl run");
    cr_expect_eq(s.pid, -9, "exit code %d", -s.pid);
    wait_for(all_gone, &c, 10, "the end of its children");
    close(s.err);
    cluster_stop(&c);
}

Test(interrupt, twice_ends_at_once_whatever_zctl_waits_for, .timeout = 180) {
    struct cluster c = {0};
    struct started s;
    pid_t pids[8];
    cluster_init(&c);
    start_run(&c, &s);
    until_it_says(&s, "with 2 workers");
    /* all but zctl stand still: nobody answers it any more */
    int n = cluster_processes(&c, pids, 8);
    for (int i = 0; i < n; i++)
        if (pids[i] != s.pid)
            kill(pids[i], SIGSTOP);
    kill(s.pid, SIGINT);
    nap_ms(400); /* a second wish, not the same one delivered twice */
    double second = now_s();
    kill(s.pid, SIGINT);
    wait_for(ended, &s.pid, 60, "the end of zctl run");
    cr_expect_eq(s.pid, -130, "exit code %d", -s.pid);
    cr_expect_lt(now_s() - second, 5.0, "its requests take ten seconds to give up");
    wait_for(all_gone, &c, 10, "the end of its children");
    close(s.err);
    cluster_stop(&c);
}
