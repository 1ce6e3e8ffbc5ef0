/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/run.c: `zctl run FILE --workers N`: a private coordinator and N workers on this
 * machine (local.c), one run from start to end, a summary, and nothing left behind.
 *
 *   lock a state folder -> start zcoord on a free port -> start the workers -> submit -> follow
 *     |                      '--- restarted when they die, until they die at once three times
 *     '- .../ztrain/local, or local-2, ... when another zctl run has it
 *
 * Ctrl-C (or SIGTERM) cancels the run and waits for its end; a second one kills everything. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/local.h"
#include "clients/zctl/out.h"
#include "clients/zctl/predict.h"
#include "core/units.h"

#define TICK_SECONDS 0.25
#define MAX_PAIRS 32

/* What the summary says, gathered while steps come in. */
struct totals {
    int64_t steps, tokens, steady_tokens;
    double first_loss, last_loss, eval_loss, seconds, steady_seconds, exposed, comm;
    struct { char name[64]; double seconds; } pair[MAX_PAIRS];
    int n_pairs;
    double step_average; /* recent, for the ETA */
};

struct local {
    const struct zt_options *o;
    const struct zt_run_end *end; /* NULL: the summary */
    struct zt_run_file *file;
    struct zt_spec *spec;        /* resolved */
    struct zt_local here;
    char *plan;                  /* goes with the submit; NULL: none */
    bool forced;
    struct zt_source source;
    struct zt_follow *events;
    char run[64];
    int64_t last_step, steps;
    struct totals t;
    double begun;
    bool cancelled, late, enough, line_open; /* enough: the caller has seen what it wanted */
    FILE *lines;                 /* plain progress lines */
};

static volatile sig_atomic_t interrupts;

/* The second one ends this process at once, whatever it waits for; the kernel kills its children then
 * (PR_SET_PDEATHSIG), and theirs. */
static void on_signal(int sig) {
    static const char text[] = "\nzctl: interrupted twice: killed\n";
    static volatile double first;
    (void)sig;
    if (interrupts > 0 && zt_now() - first < 0.3)
        return; /* one wish may come twice: timeout(1) signals the process and its group */
    if (interrupts == 0)
        first = zt_now();
    if (++interrupts > 1) {
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
        _exit(ZT_EXIT_INTERRUPT);
    }
}

void zt_watch_interrupts(void) {
    struct sigaction a = {.sa_handler = on_signal};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
}

int zt_interrupts(void) { return interrupts; }

static void end_line(struct local *l) {
    if (l->line_open)
        fputs("\r\033[K", stderr);
    l->line_open = false;
}

static void on_message(void *arg) { end_line(arg); }

/* ---------------------------------------------------------------------------------- the run */

int zt_cancel_run(struct zt_source *s, const char *run, struct zt_error *err) {
    Zt__Cancel cancel = ZT__CANCEL__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    uint8_t key[16];
    if (zt_sys_posix.random(zt_sys_posix.arg, key, sizeof key) < 0)
        return zt_fail(err, ZT_EIO, "no random bytes from the kernel");
    cancel.request_key.data = key;
    cancel.request_key.len = sizeof key;
    cancel.run = (char *)(uintptr_t)run;
    req.body_case = ZT__ENVELOPE__BODY_CANCEL;
    req.cancel = &cancel;
    int rc = zt_source_ask(s, &req, &a, err);
    if (rc == 0)
        zt_answer_free(&a);
    return rc;
}

/* Runs that an earlier, killed zctl run left in this folder would take the new workers. */
static int cancel_leftovers(struct local *l, struct zt_error *err) {
    Zt__ListRuns list = ZT__LIST_RUNS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    list.has_active_only = true;
    list.active_only = true;
    req.body_case = ZT__ENVELOPE__BODY_LIST_RUNS;
    req.list_runs = &list;
    int rc = zt_source_ask(&l->source, &req, &a, err);
    if (rc)
        return rc;
    for (size_t i = 0; rc == 0 && i < a.env->run_list->n_runs; i++) {
        const Zt__RunSummary *s = a.env->run_list->runs[i];
        if (zt_exit_of_state(s->state) >= 0)
            continue;
        fprintf(stderr, "zctl: cancelling run %s \"%s\", left by an earlier zctl run\n", s->run_id, s->name);
        rc = zt_cancel_run(&l->source, s->run_id, err);
    }
    zt_answer_free(&a);
    return rc;
}

