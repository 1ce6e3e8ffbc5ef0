/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/estimate.h: between the files of `zctl estimate`: what was asked, read and checked, and the answers.
 * Formulas are those of core/layout.h and core/cost.h; here they are only put into tables. One thread. */
#ifndef ZT_ZCTL_ESTIMATE_H
#define ZT_ZCTL_ESTIMATE_H
#include <jansson.h>
#include "clients/zctl/options.h"
#include "core/cost.h"
#include "core/layout.h"

#define ZT_EST_PARAMS_MOST 1000000000000000 /* 1e15: bytes of it fit an int64 with room to spare */

enum zt_estimate_like { ZT_LIKE_NONE = 0, ZT_LIKE_DEEPSPEED, ZT_LIKE_ACCELERATE, ZT_LIKE_KORTHIKANTI };

struct zt_estimate {
    int64_t parameters;             /* as given, adapters not among them */
    const char *preset;             /* NULL: a number was given */
    int64_t trainable;              /* of all, adapters among them */
    int64_t adapters;               /* 0: none */
    int64_t largest_layer;          /* 0: not known */
    int64_t tp_replicated;
    int64_t local, local_trainable; /* what a tensor-parallel rank has; trainable ones among them */
    int shards, replicas, tp;
    int64_t micro_batch, micro_steps; /* micro_batch 0: not given */
    const struct zt_recipe *recipe;
    bool no_view;
    enum zt_estimate_like like;
    int per_node;                   /* 0: not given */
    int reduce;                     /* enum zt_dtype; -1: not given */
    double bandwidth;               /* 0: not given */
};

/* Each prints its answer in o->format and returns 0 or a code. */
int zt_estimate_state(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_weights(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_traffic(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_bucket(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_unit(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_activations(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);
int zt_estimate_collective(const struct zt_options *o, const struct zt_estimate *e, struct zt_error *err);

/* The comparison with e->like, a new object with "rows"; and its table with the reasons. */
int zt_estimate_like_json(const struct zt_estimate *e, json_t **out, struct zt_error *err);
int zt_estimate_like_print(const json_t *like, struct zt_error *err);

/* Persistent bytes of a rank: frozen and trainable parameters are a group each. */
struct zt_state_bytes zt_estimate_bytes(const struct zt_estimate *e, enum zt_mode mode, int shards,
                                        const struct zt_recipe *r);
/* A recipe that casts what is gathered needs a mode that gathers. */
bool zt_estimate_possible(enum zt_mode mode, const struct zt_recipe *r);
/* "fp32", ... as a recipe may reduce in; ZT_EINVAL names those. */
int zt_estimate_reduce(const struct zt_recipe *r, const char *text, int *out, struct zt_error *err);
/* {"gb": bytes / 1e9, "gib": bytes / 2^30} set in o as key_gb and key_gib, beside key itself. */
void zt_estimate_set(json_t *o, const char *key, int64_t bytes);
#endif
