/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/effects.c: carries out what the machine decides (shell.h). Rows of one step become one batch of
 * the store, in order; a reply marked with a transaction waits here until that one is durable. */
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/shell.h"
#include "core/sys.h"

/* ------------------------------------------------------------------------------ texts of live runs */
static struct zt_run_info *find_info(struct zt_shell *sh, const char *run_id)
{
    for (struct zt_run_info *i = sh->infos; i; i = i->next)
        if (strcmp(i->text.run_id, run_id) == 0)
            return i;
    return NULL;
}

static void free_info(struct zt_run_info *i)
{
    for (size_t k = 0; k < i->n_overrides; k++)
        free(i->overrides[k]);
    free(i->overrides);
    zt_run_text_free(&i->text);
    free(i);
}

static int parse_overrides(struct zt_run_info *i, struct zt_error *err)
{
    json_t *j = i->text.overrides && i->text.overrides[0] ? json_loads(i->text.overrides, 0, NULL) : json_array();
    size_t n = json_is_array(j) ? json_array_size(j) : 0;
    i->overrides = calloc(n + 1, sizeof *i->overrides);
    int code = j && i->overrides ? 0 : zt_fail(err, ZT_EIO, "the stored overrides of run %s cannot be read", i->text.run_id);
    for (size_t k = 0; k < n && !code; k++) {
        const char *t = json_string_value(json_array_get(j, k));
        i->overrides[k] = strdup(t ? t : "");
        if (!i->overrides[k])
            code = zt_fail(err, ZT_ENOMEM, "out of memory");
        else
            i->n_overrides++;
    }
    json_decref(j);
    return code;
}

int zt_run_info_add(struct zt_shell *sh, const struct zt_run_text *t, struct zt_error *err)
{
    struct zt_run_info *i = calloc(1, sizeof *i);
    if (!i) {
        struct zt_run_text gone = *t;
        zt_run_text_free(&gone);
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    }
    i->text = *t;
    if (parse_overrides(i, err)) {
        free_info(i);
        return err->code;
    }
    i->next = sh->infos;
    sh->infos = i;
    return 0;
}

static void drop_info(struct zt_shell *sh, const char *run_id)
{
    for (struct zt_run_info **at = &sh->infos; *at; at = &(*at)->next)
        if (strcmp((*at)->text.run_id, run_id) == 0) {
            struct zt_run_info *i = *at;
            *at = i->next;
            free_info(i);
            return;
        }
}

/* A Submit that became a run: its texts stay for the assignments. */
static int keep_submitted(struct zt_shell *sh, const struct zt_row_run *row, const struct zt_request *q, struct zt_error *err)
{
    const Zt__Submit *m = q->env->submit;
    struct zt_run_text t = { .yaml_bytes = m->run_yaml.len };
    snprintf(t.run_id, sizeof t.run_id, "%s", row->run_id);
    snprintf(t.name, sizeof t.name, "%s", row->name);
    t.yaml = malloc(m->run_yaml.len + 1);
    t.overrides = strdup(q->overrides);
    t.folder = strdup(q->run.saves.folder ? q->run.saves.folder : "");
    t.source_folder = strdup(q->run.saves.source_folder ? q->run.saves.source_folder : "");
    t.accept_batch_change = q->run.saves.accept_batch_change;
    if (!t.yaml || !t.overrides || !t.folder || !t.source_folder) {
        zt_run_text_free(&t);
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    }
    memcpy(t.yaml, m->run_yaml.data, m->run_yaml.len);
    return zt_run_info_add(sh, &t, err);
}

/* ------------------------------------------------------------------------------ desired state on the wire */
struct wire_desired { Zt__Desired d; Zt__Assignment a; };

static void checkpoints_to_wire(const struct zt_run_text *t, const struct zt_desired *from, Zt__Assignment *a)
{
    a->has_start_step = 1;
    a->start_step = (uint64_t)from->start_step;
    if (t->folder && t->folder[0])
        a->checkpoint_folder = t->folder;
    a->has_save_on_drain = 1;
    a->save_on_drain = from->save_on_drain;
    if (from->from == ZT_START_FRESH)
        return;
    a->resume_folder = from->from == ZT_START_OWN ? t->folder : t->source_folder;
    a->has_resume_manifest = 1;
    a->resume_manifest.data = (uint8_t *)(uintptr_t)from->manifest;
    a->resume_manifest.len = sizeof from->manifest;
    a->has_weights_only = a->has_accept_batch_change = 1;
    a->weights_only = from->weights_only;
    a->accept_batch_change = from->from == ZT_START_SOURCE && t->accept_batch_change;
}

