/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/follow.c: the commands that go on until a run ends: logs, events, watch, wait, and the
 * following part of submit. Log pieces are bytes as they came; here they become whole lines. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"

#define LINE_MAX_BYTES (64 * 1024)
#define POLL_SECONDS 0.5
#define LAST_LINES_MS 5000

/* One output stream of one rank: the line that has no end yet. */
struct stream {
    uint32_t rank, generation;
    bool err;
    char host[128];
    int64_t at_ms;
    char *part;
    size_t n, cap;
};

struct zt_follow {
    struct zt_options o;
    const char *run;
    uint64_t log_after, event_after;
    bool logs_open;     /* by the newest answer: output may still come */
    bool tail_done;
    bool news;          /* events of checkpoints at any level */
    struct stream *streams;
    int n_streams;
    json_t *rows;       /* -o json and csv: everything at once, at the end */
};

struct zt_follow *zt_follow_new(const struct zt_options *o, const char *run) {
    struct zt_follow *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->o = *o;
    f->run = run;
    f->rows = json_array();
    return f;
}

void zt_follow_free(struct zt_follow *f) {
    if (!f)
        return;
    for (int i = 0; i < f->n_streams; i++)
        free(f->streams[i].part);
    free(f->streams);
    json_decref(f->rows);
    free(f);
}

/* ---------------------------------------------------------------------------------- lines */

static json_t *line_object(const struct stream *s, const char *text, size_t n) {
    json_t *o = json_object(), *t = json_stringn(text, n);
    if (!t) { /* not UTF-8: shown escaped */
        char *safe = zt_escape(text, n, true);
        t = zt_json_text(safe);
        free(safe);
    }
    json_object_set_new(o, "at", zt_json_time(s->at_ms));
    json_object_set_new(o, "rank", json_integer(s->rank));
    json_object_set_new(o, "generation", json_integer(s->generation));
    json_object_set_new(o, "host", zt_json_text(s->host));
    json_object_set_new(o, "stream", json_string(s->err ? "stderr" : "stdout"));
    json_object_set_new(o, "text", t);
    return o;
}

static void emit(struct zt_follow *f, const json_t *row, FILE *out) {
    if (f->o.format == ZT_FORMAT_JSONL || (f->o.format == ZT_FORMAT_JSON && f->o.follow))
        zt_print_json_line(out, row);
    else
        json_array_append(f->rows, (json_t *)(uintptr_t)row);
}

static void print_line(struct zt_follow *f, const struct stream *s, const char *text, size_t n, FILE *out) {
    if (n > 0 && text[n - 1] == '\r')
        n--;
    if (f->o.format != ZT_FORMAT_TABLE) {
        json_t *row = line_object(s, text, n);
        emit(f, row, out);
        json_decref(row);
        return;
    }
    char *safe = zt_escape(text, n, true), *host = zt_escape(s->host, strlen(s->host), false);
    fprintf(out, "%s:%u| %s\n", host ? host : "?", s->rank, safe ? safe : "");
    free(safe);
    free(host);
}

static struct stream *stream_of(struct zt_follow *f, const Zt__LogPiece *p) {
    bool err = p->has_err && p->err;
    for (int i = 0; i < f->n_streams; i++)
        if (f->streams[i].rank == p->rank && f->streams[i].generation == p->generation &&
            f->streams[i].err == err)
            return &f->streams[i];
    struct stream *more = realloc(f->streams, (size_t)(f->n_streams + 1) * sizeof *more);
    if (!more)
        return NULL;
    f->streams = more;
    struct stream *s = &more[f->n_streams++];
    memset(s, 0, sizeof *s);
    s->rank = p->rank;
    s->generation = p->generation;
    s->err = err;
    snprintf(s->host, sizeof s->host, "%.*s", (int)strcspn(p->worker, "/"), p->worker);
    return s;
}

static bool keep_part(struct stream *s, const char *text, size_t n) {
    if (s->n + n > s->cap) {
        char *more = realloc(s->part, s->n + n);
        if (!more)
            return false;
        s->part = more;
        s->cap = s->n + n;
    }
    memcpy(s->part + s->n, text, n);
    s->n += n;
    return true;
}

static void add_piece(struct zt_follow *f, const Zt__LogPiece *p, FILE *out) {
    struct stream *s = stream_of(f, p);
    const char *text = (const char *)p->data.data;
    size_t left = p->data.len;
    if (!s)
        return;
    s->at_ms = p->has_at_ms ? p->at_ms : 0;
    while (left > 0) {
        const char *end = memchr(text, '\n', left);
        size_t n = end ? (size_t)(end - text) : left;
        if (!keep_part(s, text, n))
            return;
        if (end || s->n > LINE_MAX_BYTES) {
            print_line(f, s, s->part ? s->part : "", s->n, out);
            s->n = 0;
        }
        n += end ? 1 : 0;
        text += n;
        left -= n;
    }
}

