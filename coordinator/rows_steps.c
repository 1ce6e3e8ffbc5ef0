/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/rows_steps.c: step reports become rows per rank, peaks by window, and roll-ups over ranks
 * (rows.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/rollup.h"
#include "coordinator/rows_internal.h"

static int spec_numbers(struct zt_writer *w, const char *run_id, struct zt_error *err)
{
    if (strcmp(w->spec.run_id, run_id) == 0)
        return 0;
    bool found;
    int64_t keep = 0, warmup = 0;
    w_text(w->q[Q_SPEC_NUMBERS], 1, run_id);
    if (w_two(w, Q_SPEC_NUMBERS, 0, &keep, &warmup, &found, err))
        return err->code;
    if (!found)
        return zt_fail(err, ZT_ENOTFOUND, "no run %s", run_id);
    snprintf(w->spec.run_id, sizeof w->spec.run_id, "%s", run_id);
    w->spec.keep = keep;
    w->spec.warmup = warmup;
    return 0;
}

static int touch(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    if (w->n_touched == w->cap_touched) {
        size_t cap = w->cap_touched ? w->cap_touched * 2 : 256;
        struct touched *t = realloc(w->touched, cap * sizeof *t);
        if (!t)
            return zt_fail(err, ZT_ENOMEM, "out of memory");
        w->touched = t;
        w->cap_touched = cap;
    }
    struct touched *t = &w->touched[w->n_touched++];
    snprintf(t->run_id, sizeof t->run_id, "%s", run_id);
    t->step = step;
    return 0;
}

struct window { int64_t generation, step, allocated, reserved; bool found; };

static int window_get(struct zt_writer *w, const char *run_id, uint32_t rank, const char *name, struct window *o,
                      struct zt_error *err)
{
    sqlite3_stmt *s = w->q[Q_WINDOW_GET];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, rank);
    w_text(s, 3, name);
    int rc = sqlite3_step(s), code = 0;
    o->found = rc == SQLITE_ROW;
    if (o->found) {
        o->generation = sqlite3_column_int64(s, 0);
        o->step = sqlite3_column_int64(s, 1);
        o->allocated = sqlite3_column_int64(s, 2);
        o->reserved = sqlite3_column_int64(s, 3);
    } else if (rc != SQLITE_DONE) {
        code = zt_db_fail(err, w->db, "window peak");
    }
    sqlite3_reset(s);
    return code;
}

static int window_put(struct zt_writer *w, const char *run_id, const Zt__StepReport *r, const char *name,
                      const Zt__WindowPeak *p, int64_t reserved, struct zt_error *err)
{
    size_t n = zt__window_peak__get_packed_size(p);
    uint8_t *packed = malloc(n ? n : 1);
    if (!packed)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    zt__window_peak__pack(p, packed);
    sqlite3_stmt *s = w->q[Q_WINDOW_PUT];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->rank);
    w_text(s, 3, name);
    sqlite3_bind_int64(s, 4, r->generation);
    sqlite3_bind_int64(s, 5, r->step);
    sqlite3_bind_int64(s, 6, p->peak_allocated_bytes);
    sqlite3_bind_int64(s, 7, reserved);
    w_blob(s, 8, packed, n);
    int code = w_done(w, Q_WINDOW_PUT, "window peak", err);
    free(packed);
    return code;
}

/* keep_max: the window's highest peak stays (steady, eval); otherwise the newest report replaces it. The
 * reserved peak is a maximum of its own: it need not belong to the step of the allocated one. */
