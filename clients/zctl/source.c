/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/source.c: see source.h. */
#include "clients/zctl/source.h"
#include <string.h>
#include <time.h>
#include "coordinator/query.h"

#define REQUEST_SECONDS 30.0
#define CONNECT_SECONDS 5.0

double zt_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void zt_pause(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

int zt_source_open(const struct zt_options *o, struct zt_source *s, struct zt_error *err) {
    char path[4096];
    memset(s, 0, sizeof *s);
    s->timeout = REQUEST_SECONDS;
    if (o->timeout > 0)
        s->deadline = zt_now() + o->timeout;
    if (o->state)
        return zt_query_open(o->state, &s->db, err);
    int rc = zt_coord_address(o->coord, s->host, sizeof s->host, &s->port, err);
    if (rc == 0)
        rc = zt_token_path(o->token_file, path, sizeof path, err);
    if (rc == 0)
        rc = zt_token_load(&zt_sys_posix, path, &s->token, err);
    /* No token where one would be made: no coordinator was ever started here. */
    if (rc == ZT_ENOTFOUND)
        return zt_fail(err, o->token_file ? ZT_EAUTH : ZT_EUNREACHABLE, "%s; start one: zcoord serve", err->msg);
    return rc;
}

void zt_source_at(struct zt_source *s, int port, const struct zt_token *token, double timeout) {
    memset(s, 0, sizeof *s);
    snprintf(s->host, sizeof s->host, "127.0.0.1");
    s->port = port;
    s->token = *token;
    s->timeout = timeout;
}

void zt_source_close(struct zt_source *s) {
    if (s->call)
        zt_call_close(s->call);
    if (s->db)
        sqlite3_close(s->db);
    s->call = NULL;
    s->db = NULL;
}

void zt_answer_free(struct zt_answer *a) {
    if (a->local)
        zt_query_free(a->env);
    else if (a->env)
        zt_envelope_free(a->env, a->arena);
    memset(a, 0, sizeof *a);
}

/* Seconds that a request may still take; the least is a moment, so that 0 never means "for ever". */
static double time_left(const struct zt_source *s, double wanted) {
    double left = s->deadline > 0 ? s->deadline - zt_now() : wanted;
    left = left < wanted ? left : wanted;
    return left > 0.01 ? left : 0.01;
}

static bool changes(const Zt__Envelope *req) {
    return req->body_case == ZT__ENVELOPE__BODY_SUBMIT || req->body_case == ZT__ENVELOPE__BODY_CANCEL ||
           req->body_case == ZT__ENVELOPE__BODY_SET_CHECKPOINT || req->body_case == ZT__ENVELOPE__BODY_SHUTDOWN;
}

/* What to do about it, once in a message. */
static int say_next_step(const struct zt_source *s, int rc, struct zt_error *err) {
    if (rc == ZT_EUNREACHABLE && !strstr(err->msg, "zcoord serve"))
        return zt_fail(err, rc, "%s (%s:%d; start one: zcoord serve; another address: --coord)", err->msg,
                       s->host, s->port);
    return rc;
}

int zt_source_ask(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a, struct zt_error *err) {
    memset(a, 0, sizeof *a);
    if (s->db) {
        if (changes(req))
            return zt_fail(err, ZT_EINVAL, "--state only reads; this needs a running coordinator: zcoord serve");
        a->local = true;
        return zt_query(s->db, req, &a->env, err);
    }
    int rc = 0;
    if (!s->call)
        rc = zt_call_open(s->host, s->port, &s->token, "zctl", time_left(s, CONNECT_SECONDS), &s->call, err);
    s->reached = s->reached || rc == 0;
    if (rc == 0)
        rc = zt_call(s->call, req, time_left(s, s->timeout), &a->env, &a->arena, err);
    if (rc == ZT_ETIMEOUT && (s->deadline == 0 || zt_now() < s->deadline))
        rc = ZT_EUNREACHABLE; /* our own patience, not the user's */
    return say_next_step(s, rc, err);
}

int zt_source_ask_surely(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a,
                         struct zt_error *err) {
    double end = s->deadline > 0 ? s->deadline : zt_now() + REQUEST_SECONDS;
    for (double wait = 0.2;; wait = wait < 2 ? wait * 1.5 : 2) {
        int rc = zt_source_ask(s, req, a, err);
        bool lost = rc == ZT_EUNREACHABLE || rc == ZT_ETIMEOUT;
        if (!s->reached || !changes(req) || !(lost || (rc == ZT_EBUSY && s->deadline > 0)))
            return rc;
        if (rc == ZT_EBUSY && zt_now() + wait >= end)
            return rc; /* it said itself what became of the request */
        if (zt_now() + wait >= end)
            return zt_fail(err, s->deadline > 0 ? ZT_ETIMEOUT : rc,
                           "%s; it may have taken the request all the same: zctl list shows it when it is back",
                           err->msg);
        zt_pause(wait);
    }
}

int zt_source_ask_patiently(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a,
                            struct zt_error *err) {
    for (double wait = 0.2;; wait = wait < 2 ? wait * 1.5 : 2) {
        int rc = zt_source_ask(s, req, a, err);
        if (rc != ZT_EUNREACHABLE && rc != ZT_EBUSY) {
            if (s->lost_told && rc == 0)
                fprintf(stderr, "zctl: the coordinator is back\n");
            s->lost_told = s->lost_told && rc != 0;
            return rc;
        }
        if (s->deadline > 0 && zt_now() >= s->deadline)
            return zt_fail(err, ZT_ETIMEOUT, "time is up: %s", err->msg);
        if (!s->lost_told)
            fprintf(stderr, "zctl: the coordinator at %s:%d is %s; trying again\n", s->host, s->port,
                    rc == ZT_EBUSY ? "busy" : "away");
        s->lost_told = true;
        zt_pause(time_left(s, wait));
    }
}
