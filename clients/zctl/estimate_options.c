/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate_options.c: the options that `zctl estimate` alone takes, a table of their own beside that of
 * options.c: what they mean is read in estimate.c. */
#include <string.h>
#include "clients/zctl/options.h"

#define ROW(name, arg, id, help) {name, 0, arg, 1u << ZT_CMD_ESTIMATE, ZT_EST_##id, help}

static const struct zt_option rows[] = {
    ROW("--params", "N", PARAMS, "Parameters, such as 1e9, 7.5e9 or 8030261248."),
    ROW("--model", "PRESET", MODEL, "The parameters of a preset, such as llama3-8b, instead of --params."),
    ROW("--shards", "N", SHARDS, "Ranks that share the state; default 1."),
    ROW("--replicas", "N", REPLICAS, "Groups of shards; they divide nothing; default 1."),
    ROW("--tp", "N", TP, "Tensor-parallel ranks, which cut the parameters first; default 1."),
    ROW("--tp-replicated", "N", TP_REPLICATED,
        "Parameters that every tensor-parallel rank holds whole; default 0, or the preset's."),
    ROW("--trainable", "N", TRAINABLE, "So many of the parameters train, the rest is frozen; default all."),
    ROW("--lora-params", "N", LORA, "Adapters beside the parameters, which are frozen then."),
    ROW("--no-bucket-view", NULL, NO_VIEW, "ddp with gradients that are copied into buckets, not part of them."),
    ROW("--micro-batch", "N", MICRO_BATCH, "Sequences a rank takes at once: the global batch is said."),
    ROW("--micro-steps", "N", MICRO_STEPS, "Micro-steps of an optimizer step; default 1."),
    ROW("--like", "PROGRAM", LIKE, "deepspeed or accelerate: its own estimate beside ours, and why they differ. With --seq: korthikanti, "
        "the published formula."),
    ROW("--largest-layer", "N", LARGEST, "For --like: parameters of the largest layer; default the preset's."),
    ROW("--node-size", "N", PER_NODE, "For --like deepspeed: host memory; default 8, or all if fewer."),
    ROW("--weights-only", NULL, WEIGHTS, "Bytes of the weights alone: fp32, bf16, fp16, int8, int4."),
    ROW("--traffic", NULL, TRAFFIC, "Bytes that a rank sends per optimizer step, by mode and collective."),
    ROW("--reduce-dtype", "TYPE", REDUCE, "Gradients travel as fp32, bf16 or fp16; default: a row for each that fits."),
    ROW("--bandwidth", "B", BANDWIDTH, "For --traffic: bytes per second of a rank; prints the time, an estimate."),
    ROW("--collective", "KIND", COLLECTIVE, "all_reduce, all_gather, reduce_scatter or broadcast: sent bytes and bandwidths."),
    ROW("--bytes", "N", BYTES, "Of the collective's whole buffer."),
    ROW("--ranks", "N", RANKS, "Ranks in the collective."),
    ROW("--seconds", "S", SECONDS, "What it took: prints algbw and busbw."),
    ROW("--busbw", "B", BUSBW, "Bus bandwidth in bytes per second: prints the time, sent bytes / busbw."),
    ROW("--algbw", "B", ALGBW, "Algorithm bandwidth in bytes per second: prints the time, whole bytes / algbw."),
    ROW("--bucket", "N", BUCKET, "Bytes of a bucket of so many elements."),
    ROW("--unit-params", "N", UNIT, "What gathering units of so many parameters takes beside the state."),
    ROW("--seq", "N", SEQ, "What layers of --model keep for backward of sequences of so many tokens (--micro-batch of them; default 1)."),
    ROW("--recompute", "MODE", RECOMPUTE, "For --seq: none, selective or full; default: a row for each."),
    ROW("--sequence-parallel", NULL, SEQUENCE_PARALLEL, "For --seq: the sequence is cut over the --tp ranks where tensors are whole."),
    ROW("--dim", "N", DIM, "For --seq without --model: width of a layer of GPT's kind (MLP of four times that)."),
    ROW("--heads", "N", HEADS, "Its heads."),
    ROW("--layers", "N", LAYERS, "Its layers."),
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

const struct zt_option *zt_estimate_option_row(int i) { return i >= 0 && i < N_ROWS ? &rows[i] : NULL; }

const struct zt_option *zt_estimate_option_find(const char *text) {
    const size_t n = strcspn(text, "=");
    for (int i = 0; i < N_ROWS; i++)
        if (strlen(rows[i].name) == n && strncmp(rows[i].name, text, n) == 0)
            return &rows[i];
    return NULL;
}

int zt_estimate_option_parse(int argc, char *const *argv, int *i, struct zt_options *o, struct zt_error *err) {
    const char *text = argv[*i], *equal = strchr(text, '='), *value = equal ? equal + 1 : NULL;
    const struct zt_option *r = zt_estimate_option_find(text);
    if (!r->arg && value)
        return zt_fail(err, ZT_EINVAL, "option %s takes no value", r->name);
    if (r->arg && !value) {
        if (*i + 1 >= argc)
            return zt_fail(err, ZT_EINVAL, "option %s needs a value: %s %s", r->name, r->name, r->arg);
        value = argv[++*i];
    }
    o->estimate[r->id] = value ? value : "";
    return 0;
}

int zt_estimate_option_check(const struct zt_options *o, const char *command, struct zt_error *err) {
    for (int i = 0; i < N_ROWS && o->command != ZT_CMD_ESTIMATE; i++)
        if (o->estimate[rows[i].id])
            return zt_fail(err, ZT_EINVAL, "zctl %s has no option %s; see zctl help %s", command, rows[i].name, command);
    return 0;
}
