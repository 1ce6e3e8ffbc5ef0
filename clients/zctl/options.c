/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options.c: the table and its parser; the help made from it is in options_help.c. */
#include "clients/zctl/options.h"
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/units.h"

static const struct zt_command_row commands[] = {
    [ZT_CMD_RUN] = {"run", "FILE", true,
                    "Train on this machine: starts a private coordinator and workers, follows the run, "
                    "prints a summary and stops what it started. Ctrl-C cancels the run, a second one "
                    "kills it.",
                    "zctl run examples/quickstart.yaml --workers 4"},
    [ZT_CMD_PROBE] = {"probe", "FILE", true,
                      "Run a few whole steps and one evaluation on real workers (those of --coord, else its own, as zctl "
                      "run starts them) and show the peaks of every window and rank beside the plan. The run is the "
                      "file's but for its name, NAME-probe, and its length. Exit code 0: it fits; 7: memory ran out.",
                      "zctl probe run.yaml --workers 4"},
    [ZT_CMD_SUBMIT] = {"submit", "FILE", true, "Check a run file, plan its memory, and hand both to the coordinator. Refused (exit code 7) when "
                       "it fits no connected worker.",
                       "zctl submit run.yaml --set training.steps=100 -f"},
    [ZT_CMD_VALIDATE] = {"validate", "FILE", true,
                         "Check a run file without a coordinator; problems are shown as "
                         "FILE:LINE:COLUMN: KEY: REASON.",
                         "zctl validate run.yaml --workers 8"},
    [ZT_CMD_PLAN] = {"plan", "FILE", true,
                     "What a run will need and how long a step takes, before anything runs: memory of each rank to the "
                     "byte, the other modes beside it, traffic, and estimated times. For this machine, the workers "
                     "that are connected, or a device of the table. Exit code 7 when it does not fit.",
                     "zctl plan run.yaml --device h200 --nodes 2 --gpus-per-node 8"},
    [ZT_CMD_ADVISE] = {"advise", "FILE|RUN", true,
                       "Which changes of a run file make it fit, each planned, the cheapest first; or, where there is room, "
                       "what would make it faster. With a RUN: of a run that ran out of memory, for the memory that it had. "
                       "Exit code 7 when nothing fits.",
                       "zctl advise run.yaml --device a100-80 --nodes 2 --gpus-per-node 8"},
    [ZT_CMD_CONVERT] = {"convert", "FILE", true,
                        "Turn a DeepSpeed configuration into a run file and say of every key what became of it. "
                        "Nothing is written when a key asks for what this version does not do; what the file does "
                        "not say is marked FILL_IN.",
                        "zctl convert ds_config.json --workers 4 -o run.yaml"},
    [ZT_CMD_EXPLAIN] = {"explain", "MODE|RUN", true,
                        "What a sharding mode holds, sends and when (ddp, zero1, zero2, zero3, fsdp, hsdp, the "
                        "names of other programs; modes: all of them side by side). With a RUN: the collectives "
                        "of one of its steps, in order and with the reason of each.",
                        "zctl explain zero3 --shard 8 --recipe mixed16"},
    [ZT_CMD_DTYPES] = {"dtypes", "RUN", true,
                       "The number formats of a run: as configured, as stored, as really used (read after its first "
                       "update).",
                       "zctl dtypes quickstart"},
    [ZT_CMD_STATUS] = {"status", "RUN", false, "What runs where and how far; with RUN, that run in detail.",
                       "zctl status quickstart"},
    [ZT_CMD_LIST] = {"list", NULL, false, "All runs, the newest first, ended ones too.",
                     "zctl list --active"},
    [ZT_CMD_WATCH] = {"watch", "RUN", false, "status again and again until the run ends.",
                      "zctl watch quickstart --interval 1"},
    [ZT_CMD_METRICS] = {"metrics", "RUN", true,
                        "Loss, speed, memory peaks and exposed communication of every step.",
                        "zctl metrics quickstart --rank all -o jsonl"},
    [ZT_CMD_MEMORY] = {"memory", "RUN", true,
                       "Predicted and measured peaks per rank and window, and what the memory was for.",
                       "zctl memory quickstart"},
    [ZT_CMD_LOGS] = {"logs", "RUN", true, "Output of the trainers.", "zctl logs quickstart -f --rank 0"},
    [ZT_CMD_EVENTS] = {"events", "RUN", false, "What happened: states, faults, warnings.",
                       "zctl events quickstart"},
    [ZT_CMD_CANCEL] = {"cancel", "RUN", true, "End a run. Doing it twice is no error.",
                       "zctl cancel quickstart"},
    [ZT_CMD_WAIT] = {"wait", "RUN", true, "Wait until a run has ended; the exit code says how.",
                     "zctl wait quickstart --timeout 600"},
    [ZT_CMD_WORKERS] = {"workers", NULL, false, "The workers and what they do.", "zctl workers"},
    [ZT_CMD_ESTIMATE] = {"estimate", NULL, false,
                         "Arithmetic for those who have no run file: bytes per rank of a number of parameters in every "
                         "sharding mode, what other programs estimate, bytes sent per step, bandwidths of a collective.",
                         "zctl estimate --params 1e9 --shards 8"},
    [ZT_CMD_CALIBRATE] = {"calibrate", NULL, false,
                          "Measure this machine with the kernels that train on it and write the result into the table "
                          "of devices that plans are made for.",
                          "zctl calibrate --workers 2 --comm"},
    [ZT_CMD_CHECKPOINT] = {"checkpoint", "ACTION RUN", true,
                           "What is saved of a run. ls: all of it; show: one, what is in it and who wrote it; verify: read "
                           "everything and compare it with its hashes; pin, unpin: retention leaves it alone; rm: remove "
                           "one; gc: remove what retention lets go and what was left behind; diff A B: compare two, "
                           "element by element. One is named RUN@STEP, RUN (its newest) or, for ls, show, verify and diff, by its folder. "
                           "Exit code 1: verify found a fault, diff a difference.",
                           "zctl checkpoint verify quickstart@1000"},
    [ZT_CMD_DRILL] = {"drill", "FILE", true,
                      "Prove that going on from a checkpoint changes nothing: 2n steps straight through, and n steps, a stop, a "
                      "resume and n more, with a private coordinator as zctl run has it; every step is compared. "
                      "Exit code 0: equal; 1: not, with the first difference.",
                      "zctl drill examples/quickstart.yaml --steps 10 --workers 2"},
    [ZT_CMD_IMPORT] = {"import", "DIR", true,
                       "A Hugging Face folder (config.json, safetensors; gpt2, llama, qwen2, qwen3) as a checkpoint of ours, weights "
                       "only, and the section model of a run file that begins from it. A run can also begin from DIR itself: "
                       "model.init_from: DIR.",
                       "zctl import Qwen2.5-0.5B --out qwen"},
    [ZT_CMD_EXPORT] = {"export", "RUN@STEP", true,
                       "A checkpoint (RUN@STEP, RUN: its newest, or its folder) as a new folder DIR that transformers loads: "
                       "config.json and safetensors. Of a run with adapters they alone are written, as PEFT has them, unless "
                       "--merge-lora is given.",
                       "zctl export quickstart@1000 quickstart-hf"},
    [ZT_CMD_SAMPLE] = {"sample", "RUN@STEP", true,
                       "Go on with a text on this machine's CPU, by a checkpoint (RUN@STEP, RUN: its newest, or a folder) or a "
                       "Hugging Face folder. Every token is a pass over all before it. Ends at --tokens, at the model's "
                       "longest sequence, or at the end token.",
                       "zctl sample quickstart --prompt \"The licence\" --tokens 64"},
    [ZT_CMD_VERSION] = {"version", NULL, false, "Versions of this program and of the coordinator.",
                        "zctl version"},
    [ZT_CMD_HELP] = {"help", "COMMAND", false, "This text, or that of a command.", "zctl help run"},
};

