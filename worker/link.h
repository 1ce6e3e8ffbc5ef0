/* SPDX-License-Identifier: Apache-2.0 */
/* worker/link.h: the trainer's end of its channel to the supervisor.
 *
 * Frames to the supervisor go through a queue to a sending thread, so that nobody who trains waits for the
 * supervisor; a receiving thread takes what it sends: the assignment, answers, and the word to stop.
 * Any thread may call, but for open and close. Answers are matched to their questions by number: several
 * threads may ask at a time. No question waits for ever: it ends when the supervisor is gone. */
#ifndef ZT_WORKER_LINK_H
#define ZT_WORKER_LINK_H
#include <stdbool.h>
#include <stddef.h>
#include "core/error.h"
#include "proto/ztrain.pb-c.h"

struct zw_link;
int zw_link_open(int fd, struct zw_link **out, struct zt_error *err); /* fd stays the caller's */
/* Until everything is sent, at most FLUSH_S; then frees. No other call may be under way. */
void zw_link_close(struct zw_link *l);

/* The assignment; borrowed until close. ZT_ETIMEOUT after so many seconds. */
int zw_link_start(struct zw_link *l, double seconds, const Zt__TrainerStart **out, struct zt_error *err);

/* Queues a frame. ZT_EUNREACHABLE: the supervisor is gone. Waits only when the supervisor has not read for
 * so long that the queue is full (64 MiB). */
int zw_link_post(struct zw_link *l, const Zt__Envelope *env, struct zt_error *err);
size_t zw_link_queued(struct zw_link *l); /* bytes */
#define ZW_LINK_DETAIL ((size_t)32 << 20) /* queued bytes from which on detail is not worth a wait */

/* Sends env (request_id is set here) and waits for the answer, at most `seconds` (0: as long as it takes).
 * 0: *reply is there and its code is OK; free with zt_envelope_free(*reply, *arena). Else the code of the
 * answer with its message, ZT_ETIMEOUT, ZT_EUNREACHABLE, or ZT_ECANCELLED after zw_link_cancel. */
int zw_link_ask(struct zw_link *l, Zt__Envelope *env, double seconds, Zt__Envelope **reply, void **arena,
                struct zt_error *err);
/* Called about once a second while a question without a time limit waits; may be NULL. */
void zw_link_on_wait(struct zw_link *l, void (*fn)(void *arg), void *arg);
/* Ends every question without a time limit, now and later. */
void zw_link_cancel(struct zw_link *l);
bool zw_link_stopping(struct zw_link *l); /* the supervisor has asked this trainer to stop after its step */

#endif
