/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate_traffic.c: bytes sent per optimizer step in every mode, bandwidths and times of a collective,
 * bytes of a bucket, what gathering units takes. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/estimate.h"
#include "clients/zctl/number.h"
#include "core/units.h"

#define BYTES_MOST 9e18

/* ---------------------------------------------------------------------------------- a step */

static const struct { const char *name; enum zt_mode mode; bool keep; } modes[] = {
    {"ddp", ZT_DDP, false}, {"zero1", ZT_ZERO1, false}, {"zero2", ZT_ZERO2, false}, {"zero3/fsdp", ZT_ZERO3, false},
    {"fsdp, reshard false", ZT_FSDP, true}};
#define N_MODES ((int)(sizeof modes / sizeof modes[0]))

static bool gathers(enum zt_mode m) { return m == ZT_ZERO3 || m == ZT_FSDP; }

/* Gradients are those of what trains; parameters are gathered all where they are cut, and where each rank updates a
 * part, those that were updated. */
static int traffic_row(const struct zt_estimate *e, int i, enum zt_dtype reduce, json_t *rows, struct zt_error *err) {
    const enum zt_mode mode = modes[i].mode;
    const bool ddp = mode == ZT_DDP;
    const struct zt_volume_case c = {.mode = mode, .replicate = ddp ? e->replicas * e->shards : e->replicas,
                                     .shard = ddp ? 1 : e->shards, .micro_steps = e->micro_steps, .keep = modes[i].keep,
                                     .reduce = reduce};
    const struct zt_volume v = zt_volume_formula(&c, e->recipe);
    const double trained = (double)e->local_trainable, gathered = gathers(mode) ? (double)e->local : trained;
    if (v.gather * gathered + (v.scatter + v.all_reduce) * trained > BYTES_MOST)
        return zt_fail(err, ZT_EINVAL, "--traffic: %s sends more bytes than can be counted; fewer --micro-steps or --params",
                       modes[i].name);
    const int64_t gather = llround(v.gather * gathered), scatter = llround(v.scatter * trained),
                  all_reduce = llround(v.all_reduce * trained), total = gather + scatter + all_reduce;
    json_t *row = json_pack("{s:s, s:s?, s:s}", "mode", modes[i].name, "gathered_as",
                            ddp ? NULL : zt_dtype_name(gathers(mode) ? e->recipe->gathered : e->recipe->param), "reduced_as",
                            zt_dtype_name(reduce));
    zt_estimate_set(row, "all_gather", gather);
    zt_estimate_set(row, "reduce_scatter", scatter);
    zt_estimate_set(row, "all_reduce", all_reduce);
    zt_estimate_set(row, "total", total);
    json_object_set_new(row, "seconds", e->bandwidth > 0 ? json_real((double)total / e->bandwidth) : json_null());
    json_array_append_new(rows, row);
    return 0;
}

static int traffic_rows(const struct zt_estimate *e, json_t *rows, struct zt_error *err) {
    const enum zt_dtype types[] = {ZT_F32, e->recipe->compute};
    int rc = 0;
    for (int i = 0; i < N_MODES && rc == 0; i++)
        for (int t = 0; t < (e->recipe->compute == ZT_F32 ? 1 : 2) && rc == 0; t++)
            if (zt_estimate_possible(modes[i].mode, e->recipe) && (e->reduce < 0 || e->reduce == (int)types[t]))
                rc = traffic_row(e, i, types[t], rows, err);
    return rc;
}

static void traffic_head(const struct zt_estimate *e) {
    char a[32];
    printf("bytes that each rank sends per optimizer step: %s%s%s parameters, recipe %s, %d shard%s x %d replica%s",
           e->preset ? e->preset : "", e->preset ? ": " : "", zt_format_count(e->parameters, a, sizeof a), e->recipe->name,
           e->shards, e->shards == 1 ? "" : "s", e->replicas, e->replicas == 1 ? "" : "s");
    if (e->tp > 1)
        printf(", %s of them on each of %d tensor-parallel ranks", zt_format_count(e->local, a, sizeof a), e->tp);
    if (e->local_trainable != e->local)
        printf(", %s train", zt_format_count(e->local_trainable, a, sizeof a));
    printf("; %lld micro-step%s\n", (long long)e->micro_steps, e->micro_steps == 1 ? "" : "s");
    puts("in GB (1e9 bytes); GiB: 2^30\n");
}