#define ON(c) (1u << ZT_CMD_##c)
#define EVERYWHERE ((1u << ZT_CMD_COUNT) - 1)
#define ELSEWHERE (EVERYWHERE & ~ON(RUN) & ~ON(DRILL)) /* these have a coordinator of their own */

enum {
    OPT_COORD, OPT_TOKEN, OPT_STATE, OPT_SVG, OPT_OUTPUT, OPT_COLOR, OPT_TIMEOUT, OPT_HELP, OPT_SET, OPT_NAME,
    OPT_WORKERS, OPT_FOLLOW, OPT_SHOW, OPT_MEMORY, OPT_THREADS, OPT_RANK, OPT_STEP, OPT_EVERY, OPT_ATTEMPT,
    OPT_TAIL, OPT_LIMIT, OPT_ACTIVE, OPT_ALL, OPT_INTERVAL, OPT_SHARD, OPT_REPLICATE, OPT_RECIPE, OPT_FILE,
    OPT_UNIT, OPT_DEVICE, OPT_COMM, OPT_DURATION, OPT_FORCE, OPT_CURVE, OPT_STEPS, OPT_RESUME, OPT_ACCEPT_BATCH, OPT_RESUME_WORKERS, OPT_DRY_RUN,
    OPT_CAPACITY, OPT_NODES, OPT_GPUS, OPT_SWEEP, OPT_SCHEDULE, OPT_UNITS, OPT_STRAGGLER, OPT_TRACE, OPT_BUDGET, OPT_SELECT,
    OPT_OUT, OPT_DTYPE, OPT_MERGE, OPT_MAX_SHARD, OPT_PROMPT, OPT_TOKENS, OPT_TEMPERATURE, OPT_TOP_K, OPT_SEED
};

