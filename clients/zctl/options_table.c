/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options_table.c: the commands and their options, in words. */
#include <string.h>
#include "clients/zctl/options_int.h"

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


const struct zt_option zt_own_options[] = {
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
const int zt_n_own_options = (int)(sizeof zt_own_options / sizeof zt_own_options[0]);
_Static_assert(sizeof zt_own_options / sizeof zt_own_options[0] <= ZT_OWN_OPTIONS_MAX, "raise ZT_OWN_OPTIONS_MAX");

const struct zt_option *zt_option_row(int i) {
    return i >= 0 && i < zt_n_own_options ? &zt_own_options[i] : zt_estimate_option_row(i - zt_n_own_options);
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

const char *const zt_checkpoint_actions[] = {"ls", "show", "verify", "pin", "unpin", "rm", "gc", "diff", NULL};
