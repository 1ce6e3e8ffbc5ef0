/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/status.c: `zctl status`: the cluster, or one run in detail. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"

static bool some(const char *s) { return s && s[0]; }

const struct zt_column zt_run_columns[] = {
    {"ID", "run", ZT_CELL_TEXT, 0},
    {"NAME", "name", ZT_CELL_TEXT, 0},
    {"STATE", "state", ZT_CELL_TEXT, 0},
    {"STEP", "step", ZT_CELL_COUNT, 0},
    {"STEPS", "steps", ZT_CELL_COUNT, 0},
    {"LOSS", "loss", ZT_CELL_FIXED, 4},
    {"TOK/S", "tokens_per_second", ZT_CELL_COUNT, 0},
    {"MEM", "peak_allocated_bytes", ZT_CELL_BYTES, 0},
    {"COMM", "exposed_share", ZT_CELL_SHARE, 0},
    {"AGE", "submitted", ZT_CELL_AGE, 0},
    {"GEN", "generation", ZT_CELL_COUNT, 0},
    {"REASON", "reason", ZT_CELL_TEXT, 0},
    {"DETAIL", "detail", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static const struct zt_column rank_columns[] = {
    {"RANK", "rank", ZT_CELL_COUNT, 0},
    {"LOCAL", "local_rank", ZT_CELL_COUNT, 0},
    {"WORKER", "worker", ZT_CELL_TEXT, 0},
    {"HOST", "host", ZT_CELL_TEXT, 0},
    {"DEVICE", "device", ZT_CELL_TEXT, 0},
    {"REP", "coords.replicate", ZT_CELL_COUNT, 0},
    {"SHARD", "coords.shard", ZT_CELL_COUNT, 0},
    {"TP", "coords.tensor", ZT_CELL_COUNT, 0},
    {"STEP", "step", ZT_CELL_COUNT, 0},
    {"STATE", "state", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static const struct zt_column attempt_columns[] = {
    {"GEN", "generation", ZT_CELL_COUNT, 0},
    {"REASON", "reason", ZT_CELL_TEXT, 0},
    {"RANK", "rank", ZT_CELL_COUNT, 0},
    {"STEP", "last_step", ZT_CELL_COUNT, 0},
    {"DETECT", "detect_seconds", ZT_CELL_SECONDS, 0},
    {"STOP", "stop_seconds", ZT_CELL_SECONDS, 0},
    {"START", "start_seconds", ZT_CELL_SECONDS, 0},
    {"FORM", "form_seconds", ZT_CELL_SECONDS, 0},
    {"LOAD", "load_seconds", ZT_CELL_SECONDS, 0},
    {"FROM", "start_step", ZT_CELL_COUNT, 0},
    {"REDONE", "steps_redone", ZT_CELL_COUNT, 0},
    {"WORKER", "worker", ZT_CELL_TEXT, 0},
    {"MESSAGE", "message", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static void print_progress(FILE *out, const Zt__RunSummary *s) {
    char a[32], b[32];
    if (!s->has_step)
        return;
    fprintf(out, "   step %s", zt_format_count(s->step, a, sizeof a));
    if (s->has_steps && s->steps > 0)
        fprintf(out, "/%s (%.1f %%)", zt_format_count(s->steps, b, sizeof b),
                100.0 * (double)s->step / (double)s->steps);
}

static void print_now(FILE *out, const Zt__RunSummary *s) {
    char a[32];
    if (!s->has_loss && !s->has_tokens_per_second && !s->has_peak_allocated_bytes)
        return;
    fputs("now     ", out);
    if (s->has_loss)
        fprintf(out, "  loss %.4f", s->loss);
    if (s->has_tokens_per_second)
        fprintf(out, "  %s tok/s", zt_format_count((int64_t)s->tokens_per_second, a, sizeof a));
    if (s->has_peak_allocated_bytes)
        fprintf(out, "  peak allocated %s", zt_format_bytes((double)s->peak_allocated_bytes, a, sizeof a));
    if (s->has_exposed_share)
        fprintf(out, "  exposed comm %.1f %%", 100 * s->exposed_share);
    if (s->has_loss_scale)
        fprintf(out, "  loss scale %g", s->loss_scale);
    if (s->has_skipped_steps && s->skipped_steps > 0)
        fprintf(out, "  steps skipped %s", zt_format_count(s->skipped_steps, a, sizeof a));
    fputc('\n', out);
}

/* Why the generation before this one ended, while the run itself has nothing to explain. */
static void print_restart(FILE *out, const Zt__RunDetail *d) {
    const Zt__Attempt *a = NULL;
    for (size_t i = 0; i < d->n_attempts; i++)
        if (some(d->attempts[i]->reason))
            a = d->attempts[i];
    if (!a || some(d->summary->reason))
        return;
    fprintf(out, "   last restart: %s", a->reason);
    if (a->has_rank && a->rank >= 0)
        fprintf(out, " rank %d", a->rank);
}

/* "step 1,000 (generation 2) committed, 23.40 GiB in 8 shards, verified, pinned". */
static void print_committed(FILE *out, const Zt__Checkpoint *c) {
    char a[40], b[40];
    fprintf(out, "step %s (generation %u) committed", zt_format_count(c->step, a, sizeof a), c->generation);
    if (c->has_created_ms && c->created_ms > 0) {
        json_t *row = json_object();
        static const struct zt_column age = {"", "created", ZT_CELL_AGE, 0};
        json_object_set_new(row, "created", zt_json_time(c->created_ms));
        fprintf(out, " %s ago", zt_cell_text(row, &age, b, sizeof b));
        json_decref(row);
    }
    if (c->has_bytes)
        fprintf(out, ", %s", zt_format_bytes((double)c->bytes, a, sizeof a));
    if (c->has_world)
        fprintf(out, " in %u shard%s", c->world, c->world == 1 ? "" : "s");
    fprintf(out, "%s%s", c->has_verified && c->verified ? ", verified" : "", c->has_pinned && c->pinned ? ", pinned" : "");
}

/* The step after which the next one is due; 0: none. */
static int64_t next_save(const struct zt_spec *spec, const Zt__RunSummary *s) {
    int64_t at = s->has_step ? s->step : 0, last = s->has_steps ? s->steps : spec->training.steps;
    int64_t next = (at / spec->checkpoint.interval + 1) * spec->checkpoint.interval;
    if (last > 0 && next > last)
        next = last;
    return zt_exit_of_state(s->state) < 0 && next > at ? next : 0;
}

/* What a restart would go on from, what is being saved, what this run itself went on from. */
static void print_checkpoints(FILE *out, const Zt__RunDetail *d) {
    static struct zt_spec spec;
    struct zt_error err;
    const Zt__Checkpoint *c = d->checkpoint, *w = d->saving;
    char a[40];
    bool known = some(d->normalised) &&
                 zt_spec_parse(d->normalised, strlen(d->normalised), "the stored run file", NULL, 0, &spec, &err) == 0;
    bool saves = known && spec.checkpoint.enabled;
    fputs("ckpt     ", out);
    if (c)
        print_committed(out, c);
    else if (known && !saves)
        fputs("none: the run file has no section checkpoint; a restart begins at step 0", out);
    else
        fputs("none yet; a restart begins at step 0", out);
    int64_t next = saves ? next_save(&spec, d->summary) : 0;
    if (next > 0)
        fprintf(out, "; next after step %s", zt_format_count(next, a, sizeof a));
    if (saves && strcmp(d->summary->state, "SUCCEEDED") == 0 && d->summary->has_step && (!c || c->step < d->summary->step))
        fprintf(out, "; the last step, %s, is not saved: zctl events says why", zt_format_count(d->summary->step, a, sizeof a));
    fputc('\n', out);
    if (w) {
        fprintf(out, "saving   step %s", zt_format_count(w->step, a, sizeof a));
        if (w->has_world)
            fprintf(out, ": %u of %u parts are in", w->has_shards ? w->shards : 0, w->world);
        fputc('\n', out);
    }
    if (some(d->resumed_from)) {
        char *safe = zt_escape(d->resumed_from, strlen(d->resumed_from), false);
        fprintf(out, "from     %s\n", safe ? safe : "");
        free(safe);
    }
    if (known)
        zt_spec_free(&spec);
}

void zt_print_run(FILE *out, const struct zt_options *o, const Zt__RunDetail *d) {
    const Zt__RunSummary *s = d->summary;
    struct zt_error err;
    bool color = zt_color_on(o, out);
    char line[1024];
    json_t *j = zt_json_run(d);
    fprintf(out, "run      %s   %s   %s%s%s", s->run_id, s->name, zt_state_color(s->state, color), s->state,
            ZT_COLOR_RESET(color));
    print_progress(out, s);
    fputc('\n', out);
    if (some(s->reason) || some(s->detail))
        fprintf(out, "because  %s\n", zt_state_line(d, line, sizeof line));
    if (d->replicate * d->shard * d->tensor > 0)
        fprintf(out, "mesh     replicate %u x shard %u x tensor %u = %u ranks   generation %u\n", d->replicate,
                d->shard, d->tensor, d->replicate * d->shard * d->tensor,
                s->has_generation ? s->generation : 0);
    print_now(out, s);
    zt_print_memory_lines(out, d);
    print_checkpoints(out, d);
    if (some(d->parameter_hash))
        fprintf(out, "hash     %s\n", d->parameter_hash);
    if (d->has_max_restarts) {
        fprintf(out, "attempts %u   restarts counted %u of %u", s->has_attempt ? s->attempt : 0,
                d->has_restarts_counted ? d->restarts_counted : 0, d->max_restarts);
        print_restart(out, d);
        fputc('\n', out);
    }
    if (d->n_ranks > 0) {
        fputc('\n', out);
        zt_print_table(out, json_object_get(j, "ranks"), rank_columns, &err);
    }
    if (d->n_attempts > 1 || (d->n_attempts == 1 && some(d->attempts[0]->reason))) {
        fputc('\n', out);
        zt_print_table(out, json_object_get(j, "attempts"), attempt_columns, &err);
    }
    json_decref(j);
}

static int status_run(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err;
    int rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = zt_fetch_run(&s, o->subject, false, &a, &err);
    if (rc) {
        zt_source_close(&s);
        return zt_report(rc, &err);
    }
    if (o->format == ZT_FORMAT_TABLE) {
        zt_print_run(stdout, o, a.env->run_detail);
    } else {
        json_t *j = zt_json_run(a.env->run_detail), *rows = json_array();
        json_array_append(rows, j);
        rc = zt_print_rows(stdout, o, j, rows, zt_run_columns, &err);
        json_decref(rows);
        json_decref(j);
    }
    return zt_ask_end(&s, &a, rc, &err);
}

int zt_cmd_status(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err = {0};
    Zt__GetStatus get = ZT__GET_STATUS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    if (o->subject)
        return status_run(o);
    req.body_case = ZT__ENVELOPE__BODY_GET_STATUS;
    req.get_status = &get;
    int rc = zt_ask_once(o, &s, &req, &a);
    if (rc)
        return rc;
    const Zt__ClusterStatus *c = a.env->cluster_status;
    json_t *j = zt_json_cluster(c), *runs = json_object_get(j, "runs");
    if (o->format == ZT_FORMAT_TABLE) {
        printf("workers  %u idle, %u busy, %u lost   runs active: %zu   coordinator %s, start %llu\n",
               c->workers_idle, c->workers_busy, c->workers_lost, c->n_runs, c->version,
               (unsigned long long)c->epoch);
        if (c->n_runs == 0)
            puts("no run is active; zctl list shows those that have ended");
    }
    if (o->format != ZT_FORMAT_TABLE || c->n_runs > 0)
        rc = zt_print_rows(stdout, o, j, runs, zt_run_columns, &err);
    json_decref(j);
    return zt_ask_end(&s, &a, rc, &err);
}