void zt_follow_flush(struct zt_follow *f, FILE *out) {
    for (int i = 0; i < f->n_streams; i++)
        if (f->streams[i].n > 0) {
            print_line(f, &f->streams[i], f->streams[i].part, f->streams[i].n, out);
            f->streams[i].n = 0;
        }
    fflush(out);
}

/* ---------------------------------------------------------------------------------- pages */

static int ask_for(struct zt_follow *f, struct zt_source *s, Zt__Envelope *req, struct zt_answer *a,
                   struct zt_error *err) {
    return f->o.follow ? zt_source_ask_patiently(s, req, a, err) : zt_source_ask(s, req, a, err);
}

int zt_follow_logs(struct zt_follow *f, struct zt_source *s, FILE *out, struct zt_error *err) {
    for (;;) {
        struct zt_answer a;
        Zt__GetLogs get = ZT__GET_LOGS__INIT;
        Zt__Envelope req = ZT__ENVELOPE__INIT;
        get.run = (char *)(uintptr_t)f->run;
        get.n_rank = (size_t)f->o.n_rank;
        get.rank = f->o.rank;
        get.has_generation = f->o.attempt > 0;
        get.generation = (uint32_t)f->o.attempt;
        get.has_after = true;
        get.after = f->log_after;
        get.has_tail_lines = f->o.tail > 0 && !f->tail_done;
        get.tail_lines = (uint32_t)f->o.tail;
        req.body_case = ZT__ENVELOPE__BODY_GET_LOGS;
        req.get_logs = &get;
        int rc = ask_for(f, s, &req, &a, err);
        if (rc)
            return rc;
        const Zt__Logs *l = a.env->logs;
        uint64_t before = f->log_after;
        for (size_t i = 0; i < l->n_pieces; i++) {
            add_piece(f, l->pieces[i], out);
            f->log_after = l->pieces[i]->id > f->log_after ? l->pieces[i]->id : f->log_after;
        }
        if (l->has_next && l->next > f->log_after)
            f->log_after = l->next;
        f->logs_open = l->has_open && l->open > 0;
        bool more = l->has_more && l->more && f->log_after > before;
        f->tail_done = true;
        zt_answer_free(&a);
        if (!more)
            return 0;
    }
}

static void print_event(struct zt_follow *f, const Zt__Event *e, FILE *out) {
    json_t *row = zt_json_event(e);
    if (f->o.format != ZT_FORMAT_TABLE) {
        emit(f, row, out);
        json_decref(row);
        return;
    }
    char when[32] = "-", cell[5][400];
    struct tm tm;
    time_t t = (time_t)(e->at_ms / 1000);
    static const struct zt_column c[] = {{"", "kind", ZT_CELL_TEXT, 0}, {"", "from", ZT_CELL_TEXT, 0},
                                         {"", "to", ZT_CELL_TEXT, 0}, {"", "reason", ZT_CELL_TEXT, 0},
                                         {"", "message", ZT_CELL_TEXT, 0}};
    for (int i = 0; i < 5; i++)
        zt_cell_text(row, &c[i], cell[i], sizeof cell[i]);
    if (gmtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    fprintf(out, "%s  %-7s %s", when, json_string_value(json_object_get(row, "level")), cell[0]);
    if (e->to && e->to[0])
        fprintf(out, "  %s -> %s", cell[1], cell[2]);
    if (e->reason && e->reason[0])
        fprintf(out, "  %s", cell[3]);
    if (e->has_rank && e->rank >= 0)
        fprintf(out, "  rank %d", e->rank);
    if (e->message && e->message[0])
        fprintf(out, "  %s", cell[4]);
    fputc('\n', out);
    json_decref(row);
}

void zt_follow_news(struct zt_follow *f) { f->news = true; }

static bool is_news(const Zt__Event *e) {
    static const char *const kinds[] = {"CHECKPOINT_COMMITTED", "CHECKPOINT_ADOPTED", "RESUMED", "WEIGHTS_LOADED"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(e->kind, kinds[i]) == 0)
            return true;
    return false;
}

int zt_follow_events(struct zt_follow *f, struct zt_source *s, FILE *out, uint32_t least_level,
                     struct zt_error *err) {
    for (;;) {
        struct zt_answer a;
        Zt__GetEvents get = ZT__GET_EVENTS__INIT;
        Zt__Envelope req = ZT__ENVELOPE__INIT;
        get.run = (char *)(uintptr_t)f->run;
        get.has_after = true;
        get.after = f->event_after;
        req.body_case = ZT__ENVELOPE__BODY_GET_EVENTS;
        req.get_events = &get;
        int rc = ask_for(f, s, &req, &a, err);
        if (rc)
            return rc;
        const Zt__Events *l = a.env->events;
        uint64_t before = f->event_after;
        for (size_t i = 0; i < l->n_events; i++) {
            f->event_after = l->events[i]->id > f->event_after ? l->events[i]->id : f->event_after;
            if ((l->events[i]->has_level ? l->events[i]->level : 1) >= least_level || (f->news && is_news(l->events[i])))
                print_event(f, l->events[i], out);
        }
        bool more = l->has_more && l->more && f->event_after > before;
        zt_answer_free(&a);
        if (!more)
            return 0;
    }
}

/* ---------------------------------------------------------------------------------- to the end */

int zt_await_run(const struct zt_options *o, struct zt_source *s, const char *run, struct zt_answer *a, bool *late,
                 struct zt_error *err) {
    double begun = zt_now();
    bool cancelled = false;
    for (;;) {
        *late = *late || (o->timeout > 0 && zt_now() > begun + o->timeout);
        if ((zt_interrupts() > 0 || *late) && !cancelled) {
            fprintf(stderr, "zctl: %s: cancelling the run\n", *late ? "time is up" : "interrupted");
            struct zt_error ignored;
            cancelled = zt_cancel_run(s, run, &ignored) == 0;
        }
        int rc = zt_fetch_run(s, run, true, a, err);
        if (rc)
            return rc;
        if (zt_exit_of_state(a->env->run_detail->summary->state) >= 0)
            return 0;
        zt_answer_free(a);
        zt_pause(0.25);
    }
}

/* ---------------------------------------------------------------------------------- interrupt */

static void on_interrupt(int sig) {
    static const char text[] = "\nzctl: stopped watching; the run goes on (zctl cancel ends it)\n";
    (void)sig;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(ZT_EXIT_INTERRUPT);
}

void zt_detach_on_interrupt(void) {
    struct sigaction a = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &a, NULL);
}

