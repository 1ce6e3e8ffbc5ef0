/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/pack.c: rows of seq_len inputs made of the lines of a .jsonl file (the rules are in
 * data.h). The file is gone through once for where rows begin; a row is read again from there, by
 * the same rules, when it is wanted: memory is 24 bytes a row. Any thread. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/internal.h"

/* Goes through a file from some line on. */
struct walk {
    const struct zt_pack *p;
    struct zt_lines lines;
    struct zt_pack_count *count; /* may be NULL */
    struct zt_example e;         /* the line in hand */
    int64_t byte, line;          /* where it begins; its number */
    int64_t context,
        tokens; /* its first targets that do not count; all its tokens, after cutting */
};

static void see(const struct walk *w, struct zt_sight *s) {
    if (s->n++ == 0) snprintf(s->where, sizeof s->where, "%s:%" PRId64, w->p->path, w->lines.line);
}

static bool blank(const char *text, size_t n) {
    while (n > 0 && (text[n - 1] == ' ' || text[n - 1] == '\t')) n--;
    return n == 0;
}

/* False: nothing of the example would count. */
static bool measure(struct walk *w) {
    const struct zt_example *e = &w->e;
    int64_t room = w->p->seq_len + 1;
    bool cut = false;
    w->tokens = e->bytes[0] + e->bytes[1] + 1;
    /* The first token of all has nothing to be told from. */
    w->context = e->bytes[0] > 0 ? e->bytes[0] : 1;
    if (!e->text && w->tokens > room) {
        w->tokens = room;
        cut = true;
    }
    bool fits = w->context < w->tokens;
    if (!w->count) return fits;
    if (e->more_keys) see(w, &w->count->more_keys);
    if (!fits)
        see(w, &w->count->no_room);
    else if (cut)
        see(w, &w->count->cut);
    return fits;
}

/* The next line that has something; ZT_ENOTFOUND behind the last. */
static int next_example(struct walk *w, struct zt_error *err) {
    const char *text;
    size_t n;
    for (;;) {
        zt_example_free(&w->e);
        int rc = zt_lines_next(&w->lines, &text, &n, &w->byte, err);
        if (rc != ZT_OK) return rc;
        w->line = w->lines.line;
        if (blank(text, n)) {
            if (w->count) see(w, &w->count->empty_lines);
            continue;
        }
        rc = zt_example_parse(w->p->path, w->line, text, n, w->p->vocab_size, &w->e, err);
        if (rc != ZT_OK) return rc;
        if (measure(w)) return ZT_OK;
    }
}

static void begin(struct walk *w, const struct zt_pack *p, int64_t byte, int64_t line,
                  struct zt_pack_count *count) {
    *w = (struct walk){.p = p, .count = count};
    zt_lines_begin(&w->lines, p->sys, p->fd, p->path, byte, line);
}

static void end(struct walk *w) {
    zt_example_free(&w->e);
    zt_lines_end(&w->lines);
}

/* How many tokens of the line in hand, from `first` on, a row with `room` left takes; 0: it is
 * full. At least two: a token that ends a row as its only one would be no input and no target. */
static int64_t share(const struct walk *w, int64_t first, int64_t room) {
    int64_t left = w->tokens - first;
    if (left <= room) return left;
    return w->e.text && room >= 2 ? room : 0;
}

static int add_row(struct zt_row_index *x, struct zt_row_start start, struct zt_error *err) {
    if (x->n == x->room) {
        int64_t room = x->room ? 2 * x->room : 64;
        struct zt_row_start *bigger = realloc(x->row, (size_t)room * sizeof *bigger);
        if (!bigger) return zt_fail(err, ZT_ENOMEM, "no memory for the index of a .jsonl file");
        x->row = bigger;
        x->room = room;
    }
    x->row[x->n++] = start;
    return ZT_OK;
}

