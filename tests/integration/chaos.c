/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/chaos.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct { const char *name; int least_ms, most_ms; bool network, disk; } kinds[CHAOS_KINDS] = {
    [CHAOS_KILL_TRAINER] = {"kill_trainer", 0, 0, false, false},
    [CHAOS_KILL_WORKER] = {"kill_worker", 0, 2000, false, false},
    [CHAOS_KILL_COORD] = {"kill_coord", 0, 3000, false, false},
    [CHAOS_STOP_TRAINER] = {"stop_trainer", 100, 9000, false, false},
    [CHAOS_STOP_WORKER] = {"stop_worker", 100, 9000, false, false},
    [CHAOS_STOP_COORD] = {"stop_coord", 100, 8000, false, false},
    [CHAOS_CUT_HOSTS] = {"cut_hosts", 200, 14000, true, false},
    [CHAOS_CUT_ONE_WAY] = {"cut_one_way", 200, 14000, true, false},
    [CHAOS_CUT_COORD] = {"cut_coord", 200, 9000, true, false},
    [CHAOS_FILL_DISK] = {"fill_disk", 500, 6000, false, true},
    [CHAOS_DRAIN_WORKER] = {"drain_worker", 0, 0, false, false},
};

const char *chaos_kind_name(enum chaos_kind k) { return kinds[k].name; }
const char *chaos_when_name(enum chaos_when w) {
    static const char *const names[CHAOS_WHENS] = {"at_step", "in_save", "in_recovery", "at_once"};
    return names[w];
}

double chaos_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------ surroundings */

static bool run_command(const char *text) { return system(text) == 0; }

static bool own_network(void) {
    struct ifreq lo = {.ifr_name = "lo"};
    if (unshare(CLONE_NEWNET) != 0) return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    lo.ifr_flags = IFF_UP | IFF_RUNNING;
    bool up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    if (fd >= 0) close(fd);
    cr_assert(up, "the loopback device of a network of its own: %s", strerror(errno));
    return run_command("nft 'add table ip t; add chain ip t in { type filter hook input priority 0; }' 2>/dev/null");
}

static bool own_disk(const char *folder, int mib) {
    char options[40];
    snprintf(options, sizeof options, "size=%dm,mode=0700", mib);
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", folder, "tmpfs", 0, options) == 0;
}

/* Workers by turns on two hosts, so that a group lies over both. */
static void start_worker(struct chaos *x, int i) {
    static const char *const host[2] = {"--host host-a --address 127.0.0.2", "--host host-b --address 127.0.0.3"};
    cluster_start_worker(&x->t.c, i, host[i % 2]);
}

void chaos_start(struct chaos *x, int world, int steps, int mib) {
    struct cluster *c = &x->t.c;
    x->networks = own_network(); /* before any process */
    cluster_init(c);
    snprintf(x->folder, sizeof x->folder, "%s/checkpoints", c->dir);
    cr_assert_eq(mkdir(x->folder, 0700), 0);
    x->disks = own_disk(x->folder, mib);
    if (!x->networks || !x->disks)
        fprintf(stderr, "SKIPPED:%s%s of the faults: that needs root, namespaces and nft\n",
                x->networks ? "" : " cut links", x->disks ? "" : " full disks");
    x->t.world = world;
    x->t.steps = steps;
    cluster_start_coord(c);
    for (int i = 0; i < world; i++) start_worker(x, i);
    trial_wait_idle(&x->t);
}

void chaos_stop(struct chaos *x) {
    bool keep = x->t.c.keep;
    x->t.c.keep = true; /* the processes first: a file system in use is not let go */
    cluster_stop(&x->t.c);
    if (x->disks) umount2(x->folder, 0);
    x->t.c.keep = keep;
    if (!keep) cluster_remove(&x->t.c);
}

/* ------------------------------------------------------------------------------------ schedules */

/* The first faults of CHAOS_KINDS rounds in a row are of every kind. */
void chaos_draw(const struct chaos *x, int round, struct chaos_schedule *s) {
    uint32_t what = 0;
    const int room = x->t.steps / 3;
    *s = (struct chaos_schedule){.round = round, .n = 1 + (int)trial_draw(round, what++, CHAOS_FAULTS_MAX)};
    for (int i = 0; i < s->n; i++) {
        struct chaos_fault *f = &s->fault[i];
        uint32_t kind = i == 0 ? (uint32_t)round : trial_draw(round, what, CHAOS_KINDS);
        what++;
        for (f->kind = kind % CHAOS_KINDS; (kinds[f->kind].network && !x->networks) ||
                                           (kinds[f->kind].disk && (!x->disks || !x->saves));)
            f->kind = (f->kind + 1) % CHAOS_KINDS;
        uint32_t when = trial_draw(round, what++, i == 0 ? 3 : 6);
        f->when = i == 0 ? (when == 0 ? CHAOS_IN_SAVE : CHAOS_AT_STEP)
                         : (when < 3 ? CHAOS_IN_RECOVERY : when == 3 ? CHAOS_AT_ONCE : when == 4 ? CHAOS_IN_SAVE : CHAOS_AT_STEP);
        if (f->kind == CHAOS_FILL_DISK && f->when == CHAOS_IN_RECOVERY) f->when = CHAOS_AT_ONCE;
        if (f->when == CHAOS_IN_SAVE && !x->saves) f->when = CHAOS_AT_STEP;
        f->victim = (int)trial_draw(round, what++, (uint32_t)x->t.world);
        f->steps = 2 + (int)trial_draw(round, what++, (uint32_t)(i == 0 ? room : room / 2));
        f->delay_ms = (int)trial_draw(round, what++, f->when == CHAOS_IN_RECOVERY ? 1500 : 60);
        const int span = kinds[f->kind].most_ms - kinds[f->kind].least_ms;
        f->length_ms = kinds[f->kind].least_ms + (span ? (int)trial_draw(round, what++, (uint32_t)span) : 0);
    }
}

