/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/save_util.h: what a coordinator does about checkpoints, as a board in shared memory: parts
 * are noted, rank 0 is told when all are in or one failed, commits are kept in order, and of more than
 * `keep` the oldest is let go. For runs of train_util.h: save_board before train_go, save_at for a look at
 * what lies on the disk. */
#ifndef ZT_TESTS_ENGINE_SAVE_UTIL_H
#define ZT_TESTS_ENGINE_SAVE_UTIL_H
#include "core/dtype.h"
#include "engine/checkpoint/read.h"
#include "tests/engine/train_util.h"

#define BOARD_COMMITS 32

struct save_board {
    char folder[256], memory[256]; /* memory "": plain */
    int world, keep; /* keep 0: all */
    int64_t resume;  /* goes on after this committed step; 0: from the beginning */
    _Atomic int64_t held; /* rank 0 waits for its parts as long as rank 0 has reported fewer steps */
    int touches;     /* > 0: until the progress page of rank 0 was touched so often meanwhile */
    bool deaf;       /* rank 0 is never told: until it is cancelled */
    _Atomic bool is_done[TRAIN_STEPS_MAX + 1][RANKS_MAX];
    struct zt_shard_done done[TRAIN_STEPS_MAX + 1][RANKS_MAX];
    _Atomic int64_t failed_step;
    int n_parts[RANKS_MAX], cancelled[RANKS_MAX];
    bool failed_full;
    char failed[512];
    int n_failed, n_commits, n_removed;
    struct zt_commit commit[BOARD_COMMITS];
    int64_t removed[BOARD_COMMITS];
    /* a disk that does not do what it is asked, on one rank, until a save has failed for it */
    int broken_rank, broken_errno; /* errno 0: it does */
    int broken_calls;              /* > 0: only so many calls fail, and no save */
    int64_t fail_nth, calls;       /* > 0: this one file call of rank 0 fails; calls: until the first commit */
    bool break_fsync;              /* fsync, else pwrite */
};

static struct train_job *save_job;
static int save_rank;
static _Atomic bool save_cancelled;

static struct save_board *save_board_of(void) { return save_job->board; }

static int save_shard_done(void *arg, const struct zt_shard_done *d, struct zt_error *err) {
    struct save_board *b = save_board_of();
    (void)arg;
    b->n_parts[save_rank]++;
    if (atomic_load(&b->failed_step) == d->step)
        return zt_fail(err, ZT_ECANCELLED, "step %lld was given up", (long long)d->step);
    b->done[d->step][save_rank] = *d;
    atomic_store(&b->is_done[d->step][save_rank], true);
    return 0;
}

static bool save_held(struct save_board *b, int64_t since_ns) {
    const struct zt_progress *p = save_job->progress;
    static int touches;
    static int64_t seen;
    if (b->deaf) return true;
    if (b->touches && atomic_load(&save_job->rank[0].last)) {
        int64_t now = atomic_load(&p->last_progress_ns);
        if (now != seen && now > since_ns) touches++;
        seen = now;
        return touches < b->touches;
    }
    return atomic_load(&save_job->rank[0].steps) < atomic_load(&b->held);
}

static int save_shards(void *arg, int64_t step, struct zt_shard_done *all, int world,
                       struct zt_error *err) {
    struct save_board *b = save_board_of();
    double end = ranks_seconds() + 60;
    int64_t since = zt_sys_posix.monotonic_ns(NULL);
    (void)arg;
    for (int i = 0; i < world && ranks_seconds() < end; ranks_pause()) {
        if (atomic_load(&save_cancelled) || atomic_load(&b->failed_step) == step)
            return zt_fail(err, ZT_ECANCELLED, "step %lld was given up", (long long)step);
        if (save_held(b, since)) continue;
        while (i < world && atomic_load(&b->is_done[step][i])) i++;
    }
    memcpy(all, b->done[step], (size_t)world * sizeof *all);
    for (int i = 0; i < world; i++)
        if (!atomic_load(&b->is_done[step][i]))
            return zt_fail(err, ZT_ETIMEOUT, "rank %d has not saved step %lld", i, (long long)step);
    return 0;
}

static struct zt_sys_nth save_nth;

static int save_commit(void *arg, const struct zt_commit *c, int64_t **remove, int *n,
                       struct zt_error *err) {
    struct save_board *b = save_board_of();
    (void)arg, (void)err;
    if (!b->n_commits) b->calls = save_nth.calls;
    b->commit[b->n_commits++] = *c;
    *remove = NULL;
    *n = 0;
    if (b->keep && b->n_commits > b->keep) {
        *remove = malloc(sizeof **remove);
        **remove = b->commit[b->n_commits - 1 - b->keep].step;
        *n = 1;
    }
    return 0;
}

