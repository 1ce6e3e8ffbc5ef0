/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate_state.c: persistent bytes of a rank in every mode, as a table and as a chart; bytes of the
 * weights alone. */
#include <stdio.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/estimate.h"
#include "clients/zctl/plot.h"
#include "core/units.h"

static const struct { const char *name; enum zt_mode mode; } modes[] = {
    {"ddp", ZT_DDP}, {"zero1", ZT_ZERO1}, {"zero2", ZT_ZERO2}, {"zero3/fsdp", ZT_ZERO3}};
#define N_MODES ((int)(sizeof modes / sizeof modes[0]))

/* Decimals that show what there is to see. */
static int decimals(int64_t bytes) { return bytes >= 100000000 ? 3 : 6; }

static const char *number(int64_t v, char *buf, size_t n) { return zt_format_count(v, buf, n); }

/* ---------------------------------------------------------------------------------- state */

/* Gradients that are no view of a bucket are there twice: the bucket is then communication's. */
static json_t *state_row(const struct zt_estimate *e, int i) {
    struct zt_state_bytes s = zt_estimate_bytes(e, modes[i].mode, e->shards, e->recipe);
    const int64_t buckets = e->no_view && modes[i].mode == ZT_DDP ? s.gradients : 0;
    json_t *row = json_pack("{s:s}", "mode", modes[i].name);
    zt_estimate_set(row, "parameters", s.parameters);
    zt_estimate_set(row, "gradients", s.gradients);
    if (e->no_view)
        zt_estimate_set(row, "buckets", buckets);
    zt_estimate_set(row, "optimizer", s.optimizer);
    zt_estimate_set(row, "total", s.parameters + s.gradients + buckets + s.optimizer);
    return row;
}

static json_t *state_json(const struct zt_estimate *e) {
    json_t *rows = json_array();
    for (int i = 0; i < N_MODES; i++)
        if (zt_estimate_possible(modes[i].mode, e->recipe))
            json_array_append_new(rows, state_row(e, i));
    json_t *j = json_pack("{s:s, s:I, s:s?, s:I, s:I, s:I, s:s, s:{s:i, s:i, s:i, s:i, s:i}, s:o}", "heading",
                          "persistent state, lower bound", "parameters", (json_int_t)e->parameters, "model", e->preset,
                          "adapters", (json_int_t)e->adapters, "trainable", (json_int_t)e->trainable,
                          "parameters_of_a_tensor_rank", (json_int_t)e->local, "recipe", e->recipe->name, "mesh",
                          "replicas", e->replicas, "shards", e->shards, "tensor", e->tp, "data_parallel",
                          e->replicas * e->shards, "world", e->replicas * e->shards * e->tp, "modes", rows);
    json_object_set_new(j, "global_batch",
                        e->micro_batch ? json_integer(e->micro_batch * e->replicas * e->shards * e->micro_steps)
                                       : json_null());
    return j;
}

static int print_unit(const struct zt_estimate *e, const json_t *rows, bool gib, struct zt_error *err) {
    struct zt_column c[8];
    int n = 0, digits = decimals((int64_t)json_integer_value(json_object_get(json_array_get(rows, 0), "total")));
    c[n++] = (struct zt_column){"MODE", "mode", ZT_CELL_TEXT, 0};
    c[n++] = (struct zt_column){"PARAMETERS", gib ? "parameters_gib" : "parameters_gb", ZT_CELL_FIXED, digits};
    c[n++] = (struct zt_column){"GRADIENTS", gib ? "gradients_gib" : "gradients_gb", ZT_CELL_FIXED, digits};
    if (e->no_view)
        c[n++] = (struct zt_column){"BUCKETS", gib ? "buckets_gib" : "buckets_gb", ZT_CELL_FIXED, digits};
    c[n++] = (struct zt_column){"OPTIMIZER", gib ? "optimizer_gib" : "optimizer_gb", ZT_CELL_FIXED, digits};
    c[n++] = (struct zt_column){gib ? "TOTAL GiB" : "TOTAL GB", gib ? "total_gib" : "total_gb", ZT_CELL_FIXED, digits};
    c[n++] = (struct zt_column){"TOTAL BYTES", "total", ZT_CELL_COUNT, 0};
    c[n] = (struct zt_column){NULL, NULL, ZT_CELL_TEXT, 0};
    printf("\n%s\n", gib ? "in GiB (2^30 bytes)" : "in GB (1e9 bytes)");
    return zt_print_table(stdout, rows, c, err);
}