/* ---------------------------------------------------------------------------------- commands */

static uint32_t least_level(const struct zt_options *o) { return o->all ? ZT_LEVEL_DEBUG : ZT_LEVEL_INFO; }

/* The last lines of a trainer come when it is gone, a moment after the run's end; those of a worker that died
 * with it never come. */
static bool lines_to_come(const struct zt_follow *f, int64_t ended_ms) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return f->logs_open && (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - ended_ms < LAST_LINES_MS;
}

int zt_follow_to_end(struct zt_follow *f, struct zt_source *s, bool logs, bool events, FILE *out, struct zt_answer *a,
                     struct zt_error *err) {
    for (;;) {
        int rc = zt_fetch_run(s, f->run, true, a, err);
        if (rc)
            return rc;
        const Zt__RunSummary *run = a->env->run_detail->summary;
        bool ended = zt_exit_of_state(run->state) >= 0;
        if (events)
            rc = zt_follow_events(f, s, out, least_level(&f->o), err);
        if (rc == 0 && logs)
            rc = zt_follow_logs(f, s, out, err);
        fflush(out);
        if (rc == 0 && ended && !(logs && lines_to_come(f, run->ended_ms)))
            return 0;
        if (rc == 0 && s->deadline > 0 && zt_now() >= s->deadline)
            rc = zt_fail(err, ZT_ETIMEOUT, "time is up; run %s is %s%s", f->run, run->state, ended ? "" : " and goes on");
        zt_answer_free(a);
        if (rc)
            return rc;
        zt_pause(POLL_SECONDS);
    }
}

/* What was collected for -o json and -o csv. */
static int print_collected(struct zt_follow *f, const char *key, FILE *out) {
    if (f->o.format == ZT_FORMAT_JSON && !f->o.follow) {
        json_t *o = json_object();
        json_object_set(o, key, f->rows);
        zt_print_json(out, o);
        json_decref(o);
    } else if (f->o.format == ZT_FORMAT_CSV) {
        zt_print_csv(out, f->rows);
    }
    return ferror(out) ? ZT_EXIT_OTHER : ZT_EXIT_OK;
}