static void traffic_foot(const struct zt_estimate *e) {
    putchar('\n');
    if (e->shards * e->replicas == 1)
        zt_wrap(stdout, 0, 0, "One data-parallel rank sends nothing: give --shards or --replicas.");
    zt_wrap(stdout, 0, 0, "Rings: a gather or a scatter of a buffer in a group of K sends (K-1)/K of it, an all-reduce twice "
            "that; ddp's group is all of shards x replicas. Units of a real model, its tied root and padding change it a "
            "little: zctl explain MODE --file FILE counts them.");
    if (e->tp > 1)
        zt_wrap(stdout, 0, 0, "What tensor parallelism sends of activations is not in it.");
    if (e->bandwidth > 0)
        zt_wrap(stdout, 0, 0, "TIME is an estimate: bytes / bandwidth, the bus bandwidth of one rank and direction; no latency, "
                "nothing overlapped.");
}

int zt_estimate_traffic(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    json_t *rows = json_array();
    int rc = traffic_rows(e, rows, err);
    const struct zt_column columns[] = {
        {"MODE", "mode", ZT_CELL_TEXT, 0}, {"GATHERED AS", "gathered_as", ZT_CELL_TEXT, 0},
        {"REDUCED AS", "reduced_as", ZT_CELL_TEXT, 0}, {"ALL-GATHER", "all_gather_gb", ZT_CELL_FIXED, 3},
        {"REDUCE-SCATTER", "reduce_scatter_gb", ZT_CELL_FIXED, 3}, {"ALL-REDUCE", "all_reduce_gb", ZT_CELL_FIXED, 3},
        {"TOTAL GB", "total_gb", ZT_CELL_FIXED, 3}, {"GiB", "total_gib", ZT_CELL_FIXED, 3},
        {"TOTAL BYTES", "total", ZT_CELL_COUNT, 0}, {e->bandwidth > 0 ? "TIME" : NULL, "seconds", ZT_CELL_SECONDS, 0},
        {NULL, NULL, ZT_CELL_TEXT, 0}};
    if (rc == 0) {
        json_t *j = json_pack("{s:s, s:I, s:s?, s:s, s:i, s:i, s:i, s:I, s:O}", "heading", "bytes sent per optimizer step",
                              "parameters", (json_int_t)e->parameters, "model", e->preset, "recipe", e->recipe->name,
                              "shards", e->shards, "replicas", e->replicas, "tensor", e->tp, "micro_steps",
                              (json_int_t)e->micro_steps, "modes", rows);
        if (o->format == ZT_FORMAT_TABLE)
            traffic_head(e);
        rc = zt_print_rows(stdout, o, j, rows, columns, err);
        json_decref(j);
        if (o->format == ZT_FORMAT_TABLE)
            traffic_foot(e);
    }
    json_decref(rows);
    return rc;
}

/* ---------------------------------------------------------------------------------- a collective */

static const struct { const char *name; enum zt_cost_coll kind; const char *sent; } kinds[] = {
    {"all_reduce", ZT_COST_ALL_REDUCE, "2 (K-1)/K x bytes"}, {"all_gather", ZT_COST_ALL_GATHER, "(K-1)/K x bytes"},
    {"reduce_scatter", ZT_COST_REDUCE_SCATTER, "(K-1)/K x bytes"}, {"broadcast", ZT_COST_BROADCAST, "bytes"}};
#define N_KINDS ((int)(sizeof kinds / sizeof kinds[0]))

static int find_kind(const char *text, int *out, struct zt_error *err) {
    for (*out = 0; *out < N_KINDS; (*out)++)
        if (strcmp(kinds[*out].name, text) == 0)
            return 0;
    return zt_fail(err, ZT_EINVAL, "--collective \"%.40s\": expected all_reduce, all_gather, reduce_scatter or broadcast", text);
}

struct collective { int kind, rounds; int64_t bytes, ranks; double sent, seconds; struct zt_cost_bandwidth b; };

/* The one of three that was given makes the other two. The time of a buffer is whole bytes / algbw, which is sent
 * bytes / busbw; no option leads to sent bytes / algbw. */