static void print_head(const struct zt_estimate *e) {
    char a[32], b[32], text[400];
    const struct zt_recipe *r = e->recipe;
    puts("persistent state, lower bound: bytes that stay on each rank");
    snprintf(text, sizeof text, "%s%s%s parameters", e->preset ? e->preset : "", e->preset ? ": " : "",
             number(e->parameters, a, sizeof a));
    fputs(text, stdout);
    if (e->adapters)
        printf(", frozen, and %s of adapters, which train", number(e->adapters, a, sizeof a));
    else if (e->trainable != e->parameters)
        printf(", of which %s train", number(e->trainable, a, sizeof a));
    printf("; recipe %s: %zu bytes a parameter, %zu a gradient", r->name, zt_dtype_size(r->param), zt_dtype_size(r->grad));
    if (r->own != r->grad)
        printf(" (%zu in a shard)", zt_dtype_size(r->own));
    printf(", %zu optimizer\n", zt_recipe_optimizer_bytes(r));
    const int world = e->shards * e->replicas * e->tp;
    printf("%d shard%s x %d replica%s x %d tensor-parallel = %d rank%s", e->shards, e->shards == 1 ? "" : "s", e->replicas,
           e->replicas == 1 ? "" : "s", e->tp, world, world == 1 ? "" : "s");
    if (e->tp > 1)
        printf("; a tensor-parallel rank has %s of the parameters, %s of them whole", number(e->local, a, sizeof a),
               number(e->tp_replicated, b, sizeof b));
    putchar('\n');
    if (e->micro_batch)
        printf("global batch: %lld sequences x %d data-parallel ranks x %lld micro-steps = %s sequences%s\n",
               (long long)e->micro_batch, e->replicas * e->shards, (long long)e->micro_steps,
               number(e->micro_batch * e->replicas * e->shards * e->micro_steps, a, sizeof a),
               e->tp > 1 ? " (tensor-parallel ranks see the same data)" : "");
}

static void print_foot(const struct zt_estimate *e) {
    putchar('\n');
    if (!zt_estimate_possible(ZT_DDP, e->recipe)) {
        char text[200];
        snprintf(text, sizeof text, "recipe %s gathers parameters in another type than it stores, so ddp, zero1 and zero2, "
                 "which gather none, do not take it.", e->recipe->name);
        zt_wrap(stdout, 0, 0, text);
    }
    if (e->no_view)
        zt_wrap(stdout, 0, 0, "gradients of ddp are copied into buckets here, as at the end of backward with "
                "gradient_as_bucket_view=False; in this program they are the buckets, and this column is 0.");
    zt_wrap(stdout, 0, 0, "A shard is ceil(N / shards) parameters; replicas divide nothing.");
    zt_wrap(stdout, 0, 0, "Not in it: activations, temporaries, communication buffers and gathered copies, padding of real "
            "tensors, the context and libraries of a device. zctl plan FILE counts those for a run file.");
}

static int chart(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    struct zt_plot_bar bars[N_MODES];
    char title[200], a[32];
    int n = 0;
    for (int i = 0; i < N_MODES; i++) {
        if (!zt_estimate_possible(modes[i].mode, e->recipe))
            continue;
        struct zt_state_bytes s = zt_estimate_bytes(e, modes[i].mode, e->shards, e->recipe);
        bars[n++] = (struct zt_plot_bar){
            modes[i].name,
            {s.parameters, s.gradients, s.optimizer, 0, 0, e->no_view && modes[i].mode == ZT_DDP ? s.gradients : 0}};
    }
    snprintf(title, sizeof title, "Persistent state per rank, lower bound: %s%s, %s, %d shard%s",
             e->preset ? e->preset : number(e->parameters, a, sizeof a), e->preset ? "" : " parameters", e->recipe->name,
             e->shards, e->shards == 1 ? "" : "s");
    return zt_plot_bars(o->svg, &(struct zt_plot_head){.title = title}, bars, n, err);
}

