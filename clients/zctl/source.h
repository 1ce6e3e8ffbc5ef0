/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/source.h: where answers come from: a coordinator over the network, or its state folder
 * read in place (--state DIR, no daemon). The same requests, the same replies.
 *
 * The source owns its connection or database; an answer belongs to the caller until zt_answer_free.
 * One thread. */
#ifndef ZT_ZCTL_SOURCE_H
#define ZT_ZCTL_SOURCE_H
#include <sqlite3.h>
#include "clients/zctl/options.h"
#include "proto/auth.h"
#include "proto/session.h"

struct zt_source {
    sqlite3 *db;             /* --state */
    struct zt_call *call;    /* NULL: not connected (yet, or any more) */
    char host[256];
    int port;
    struct zt_token token;
    double timeout;          /* of a request, seconds */
    double deadline;         /* monotonic; 0 = none */
    bool lost_told;          /* "trying again" was said */
    bool reached;            /* it has answered a hello: a request may have arrived there */
};
struct zt_answer { Zt__Envelope *env; void *arena; bool local; };

int zt_source_open(const struct zt_options *o, struct zt_source *s, struct zt_error *err);
/* For a coordinator whose address and token are known (zctl run's own). */
void zt_source_at(struct zt_source *s, int port, const struct zt_token *token, double timeout);
void zt_source_close(struct zt_source *s);

/* One request. A request that changes something is refused when reading a state folder. */
int zt_source_ask(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a, struct zt_error *err);
/* The same, and a request that changes something is made again, with its request key so that it is
 * carried out once, when the coordinator goes away before it has answered: until s->deadline, or for
 * half a minute. A busy one is asked again until s->deadline. A coordinator that was not there to begin
 * with is not waited for. */
int zt_source_ask_surely(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a,
                         struct zt_error *err);
/* The same, but a coordinator that is away or busy is waited for (until s->deadline). Only for requests
 * that may be repeated. */
int zt_source_ask_patiently(struct zt_source *s, Zt__Envelope *req, struct zt_answer *a,
                            struct zt_error *err);
void zt_answer_free(struct zt_answer *a);

double zt_now(void);           /* CLOCK_MONOTONIC, seconds */
void zt_pause(double seconds); /* ends early on a signal */

#endif
