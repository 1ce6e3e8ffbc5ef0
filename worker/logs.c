/* SPDX-License-Identifier: Apache-2.0 */
/* worker/logs.c: see logs.h. */
#include "worker/logs.h"

#include <stdlib.h>
#include <string.h>

#define PIECE_MAX ((size_t)16384)

struct zw_log_piece { struct zw_log_piece *next; uint64_t offset; bool err; size_t n; char data[]; };

void zw_logs_init(struct zw_logs *l)
{
    memset(l, 0, sizeof(*l));
}

static void drop_first(struct zw_logs *l)
{
    struct zw_log_piece *p = l->first;
    l->first = p->next;
    if (!l->first) {
        l->last = NULL;
    }
    l->bytes -= p->n;
    free(p);
}

void zw_logs_free(struct zw_logs *l)
{
    while (l->first) {
        drop_first(l);
    }
}

static void tail_add(struct zw_logs *l, const char *data, size_t n)
{
    if (n > ZW_TAIL_MAX) {
        data += n - ZW_TAIL_MAX;
        n = ZW_TAIL_MAX;
    }
    if (l->tail_n + n > ZW_TAIL_MAX) {
        size_t drop = l->tail_n + n - ZW_TAIL_MAX;
        memmove(l->tail, l->tail + drop, l->tail_n - drop);
        l->tail_n -= drop;
    }
    memcpy(l->tail + l->tail_n, data, n);
    l->tail_n += n;
}

/* n <= ZW_LINE_MAX */
static void append(struct zw_logs *l, bool err, const char *data, size_t n)
{
    struct zw_log_piece *p = l->last;
    if (n == 0) {
        return;
    }
    tail_add(l, data, n);
    if (!p || p->err != err || p->n + n > PIECE_MAX) {
        p = malloc(sizeof(*p) + PIECE_MAX);
        if (!p) {
            l->dropped += n;
            l->next += n;
            return;
        }
        *p = (struct zw_log_piece){.offset = l->next, .err = err};
        *(l->last ? &l->last->next : &l->first) = p;
        l->last = p;
    }
    memcpy(p->data + p->n, data, n);
    p->n += n;
    l->bytes += n;
    l->next += n;
    while (l->bytes > ZW_LOGS_MAX) {
        l->dropped += l->first->n;
        drop_first(l);
    }
}

void zw_logs_flush(struct zw_logs *l, bool err)
{
    append(l, err, l->part[err].text, l->part[err].n);
    l->part[err].n = 0;
    l->part[err].aged = false;
}

void zw_logs_feed(struct zw_logs *l, bool err, const char *data, size_t n)
{
    while (n > 0) {
        const char *end = memchr(data, '\n', n);
        size_t take = end ? (size_t)(end - data) + 1 : n;
        size_t room = ZW_LINE_MAX - l->part[err].n;
        if (take > room) {
            take = room;
            end = NULL;
        }
        memcpy(l->part[err].text + l->part[err].n, data, take);
        l->part[err].n += take;
        if (end || l->part[err].n == ZW_LINE_MAX) {
            zw_logs_flush(l, err);
        }
        data += take;
        n -= take;
    }
}

void zw_logs_age(struct zw_logs *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->part[i].aged) {
            zw_logs_flush(l, i == 1);
        } else {
            l->part[i].aged = l->part[i].n > 0;
        }
    }
}

size_t zw_logs_peek(const struct zw_logs *l, char *out, size_t max, uint64_t *offset, bool *err)
{
    size_t n = 0;
    const struct zw_log_piece *p = l->first;
    if (!p) {
        return 0;
    }
    *offset = p->offset;
    *err = p->err;
    for (; p && p->err == *err && p->offset == *offset + n && n < max; p = p->next) {
        size_t take = p->n < max - n ? p->n : max - n;
        memcpy(out + n, p->data, take);
        n += take;
    }
    return n;
}

void zw_logs_ack(struct zw_logs *l, uint64_t offset)
{
    while (l->first && l->first->offset + l->first->n <= offset) {
        drop_first(l);
    }
    struct zw_log_piece *p = l->first;
    if (p && p->offset < offset) {
        size_t cut = (size_t)(offset - p->offset);
        memmove(p->data, p->data + cut, p->n - cut);
        p->offset += cut;
        p->n -= cut;
        l->bytes -= cut;
    }
}