/* ------------------------------------------------------------------------------------ doing and undoing */

static void fill(struct chaos *x) {
    char path[340], page[4096];
    snprintf(path, sizeof path, "%s/ballast", x->folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    memset(page, 1, sizeof page);
    while (fd >= 0 && write(fd, page, sizeof page) > 0) {}
    cr_assert(fd >= 0 && errno == ENOSPC, "%s: %s", path, strerror(errno));
    close(fd);
}

static void free_disk(struct chaos *x) {
    char path[340];
    snprintf(path, sizeof path, "%s/ballast", x->folder);
    unlink(path);
}

static void rules(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void rules(const char *fmt, ...) {
    char text[400], command[440];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "nft '%s'", text);
    cr_assert(run_command(command), "%s", command);
}

/* Left for wait_process to reap. */
static bool has_ended(pid_t pid) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}
static bool is_gone(void *arg) { return has_ended(*(pid_t *)arg); }
static void wait_process(pid_t pid) {
    wait_for(is_gone, &pid, 60, "a draining worker to be gone");
    waitpid(pid, NULL, 0);
}

static void undo(struct chaos *x, const struct chaos_undo *u) {
    struct cluster *c = &x->t.c;
    switch (u->kind) {
    case CHAOS_KILL_WORKER: start_worker(x, u->victim); break;
    case CHAOS_KILL_COORD: cluster_start_coord(c); break;
    case CHAOS_DRAIN_WORKER:
        wait_process(u->pid);
        start_worker(x, u->victim);
        break;
    case CHAOS_STOP_TRAINER: case CHAOS_STOP_WORKER: case CHAOS_STOP_COORD: kill(u->pid, SIGCONT); break;
    case CHAOS_CUT_HOSTS: case CHAOS_CUT_ONE_WAY: case CHAOS_CUT_COORD: rules("flush chain ip t in"); break;
    case CHAOS_FILL_DISK: free_disk(x); break;
    default: break;
    }
}

/* What is due, and with `all` the rest as well, when its time has come. */
static void undo_due(struct chaos *x, bool all) {
    for (int i = 0; i < x->undone;) {
        while (all && now_s() < x->undo[i].due_s) nap_ms(10);
        if (now_s() < x->undo[i].due_s || (!all && x->undo[i].kind == CHAOS_DRAIN_WORKER && !has_ended(x->undo[i].pid))) {
            i++;
            continue;
        }
        struct chaos_undo u = x->undo[i];
        x->undo[i] = x->undo[--x->undone];
        undo(x, &u);
    }
}

static void later(struct chaos *x, const struct chaos_fault *f, pid_t pid) {
    struct chaos_undo *u = &x->undo[x->undone++];
    *u = (struct chaos_undo){now_s() + 1e-3 * f->length_ms, f->kind, f->victim, pid};
}

/* Whether a fault of this kind is still there: then the same again does nothing. */
static bool there(const struct chaos *x, enum chaos_kind k, int victim) {
    const bool anybody = k == CHAOS_KILL_COORD || k == CHAOS_STOP_COORD || k == CHAOS_CUT_COORD;
    for (int i = 0; i < x->undone; i++)
        if (x->undo[i].kind == k && (anybody || x->undo[i].victim == victim)) return true;
    return false;
}