static int window_offer(struct zt_writer *w, const char *run_id, const Zt__StepReport *r, const char *name,
                        const Zt__WindowPeak *p, bool keep_max, struct zt_error *err)
{
    struct window o;
    if (window_get(w, run_id, r->rank, name, &o, err))
        return err->code;
    int64_t reserved = p->peak_reserved_bytes;
    if (o.found && o.generation > r->generation)
        return 0;
    if (o.found && o.generation == r->generation && keep_max) {
        if (o.reserved > reserved)
            reserved = o.reserved;
        if (p->peak_allocated_bytes <= o.allocated) {
            if (reserved == o.reserved)
                return 0;
            sqlite3_stmt *s = w->q[Q_WINDOW_RESERVED];
            w_text(s, 1, run_id);
            sqlite3_bind_int64(s, 2, r->rank);
            w_text(s, 3, name);
            sqlite3_bind_int64(s, 4, reserved);
            return w_done(w, Q_WINDOW_RESERVED, "window peak", err);
        }
    }
    return window_put(w, run_id, r, name, p, reserved, err);
}

/* Windows of decision D6. The first step of a generation is the lowest one the rank reported in it. */
static int put_windows(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const Zt__StepReport *col = &c->u.step.columns;
    const char *run_id = c->u.step.run_id;
    struct window first, steady;
    if (window_get(w, run_id, col->rank, "first_step", &first, err) || spec_numbers(w, run_id, err))
        return err->code;
    if (first.found && first.generation > col->generation)
        return 0;
    bool is_first = !first.found || first.generation < col->generation || col->step <= first.step;
    bool is_steady = !is_first && col->step - first.step >= w->spec.warmup;
    if (is_first && w->spec.warmup == 0)
        is_steady = true;
    bool has_peak = col->has_peak_allocated_bytes && col->has_peak_reserved_bytes;
    bool step_peak = has_peak && is_first;
    if (has_peak && is_steady) {
        if (window_get(w, run_id, col->rank, "steady", &steady, err))
            return err->code;
        step_peak = step_peak || !steady.found || steady.generation < col->generation ||
                    col->peak_allocated_bytes > steady.allocated || col->peak_reserved_bytes > steady.reserved;
    }
    if (!step_peak && !c->u.step.has_init && !c->u.step.has_eval && !c->u.step.has_save && !c->u.step.has_load)
        return 0;
    Zt__StepReport *r = zt__step_report__unpack(NULL, c->u.step.bytes, c->u.step.packed);
    if (!r)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    Zt__TagBytes none = ZT__TAG_BYTES__INIT;
    Zt__WindowPeak p = ZT__WINDOW_PEAK__INIT;
    p.peak_allocated_bytes = r->peak_allocated_bytes;
    p.peak_reserved_bytes = r->peak_reserved_bytes;
    p.phase_of_peak = r->phase_of_peak ? r->phase_of_peak : (char *)"";
    p.at_peak = r->at_peak ? r->at_peak : &none;
    p.persistent = r->persistent;
    int code = 0;
    if (r->init_peak)
        code = window_offer(w, run_id, r, "init", r->init_peak, false, err);
    if (!code && has_peak && is_first)
        code = window_offer(w, run_id, r, "first_step", &p, false, err);
    if (!code && step_peak && is_steady)
        code = window_offer(w, run_id, r, "steady", &p, true, err);
    if (!code && r->eval_peak)
        code = window_offer(w, run_id, r, "eval", r->eval_peak, true, err);
    if (!code && r->save_peak)
        code = window_offer(w, run_id, r, "save", r->save_peak, true, err);
    if (!code && r->load_peak)
        code = window_offer(w, run_id, r, "load", r->load_peak, false, err);
    zt__step_report__free_unpacked(r, NULL);
    return code;
}

