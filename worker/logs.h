/* SPDX-License-Identifier: Apache-2.0 */
/* worker/logs.h: a trainer's output that the coordinator has not acknowledged: whole lines with byte
 * offsets, stdout and stderr interleaved as they came, in bounded memory. Over the bound the oldest go
 * (the coordinator marks the gap by the offsets). Memory: the struct's own. One thread. */
#ifndef ZT_WORKER_LOGS_H
#define ZT_WORKER_LOGS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZW_LOGS_MAX ((size_t)1 << 20)
#define ZW_LINE_MAX ((size_t)8192)   /* a longer line goes in pieces */
#define ZW_LOG_CHUNK ((size_t)65536) /* of one LogAppend */
#define ZW_TAIL_MAX ((size_t)4096)

struct zw_log_piece;
struct zw_logs {
    struct zw_log_piece *first, *last;
    size_t bytes;           /* in pieces */
    uint64_t next;          /* offset of the next byte */
    uint64_t dropped;       /* bytes that went unsent */
    struct { char text[ZW_LINE_MAX]; size_t n; bool aged; } part[2]; /* lines not ended yet: out, err */
    char tail[ZW_TAIL_MAX]; /* newest bytes, for failure reports */
    size_t tail_n;
};
void zw_logs_init(struct zw_logs *l);
void zw_logs_free(struct zw_logs *l);
void zw_logs_feed(struct zw_logs *l, bool err, const char *data, size_t n);
void zw_logs_flush(struct zw_logs *l, bool err); /* what there is of a line */
void zw_logs_age(struct zw_logs *l);             /* flushes a part that has waited since the last call */
/* The oldest bytes of one stream, up to `max`; 0 when there are none. They stay until acknowledged. */
size_t zw_logs_peek(const struct zw_logs *l, char *out, size_t max, uint64_t *offset, bool *err);
void zw_logs_ack(struct zw_logs *l, uint64_t offset); /* everything below is durable */

#endif