static int submit(struct local *l, struct zt_error *err) {
    struct zt_answer a;
    struct zt_submit_request req;
    double end = zt_now() + 120;
    bool told = false;
    int rc = zt_submit_request_fill(&req, l->file, l->here.workers, l->plan, l->forced, err);
    if (rc)
        return rc;
    for (;;) {
        rc = zt_source_ask(&l->source, &req.env, &a, err);
        if (rc == 0)
            break;
        /* The name is taken until the leftover has ended; a coordinator that died is started again and
         * asked once more with the same key; anything else is final. */
        bool again = rc == ZT_ECONFLICT || rc == ZT_EUNREACHABLE;
        if (!again || zt_now() > end || interrupts > 0)
            return rc;
        if (!told && rc == ZT_ECONFLICT) {
            fprintf(stderr, "zctl: waiting for the earlier run of this name to end\n");
            told = true;
        }
        rc = zt_local_mind(&l->here, err);
        if (rc)
            return rc;
        zt_pause(0.5);
    }
    snprintf(l->run, sizeof l->run, "%s", a.env->submit_reply->run_id);
    fprintf(stderr, "zctl: run %s \"%s\" with %d worker%s on this machine; state in %s\n", l->run,
            a.env->submit_reply->name, l->here.workers, l->here.workers == 1 ? "" : "s", l->here.dir);
    zt_answer_free(&a);
    return 0;
}

/* ---------------------------------------------------------------------------------- progress */

static double real_at(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void add_exposed(struct totals *t, const json_t *row) {
    size_t i;
    const json_t *e;
    json_array_foreach(json_object_get(row, "exposed_by"), i, e) {
        char name[64];
        int k = 0;
        const char *group = json_string_value(json_object_get(e, "group"));
        const char *kind = json_string_value(json_object_get(e, "kind"));
        snprintf(name, sizeof name, "%s/%s", group ? group : "?", kind ? kind : "?");
        while (k < t->n_pairs && strcmp(t->pair[k].name, name) != 0)
            k++;
        if (k == MAX_PAIRS)
            continue;
        if (k == t->n_pairs) {
            snprintf(t->pair[k].name, sizeof t->pair[k].name, "%s", name);
            t->pair[k].seconds = 0;
            t->n_pairs++;
        }
        t->pair[k].seconds += real_at(e, "seconds");
    }
}

static void add_row(struct local *l, const json_t *row) {
    struct totals *t = &l->t;
    double loss = real_at(row, "loss"), s = real_at(row, "step_seconds"), tokens = real_at(row, "tokens");
    double exposed = real_at(row, "exposed_comm_seconds"), comm = real_at(row, "comm_seconds");
    double eval = real_at(row, "eval_loss");
    int64_t step = (int64_t)json_integer_value(json_object_get(row, "step"));
    if (t->steps++ == 0)
        t->first_loss = loss;
    t->last_loss = loss;
    if (!isnan(eval))
        t->eval_loss = eval;
    if (isnan(s) || isnan(tokens))
        return;
    t->tokens += (int64_t)tokens;
    t->seconds += s;
    if (step > l->spec->metrics.warmup_steps) {
        t->steady_tokens += (int64_t)tokens;
        t->steady_seconds += s;
    }
    t->exposed += isnan(exposed) ? 0 : exposed;
    t->comm += isnan(comm) ? 0 : comm;
    t->step_average = t->step_average > 0 ? 0.9 * t->step_average + 0.1 * s : s;
    add_exposed(t, row);
}

static void print_step(struct local *l, const json_t *row, FILE *out) {
    char a[40], b[40], c[40], d[40], eta[60] = "";
    int64_t step = (int64_t)json_integer_value(json_object_get(row, "step"));
    double rate = real_at(row, "tokens_per_second"), s = real_at(row, "step_seconds");
    double exposed = real_at(row, "exposed_comm_seconds"), peak = real_at(row, "peak_allocated_bytes");
    double eval = real_at(row, "eval_loss");
    fprintf(out, "step %s", zt_format_count(step, a, sizeof a));
    if (l->steps > 0) {
        fprintf(out, "/%s", zt_format_count(l->steps, b, sizeof b));
        if (step < l->steps && l->t.step_average > 0)
            snprintf(eta, sizeof eta, "   ETA %s",
                     zt_format_seconds((double)(l->steps - step) * l->t.step_average, c, sizeof c));
    }
    fprintf(out, "   loss %.4f", real_at(row, "loss"));
    if (!isnan(eval))
        fprintf(out, " (eval %.4f)", eval);
    if (!isnan(rate))
        fprintf(out, "   %s tok/s", zt_format_count((int64_t)rate, c, sizeof c));
    if (!isnan(exposed) && s > 0)
        fprintf(out, "   exposed comm %.1f %%", 100 * exposed / s);
    if (!isnan(real_at(row, "loss_scale")))
        fprintf(out, "   scale %g", real_at(row, "loss_scale"));
    if (real_at(row, "skipped_steps") > 0)
        fprintf(out, "   skipped %lld", (long long)json_integer_value(json_object_get(row, "skipped_steps")));
    if (!isnan(peak))
        fprintf(out, "   peak %s", zt_format_bytes(peak, d, sizeof d));
    fputs(eta, out);
}

static void show_rows(struct local *l, const json_t *rows) {
    bool terminal = isatty(STDERR_FILENO);
    size_t i, n = json_array_size(rows);
    const json_t *row;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        int64_t step = (int64_t)json_integer_value(json_object_get(row, "step"));
        add_row(l, row);
        bool due = l->t.steps == 1 || step % l->spec->metrics.log_freq == 0 || step == l->steps;
        if (!terminal && due) {
            print_step(l, row, l->lines);
            fputc('\n', l->lines);
        }
        if (terminal && i + 1 == n) {
            fputs("\r\033[K", stderr);
            print_step(l, row, stderr);
            l->line_open = true;
        }
    }
    fflush(l->lines);
    fflush(stderr);
}

