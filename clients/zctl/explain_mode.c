/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain_mode.c: `zctl explain MODE`: what a sharding mode holds, sends and when. Words are
 * those of explain_words.c; bytes come from core/layout.h, and with --file from the layout and the
 * collectives that the engine would make (engine/shard/traffic.h). */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/explain.h"
#include "clients/zctl/json.h"
#include "core/units.h"
#include "engine/shard/traffic.h"

#define SHARD_DEFAULT 8
#define ELEMENTS 8192 /* a shard of these is whole allocation grains in every type: no rounding in the figures */

/* What is asked about. */
struct subject {
    const struct zt_mode_words *words;
    const struct zt_mode_word *word; /* as it was named; NULL: by us */
    enum zt_mode mode;
    bool keep;
    int replicate, shard;
    const struct zt_recipe *only;    /* --recipe */
};

static bool gathers(enum zt_mode m) { return m == ZT_ZERO3 || m == ZT_FSDP; }

/* A recipe that casts what is gathered needs a mode that gathers. */
static bool possible(enum zt_mode m, const struct zt_recipe *r) {
    return gathers(m) || r->gathered == r->param;
}

/* ---------------------------------------------------------------------------------- figures */

static json_t *bytes_row(const struct subject *s, const struct zt_recipe *r) {
    const int shard = s->mode == ZT_DDP ? 1 : s->shard;
    const double n = (double)ELEMENTS * shard;
    const struct zt_group_size g = {(int64_t)n, true, false};
    struct zt_state_bytes b = zt_state_of_groups(&g, 1, s->mode, shard, r);
    double sum = (double)(b.parameters + b.gradients + b.optimizer);
    return json_pack("{s:s, s:f, s:f, s:f, s:f}", "recipe", r->name, "parameters", (double)b.parameters / n,
                     "gradients", (double)b.gradients / n, "optimizer", (double)b.optimizer / n, "total",
                     sum / n);
}

static json_t *bytes_rows(const struct subject *s) {
    json_t *rows = json_array();
    const struct zt_recipe *r;
    for (int i = 0; (r = zt_recipe_row(i)) != NULL; i++) {
        if (r && (!s->only || s->only == r) && possible(s->mode, r))
            json_array_append_new(rows, bytes_row(s, r));
    }
    return rows;
}

static struct zt_volume volume(const struct subject *s, const struct zt_recipe *r, enum zt_dtype reduce,
                               int64_t micro_steps) {
    struct zt_volume_case c = {.mode = s->mode, .replicate = s->replicate,
                               .shard = s->mode == ZT_DDP ? 1 : s->shard, .micro_steps = micro_steps,
                               .keep = s->keep, .reduce = reduce};
    return zt_volume_formula(&c, r);
}

static double sum_of(struct zt_volume v) { return v.gather + v.scatter + v.all_reduce; }

/* Bytes per parameter and step by what travels. Recipes that send the same share a row. */
static void sent_row(json_t *rows, const struct subject *s, const struct zt_recipe *r, enum zt_dtype reduce) {
    struct zt_volume v = volume(s, r, reduce, 1);
    const enum zt_dtype as = gathers(s->mode) ? r->gathered : r->param;
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        bool same = strcmp(json_string_value(json_object_get(row, "reduced_as")), zt_dtype_name(reduce)) == 0 &&
                    json_real_value(json_object_get(row, "all_gather")) == v.gather;
        if (!same)
            continue;
        json_t *names = json_object_get(row, "recipes");
        json_array_append_new(names, json_string(r->name));
        return;
    }
    row = json_pack("{s:[s], s:s, s:s, s:f, s:f, s:f, s:f}", "recipes", r->name, "gathered_as",
                    s->mode == ZT_DDP ? "-" : zt_dtype_name(as), "reduced_as", zt_dtype_name(reduce),
                    "all_gather", v.gather, "reduce_scatter", v.scatter, "all_reduce", v.all_reduce, "total",
                    sum_of(v));
    json_array_append_new(rows, row);
}

