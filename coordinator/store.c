/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/sys.h"

#define WAL_PAGES_CHECKPOINT 1000
#define PRUNE_EVERY_MS ((int64_t)600 * 1000)

struct entry {
    struct entry *next;
    struct zt_batch *batch;
    bool keep;
    zt_commit_fn fn;
    void *arg;
    /* result */
    int code;
    char message[256];
    uint64_t log_next;
};

struct list { struct entry *first, **last; size_t bytes, n; };

struct zt_store {
    struct zt_store_config c;
    char dir[1024];
    int lock_fd;
    uint64_t epoch;
    struct zt_migrate_result migration;
    struct zt_error last; /* of the newest failure, writer thread */

    /* writer thread */
    sqlite3 *db;
    struct zt_writer *writer;
    int wal_pages;
    int64_t pruned_ms;

    /* shared, under mu */
    pthread_mutex_t mu;
    pthread_cond_t wake;
    pthread_t thread;
    struct list queue, done;
    bool hurry, stop;
    int64_t stop_ns; /* when a refusing disk is given up */
    int64_t retry_ns; /* when the next try after a failure is due */
    int state, told_state; /* 0 or the code of the newest failure */
    char state_message[320];
    bool dead; /* a final state: nothing will ever be written again */
    atomic_uint_least64_t commits;

    uv_async_t async;
    void (*closed)(void *arg);
    void *closed_arg;
};

static void list_init(struct list *l)
{
    memset(l, 0, sizeof *l);
    l->last = &l->first;
}

static void list_add(struct list *l, struct entry *e)
{
    e->next = NULL;
    *l->last = e;
    l->last = &e->next;
    l->bytes += zt_batch_bytes(e->batch);
    l->n++;
}

static int64_t clock_ns(void) { return zt_sys_posix.monotonic_ns(zt_sys_posix.arg); }
static int64_t wall_ms(void) { return zt_sys_posix.wall_ns(zt_sys_posix.arg) / 1000000; }

/* ------------------------------------------------------------------------------ lock */
int zt_state_lock(const char *state_dir, int *fd, struct zt_error *err)
{
    char path[1100], text[32] = "";
    snprintf(path, sizeof path, "%s/lock", state_dir);
    int f = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f < 0)
        return zt_fail(err, ZT_EIO, "cannot open %s: %s; check the owner and mode of the folder", path, strerror(errno));
    struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    if (fcntl(f, F_OFD_SETLK, &l) < 0) {
        int why = errno;
        ssize_t n = pread(f, text, sizeof text - 1, 0);
        close(f);
        if (why != EAGAIN && why != EACCES)
            return zt_fail(err, ZT_EIO, "cannot lock %s: %s", path, strerror(why));
        text[n > 0 ? n : 0] = 0;
        return zt_fail(err, ZT_ECONFLICT, "another zcoord (pid %ld) uses the state folder %s: stop it, or give this one "
                       "another --state", strtol(text, NULL, 10), state_dir);
    }
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(f, 0) < 0 || pwrite(f, text, (size_t)n, 0) != n) {
        /* the pid is a courtesy to whoever finds the folder taken; a full disk must not stop the start */
    }
    *fd = f;
    return 0;
}

/* ------------------------------------------------------------------------------ writer thread */
static int wal_hook(void *arg, sqlite3 *db, const char *name, int pages)
{
    (void)db;
    (void)name;
    ((struct zt_store *)arg)->wal_pages = pages;
    return SQLITE_OK;
}

static int connect_writer(struct zt_store *s, struct zt_error *err)
{
    struct zt_migrate_result again;
    if (!s->db && zt_db_open(s->dir, zt_migrations, zt_n_migrations, &s->db, &again, err))
        return err->code;
    sqlite3_wal_hook(s->db, wal_hook, s); /* takes the place of the automatic checkpoint */
    return zt_writer_new(s->db, s->c.log_quota, &s->writer, err);
}

static void disconnect_writer(struct zt_store *s)
{
    zt_writer_free(s->writer);
    s->writer = NULL;
    sqlite3_close(s->db);
    s->db = NULL;
}

