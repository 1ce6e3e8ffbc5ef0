/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/readers.c: reads on libuv's thread pool (shell.h). Each job takes a connection of its own from a
 * small stack, so that SQLite never runs on the loop and a slow query stops nobody. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/shell.h"

#define KEPT 8         /* connections kept open between jobs */
#define BUSY_MAX 256   /* jobs at once; more are told to come back */

struct zt_readers {
    struct zt_shell *sh;
    pthread_mutex_t mu;
    sqlite3 *keeper;   /* open as long as we run: the shared index of the WAL stays, so that a new connection needs
                          no room on a full disk, also after the writer has dropped its own */
    sqlite3 *idle[KEPT];
    int n_idle;
    size_t busy;       /* loop's thread only */
};

struct job {
    uv_work_t work;
    struct zt_readers *r;
    uint64_t session, wire_id;
    Zt__Envelope *env; void *arena;
    uint64_t read_txn; /* durable when the job was given: the snapshot is not older */
    /* result */
    Zt__Envelope *reply;
    struct zt_run_ref ref;
    struct zt_ckpt_facts facts;
    struct zt_ckpt_source source;
    int code;
    struct zt_error err;
};

int zt_readers_new(struct zt_shell *sh, struct zt_readers **out, struct zt_error *err)
{
    struct zt_readers *r = calloc(1, sizeof *r);
    if (!r)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    r->sh = sh;
    if (zt_query_open(sh->state_dir, &r->keeper, err)) {
        free(r);
        return err->code;
    }
    pthread_mutex_init(&r->mu, NULL);
    *out = r;
    return 0;
}

static sqlite3 *take(struct zt_readers *r, struct zt_error *err)
{
    sqlite3 *db = NULL;
    pthread_mutex_lock(&r->mu);
    if (r->n_idle > 0)
        db = r->idle[--r->n_idle];
    pthread_mutex_unlock(&r->mu);
    if (!db)
        zt_query_open(r->sh->state_dir, &db, err);
    return db;
}

static void give(struct zt_readers *r, sqlite3 *db, bool good)
{
    pthread_mutex_lock(&r->mu);
    if (good && r->n_idle < KEPT) {
        r->idle[r->n_idle++] = db;
        db = NULL;
    }
    pthread_mutex_unlock(&r->mu);
    sqlite3_close(db);
}

static int find_checkpoint(sqlite3 *db, struct job *j)
{
    const Zt__SetCheckpoint *m = j->env->set_checkpoint;
    if (zt_query_resolve(db, m->run, &j->ref, &j->err) || zt_query_ckpt_facts(db, j->ref.run_id, m->step, &j->facts, &j->err))
        return j->err.code;
    return 0;
}

static void work(uv_work_t *w)
{
    struct job *j = w->data;
    sqlite3 *db = take(j->r, &j->err);
    if (!db) {
        j->code = j->err.code;
        return;
    }
    if (j->env->body_case == ZT__ENVELOPE__BODY_CANCEL)
        j->code = zt_query_resolve(db, j->env->cancel->run, &j->ref, &j->err);
    else if (j->env->body_case == ZT__ENVELOPE__BODY_SUBMIT)
        j->code = zt_submit_resolve(db, j->env->submit, &j->source, &j->err);
    else if (j->env->body_case == ZT__ENVELOPE__BODY_SET_CHECKPOINT)
        j->code = find_checkpoint(db, j);
    else
        j->code = zt_query(db, j->env, &j->reply, &j->err);
    give(j->r, db, j->code != ZT_EIO);
}

static bool known_submit(const struct zt_shell *sh, const Zt__Envelope *env)
{
    return env->body_case == ZT__ENVELOPE__BODY_SUBMIT && zt_machine_has_key(sh->machine, env->submit->request_key.data);
}

static void after(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct zt_shell *sh = j->r->sh;
    j->r->busy--;
    if (status) {
        zt_answer_error(sh, j->session, j->wire_id, ZT_EBUSY, "the coordinator is stopping");
    } else if (j->code && known_submit(sh, j->env)) { /* a repeat gets its stored answer, whatever became of the source */
        zt_dispatch_submit(sh, j->session, j->env, &j->source, j->read_txn);
    } else if (j->code) {
        zt_answer_error(sh, j->session, j->wire_id, j->code, j->err.msg);
    } else if (j->env->body_case == ZT__ENVELOPE__BODY_CANCEL) {
        zt_dispatch_cancel(sh, j->session, j->env, &j->ref);
    } else if (j->env->body_case == ZT__ENVELOPE__BODY_SUBMIT) {
        zt_dispatch_submit(sh, j->session, j->env, &j->source, j->read_txn);
    } else if (j->env->body_case == ZT__ENVELOPE__BODY_SET_CHECKPOINT) {
        zt_dispatch_set_checkpoint(sh, j->session, j->env, &j->ref, &j->facts, j->read_txn);
    } else {
        zt_live_overlay(sh, j->reply);
        zt_answer(sh, j->session, j->wire_id, j->reply);
    }
    zt_ckpt_source_free(&j->source);
    zt_query_free(j->reply);
    zt_envelope_free(j->env, j->arena);
    free(j);
    zt_shell_check_stop(sh);
}

void zt_readers_submit(struct zt_readers *r, const struct zt_session *s, const Zt__Envelope *env)
{
    struct zt_error err;
    if (r->busy >= BUSY_MAX) {
        zt_peer_reply_error(s->peer, env->request_id, ZT_EBUSY, "too many reads at once; try again");
        return;
    }
    struct job *j = calloc(1, sizeof *j);
    if (!j || zt_envelope_copy(env, &j->env, &j->arena, &err)) {
        free(j);
        zt_peer_reply_error(s->peer, env->request_id, ZT_ENOMEM, "the coordinator is short of memory; try again");
        return;
    }
    j->work.data = j;
    j->r = r;
    j->session = s->id;
    j->wire_id = env->request_id;
    j->read_txn = r->sh->durable;
    if (uv_queue_work(&r->sh->loop, &j->work, work, after)) {
        zt_envelope_free(j->env, j->arena);
        free(j);
        zt_peer_reply_error(s->peer, env->request_id, ZT_EBUSY, "the coordinator cannot start a read; try again");
        return;
    }
    r->busy++;
}

size_t zt_readers_busy(const struct zt_readers *r) { return r->busy; }

void zt_readers_free(struct zt_readers *r)
{
    if (!r)
        return;
    ZT_ASSERT(r->busy == 0);
    for (int i = 0; i < r->n_idle; i++)
        sqlite3_close(r->idle[i]);
    sqlite3_close(r->keeper);
    pthread_mutex_destroy(&r->mu);
    free(r);
}