/* What is new; a coordinator that is just being restarted is no failure. */
static int look(struct local *l, struct zt_answer *a, struct zt_error *err) {
    json_t *rows = json_array();
    int rc = zt_fetch_run(&l->source, l->run, false, a, err);
    if (rc == 0) {
        const Zt__RunSummary *s = a->env->run_detail->summary;
        l->steps = s->has_steps && s->steps > 0 ? s->steps : l->spec->training.steps;
        struct zt_options all = {.command = ZT_CMD_METRICS};
        rc = zt_fetch_metrics(&l->source, &all, l->run, false, l->last_step, rows, &l->last_step, err);
        show_rows(l, rows);
    }
    if (rc == 0) {
        char *text = NULL;
        size_t n = 0;
        FILE *mem = open_memstream(&text, &n);
        if (mem) {
            rc = zt_follow_events(l->events, &l->source, mem, ZT_LEVEL_WARNING, err);
            fclose(mem);
            if (n > 0) {
                end_line(l);
                fputs(text, stderr);
            }
        }
        free(text);
    }
    json_decref(rows);
    if (rc)
        zt_answer_free(a);
    return rc == ZT_EBUSY ? ZT_EUNREACHABLE : rc; /* it is stopping, or has too much to do: ask again */
}

static void heed_interrupts(struct local *l) {
    struct zt_error err;
    l->late = l->late || (l->o->timeout > 0 && zt_now() > l->begun + l->o->timeout);
    if ((interrupts == 0 && !l->late && !l->enough) || l->cancelled)
        return;
    end_line(l);
    if (interrupts > 0 || l->late)
        fprintf(stderr, "zctl: %s: cancelling the run%s\n", interrupts > 0 ? "interrupted" : "time is up",
                interrupts > 0 ? " (again: kill it)" : "");
    l->cancelled = zt_cancel_run(&l->source, l->run, &err) == 0;
}

/* Until the run has ended: 0 and its last state in *a. */
static int follow(struct local *l, struct zt_answer *a, struct zt_error *err) {
    double unreachable_since = 0;
    for (;;) {
        int rc = zt_local_mind(&l->here, err);
        if (rc)
            return rc;
        heed_interrupts(l);
        rc = look(l, a, err);
        if (rc == 0 && l->end && l->end->enough && !l->enough)
            l->enough = l->end->enough(l->end->arg, &l->source, a->env->run_detail);
        if (rc == 0 && zt_exit_of_state(a->env->run_detail->summary->state) >= 0)
            return 0;
        if (rc == 0)
            zt_answer_free(a);
        if (rc && rc != ZT_EUNREACHABLE)
            return rc;
        unreachable_since = rc == 0 ? 0 : unreachable_since > 0 ? unreachable_since : zt_now();
        if (unreachable_since > 0 && zt_now() - unreachable_since > 60)
            return rc;
        zt_pause(TICK_SECONDS);
    }
}