int w_step(struct zt_writer *w, const struct change *c, struct zt_error *err)
{
    const Zt__StepReport *r = &c->u.step.columns;
    const char *run_id = c->u.step.run_id;
    int64_t row = -1, rollup = -1;
    bool found;
    sqlite3_stmt *s = w->q[Q_STEP_OLD];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int64(s, 3, r->rank);
    if (w_two(w, Q_STEP_OLD, -1, &row, &rollup, &found, err))
        return err->code;
    if (row > (int64_t)r->generation)
        return 0; /* an older generation never replaces a newer row */
    if (row < 0 && rollup >= (int64_t)r->generation)
        return 0; /* a late repeat of a row that was counted and trimmed since */
    s = w->q[Q_STEP];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, r->step);
    sqlite3_bind_int64(s, 3, r->rank);
    sqlite3_bind_int64(s, 4, r->generation);
    w_real(s, 5, r->has_loss, r->loss);
    w_number(s, 6, r->has_tokens, r->tokens);
    w_real(s, 7, r->has_step_seconds, r->step_seconds);
    w_real(s, 8, r->has_exposed_comm_seconds, r->exposed_comm_seconds);
    w_number(s, 9, r->has_peak_allocated_bytes, r->peak_allocated_bytes);
    w_number(s, 10, r->has_peak_reserved_bytes, r->peak_reserved_bytes);
    w_blob(s, 11, c->u.step.packed, c->u.step.bytes);
    w_real(s, 12, r->has_loss_scale, r->loss_scale);
    w_number(s, 13, r->has_skipped, r->skipped);
    if (w_done(w, Q_STEP, "step row", err) || put_windows(w, c, err))
        return err->code;
    return touch(w, run_id, r->step, err);
}

static int put_rollup(struct zt_writer *w, const char *run_id, const struct zt_rollup *r, int64_t wall_ms,
                      struct zt_error *err)
{
    const Zt__StepReport *p = &r->report;
    size_t n = zt__step_report__get_packed_size(p);
    uint8_t *packed = malloc(n ? n : 1);
    if (!packed)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    zt__step_report__pack(p, packed);
    sqlite3_stmt *s = w->q[Q_ROLLUP];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, p->step);
    sqlite3_bind_int64(s, 3, p->generation);
    sqlite3_bind_int64(s, 4, (int64_t)r->ranks);
    sqlite3_bind_int64(s, 5, wall_ms);
    w_real(s, 6, p->has_loss, p->loss);
    w_number(s, 7, p->has_tokens, p->tokens);
    w_real(s, 8, r->tokens_per_second >= 0, r->tokens_per_second);
    w_real(s, 9, p->has_step_seconds, p->step_seconds);
    w_real(s, 10, r->has_mean_step, r->mean_step_seconds);
    w_real(s, 11, p->has_exposed_comm_seconds, p->exposed_comm_seconds);
    w_real(s, 12, r->has_mean_exposed, r->mean_exposed_comm_seconds);
    w_number(s, 13, p->has_peak_allocated_bytes, p->peak_allocated_bytes);
    w_number(s, 14, p->has_peak_reserved_bytes, p->peak_reserved_bytes);
    w_number(s, 15, r->has_peak, r->peak_rank);
    w_blob(s, 16, packed, n);
    w_real(s, 17, p->has_clip_coefficient, p->clip_coefficient);
    w_real(s, 18, p->has_loss_scale, p->loss_scale);
    w_number(s, 19, p->has_skipped, p->skipped);
    w_number(s, 20, p->has_skipped_steps, p->skipped_steps);
    int code = w_done(w, Q_ROLLUP, "roll-up", err);
    free(packed);
    if (code)
        return code;
    s = w->q[Q_PROGRESS];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, p->generation);
    sqlite3_bind_int64(s, 3, p->step);
    w_real(s, 4, p->has_loss, p->loss);
    w_real(s, 5, r->tokens_per_second >= 0, r->tokens_per_second);
    w_number(s, 6, p->has_peak_allocated_bytes, p->peak_allocated_bytes);
    w_real(s, 7, r->has_mean_step && r->has_mean_exposed && r->mean_step_seconds > 0,
         r->mean_step_seconds > 0 ? r->mean_exposed_comm_seconds / r->mean_step_seconds : 0);
    sqlite3_bind_int64(s, 8, wall_ms);
    w_real(s, 9, p->has_loss_scale, p->loss_scale);
    w_number(s, 10, p->has_skipped_steps, p->skipped_steps);
    return w_done(w, Q_PROGRESS, "run progress", err);
}

