/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/requests.c: sessions, and requests that wait for an answer (shell.h). */
#include <stdlib.h>
#include <string.h>
#include "coordinator/shell.h"

struct zt_session *zt_session_add(struct zt_shell *sh, struct zt_peer *peer)
{
    struct zt_session *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->id = ++sh->next_session;
    s->peer = peer;
    s->link = &sh->sessions[s->id % ZT_REQUEST_BUCKETS];
    s->next = *s->link;
    if (s->next)
        s->next->link = &s->next;
    *s->link = s;
    return s;
}

struct zt_session *zt_session_find(struct zt_shell *sh, uint64_t id)
{
    for (struct zt_session *s = sh->sessions[id % ZT_REQUEST_BUCKETS]; s; s = s->next)
        if (s->id == id)
            return s;
    return NULL;
}

void zt_session_remove(struct zt_shell *sh, struct zt_session *s)
{
    (void)sh;
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    free(s);
}

struct zt_request *zt_request_new(struct zt_shell *sh, const struct zt_session *s, const Zt__Envelope *env, bool keep_copy,
                                  struct zt_error *err)
{
    struct zt_request *r = calloc(1, sizeof *r);
    if (!r) {
        zt_fail(err, ZT_ENOMEM, "out of memory");
        return NULL;
    }
    if (keep_copy && zt_envelope_copy(env, &r->env, &r->arena, err)) {
        free(r);
        return NULL;
    }
    r->id = ++sh->next_request;
    r->session = s->id;
    r->wire_id = env->request_id;
    r->client = zt_peer_role(s->peer) == ZT__ROLE__ROLE_CLIENT;
    struct zt_request **head = &sh->requests[r->id % ZT_REQUEST_BUCKETS];
    r->next = *head;
    *head = r;
    sh->n_requests++;
    return r;
}

struct zt_request *zt_request_find(struct zt_shell *sh, uint64_t id)
{
    struct zt_request *r = sh->requests[id % ZT_REQUEST_BUCKETS];
    while (r && r->id != id)
        r = r->next;
    return r;
}

static void free_request(struct zt_request *r)
{
    if (r->env)
        zt_envelope_free(r->env, r->arena);
    free(r->normalised);
    free(r->overrides);
    free(r->hash);
    free(r->mode);
    free(r->folder);
    zt_ckpt_source_free(&r->source);
    free(r->oom);
    free(r);
}

void zt_request_end(struct zt_shell *sh, uint64_t id)
{
    struct zt_request **at = &sh->requests[id % ZT_REQUEST_BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    if (!*at)
        return;
    struct zt_request *r = *at;
    *at = r->next;
    sh->n_requests--;
    free_request(r);
}

void zt_requests_drop_waiting(struct zt_shell *sh, uint64_t session)
{
    for (size_t i = 0; i < ZT_REQUEST_BUCKETS; i++)
        for (struct zt_request **at = &sh->requests[i]; *at;) {
            struct zt_request *r = *at;
            bool waits = r->session == session && r->env && (r->env->body_case == ZT__ENVELOPE__BODY_GET_COMM_ID ||
                                                             r->env->body_case == ZT__ENVELOPE__BODY_GET_SHARDS);
            if (!waits) {
                at = &r->next;
                continue;
            }
            *at = r->next;
            sh->n_requests--;
            free_request(r);
        }
}

void zt_requests_free(struct zt_shell *sh)
{
    for (size_t i = 0; i < ZT_REQUEST_BUCKETS; i++)
        for (struct zt_request *r = sh->requests[i], *next; r; r = next) {
            next = r->next;
            free_request(r);
        }
    memset(sh->requests, 0, sizeof sh->requests);
    sh->n_requests = 0;
}

void zt_answer(struct zt_shell *sh, uint64_t session, uint64_t wire_id, Zt__Envelope *env)
{
    struct zt_session *s = zt_session_find(sh, session);
    struct zt_error err;
    if (!s || !s->peer)
        return;
    if (wire_id == 0)
        return; /* a push wants no answer */
    if (zt_peer_reply(s->peer, wire_id, env, &err) && err.code != ZT_EUNREACHABLE)
        zt_coord_log("warning", "reply_failed", "peer=\"%s\" message=\"%s\"", zt_peer_name(s->peer), err.msg);
}

void zt_answer_error(struct zt_shell *sh, uint64_t session, uint64_t wire_id, int code, const char *message)
{
    struct zt_session *s = zt_session_find(sh, session);
    if (s && s->peer && wire_id != 0)
        zt_peer_reply_error(s->peer, wire_id, code, message);
}
