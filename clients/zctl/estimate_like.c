/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate_like.c: what DeepSpeed's estimators and accelerate's estimate-memory say of the same number of
 * parameters, beside ours, each difference with its reason. Their formulas are written here from what the programs
 * compute; GPU figures are cut to whole bytes as theirs are. */
#include <stdio.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/estimate.h"
#include "core/units.h"

#define BYTES_MOST 9e18

/* ---------------------------------------------------------------------------------- DeepSpeed */

struct figures { int64_t n, layer, gpus, per_node, nodes; };

/* estimated: bytes on a GPU and on a host; layered: needs the largest layer. ours: a mode, or -1 where this version
 * has nothing of the kind. */
static const struct {
    const char *name, *gpu, *host;
    bool layered;
    int ours;
    const char *why;
} deepspeed[] = {
    {"stage 1", NULL, NULL, false, ZT_ZERO1,
     "it has no estimator for stage 1; ours is 4N + 12N/K"},
    {"stage 2", "2N + 18N/K", "4N x GPUs of a node x 1.5", false, ZT_ZERO2,
     "theirs counts a second, fp32, copy of the gradients' part (4N/K), which its update makes; ours reads the 16-bit part "
     "inside the update: 2N + 14N/K. Its host figure is the model as every process of a node builds it in fp32"},
    {"stage 2, optimizer on the host", "2N", "N x max(4 x GPUs, 16) x 1.5", false, -1,
     "keeping the optimizer on the host is not in this version. Theirs leaves out the gradients that are on their way to the "
     "host"},
    {"stage 3", "4 x largest layer + 18N/K", "4 x largest layer x GPUs of a node x 1.5", true, ZT_ZERO3,
     "theirs adds the largest layer whole, parameters and gradients (4 bytes each): not state, but what gathering takes; "
     "ours is told apart, by --unit-params. Of 18N/K, 4 are an fp32 copy of the gradients' part, and of the 16-bit parts "
     "of parameters and gradients it counts one: 16 + 4 - 2"},
    {"stage 3, optimizer on the host", "4 x largest layer + 2N/K", "16N / nodes x 1.5", true, -1,
     "keeping the optimizer on the host is not in this version"},
    {"stage 3, parameters on the host too", "4 x largest layer", "18N / nodes x 1.5", true, -1,
     "keeping parameters on the host is not in this version"},
};
#define N_DEEPSPEED ((int)(sizeof deepspeed / sizeof deepspeed[0]))

static int64_t deepspeed_gpu(int i, const struct figures *f) {
    switch (i) {
    case 1: return 2 * f->n + 18 * f->n / f->gpus;
    case 2: return 2 * f->n;
    case 3: return 4 * f->layer + 18 * f->n / f->gpus;
    case 4: return 4 * f->layer + 2 * f->n / f->gpus;
    case 5: return 4 * f->layer;
    default: return -1;
    }
}

static int64_t deepspeed_host(int i, const struct figures *f) {
    switch (i) {
    case 1: return 4 * f->n * f->per_node * 3 / 2;
    case 2: return f->n * (4 * f->gpus > 16 ? 4 * f->gpus : 16) * 3 / 2;
    case 3: return 4 * f->layer * f->per_node * 3 / 2;
    case 4: return 16 * f->n * 3 / (2 * f->nodes);
    case 5: return 18 * f->n * 3 / (2 * f->nodes);
    default: return -1;
    }
}

static void set(json_t *row, const char *key, bool has, int64_t bytes) {
    char name[64];
    if (has) {
        zt_estimate_set(row, key, bytes);
        return;
    }
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s%s", key, i == 1 ? "_gb" : i == 2 ? "_gib" : "");
        json_object_set_new(row, name, json_null());
    }
}

static int64_t ours_of(const struct zt_estimate *e, enum zt_mode mode, int shards, const char *recipe) {
    struct zt_state_bytes s = zt_estimate_bytes(e, mode, shards, zt_recipe_find(recipe));
    return s.parameters + s.gradients + s.optimizer;
}