static void to_wire(struct zt_shell *sh, const struct zt_desired *from, struct wire_desired *w)
{
    zt__desired__init(&w->d);
    w->d.action = (Zt__Desired__Action)from->action;
    if (from->run_id[0]) {
        w->d.run_id = (char *)(uintptr_t)from->run_id;
        w->d.has_generation = 1;
        w->d.generation = from->generation;
    }
    if (from->action != ZT_DESIRED_START && from->action != ZT_DESIRED_RUN)
        return;
    struct zt_run_info *i = find_info(sh, from->run_id);
    if (!i)
        return; /* only after the run's end: nothing will be started from it */
    zt__assignment__init(&w->a);
    w->d.assignment = &w->a;
    w->a.rank = (uint32_t)from->rank;
    w->a.local_rank = (uint32_t)from->local_rank;
    w->a.world = (uint32_t)from->world;
    w->a.replicate = (uint32_t)from->mesh.replicate;
    w->a.shard = (uint32_t)from->mesh.shard;
    w->a.tensor = (uint32_t)from->mesh.tensor;
    w->a.run_yaml.data = i->text.yaml;
    w->a.run_yaml.len = i->text.yaml_bytes;
    w->a.run_name = i->text.name;
    w->a.overrides = i->overrides;
    w->a.n_overrides = i->n_overrides;
    checkpoints_to_wire(&i->text, from, &w->a);
    w->a.has_workers_on_host = w->a.has_attempt = 1;
    w->a.workers_on_host = (uint32_t)from->workers_on_host;
    w->a.attempt = from->attempt;
    w->a.has_init_timeout_seconds = w->a.has_term_grace_seconds = 1;
    w->a.init_timeout_seconds = from->init_timeout_seconds;
    w->a.term_grace_seconds = from->term_grace_seconds;
}

static void push_desired(struct zt_shell *sh, uint64_t session, const struct zt_desired *d)
{
    struct zt_session *s = zt_session_find(sh, session);
    struct wire_desired w;
    struct zt_error err;
    if (!s || !s->peer)
        return;
    to_wire(sh, d, &w);
    Zt__BeatReply b = ZT__BEAT_REPLY__INIT;
    b.epoch = sh->epoch;
    b.desired = &w.d;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    env.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
    env.beat_reply = &b;
    if (zt_peer_push(s->peer, &env, &err) && err.code != ZT_EUNREACHABLE)
        zt_coord_log("warning", "push_failed", "worker=\"%s\" message=\"%s\"", s->worker_id, err.msg);
}

/* ------------------------------------------------------------------------------ replies */
struct wire_shards { Zt__Shards s; Zt__ShardDone *list, **at; };

static bool shards_to_wire(const struct zt_request *q, const struct zt_fx_reply *p, struct wire_shards *w)
{
    size_t n = (size_t)p->n_parts;
    zt__shards__init(&w->s);
    w->list = calloc(n + 1, sizeof *w->list);
    w->at = calloc(n + 1, sizeof(Zt__ShardDone *));
    if (!w->list || !w->at)
        return false;
    for (size_t i = 0; i < n; i++) {
        const struct zt_ckpt_part *from = &p->parts[i];
        Zt__ShardDone *d = w->at[i] = &w->list[i];
        zt__shard_done__init(d);
        d->run_id = q->env->get_shards->run_id;
        d->generation = q->env->get_shards->generation;
        d->step = q->env->get_shards->step;
        d->rank = (uint32_t)from->rank;
        d->bytes = from->bytes;
        d->index_sha256 = (ProtobufCBinaryData){ sizeof from->index, (uint8_t *)(uintptr_t)from->index };
        d->parameter_hash = (ProtobufCBinaryData){ sizeof from->parameter_hash, (uint8_t *)(uintptr_t)from->parameter_hash };
        d->state_hash = (ProtobufCBinaryData){ sizeof from->state_hash, (uint8_t *)(uintptr_t)from->state_hash };
        d->has_stall_seconds = d->has_write_seconds = 1;
        d->stall_seconds = from->stall_seconds;
        d->write_seconds = from->write_seconds;
    }
    w->s.shards = w->at;
    w->s.n_shards = n;
    return true;
}

