/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate.c: `zctl estimate`: reads what was typed, refuses by name what is not a number or does not
 * belong together, and hands over to the question asked. */
#include "clients/zctl/estimate.h"
#include <stdio.h>
#include <string.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/number.h"
#include "core/mesh.h"
#include "core/model.h"
#include "core/units.h"

#define RANKS_MOST (1 << 20)

/* ---------------------------------------------------------------------------------- what goes together */

enum question { STATE = 0, WEIGHTS, TRAFFIC, COLLECTIVE, BUCKET, UNIT, ACTIVATIONS, QUESTIONS };
static const struct { const char *name; int (*answer)(const struct zt_options *, const struct zt_estimate *, struct zt_error *); }
questions[QUESTIONS] = {
    [STATE] = {"the state of a rank", zt_estimate_state},
    [WEIGHTS] = {"--weights-only", zt_estimate_weights},
    [TRAFFIC] = {"--traffic", zt_estimate_traffic},
    [COLLECTIVE] = {"--collective", zt_estimate_collective},
    [BUCKET] = {"--bucket", zt_estimate_bucket},
    [UNIT] = {"--unit-params", zt_estimate_unit},
    [ACTIVATIONS] = {"--seq", zt_estimate_activations},
};

#define Q(x) (1u << (x))
#define MODEL (Q(STATE) | Q(WEIGHTS) | Q(TRAFFIC))
#define STEP (Q(STATE) | Q(TRAFFIC))
/* Which questions an option belongs to; `asks`: the option that asks one. */
static const struct { const char *name; unsigned questions; int asks; } belongs[ZT_EST_COUNT] = {
    [ZT_EST_PARAMS] = {"--params", MODEL, -1},
    [ZT_EST_MODEL] = {"--model", MODEL | Q(ACTIVATIONS), -1},
    [ZT_EST_SHARDS] = {"--shards", MODEL, -1},
    [ZT_EST_REPLICAS] = {"--replicas", STEP, -1},
    [ZT_EST_TP] = {"--tp", MODEL | Q(ACTIVATIONS), -1},
    [ZT_EST_TP_REPLICATED] = {"--tp-replicated", MODEL, -1},
    [ZT_EST_TRAINABLE] = {"--trainable", STEP, -1},
    [ZT_EST_LORA] = {"--lora-params", STEP, -1},
    [ZT_EST_NO_VIEW] = {"--no-bucket-view", Q(STATE), -1},
    [ZT_EST_MICRO_BATCH] = {"--micro-batch", STEP | Q(ACTIVATIONS), -1},
    [ZT_EST_MICRO_STEPS] = {"--micro-steps", STEP, -1},
    [ZT_EST_LIKE] = {"--like", Q(STATE) | Q(ACTIVATIONS), -1},
    [ZT_EST_LARGEST] = {"--largest-layer", Q(STATE), -1},
    [ZT_EST_PER_NODE] = {"--node-size", Q(STATE), -1},
    [ZT_EST_WEIGHTS] = {"--weights-only", Q(WEIGHTS), WEIGHTS},
    [ZT_EST_TRAFFIC] = {"--traffic", Q(TRAFFIC), TRAFFIC},
    [ZT_EST_REDUCE] = {"--reduce-dtype", Q(TRAFFIC) | Q(UNIT), -1},
    [ZT_EST_BANDWIDTH] = {"--bandwidth", Q(TRAFFIC), -1},
    [ZT_EST_COLLECTIVE] = {"--collective", Q(COLLECTIVE), COLLECTIVE},
    [ZT_EST_BYTES] = {"--bytes", Q(COLLECTIVE), -1},
    [ZT_EST_RANKS] = {"--ranks", Q(COLLECTIVE), -1},
    [ZT_EST_SECONDS] = {"--seconds", Q(COLLECTIVE), -1},
    [ZT_EST_BUSBW] = {"--busbw", Q(COLLECTIVE), -1},
    [ZT_EST_ALGBW] = {"--algbw", Q(COLLECTIVE), -1},
    [ZT_EST_BUCKET] = {"--bucket", Q(BUCKET), BUCKET},
    [ZT_EST_UNIT] = {"--unit-params", Q(UNIT), UNIT},
    [ZT_EST_SEQ] = {"--seq", Q(ACTIVATIONS), ACTIVATIONS},
    [ZT_EST_RECOMPUTE] = {"--recompute", Q(ACTIVATIONS), -1},
    [ZT_EST_SEQUENCE_PARALLEL] = {"--sequence-parallel", Q(ACTIVATIONS), -1},
    [ZT_EST_DIM] = {"--dim", Q(ACTIVATIONS), -1},
    [ZT_EST_HEADS] = {"--heads", Q(ACTIVATIONS), -1},
    [ZT_EST_LAYERS] = {"--layers", Q(ACTIVATIONS), -1},
};

