/* SPDX-License-Identifier: Apache-2.0 */
/* core/failpoint.c: ZT_FAIL="name:action,..." in builds with -Dfailpoints=true; empty otherwise. With
 * ZT_FAIL_ONCE=FILE only the first process that comes to an action carries it out, once: it makes the file.
 * The variable is parsed once per process. A malformed one ends the process: a test that believes
 * it planted a failure must not pass because of a typing slip. Any thread. */
#include "core/sys.h"

#ifdef ZT_FAILPOINTS
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum action { ACT_KILL, ACT_STOP, ACT_EXIT, ACT_SLEEP, ACT_ERROR };
struct point {
    char name[64];
    enum action action;
    long value;
    long nth; /* 0: every hit */
    long hits;
};
#define POINTS_MAX 32
static struct point g_points[POINTS_MAX];
static int g_count;
static pthread_once_t g_once = PTHREAD_ONCE_INIT;

static void refuse(const char *item) {
    fprintf(stderr,
            "ZT_FAIL: '%s' is not name:action with action kill, stop, exit=N, sleep=MS, error or "
            "nth=K:ACTION\n",
            item);
    _exit(2);
}

static int parse_number(const char *s, char stop, long *out, const char **rest) {
    char *end;
    errno = 0;
    long v = strtol(s, &end, 10);
    if (end == s || errno || v < 0 || *end != stop) return 0;
    *out = v;
    *rest = stop ? end + 1 : end;
    return 1;
}

static int parse_action(const char *s, struct point *p) {
    const char *rest;
    if (strncmp(s, "nth=", 4) == 0) {
        if (!parse_number(s + 4, ':', &p->nth, &rest) || p->nth < 1) return 0;
        s = rest;
    }
    if (strcmp(s, "kill") == 0)
        p->action = ACT_KILL;
    else if (strcmp(s, "stop") == 0)
        p->action = ACT_STOP;
    else if (strcmp(s, "error") == 0)
        p->action = ACT_ERROR;
    else if (strncmp(s, "exit=", 5) == 0 && parse_number(s + 5, '\0', &p->value, &rest))
        p->action = ACT_EXIT;
    else if (strncmp(s, "sleep=", 6) == 0 && parse_number(s + 6, '\0', &p->value, &rest))
        p->action = ACT_SLEEP;
    else
        return 0;
    return 1;
}

static void parse_all(void) {
    const char *env = getenv("ZT_FAIL");
    if (!env || !*env) return;
    char *copy = strdup(env), *save = NULL;
    if (!copy) _exit(2);
    for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        struct point p = {.nth = 0};
        const char *colon = strchr(item, ':');
        if (!colon || colon == item || (size_t)(colon - item) >= sizeof p.name ||
            g_count == POINTS_MAX || !parse_action(colon + 1, &p))
            refuse(item);
        else {
            memcpy(p.name, item, (size_t)(colon - item));
            g_points[g_count++] = p;
        }
    }
    free(copy);
}

/* A process that was killed comes again with the same variables. */
static int was_done(void) {
    const char *file = getenv("ZT_FAIL_ONCE");
    if (!file || !*file) return 0;
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return 1;
    close(fd);
    return 0;
}

static int act(const struct point *p) {
    if (was_done()) return 0;
    switch (p->action) {
    case ACT_KILL:
        kill(getpid(), SIGKILL);
        for (;;) pause();
    case ACT_STOP:
        kill(getpid(), SIGSTOP);
        return 0;
    case ACT_EXIT:
        _exit((int)p->value);
    case ACT_SLEEP: {
        struct timespec t = {p->value / 1000, p->value % 1000 * 1000000};
        while (nanosleep(&t, &t) != 0 && errno == EINTR)
            ;
        return 0;
    }
    case ACT_ERROR:
        return 1;
    }
    return 0;
}

int zt_failpoint(const char *name) {
    pthread_once(&g_once, parse_all);
    int failed = 0;
    for (int i = 0; i < g_count; i++) {
        struct point *p = &g_points[i];
        if (strcmp(p->name, name) != 0) continue;
        long hit = __atomic_add_fetch(&p->hits, 1, __ATOMIC_RELAXED);
        if (p->nth == 0 || hit == p->nth) failed |= act(p);
    }
    return failed;
}
#endif