static void end_process(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void act(struct chaos *x, const struct chaos_fault *f) {
    struct cluster *c = &x->t.c;
    const bool going = there(x, CHAOS_KILL_WORKER, f->victim) || there(x, CHAOS_DRAIN_WORKER, f->victim);
    const pid_t worker = going ? 0 : c->worker[f->victim];
    const bool coord = !there(x, CHAOS_KILL_COORD, 0);
    const pid_t trainer = worker ? trainer_of(worker) : 0;
    switch (f->kind) {
    case CHAOS_KILL_TRAINER:
        if (trainer > 0) kill(trainer, SIGKILL);
        return;
    case CHAOS_STOP_TRAINER:
        if (trainer <= 0) return;
        kill(trainer, SIGSTOP);
        later(x, f, trainer);
        return;
    case CHAOS_KILL_WORKER:
        if (worker <= 0) return;
        end_process(worker);
        later(x, f, 0);
        return;
    case CHAOS_STOP_WORKER:
        if (worker <= 0) return;
        kill(worker, SIGSTOP);
        later(x, f, worker);
        return;
    case CHAOS_DRAIN_WORKER:
        if (worker <= 0) return;
        kill(worker, SIGTERM);
        later(x, f, worker);
        return;
    case CHAOS_KILL_COORD:
        if (!coord) return;
        end_process(c->coord);
        later(x, f, 0);
        return;
    case CHAOS_STOP_COORD:
        if (!coord) return;
        kill(c->coord, SIGSTOP);
        later(x, f, c->coord);
        return;
    case CHAOS_CUT_HOSTS:
        rules("add rule ip t in ip saddr 127.0.0.2 ip daddr 127.0.0.3 drop; "
              "add rule ip t in ip saddr 127.0.0.3 ip daddr 127.0.0.2 drop");
        break;
    case CHAOS_CUT_ONE_WAY:
        rules("add rule ip t in ip saddr 127.0.0.%d ip daddr 127.0.0.%d drop", 2 + f->victim % 2, 3 - f->victim % 2);
        break;
    case CHAOS_CUT_COORD:
        rules("add rule ip t in tcp dport %d drop; add rule ip t in tcp sport %d drop", c->port, c->port);
        break;
    case CHAOS_FILL_DISK:
        fill(x);
        break;
    default:
        return;
    }
    later(x, f, 0);
}

/* ------------------------------------------------------------------------------------ moments */

struct look { char state[64]; int64_t step; bool over; };

/* A command to a coordinator that is away would hold up what is to be undone. */
static bool coordinator_away(const struct chaos *x) {
    return there(x, CHAOS_KILL_COORD, 0) || there(x, CHAOS_STOP_COORD, 0) || there(x, CHAOS_CUT_COORD, 0);
}

static struct look look(struct chaos *x, const char *run) {
    struct look l = {.step = -1};
    undo_due(x, false);
    nap_ms(10);
    if (coordinator_away(x)) return l;
    run_state(&x->t.c, run, l.state, sizeof l.state, &l.step);
    l.over = !strcmp(l.state, "SUCCEEDED") || !strcmp(l.state, "FAILED") || !strcmp(l.state, "CANCELLED");
    return l;
}

static void nap(struct chaos *x, int ms) {
    for (const double end = now_s() + 1e-3 * ms; now_s() < end; nap_ms(5)) undo_due(x, false);
}

/* A temporary folder of a save anywhere below the checkpoints. */
static bool saving(const struct chaos *x) {
    bool found = false;
    DIR *d = opendir(x->folder);
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", x->folder, e->d_name);
        DIR *run = e->d_name[0] == '.' ? NULL : opendir(path);
        for (struct dirent *f; run && !found && (f = readdir(run));) found = fnmatch("step-*.tmp-g*", f->d_name, 0) == 0;
        if (run) closedir(run);
    }
    if (d) closedir(d);
    return found;
}

/* Waits for the moment of a fault; false: the run was over before. */
static bool moment(struct chaos *x, const char *run, const struct chaos_fault *f, int64_t after, int64_t *step) {
    const double end = now_s() + 240;
    const int64_t from = after + f->steps;
    struct look l = {.step = after};
    if (f->when == CHAOS_AT_ONCE) return true;
    for (bool met = false; !met && !l.over;) {
        cr_assert(now_s() < end, "%s: waited 240 s to be %s, step %lld; it is %s at step %lld", run,
                  chaos_when_name(f->when), (long long)from, l.state, (long long)l.step);
        if (f->when == CHAOS_IN_SAVE && l.step >= 1) { /* looked for more often than commands can be run */
            for (const double until = now_s() + 0.3; !met && now_s() < until; nap_ms(1)) {
                undo_due(x, false);
                met = saving(x);
            }
            if (met) break;
        }
        l = look(x, run);
        *step = l.step > *step ? l.step : *step;
        if (f->when == CHAOS_AT_STEP) met = l.step >= from;
        if (f->when == CHAOS_IN_RECOVERY) met = strcmp(l.state, "RUNNING") != 0; /* or has passed unseen: */
        if (f->when == CHAOS_IN_RECOVERY && l.step >= after + 8) met = true;
    }
    if (!l.over) nap(x, f->delay_ms);
    return !l.over;
}

void chaos_carry_out(struct chaos *x, const char *run, struct chaos_schedule *s) {
    int64_t step = 0;
    for (int i = 0; i < s->n; i++) {
        struct chaos_fault *f = &s->fault[i];
        if (!moment(x, run, f, step, &step)) break;
        f->at_ms = chaos_wall_ms();
        f->step = step;
        act(x, f);
    }
    undo_due(x, true);
}