static const struct zt_option rows[] = {
    {"--workers", 'w', "N", ON(RUN) | ON(PROBE) | ON(SUBMIT) | ON(VALIDATE) | ON(CONVERT) | ON(EXPLAIN) | ON(CALIBRATE) | ON(PLAN) | ON(ADVISE) | ON(DRILL), OPT_WORKERS,
     "Number of workers; the degrees left out fill them. calibrate: so many compute at once; default 1."},
    {"--set", 0, "KEY=VALUE", ON(RUN) | ON(PROBE) | ON(SUBMIT) | ON(VALIDATE) | ON(EXPLAIN) | ON(PLAN) | ON(ADVISE) | ON(DRILL), OPT_SET,
     "Override a key of the run file; may be given again."},
    {"--name", 0, "NAME", ON(RUN) | ON(PROBE) | ON(SUBMIT), OPT_NAME, "Name of the run instead of the file's."},
    {"--follow", 'f', NULL, ON(SUBMIT) | ON(LOGS) | ON(EVENTS), OPT_FOLLOW,
     "Keep printing until the run ends; Ctrl-C leaves the run alone."},
    {"--force", 0, NULL, ON(RUN) | ON(SUBMIT), OPT_FORCE,
     "Although the plan fits no connected worker (exit code 7 without it)."},
    {"--resume", 0, "RUN[@STEP]", ON(RUN) | ON(SUBMIT), OPT_RESUME,
     "Go on from a checkpoint of RUN; default: its newest. Without FILE with RUN's own run file, --set on top."},
    {"--accept-batch-change", 0, NULL, ON(RUN) | ON(SUBMIT), OPT_ACCEPT_BATCH,
     "With --resume: although the global batch or the tokens of a step differ from RUN's."},
    {"--dry-run", 0, NULL, ON(CHECKPOINT), OPT_DRY_RUN, "gc: say what would be removed, and remove nothing."},
    {"--show", 0, NULL, ON(VALIDATE), OPT_SHOW, "Print the effective configuration."},
    {"--capacity-gib", 0, "X", ON(PLAN) | ON(ADVISE), OPT_CAPACITY,
     "Memory of the allocator of each rank; default: what a connected worker offers, else the device's."},
    {"--nodes", 0, "N", ON(PLAN) | ON(ADVISE), OPT_NODES, "Hosts; with --gpus-per-node instead of --workers."},
    {"--gpus-per-node", 0, "M", ON(PLAN) | ON(ADVISE), OPT_GPUS, "Ranks on each host; default: as the device is usually built in."},
    {"--budget-gib", 0, "X", ON(ADVISE), OPT_BUDGET, "What the peak may reach; default: 92 % of the capacity."},
    {"--select", 0, NULL, ON(ADVISE), OPT_SELECT, "The table for choosing a mode, its premises computed for this run."},
    {"--sweep", 0, "KEY=A,B,C", ON(PLAN), OPT_SWEEP,
     "A row for each value of a key of the run file; given again, for each combination (at most 64)."},
    {"--schedule", 0, NULL, ON(PLAN), OPT_SCHEDULE, "The collectives of one step, in order and with the reason of each."},
    {"--units", 0, NULL, ON(PLAN), OPT_UNITS, "The units: size, padding, groups, resharding, prefetch."},
    {"--trace", 0, "FILE", ON(PLAN), OPT_TRACE, "Write the step for trace viewers (Chrome, Perfetto); - is standard output, without the page."},
    {"--straggler", 0, "F", ON(PLAN), OPT_STRAGGLER, "Times when one rank computes F times slower (above 1)."},
    {"--steps", 0, "N", ON(PROBE) | ON(DRILL), OPT_STEPS,
     "probe: whole steps to run; default 3, and with fewer nothing is called a fit. drill: steps before the stop and after it; default 10."},
    {"--resume-workers", 0, "M", ON(DRILL), OPT_RESUME_WORKERS,
     "Go on with so many workers: losses then agree to 1e-5, samples exactly. Default: as many as before, and equal bits."},
    {"--out", 0, "FOLDER", ON(IMPORT), OPT_OUT, "Folder of the checkpoint, made when missing; default: the name of DIR with -ztrain, here."},
    {"--dtype", 0, "FORMAT", ON(EXPORT), OPT_DTYPE, "bf16 or fp32; default: bf16 where the run's weights are stored so, else fp32."},
    {"--merge-lora", 0, NULL, ON(EXPORT), OPT_MERGE, "Adapters into the weights: base + alpha / rank B A, summed in fp32, rounded once."},
    {"--max-shard-gib", 0, "X", ON(EXPORT), OPT_MAX_SHARD, "Most values in a file; more make several files and an index. Default 4.66 (5 GB)."},
    {"--prompt", 0, "TEXT", ON(SAMPLE), OPT_PROMPT, "What to go on from. A run with tokenizer none: token ids, e.g. \"1 2 3\"."},
    {"--tokens", 0, "N", ON(SAMPLE), OPT_TOKENS, "At most so many more; default 64."},
    {"--temperature", 0, "T", ON(SAMPLE), OPT_TEMPERATURE, "Draw by exp(logit / T); default 0: always the likeliest."},
    {"--top-k", 0, "K", ON(SAMPLE), OPT_TOP_K, "With --temperature: among the K likeliest; default: all."},
    {"--seed", 0, "N", ON(SAMPLE), OPT_SEED, "The same seed gives the same text; default 0."},
    {"--memory-gib", 0, "X", ON(RUN) | ON(PROBE) | ON(DRILL) | ON(SAMPLE), OPT_MEMORY,
     "Memory of each worker; default: its share of half of what is free. sample: the most it may take; default: half of what is free."},
    {"--threads", 0, "N", ON(RUN) | ON(PROBE) | ON(CALIBRATE) | ON(DRILL) | ON(SAMPLE), OPT_THREADS, "Threads of each worker; default: its share of the cores."},
    {"--rank", 0, "all|R,R", ON(METRICS) | ON(LOGS) | ON(MEMORY) | ON(EXPLAIN) | ON(PLAN) | ON(CHECKPOINT), OPT_RANK,
     "Rows per rank: all of them, or a list such as 0,3. explain: default is the rank that the others waited for longest. "
     "plan: the place of these ranks in the mesh. checkpoint show: what these ranks wrote."},
    {"--step", 0, "A:B", ON(METRICS) | ON(EXPLAIN), OPT_STEP,
     "Steps A to B; either may be left out. explain: one step; default is the newest that is held."},
    {"--unit", 0, "NAME", ON(EXPLAIN), OPT_UNIT, "Of a run: only the collectives of this unit, e.g. block3."},
    {"--curve", 0, NULL, ON(MEMORY) | ON(PLAN), OPT_CURVE, "One steady step as planned: allocated bytes by phase and unit."},
    {"--every", 0, "N", ON(METRICS), OPT_EVERY, "Only every Nth step."},
    {"--attempt", 0, "G", ON(LOGS), OPT_ATTEMPT, "Of generation G; default: the newest."},
    {"--tail", 0, "N", ON(LOGS) | ON(METRICS), OPT_TAIL, "Only the last N lines."},
    {"--limit", 0, "N", ON(LIST), OPT_LIMIT, "At most N runs."},
    {"--active", 0, NULL, ON(LIST), OPT_ACTIVE, "Only runs that have not ended."},
    {"--all", 0, NULL, ON(EVENTS), OPT_ALL, "Those of level debug too."},
    {"--interval", 0, "S", ON(WATCH), OPT_INTERVAL, "Seconds between looks; default 2."},
    {"--shard", 0, "N", ON(EXPLAIN), OPT_SHARD, "Of a mode: figures for this shard degree; default 8."},
    {"--replicate", 0, "N", ON(EXPLAIN), OPT_REPLICATE, "Of a mode: figures for so many replicas; default 1, hsdp 2."},
    {"--recipe", 0, "NAME", ON(EXPLAIN) | ON(ESTIMATE), OPT_RECIPE,
     "Of a mode: figures of this precision recipe only. estimate: default mixed16."},
    {"--svg", 0, "FILE", ON(ESTIMATE) | ON(PLAN), OPT_SVG, "Draw a chart (needs the package gnuplot-nox); - is standard output, with nothing else on it."},
    {"--file", 0, "FILE", ON(EXPLAIN), OPT_FILE, "Of a mode: bytes and collectives of this run file's model."},
    {"--device", 0, "NAME", ON(CALIBRATE) | ON(PLAN) | ON(ADVISE), OPT_DEVICE, "plan, advise: what to plan for; default: what the run file asks for. calibrate: the entry to write; default cpu."},
    {"--comm", 0, NULL, ON(CALIBRATE), OPT_COMM,
     "Collectives too: between --workers (two at least), within a host and across two host names on loopback. With "
     "--coord: instead, between the workers that are connected there, within a host and over all of their hosts."},
    {"--duration", 0, "S", ON(CALIBRATE), OPT_DURATION, "Measure for about S seconds; default 30, below 5 only small shapes."},
    {"--coord", 0, "HOST:PORT", ELSEWHERE, OPT_COORD,
     "The coordinator; else ZCTL_COORD, else 127.0.0.1:7000. Not with run and drill."},
    {"--token-file", 0, "FILE", ELSEWHERE, OPT_TOKEN,
     "Key of the coordinator; else ZTRAIN_TOKEN_FILE, else the one of the same user. Not with run and drill."},
    {"--state", 0, "DIR", EVERYWHERE, OPT_STATE,
     "Read a coordinator's state folder; no daemon is needed. With run, probe and drill: the folder to use."},
    {"--output", 'o', "FORMAT", EVERYWHERE, OPT_OUTPUT,
     "table, json, jsonl (one object a line) or csv; else ZCTL_OUTPUT. With convert also the new run file to write."},
    {"--color", 0, "WHEN", EVERYWHERE, OPT_COLOR, "auto, always or never; NO_COLOR is respected."},
    {"--timeout", 0, "S", EVERYWHERE, OPT_TIMEOUT, "Give up after S seconds (exit code 124)."},
    {"--help", 'h', NULL, EVERYWHERE, OPT_HELP, "Help on the command."},
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

const struct zt_option *zt_option_row(int i) {
    return i >= 0 && i < N_ROWS ? &rows[i] : zt_estimate_option_row(i - N_ROWS);
}

bool zt_option_common(const struct zt_option *r) { return (r->commands & ELSEWHERE) == ELSEWHERE; }

const char *zt_command_name(enum zt_command c) { return commands[c].name; }

const struct zt_command_row *zt_command_row(enum zt_command c) { return &commands[c]; }

int zt_command_find(const char *name) {
    for (int i = 0; i < ZT_CMD_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0)
            return i;
    return -1;
}

int zt_exit_code(int code) {
    switch (code) {
    case ZT_OK: return ZT_EXIT_OK;
    case ZT_EINVAL:
    case ZT_EUNSUPPORTED: return ZT_EXIT_USAGE;
    case ZT_ENOTFOUND: return ZT_EXIT_NOTFOUND;
    case ZT_EAUTH: return ZT_EXIT_AUTH;
    case ZT_ECONFLICT: return ZT_EXIT_CONFLICT;
    case ZT_EUNREACHABLE: return ZT_EXIT_UNREACHABLE;
    case ZT_ENOPLACE: return ZT_EXIT_NOPLACE;
    case ZT_EVERSION: return ZT_EXIT_VERSION;
    case ZT_ECANCELLED: return ZT_EXIT_CANCELLED;
    case ZT_ETIMEOUT: return ZT_EXIT_TIMEOUT;
    default: return ZT_EXIT_OTHER;
    }
}

const char *const zt_checkpoint_actions[] = {"ls", "show", "verify", "pin", "unpin", "rm", "gc", "diff", NULL};

/* ---------------------------------------------------------------------------------- values */

static int bad_value(struct zt_error *err, const char *option, const char *value, const char *wanted) {
    return zt_fail(err, ZT_EINVAL, "%s %.60s: expected %s", option, value, wanted);
}

static int whole(const char *option, const char *value, int64_t min, int64_t max, int64_t *out,
                 struct zt_error *err) {
    char *end, wanted[80];
    errno = 0;
    long long v = strtoll(value, &end, 10);
    bool digits = value[0] >= '0' && value[0] <= '9' && *end == '\0';
    if (!digits || errno == ERANGE || v < min || v > max) {
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)min,
                 (long long)max);
        return bad_value(err, option, value, wanted);
    }
    *out = v;
    return 0;
}