/* ---------------------------------------------------------------------------------- summary */

/* Per rank the window with the highest peak. */
static json_t *peak_rows(struct local *l, const Zt__RunDetail *d) {
    json_t *memory = NULL, *best = json_array();
    struct zt_error err;
    size_t i, k;
    json_t *row, *old;
    if (zt_fetch_memory(&l->source, l->run, &memory, &err))
        return best;
    json_array_foreach(json_object_get(memory, "ranks"), i, row) {
        json_int_t rank = json_integer_value(json_object_get(row, "rank"));
        bool found = false;
        for (size_t r = 0; r < d->n_ranks; r++)
            if ((json_int_t)d->ranks[r]->rank == rank)
                json_object_set_new(row, "worker", zt_json_text(d->ranks[r]->worker));
        json_array_foreach(best, k, old) {
            if (json_integer_value(json_object_get(old, "rank")) != rank)
                continue;
            found = true;
            if (json_number_value(zt_json_at(row, "measured.peak_allocated_bytes")) >
                json_number_value(zt_json_at(old, "measured.peak_allocated_bytes")))
                json_array_set(best, k, row);
            break;
        }
        if (!found)
            json_array_append(best, row);
    }
    json_decref(memory);
    return best;
}

static void summary_exposed(const struct totals *t) {
    char a[32];
    printf("exposed   %s of communication was not hidden behind computation",
           zt_format_seconds(t->exposed, a, sizeof a));
    if (t->seconds > 0)
        printf(", %.1f %% of the step time", 100 * t->exposed / t->seconds);
    if (t->comm > 0)
        printf("; %s in all", zt_format_seconds(t->comm, a, sizeof a));
    putchar('\n');
    for (int i = 0; i < t->n_pairs; i++)
        printf("          %-28s %s\n", t->pair[i].name, zt_format_seconds(t->pair[i].seconds, a, sizeof a));
}

static void summary_text(struct local *l, const Zt__RunDetail *d, const json_t *peaks) {
    static const struct zt_column columns[] = {
        {"RANK", "rank", ZT_CELL_COUNT, 0},
        {"WORKER", "worker", ZT_CELL_TEXT, 0},
        {"PEAK ALLOCATED", "measured.peak_allocated_bytes", ZT_CELL_BYTES, 0},
        {"RESERVED", "measured.peak_reserved_bytes", ZT_CELL_BYTES, 0},
        {"PARAMETERS", "measured.at_peak.parameters", ZT_CELL_BYTES, 0},
        {"GRADIENTS", "measured.at_peak.gradients", ZT_CELL_BYTES, 0},
        {"OPTIMIZER", "measured.at_peak.optimizer", ZT_CELL_BYTES, 0},
        {"ACTIVATIONS", "measured.at_peak.activations", ZT_CELL_BYTES, 0},
        {"TEMPORARY", "measured.at_peak.temporary", ZT_CELL_BYTES, 0},
        {"COMMUNICATION", "measured.at_peak.communication", ZT_CELL_BYTES, 0},
        {"PHASE", "measured.phase_of_peak", ZT_CELL_TEXT, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0},
    };
    const struct totals *t = &l->t;
    struct zt_error err;
    char line[1024], a[40], b[40];
    bool color = zt_color_on(l->o, stdout);
    const char *state = d->summary->state;
    printf("\nrun       %s \"%s\" %s%s%s after %s, generation %u\n", l->run, d->summary->name,
           zt_state_color(state, color), state, ZT_COLOR_RESET(color),
           zt_format_seconds(zt_now() - l->begun, a, sizeof a),
           d->summary->has_generation ? d->summary->generation : 0);
    if (zt_exit_of_state(state) != ZT_EXIT_OK)
        printf("because   %s\n", zt_state_line(d, line, sizeof line));
    if (t->steps > 0) {
        printf("loss      %.4f -> %.4f in %s steps", t->first_loss, t->last_loss,
               zt_format_count(t->steps, a, sizeof a));
        if (!isnan(t->eval_loss))
            printf("; evaluation %.4f, perplexity %.3f", t->eval_loss, exp(t->eval_loss));
        putchar('\n');
        bool steady = t->steady_seconds > 0;
        double seconds = steady ? t->steady_seconds : t->seconds;
        double tokens = (double)(steady ? t->steady_tokens : t->tokens);
        printf("speed     %s tokens/s, %s tokens in all\n",
               zt_format_count((int64_t)(seconds > 0 ? tokens / seconds : 0), a, sizeof a),
               zt_format_count(t->tokens, b, sizeof b));
        summary_exposed(t);
    }
    if (json_array_size(peaks) > 0) {
        puts("\nmemory of each rank at its peak:");
        zt_print_table(stdout, peaks, columns, &err);
        putchar('\n');
    }
    if (d->parameter_hash && d->parameter_hash[0])
        printf("hash      %s (parameters after the last step)\n", d->parameter_hash);
    printf("more      zctl --state %s metrics %s\n", l->here.dir, d->summary->name);
}

