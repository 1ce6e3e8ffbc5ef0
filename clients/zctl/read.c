/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/read.c: the commands that ask once and print: list, workers, metrics, cancel, version;
 * status is in status.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"

/* ---------------------------------------------------------------------------------- messages */

static int report(const char *prefix, int code, const struct zt_error *err) {
    for (const char *p = err->msg;;) {
        size_t n = strcspn(p, "\n");
        char *line = zt_escape(p, n, false);
        fprintf(stderr, "%s%s\n", prefix, line ? line : "");
        free(line);
        if (p[n] == '\0')
            break;
        p += n + 1;
    }
    return zt_exit_code(code);
}

int zt_report(int code, const struct zt_error *err) { return report("zctl: ", code, err); }

int zt_report_bare(int code, const struct zt_error *err) { return report("", code, err); }

int zt_exit_of_state(const char *state) {
    if (strcmp(state, "SUCCEEDED") == 0)
        return ZT_EXIT_OK;
    if (strcmp(state, "FAILED") == 0)
        return ZT_EXIT_FAILED;
    return strcmp(state, "CANCELLED") == 0 ? ZT_EXIT_CANCELLED : -1;
}

static bool some(const char *s) { return s && s[0]; }

const char *zt_state_line(const Zt__RunDetail *d, char *buf, size_t n) {
    const Zt__RunSummary *s = d->summary;
    const char *message = s->detail;
    if (!some(message) && d->n_attempts > 0)
        message = d->attempts[d->n_attempts - 1]->message;
    char *safe = zt_escape(some(message) ? message : "", some(message) ? strlen(message) : 0, false);
    bool reason = some(s->reason) && strcmp(s->reason, "NONE") != 0;
    snprintf(buf, n, "%s%s%s%s%s", s->state, reason ? ": " : "", reason ? s->reason : "",
             safe && safe[0] ? ": " : "", safe ? safe : "");
    free(safe);
    return buf;
}

/* ---------------------------------------------------------------------------------- requests */

int zt_ask_once(const struct zt_options *o, struct zt_source *s, Zt__Envelope *req, struct zt_answer *a) {
    struct zt_error err;
    int rc = zt_source_open(o, s, &err);
    if (rc == 0)
        rc = zt_source_ask_surely(s, req, a, &err);
    if (rc == 0)
        return 0;
    zt_source_close(s);
    return zt_report(rc, &err);
}

int zt_ask_end(struct zt_source *s, struct zt_answer *a, int rc, const struct zt_error *err) {
    zt_answer_free(a);
    zt_source_close(s);
    return rc ? zt_report(rc, err) : ZT_EXIT_OK;
}

/* An object with one list in it, for -o json. */
static json_t *wrap(const char *key, json_t *list) {
    json_t *o = json_object();
    json_object_set(o, key, list);
    return o;
}

int zt_fetch_run(struct zt_source *s, const char *run, bool patient, struct zt_answer *a,
                 struct zt_error *err) {
    Zt__GetRun get = ZT__GET_RUN__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    get.run = (char *)(uintptr_t)run;
    req.body_case = ZT__ENVELOPE__BODY_GET_RUN;
    req.get_run = &get;
    int rc = patient ? zt_source_ask_patiently(s, &req, a, err) : zt_source_ask(s, &req, a, err);
    if (rc == 0 && a->env->body_case != ZT__ENVELOPE__BODY_RUN_DETAIL) {
        zt_answer_free(a);
        rc = zt_fail(err, ZT_EPROTO, "the coordinator answered get_run with something else");
    }
    return rc;
}

/* ---------------------------------------------------------------------------------- list, workers */

int zt_cmd_list(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err = {0};
    Zt__ListRuns list = ZT__LIST_RUNS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    list.has_limit = o->limit > 0;
    list.limit = (uint32_t)o->limit;
    list.has_active_only = o->active;
    list.active_only = o->active;
    req.body_case = ZT__ENVELOPE__BODY_LIST_RUNS;
    req.list_runs = &list;
    int rc = zt_ask_once(o, &s, &req, &a);
    if (rc)
        return rc;
    json_t *rows = json_array();
    for (size_t i = 0; i < a.env->run_list->n_runs; i++)
        json_array_append_new(rows, zt_json_summary(a.env->run_list->runs[i]));
    json_t *j = wrap("runs", rows);
    rc = zt_print_rows(stdout, o, j, rows, zt_run_columns, &err);
    json_decref(j);
    json_decref(rows);
    return zt_ask_end(&s, &a, rc, &err);
}