static void send_reply(struct zt_shell *sh, const struct zt_fx_reply *p)
{
    struct zt_request *q = zt_request_find(sh, p->request);
    if (!q)
        return; /* a GetCommId whose connection is gone */
    struct wire_desired w;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__RegisterReply registered = ZT__REGISTER_REPLY__INIT;
    Zt__BeatReply beat = ZT__BEAT_REPLY__INIT;
    Zt__Ack ack = ZT__ACK__INIT;
    Zt__CommId comm = ZT__COMM_ID__INIT;
    Zt__SubmitReply submitted = ZT__SUBMIT_REPLY__INIT;
    Zt__CancelReply cancelled = ZT__CANCEL_REPLY__INIT;
    Zt__CkptCommitted committed = ZT__CKPT_COMMITTED__INIT;
    struct wire_shards shards = { 0 };
    if (p->has_desired)
        to_wire(sh, &p->desired, &w);
    env.has_code = 1;
    env.code = zt_code_to_wire(p->code);
    if (p->message[0])
        env.message = (char *)(uintptr_t)p->message;
    if (p->code && !p->has_desired) {
        /* code and message say it all */
    } else if (p->to == ZT_EV_REGISTER && !p->code) {
        registered.epoch = p->epoch;
        registered.beat_ms = 1000;
        registered.desired = p->has_desired ? &w.d : NULL;
        env.body_case = ZT__ENVELOPE__BODY_REGISTER_REPLY;
        env.register_reply = &registered;
    } else if (p->to == ZT_EV_BEAT || p->code) { /* a refused worker learns at once what it should be doing */
        beat.epoch = p->epoch;
        beat.desired = &w.d;
        beat.has_seq = p->to == ZT_EV_BEAT;
        beat.seq = p->seq;
        env.body_case = ZT__ENVELOPE__BODY_BEAT_REPLY;
        env.beat_reply = &beat;
    } else if (p->to == ZT_EV_COMM_PUT || p->to == ZT_EV_COMM_GET) {
        comm.id.data = (uint8_t *)(uintptr_t)p->comm_id;
        comm.id.len = p->comm_id_bytes;
        env.body_case = ZT__ENVELOPE__BODY_COMM_ID;
        env.comm_id = &comm;
    } else if (p->to == ZT_EV_SUBMIT) {
        submitted.run_id = (char *)(uintptr_t)p->run_id;
        submitted.name = (char *)(uintptr_t)p->name;
        submitted.state = (char *)(uintptr_t)zt_run_state_name(p->state);
        submitted.detail = p->message[0] ? (char *)(uintptr_t)p->message : NULL;
        submitted.has_position = 1;
        submitted.position = p->position;
        env.message = NULL;
        env.body_case = ZT__ENVELOPE__BODY_SUBMIT_REPLY;
        env.submit_reply = &submitted;
    } else if (p->to == ZT_EV_CANCEL) {
        cancelled.run_id = (char *)(uintptr_t)p->run_id;
        cancelled.state = (char *)(uintptr_t)zt_run_state_name(p->state);
        env.body_case = ZT__ENVELOPE__BODY_CANCEL_REPLY;
        env.cancel_reply = &cancelled;
    } else if (p->to == ZT_EV_GET_SHARDS) {
        if (shards_to_wire(q, p, &shards)) {
            env.body_case = ZT__ENVELOPE__BODY_SHARDS;
            env.shards = &shards.s;
        } else {
            env.code = zt_code_to_wire(ZT_EBUSY);
            env.message = (char *)(uintptr_t)"the coordinator is short of memory; ask again";
        }
    } else if (p->to == ZT_EV_CKPT_COMMIT) {
        if (ZT_FAILPOINT("coord.before_commit_reply")) {
            zt_request_end(sh, p->request); /* durable, and rank 0 never hears of it over this connection */
            return;
        }
        committed.remove = (int64_t *)(uintptr_t)p->remove;
        committed.n_remove = (size_t)p->n_remove;
        env.body_case = ZT__ENVELOPE__BODY_CKPT_COMMITTED;
        env.ckpt_committed = &committed;
    } else {
        ack.has_seq = p->to == ZT_EV_STEPS;
        ack.seq = p->seq;
        env.body_case = ZT__ENVELOPE__BODY_ACK;
        env.ack = &ack;
    }
    if (!q->answered)
        zt_answer(sh, q->session, q->wire_id, &env);
    free(shards.list);
    free(shards.at);
    zt_request_end(sh, p->request);
}

