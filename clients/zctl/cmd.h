/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/cmd.h: one function per command; each returns the process's exit code and has said on
 * stderr what went wrong. Shared helpers below. One thread. */
#ifndef ZT_ZCTL_CMD_H
#define ZT_ZCTL_CMD_H
#include <jansson.h>
#include "clients/zctl/options.h"
#include "clients/zctl/out.h"
#include "clients/zctl/source.h"
#include "core/spec.h"

int zt_cmd_run(const struct zt_options *o);
int zt_cmd_probe(const struct zt_options *o);
int zt_cmd_submit(const struct zt_options *o);
int zt_cmd_validate(const struct zt_options *o);
int zt_cmd_plan(const struct zt_options *o);
int zt_cmd_advise(const struct zt_options *o);
int zt_cmd_convert(const struct zt_options *o);
int zt_cmd_explain(const struct zt_options *o);
int zt_cmd_dtypes(const struct zt_options *o);
int zt_cmd_status(const struct zt_options *o);
int zt_cmd_list(const struct zt_options *o);
int zt_cmd_watch(const struct zt_options *o);
int zt_cmd_metrics(const struct zt_options *o);
int zt_cmd_memory(const struct zt_options *o);
int zt_cmd_logs(const struct zt_options *o);
int zt_cmd_events(const struct zt_options *o);
int zt_cmd_cancel(const struct zt_options *o);
int zt_cmd_wait(const struct zt_options *o);
int zt_cmd_workers(const struct zt_options *o);
int zt_cmd_estimate(const struct zt_options *o);
int zt_cmd_calibrate(const struct zt_options *o);
int zt_cmd_checkpoint(const struct zt_options *o);
int zt_cmd_drill(const struct zt_options *o);
int zt_cmd_import(const struct zt_options *o);
int zt_cmd_export(const struct zt_options *o);
int zt_cmd_sample(const struct zt_options *o);
int zt_cmd_version(const struct zt_options *o);

/* "zctl: message" on stderr, escaped line by line; returns the exit code of `code`. */
int zt_report(int code, const struct zt_error *err);
/* As zt_report, but the message stands alone (it starts with file:line:col). */
int zt_report_bare(int code, const struct zt_error *err);
/* Exit code of a run's state: SUCCEEDED 0, FAILED 1, CANCELLED 9; -1: not ended. */
int zt_exit_of_state(const char *state);
/* "FAILED: OOM_DEVICE: rank 1 ..." on one line, escaped, in `buf`. */
const char *zt_state_line(const Zt__RunDetail *d, char *buf, size_t n);

/* ---- explain.c, explain_mode.c, explain_run.c ---- */
int zt_explain_mode(const struct zt_options *o); /* o->subject: a mode's name here or elsewhere, or "modes" */
int zt_explain_run(const struct zt_options *o);  /* o->subject: a run */
/* What stands under EXPOSED for one collective: a time, "covered" or "control". */
const char *zt_exposed_word(bool control, double seconds, char *buf, size_t n);

/* ---- run_file.c ---- */
/* RUN@STEP, or the folder of a step or of a run's checkpoints: one with a "/" in it or beginning with ".". */
struct zt_run_at { char run[ZT_PATH_MAX]; int64_t step; /* -1: not given */ bool folder; };
/* ZT_EINVAL says what is expected. */
int zt_run_at_parse(const char *text, struct zt_run_at *out, struct zt_error *err);
#define ZT_RUN_FILE_ADDED 24
struct zt_run_file {
    char *text;
    size_t bytes;
    char file[ZT_PATH_MAX];        /* as typed, for messages */
    char folder[ZT_PATH_MAX];      /* absolute folder of the file */
    const char *set[ZT_MAX_SETS + ZT_RUN_FILE_ADDED];
    char added[ZT_RUN_FILE_ADDED][2 * ZT_PATH_MAX + 32]; /* overrides of ours: absolute paths, the name, what a probe cuts */
    int n_set, n_added;
    struct zt_run_at resume;       /* run "": from the beginning, or as checkpoint.load says */
    bool accept_batch_change;
    struct zt_spec spec;           /* parsed, not resolved */
};
/* The bytes of a file ("-": standard input), malloc'ed; a little more than `most` when there are more, so that
 * whoever reads them sees it. */