static int stream_command(const struct zt_options *o, bool logs) {
    struct zt_source s;
    struct zt_answer end = {0};
    struct zt_error err;
    struct zt_follow *f = zt_follow_new(o, o->subject);
    int rc = f ? zt_source_open(o, &s, &err) : zt_fail(&err, ZT_ENOMEM, "no memory");
    if (rc) {
        zt_follow_free(f);
        return zt_report(rc, &err);
    }
    if (o->follow)
        zt_detach_on_interrupt();
    if (logs || o->subject) { /* a run that is not there is an error, not an empty answer */
        struct zt_answer a;
        rc = zt_fetch_run(&s, o->subject, o->follow, &a, &err);
        if (rc == 0)
            zt_answer_free(&a);
    }
    if (rc == 0 && o->follow && o->subject)
        rc = zt_follow_to_end(f, &s, logs, !logs, stdout, &end, &err);
    while (rc == 0 && o->follow && !o->subject) { /* all events, for ever */
        rc = zt_follow_events(f, &s, stdout, least_level(o), &err);
        fflush(stdout);
        zt_pause(POLL_SECONDS);
    }
    if (rc == 0 && !o->follow)
        rc = logs ? zt_follow_logs(f, &s, stdout, &err) : zt_follow_events(f, &s, stdout, least_level(o), &err);
    zt_follow_flush(f, stdout);
    zt_answer_free(&end);
    int code = rc ? zt_report(rc, &err) : print_collected(f, logs ? "lines" : "events", stdout);
    zt_follow_free(f);
    zt_source_close(&s);
    return code;
}

int zt_cmd_logs(const struct zt_options *o) { return stream_command(o, true); }

int zt_cmd_events(const struct zt_options *o) { return stream_command(o, false); }

static void print_end(const struct zt_options *o, const Zt__RunDetail *d) {
    char line[1024];
    if (o->format == ZT_FORMAT_TABLE) {
        printf("run %s \"%s\" %s\n", d->summary->run_id, d->summary->name,
               zt_state_line(d, line, sizeof line));
    } else {
        json_t *j = zt_json_run(d);
        zt_print_json_line(stdout, j);
        json_decref(j);
    }
}

int zt_cmd_wait(const struct zt_options *o) {
    struct zt_source s;
    struct zt_answer a = {0};
    struct zt_error err;
    struct zt_follow *f = zt_follow_new(o, o->subject);
    int rc = f ? zt_source_open(o, &s, &err) : zt_fail(&err, ZT_ENOMEM, "no memory");
    if (rc) {
        zt_follow_free(f);
        return zt_report(rc, &err);
    }
    zt_detach_on_interrupt();
    rc = zt_follow_to_end(f, &s, false, false, stdout, &a, &err);
    if (rc == 0)
        print_end(o, a.env->run_detail);
    int code = rc ? zt_report(rc, &err) : zt_exit_of_state(a.env->run_detail->summary->state);
    zt_answer_free(&a);
    zt_follow_free(f);
    zt_source_close(&s);
    return code;
}

/* ---------------------------------------------------------------------------------- watch */

static void clear_screen(const struct zt_options *o) {
    if (o->format == ZT_FORMAT_TABLE && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
}

static int watch_run(const struct zt_options *o, struct zt_source *s, struct zt_error *err) {
    for (;;) {
        struct zt_answer a;
        int rc = zt_fetch_run(s, o->subject, true, &a, err);
        if (rc)
            return zt_report(rc, err);
        const Zt__RunDetail *d = a.env->run_detail;
        clear_screen(o);
        if (o->format == ZT_FORMAT_TABLE) {
            zt_print_run(stdout, o, d);
            if (!isatty(STDOUT_FILENO))
                fputc('\n', stdout);
        } else {
            json_t *j = zt_json_run(d);
            zt_print_json_line(stdout, j);
            json_decref(j);
        }
        fflush(stdout);
        int end = zt_exit_of_state(d->summary->state);
        zt_answer_free(&a);
        if (end >= 0)
            return end;
        if (s->deadline > 0 && zt_now() >= s->deadline)
            return zt_report(zt_fail(err, ZT_ETIMEOUT, "time is up; the run goes on"), err);
        zt_pause(o->interval);
    }
}

/* The whole cluster, until Ctrl-C or the time is up. */
static int watch_cluster(const struct zt_options *o, struct zt_source *s, struct zt_error *err) {
    for (;;) {
        clear_screen(o);
        int code = zt_cmd_status(o);
        fflush(stdout);
        if (code != ZT_EXIT_OK && code != ZT_EXIT_UNREACHABLE)
            return code;
        if (s->deadline > 0 && zt_now() >= s->deadline)
            return zt_report(zt_fail(err, ZT_ETIMEOUT, "time is up"), err);
        zt_pause(o->interval);
    }
}

int zt_cmd_watch(const struct zt_options *o) {
    struct zt_source s;
    struct zt_error err;
    int rc = zt_source_open(o, &s, &err);
    if (rc)
        return zt_report(rc, &err);
    zt_detach_on_interrupt();
    int code = o->subject ? watch_run(o, &s, &err) : watch_cluster(o, &s, &err);
    zt_source_close(&s);
    return code;
}
