/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/harness.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ZT_PROGRAMS names another build folder, so that one driver can test daemons built with a sanitizer whose
 * run-time the test library does not bear. */
static const char *program(char *path, size_t n, const char *name) {
    const char *root = getenv("ZT_PROGRAMS");
    snprintf(path, n, "%s/%s", root != NULL ? root : ZT_BUILD_ROOT, name);
    return path;
}
const char *zcoord_path(void) {
    static _Thread_local char path[512]; /* tests start programs from several threads */
    return program(path, sizeof path, "coordinator/zcoord");
}
const char *zworker_path(void) {
    static _Thread_local char path[512];
    return program(path, sizeof path, "worker/zworker");
}
const char *zctl_path(void) {
    static _Thread_local char path[512];
    return program(path, sizeof path, "clients/zctl/zctl");
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void nap_ms(int ms) {
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

void wait_for(bool (*cond)(void *arg), void *arg, double timeout_s, const char *what) {
    double end = now_s() + timeout_s;
    while (!cond(arg)) {
        cr_assert(now_s() < end, "waited %.0f s for: %s", timeout_s, what);
        nap_ms(20);
    }
}

/* ------------------------------------------------------------------------------------ processes */

/* Child side: own environment, output to fds, dies with the test. */
static void become(struct cluster *c, const char *const argv[], int out, int err) {
    char state[300];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("ZT_TEST_ID", c->id, 1);
    snprintf(state, sizeof state, "%s/coord", c->dir);
    setenv("ZTRAIN_STATE", state, 1);
    snprintf(state, sizeof state, "%s/xdg", c->dir);
    setenv("XDG_STATE_HOME", state, 1);
    snprintf(state, sizeof state, "%s/runtime", c->dir);
    setenv("XDG_RUNTIME_DIR", state, 1);
    snprintf(state, sizeof state, "127.0.0.1:%d", c->port);
    if (c->port > 0) setenv("ZCTL_COORD", state, 1);
    int in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    for (int fd = 3; fd < 256; fd++) close(fd);
    execv(argv[0], (char *const *)(uintptr_t)argv);
    dprintf(2, "cannot run %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static int log_file(struct cluster *c, const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    cr_assert(fd >= 0, "%s: %s", path, strerror(errno));
    return fd;
}

void cluster_init(struct cluster *c) {
    const char *tmp = getenv("TMPDIR");
    memset(c, 0, sizeof *c);
    snprintf(c->dir, sizeof c->dir, "%s/zt-test-XXXXXX", tmp != NULL ? tmp : "/tmp");
    cr_assert(mkdtemp(c->dir) != NULL, "%s: %s", c->dir, strerror(errno));
    snprintf(c->id, sizeof c->id, "zt-%d-%.0f", (int)getpid(), now_s() * 1e6);
    const char *sub[] = {"xdg", "runtime", "coord"};
    for (int i = 0; i < 3; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/%s", c->dir, sub[i]);
        mkdir(path, 0700);
    }
}

void cluster_start_coord(struct cluster *c) {
    char listen[64], state[300];
    int p[2];
    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    snprintf(listen, sizeof listen, "127.0.0.1:%d", c->port);
    snprintf(state, sizeof state, "%s/coord", c->dir);
    const char *argv[] = {zcoord_path(), "serve", "--listen", listen, "--state", state, NULL};
    int err = log_file(c, "coord.log");
    c->coord = fork();
    if (c->coord == 0) {
        struct rlimit files = {(rlim_t)c->coord_nofile, (rlim_t)c->coord_nofile};
        if (c->coord_nofile > 0) setrlimit(RLIMIT_NOFILE, &files);
        become(c, argv, p[1], err);
    }
    close(p[1]);
    close(err);
    char line[256] = "";
    size_t n = 0;
    double end = now_s() + 30;
    while (strchr(line, '\n') == NULL && n < sizeof line - 1) {
        struct pollfd f = {p[0], POLLIN, 0};
        cr_assert(now_s() < end, "zcoord did not say that it listens; see %s/coord.log", c->dir);
        if (poll(&f, 1, 100) <= 0) continue;
        ssize_t got = read(p[0], line + n, sizeof line - 1 - n);
        cr_assert(got > 0, "zcoord ended before it listened; see %s/coord.log", c->dir);
        n += (size_t)got;
        line[n] = 0;
    }
    /* The read end stays open for the daemon's life: closing it could end it by SIGPIPE. */
    cr_assert_eq(sscanf(line, "listening on 127.0.0.1:%d", &c->port), 1, "first line: %s", line);
}

void cluster_start_worker(struct cluster *c, int i, const char *extra) {
    char coord[64], state[300], name[32], words[512] = "";
    const char *argv[40] = {zworker_path(), "--coord", coord, "--state", state, NULL};
    int n = 5;
    snprintf(coord, sizeof coord, "127.0.0.1:%d", c->port);
    snprintf(state, sizeof state, "%s/w%d", c->dir, i);
    mkdir(state, 0700);
    bool named = extra != NULL && strstr(extra, "--name") != NULL;
    snprintf(name, sizeof name, "w%d", i);
    if (!named) {
        argv[n++] = "--name";
        argv[n++] = name;
    }
    if (extra == NULL || strstr(extra, "--memory-gib") == NULL) {
        argv[n++] = "--memory-gib";
        argv[n++] = "0.25";
    }
    if (extra == NULL || strstr(extra, "--threads") == NULL) {
        argv[n++] = "--threads";
        argv[n++] = "1";
    }
    snprintf(words, sizeof words, "%s", extra != NULL ? extra : "");
    for (char *w = strtok(words, " "); w != NULL && n < 39; w = strtok(NULL, " ")) argv[n++] = w;
    argv[n] = NULL;
    char log[32];
    snprintf(log, sizeof log, "w%d.log", i);
    int fd = log_file(c, log);
    pid_t pid = fork();
    if (pid == 0) become(c, argv, fd, fd);
    close(fd);
    c->worker[i] = pid;
    if (i >= c->workers) c->workers = i + 1;
}

struct idle_wait { struct cluster *c; int n; };
static bool workers_idle(void *arg) {
    struct idle_wait *w = arg;
    struct output o = zctl(w->c, 10, "workers -o json");
    int idle = 0;
    if (o.code == 0) {
        json_t *j = json_loads(o.out, 0, NULL);
        json_t *list = json_is_array(j) ? j : json_object_get(j, "workers");
        size_t i;
        json_t *x;
        json_array_foreach(list, i, x) {
            const char *s = json_string_value(json_object_get(x, "state"));
            idle += s != NULL && strcmp(s, "IDLE") == 0;
        }
        json_decref(j);
    }
    output_free(&o);
    return idle >= w->n;
}

void cluster_wait_idle(struct cluster *c, int n) {
    struct idle_wait w = {c, n};
    wait_for(workers_idle, &w, 30, "workers to be idle");
}

void cluster_start(struct cluster *c, int n) {
    cluster_init(c);
    cluster_start_coord(c);
    for (int i = 0; i < n; i++) cluster_start_worker(c, i, NULL);
    cluster_wait_idle(c, n);
}

int cluster_processes(const struct cluster *c, pid_t *pids, int max) {
    DIR *d = opendir("/proc");
    struct dirent *e;
    char want[80];
    int n = 0;
    snprintf(want, sizeof want, "ZT_TEST_ID=%s", c->id);
    while (d != NULL && (e = readdir(d)) != NULL && n < max) {
        int pid = atoi(e->d_name);
        char path[64], env[65536];
        if (pid <= 0 || pid == getpid()) continue;
        snprintf(path, sizeof path, "/proc/%d/environ", pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t got = read(fd, env, sizeof env - 1);
        close(fd);
        if (got > 0 && memmem(env, (size_t)got, want, strlen(want)) != NULL) pids[n++] = pid;
    }
    if (d != NULL) closedir(d);
    return n;
}

/* Waits until at most `left` processes of the cluster are there. */
static int dwindle(struct cluster *c, int left, double timeout_s) {
    pid_t pids[64];
    double end = now_s() + timeout_s;
    int n;
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {}
        n = cluster_processes(c, pids, 64);
        if (n <= left || now_s() > end) return n;
        nap_ms(20);
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *f) {
    (void)st, (void)flag, (void)f;
    return remove(path);
}

void cluster_stop(struct cluster *c) {
    for (int i = 0; i < c->workers; i++)
        if (c->worker[i] > 0) {
            kill(c->worker[i], SIGCONT);
            kill(c->worker[i], SIGTERM);
        }
    /* a draining worker wants to tell how its run ended: the coordinator goes last */
    dwindle(c, c->coord > 0 ? 1 : 0, 20);
    if (c->coord > 0) kill(c->coord, SIGTERM);
    dwindle(c, 0, 20);
    pid_t pids[64];
    int n = cluster_processes(c, pids, 64);
    for (int i = 0; i < n; i++) kill(pids[i], SIGKILL);
    cr_assert_eq(n, 0, "%d processes were still there 20 s after SIGTERM (pid %d); logs in %s", n, (int)pids[0],
                 c->dir);
    if (!c->keep) cluster_remove(c);
}

void folder_remove(const char *path) { nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

void cluster_remove(struct cluster *c) { folder_remove(c->dir); }

/* ------------------------------------------------------------------------------------ programs */

struct output run_program(struct cluster *c, double timeout_s, const char *const argv[]) {
    struct output o = {-1, NULL, NULL};
    int p[2][2];
    char *buf[2] = {malloc(1), malloc(1)};
    size_t n[2] = {0, 0};
    cr_assert(pipe2(p[0], O_CLOEXEC) == 0 && pipe2(p[1], O_CLOEXEC) == 0);
    pid_t pid = fork();
    if (pid == 0) become(c, argv, p[0][1], p[1][1]);
    close(p[0][1]);
    close(p[1][1]);
    double end = now_s() + timeout_s;
    int open_ends = 2;
    struct pollfd f[2] = {{p[0][0], POLLIN, 0}, {p[1][0], POLLIN, 0}};
    while (open_ends > 0) {
        if (now_s() > end) {
            kill(pid, SIGKILL);
            cr_assert_fail("%s %s took more than %.0f s", argv[0], argv[1] != NULL ? argv[1] : "", timeout_s);
        }
        poll(f, 2, 50);
        for (int i = 0; i < 2; i++) {
            if (f[i].fd < 0 || (f[i].revents & (POLLIN | POLLHUP)) == 0) continue;
            buf[i] = realloc(buf[i], n[i] + 65537);
            ssize_t got = read(f[i].fd, buf[i] + n[i], 65536);
            if (got > 0) n[i] += (size_t)got;
            if (got <= 0) {
                close(f[i].fd);
                f[i].fd = -1;
                open_ends--;
            }
        }
    }
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    buf[0][n[0]] = 0;
    buf[1][n[1]] = 0;
    o.out = buf[0];
    o.err = buf[1];
    return o;
}

static struct output zctl_v(struct cluster *c, double timeout_s, const char *fmt, va_list ap) {
    char words[2048];
    const char *argv[64] = {zctl_path()};
    int n = 1;
    vsnprintf(words, sizeof words, fmt, ap);
    for (char *save = NULL, *w = strtok_r(words, " ", &save); w != NULL && n < 63; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    argv[n] = NULL;
    return run_program(c, timeout_s, argv);
}

struct output zctl(struct cluster *c, double timeout_s, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    struct output o = zctl_v(c, timeout_s, fmt, ap);
    va_end(ap);
    return o;
}

void output_free(struct output *o) {
    free(o->out);
    free(o->err);
    o->out = o->err = NULL;
}

json_t *zctl_json(struct cluster *c, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    struct output o = zctl(c, 30, "%s -o json", line);
    cr_assert_eq(o.code, 0, "zctl %s: exit %d: %s", line, o.code, o.err);
    json_error_t e;
    json_t *j = json_loads(o.out, JSON_REJECT_DUPLICATES, &e);
    cr_assert(j != NULL, "zctl %s: %s in: %.400s", line, e.text, o.out);
    output_free(&o);
    return j;
}

json_t *zctl_jsonl(struct cluster *c, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    struct output o = zctl(c, 60, "%s -o jsonl", line);
    cr_assert_eq(o.code, 0, "zctl %s: exit %d: %s", line, o.code, o.err);
    json_t *all = json_array();
    for (char *save = NULL, *l = strtok_r(o.out, "\n", &save); l != NULL; l = strtok_r(NULL, "\n", &save)) {
        json_error_t e;
        json_t *j = json_loads(l, JSON_REJECT_DUPLICATES, &e);
        cr_assert(j != NULL, "zctl %s: %s in: %.400s", line, e.text, l);
        json_array_append_new(all, j);
    }
    output_free(&o);
    return all;
}

/* ------------------------------------------------------------------------------------ runs */

const char *cluster_file(struct cluster *c, const char *name, const char *text) {
    static char path[4][400];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 400, "%s/%s", c->dir, name);
    FILE *f = fopen(p, "w");
    cr_assert(f != NULL && fputs(text, f) >= 0, "%s: %s", p, strerror(errno));
    fclose(f);
    return p;
}

const char *cluster_data(struct cluster *c) {
    static char path[400];
    snprintf(path, sizeof path, "%s/data.txt", c->dir);
    if (access(path, R_OK) != 0) {
        FILE *f = fopen(path, "w");
        cr_assert(f != NULL);
        for (int i = 0; i < 3000; i++) fprintf(f, "line %d says that %d times %d is %d.\n", i, i % 17, i % 13, (i % 17) * (i % 13));
        fclose(f);
    }
    return path;
}

const char *cluster_run_file(struct cluster *c, const char *name, int steps, int workers, const char *extra) {
    char text[4096];
    const char *path = cluster_data(c);
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: %d\n"
             "model: {family: gpt2, layers: 2, heads: 2, dim: 32, vocab_size: 256, seq_len_max: 32}\n"
             "dataset: {path: %s, tokenizer: bytes}\n"
             "training: {steps: %d, seq_len: 32, local_batch_size: 2, seed: 7}\n"
             "%s%s",
             name, workers, path, steps, extra != NULL && strstr(extra, "parallelism:") ? "" : "parallelism: {mode: ddp}\n",
             extra != NULL ? extra : "");
    char file[128];
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(c, file, text);
}

void run_state(struct cluster *c, const char *run, char *state, size_t n, int64_t *step) {
    struct output o = zctl(c, 20, "status %s -o json --timeout 5", run);
    snprintf(state, n, "%s", "");
    *step = -1;
    if (o.code == 0) {
        json_t *j = json_loads(o.out, 0, NULL);
        const char *s = json_string_value(json_object_get(j, "state"));
        if (s != NULL) snprintf(state, n, "%s", s);
        if (json_is_integer(json_object_get(j, "step"))) *step = json_integer_value(json_object_get(j, "step"));
        json_decref(j);
    }
    output_free(&o);
}

static bool terminal(const char *s) {
    return strcmp(s, "SUCCEEDED") == 0 || strcmp(s, "FAILED") == 0 || strcmp(s, "CANCELLED") == 0;
}

void wait_run(struct cluster *c, const char *run, const char *state, double timeout_s) {
    double end = now_s() + timeout_s;
    char s[64];
    int64_t step;
    for (;;) {
        run_state(c, run, s, sizeof s, &step);
        if (strcmp(s, state) == 0) return;
        if (terminal(s) || now_s() > end) {
            struct output o = zctl(c, 20, "status %s", run);
            c->keep = true;
            cr_assert_fail("%s is %s at step %lld, wanted %s; logs in %s\n%s", run, s, (long long)step, state, c->dir,
                           o.out);
        }
        nap_ms(50);
    }
}

void wait_step(struct cluster *c, const char *run, int64_t step, double timeout_s) {
    double end = now_s() + timeout_s;
    char s[64];
    int64_t at;
    for (;;) {
        run_state(c, run, s, sizeof s, &at);
        if (at >= step) return;
        cr_assert(!terminal(s) && now_s() < end, "%s is %s at step %lld, wanted step %lld; logs in %s", run, s,
                  (long long)at, (long long)step, c->dir);
        nap_ms(20);
    }
}

pid_t trainer_of(pid_t supervisor) {
    char path[80], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)supervisor, (int)supervisor);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 ? (pid_t)atoi(text) : 0;
}