static int count(const char *option, const char *value, int max, int *out, struct zt_error *err) {
    int64_t v = 0;
    int rc = whole(option, value, 1, max, &v, err);
    *out = (int)v;
    return rc;
}

static int seconds(const char *option, const char *value, double max, double *out, struct zt_error *err) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(v) || v <= 0 || v > max)
        return bad_value(err, option, value, "a number above 0");
    *out = v;
    return 0;
}

static int temperature(const char *value, struct zt_options *o, struct zt_error *err) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end != '\0' || !(v >= 0 && v <= 1e6))
        return bad_value(err, "--temperature", value, "a number from 0 on");
    o->temperature = v;
    return 0;
}

static int seed(const char *value, struct zt_options *o, struct zt_error *err) {
    int64_t v = 0;
    int rc = whole("--seed", value, 0, INT64_MAX, &v, err);
    o->seed = (uint64_t)v;
    return rc;
}

static int word(const char *option, const char *value, const char *const *names, int n, int *out,
                struct zt_error *err) {
    char list[120] = "one of ";
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], value) == 0) {
            *out = i;
            return 0;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    return bad_value(err, option, value, list);
}

static int format(const char *option, const char *value, struct zt_options *o, struct zt_error *err) {
    static const char *const names[] = {"table", "json", "jsonl", "csv"};
    int v = 0, rc = word(option, value, names, 4, &v, err);
    if (rc == 0)
        o->format = (enum zt_format)v;
    return rc;
}