static int read_time(const struct zt_options *o, struct collective *c, struct zt_error *err) {
    static const struct { enum zt_estimate_option id; const char *name; double least, most; } ways[] = {
        {ZT_EST_SECONDS, "--seconds", 1e-12, 1e9}, {ZT_EST_BUSBW, "--busbw", 1, 1e18}, {ZT_EST_ALGBW, "--algbw", 1, 1e18}};
    double v = 0;
    int given = -1;
    for (int i = 0; i < 3; i++) {
        if (!o->estimate[ways[i].id])
            continue;
        if (given >= 0)
            return zt_fail(err, ZT_EINVAL, "%s and %s: each follows from the other; give one", ways[given].name, ways[i].name);
        given = i;
        int rc = zt_number_real(ways[i].name, o->estimate[ways[i].id], ways[i].least, ways[i].most, &v, err);
        if (rc)
            return rc;
    }
    if (given < 0)
        return 0;
    c->seconds = given == 0 ? v : given == 1 ? c->sent / v : (double)c->bytes / v;
    return zt_cost_bandwidth(kinds[c->kind].kind, (int)c->ranks, c->bytes, c->seconds, &c->b, err);
}

static int read_collective(const struct zt_options *o, struct collective *c, struct zt_error *err) {
    *c = (struct collective){.seconds = 0};
    int rc = find_kind(o->estimate[ZT_EST_COLLECTIVE], &c->kind, err);
    if (rc == 0 && (!o->estimate[ZT_EST_BYTES] || !o->estimate[ZT_EST_RANKS]))
        rc = zt_fail(err, ZT_EINVAL, "--collective needs --bytes N and --ranks N, e.g.: zctl estimate --collective all_reduce "
                     "--bytes 2e9 --ranks 8 --seconds 0.14");
    rc = rc ? rc : zt_number_count("--bytes", o->estimate[ZT_EST_BYTES], 1, ZT_EST_PARAMS_MOST, &c->bytes, err);
    rc = rc ? rc : zt_number_count("--ranks", o->estimate[ZT_EST_RANKS], 2, 1 << 20, &c->ranks, err);
    if (rc)
        return rc;
    c->sent = zt_cost_sent(kinds[c->kind].kind, (int)c->ranks, c->bytes);
    c->rounds = zt_cost_rounds(kinds[c->kind].kind, (int)c->ranks);
    return read_time(o, c, err);
}

static void print_collective(const struct collective *c) {
    char a[32], t[32];
    printf("%s of %s bytes on %lld ranks (ring)\n\n", kinds[c->kind].name, zt_format_count(c->bytes, a, sizeof a),
           (long long)c->ranks);
    printf("sent by each rank  %.3f GB = %.3f GiB   %s\n", c->sent / 1e9, c->sent / (double)ZT_GIB, kinds[c->kind].sent);
    printf("rounds             %d\n", c->rounds);
    if (c->seconds > 0) {
        printf("time               %s\n", zt_format_seconds(c->seconds, t, sizeof t));
        printf("algbw              %.2f GB/s   bytes / time\n", c->b.algbw / 1e9);
        printf("busbw              %.2f GB/s   sent / time = algbw x %.6g\n", c->b.busbw / 1e9, c->sent / (double)c->bytes);
    }
    putchar('\n');
    zt_wrap(stdout, 0, 0, "Bytes are those of the whole buffer: of a gather or a scatter, all ranks' parts together. A link carries "
            "busbw: time = sent / busbw = bytes / algbw. Sent bytes belong to busbw only; over algbw they would be counted "
            "twice.");
}

int zt_estimate_collective(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    struct collective c;
    int rc = read_collective(o, &c, err);
    (void)e;
    if (rc)
        return rc;
    if (o->format == ZT_FORMAT_TABLE) {
        print_collective(&c);
        return 0;
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:f, s:i, s:o, s:o, s:o}", "kind", kinds[c.kind].name, "bytes", (json_int_t)c.bytes,
                          "ranks", (json_int_t)c.ranks, "sent_bytes", c.sent, "rounds", c.rounds, "seconds",
                          c.seconds > 0 ? json_real(c.seconds) : json_null(), "algbw_bytes_per_second",
                          c.seconds > 0 ? json_real(c.b.algbw) : json_null(), "busbw_bytes_per_second",
                          c.seconds > 0 ? json_real(c.b.busbw) : json_null());
    json_t *rows = json_pack("[O]", j);
    rc = zt_print_rows(stdout, o, j, rows, NULL, err);
    json_decref(rows);
    json_decref(j);
    return rc;
}

/* ---------------------------------------------------------------------------------- a bucket, a unit */