int zt_read_text(const char *path, size_t most, char **text, size_t *bytes, struct zt_error *err);
/* Reads, parses and checks; relative paths of data, checkpoints and weights become absolute overrides. */
int zt_run_file_load(const struct zt_options *o, struct zt_run_file *f, struct zt_error *err);
/* Those of the command line and the name of --name, into a file whose text is there; parses. */
int zt_run_file_sets(const struct zt_options *o, struct zt_run_file *f, struct zt_error *err);
/* One more override, after all others; zt_run_file_parse makes them count. At most ZT_RUN_FILE_ADDED. */
int zt_run_file_set(struct zt_run_file *f, const char *key, const char *value, struct zt_error *err);
int zt_run_file_parse(struct zt_run_file *f, struct zt_error *err);
/* Its length, in steps (instead of epochs). The learning rate's warm-up may not be longer; no byte depends on it. */
int zt_run_file_shorten(struct zt_run_file *f, int64_t steps, struct zt_error *err);
void zt_run_file_free(struct zt_run_file *f);

/* ---- resume.c ---- */
/* o->resume: the run is found, and whether it may be gone on from is checked; ZT_EINVAL names the key that must not
 * differ. Without o->subject *f becomes that run's own file, with the overrides of the command line. */
int zt_run_file_resume(const struct zt_options *o, struct zt_source *s, struct zt_run_file *f, struct zt_error *err);
/* For zctl run: dir (n bytes) becomes the state folder that has the run, o->state or one of an earlier zctl run; nobody
 * need be running there. */
int zt_run_file_resume_here(const struct zt_options *o, struct zt_run_file *f, char *dir, size_t n, struct zt_error *err);

/* ---- submit.c ---- */
/* What was accepted but needs a word, on stderr. */
void zt_print_notes(const struct zt_spec *s);
/* A warning on stderr when the folder's file system has no room for the run's checkpoints. */
void zt_print_disk_space(const struct zt_spec *s);
/* Plans the run for the workers there are and says so on stderr. *plan: what goes with the submit (malloc'ed; NULL:
 * none). ZT_ENOPLACE: it fits none of them and --force was not given; *forced: it was. */
struct zt_connected;
int zt_plan_submit(const struct zt_options *o, const struct zt_run_file *f, const struct zt_connected *c, char **plan,
                   bool *forced, struct zt_error *err);
/* A new request key each; f and plan (NULL: none) must live while *req is used. */
struct zt_submit_request { Zt__Envelope env; Zt__Submit submit; uint8_t key[16]; char *sets[ZT_MAX_SETS + ZT_RUN_FILE_ADDED]; };
int zt_submit_request_fill(struct zt_submit_request *r, const struct zt_run_file *f, int workers, const char *plan,
                           bool force, struct zt_error *err);

/* Plans it for the workers that are connected and submits it with its plan; *a is the reply. */
int zt_submit_planned(const struct zt_options *o, const struct zt_run_file *f, struct zt_source *s, struct zt_answer *a,
                      struct zt_error *err);

/* ---- run.c ---- */
/* What to say when the run has ended, instead of zctl run's summary; returns the exit code. */
struct zt_run_end {
    int (*tell)(void *arg, struct zt_source *s, const Zt__RunDetail *d);
    void *arg;
    /* asked while it runs; true: it is cancelled, and that is no failure. NULL: it runs to its end */
    bool (*enough)(void *arg, struct zt_source *s, const Zt__RunDetail *d);
};
/* A private coordinator and workers, the run from start to end, nothing left behind. end: NULL = the summary. */
int zt_run_here(const struct zt_options *o, struct zt_run_file *file, const struct zt_run_end *end);
/* From here on Ctrl-C is counted; the second one ends this process at once. */
void zt_watch_interrupts(void);
int zt_interrupts(void);
int zt_cancel_run(struct zt_source *s, const char *run, struct zt_error *err);