static void summary_json(struct local *l, const Zt__RunDetail *d, const json_t *peaks) {
    const struct totals *t = &l->t;
    json_t *o = json_object(), *by = json_array();
    bool steady = t->steady_seconds > 0;
    double seconds = steady ? t->steady_seconds : t->seconds;
    for (int i = 0; i < t->n_pairs; i++) {
        const char *slash = strchr(t->pair[i].name, '/');
        json_t *e = json_object();
        json_object_set_new(e, "group", json_stringn(t->pair[i].name, (size_t)(slash - t->pair[i].name)));
        json_object_set_new(e, "kind", json_string(slash + 1));
        json_object_set_new(e, "seconds", zt_json_real(true, t->pair[i].seconds));
        json_array_append_new(by, e);
    }
    json_object_set_new(o, "run", zt_json_text(l->run));
    json_object_set_new(o, "name", zt_json_text(d->summary->name));
    json_object_set_new(o, "state", zt_json_text(d->summary->state));
    json_object_set_new(o, "reason", zt_json_text(d->summary->reason));
    json_object_set_new(o, "steps", json_integer(t->steps));
    json_object_set_new(o, "generation", zt_json_int(d->summary->has_generation, d->summary->generation));
    json_object_set_new(o, "first_loss", zt_json_real(t->steps > 0, t->first_loss));
    json_object_set_new(o, "last_loss", zt_json_real(t->steps > 0, t->last_loss));
    json_object_set_new(o, "eval_loss", zt_json_real(true, t->eval_loss));
    json_object_set_new(o, "tokens", json_integer(t->tokens));
    json_object_set_new(o, "tokens_per_second",
                        zt_json_real(seconds > 0, (double)(steady ? t->steady_tokens : t->tokens) / seconds));
    json_object_set_new(o, "comm_seconds", zt_json_real(true, t->comm));
    json_object_set_new(o, "exposed_comm_seconds", zt_json_real(true, t->exposed));
    json_object_set_new(o, "exposed_share", zt_json_real(t->seconds > 0, t->exposed / t->seconds));
    json_object_set_new(o, "exposed_by", by);
    json_object_set_new(o, "parameter_hash", zt_json_text(d->parameter_hash));
    json_object_set(o, "ranks", (json_t *)(uintptr_t)peaks);
    json_object_set_new(o, "state_folder", zt_json_text(l->here.dir));
    if (l->o->format == ZT_FORMAT_JSON)
        zt_print_json(stdout, o);
    else
        zt_print_json_line(stdout, o);
    json_decref(o);
}

/* Returns the exit code. */
static int summary(struct local *l, const Zt__RunDetail *d) {
    json_t *peaks = peak_rows(l, d);
    if (l->o->format == ZT_FORMAT_TABLE)
        summary_text(l, d, peaks);
    else
        summary_json(l, d, peaks);
    json_decref(peaks);
    return zt_exit_of_state(d->summary->state);
}

/* ---------------------------------------------------------------------------------- command */

static int prepare(struct local *l, struct zt_error *err) {
    l->t.first_loss = l->t.last_loss = l->t.eval_loss = NAN;
    l->lines = l->o->format == ZT_FORMAT_TABLE && !l->end ? stdout : stderr;
    l->here.threads = l->o->threads;
    l->here.before_message = on_message;
    l->here.arg = l;
    return zt_local_prepare(&l->here, l->o->state, err);
}

