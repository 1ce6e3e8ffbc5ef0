/* SPDX-License-Identifier: Apache-2.0 */
/* worker/relay.c: what a trainer asks of the coordinator about checkpoints, passed on under the job's name and
 * answered under the trainer's own number. The session sends an outstanding question again after a
 * reconnect; a refusal that may pass is tried again after RETRY_MS; every other answer is the trainer's:
 * it ends the wait there.
 *
 * A part of a checkpoint is told only when the step reports up to its step are durable: else a run that
 * goes on after that step could miss their rows for ever. */
#include <stdlib.h>

#include "worker/supervisor.h"

#define RETRY_MS 500u

struct zw_relay {
    struct zw_relay *next;
    struct zw_job *job;
    uint64_t child_request;     /* 0: the trainer does not wait */
    Zt__Envelope *env;
    void *arena;
    bool out;
    uint64_t retry_at;
};

static void relay_free(struct zw_relay *r)
{
    zt_envelope_free(r->env, r->arena);
    free(r);
}

static void unlink_relay(struct zw_relay *r)
{
    struct zw_relay **at = &r->job->relays;
    while (*at != r) {
        at = &(*at)->next;
    }
    *at = r->next;
}

/* The job knows better than its trainer who it is. */
static void sign(const struct zw_job *j, Zt__Envelope *env)
{
    char *run = (char *)(uintptr_t)j->run_id;
#define SIGN(field)                                                                                      \
    do {                                                                                                 \
        env->field->run_id = run;                                                                        \
        env->field->generation = j->generation;                                                          \
    } while (0)
#define SIGN_RANK(field)                                                                                 \
    do {                                                                                                 \
        SIGN(field);                                                                                     \
        env->field->rank = j->rank;                                                                      \
    } while (0)
    switch (env->body_case) {
    case ZT__ENVELOPE__BODY_SHARD_DONE: SIGN_RANK(shard_done); break;
    case ZT__ENVELOPE__BODY_GET_SHARDS: SIGN(get_shards); break;
    case ZT__ENVELOPE__BODY_CKPT_COMMIT: SIGN(ckpt_commit); break;
    case ZT__ENVELOPE__BODY_CKPT_REMOVED: SIGN(ckpt_removed); break;
    case ZT__ENVELOPE__BODY_CKPT_FAILED: SIGN_RANK(ckpt_failed); break;
    case ZT__ENVELOPE__BODY_RANK_LOADED: SIGN_RANK(rank_loaded); break;
    default: break;
    }
#undef SIGN
#undef SIGN_RANK
}

static void answer(struct zw_job *j, uint64_t request, const Zt__Envelope *reply, const struct zt_error *err)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    if (request == 0) {
        return;
    }
    if (err) {
        env.has_code = 1;
        env.code = reply ? reply->code : zt_code_to_wire(err->code);
        env.message = (char *)(uintptr_t)err->msg;
    } else {
        env = *reply;
    }
    env.request_id = request;
    env.has_reply = env.reply = 1;
    zw_job_to_child(j, &env);
}

static void on_answer(void *arg, const Zt__Envelope *reply, const struct zt_error *err)
{
    struct zw_ask *a = arg;
    struct zw_relay *r = a->relay;
    struct zw_job *j = a->job;
    free(a);
    j->requests--;
    r->out = false;
    /* A broken invariant of the coordinator's does not pass: the save is given up, and says so. */
    if (err && zw_may_pass(reply) && reply->code != ZT__CODE__INTERNAL && zw_job_holds_child(j)) {
        r->retry_at = zw_now(j->sup) + RETRY_MS;
        return; /* the tick sends it */
    }
    if (err && (!reply || reply->code != ZT__CODE__STALE_GENERATION) && !j->sup->quitting) {
        zw_log(j->sup, "run %s generation %u rank %u: %s refused: %s", j->run_id, j->generation, j->rank,
               zt_envelope_body_name(r->env), err->msg);
    }
    answer(j, r->child_request, reply, err);
    unlink_relay(r);
    relay_free(r);
}

static bool held_back(const struct zw_relay *r)
{
    return r->env->body_case == ZT__ENVELOPE__BODY_SHARD_DONE &&
           r->env->shard_done->step > r->job->step_acked && !r->job->reports_refused;
}

void zw_relays_pump(struct zw_job *j)
{
    for (struct zw_relay *r = j->relays, *next; r; r = next) {
        next = r->next;
        if (r->out || zw_now(j->sup) < r->retry_at || held_back(r)) {
            continue;
        }
        struct zw_ask *a = zw_ask_new(j);
        if (a) {
            a->relay = r;
        }
        if (zw_ask_send(a, r->env, on_answer) == 0) {
            r->out = true;
        } else {
            r->retry_at = zw_now(j->sup) + RETRY_MS;
        }
    }
}

void zw_relay(struct zw_job *j, const Zt__Envelope *from)
{
    struct zt_error err;
    struct zw_relay *r = calloc(1, sizeof(*r)), **at = &j->relays;
    if (!r || zt_envelope_copy(from, &r->env, &r->arena, &err)) {
        const struct zt_error none = {.code = ZT_ENOMEM, .msg = "no memory in the supervisor"};
        answer(j, from->request_id, NULL, &none);
        free(r);
        return;
    }
    r->job = j;
    r->child_request = from->request_id;
    sign(j, r->env);
    while (*at) {
        at = &(*at)->next;
    }
    *at = r;
    zw_relays_pump(j);
}

void zw_relays_drop(struct zw_job *j)
{
    for (struct zw_relay *r = j->relays, *next; r; r = next) {
        next = r->next;
        if (!r->out) {
            unlink_relay(r);
            relay_free(r);
        }
    }
}