/* A word is a format, anything else a file, which only convert writes (check_used). */
static int output(const char *value, struct zt_options *o, struct zt_error *err) {
    if (format("--output", value, o, err) != 0)
        o->out_file = value;
    return 0;
}

static int color(const char *value, struct zt_options *o, struct zt_error *err) {
    static const char *const names[] = {"auto", "always", "never"};
    int v = 0, rc = word("--color", value, names, 3, &v, err);
    o->color = (enum zt_color)v;
    return rc;
}

static int ranks(const char *value, struct zt_options *o, struct zt_error *err) {
    if (strcmp(value, "all") == 0) {
        o->ranks_all = true;
        return 0;
    }
    for (const char *p = value;; p++) {
        char one[16];
        size_t n = strcspn(p, ",");
        int64_t r = 0;
        if (n >= sizeof one || o->n_rank == ZT_MAX_RANKS)
            return bad_value(err, "--rank", value, "all, or a list of at most 256 ranks such as 0,3");
        memcpy(one, p, n);
        one[n] = '\0';
        if (whole("--rank", one, 0, 65535, &r, err))
            return bad_value(err, "--rank", value, "all, or a list such as 0,3");
        o->rank[o->n_rank++] = (uint32_t)r;
        p += n;
        if (*p == '\0')
            return 0;
    }
}