static int start(struct local *l, struct zt_error *err) {
    struct zt_token token;
    int rc = zt_local_start_coord(&l->here, err);
    if (rc == 0)
        rc = zt_token_load(&zt_sys_posix, l->here.token_path, &token, err);
    if (rc)
        return rc;
    zt_source_at(&l->source, l->here.port, &token, 10);
    for (int i = 0; i < 3; i++) { /* should it die meanwhile, it is started again like later on */
        rc = cancel_leftovers(l, err);
        if (rc != ZT_EUNREACHABLE)
            break;
        zt_pause(0.1);
        struct zt_error why;
        if (zt_local_mind_one(&l->here, -1, &why))
            return zt_fail(err, why.code, "%s", why.msg);
    }
    if (rc == 0)
        rc = zt_local_start_workers(&l->here, err);
    if (rc == 0)
        rc = submit(l, err);
    if (rc == 0) {
        struct zt_options fo = {.command = ZT_CMD_EVENTS};
        l->events = zt_follow_new(&fo, l->run);
        rc = l->events ? 0 : zt_fail(err, ZT_ENOMEM, "no memory");
        if (rc == 0)
            zt_follow_news(l->events);
    }
    return rc;
}

static int run_local(struct local *l) {
    struct zt_answer a = {0};
    struct zt_error err;
    int code;
    l->begun = zt_now();
    int rc = prepare(l, &err);
    if (rc == 0)
        rc = start(l, &err);
    if (rc == 0)
        rc = follow(l, &a, &err);
    end_line(l);
    if (rc == 0) {
        code = l->end ? l->end->tell(l->end->arg, &l->source, a.env->run_detail) : summary(l, a.env->run_detail);
        if (code == ZT_EXIT_CANCELLED && interrupts == 0 && l->late)
            code = ZT_EXIT_TIMEOUT;
    } else {
        code = zt_exit_code(rc);
        zt_report(rc, &err);
    }
    zt_answer_free(&a);
    zt_source_close(&l->source);
    zt_local_stop(&l->here);
    zt_follow_free(l->events);
    return code;
}

/* Before anything is started: the workers will offer what they are given. */
static int plan_run(struct local *l, struct zt_error *err) {
    struct zt_options o = *l->o;
    struct zt_connected c = {0};
    o.workers = l->here.workers;
    if (l->here.gib > 0)
        zt_connected_add(&c, zt_predict_capacity(l->spec, (int64_t)(l->here.gib * (double)ZT_GIB)), l->here.workers);
    return zt_plan_submit(&o, l->file, &c, &l->plan, &l->forced, err);
}

int zt_run_here(const struct zt_options *o, struct zt_run_file *file, const struct zt_run_end *end) {
    static struct zt_spec spec;
    static struct local l;
    struct zt_error err;
    memset(&l, 0, sizeof l); /* one after another may be run */
    spec = file->spec;
    spec.verbatim = NULL;
    int rc = zt_spec_resolve(&spec, o->workers, file->file, &err);
    if (rc)
        return zt_report_bare(rc, &err);
    zt_print_notes(&file->spec);
    zt_print_disk_space(&file->spec);
    l.o = o;
    l.end = end;
    l.file = file;
    l.spec = &spec;
    l.here.workers = spec.workers;
    l.here.gib = o->memory_gib > 0 ? o->memory_gib : zt_memory_share(l.here.workers);
    rc = plan_run(&l, &err);
    if (rc)
        return zt_report(rc, &err);
    zt_watch_interrupts();
    int code = run_local(&l);
    free(l.plan);
    return code;
}

int zt_cmd_run(const struct zt_options *o) {
    static struct zt_run_file file;
    struct zt_options there = *o;
    struct zt_error err;
    char dir[1024];
    int rc = o->accept_batch_change && !o->resume ? zt_fail(&err, ZT_EINVAL, "--accept-batch-change goes with --resume RUN") : 0;
    if (rc == 0 && o->subject)
        rc = zt_run_file_load(o, &file, &err);
    if (rc == 0 && o->resume) {
        rc = zt_run_file_resume_here(o, &file, dir, sizeof dir, &err);
        there.state = dir;
    }
    int code = rc ? zt_report_bare(rc, &err) : zt_run_here(&there, &file, NULL);
    zt_run_file_free(&file);
    return code;
}