static json_t *deepspeed_row(const struct zt_estimate *e, const struct figures *f, int i) {
    const bool known = !deepspeed[i].layered || f->layer > 0, has = deepspeed[i].gpu && known, own = deepspeed[i].ours >= 0;
    const int64_t gpu = has ? deepspeed_gpu(i, f) : 0, host = has ? deepspeed_host(i, f) : 0;
    const int64_t ours = own ? ours_of(e, (enum zt_mode)deepspeed[i].ours, e->shards, "mixed16") : 0;
    json_t *row = json_pack("{s:s, s:s?, s:s?}", "estimator", deepspeed[i].name, "gpu_formula", deepspeed[i].gpu,
                            "host_formula", deepspeed[i].host);
    set(row, "gpu", has, gpu);
    set(row, "host", has, host);
    json_object_set_new(row, "our_mode", own ? json_string(zt_mode_name((enum zt_mode)deepspeed[i].ours)) : json_null());
    set(row, "ours", own, ours);
    set(row, "difference", has && own, gpu - ours);
    json_object_set_new(row, "why", json_string(known ? deepspeed[i].why
                                                      : "needs the largest layer: --largest-layer N, or --model PRESET"));
    return row;
}

static int deepspeed_rows(const struct zt_estimate *e, json_t *rows, struct zt_error *err) {
    struct figures f = {e->parameters, e->largest_layer, e->shards, e->per_node, 1};
    if (strcmp(e->recipe->name, "mixed16") != 0 && strcmp(e->recipe->name, "fp16") != 0)
        return zt_fail(err, ZT_EINVAL, "--like deepspeed: its estimators know 16-bit parameters with fp32 masters alone, "
                       "not recipe %s; leave out --recipe, or give mixed16 or fp16", e->recipe->name);
    if (e->replicas > 1 || e->tp > 1 || e->adapters || e->trainable != e->parameters)
        return zt_fail(err, ZT_EINVAL, "--like deepspeed: its estimators know GPUs and parameters alone; leave out %s",
                       e->replicas > 1 ? "--replicas" : e->tp > 1 ? "--tp" : e->adapters ? "--lora-params" : "--trainable");
    f.per_node = f.per_node ? f.per_node : f.gpus < 8 ? f.gpus : 8;
    f.nodes = f.gpus / f.per_node;
    if (f.nodes * f.per_node != f.gpus)
        return zt_fail(err, ZT_EINVAL, "--node-size %lld does not divide --shards %d", (long long)f.per_node, e->shards);
    if ((double)f.n * 6.0 * (double)(f.gpus > 4 ? f.gpus : 4) > BYTES_MOST / 2)
        return zt_fail(err, ZT_EINVAL, "--like deepspeed: its host memory for so many parameters and GPUs is more bytes than "
                       "can be counted");
    for (int i = 0; i < N_DEEPSPEED; i++)
        json_array_append_new(rows, deepspeed_row(e, &f, i));
    return 0;
}

/* ---------------------------------------------------------------------------------- accelerate */

/* bits of a weight; training: bytes of a parameter that its table says, 0 = it says none. */
static const struct { const char *name; int bits, training; const char *recipe, *why; } accelerate[] = {
    {"float32", 32, 16, "fp32", "the same: 4 x the model (parameters, gradients, two moments)"},
    {"float16", 16, 8, "mixed16",
     "theirs is the largest of four instants that it looks at apart (the model in fp32: 4 bytes, with gradients: 6, the "
     "optimizer: 8, the step: 8), not what is there at once; ours is 2 + 2 + 12, as parameters, gradients, masters and "
     "moments all stay"},
    {"int8", 8, 0, NULL, "no training in this type, there or here"},
    {"int4", 4, 0, NULL, "no training in this type, there or here"},
};