static int does_not_go(const char *option, enum question q, struct zt_error *err) {
    return zt_fail(err, ZT_EINVAL, "%s does not go with %s; see zctl help estimate", option, questions[q].name);
}

static int find_question(const struct zt_options *o, enum question *q, struct zt_error *err) {
    const char *asked = NULL;
    *q = STATE;
    for (int i = 0; i < ZT_EST_COUNT; i++) {
        if (!o->estimate[i] || belongs[i].asks < 0)
            continue;
        if (asked)
            return zt_fail(err, ZT_EINVAL, "%s and %s are two questions; ask one at a time", asked, belongs[i].name);
        asked = belongs[i].name;
        *q = (enum question)belongs[i].asks;
    }
    for (int i = 0; i < ZT_EST_COUNT; i++)
        if (o->estimate[i] && !(belongs[i].questions & Q(*q)))
            return does_not_go(belongs[i].name, *q, err);
    if (o->recipe && !((STEP | Q(UNIT) | Q(ACTIVATIONS)) & Q(*q)))
        return does_not_go("--recipe", *q, err);
    if (o->svg && *q != STATE)
        return does_not_go("--svg", *q, err);
    return 0;
}

/* ---------------------------------------------------------------------------------- reading */

/* An option's count, or `absent`. */
static int count(const struct zt_options *o, enum zt_estimate_option id, int64_t min, int64_t max, int64_t absent,
                 int64_t *out, struct zt_error *err) {
    *out = absent;
    return o->estimate[id] ? zt_number_count(belongs[id].name, o->estimate[id], min, max, out, err) : 0;
}

static int degree(const struct zt_options *o, enum zt_estimate_option id, int absent, int *out, struct zt_error *err) {
    int64_t v = 0;
    int rc = count(o, id, 1, RANKS_MOST, absent, &v, err);
    *out = (int)v;
    return rc;
}

static int read_recipe(const struct zt_options *o, struct zt_estimate *e, struct zt_error *err) {
    return zt_recipe_asked(o->recipe ? o->recipe : "mixed16", &e->recipe, err);
}

/* The number of parameters, from whichever of the two was given. */
static int read_parameters(const struct zt_options *o, struct zt_estimate *e, struct zt_error *err) {
    const char *preset = o->estimate[ZT_EST_MODEL];
    if (preset && o->estimate[ZT_EST_PARAMS])
        return zt_fail(err, ZT_EINVAL, "--params and --model both say how many parameters there are; give one");
    if (!preset && !o->estimate[ZT_EST_PARAMS])
        return zt_fail(err, ZT_EINVAL, "zctl estimate needs --params N or --model PRESET, e.g.: zctl estimate "
                       "--params 1e9 --shards 8");
    if (!preset)
        return count(o, ZT_EST_PARAMS, 1, ZT_EST_PARAMS_MOST, 0, &e->parameters, err);
    struct zt_model_config c;
    struct zt_model_count n;
    int rc = zt_model_preset(preset, &c, err);
    rc = rc ? rc : zt_model_count(&c, &n, err);
    if (rc) {
        zt_fail_prefix(err, "--model");
        return err->code = ZT_EINVAL;
    }
    e->parameters = n.parameters;
    e->tp_replicated = n.replicated;
    e->largest_layer = n.largest_layer;
    return 0;
}