static int steps(const char *value, struct zt_options *o, struct zt_error *err) {
    const char *colon = strchr(value, ':');
    char from[24];
    const char *wanted = "A:B, A: or :B, steps from 1";
    size_t n = colon ? (size_t)(colon - value) : strlen(value);
    if (n >= sizeof from || value[0] == '\0' || strcmp(value, ":") == 0)
        return bad_value(err, "--step", value, wanted);
    memcpy(from, value, n);
    from[n] = '\0';
    if (n > 0 && whole("--step", from, 1, INT64_MAX / 2, &o->step_from, err))
        return bad_value(err, "--step", value, wanted);
    if (!colon) {
        o->step_to = o->step_from;
        return 0;
    }
    if (colon[1] && whole("--step", colon + 1, 1, INT64_MAX / 2, &o->step_to, err))
        return bad_value(err, "--step", value, wanted);
    if (o->step_to && o->step_to < o->step_from)
        return bad_value(err, "--step", value, "the first step before the last");
    return 0;
}

static int add_set(const char *value, struct zt_options *o, struct zt_error *err) {
    if (o->n_set == ZT_MAX_SETS)
        return zt_fail(err, ZT_EINVAL, "--set: at most %d of them; put them into the run file",
                       ZT_MAX_SETS);
    o->set[o->n_set++] = value;
    return 0;
}

static int add_sweep(const char *value, struct zt_options *o, struct zt_error *err) {
    const char *is = strchr(value, '=');
    if (!is || is == value || !is[1])
        return bad_value(err, "--sweep", value, "KEY=A,B,C, e.g. training.local_batch_size=1,2,4");
    if (o->n_sweep == ZT_MAX_SWEEPS)
        return zt_fail(err, ZT_EINVAL, "--sweep: at most %d keys", ZT_MAX_SWEEPS);
    o->sweep[o->n_sweep++] = value;
    return 0;
}

static int slowdown(const char *option, const char *value, double *out, struct zt_error *err) {
    bool good = seconds(option, value, 1000, out, err) == 0 && *out > 1;
    return good ? 0 : bad_value(err, option, value, "a number above 1, at most 1000");
}

/* Stores one option; v is "" for those without an argument. */
static int store(const struct zt_option *r, const char *v, struct zt_options *o, struct zt_error *err) {
    switch (r->id) {
    case OPT_COORD: o->coord = v; return 0;
    case OPT_TOKEN: o->token_file = v; return 0;
    case OPT_STATE: o->state = v; return 0;
    case OPT_OUTPUT: return output(v, o, err);
    case OPT_COLOR: return color(v, o, err);
    case OPT_TIMEOUT: return seconds(r->name, v, 1e9, &o->timeout, err);
    case OPT_HELP: o->help = true; return 0;
    case OPT_SET: return add_set(v, o, err);
    case OPT_NAME: o->name = v; return 0;
    case OPT_WORKERS: return count(r->name, v, 65536, &o->workers, err);
    case OPT_FOLLOW: o->follow = true; return 0;
    case OPT_FORCE: o->force = true; return 0;
    case OPT_CURVE: o->curve = true; return 0;
    case OPT_SHOW: o->show = true; return 0;
    case OPT_STEPS: return whole(r->name, v, 1, 1000, &o->steps, err);
    case OPT_RESUME: o->resume = v; return 0;
    case OPT_ACCEPT_BATCH: o->accept_batch_change = true; return 0;
    case OPT_RESUME_WORKERS: return count(r->name, v, 65536, &o->resume_workers, err);
    case OPT_DRY_RUN: o->dry_run = true; return 0;
    case OPT_MEMORY: return seconds(r->name, v, 1e6, &o->memory_gib, err);
    case OPT_THREADS: return count(r->name, v, 1024, &o->threads, err);
    case OPT_RANK: return ranks(v, o, err);
    case OPT_STEP: return steps(v, o, err);
    case OPT_UNIT: o->unit = v; return 0;
    case OPT_CAPACITY: return seconds(r->name, v, 1e6, &o->capacity_gib, err);
    case OPT_NODES: return count(r->name, v, 65536, &o->nodes, err);
    case OPT_GPUS: return count(r->name, v, 65536, &o->gpus_per_node, err);
    case OPT_SWEEP: return add_sweep(v, o, err);
    case OPT_SCHEDULE: o->schedule = true; return 0;
    case OPT_UNITS: o->units = true; return 0;
    case OPT_TRACE: o->trace = v; return 0;
    case OPT_STRAGGLER: return slowdown(r->name, v, &o->straggler, err);
    case OPT_EVERY: return whole(r->name, v, 1, INT64_MAX / 2, &o->every, err);
    case OPT_ATTEMPT: return count(r->name, v, 1 << 30, &o->attempt, err);
    case OPT_TAIL: return count(r->name, v, 1 << 30, &o->tail, err);
    case OPT_LIMIT: return count(r->name, v, 1 << 20, &o->limit, err);
    case OPT_ACTIVE: o->active = true; return 0;
    case OPT_ALL: o->all = true; return 0;
    case OPT_SHARD: return count(r->name, v, 65536, &o->shard, err);
    case OPT_REPLICATE: return count(r->name, v, 65536, &o->replicate, err);
    case OPT_RECIPE: o->recipe = v; return 0;
    case OPT_SVG: o->svg = v; return 0;
    case OPT_FILE: o->file = v; return 0;
    case OPT_BUDGET: return seconds(r->name, v, 1e6, &o->budget_gib, err);
    case OPT_SELECT: o->select = true; return 0;
    case OPT_DEVICE: o->device = v; return 0;
    case OPT_COMM: o->comm = true; return 0;
    case OPT_OUT: o->out_folder = v; return 0;
    case OPT_DTYPE: o->dtype = v; return 0;
    case OPT_MERGE: o->merge_lora = true; return 0;
    case OPT_MAX_SHARD: return seconds(r->name, v, 1e6, &o->max_shard_gib, err);
    case OPT_PROMPT: o->prompt = v; return 0;
    case OPT_TOKENS: return whole(r->name, v, 1, 1 << 24, &o->tokens, err);
    case OPT_TEMPERATURE: return temperature(v, o, err);
    case OPT_TOP_K: return whole(r->name, v, 1, 1 << 24, &o->top_k, err);
    case OPT_SEED: return seed(v, o, err);
    case OPT_DURATION: return seconds(r->name, v, 3600, &o->seconds, err);
    case OPT_INTERVAL: return seconds(r->name, v, 86400, &o->interval, err);
    }
    return zt_fail(err, ZT_EINTERNAL, "option %s has no place", r->name);
}

