/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/main.c: the command line of zcoord. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/migrate.h"
#include "coordinator/serve.h"
#include "coordinator/store.h"
#include "proto/auth.h"
#include "proto/frame.h"

static const char usage[] =
    "usage: zcoord serve   [--listen 127.0.0.1:7000] [--state DIR]   run the coordinator\n"
    "       zcoord migrate [--state DIR]                             bring the database up to date and exit\n"
    "       zcoord version | help\n"
    "\n"
    "--listen HOST:PORT  a loopback address; port 0 takes any free one. The first line of output says which:\n"
    "                    `listening on 127.0.0.1:PORT`\n"
    "--state DIR         database, token and lock; default $ZTRAIN_STATE, else $XDG_STATE_HOME/ztrain/coord,\n"
    "                    else ~/.local/state/ztrain/coord\n"
    "\n"
    "SIGTERM and SIGINT stop it cleanly. Exit codes: 0 stopped, 2 usage, 4 folder or token not safe, 5 port or\n"
    "folder taken, 8 database of a newer version, 10 other.\n";

static int bad_usage(const char *what, const char *word)
{
    fprintf(stderr, "zcoord: %s: %s\n\n%s", word, what, usage);
    return 2;
}

/* The value of `--name VALUE` or `--name=VALUE`; NULL when argv[*i] is another option or has no value. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    return argv[*i][n] == 0 && *i + 1 < argc ? argv[++*i] : NULL;
}

static int serve(int argc, char **argv)
{
    const char *listen = "127.0.0.1:7000", *v;
    char host[256];
    struct zt_serve_config c = { 0 };
    for (int i = 2; i < argc; i++) {
        if ((v = value_of("--listen", argc, argv, &i)))
            listen = v;
        else if ((v = value_of("--state", argc, argv, &i)))
            c.state = v;
        else
            return bad_usage("unknown option, or one without its value", argv[i]);
    }
    const char *colon = strrchr(listen, ':');
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || colon == listen || end == colon + 1 || *end || port < 0 || port > 65535 ||
        (size_t)(colon - listen) >= sizeof host)
        return bad_usage("--listen wants HOST:PORT, as in 127.0.0.1:7000", listen);
    snprintf(host, sizeof host, "%.*s", (int)(colon - listen), listen);
    c.host = host;
    c.port = (int)port;
    return zt_serve(&c);
}

static int migrate(int argc, char **argv)
{
    const char *state = NULL, *v;
    char dir[1024];
    struct zt_error err = { 0 };
    struct zt_migrate_result r;
    sqlite3 *db = NULL;
    int lock = -1;
    umask(077);
    for (int i = 2; i < argc; i++) {
        if ((v = value_of("--state", argc, argv, &i)))
            state = v;
        else
            return bad_usage("unknown option, or one without its value", argv[i]);
    }
    if (zt_state_prepare(state, dir, sizeof dir, &err) || zt_state_lock(dir, &lock, &err) ||
        zt_db_open(dir, zt_migrations, zt_n_migrations, &db, &r, &err)) {
        fprintf(stderr, "zcoord: %s\n", err.msg);
    } else if (r.from == r.to) {
        printf("%s/%s: schema %d, nothing to do\n", dir, ZT_DB_NAME, r.to);
    } else {
        printf("%s/%s: schema %d -> %d\n", dir, ZT_DB_NAME, r.from, r.to);
        if (r.backup[0])
            printf("the database as it was: %s\n", r.backup);
    }
    sqlite3_close(db);
    if (lock >= 0)
        close(lock);
    return zt_exit_code(err.code);
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "serve") == 0)
        return serve(argc, argv);
    if (strcmp(verb, "migrate") == 0)
        return migrate(argc, argv);
    if (strcmp(verb, "version") == 0 || strcmp(verb, "--version") == 0) {
        printf("zcoord %s, protocol %d.%d, schema %d, SQLite %s\n", ZT_VERSION, ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR,
               zt_n_migrations, sqlite3_libversion());
        return 0;
    }
    if (strcmp(verb, "help") == 0 || strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    return bad_usage(argc > 1 ? "no such command" : "a command is needed", argc > 1 ? verb : "zcoord");
}