static int print_state(const struct zt_estimate *e, const json_t *j, struct zt_error *err) {
    const json_t *rows = json_object_get(j, "modes"), *like = json_object_get(j, "like");
    print_head(e);
    int rc = print_unit(e, rows, false, err);
    rc = rc ? rc : print_unit(e, rows, true, err);
    print_foot(e);
    return rc || !like ? rc : zt_estimate_like_print(like, err);
}

/* A chart on standard output stands alone. */
int zt_estimate_state(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    json_t *like = NULL;
    int rc = e->like ? zt_estimate_like_json(e, &like, err) : 0;
    if (rc == 0 && o->svg)
        rc = chart(o, e, err);
    if (rc || (o->svg && strcmp(o->svg, "-") == 0)) {
        json_decref(like);
        return rc;
    }
    json_t *j = state_json(e);
    if (like)
        json_object_set_new(j, "like", like);
    if (o->format == ZT_FORMAT_TABLE)
        rc = print_state(e, j, err);
    else
        rc = zt_print_rows(stdout, o, j, json_object_get(like ? like : j, like ? "rows" : "modes"), NULL, err);
    json_decref(j);
    return rc;
}

/* ---------------------------------------------------------------------------------- weights */

int zt_estimate_weights(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err) {
    static const struct { const char *name; int bits; } formats[] = {
        {"fp32", 32}, {"bf16", 16}, {"fp16", 16}, {"int8", 8}, {"int4", 4}};
    const int64_t shard = zt_ceil_div(e->local, e->shards);
    const bool cut = e->shards > 1 || e->tp > 1;
    json_t *rows = json_array();
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        json_t *row = json_pack("{s:s}", "format", formats[i].name);
        zt_estimate_set(row, "whole", zt_ceil_div(e->parameters * formats[i].bits, 8));
        zt_estimate_set(row, "rank", zt_ceil_div(shard * formats[i].bits, 8));
        json_array_append_new(rows, row);
    }
    const int digits = decimals(e->parameters * 4);
    const struct zt_column columns[] = {
        {"FORMAT", "format", ZT_CELL_TEXT, 0}, {"GB", "whole_gb", ZT_CELL_FIXED, digits},
        {"GiB", "whole_gib", ZT_CELL_FIXED, digits}, {"BYTES", "whole", ZT_CELL_COUNT, 0},
        {cut ? "GB A RANK" : NULL, "rank_gb", ZT_CELL_FIXED, digits}, {"GiB A RANK", "rank_gib", ZT_CELL_FIXED, digits},
        {"BYTES A RANK", "rank", ZT_CELL_COUNT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    json_t *j = json_pack("{s:s, s:I, s:s?, s:i, s:i, s:O}", "heading", "weights alone", "parameters",
                          (json_int_t)e->parameters, "model", e->preset, "shards", e->shards, "tensor", e->tp, "formats", rows);
    char a[32];
    if (o->format == ZT_FORMAT_TABLE) {
        printf("weights alone: %s%s%s parameters", e->preset ? e->preset : "", e->preset ? ": " : "",
               number(e->parameters, a, sizeof a));
        if (cut)
            printf("; a rank of %d shard%s x %d tensor-parallel", e->shards, e->shards == 1 ? "" : "s", e->tp);
        puts(" (GB: 1e9 bytes, GiB: 2^30)\n");
    }
    int rc = zt_print_rows(stdout, o, j, rows, columns, err);
    if (rc == 0 && o->format == ZT_FORMAT_TABLE)
        zt_wrap(stdout, 0, 0, "\nNot in it: scales and zero points of int8 and int4, and all that training or generating adds.");
    json_decref(j);
    json_decref(rows);
    return rc;
}