static void free_waiting(struct zt_wait_reply *w)
{
    free(w->parts);
    free(w);
}

static void release_replies(struct zt_shell *sh)
{
    while (sh->waiting && sh->waiting->reply.after_txn <= sh->committed) {
        struct zt_wait_reply *w = sh->waiting;
        sh->waiting = w->next;
        if (!sh->waiting)
            sh->waiting_last = &sh->waiting;
        send_reply(sh, &w->reply);
        free_waiting(w);
    }
}

/* A client is not left hanging while the disk refuses: what it asked for is taken, but not yet durable. Workers
 * wait, and ask again by themselves. */
static void say_unconfirmed(struct zt_shell *sh, uint64_t request)
{
    char text[600];
    struct zt_request *q = zt_request_find(sh, request);
    if (!q || !q->client || q->answered)
        return;
    snprintf(text, sizeof text, "the coordinator cannot write its database (%.300s), so nothing is confirmed. Free space: what "
             "you asked for is carried out then, unless the coordinator stops before; zctl list shows it", sh->store_message);
    zt_answer_error(sh, q->session, q->wire_id, ZT_EBUSY, text);
    q->answered = true;
}

static void queue_reply(struct zt_shell *sh, const struct zt_fx_reply *p)
{
    if (p->after_txn <= sh->committed) {
        send_reply(sh, p);
        return;
    }
    struct zt_wait_reply *w = malloc(sizeof *w);
    size_t bytes = (size_t)p->n_parts * sizeof *p->parts;
    struct zt_ckpt_part *parts = w && bytes ? malloc(bytes) : NULL;
    if (!w || (bytes && !parts)) {
        free(w);
        return; /* unanswered: the caller asks again, its key or its numbers make that safe */
    }
    if (bytes)
        memcpy(parts, p->parts, bytes);
    w->reply = *p;
    w->reply.parts = w->parts = parts;
    w->next = NULL;
    *sh->waiting_last = w;
    sh->waiting_last = &w->next;
    if (sh->store_state)
        say_unconfirmed(sh, p->request);
}

/* ------------------------------------------------------------------------------ rows */
static void add_run(struct zt_shell *sh, struct zt_batch *b, const struct zt_row_run *row)
{
    struct zt_request *q = row->request ? zt_request_find(sh, row->request) : NULL;
    struct zt_error err;
    bool submitted = q && q->env && q->env->body_case == ZT__ENVELOPE__BODY_SUBMIT;
    zt_batch_run(b, row, submitted ? &q->run : NULL);
    if (submitted && keep_submitted(sh, row, q, &err))
        zt_shell_stop(sh, 10, err.msg);
    if (zt_run_state_terminal(row->state))
        drop_info(sh, row->run_id);
}

static void add_failure(struct zt_shell *sh, struct zt_batch *b, const struct zt_row_failure *row)
{
    struct zt_request *q = row->request ? zt_request_find(sh, row->request) : NULL;
    struct zt_failure_blobs blobs = { 0 };
    if (q && q->env && q->env->body_case == ZT__ENVELOPE__BODY_REPORT_FAILURE) {
        const Zt__ReportFailure *f = q->env->report_failure;
        blobs.phase = f->phase;
        blobs.oom = q->oom;
        blobs.oom_bytes = q->oom_bytes;
        blobs.last_log = f->has_last_log ? f->last_log.data : NULL;
        blobs.last_log_bytes = f->has_last_log ? f->last_log.len : 0;
        blobs.at_ms = zt_shell_wall_ms();
    }
    zt_batch_failure(b, row, &blobs);
}