/* Normally exactly one step falls out of the window; every hundredth time all that was left behind is swept. */
static int trim(struct zt_writer *w, const char *run_id, int64_t step, struct zt_error *err)
{
    if (spec_numbers(w, run_id, err))
        return err->code;
    int64_t upto = step - w->spec.keep;
    if (upto < 1)
        return 0;
    sqlite3_stmt *s = w->q[Q_TRIM];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, step % 100 == 0 || upto <= 10 ? 0 : upto - 10);
    sqlite3_bind_int64(s, 3, upto);
    return w_done(w, Q_TRIM, "trimming step rows", err);
}

static int roll_up(struct zt_writer *w, const char *run_id, int64_t step, int64_t wall_ms, struct zt_error *err)
{
    int64_t generation = 0, count = 0, world = 0, tensor = 1;
    bool found;
    w_text(w->q[Q_STEP_COUNT], 1, run_id);
    sqlite3_bind_int64(w->q[Q_STEP_COUNT], 2, step);
    if (w_two(w, Q_STEP_COUNT, 0, &generation, &count, &found, err))
        return err->code;
    if (!found)
        return 0;
    w_text(w->q[Q_WORLD], 1, run_id);
    sqlite3_bind_int64(w->q[Q_WORLD], 2, generation);
    if (w_two(w, Q_WORLD, 0, &world, &tensor, &found, err))
        return err->code;
    if (!found || count < world)
        return 0;

    Zt__StepReport **reports = calloc((size_t)count, sizeof *reports);
    struct zt_rollup *r = malloc(sizeof *r);
    size_t n = 0;
    int code = reports && r ? 0 : zt_fail(err, ZT_ENOMEM, "out of memory");
    sqlite3_stmt *s = w->q[Q_STEP_ROWS];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_int64(s, 3, generation);
    int rc = SQLITE_DONE;
    while (!code && (rc = sqlite3_step(s)) == SQLITE_ROW && n < (size_t)count) {
        reports[n] = zt__step_report__unpack(NULL, (size_t)sqlite3_column_bytes(s, 0), sqlite3_column_blob(s, 0));
        if (!reports[n])
            code = zt_fail(err, ZT_EIO, "a stored report of run %s step %" PRId64 " cannot be read", run_id, step);
        else
            n++;
    }
    if (!code && rc != SQLITE_DONE && rc != SQLITE_ROW)
        code = zt_db_fail(err, w->db, "roll-up");
    sqlite3_reset(s);
    if (!code) {
        zt_rollup_make(r, reports, n, tensor < 1 ? 1 : (int)tensor);
        code = put_rollup(w, run_id, r, wall_ms, err);
    }
    for (size_t i = 0; i < n; i++)
        zt__step_report__free_unpacked(reports[i], NULL);
    free(reports);
    free(r);
    if (code)
        return code;
    s = w->q[Q_STEP_STALE];
    w_text(s, 1, run_id);
    sqlite3_bind_int64(s, 2, step);
    sqlite3_bind_int64(s, 3, generation);
    return w_done(w, Q_STEP_STALE, "step rows of an older generation", err) ? err->code : trim(w, run_id, step, err);
}

static int by_run_and_step(const void *a, const void *b)
{
    const struct touched *x = a, *y = b;
    int c = strcmp(x->run_id, y->run_id);
    return c ? c : (x->step > y->step) - (x->step < y->step);
}

int zt_writer_finish(struct zt_writer *w, int64_t wall_ms, struct zt_error *err)
{
    if (w->n_touched > 1)
        qsort(w->touched, w->n_touched, sizeof *w->touched, by_run_and_step);
    for (size_t i = 0; i < w->n_touched; i++) {
        if (i > 0 && by_run_and_step(&w->touched[i - 1], &w->touched[i]) == 0)
            continue;
        if (roll_up(w, w->touched[i].run_id, w->touched[i].step, wall_ms, err))
            return err->code;
    }
    return 0;
}

bool zt_writer_saves(const struct zt_writer *w) { return w->saves; }

void zt_writer_forget(struct zt_writer *w)
{
    w->saves = false;
    w->n_touched = 0;
    w->spec.run_id[0] = 0;
}