static json_t *sent_rows(const struct subject *s) {
    json_t *rows = json_array();
    const struct zt_recipe *r;
    for (int i = 0; (r = zt_recipe_row(i)) != NULL; i++) {
        if (!r || (s->only && s->only != r) || !possible(s->mode, r))
            continue;
        sent_row(rows, s, r, ZT_F32);
        if (r->compute != ZT_F32)
            sent_row(rows, s, r, r->compute);
    }
    return rows;
}

static const char *part_kind(enum zt_send_part p) {
    return p == ZT_SEND_SCATTER ? "reduce-scatter" : p == ZT_SEND_ALL_REDUCE ? "all-reduce" : "all-gather";
}

static json_t *send_list(const struct subject *s) {
    json_t *rows = json_array();
    const struct zt_send_words *w = s->words->sends;
    for (; w->when; w++) {
        const bool over_replicas = w->part == ZT_SEND_ALL_REDUCE;
        if ((over_replicas && s->mode != ZT_DDP && s->replicate == 1) ||
            (w->part == ZT_SEND_BACKWARD && s->keep))
            continue;
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s}", "kind", part_kind(w->part), "group",
                                              over_replicas ? "dp_replicate" : "dp_shard", "what", w->when,
                                              "bytes_per_step", w->formula));
    }
    return rows;
}

/* ---------------------------------------------------------------------------------- a run file */

enum { OVER_SHARDS, OVER_REPLICAS, OVER_TENSOR, OVER_COUNT };
struct tally {
    int64_t count[ZT_TRAFFIC_KINDS][ZT_TRAFFIC_WHYS][OVER_COUNT], sent[ZT_TRAFFIC_KINDS][ZT_TRAFFIC_WHYS][OVER_COUNT];
};

static int count_one(void *arg, const struct zt_traffic_event *e) {
    struct tally *t = arg;
    const int over = e->axis == ZT_AXIS_REPLICATE ? OVER_REPLICAS : e->axis == ZT_AXIS_TENSOR ? OVER_TENSOR : OVER_SHARDS;
    t->count[e->kind][e->why][over]++;
    t->sent[e->kind][e->why][over] += e->sent;
    return 0;
}

static json_t *tally_rows(const struct tally *t, int64_t *total) {
    static const char *const kinds[] = {"all-gather", "reduce-scatter", "all-reduce"};
    static const char *const whys[] = {"parameters for forward", "parameters for backward", "gradients",
                                       "updated parameters", "parts of gradients"};
    static const char *const groups[] = {"dp_shard", "dp_replicate", "tensor"};
    json_t *rows = json_array();
    *total = 0;
    for (int w = 0; w < ZT_TRAFFIC_WHYS; w++)
        for (int k = 0; k < ZT_TRAFFIC_KINDS; k++)
            for (int a = 0; a < OVER_COUNT; a++) {
                if (!t->count[k][w][a])
                    continue;
                *total += t->sent[k][w][a];
                json_array_append_new(
                    rows, json_pack("{s:s, s:s, s:s, s:I, s:I}", "kind", kinds[k], "group",
                                    groups[a], "what", whys[w], "collectives",
                                    (json_int_t)t->count[k][w][a], "sent_bytes", (json_int_t)t->sent[k][w][a]));
            }
    return rows;
}

static struct zt_state_bytes state_of(const struct zt_unit_layout *l, const struct zt_spec *s,
                                      const struct zt_recipe *r, struct zt_error *err, int *rc) {
    struct zt_state_bytes b = {0, 0, 0};
    struct zt_group_size *g = calloc((size_t)l->n_groups + 1, sizeof *g);
    *rc = g ? 0 : zt_fail(err, ZT_ENOMEM, "no memory");
    for (int i = 0; g && i < l->n_groups; i++)
        g[i] = (struct zt_group_size){l->groups[i].elements, l->groups[i].trainable, l->groups[i].persistent};
    if (g)
        b = zt_state_of_groups(g, l->n_groups, s->parallelism.mode, s->parallelism.shard, r);
    if (g && s->parallelism.no_sync && zt_spec_accumulation(s) > 1) /* whole ones until the window ends */
        b.gradients = zt_state_of_groups(g, l->n_groups, ZT_DDP, s->parallelism.shard, r).gradients;
    free(g);
    return b;
}