/* ---- read.c ---- */
/* Opens, asks once, and on failure reports: 0 or an exit code. end: closes both; rc is reported. */
int zt_ask_once(const struct zt_options *o, struct zt_source *s, Zt__Envelope *req, struct zt_answer *a);
int zt_ask_end(struct zt_source *s, struct zt_answer *a, int rc, const struct zt_error *err);
/* All step rows (or rank rows) after `after`, as JSON objects; last: the newest step seen. */
int zt_fetch_metrics(struct zt_source *s, const struct zt_options *o, const char *run, bool ranks,
                     int64_t after, json_t *rows, int64_t *last, struct zt_error *err);
/* Columns of a table of step rows; the generation is one of them when there is more than one, loss scale and
 * skipped steps when there are any. */
#define ZT_STEP_COLUMNS 24
void zt_step_columns(const json_t *rows, bool ranks, struct zt_column out[ZT_STEP_COLUMNS]);
int zt_fetch_run(struct zt_source *s, const char *run, bool patient, struct zt_answer *a,
                 struct zt_error *err);

/* ---- status.c ---- */
void zt_print_run(FILE *out, const struct zt_options *o, const Zt__RunDetail *d);
extern const struct zt_column zt_run_columns[]; /* of rows of zt_json_summary */

/* ---- memory.c ---- */
/* What the newest generation that ran out of memory said: its `oom` with generation, rank and worker; null
 * when none did. */
json_t *zt_oom_of(const Zt__RunDetail *d);
int zt_print_oom(FILE *out, const json_t *oom, struct zt_error *err);
/* Predicted and measured windows of all ranks. */
int zt_fetch_memory(struct zt_source *s, const char *run, json_t **reply, struct zt_error *err);
/* Rows of a reply's `ranks`: the two peaks side by side with their differences, and what of their composition differs. */
int zt_print_memory_rows(FILE *out, const json_t *rows, struct zt_error *err);
/* The lines of zctl status: predicted against measured, and where memory ran out. */
void zt_print_memory_lines(FILE *out, const Zt__RunDetail *d);

/* One steady step of a plan with details: a table of the units it goes through, or head with `curve` added. */
struct zt_plan;
int zt_print_curve(const struct zt_options *o, json_t *head, const struct zt_plan *p, struct zt_error *err);

/* ---- explain_mode.c ---- */
/* The recipe of that name after --recipe; ZT_EINVAL says which there are. */
struct zt_recipe;
int zt_recipe_asked(const char *name, const struct zt_recipe **r, struct zt_error *err);

/* ---- follow.c ---- */
struct zt_follow;
/* Prints new log lines and events of a run to `out` until the next call. */
struct zt_follow *zt_follow_new(const struct zt_options *o, const char *run);
void zt_follow_free(struct zt_follow *f);
/* Everything there is now; state: the run's, by the logs' own answer. */
int zt_follow_logs(struct zt_follow *f, struct zt_source *s, FILE *out, struct zt_error *err);
enum { ZT_LEVEL_DEBUG = 0, ZT_LEVEL_INFO, ZT_LEVEL_WARNING, ZT_LEVEL_ERROR };
int zt_follow_events(struct zt_follow *f, struct zt_source *s, FILE *out, uint32_t least_level,
                     struct zt_error *err);
/* From here on zt_follow_events prints what became of checkpoints too, whatever its level. */
void zt_follow_news(struct zt_follow *f);
/* Prints what is new until the run has ended and its last lines are in. On success *a is the run as it ended
 * (the caller's). */
int zt_follow_to_end(struct zt_follow *f, struct zt_source *s, bool logs, bool events, FILE *out, struct zt_answer *a,
                     struct zt_error *err);
void zt_follow_flush(struct zt_follow *f, FILE *out); /* lines without their end */
/* Says nothing until the run has ended; *a is the run as it ended (the caller's). Ctrl-C (zt_watch_interrupts), or
 * the end of --timeout (*late), cancels it and waits for that. */
int zt_await_run(const struct zt_options *o, struct zt_source *s, const char *run, struct zt_answer *a, bool *late,
                 struct zt_error *err);
/* After this Ctrl-C leaves with 130 and says that the run goes on. */
void zt_detach_on_interrupt(void);

#endif