/* What trains, and what a tensor-parallel rank has of it. */
static int read_parts(const struct zt_options *o, struct zt_estimate *e, struct zt_error *err) {
    const bool part = o->estimate[ZT_EST_TRAINABLE], adapters = o->estimate[ZT_EST_LORA];
    if (part && adapters)
        return zt_fail(err, ZT_EINVAL, "--trainable and --lora-params do not go together: adapters train and all else is "
                       "frozen");
    if (o->estimate[ZT_EST_TP_REPLICATED] && e->tp == 1)
        return zt_fail(err, ZT_EINVAL, "--tp-replicated says what --tp does not cut; give --tp too");
    if ((part || adapters) && e->tp > 1)
        return zt_fail(err, ZT_EINVAL, "%s with --tp: which of them are cut is not known; give the counts of one "
                       "tensor-parallel rank and leave out --tp", part ? "--trainable" : "--lora-params");
    int rc = count(o, ZT_EST_TRAINABLE, 0, e->parameters, e->parameters, &e->trainable, err);
    rc = rc ? rc : count(o, ZT_EST_LORA, 1, ZT_EST_PARAMS_MOST, 0, &e->adapters, err);
    rc = rc ? rc : count(o, ZT_EST_TP_REPLICATED, 0, e->parameters, e->tp_replicated, &e->tp_replicated, err);
    rc = rc ? rc : count(o, ZT_EST_LARGEST, 1, e->parameters, e->largest_layer, &e->largest_layer, err);
    if (rc)
        return rc;
    const int64_t cut = e->parameters - (e->tp > 1 ? e->tp_replicated : 0);
    e->local = zt_ceil_div(cut, e->tp) + (e->parameters - cut) + e->adapters;
    e->trainable = e->adapters ? e->adapters : e->trainable;
    e->local_trainable = e->tp > 1 ? e->local : e->trainable;
    return 0;
}

static int read_mesh(const struct zt_options *o, struct zt_estimate *e, struct zt_error *err) {
    int rc = degree(o, ZT_EST_SHARDS, 1, &e->shards, err);
    rc = rc ? rc : degree(o, ZT_EST_REPLICAS, 1, &e->replicas, err);
    rc = rc ? rc : degree(o, ZT_EST_TP, 1, &e->tp, err);
    rc = rc ? rc : degree(o, ZT_EST_PER_NODE, 0, &e->per_node, err);
    rc = rc ? rc : count(o, ZT_EST_MICRO_BATCH, 1, 1 << 20, 0, &e->micro_batch, err);
    rc = rc ? rc : count(o, ZT_EST_MICRO_STEPS, 1, 1 << 20, 1, &e->micro_steps, err);
    if (rc == 0 && (int64_t)e->shards * e->replicas > RANKS_MOST / e->tp)
        rc = zt_fail(err, ZT_EINVAL, "--shards %d x --replicas %d x --tp %d: more than %d ranks", e->shards, e->replicas,
                     e->tp, RANKS_MOST);
    return rc;
}

static int read_like(const struct zt_options *o, enum question q, struct zt_estimate *e, struct zt_error *err) {
    static const struct { const char *name; enum question q; } who[] = {
        [ZT_LIKE_DEEPSPEED] = {"deepspeed", STATE}, [ZT_LIKE_ACCELERATE] = {"accelerate", STATE},
        [ZT_LIKE_KORTHIKANTI] = {"korthikanti", ACTIVATIONS}};
    const char *name = o->estimate[ZT_EST_LIKE];
    const enum zt_estimate_option only[] = {ZT_EST_LARGEST, ZT_EST_PER_NODE};
    for (int i = ZT_LIKE_DEEPSPEED; name && i <= ZT_LIKE_KORTHIKANTI; i++)
        if (strcmp(name, who[i].name) == 0 && who[i].q == q)
            e->like = (enum zt_estimate_like)i;
    if (name && !e->like)
        return zt_fail(err, ZT_EINVAL, "--like \"%.40s\": expected %s", name,
                       q == STATE ? "deepspeed or accelerate" : "korthikanti");
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++)
        if (o->estimate[only[i]] && e->like != ZT_LIKE_DEEPSPEED)
            return zt_fail(err, ZT_EINVAL, "%s is read by --like deepspeed alone", belongs[only[i]].name);
    return 0;
}