/* ---------------------------------------------------------------------------------- parsing */

static const struct zt_option *find_option(const char *name, size_t n) {
    for (int i = 0; i < N_ROWS; i++)
        if (strlen(rows[i].name) == n && strncmp(rows[i].name, name, n) == 0)
            return &rows[i];
    return NULL;
}

static const struct zt_option *find_letter(char c) {
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].letter == c)
            return &rows[i];
    return NULL;
}

static int unknown_option(const char *text, int command, struct zt_error *err) {
    const char *names[128];
    int n = 0;
    char word_only[64];
    snprintf(word_only, sizeof word_only, "%.*s", (int)strcspn(text, "="), text);
    for (const struct zt_option *r; n < 128 && (r = zt_option_row(n)) != NULL;)
        names[n++] = r->name;
    const char *near = zt_nearest(word_only, names, n);
    const char *name = command >= 0 ? commands[command].name : "";
    if (near)
        return zt_fail(err, ZT_EINVAL, "unknown option %s (did you mean %s?)", word_only, near);
    return zt_fail(err, ZT_EINVAL, "unknown option %s; see zctl help%s%s", word_only, name[0] ? " " : "",
                   name);
}

static int unknown_command(const char *text, struct zt_error *err) {
    const char *names[ZT_CMD_COUNT];
    for (int i = 0; i < ZT_CMD_COUNT; i++)
        names[i] = commands[i].name;
    const char *near = zt_nearest(text, names, ZT_CMD_COUNT);
    if (near)
        return zt_fail(err, ZT_EINVAL, "unknown command \"%.60s\" (did you mean \"%s\"?)", text, near);
    return zt_fail(err, ZT_EINVAL, "unknown command \"%.60s\"; zctl help lists them", text);
}

/* One option at argv[*i]; moves *i past its argument. */
static int parse_option(int argc, char *const *argv, int *i, struct zt_options *o, bool *used,
                        struct zt_error *err) {
    const char *text = argv[*i], *value = NULL;
    const struct zt_option *r = NULL;
    if (text[1] == '-') {
        size_t n = strcspn(text, "=");
        r = find_option(text, n);
        value = text[n] == '=' ? text + n + 1 : NULL;
    } else {
        r = find_letter(text[1]);
        value = text[2] ? text + 2 : NULL;
    }
    if (!r)
        return unknown_option(text, -1, err);
    if (!r->arg && value)
        return zt_fail(err, ZT_EINVAL, "option %s takes no value", r->name);
    if (r->arg && !value) {
        if (*i + 1 >= argc)
            return zt_fail(err, ZT_EINVAL, "option %s needs a value: %s %s", r->name, r->name, r->arg);
        value = argv[++*i];
    }
    used[r - rows] = true;
    return store(r, value ? value : "", o, err);
}

static int check_used(struct zt_options *o, const bool *used, struct zt_error *err) {
    if (o->out_file && o->command != ZT_CMD_CONVERT)
        return format("--output", o->out_file, o, err); /* says which formats there are */
    for (int i = 0; i < N_ROWS; i++)
        if (used[i] && !(rows[i].commands & (1u << o->command))) {
            if (zt_option_common(&rows[i]))
                return zt_fail(err, ZT_EINVAL,
                               "zctl %s takes no %s: it starts a coordinator of its own%s", commands[o->command].name,
                               rows[i].name, o->command == ZT_CMD_RUN ? "; zctl submit hands the file to one that runs" : "");
            return zt_fail(err, ZT_EINVAL, "zctl %s has no option %s; see zctl help %s",
                           commands[o->command].name, rows[i].name, commands[o->command].name);
        }
    return 0;
}