int zt_estimate_bucket(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    static const enum zt_dtype types[] = {ZT_F32, ZT_BF16, ZT_F16};
    static const struct zt_column columns[] = {
        {"TYPE", "type", ZT_CELL_TEXT, 0}, {"GB", "size_gb", ZT_CELL_FIXED, 3}, {"GiB", "size_gib", ZT_CELL_FIXED, 3},
        {"BYTES", "size", ZT_CELL_COUNT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    int64_t n = 0;
    char a[32];
    int rc = zt_number_count("--bucket", o->estimate[ZT_EST_BUCKET], 1, ZT_EST_PARAMS_MOST, &n, err);
    (void)e;
    if (rc)
        return rc;
    json_t *rows = json_array();
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        json_t *row = json_pack("{s:s}", "type", zt_dtype_name(types[i]));
        zt_estimate_set(row, "size", n * (int64_t)zt_dtype_size(types[i]));
        json_array_append_new(rows, row);
    }
    if (o->format == ZT_FORMAT_TABLE)
        printf("a bucket of %s elements (DeepSpeed's reduce_bucket_size is such a number, not bytes; with overlap_comm it has "
               "two)\n\n", zt_format_count(n, a, sizeof a));
    json_t *j = json_pack("{s:I, s:o}", "elements", (json_int_t)n, "types", rows);
    rc = zt_print_rows(stdout, o, j, rows, columns, err);
    json_decref(j);
    return rc;
}

static void unit_row(json_t *rows, const char *who, const char *forward, const char *backward, struct zt_unit_peak p) {
    json_t *row = json_pack("{s:s, s:s, s:s}", "who", who, "forward_formula", forward, "backward_formula", backward);
    zt_estimate_set(row, "forward", p.forward);
    zt_estimate_set(row, "backward", p.backward);
    json_array_append_new(rows, row);
}

/* FSDP2's own: two units' gathers in forward; in backward three times the compute type and the reduction's. */
static struct zt_unit_peak fsdp2(int64_t n, const struct zt_recipe *r, enum zt_dtype reduce) {
    const int64_t c = (int64_t)zt_dtype_size(r->gathered), g = (int64_t)zt_dtype_size(reduce);
    return (struct zt_unit_peak){2 * c * n, (3 * c + g) * n};
}

int zt_estimate_unit(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    static const struct zt_column columns[] = {
        {"WHO", "who", ZT_CELL_TEXT, 0}, {"FORWARD BYTES", "forward", ZT_CELL_COUNT, 0},
        {"GiB", "forward_gib", ZT_CELL_FIXED, 4}, {"BACKWARD BYTES", "backward", ZT_CELL_COUNT, 0},
        {"GiB", "backward_gib", ZT_CELL_FIXED, 4}, {"FORWARD", "forward_formula", ZT_CELL_TEXT, 0},
        {"BACKWARD", "backward_formula", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    const struct zt_recipe *r = e->recipe;
    const enum zt_dtype reduce = e->reduce < 0 ? ZT_F32 : (enum zt_dtype)e->reduce;
    int64_t n = 0;
    char a[32];
    int rc = zt_number_count("--unit-params", o->estimate[ZT_EST_UNIT], 1, ZT_EST_PARAMS_MOST, &n, err);
    if (rc)
        return rc;
    json_t *rows = json_array();
    unit_row(rows, "PyTorch FSDP2", "2c", "3c + r", fsdp2(n, r, reduce));
    unit_row(rows, "zero3/fsdp", "2c", "2c + g + r", zt_unit_peak_formula(n, true, 1, 1, reduce, r));
    if (zt_estimate_possible(ZT_ZERO2, r))
        unit_row(rows, "zero2", "0", "g + r", zt_unit_peak_formula(n, false, 1, 1, reduce, r));
    if (o->format == ZT_FORMAT_TABLE)
        printf("equal units of %s parameters, beside the state: recipe %s, gathered c = %zu bytes, gradient g = %zu, reduced as "
               "%s r = %zu\n\n", zt_format_count(n, a, sizeof a), r->name, zt_dtype_size(r->gathered), zt_dtype_size(r->grad),
               zt_dtype_name(reduce), zt_dtype_size(reduce));
    json_t *j = json_pack("{s:I, s:s, s:s, s:o}", "unit_parameters", (json_int_t)n, "recipe", r->name, "reduce_dtype",
                          zt_dtype_name(reduce), "peaks", rows);
    rc = zt_print_rows(stdout, o, j, rows, columns, err);
    json_decref(j);
    if (o->format == ZT_FORMAT_TABLE) {
        putchar('\n');
        zt_wrap(stdout, 0, 0, "One unit is gathered ahead and one reduction is in flight; each further one adds c or r bytes a "
                "parameter. Activations come on top, and what a tied root adds; docs/memory.md has the whole formula.");
    }
    return rc;
}
