/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong input through the programs a user types: a clear message, the right exit code, nothing lost. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/rng.h"
#include "tests/integration/harness.h"

#define HEAD "version: 1\nname: bad\n"
#define BODY \
    "model: {preset: gpt2-nano}\ndataset: {path: /usr/share/common-licenses, tokenizer: bytes}\n" \
    "training: {steps: 2, seq_len: 32, local_batch_size: 2}\nparallelism: {mode: ddp}\n"

static void expect(struct output o, int code, const char *text, const char *what) {
    cr_expect_eq(o.code, code, "%s: exit %d, wanted %d: %s%s", what, o.code, code, o.out, o.err);
    cr_expect(strstr(o.err, text) != NULL || strstr(o.out, text) != NULL, "%s: no '%s' in: %s%s", what, text,
              o.out, o.err);
    output_free(&o);
}

Test(badinput, run_files) {
    struct cluster c;
    cluster_init(&c);
    static const struct { const char *what, *text, *place, *says; } bad[] = {
        {"unknown key", HEAD "modle: {preset: gpt2-nano}\n" BODY, ":3:1: modle", "model"},
        {"wrong type", HEAD "priority: high\n" BODY, ":3:11: priority", "high"},
        {"duplicate key", HEAD "name: again\n" BODY, ":3:1: name", "twice"},
        {"tab", HEAD "labels:\n\tteam: a\n" BODY, ":4:1", "tab"},
        {"anchor", HEAD "labels: &x {team: a}\n" BODY, ":3:9", "anchor"},
        {"no steps", HEAD "model: {preset: gpt2-nano}\ndataset: {path: /x}\ntraining: {steps: 0, seq_len: 8, local_batch_size: 1}\n",
         ":5:19: training.steps", "0"},
        {"unknown preset", HEAD "model: {preset: gpt2-nanno}\ndataset: {path: /x}\ntraining: {steps: 1, seq_len: 8, local_batch_size: 1}\n",
         ":3:17: model.preset", "gpt2-nano"},
        {"not in this version", HEAD BODY "memory: {expandable_segments: true}\n", "memory.expandable_segments", "not in this version"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char file[512];
        snprintf(file, sizeof file, "%s", cluster_file(&c, "bad.yaml", bad[i].text));
        struct output o = zctl(&c, 10, "validate %s", file);
        cr_expect(strstr(o.err, bad[i].says) != NULL || strstr(o.out, bad[i].says) != NULL, "%s: no '%s' in: %s%s",
                  bad[i].what, bad[i].says, o.out, o.err);
        expect(o, 2, bad[i].place, bad[i].what);
    }
    char *big = malloc(300 * 1024 + 1), file[512];
    memset(big, '#', 300 * 1024);
    big[300 * 1024] = 0;
    snprintf(file, sizeof file, "%s", cluster_file(&c, "big.yaml", big));
    free(big);
    expect(zctl(&c, 10, "validate %s", file), 2, "256 KiB", "300 KiB file");
    expect(zctl(&c, 10, "validate %s/nothing.yaml", c.dir), 2, "nothing.yaml", "no file");
    expect(zctl(&c, 10, "frobnicate"), 2, "frobnicate", "unknown command");
    expect(zctl(&c, 10, "submit"), 2, "submit", "no argument");
    snprintf(file, sizeof file, "%s", cluster_file(&c, "ok.yaml", HEAD BODY));
    expect(zctl(&c, 10, "validate %s", file), 0, "", "a good file");
    expect(zctl(&c, 10, "run %s --workers 0", file), 2, "workers", "zero workers");
    expect(zctl(&c, 10, "validate %s --set training.setps=3", file), 2, "training.steps", "typo in --set");
    expect(zctl(&c, 10, "validate %s --set training.global_batch_size=7 --set workers=2", file), 2, "7", "global batch that does not divide");
    cluster_stop(&c);
}

Test(badinput, no_coordinator) {
    struct cluster c;
    cluster_init(&c);
    /* a port that was just free: bind, look, close */
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    cr_assert_eq(bind(s, (struct sockaddr *)&a, n), 0);
    getsockname(s, (struct sockaddr *)&a, &n);
    close(s);
    cluster_start_coord(&c); /* makes the token; then goes away */
    kill(c.coord, SIGTERM);
    waitpid(c.coord, NULL, 0);
    c.coord = 0;
    char coord[64];
    snprintf(coord, sizeof coord, "127.0.0.1:%d", ntohs(a.sin_port));
    struct output o = zctl(&c, 20, "--coord %s --timeout 3 status", coord);
    cr_expect(strstr(o.err, "zcoord serve") != NULL, "no next step in: %s", o.err);
    expect(o, 6, coord, "nobody listens");
    cluster_stop(&c);
}

Test(badinput, daemons) {
    struct cluster c;
    char listen[64], state[300], other[300];
    cluster_start(&c, 2);
    snprintf(listen, sizeof listen, "127.0.0.1:%d", c.port);
    snprintf(state, sizeof state, "%s/coord", c.dir);
    snprintf(other, sizeof other, "%s/other", c.dir);
    const char *port[] = {zcoord_path(), "serve", "--listen", listen, "--state", other, NULL};
    struct output o = run_program(&c, 10, port);
    expect(o, 5, "in use", "port in use");
    const char *second[] = {zcoord_path(), "serve", "--listen", "127.0.0.1:0", "--state", state, NULL};
    o = run_program(&c, 10, second);
    expect(o, 5, state, "second coordinator on one state folder");
    const char *wide[] = {zcoord_path(), "serve", "--listen", "0.0.0.0:0", "--state", other, NULL};
    o = run_program(&c, 10, wide);
    expect(o, 2, "TLS", "non-loopback address");

    /* name taken while its run lives; free again afterwards */
    char file[512];
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "taken", 100000, 2, ""));
    expect(zctl(&c, 20, "submit %s", file), 0, "taken", "submit");
    expect(zctl(&c, 20, "submit %s", file), 5, "taken", "name taken");
    expect(zctl(&c, 20, "cancel taken"), 0, "", "cancel");
    wait_run(&c, "taken", "CANCELLED", 30);
    expect(zctl(&c, 20, "cancel taken"), 0, "", "cancel again");
    expect(zctl(&c, 30, "wait taken --timeout 20"), 9, "", "wait of a cancelled run");
    expect(zctl(&c, 20, "status nobody"), 3, "nobody", "no such run");
    expect(zctl(&c, 20, "submit %s --set workers=64 --name wide", file), 0, "64", "more workers than there are waits with a reason");
    expect(zctl(&c, 20, "cancel wide"), 0, "", "cancel a queued run");

    /* a data path that is not there: found by the workers, no retry */
    snprintf(file, sizeof file, "%s", cluster_file(&c, "nodata.yaml",
             "version: 1\nname: nodata\nworkers: 2\nmodel: {preset: gpt2-nano}\ndataset: {path: /nonexistent/corpus, tokenizer: bytes}\n"
             "training: {steps: 2, seq_len: 32, local_batch_size: 2}\nparallelism: {mode: ddp}\n"));
    struct output d = zctl(&c, 60, "submit -f %s", file);
    cr_expect(strstr(d.out, "/nonexistent/corpus") != NULL || strstr(d.err, "/nonexistent/corpus") != NULL, "%s%s", d.out, d.err);
    expect(d, 1, "DATA_ERROR", "missing data");
    json_t *s = zctl_json(&c, "status nodata");
    cr_expect_eq(json_integer_value(json_object_get(s, "generation")), 1, "a data error is not retried");
    json_decref(s);

    /* garbage on the port, many times; the daemon neither dies nor forgets */
    for (int i = 0; i < 200; i++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        uint32_t w[64];
        for (uint32_t k = 0; k < 64; k += 4) zt_rng_words(1, ZT_RNG_TEST, (uint32_t)i, k, 0, w + k);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            ssize_t sent = send(fd, w, (size_t)(4 + i % 252), MSG_NOSIGNAL);
            (void)sent;
        }
        close(fd);
    }
    expect(zctl(&c, 20, "list"), 0, "nodata", "list after garbage");
    cluster_stop(&c);
}

