/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options.h: the one table of zctl's commands and options. Parsing, `zctl help` and
 * `zctl help COMMAND` are generated from it. Strings point into argv or the environment; nothing is
 * owned. One thread. */
#ifndef ZT_ZCTL_OPTIONS_H
#define ZT_ZCTL_OPTIONS_H
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "core/error.h"

enum zt_command {
    ZT_CMD_RUN = 0, ZT_CMD_PROBE, ZT_CMD_SUBMIT, ZT_CMD_VALIDATE, ZT_CMD_PLAN, ZT_CMD_ADVISE, ZT_CMD_CONVERT, ZT_CMD_EXPLAIN, ZT_CMD_DTYPES, ZT_CMD_STATUS,
    ZT_CMD_LIST, ZT_CMD_WATCH, ZT_CMD_METRICS, ZT_CMD_MEMORY, ZT_CMD_LOGS, ZT_CMD_EVENTS, ZT_CMD_CANCEL, ZT_CMD_WAIT,
    ZT_CMD_WORKERS, ZT_CMD_ESTIMATE, ZT_CMD_CALIBRATE, ZT_CMD_CHECKPOINT, ZT_CMD_DRILL, ZT_CMD_IMPORT, ZT_CMD_EXPORT, ZT_CMD_SAMPLE,
    ZT_CMD_VERSION, ZT_CMD_HELP, ZT_CMD_COUNT
};
/* Words after `zctl checkpoint`, in the order of zt_checkpoint_actions, which ends with NULL. */
enum zt_checkpoint_action {
    ZT_CHECKPOINT_LS = 0, ZT_CHECKPOINT_SHOW, ZT_CHECKPOINT_VERIFY, ZT_CHECKPOINT_PIN, ZT_CHECKPOINT_UNPIN, ZT_CHECKPOINT_RM,
    ZT_CHECKPOINT_GC, ZT_CHECKPOINT_DIFF
};
extern const char *const zt_checkpoint_actions[];
enum zt_format { ZT_FORMAT_TABLE = 0, ZT_FORMAT_JSON, ZT_FORMAT_JSONL, ZT_FORMAT_CSV };
enum zt_color { ZT_COLOR_AUTO = 0, ZT_COLOR_ALWAYS, ZT_COLOR_NEVER };

/* What only `zctl estimate` takes: kept as typed, read by estimate.c, which knows what belongs together. */
enum zt_estimate_option {
    ZT_EST_PARAMS = 0, ZT_EST_MODEL, ZT_EST_SHARDS, ZT_EST_REPLICAS, ZT_EST_TP, ZT_EST_TP_REPLICATED, ZT_EST_TRAINABLE,
    ZT_EST_LORA, ZT_EST_NO_VIEW, ZT_EST_MICRO_BATCH, ZT_EST_MICRO_STEPS, ZT_EST_LIKE, ZT_EST_LARGEST, ZT_EST_PER_NODE,
    ZT_EST_WEIGHTS, ZT_EST_TRAFFIC, ZT_EST_REDUCE, ZT_EST_BANDWIDTH, ZT_EST_COLLECTIVE, ZT_EST_BYTES, ZT_EST_RANKS,
    ZT_EST_SECONDS, ZT_EST_BUSBW, ZT_EST_ALGBW, ZT_EST_BUCKET, ZT_EST_UNIT,
    ZT_EST_SEQ, ZT_EST_RECOMPUTE, ZT_EST_SEQUENCE_PARALLEL, ZT_EST_DIM, ZT_EST_HEADS, ZT_EST_LAYERS, ZT_EST_COUNT
};

#define ZT_MAX_SETS 64
#define ZT_MAX_RANKS 256
#define ZT_MAX_SWEEPS 6