static int check_epoch(struct zt_store *s, struct zt_error *err)
{
    sqlite3_int64 epoch = 0;
    if (zt_db_int(s->db, "SELECT epoch FROM meta", -1, &epoch, err))
        return err->code;
    if ((uint64_t)epoch != s->epoch)
        return zt_fail(err, ZT_ECONFLICT, "the database is at epoch %lld, this coordinator at %llu: another one has taken "
                       "over the state folder %s", (long long)epoch, (unsigned long long)s->epoch, s->dir);
    return 0;
}

/* Errors of the whole disk or database, as against those of one batch. */
static bool of_the_disk(int code) { return code == ZT_EBUSY || code == ZT_EIO || code == ZT_ENOMEM || code == ZT_ECONFLICT; }

static int apply_entry(struct zt_store *s, struct entry *e, struct zt_error *err)
{
    struct zt_batch_result r;
    if (zt_db_exec(s->db, "SAVEPOINT batch", err))
        return err->code;
    int code = zt_writer_apply(s->writer, e->batch, &r, err);
    if (!code) {
        e->code = 0;
        e->log_next = r.log_next;
        return zt_db_exec(s->db, "RELEASE batch", err);
    }
    if (of_the_disk(code))
        return code;
    e->code = code;
    snprintf(e->message, sizeof e->message, "%.255s", err->msg);
    struct zt_error undo = { 0 };
    if (zt_db_exec(s->db, "ROLLBACK TO batch", &undo) || zt_db_exec(s->db, "RELEASE batch", &undo)) {
        *err = undo;
        return err->code;
    }
    if (e->keep) /* the machine has moved on from this row: going on without it would be a lie */
        return zt_fail(err, ZT_EINTERNAL, "the database refused a row: %s", e->message);
    return 0;
}

/* All of `work` as one transaction. */
static int commit(struct zt_store *s, struct list *work, struct zt_error *err)
{
    if (!s->writer && connect_writer(s, err))
        return err->code;
    zt_writer_forget(s->writer);
    int64_t now = wall_ms();
    if (zt_db_exec(s->db, "BEGIN IMMEDIATE", err))
        return err->code;
    if (check_epoch(s, err))
        goto undo;
    for (struct entry *e = work->first; e; e = e->next)
        if (apply_entry(s, e, err))
            goto undo;
    if (zt_writer_finish(s->writer, now, err))
        goto undo;
    if (now - s->pruned_ms > PRUNE_EVERY_MS || now < s->pruned_ms) {
        if (zt_writer_prune(s->writer, now, err))
            goto undo;
        s->pruned_ms = now;
    }
    if (ZT_FAILPOINT("store.before_commit")) {
        zt_fail(err, ZT_EIO, "failpoint store.before_commit");
        goto undo;
    }
    if (zt_writer_saves(s->writer) && ZT_FAILPOINT("db.ckpt_before_commit")) {
        zt_fail(err, ZT_EIO, "failpoint db.ckpt_before_commit");
        goto undo;
    }
    if (zt_db_exec(s->db, "COMMIT", err))
        goto undo;
    if (zt_writer_saves(s->writer) && ZT_FAILPOINT("db.ckpt_after_commit")) {
        /* as below, for a checkpoint's row */
    }
    if (ZT_FAILPOINT("store.after_commit")) {
        /* nothing to fail any more: the point exists to stop or kill here, durable and not yet acknowledged */
    }
    zt_writer_forget(s->writer);
    return 0;
undo:
    sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    zt_writer_forget(s->writer);
    if (err->code == ZT_EIO)
        disconnect_writer(s); /* what an fsync that failed has left in memory is not to be trusted */
    return err->code;
}

static bool final(int code) { return code == ZT_ECONFLICT || code == ZT_EINTERNAL; }

/* After a failed commit: what is kept goes back to the head of the queue, the rest is answered. */
static void sort_out(struct zt_store *s, struct list *work, bool give_up, const struct zt_error *err)
{
    struct list keep;
    list_init(&keep);
    for (struct entry *e = work->first, *next; e; e = next) {
        next = e->next;
        if (e->keep && !give_up && !final(err->code)) {
            list_add(&keep, e);
            continue;
        }
        if (!e->keep || e->code == 0) {
            e->code = err->code;
            snprintf(e->message, sizeof e->message, "%.255s", err->msg);
        }
        list_add(&s->done, e);
    }
    if (!keep.first)
        return;
    *keep.last = s->queue.first;
    if (!s->queue.first)
        s->queue.last = keep.last;
    s->queue.first = keep.first;
    s->queue.bytes += keep.bytes;
    s->queue.n += keep.n;
}