static int read_all(const struct zt_options *o, enum question q, struct zt_estimate *e, struct zt_error *err) {
    *e = (struct zt_estimate){.reduce = -1, .preset = o->estimate[ZT_EST_MODEL]};
    int rc = read_recipe(o, e, err);
    e->no_view = o->estimate[ZT_EST_NO_VIEW] != NULL;
    if (rc == 0 && o->estimate[ZT_EST_REDUCE])
        rc = zt_estimate_reduce(e->recipe, o->estimate[ZT_EST_REDUCE], &e->reduce, err);
    if (rc || !((MODEL | Q(ACTIVATIONS)) & Q(q)))
        return rc;
    rc = q == ACTIVATIONS ? 0 : read_parameters(o, e, err);
    rc = rc ? rc : read_mesh(o, e, err);
    rc = rc || q == ACTIVATIONS ? rc : read_parts(o, e, err);
    rc = rc ? rc : read_like(o, q, e, err);
    if (rc == 0 && o->estimate[ZT_EST_BANDWIDTH])
        rc = zt_number_real("--bandwidth", o->estimate[ZT_EST_BANDWIDTH], 1, 1e18, &e->bandwidth, err);
    return rc;
}

/* ---------------------------------------------------------------------------------- shared */

struct zt_state_bytes zt_estimate_bytes(const struct zt_estimate *e, enum zt_mode mode, int shards,
                                        const struct zt_recipe *r) {
    struct zt_state_bytes s = zt_state_plain(e->local - e->local_trainable, false, mode, shards, r);
    struct zt_state_bytes t = zt_state_plain(e->local_trainable, true, mode, shards, r);
    return (struct zt_state_bytes){s.parameters + t.parameters, t.gradients, t.optimizer};
}

bool zt_estimate_possible(enum zt_mode mode, const struct zt_recipe *r) {
    return mode == ZT_ZERO3 || mode == ZT_FSDP || r->gathered == r->param;
}

int zt_estimate_reduce(const struct zt_recipe *r, const char *text, int *out, struct zt_error *err) {
    const enum zt_dtype may[] = {ZT_F32, r->compute};
    for (int i = 0; i < 2; i++)
        if (strcmp(text, zt_dtype_name(may[i])) == 0) {
            *out = (int)may[i];
            return 0;
        }
    return zt_fail(err, ZT_EINVAL, "--reduce-dtype \"%.40s\": gradients of recipe %s travel as fp32%s%s", text, r->name,
                   r->compute == ZT_F32 ? "" : " or ", r->compute == ZT_F32 ? "" : zt_dtype_name(r->compute));
}

void zt_estimate_set(json_t *o, const char *key, int64_t bytes) {
    char name[64];
    json_object_set_new(o, key, json_integer(bytes));
    snprintf(name, sizeof name, "%s_gb", key);
    json_object_set_new(o, name, json_real((double)bytes / 1e9));
    snprintf(name, sizeof name, "%s_gib", key);
    json_object_set_new(o, name, json_real((double)bytes / (double)ZT_GIB));
}

int zt_cmd_estimate(const struct zt_options *o) {
    struct zt_estimate e;
    struct zt_error err;
    enum question q;
    int rc = find_question(o, &q, &err);
    rc = rc ? rc : read_all(o, q, &e, &err);
    rc = rc ? rc : questions[q].answer(o, &e, &err);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