/* The table of the spec's model, its layout, and what a step of it sends. */
static int model_figures(const struct zt_spec *s, json_t **out, struct zt_error *err) {
    const struct zt_recipe *r = zt_recipe_find(s->precision.recipe);
    struct zt_model_table t = {0};
    struct zt_unit_layout l = {0};
    struct zt_traffic_peak peak = {0, 0};
    struct tally tally = {0};
    int64_t sent = 0;
    const struct zt_layout_options lo =
        zt_layout_options_of(s, zt_policy(s->parallelism.mode), s->parallelism.shard);
    int rc = zt_spec_table(s, &t, err);
    rc = rc ? rc : zt_model_table_cut(&t, s->parallelism.tensor, 0, err);
    rc = rc ? rc : zt_unit_layout_build(&t, &lo, &l, err);
    rc = rc ? rc : zt_traffic_step(s, &t, &l, count_one, &tally, &peak, err);
    struct zt_state_bytes b = {0, 0, 0};
    if (rc == 0)
        b = state_of(&l, s, r, err, &rc);
    if (rc == 0) {
        json_t *rows = tally_rows(&tally, &sent);
        *out = json_pack(
            "{s:I, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I}, s:o, s:I}", "parameters",
            (json_int_t)t.parameters, "recipe", r->name, "reduce_dtype", zt_dtype_name(s->precision.reduce_dtype),
            "replicate", s->parallelism.replicate, "shard", s->parallelism.shard, "tensor", s->parallelism.tensor, "units", t.n_units, "groups",
            (json_int_t)l.n_groups, "accumulation", (json_int_t)zt_spec_accumulation(s), "persistent_bytes",
            "parameters", (json_int_t)b.parameters, "gradients", (json_int_t)b.gradients, "optimizer",
            (json_int_t)b.optimizer, "gathered_peak_bytes", "forward", (json_int_t)peak.forward, "backward",
            (json_int_t)peak.backward, "collectives", rows, "sent_bytes_per_step", (json_int_t)sent);
    }
    zt_unit_layout_free(&l);
    zt_model_table_free(&t);
    return rc;
}

/* The file with the mode and the degrees of the subject. */
static int load_file(const struct zt_options *o, const struct subject *s, struct zt_spec *spec,
                     struct zt_error *err) {
    static struct zt_run_file f;
    struct zt_options with = *o;
    char set[6][96];
    int n = 0, workers = o->workers;
    with.subject = o->file;
    int rc = zt_run_file_load(&with, &f, err);
    if (rc)
        return rc;
    const int tensor = f.spec.parallelism.tensor > 0 ? f.spec.parallelism.tensor : 1;
    workers = workers ? workers : o->shard ? s->shard * s->replicate * tensor : f.spec.workers;
    workers = workers ? workers : s->shard * s->replicate * tensor;
    const int replicate = s->mode == ZT_DDP ? workers / tensor : s->replicate;
    if (tensor == 1 && workers % replicate)
        rc = zt_fail(err, ZT_EINVAL, "%d replicas do not divide %d workers", replicate, workers);
    else if (replicate < 1 || workers % (replicate * tensor))
        rc = zt_fail(err, ZT_EINVAL, "%d replicas of %d tensor-parallel ranks do not divide %d workers", replicate, tensor,
                     workers);
    snprintf(set[n++], sizeof set[0], "parallelism.mode=%s", zt_mode_name(s->mode));
    snprintf(set[n++], sizeof set[0], "workers=%d", workers);
    snprintf(set[n++], sizeof set[0], "parallelism.data_parallel_replicate_degree=%d", replicate);
    snprintf(set[n++], sizeof set[0], "parallelism.data_parallel_shard_degree=%d",
             rc ? 1 : workers / replicate / tensor);
    if (s->keep)
        snprintf(set[n++], sizeof set[0], "parallelism.reshard_after_forward=false");
    if (s->only)
        snprintf(set[n++], sizeof set[0], "precision.recipe=%s", s->only->name);
    for (int i = 0; i < n && rc == 0; i++) {
        if (with.n_set == ZT_MAX_SETS)
            rc = zt_fail(err, ZT_EINVAL, "--set: at most %d of them here", ZT_MAX_SETS - 6);
        else
            with.set[with.n_set++] = set[i];
    }
    zt_run_file_free(&f);
    if (rc == 0)
        rc = zt_run_file_load(&with, &f, err);
    if (rc == 0) {
        *spec = f.spec;
        spec->verbatim = NULL;
        rc = zt_spec_resolve(spec, workers, f.file, err);
        zt_print_notes(&f.spec);
    }
    zt_run_file_free(&f);
    return rc;
}