/* Inputs of a row with `used` tokens that are filling: its last token may be no input. */
static int64_t filling(const struct zt_pack *p, int64_t used) {
    return used < p->seq_len ? p->seq_len - used : 0;
}

/* Puts the line in hand into rows; *used tokens of the last one are taken. */
static int place(struct walk *w, struct zt_row_index *x, int64_t *used, struct zt_error *err) {
    int64_t whole = w->p->seq_len + 1;
    for (int64_t first = 0; first + 1 < w->tokens;) {
        int64_t take = share(w, first, whole - *used);
        if (take == 0 || x->n == 0) {
            int rc = add_row(x, (struct zt_row_start){w->byte, w->line - 1, first}, err);
            if (rc != ZT_OK) return rc;
            if (x->n > 1) w->count->padding += filling(w->p, *used);
            *used = 0;
            take = share(w, first, whole);
        }
        *used += take;
        first += take - 1; /* the last target becomes the next input */
    }
    return ZT_OK;
}

int zt_pack_index(const struct zt_pack *p, struct zt_row_index *index, struct zt_pack_count *count,
                  struct zt_error *err) {
    struct walk w;
    int64_t used = 0;
    int rc;
    *index = (struct zt_row_index){0};
    begin(&w, p, 0, 0, count);
    while ((rc = next_example(&w, err)) == ZT_OK) {
        if ((rc = place(&w, index, &used, err)) != ZT_OK) break;
        *(w.e.text ? &count->texts : &count->examples) += 1;
        count->supervised += w.tokens - w.context;
    }
    end(&w);
    if (index->n > 0) count->padding += filling(p, used);
    return rc == ZT_ENOTFOUND ? ZT_OK : rc;
}

/* ---- one row ---- */

static int32_t token(const struct walk *w, int64_t i) {
    const struct zt_example *e = &w->e;
    if (i < e->bytes[0]) return e->part[0][i];
    i -= e->bytes[0];
    return i < e->bytes[1] ? e->part[1][i] : ZT_END_TOKEN;
}

static float weight(const struct walk *w) {
    double n = (double)(w->tokens - w->context);
    return (float)(w->p->average == ZT_AVERAGE_SAMPLE ? 1 / n : 1 / sqrt(n));
}

/* `take` tokens of the line in hand, from `first` on, to place `at` of the row. */
static void put(const struct walk *w, const struct zt_row *row, int64_t at, int64_t first,
                int64_t take) {
    float own = row->weights ? weight(w) : 0;
    for (int64_t i = 0; i < take; i++) {
        int32_t v = token(w, first + i);
        if (at + i < w->p->seq_len) {
            row->tokens[at + i] = v;
            if (row->starts) row->starts[at + i] = (int32_t)at;
        }
        if (i == 0 || first + i < w->context) continue;
        row->targets[at + i - 1] = v;
        if (row->weights) row->weights[at + i - 1] = own;
    }
}

static void clear(const struct zt_row *row, int64_t seq_len) {
    for (int64_t i = 0; i < seq_len; i++) {
        row->tokens[i] = ZT_END_TOKEN;
        row->targets[i] = -1;
        if (row->starts) row->starts[i] = (int32_t)i;
        if (row->weights) row->weights[i] = 0;
    }
}

int zt_pack_row(const struct zt_pack *p, const struct zt_row_start *start, struct zt_row *row,
                struct zt_error *err) {
    struct walk w;
    int64_t used = 0, take, first = start->token, whole = p->seq_len + 1;
    int rc = ZT_OK;
    clear(row, p->seq_len);
    begin(&w, p, start->byte, start->line, NULL);
    while (whole - used >= 2 && (rc = next_example(&w, err)) == ZT_OK &&
           (take = share(&w, first, whole - used)) > 0) {
        put(&w, row, used, first, take);
        used += take;
        first = 0;
    }
    end(&w);
    row->padding = filling(p, used);
    return rc == ZT_ENOTFOUND ? ZT_OK : rc;
}