static int too_much(const char *name, const char *word, struct zt_error *err) {
    return zt_fail(err, ZT_EINVAL, "zctl %s: \"%.60s\" is too much; see zctl help %s", name, word, name);
}

/* The word after `checkpoint`, and what comes with it. */
static int check_action(const struct zt_options *o, struct zt_error *err) {
    int n = 0, at = -1;
    while (zt_checkpoint_actions[n]) {
        if (o->action && strcmp(zt_checkpoint_actions[n], o->action) == 0)
            at = n;
        n++;
    }
    const char *near = o->action && at < 0 ? zt_nearest(o->action, zt_checkpoint_actions, n) : NULL;
    if (o->help)
        return 0;
    if (near)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint: no action \"%.60s\" (did you mean \"%s\"?)", o->action, near);
    if (at < 0)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint: give one of ls, show, verify, pin, unpin, rm, gc, diff; see zctl help "
                                       "checkpoint");
    if (at == ZT_CHECKPOINT_DIFF && o->subject && !o->other)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint diff needs two checkpoints, e.g.: zctl checkpoint diff quickstart@500 "
                                       "quickstart@1000");
    if (at != ZT_CHECKPOINT_DIFF && o->other)
        return too_much(commands[o->command].name, o->other, err);
    return 0;
}

static int check_subject(const struct zt_options *o, int extra, const char *extra_word,
                         struct zt_error *err) {
    const char *name = commands[o->command].name, *subject = commands[o->command].subject;
    bool stored = o->resume != NULL; /* the run file comes from there */
    if (zt_estimate_option_check(o, name, err))
        return err->code;
    if (extra > 0)
        return too_much(name, extra_word, err);
    if (o->command == ZT_CMD_CHECKPOINT && check_action(o, err))
        return err->code;
    if (commands[o->command].needed && !o->subject && !o->help && !stored)
        return zt_fail(err, ZT_EINVAL, "zctl %s needs a %s, e.g.: %s", name, o->action ? "RUN" : subject,
                       commands[o->command].example);
    if (o->subject && o->subject[0] == '\0')
        return zt_fail(err, ZT_EINVAL, "zctl %s: %s is empty", name, subject);
    if (o->command == ZT_CMD_EXPORT && !o->help && (!o->other || !o->other[0]))
        return zt_fail(err, ZT_EINVAL, "zctl export needs a folder to make, e.g.: %s", commands[o->command].example);
    return 0;
}

/* Where the next word that is no option goes; NULL: there is no place for it. */
static const char **word_place(struct zt_options *o) {
    if (o->command == ZT_CMD_CHECKPOINT && !o->action)
        return &o->action;
    if (!o->subject && commands[o->command].subject)
        return &o->subject;
    return !o->other && (o->command == ZT_CMD_CHECKPOINT || o->command == ZT_CMD_EXPORT) ? &o->other : NULL;
}

int zt_options_parse(int argc, char *const *argv, struct zt_options *o, struct zt_error *err) {
    _Static_assert(ZT_CMD_COUNT <= 32, "one bit a command");
    memset(o, 0, sizeof *o);
    o->interval = 2;
    const char *env = getenv("ZCTL_OUTPUT"), *extra_word = NULL, **place;
    bool have_command = false, options_end = false;
    bool used[sizeof rows / sizeof rows[0]] = {false};
    int rc = env && env[0] ? format("ZCTL_OUTPUT", env, o, err) : 0, extra = 0;
    o->command = ZT_CMD_HELP;
    for (int i = 1; i < argc && rc == 0; i++) {
        const char *a = argv[i];
        if (!options_end && strcmp(a, "--") == 0)
            options_end = true;
        else if (!options_end && zt_estimate_option_find(a))
            rc = zt_estimate_option_parse(argc, argv, &i, o, err);
        else if (!options_end && strcmp(a, "--version") == 0 && !have_command) {
            o->command = ZT_CMD_VERSION;
            have_command = true;
        } else if (!options_end && a[0] == '-' && a[1])
            rc = parse_option(argc, argv, &i, o, used, err);
        else if (!have_command) {
            int c = zt_command_find(a);
            if (c < 0)
                return unknown_command(a, err);
            o->command = (enum zt_command)c;
            have_command = true;
        } else if ((place = word_place(o)) != NULL)
            *place = a;
        else if (extra++ == 0)
            extra_word = a;
    }
    if (o->command == ZT_CMD_PLAN && !o->subject)
        o->help = true;
    if (rc == 0)
        rc = check_used(o, used, err);
    return rc ? rc : check_subject(o, extra, extra_word, err);
}