static void serve_on(struct cluster *c, const char *state, struct output *o) {
    const char *argv[] = {zcoord_path(), "serve", "--listen", "127.0.0.1:0", "--state", state, NULL};
    *o = run_program(c, 20, argv);
}

Test(badinput, databases) {
    struct cluster c;
    char db[400], state[300];
    struct output o;
    cluster_init(&c);
    cluster_start_coord(&c);
    kill(c.coord, SIGTERM);
    waitpid(c.coord, NULL, 0);
    c.coord = 0;
    snprintf(state, sizeof state, "%s/coord", c.dir);
    snprintf(db, sizeof db, "%s/ztrain.db", state);
    sqlite3 *h;
    cr_assert_eq(sqlite3_open(db, &h), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(h, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(h);
    serve_on(&c, state, &o);
    expect(o, 8, "999", "newer database");
    cr_expect_eq(access(db, R_OK), 0, "the newer database was left alone");
    expect(zctl(&c, 20, "--state %s list", state), 8, "999", "newer database read by zctl");

    int fd = open(db, O_WRONLY | O_CLOEXEC);
    char junk[4096];
    memset(junk, 0x5a, sizeof junk);
    cr_assert_eq(pwrite(fd, junk, sizeof junk, 0), (ssize_t)sizeof junk);
    close(fd);
    serve_on(&c, state, &o);
    expect(o, 10, db, "corrupt database");
    cluster_stop(&c);
}