static void add_row(struct zt_shell *sh, struct zt_batch *b, const struct zt_effect *e)
{
    struct zt_request *q;
    switch (e->kind) {
    case ZT_FX_ROW_RUN: add_run(sh, b, &e->u.run); break;
    case ZT_FX_ROW_ATTEMPT: zt_batch_attempt(b, &e->u.attempt); break;
    case ZT_FX_ROW_RANK: zt_batch_rank(b, &e->u.rank); break;
    case ZT_FX_ROW_FAILURE: add_failure(sh, b, &e->u.failure); break;
    case ZT_FX_ROW_WORKER: zt_batch_worker(b, &e->u.worker); break;
    case ZT_FX_ROW_KEY: zt_batch_key(b, &e->u.key); break;
    case ZT_FX_ROW_EVENT: zt_batch_event(b, &e->u.event, -1); break;
    case ZT_FX_ROW_CKPT: zt_batch_ckpt(b, &e->u.ckpt); break;
    case ZT_FX_ROW_CKPT_GONE: zt_batch_ckpt_gone(b, e->u.ckpt.run_id, e->u.ckpt.step); break;
    case ZT_FX_ROW_PART: zt_batch_part(b, &e->u.part); break;
    case ZT_FX_CKPT_SET: zt_batch_ckpt_set(b, e->u.ckpt_set.run_id, e->u.ckpt_set.step, e->u.ckpt_set.what, e->u.ckpt_set.message); break;
    case ZT_FX_STORE_STEPS:
        q = zt_request_find(sh, e->u.steps.request);
        ZT_ASSERT(q && q->env && q->env->body_case == ZT__ENVELOPE__BODY_REPORT_STEPS);
        zt_batch_steps(b, e->u.steps.run_id, q->env->report_steps->steps, q->env->report_steps->n_steps);
        break;
    case ZT_FX_REPLY: case ZT_FX_DESIRED: break;
    }
}

/* ------------------------------------------------------------------------------ commits */
struct txn_wait { struct zt_shell *sh; uint64_t txn; };

static void on_txn(void *arg, const struct zt_commit *c)
{
    struct txn_wait *w = arg;
    if (c->code == 0 && w->txn > w->sh->committed)
        w->sh->committed = w->txn;
    free(w);
}

/* The machine has gone on from these rows: losing them now would make memory and disk disagree. Ending is safe,
 * a start reads what is durable. */
static void submit_txn(struct zt_shell *sh, struct zt_batch *b, uint64_t txn, bool hurry)
{
    struct zt_error err;
    struct txn_wait *w = malloc(sizeof *w);
    if (!w) {
        zt_batch_free(b);
        zt_shell_stop(sh, 10, "out of memory");
        return;
    }
    w->sh = sh;
    w->txn = txn;
    if (zt_store_submit(sh->store, b, hurry ? ZT_HURRY_YES : ZT_HURRY_NO, true, on_txn, w, &err)) {
        free(w);
        if (!sh->stopping)
            zt_shell_stop(sh, 10, err.msg);
    }
}

static void carry_out(struct zt_shell *sh, const struct zt_row_event *audit)
{
    struct zt_batch *b = NULL;
    uint64_t txn = 0;
    bool hurry = false;
    for (size_t i = 0; i < sh->fx.n; i++) {
        struct zt_effect *e = &sh->fx.v[i];
        if (e->kind == ZT_FX_REPLY) {
            queue_reply(sh, &e->u.reply);
            continue;
        }
        if (e->kind == ZT_FX_DESIRED) {
            push_desired(sh, e->u.desired.session, &e->u.desired.desired);
            continue;
        }
        if (!b && !(b = zt_batch_new())) {
            zt_shell_stop(sh, 10, "out of memory");
            return;
        }
        txn = e->txn;
        hurry |= e->kind != ZT_FX_STORE_STEPS;
        add_row(sh, b, e);
    }
    if (audit && !b)
        b = zt_batch_new();
    if (audit && b)
        zt_batch_event(b, audit, -1);
    if (b && txn)
        submit_txn(sh, b, txn, hurry);
    else if (b) {
        struct zt_error err;
        zt_store_submit(sh->store, b, ZT_HURRY_NO, false, NULL, NULL, &err); /* a refused request: said if there is room */
    }
}