static void wait_until(struct zt_store *s, int64_t at_ns)
{
    struct timespec t = { .tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000 };
    pthread_cond_timedwait(&s->wake, &s->mu, &t);
}

/* Holds mu. Waits for work worth a transaction; false when it is time to end. */
static bool next_work(struct zt_store *s, struct list *work)
{
    while (!s->queue.first && !s->stop)
        pthread_cond_wait(&s->wake, &s->mu);
    int64_t due = clock_ns() + (int64_t)s->c.commit_ms * 1000000;
    while (!s->hurry && !s->stop && s->queue.bytes < s->c.queue_max_bytes / 2 && clock_ns() < due)
        wait_until(s, due);
    if (!s->queue.first)
        return false;
    *work = s->queue;
    if (!work->first)
        work->last = &work->first;
    list_init(&s->queue);
    s->hurry = false;
    return true;
}

static void note_state(struct zt_store *s, int code, const char *message)
{
    s->state = code;
    snprintf(s->state_message, sizeof s->state_message, "%.319s", message);
    if (final(code))
        s->dead = true;
}

static void *writer_main(void *arg)
{
    struct zt_store *s = arg;
    struct list work;
    struct zt_error err;
    pthread_mutex_lock(&s->mu);
    for (;;) {
        if (!next_work(s, &work))
            break;
        pthread_mutex_unlock(&s->mu);
        memset(&err, 0, sizeof err);
        for (struct entry *e = work.first; e; e = e->next)
            e->code = 0;
        int code = s->dead ? zt_fail(&err, ZT_ECONFLICT, "%s", s->state_message) : commit(s, &work, &err);
        pthread_mutex_lock(&s->mu);
        if (!code) {
            atomic_fetch_add(&s->commits, 1);
            note_state(s, 0, "");
            for (struct entry *e = work.first, *next; e; e = next) {
                next = e->next;
                list_add(&s->done, e);
            }
        } else {
            if (!s->dead)
                note_state(s, code, err.msg);
            s->retry_ns = clock_ns() + (int64_t)s->c.retry_ms * 1000000;
            sort_out(s, &work, s->stop && clock_ns() >= s->stop_ns, &err);
        }
        uv_async_send(&s->async);
        if (code && s->queue.first) {
            while (clock_ns() < s->retry_ns && !(s->stop && clock_ns() >= s->stop_ns))
                wait_until(s, s->retry_ns);
        }
        if (!code && s->wal_pages > WAL_PAGES_CHECKPOINT) {
            pthread_mutex_unlock(&s->mu);
            sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
            s->wal_pages = 0;
            pthread_mutex_lock(&s->mu);
        }
    }
    pthread_mutex_unlock(&s->mu);
    disconnect_writer(s);
    return NULL;
}

/* ------------------------------------------------------------------------------ loop */
static void run_completions(struct zt_store *s)
{
    struct entry *e;
    int state;
    bool any = false;
    char message[320];
    pthread_mutex_lock(&s->mu);
    e = s->done.first;
    list_init(&s->done);
    state = s->state;
    snprintf(message, sizeof message, "%s", s->state_message);
    pthread_mutex_unlock(&s->mu);
    for (struct entry *next; e; e = next) {
        next = e->next;
        struct zt_commit c = { e->code, e->message, e->log_next };
        if (e->fn)
            e->fn(e->arg, &c);
        zt_batch_free(e->batch);
        free(e);
        any = true;
    }
    if (any && s->c.on_batch)
        s->c.on_batch(s->c.arg);
    if (state != s->told_state) {
        s->told_state = state;
        if (s->c.on_state)
            s->c.on_state(s->c.arg, state, message);
    }
}

static void on_async(uv_async_t *a) { run_completions(a->data); }

static int start_epoch(struct zt_store *s, struct zt_error *err)
{
    char sql[128];
    sqlite3_int64 epoch = 0;
    if (zt_db_exec(s->db, "BEGIN IMMEDIATE", err))
        return err->code;
    snprintf(sql, sizeof sql, "UPDATE meta SET epoch = epoch + 1, started_ms = %" PRId64, wall_ms());
    if (zt_db_exec(s->db, sql, err) || zt_db_int(s->db, "SELECT epoch FROM meta", 0, &epoch, err) ||
        zt_db_exec(s->db, "COMMIT", err)) {
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
        return err->code;
    }
    s->epoch = (uint64_t)epoch;
    return 0;
}