/* ---------------------------------------------------------------------------------- text */

static const struct zt_column bytes_columns[] = {
    {"RECIPE", "recipe", ZT_CELL_TEXT, 0}, {"PARAMETERS", "parameters", ZT_CELL_NUMBER, 6},
    {"GRADIENTS", "gradients", ZT_CELL_NUMBER, 6}, {"OPTIMIZER", "optimizer", ZT_CELL_NUMBER, 6},
    {"TOTAL", "total", ZT_CELL_NUMBER, 6}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column sent_columns[] = {
    {"GATHERED AS", "gathered_as", ZT_CELL_TEXT, 0}, {"REDUCED AS", "reduced_as", ZT_CELL_TEXT, 0},
    {"ALL-GATHER", "all_gather", ZT_CELL_NUMBER, 6}, {"REDUCE-SCATTER", "reduce_scatter", ZT_CELL_NUMBER, 6},
    {"ALL-REDUCE", "all_reduce", ZT_CELL_NUMBER, 6}, {"TOTAL", "total", ZT_CELL_NUMBER, 6},
    {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column send_columns[] = {
    {"KIND", "kind", ZT_CELL_TEXT, 0}, {"GROUP", "group", ZT_CELL_TEXT, 0}, {"WHAT", "what", ZT_CELL_TEXT, 0},
    {"BYTES PER STEP", "bytes_per_step", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column tally_columns[] = {
    {"KIND", "kind", ZT_CELL_TEXT, 0}, {"GROUP", "group", ZT_CELL_TEXT, 0}, {"WHAT", "what", ZT_CELL_TEXT, 0},
    {"COLLECTIVES", "collectives", ZT_CELL_COUNT, 0}, {"SENT", "sent_bytes", ZT_CELL_COUNT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0}};

static void paragraph(const char *head, const char *text) {
    printf("%-14s", head);
    zt_wrap(stdout, 14, 14, text);
}

static void print_model(const json_t *m, struct zt_error *err) {
    const char *names[] = {"parameters", "gradients", "optimizer"};
    const json_t *b = json_object_get(m, "persistent_bytes"), *p = json_object_get(m, "gathered_peak_bytes");
    char number[32], text[64];
    printf("\nthis model: %s parameters in %lld units, %lld flat groups; recipe %s, gradients reduced as %s;\n"
           "replicate %lld x shard %lld x tensor %lld, micro-steps per step: %lld\n",
           zt_format_count(json_integer_value(json_object_get(m, "parameters")), number, sizeof number),
           json_integer_value(json_object_get(m, "units")), json_integer_value(json_object_get(m, "groups")),
           json_string_value(json_object_get(m, "recipe")), json_string_value(json_object_get(m, "reduce_dtype")),
           json_integer_value(json_object_get(m, "replicate")), json_integer_value(json_object_get(m, "shard")),
           json_integer_value(json_object_get(m, "tensor")),
           json_integer_value(json_object_get(m, "accumulation")));
    for (int i = 0; i < 3; i++) {
        int64_t v = json_integer_value(json_object_get(b, names[i]));
        printf("  %-11s %15s bytes per rank (%s)\n", names[i], zt_format_count(v, number, sizeof number),
               zt_format_bytes((double)v, text, sizeof text));
    }
    if (json_integer_value(json_object_get(p, "forward")))
        printf("  gathered copies at most: %s in forward, %s in backward\n",
               zt_format_bytes((double)json_integer_value(json_object_get(p, "forward")), number, sizeof number),
               zt_format_bytes((double)json_integer_value(json_object_get(p, "backward")), text, sizeof text));
    putchar('\n');
    fflush(stdout);
    zt_print_table(stdout, json_object_get(m, "collectives"), tally_columns, err);
    printf("a rank sends %s bytes per step%s\n",
           zt_format_count(json_integer_value(json_object_get(m, "sent_bytes_per_step")), number, sizeof number),
           json_integer_value(json_object_get(m, "tensor")) > 1 ? ", and what its layers send over the tensor group (zctl plan has it)"
                                                                : "");
}

static void print_names(const struct zt_name_words *n) {
    char text[256];
    snprintf(text, sizeof text, "FSDP2: %s; FSDP1: %s; DeepSpeed: %s; Megatron: %s", n->fsdp2, n->fsdp1,
             n->deepspeed, n->megatron);
    paragraph("elsewhere", text);
}

static void print_title(const struct subject *s) {
    char meaning[128];
    const struct zt_mode_word *w = s->word;
    if (w && w->from) {
        char text[640];
        snprintf(text, sizeof text, "%s of %s is %s here%s%s", w->word, w->from,
                 zt_mode_word_meaning(w, meaning, sizeof meaning), w->why ? ": " : "", w->why ? w->why : "");
        zt_wrap(stdout, 0, 0, text);
        putchar('\n');
    }
    printf("%s: %s\n\n", s->words->name, s->words->title);
}

static int print_text(const struct subject *s, const json_t *j, struct zt_error *err) {
    const struct zt_mode_words *w = s->words;
    const json_t *model = json_object_get(j, "model");
    print_title(s);
    printf("holds, per rank: parameters %s, gradients %s, optimizer %s\n", w->parameters, w->gradients,
           w->optimizer);
    printf("bytes per parameter with S = %d%s:\n", s->mode == ZT_DDP ? 1 : s->shard,
           s->mode == ZT_DDP ? "" : " (replicas never divide)");
    fflush(stdout);
    int rc = zt_print_table(stdout, json_object_get(j, "bytes_per_parameter"), bytes_columns, err);
    putchar('\n');
    paragraph("while it runs", w->transient);
    printf("\nsends (n micro-steps per step; a rank's share of each collective):\n");
    fflush(stdout);
    rc = rc ? rc : zt_print_table(stdout, json_object_get(j, "sends"), send_columns, err);
    printf("\nbytes per parameter and step with n = 1, R = %d, S = %d:\n", s->replicate,
           s->mode == ZT_DDP ? 1 : s->shard);
    fflush(stdout);
    rc = rc ? rc : zt_print_table(stdout, json_object_get(j, "sent_bytes_per_parameter"), sent_columns, err);
    putchar('\n');
    paragraph("accumulation", w->accumulation);
    paragraph("good for", w->good_for);
    paragraph("options", w->options);
    paragraph("compare", w->differs);
    print_names(&w->names);
    for (int i = 0; i < 4 && w->mistakes[i]; i++)
        paragraph(i ? "" : "mistakes", w->mistakes[i]);
    if (rc == 0 && json_is_object(model))
        print_model(model, err);
    else if (rc == 0)
        printf("\n%-14szctl explain %s --file run.yaml --workers N gives a model's bytes and collectives\n", "more",
               w->name);
    return rc;
}

/* ---------------------------------------------------------------------------------- the command */

static json_t *names_json(const struct zt_name_words *n) {
    return json_pack("{s:s, s:s, s:s, s:s}", "fsdp2", n->fsdp2, "fsdp1", n->fsdp1, "deepspeed", n->deepspeed,
                     "megatron", n->megatron);
}

static json_t *mode_json(const struct subject *s) {
    const struct zt_mode_words *w = s->words;
    json_t *mistakes = json_array();
    for (int i = 0; i < 4 && w->mistakes[i]; i++)
        json_array_append_new(mistakes, json_string(w->mistakes[i]));
    return json_pack(
        "{s:s, s:s, s:b, s:i, s:i, s:s, s:{s:s, s:s, s:s}, s:o, s:s, s:o, s:o, s:s, s:s, s:s, s:s, s:o, s:o, s:n}",
        "mode", w->name, "run_yaml_mode", zt_mode_name(s->mode), "kept_after_forward", (int)s->keep, "replicate",
        s->replicate, "shard", s->mode == ZT_DDP ? 1 : s->shard, "title", w->title, "holds", "parameters",
        w->parameters, "gradients", w->gradients, "optimizer", w->optimizer, "bytes_per_parameter", bytes_rows(s),
        "transient", w->transient, "sends", send_list(s), "sent_bytes_per_parameter", sent_rows(s), "accumulation",
        w->accumulation, "good_for", w->good_for, "options", w->options, "compare", w->differs, "names",
        names_json(&w->names), "mistakes", mistakes, "model");
}

static struct subject subject_of(const struct zt_options *o, int words, const struct zt_mode_word *word) {
    const bool hsdp = words == ZT_HSDP_WORDS;
    struct subject s = {.words = zt_mode_words(words), .word = word, .mode = hsdp ? ZT_FSDP : (enum zt_mode)words,
                        .keep = word && word->keep, .replicate = o->replicate, .shard = o->shard};
    s.shard = s.shard ? s.shard : SHARD_DEFAULT;
    s.replicate = s.replicate ? s.replicate : hsdp ? 2 : 1;
    if (s.mode == ZT_DDP)
        s.replicate *= s.shard; /* as many ranks as the others have */
    return s;
}

/* reshard_after_forward: false, the row "fsdp, keep". */
static const struct zt_name_words keep_names = {"reshard False", "SHARD_GRAD_OP", "-", "-"};

/* One line of the comparison: the same ranks in every mode. */
static json_t *compare_row(const struct subject *s, const struct zt_recipe *r, const char *name) {
    json_t *row = bytes_row(s, r);
    json_t *out = json_pack(
        "{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:s, s:s, s:o}", "mode", name, "parameters", s->words->parameters,
        "gradients", s->words->gradients, "optimizer", s->words->optimizer, "bytes_per_parameter",
        json_real_value(json_object_get(row, "total")), "sent_1", sum_of(volume(s, r, ZT_F32, 1)), "sent_4",
        sum_of(volume(s, r, ZT_F32, 4)), "gathers",
        gathers(s->mode) ? s->keep ? "before forward" : "before each use" : s->mode == ZT_DDP ? "never" : "after update",
        "reduces", gathers(s->mode) || s->mode == ZT_ZERO2 ? "each micro-step" : "once per step", "names",
        names_json(s->keep ? &keep_names : &s->words->names));
    json_decref(row);
    return out;
}

static json_t *compare_rows(const struct zt_options *o, const struct zt_recipe *r) {
    json_t *rows = json_array();
    for (int i = 0; zt_mode_words(i); i++) {
        struct subject s = subject_of(o, i, NULL);
        if (!possible(s.mode, r))
            continue;
        if (i == ZT_HSDP_WORDS && !o->shard)
            s.shard /= s.replicate; /* as many ranks as the others have */
        json_array_append_new(rows, compare_row(&s, r, s.words->name));
        s.keep = true; /* reshard_after_forward: false */
        if (s.mode == ZT_FSDP && i != ZT_HSDP_WORDS)
            json_array_append_new(rows, compare_row(&s, r, "fsdp, keep"));
    }
    return rows;
}

static const struct zt_column compare_columns[] = {
    {"MODE", "mode", ZT_CELL_TEXT, 0}, {"PARAMETERS", "parameters", ZT_CELL_TEXT, 0},
    {"GRADIENTS", "gradients", ZT_CELL_TEXT, 0}, {"OPTIMIZER", "optimizer", ZT_CELL_TEXT, 0},
    {"HELD", "bytes_per_parameter", ZT_CELL_NUMBER, 6}, {"SENT", "sent_1", ZT_CELL_NUMBER, 6},
    {"SENT, n=4", "sent_4", ZT_CELL_NUMBER, 6}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column when_columns[] = {
    {"MODE", "mode", ZT_CELL_TEXT, 0}, {"GATHERS PARAMETERS", "gathers", ZT_CELL_TEXT, 0},
    {"REDUCES GRADIENTS", "reduces", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column name_columns[] = {
    {"MODE", "mode", ZT_CELL_TEXT, 0}, {"FSDP2", "names.fsdp2", ZT_CELL_TEXT, 0},
    {"FSDP1", "names.fsdp1", ZT_CELL_TEXT, 0}, {"DEEPSPEED", "names.deepspeed", ZT_CELL_TEXT, 0},
    {"MEGATRON", "names.megatron", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
static const struct zt_column *const compare_tables[] = {compare_columns, when_columns, name_columns};

/* `zctl explain modes`. */
static int explain_modes(const struct zt_options *o, const struct zt_recipe *r) {
    struct zt_error err;
    if (o->file)
        return zt_report(zt_fail(&err, ZT_EINVAL, "--file goes with one mode, e.g. zctl explain fsdp --file %.60s",
                                 o->file), &err);
    r = r ? r : zt_recipe_find("fp32");
    json_t *rows = compare_rows(o, r), *j = json_pack("{s:s, s:s, s:i, s:O}", "recipe", r->name, "reduce_dtype", "fp32",
                                                      "ranks", (o->shard ? o->shard : SHARD_DEFAULT) *
                                                      (o->replicate ? o->replicate : 1), "modes", rows);
    int rc = 0;
    if (o->format == ZT_FORMAT_TABLE) {
        printf("N parameters, b bytes of one (p stored, g gradient, o optimizer), S shards. Recipe %s, %d ranks.\n"
               "Bytes per parameter and rank: HELD all the time, SENT per step (n: micro-steps per step)\n", r->name,
               (int)json_integer_value(json_object_get(j, "ranks")));
        for (int i = 0; i < 3 && rc == 0; i++) {
            putchar('\n');
            fflush(stdout);
            rc = zt_print_table(stdout, rows, compare_tables[i], &err);
        }
        printf("\nmore: zctl explain MODE [--shard N] [--recipe NAME] [--file run.yaml --workers N]\n");
    } else
        rc = zt_print_rows(stdout, o, j, rows, compare_columns, &err);
    json_decref(rows);
    json_decref(j);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}

int zt_recipe_asked(const char *name, const struct zt_recipe **r, struct zt_error *err) {
    const char *names[32];
    char list[400] = "";
    int n = 0;
    if ((*r = zt_recipe_find(name)))
        return 0;
    for (const struct zt_recipe *k; n < 32 && (k = zt_recipe_row(n)) != NULL; n++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", n ? ", " : "", k->name);
        names[n] = k->name;
    }
    const char *near = zt_nearest(name, names, n);
    return near ? zt_fail(err, ZT_EINVAL, "--recipe \"%.60s\": no such recipe (did you mean %s?)", name, near)
                : zt_fail(err, ZT_EINVAL, "--recipe \"%.60s\": no such recipe; there are %s", name, list);
}

static int find_recipe(const struct zt_options *o, const struct zt_recipe **r, struct zt_error *err) {
    *r = NULL;
    return o->recipe ? zt_recipe_asked(o->recipe, r, err) : 0;
}

int zt_explain_mode(const struct zt_options *o) {
    static struct zt_spec spec;
    struct zt_error err;
    const struct zt_mode_word *word = zt_mode_word_find(o->subject);
    const struct zt_recipe *only;
    int rc = find_recipe(o, &only, &err);
    if (rc)
        return zt_report(rc, &err);
    if (!word)
        return explain_modes(o, only);
    struct subject s = subject_of(o, word->hybrid ? ZT_HSDP_WORDS : (int)word->mode, word);
    s.only = only;
    if (only && !possible(s.mode, only))
        return zt_report(zt_fail(&err, ZT_EINVAL, "--recipe %s: casts what is gathered, and %s gathers nothing; see "
                                 "autocast", only->name, zt_mode_name(s.mode)), &err);
    json_t *j = mode_json(&s), *model = NULL;
    if (o->file) {
        rc = load_file(o, &s, &spec, &err);
        if (rc == 0)
            rc = model_figures(&spec, &model, &err);
        if (rc) {
            json_decref(j);
            return zt_report_bare(rc, &err);
        }
        json_object_set_new(j, "model", model);
    }
    if (o->format == ZT_FORMAT_TABLE)
        rc = print_text(&s, j, &err);
    else if (o->format == ZT_FORMAT_CSV)
        zt_print_csv(stdout, json_object_get(j, "bytes_per_parameter"));
    else if (o->format == ZT_FORMAT_JSONL)
        zt_print_json_line(stdout, j);
    else
        zt_print_json(stdout, j);
    json_decref(j);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