static int save_removed(void *arg, int64_t step, struct zt_error *err) {
    struct save_board *b = save_board_of();
    (void)arg, (void)err;
    b->removed[b->n_removed++] = step;
    return 0;
}

static int save_failed(void *arg, int64_t step, bool full, const char *message, struct zt_error *err) {
    struct save_board *b = save_board_of();
    (void)arg, (void)err;
    if (atomic_load(&b->failed_step) == step) return 0; /* the first is the cause */
    snprintf(b->failed, sizeof b->failed, "%s", message);
    b->failed_full = full;
    b->n_failed++;
    atomic_store(&b->failed_step, step);
    return 0;
}

static void save_cancel(void *arg) {
    (void)arg;
    save_board_of()->cancelled[save_rank]++;
    atomic_store(&save_cancelled, true);
}

static bool save_broken(void) {
    static _Atomic int failed;
    int calls = save_board_of()->broken_calls;
    if (calls) return atomic_fetch_add(&failed, 1) < calls;
    return atomic_load(&save_board_of()->failed_step) == 0;
}
static ssize_t save_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    if (!save_board_of()->break_fsync && save_broken()) return -save_board_of()->broken_errno;
    return zt_sys_posix.pwrite(arg, fd, buf, n, at);
}
static int save_fsync(void *arg, int fd) {
    if (save_board_of()->break_fsync && save_broken()) return -save_board_of()->broken_errno;
    return zt_sys_posix.fsync(arg, fd);
}

static const struct zt_checkpoint_config *save_config(struct train_job *j, int rank) {
    static struct zt_checkpoint_config c;
    static struct zt_sys sys;
    const struct save_board *b = j->board;
    save_job = j;
    save_rank = rank;
    sys = zt_sys_posix;
    if (b->broken_errno && b->broken_rank == rank) {
        sys.pwrite = save_pwrite;
        sys.fsync = save_fsync;
    }
    save_nth = (struct zt_sys_nth){&zt_sys_posix, 0, b->fail_nth, EIO};
    if (b->fail_nth) sys = zt_sys_fail_nth(&save_nth);
    c = (struct zt_checkpoint_config){.folder = b->folder,
                                      .run_id = "r1",
                                      .run_name = "t",
                                      .version = "1",
                                      .memory = b->memory[0] ? b->memory : NULL,
                                      .resume_step = b->resume,
                                      .resume_folder = b->resume ? b->folder : NULL,
                                      .sys = &sys,
                                      .hooks = {NULL, save_shard_done, save_shards, save_commit,
                                                save_removed, save_failed, save_cancel}};
    return &c;
}

/* A run that saves into a folder of its own. */
static inline struct save_board *save_board(struct train_job *j) {
    static int turn;
    char name[32];
    struct save_board *b = ranks_map(sizeof *b);
    snprintf(name, sizeof name, "save%d", turn++);
    snprintf(b->folder, sizeof b->folder, "%s", data_path(name));
    b->world = j->world;
    j->board = b;
    j->checkpoint = save_config;
    return b;
}

static inline bool save_exists(const char *folder, const char *name) {
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0;
}

/* Everything in the folder of the step is as it was written; *m: borrowed until zt_ckpt_close. */
static inline struct zt_ckpt *save_at(const struct save_board *b, int64_t step,
                                      const struct zt_manifest **m) {
    struct zt_error e = {0};
    struct zt_ckpt *c = NULL;
    char name[32], folder[512];
    const struct zt_commit *k = NULL;
    for (int i = 0; i < b->n_commits; i++)
        if (b->commit[i].step == step) k = &b->commit[i];
    cr_assert(k, "step %lld was not committed: %s", (long long)step, b->failed);
    zt_ckpt_step_name(step, name);
    snprintf(folder, sizeof folder, "%s/%s", b->folder, name);
    const struct zt_ckpt_open o = {NULL, folder, &k->manifest, NULL};
    cr_assert_eq(zt_ckpt_open(&o, &c, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_ckpt_verify(c, NULL, NULL, &e), 0, "%s", e.msg);
    *m = zt_ckpt_manifest(c);
    return c;
}

static inline int save_events(const struct train_job *j, int rank, const char *kind) {
    int n = 0;
    for (int i = 0; i < j->rank[rank].n_events; i++) n += !strcmp(j->rank[rank].event[i].kind, kind);
    return n;
}

#endif