static int accelerate_rows(const struct zt_estimate *e, json_t *rows, struct zt_error *err) {
    if (e->replicas > 1 || e->tp > 1 || e->adapters || e->trainable != e->parameters)
        return zt_fail(err, ZT_EINVAL, "--like accelerate: its estimate knows the parameters of one device alone; leave out "
                       "%s", e->replicas > 1 ? "--replicas" : e->tp > 1 ? "--tp" : e->adapters ? "--lora-params" : "--trainable");
    for (size_t i = 0; i < sizeof accelerate / sizeof accelerate[0]; i++) {
        const int64_t theirs = e->parameters * accelerate[i].training;
        const bool has = accelerate[i].training > 0;
        const int64_t ours = has ? ours_of(e, ZT_DDP, 1, accelerate[i].recipe) : 0;
        json_t *row = json_pack("{s:s}", "dtype", accelerate[i].name);
        zt_estimate_set(row, "model", zt_ceil_div(e->parameters * accelerate[i].bits, 8));
        set(row, "training", has, theirs);
        json_object_set_new(row, "our_recipe", has ? json_string(accelerate[i].recipe) : json_null());
        set(row, "ours", has, ours);
        set(row, "difference", has, theirs - ours);
        json_object_set_new(row, "why", json_string(accelerate[i].why));
        json_array_append_new(rows, row);
    }
    return 0;
}

/* ---------------------------------------------------------------------------------- both */

int zt_estimate_like_json(const struct zt_estimate *e, json_t **out, struct zt_error *err) {
    json_t *rows = json_array();
    int rc = e->like == ZT_LIKE_DEEPSPEED ? deepspeed_rows(e, rows, err) : accelerate_rows(e, rows, err);
    if (rc) {
        json_decref(rows);
        return rc;
    }
    *out = json_pack("{s:s, s:o}", "program", e->like == ZT_LIKE_DEEPSPEED ? "deepspeed" : "accelerate", "rows", rows);
    return 0;
}

int zt_estimate_like_print(const json_t *like, struct zt_error *err) {
    static const struct zt_column ds[] = {
        {"ESTIMATOR", "estimator", ZT_CELL_TEXT, 0}, {"GPU GB", "gpu_gb", ZT_CELL_FIXED, 3},
        {"GPU GiB", "gpu_gib", ZT_CELL_FIXED, 3}, {"HOST GB", "host_gb", ZT_CELL_FIXED, 3},
        {"OURS", "our_mode", ZT_CELL_TEXT, 0}, {"GB", "ours_gb", ZT_CELL_FIXED, 3},
        {"GPU - OURS", "difference_gb", ZT_CELL_FIXED, 3}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    static const struct zt_column hf[] = {
        {"DTYPE", "dtype", ZT_CELL_TEXT, 0}, {"MODEL", "model", ZT_CELL_BYTES, 0},
        {"TRAINING WITH ADAM", "training", ZT_CELL_BYTES, 0}, {"GB", "training_gb", ZT_CELL_FIXED, 3},
        {"OURS, WHOLE", "our_recipe", ZT_CELL_TEXT, 0}, {"GB", "ours_gb", ZT_CELL_FIXED, 3},
        {"THEIRS - OURS", "difference_gb", ZT_CELL_FIXED, 3}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    const bool deep = strcmp(json_string_value(json_object_get(like, "program")), "deepspeed") == 0;
    const json_t *rows = json_object_get(like, "rows");
    size_t i;
    json_t *row;
    printf("\n%s\n", deep ? "DeepSpeed's estimators of model states, beside ours (mixed16)"
                          : "accelerate's estimate-memory, beside ours (its \"MB\" and \"GB\" are MiB and GiB)");
    int rc = zt_print_table(stdout, rows, deep ? ds : hf, err);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        char head[160];
        const char *gpu = json_string_value(json_object_get(row, "gpu_formula")),
                   *host = json_string_value(json_object_get(row, "host_formula"));
        snprintf(head, sizeof head, "%s: ", json_string_value(json_object_get(row, deep ? "estimator" : "dtype")));
        if (gpu)
            snprintf(head + strlen(head), sizeof head - strlen(head), "GPU %s, host %s; ", gpu, host);
        char text[800];
        snprintf(text, sizeof text, "%s%s.", head, json_string_value(json_object_get(row, "why")));
        zt_wrap(stdout, 0, 2, text);
    }
    return rc;
}
