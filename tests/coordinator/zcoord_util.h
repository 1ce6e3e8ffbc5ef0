/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/zcoord_util.h: a real zcoord process in a folder of its own, and a client's calls to it. One thread. */
#ifndef ZT_TESTS_ZCOORD_UTIL_H
#define ZT_TESTS_ZCOORD_UTIL_H
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "proto/session.h"
#include "tests/coordinator/store_util.h"

static const char yaml[] = "version: 1\nname: plain\nmodel: {preset: gpt2-nano}\ndataset: {path: /usr/share/common-licenses, tokenizer: bytes}\n"
                           "training: {steps: 20, seq_len: 64, local_batch_size: 2}\nparallelism: {mode: ddp}\n";

struct daemon { char dir[64], out[8192]; pid_t pid; int port, fd_out, fd_err; };

static inline void launch(struct daemon *d, const char *const *argv)
{
    int out[2], err[2];
    cr_assert(pipe(out) == 0 && pipe(err) == 0);
    d->pid = fork();
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(err[1], 2);
        for (int fd = 3; fd < 64; fd++)
            close(fd);
        execv(ZCOORD, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    d->fd_out = out[0];
    d->fd_err = err[0];
}

/* Reads until a newline, the end, or ten seconds. */
static inline bool read_line(int fd, char *line, size_t n)
{
    size_t have = 0;
    line[0] = 0;
    for (int i = 0; i < 200 && have + 1 < n; i++) {
        struct pollfd p = { fd, POLLIN, 0 };
        if (poll(&p, 1, 50) <= 0)
            continue;
        ssize_t got = read(fd, line + have, 1);
        if (got <= 0)
            return false;
        line[++have] = 0;
        if (line[have - 1] == '\n')
            return true;
    }
    return false;
}

static inline void start(struct daemon *d)
{
    char line[256], listen[32];
    snprintf(listen, sizeof listen, "127.0.0.1:%d", d->port);
    const char *argv[] = { ZCOORD, "serve", "--listen", listen, "--state", d->dir, NULL };
    launch(d, argv);
    cr_assert(read_line(d->fd_out, line, sizeof line), "zcoord said nothing");
    cr_assert_eq(sscanf(line, "listening on 127.0.0.1:%d\n", &d->port), 1, "first line: %s", line);
}

static inline int finish(struct daemon *d)
{
    int status = 0;
    size_t n = 0;
    ssize_t got;
    /* its pipes must not fill while it stops; the end of its error stream is the end of the process */
    char rest[256];
    for (int i = 0; i < 600; i++) {
        struct pollfd p = { d->fd_err, POLLIN, 0 };
        if (poll(&p, 1, 50) <= 0)
            continue;
        bool room = n + 1 < sizeof d->out;
        got = read(d->fd_err, room ? d->out + n : rest, room ? sizeof d->out - 1 - n : sizeof rest);
        if (got <= 0)
            break;
        n += room ? (size_t)got : 0;
    }
    waitpid(d->pid, &status, 0);
    d->out[n] = 0;
    close(d->fd_out);
    close(d->fd_err);
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int stop(struct daemon *d, int sig)
{
    kill(d->pid, sig);
    return finish(d);
}

static inline void fresh(struct daemon *d)
{
    memset(d, 0, sizeof *d);
    snprintf(d->dir, sizeof d->dir, "/tmp/zt-zcoord-XXXXXX");
    cr_assert(mkdtemp(d->dir) != NULL);
}

static inline struct zt_call *dial(struct daemon *d)
{
    char path[128];
    struct zt_token token;
    struct zt_call *c = NULL;
    struct zt_error err;
    snprintf(path, sizeof path, "%s/token", d->dir);
    cr_assert_eq(zt_token_load(&zt_sys_posix, path, &token, &err), 0, "%s", err.msg);
    int code = zt_call_open("127.0.0.1", d->port, &token, "test", 10, &c, &err);
    cr_assert_eq(code, 0, "%s", err.msg);
    return c;
}

struct answer { Zt__Envelope *env; void *arena; struct zt_error err; };

static inline int call(struct zt_call *c, Zt__Envelope__BodyCase which, void *body, struct answer *a)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    memset(a, 0, sizeof *a);
    env.body_case = which;
    env.submit = body;
    return zt_call(c, &env, 10, &a->env, &a->arena, &a->err);
}

static inline void drop(struct answer *a) { if (a->env) zt_envelope_free(a->env, a->arena); }

static inline int submit_for(struct zt_call *c, uint32_t workers, const char *name, const char *text, uint8_t key_byte, struct answer *a)
{
    uint8_t key[16] = { key_byte };
    Zt__Submit s = ZT__SUBMIT__INIT;
    s.request_key.data = key;
    s.request_key.len = sizeof key;
    s.run_yaml.data = (uint8_t *)(uintptr_t)text;
    s.run_yaml.len = strlen(text);
    s.file = (char *)"run.yaml";
    s.name = (char *)(uintptr_t)name;
    s.has_workers = 1;
    s.workers = workers;
    return call(c, ZT__ENVELOPE__BODY_SUBMIT, &s, a);
}

static inline int submit(struct zt_call *c, const char *name, const char *text, uint8_t key_byte, struct answer *a)
{
    return submit_for(c, 2, name, text, key_byte, a);
}

static inline int cancel(struct zt_call *c, const char *run, uint8_t key_byte, struct answer *a)
{
    uint8_t key[16] = { key_byte };
    Zt__Cancel s = ZT__CANCEL__INIT;
    s.request_key.data = key;
    s.request_key.len = sizeof key;
    s.run = (char *)(uintptr_t)run;
    return call(c, ZT__ENVELOPE__BODY_CANCEL, &s, a);
}

#endif