int zt_store_open(const struct zt_store_config *c, struct zt_store **out, struct zt_error *err)
{
    struct zt_store *s = calloc(1, sizeof *s);
    if (!s)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    s->c = *c;
    s->lock_fd = -1;
    if (s->c.commit_ms <= 0)
        s->c.commit_ms = 50;
    if (s->c.queue_max_bytes == 0)
        s->c.queue_max_bytes = (size_t)64 << 20;
    if (s->c.retry_ms <= 0)
        s->c.retry_ms = 250;
    list_init(&s->queue);
    list_init(&s->done);
    int code = 0;
    if ((size_t)snprintf(s->dir, sizeof s->dir, "%s", c->state_dir) >= sizeof s->dir)
        code = zt_fail(err, ZT_EINVAL, "the path of the state folder is too long");
    if (!code)
        code = zt_state_lock(s->dir, &s->lock_fd, err);
    if (!code)
        code = zt_db_open(s->dir, zt_migrations, zt_n_migrations, &s->db, &s->migration, err);
    if (!code)
        code = start_epoch(s, err);
    if (!code)
        code = connect_writer(s, err);
    if (code)
        goto fail;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->mu, NULL);
    if (uv_async_init(c->loop, &s->async, on_async)) {
        code = zt_fail(err, ZT_EIO, "cannot create the store's wake-up: out of descriptors?");
        goto fail;
    }
    s->async.data = s;
    int rc = pthread_create(&s->thread, NULL, writer_main, s);
    ZT_ASSERT(rc == 0); /* at start, with memory to spare: nothing to fall back to */
    *out = s;
    return 0;
fail:
    disconnect_writer(s);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s);
    return code;
}

uint64_t zt_store_epoch(const struct zt_store *s) { return s->epoch; }
const struct zt_migrate_result *zt_store_migration(const struct zt_store *s) { return &s->migration; }
uint64_t zt_store_commits(const struct zt_store *s) { return atomic_load(&((struct zt_store *)(uintptr_t)s)->commits); }

int zt_store_submit(struct zt_store *s, struct zt_batch *b, enum zt_hurry hurry, bool keep, zt_commit_fn fn, void *arg,
                    struct zt_error *err)
{
    struct entry *e = calloc(1, sizeof *e);
    int code = zt_batch_error(b, err);
    if (!code && !e)
        code = zt_fail(err, ZT_ENOMEM, "out of memory");
    if (!code) {
        e->batch = b;
        e->keep = keep;
        e->fn = fn;
        e->arg = arg;
        pthread_mutex_lock(&s->mu);
        if (s->stop)
            code = zt_fail(err, ZT_EBUSY, "the coordinator is stopping");
        else if (!keep && s->state && (s->dead || clock_ns() < s->retry_ns)) /* a later one is the next try */
            code = zt_fail(err, s->state, "%s", s->state_message);
        else if (!keep && s->queue.bytes + zt_batch_bytes(b) > s->c.queue_max_bytes)
            code = zt_fail(err, ZT_EBUSY, "the database cannot keep up: %zu changes wait; try again", s->queue.n);
        else {
            list_add(&s->queue, e);
            s->hurry |= hurry == ZT_HURRY_YES;
            pthread_cond_signal(&s->wake);
        }
        pthread_mutex_unlock(&s->mu);
    }
    if (code) {
        free(e);
        zt_batch_free(b);
    }
    return code;
}

static void on_closed(uv_handle_t *h)
{
    struct zt_store *s = h->data;
    void (*closed)(void *) = s->closed;
    void *arg = s->closed_arg;
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->wake);
    free(s);
    if (closed)
        closed(arg);
}

void zt_store_close(struct zt_store *s, double seconds, void (*closed)(void *arg), void *arg)
{
    s->closed = closed;
    s->closed_arg = arg;
    pthread_mutex_lock(&s->mu);
    s->stop_ns = clock_ns() + (int64_t)(seconds * 1e9);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
    pthread_join(s->thread, NULL);
    run_completions(s);
    close(s->lock_fd);
    uv_close((uv_handle_t *)&s->async, on_closed);
}