int zt_cmd_workers(const struct zt_options *o) {
    static const struct zt_column columns[] = {
        {"WORKER", "worker", ZT_CELL_TEXT, 0},
        {"HOST", "host", ZT_CELL_TEXT, 0},
        {"ADDRESS", "address", ZT_CELL_TEXT, 0},
        {"DEVICE", "device", ZT_CELL_TEXT, 0},
        {"STATE", "state", ZT_CELL_TEXT, 0},
        {"MEMORY", "capacity_bytes", ZT_CELL_BYTES, 0},
        {"THREADS", "threads", ZT_CELL_COUNT, 0},
        {"RANK", "rank", ZT_CELL_COUNT, 0},
        {"LOCAL", "local_rank", ZT_CELL_COUNT, 0},
        {"BEAT", "beat_age_seconds", ZT_CELL_SECONDS, 0},
        {"PID", "pid", ZT_CELL_NUMBER, 9},
        {"RUN", "run", ZT_CELL_TEXT, 0},
        {"VERSION", "version", ZT_CELL_TEXT, 0},
        {"FLAGS", "flags", ZT_CELL_TEXT, 0},
        {"BACKEND", "backend", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err = {0};
    Zt__ListWorkers list = ZT__LIST_WORKERS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    req.body_case = ZT__ENVELOPE__BODY_LIST_WORKERS;
    req.list_workers = &list;
    int rc = zt_ask_once(o, &s, &req, &a);
    if (rc)
        return rc;
    json_t *rows = json_array();
    for (size_t i = 0; i < a.env->worker_list->n_workers; i++)
        json_array_append_new(rows, zt_json_worker(a.env->worker_list->workers[i]));
    json_t *j = wrap("workers", rows);
    if (o->format == ZT_FORMAT_TABLE && json_array_size(rows) == 0)
        puts("no workers; start one: zworker --coord HOST:PORT");
    else
        rc = zt_print_rows(stdout, o, j, rows, columns, &err);
    json_decref(j);
    json_decref(rows);
    return zt_ask_end(&s, &a, rc, &err);
}

/* ---------------------------------------------------------------------------------- metrics */

static bool step_wanted(const struct zt_options *o, int64_t step) {
    return (o->step_from == 0 || step >= o->step_from) && (o->step_to == 0 || step <= o->step_to) &&
           (o->every == 0 || step % o->every == 0);
}

/* Adds a page's rows that were asked for; *newest: its last step, *rank: the last rank in it. */
static void add_page(const struct zt_options *o, const Zt__Metrics *m, bool ranks, json_t *rows,
                     int64_t *newest, uint32_t *rank) {
    struct zt_mesh mesh = {(int)m->replicate, (int)m->shard, (int)m->tensor};
    for (size_t i = 0; !ranks && i < m->n_rows; i++) {
        *newest = m->rows[i]->step > *newest ? m->rows[i]->step : *newest;
        if (step_wanted(o, m->rows[i]->step))
            json_array_append_new(rows, zt_json_step(m->run_id, m->rows[i]));
    }
    for (size_t i = 0; ranks && i < m->n_ranks; i++) {
        *newest = m->ranks[i]->step > *newest ? m->ranks[i]->step : *newest;
        *rank = m->ranks[i]->rank;
        if (step_wanted(o, m->ranks[i]->step))
            json_array_append_new(rows, zt_json_rank(m->run_id, mesh, m->ranks[i]));
    }
}

int zt_fetch_metrics(struct zt_source *s, const struct zt_options *o, const char *run, bool ranks,
                     int64_t after, json_t *rows, int64_t *last, struct zt_error *err) {
    Zt__GetMetrics get = ZT__GET_METRICS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    uint32_t wanted[ZT_MAX_RANKS];
    memcpy(wanted, o->rank, sizeof wanted);
    get.run = (char *)(uintptr_t)run;
    get.has_ranks = true;
    get.ranks = ranks;
    get.has_after_step = true;
    get.after_step = after;
    get.has_after_rank = ranks;
    get.after_rank = UINT32_MAX; /* all of that step were seen */
    get.has_last_step = o->step_to > 0;
    get.last_step = o->step_to;
    get.n_rank = ranks ? (size_t)o->n_rank : 0;
    get.rank = wanted;
    req.body_case = ZT__ENVELOPE__BODY_GET_METRICS;
    req.get_metrics = &get;
    for (;;) {
        struct zt_answer a;
        int rc = zt_source_ask(s, &req, &a, err);
        if (rc)
            return rc;
        int64_t newest = get.after_step;
        uint32_t rank = get.after_rank;
        bool more = a.env->metrics->has_more && a.env->metrics->more;
        add_page(o, a.env->metrics, ranks, rows, &newest, &rank);
        zt_answer_free(&a);
        if (last)
            *last = newest;
        if (!more || (newest == get.after_step && rank == get.after_rank))
            return 0;
        get.after_step = newest;
        get.after_rank = rank;
    }
}

/* Generation, loss scale and skipped steps are left out of a table that has nothing to say about them. */
static const struct zt_column step_columns[] = {
    {"GEN", "generation", ZT_CELL_COUNT, 0},
    {"STEP", "step", ZT_CELL_COUNT, 0},
    {"LOSS", "loss", ZT_CELL_FIXED, 5},
    {"NORM", "grad_norm", ZT_CELL_FIXED, 4},
    {"LR", "lr", ZT_CELL_NUMBER, 4},
    {"SCALE", "loss_scale", ZT_CELL_NUMBER, 6},
    {"SKIPPED", "skipped_steps", ZT_CELL_COUNT, 0},
    {"TOKENS", "tokens", ZT_CELL_COUNT, 0},
    {"TOK/S", "tokens_per_second", ZT_CELL_COUNT, 0},
    {"STEP TIME", "step_seconds", ZT_CELL_SECONDS, 0},
    {"COMM", "comm_seconds", ZT_CELL_SECONDS, 0},
    {"EXPOSED", "exposed_comm_seconds", ZT_CELL_SECONDS, 0},
    {"PEAK ALLOC", "peak_allocated_bytes", ZT_CELL_BYTES, 0},
    {"RESERVED", "peak_reserved_bytes", ZT_CELL_BYTES, 0},
    {"AT", "peak_rank", ZT_CELL_COUNT, 0},
    {"EVAL LOSS", "eval_loss", ZT_CELL_FIXED, 5},
    {"EXPOSED BY", "exposed_by", ZT_CELL_EXPOSED, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static const struct zt_column step_rank_columns[] = {
    {"GEN", "generation", ZT_CELL_COUNT, 0},
    {"STEP", "step", ZT_CELL_COUNT, 0},
    {"RANK", "rank", ZT_CELL_COUNT, 0},
    {"LOCAL LOSS", "local_loss", ZT_CELL_FIXED, 5},
    {"TOKENS", "tokens", ZT_CELL_COUNT, 0},
    {"STEP TIME", "step_seconds", ZT_CELL_SECONDS, 0},
    {"COMM", "comm_seconds", ZT_CELL_SECONDS, 0},
    {"EXPOSED", "exposed_comm_seconds", ZT_CELL_SECONDS, 0},
    {"WAITED", "straggler_wait_seconds", ZT_CELL_SECONDS, 0},
    {"PEAK ALLOC", "peak_allocated_bytes", ZT_CELL_BYTES, 0},
    {"RESERVED", "peak_reserved_bytes", ZT_CELL_BYTES, 0},
    {"PARAMS", "at_peak.parameters", ZT_CELL_BYTES, 0},
    {"GRADS", "at_peak.gradients", ZT_CELL_BYTES, 0},
    {"OPTIM", "at_peak.optimizer", ZT_CELL_BYTES, 0},
    {"ACTIV", "at_peak.activations", ZT_CELL_BYTES, 0},
    {"TEMP", "at_peak.temporary", ZT_CELL_BYTES, 0},
    {"COMM MEM", "at_peak.communication", ZT_CELL_BYTES, 0},
    {"PHASE", "phase_of_peak", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

/* Only the last n rows stay. */
static void keep_tail(json_t *rows, int n) {
    size_t size = json_array_size(rows);
    if (n <= 0 || size <= (size_t)n)
        return;
    json_t *tail = json_array();
    for (size_t i = size - (size_t)n; i < size; i++)
        json_array_append(tail, json_array_get(rows, i));
    json_array_clear(rows);
    json_array_extend(rows, tail);
    json_decref(tail);
}

static bool column_says_something(const json_t *rows, const char *path) {
    const json_t *first = json_object_get(json_array_get(rows, 0), path), *row;
    bool generation = strcmp(path, "generation") == 0;
    size_t i;
    if (!generation && strcmp(path, "loss_scale") != 0 && strcmp(path, "skipped_steps") != 0)
        return true;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        const json_t *v = json_object_get(row, path);
        if (generation ? !json_equal(v, first) : json_number_value(v) > 0)
            return true;
    }
    return false;
}

void zt_step_columns(const json_t *rows, bool ranks, struct zt_column out[ZT_STEP_COLUMNS]) {
    const struct zt_column *c = ranks ? step_rank_columns : step_columns;
    _Static_assert(sizeof step_columns / sizeof *step_columns <= ZT_STEP_COLUMNS &&
                   sizeof step_rank_columns / sizeof *step_rank_columns <= ZT_STEP_COLUMNS, "room");
    int n = 0;
    for (; c->header; c++)
        if (column_says_something(rows, c->path))
            out[n++] = *c;
    out[n] = *c;
}

int zt_cmd_metrics(const struct zt_options *o) {
    struct zt_source s;
    struct zt_error err;
    bool ranks = o->ranks_all || o->n_rank > 0;
    json_t *rows = json_array();
    int rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = zt_fetch_metrics(&s, o, o->subject, ranks, o->step_from > 0 ? o->step_from - 1 : 0, rows, NULL,
                              &err);
    if (rc == 0) {
        keep_tail(rows, o->tail);
        struct zt_column columns[ZT_STEP_COLUMNS];
        json_t *j = wrap("steps", rows);
        zt_step_columns(rows, ranks, columns);
        if (o->format == ZT_FORMAT_TABLE && json_array_size(rows) == 0)
            puts("no steps were reported");
        else
            rc = zt_print_rows(stdout, o, j, rows, columns, &err);
        json_decref(j);
    }
    json_decref(rows);
    zt_source_close(&s);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}

/* ---------------------------------------------------------------------------------- cancel, version */

int zt_cmd_cancel(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err = {0};
    Zt__Cancel cancel = ZT__CANCEL__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    uint8_t key[16];
    if (zt_sys_posix.random(zt_sys_posix.arg, key, sizeof key) < 0)
        return zt_report(zt_fail(&err, ZT_EIO, "no random bytes from the kernel"), &err);
    cancel.request_key.data = key;
    cancel.request_key.len = sizeof key;
    cancel.run = (char *)(uintptr_t)o->subject;
    req.body_case = ZT__ENVELOPE__BODY_CANCEL;
    req.cancel = &cancel;
    int rc = zt_ask_once(o, &s, &req, &a);
    if (rc)
        return rc;
    const Zt__CancelReply *r = a.env->cancel_reply;
    if (o->format == ZT_FORMAT_TABLE) {
        printf("run %s is %s%s\n", r->run_id, r->state,
               zt_exit_of_state(r->state) < 0 ? " and will be cancelled; zctl wait tells when" : "");
    } else {
        json_t *j = json_object(), *rows = json_array();
        json_object_set_new(j, "run", zt_json_text(r->run_id));
        json_object_set_new(j, "state", zt_json_text(r->state));
        json_array_append(rows, j);
        rc = zt_print_rows(stdout, o, j, rows, zt_run_columns, &err);
        json_decref(rows);
        json_decref(j);
    }
    return zt_ask_end(&s, &a, rc, &err);
}

int zt_cmd_version(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a;
    struct zt_error err = {0};
    struct zt_options quick = *o;
    Zt__GetStatus get = ZT__GET_STATUS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    json_t *j = json_object();
    req.body_case = ZT__ENVELOPE__BODY_GET_STATUS;
    req.get_status = &get;
    if (quick.timeout <= 0)
        quick.timeout = 2;
    int rc = zt_source_open(&quick, &s, &err);
    if (rc == 0)
        rc = zt_source_ask(&s, &req, &a, &err);
    json_object_set_new(j, "version", json_string(ZT_VERSION));
    json_object_set_new(j, "protocol_major", json_integer(ZT_PROTOCOL_MAJOR));
    json_object_set_new(j, "protocol_minor", json_integer(ZT_PROTOCOL_MINOR));
    json_object_set_new(j, "coordinator", rc ? json_null() : zt_json_text(a.env->cluster_status->version));
    if (o->format == ZT_FORMAT_TABLE) {
        printf("zctl %s, protocol %d.%d\n", ZT_VERSION, ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR);
        if (rc == 0)
            printf("zcoord %s, protocol %u.%u\n", a.env->cluster_status->version,
                   a.env->cluster_status->protocol_major, a.env->cluster_status->protocol_minor);
        else
            fprintf(stderr, "zctl: no coordinator to ask: %s\n", err.msg);
    } else {
        zt_print_json_line(stdout, j);
    }
    json_decref(j);
    bool skew = rc == ZT_EVERSION;
    if (rc == 0)
        zt_answer_free(&a);
    zt_source_close(&s);
    return skew ? ZT_EXIT_VERSION : ZT_EXIT_OK;
}