struct zt_options {
    enum zt_command command;
    const char *subject;          /* FILE, RUN, MODE or the command that help is about; NULL: not given */
    const char *action;           /* checkpoint: one of zt_checkpoint_actions */
    const char *other;            /* a second word: checkpoint diff, export; NULL: not given */
    bool help;
    /* everywhere */
    const char *coord, *token_file, *state;
    enum zt_format format;
    enum zt_color color;
    double timeout;               /* seconds; 0 = not given */
    const char *resume;           /* run, submit: RUN[@STEP]; NULL: not given */
    bool accept_batch_change;
    bool dry_run;                 /* checkpoint gc */
    int resume_workers;           /* drill; 0 = not given */
    /* run, submit, validate */
    const char *set[ZT_MAX_SETS];
    int n_set;
    const char *name;
    int workers;                  /* 0 = not given */
    bool follow, show;
    bool force;                   /* run, submit: although the plan fits nowhere */
    const char *out_file;         /* convert: the run file to write; NULL: standard output */
    /* explain */
    const char *file, *recipe;    /* NULL: not given */
    int shard, replicate;         /* 0 = not given */
    const char *unit;             /* NULL: not given */
    /* plan */
    double capacity_gib;          /* 0 = not given, as all below */
    int nodes, gpus_per_node;
    double straggler;
    const char *sweep[ZT_MAX_SWEEPS]; /* KEY=A,B,C */
    int n_sweep;
    bool schedule, units;
    const char *trace;            /* a file to write; NULL: not given */
    /* run */
    double memory_gib;            /* 0 = not given */
    int64_t steps;                /* probe, drill; 0 = not given */
    int threads;
    /* reading */
    bool ranks_all;               /* --rank all */
    uint32_t rank[ZT_MAX_RANKS];
    int n_rank;
    int64_t step_from, step_to;   /* --step A:B; to 0 = the end */
    int64_t every;                /* 0 = every step */
    int attempt, tail, limit;     /* 0 = not given */
    bool active;
    bool curve;                   /* memory: one steady step of the plan */
    bool all;                     /* events: those of level debug too */
    double interval;
    /* estimate */
    const char *estimate[ZT_EST_COUNT]; /* NULL: not given; "" where there is no value to give */
    const char *svg;              /* a chart to write; NULL: none */
    /* calibrate */
    double budget_gib;            /* advise; 0 = not given */
    bool select;                  /* advise: the table for choosing a mode */
    const char *device;           /* name of an entry of the table of devices; NULL: not given */
    bool comm;
    double seconds;               /* 0 = not given */
    /* import, export, sample; NULL, 0: not given */
    const char *out_folder, *dtype, *prompt;
    bool merge_lora;
    double max_shard_gib, temperature;
    int64_t tokens, top_k;
    uint64_t seed;
};

/* 0, or ZT_EINVAL with a message that names the nearest valid word. */
int zt_options_parse(int argc, char *const *argv, struct zt_options *o, struct zt_error *err);
void zt_help(FILE *out);
void zt_help_command(FILE *out, enum zt_command c);
/* text from column `column` on, its words wrapped at column 96, following lines indented. */
void zt_wrap(FILE *out, int column, int indent, const char *text);
/* -1 when there is no such command. */
int zt_command_find(const char *name);
const char *zt_command_name(enum zt_command c);
/* A row of the table of commands: what help says of it. subject NULL: takes no word. */
struct zt_command_row { const char *name, *subject; bool needed; const char *help, *example; };
const struct zt_command_row *zt_command_row(enum zt_command c);

/* The table's rows, for tests and completion: "--tail", 't' or 0, "N" or NULL; NULL past the end. */
struct zt_option { const char *name; char letter; const char *arg; uint32_t commands; int id; const char *help; };
const struct zt_option *zt_option_row(int i);
/* Those that `zctl estimate` alone takes (estimate_options.c), whose values are kept as typed; zt_option_row shows them
 * after the others. find: by the name before a "="; parse: argv[*i] is one that find finds; check: none was given to
 * another command. */
const struct zt_option *zt_estimate_option_row(int i);
const struct zt_option *zt_estimate_option_find(const char *text);
int zt_estimate_option_parse(int argc, char *const *argv, int *i, struct zt_options *o, struct zt_error *err);
int zt_estimate_option_check(const struct zt_options *o, const char *command, struct zt_error *err);
/* An option of every command (perhaps but run), not of some. */
bool zt_option_common(const struct zt_option *r);

/* Exit code of a failed function (the list in docs/manual.md): EINVAL 2, ENOTFOUND 3, ... */
int zt_exit_code(int zt_code);
enum {
    ZT_EXIT_OK = 0, ZT_EXIT_FAILED = 1, ZT_EXIT_USAGE = 2, ZT_EXIT_NOTFOUND = 3, ZT_EXIT_AUTH = 4,
    ZT_EXIT_CONFLICT = 5, ZT_EXIT_UNREACHABLE = 6, ZT_EXIT_NOPLACE = 7, ZT_EXIT_VERSION = 8,
    ZT_EXIT_CANCELLED = 9, ZT_EXIT_OTHER = 10, ZT_EXIT_TIMEOUT = 124, ZT_EXIT_INTERRUPT = 130
};

#endif