static void step_once(struct zt_shell *sh, struct zt_event *ev, const struct zt_row_event *audit)
{
    ev->wall_ms = zt_shell_wall_ms();
    int code = zt_machine_step(sh->machine, ev, zt_shell_now_ns(), &sh->fx);
    if (code) {
        struct zt_request *q = zt_request_find(sh, ev->request);
        if (q) {
            zt_answer_error(sh, q->session, q->wire_id, ZT_EBUSY, "the coordinator is short of memory; try again");
            zt_request_end(sh, ev->request);
        }
        return;
    }
    sh->stepping = true;
    carry_out(sh, audit);
    sh->stepping = false;
}

void zt_shell_step(struct zt_shell *sh, struct zt_event *ev, const struct zt_row_event *audit)
{
    if (sh->stopping)
        return;
    ZT_ASSERT(!sh->stepping);
    step_once(sh, ev, audit);
    while (sh->n_closed > 0 && !sh->stopping) { /* connections that broke while replies were written */
        struct zt_event gone = { .kind = ZT_EV_DISCONNECTED, .session = sh->closed[--sh->n_closed] };
        step_once(sh, &gone, NULL);
    }
}

void zt_shell_committed(struct zt_shell *sh)
{
    if (sh->committed <= sh->durable)
        return;
    sh->durable = sh->committed;
    release_replies(sh);
    struct zt_event ev = { .kind = ZT_EV_COMMITTED, .u.store.txn = sh->durable };
    zt_shell_step(sh, &ev, NULL);
}

void zt_shell_store_state(struct zt_shell *sh, int code, const char *message)
{
    sh->store_state = code;
    snprintf(sh->store_message, sizeof sh->store_message, "%s", message);
    if (code == 0) {
        zt_coord_log("info", "store_ok", "message=\"the database can be written again\"");
        return;
    }
    zt_coord_log("error", "store_failed", "code=%s message=\"%s\"", zt_code_name(code), message);
    if (code == ZT_ECONFLICT || code == ZT_EINTERNAL) {
        zt_shell_stop(sh, code == ZT_ECONFLICT ? 5 : 10, message);
        return;
    }
    struct zt_event ev = { .kind = ZT_EV_STORE_FAILED, .u.store.message = message };
    zt_shell_step(sh, &ev, NULL);
    for (struct zt_wait_reply *w = sh->waiting; w; w = w->next)
        say_unconfirmed(sh, w->reply.request);
}

void zt_effects_end(struct zt_shell *sh)
{
    for (struct zt_wait_reply *w = sh->waiting, *next; w; w = next) {
        next = w->next;
        free_waiting(w);
    }
    sh->waiting = NULL;
    sh->waiting_last = &sh->waiting;
    for (struct zt_run_info *i = sh->infos, *next; i; i = next) {
        next = i->next;
        free_info(i);
    }
    sh->infos = NULL;
    zt_effects_free(&sh->fx);
    free(sh->closed);
    sh->closed = NULL;
}

void zt_audit(struct zt_shell *sh, struct zt_row_event *e, const struct zt_session *s, const char *verb, const char *run_id,
              const char *fmt, ...)
{
    (void)sh;
    memset(e, 0, sizeof *e);
    e->at_ms = zt_shell_wall_ms();
    e->rank = -1;
    e->level = 1;
    snprintf(e->kind, sizeof e->kind, "AUDIT");
    snprintf(e->actor, sizeof e->actor, "user");
    snprintf(e->run_id, sizeof e->run_id, "%s", run_id);
    int n = snprintf(e->message, sizeof e->message, "%s by %.200s: ", verb, s && s->peer ? zt_peer_name(s->peer) : "a closed connection");
    va_list ap;
    va_start(ap, fmt);
    if (n > 0 && (size_t)n < sizeof e->message)
        vsnprintf(e->message + n, sizeof e->message - (size_t)n, fmt, ap);
    va_end(ap);
}
