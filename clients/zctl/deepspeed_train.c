/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/deepspeed_train.c: batch, optimizer, schedule, number formats and ZeRO of a DeepSpeed file as
 * keys of a run file. "auto" is a value that the caller's trainer puts in (Hugging Face): it becomes FILL_IN
 * where it decides the training, and our default where it only sizes buffers. */
#include <math.h>
#include <string.h>
#include <strings.h>
#include "clients/zctl/deepspeed_int.h"
#include "core/spec.h"
#include "core/spec_schema.h"
#include "core/units.h"

#define LL(v) ((long long)(v))
#define ZERO "zero_optimization."

/* ---------------------------------------------------------------------------------- values */

static bool is_auto(const struct leaf *l) {
    return json_is_string(l->value) && strcmp(json_string_value(l->value), "auto") == 0;
}

/* A whole number, also written as 5e8; refused with a row otherwise. "auto" is the caller's. */
static bool whole(struct ds *d, struct leaf *l, int64_t min, int64_t *v) {
    double x = json_number_value(l->value);
    if (json_is_number(l->value) && x == floor(x) && x >= (double)min && x <= 9e15) {
        *v = (int64_t)x;
        return true;
    }
    ds_say(d, l, ZT_DS_REFUSED, "expected a whole number of at least %lld", LL(min));
    return false;
}

static bool number(struct ds *d, struct leaf *l, double min, double *v) {
    double x = json_number_value(l->value);
    if (json_is_number(l->value) && x >= min) {
        *v = x;
        return true;
    }
    ds_say(d, l, ZT_DS_REFUSED, "expected a number of at least %g", min);
    return false;
}

static bool flag(struct ds *d, struct leaf *l, bool *v) {
    if (json_is_boolean(l->value)) {
        *v = json_is_true(l->value);
        return true;
    }
    ds_say(d, l, ZT_DS_REFUSED, "expected true or false");
    return false;
}

/* A leaf that is there and is no JSON null. */
static struct leaf *given(struct ds *d, const char *path) {
    struct leaf *l = ds_find(d, path);
    if (l && json_is_null(l->value)) {
        ds_say(d, l, ZT_DS_SAME, "null: not given");
        return NULL;
    }
    return l;
}

/* "auto" for a value that decides the training. True: it was. */
static bool left_open(struct ds *d, struct leaf *l, enum item i, const char *argument) {
    char why[160];
    if (!is_auto(l))
        return false;
    snprintf(why, sizeof why, "auto: %s", argument);
    ds_open(d, i, why);
    ds_say(d, l, ZT_DS_OPEN, "%s: %s, filled in by the trainer there: %s", ds_item_path(i), ZT_FILL_IN, argument);
    return true;
}

/* A number as it is. */
static void copy_number(struct ds *d, const char *path, enum item i, double min, const char *argument) {
    struct leaf *l = given(d, path);
    char text[40];
    double v;
    if (!l || left_open(d, l, i, argument) || !number(d, l, min, &v))
        return;
    ds_set(d, i, NULL, "%s", zt_value_print(v, text, sizeof text));
    ds_say(d, l, ZT_DS_MAPPED, "%s: %s", ds_item_path(i), text);
}

/* What the file leaves out and is another default there than here. */
static void say_default(struct ds *d, const char *key, enum item i, const char *value, const char *why) {
    if (d->item[i].text[0])
        return;
    ds_set(d, i, "default there", "%s", value);
    ds_say_absent(d, key, ZT_DS_ABSENT, "%s: %s, the default there%s", ds_item_path(i), value, why);
}

/* ---------------------------------------------------------------------------------- tensor parallelism */

/* Ranks of a tensor group see the same data: the batch is counted over the others. */
static int data_parallel(const struct ds *d) { return d->workers / d->tensor; }

static void tensor(struct ds *d) {
    struct leaf *l = given(d, "tensor_parallel.autotp_size"), *lone = given(d, "tensor_parallel.tp.tp_size");
    int64_t v;
    if (l && whole(d, l, 0, &v)) {
        if (v <= 1)
            ds_say(d, l, ZT_DS_SAME, "no tensor parallelism");
        else if (v > ZT_PLAN_RANKS_MAX || (d->workers && d->workers % v))
            ds_say(d, l, ZT_DS_REFUSED, "groups of %lld do not divide %d workers", LL(v), d->workers);
        else {
            d->tensor = (int)v;
            ds_set(d, I_TENSOR, "autotp_size", "%lld", LL(v));
            ds_say(d, l, ZT_DS_MAPPED, "%s: %lld", ds_item_path(I_TENSOR), LL(v));
        }
    }
    if (lone)
        ds_say(d, lone, ZT_DS_SAME, "autotp_size decides in training");
}

/* ---------------------------------------------------------------------------------- batch */

struct batch { int64_t total, micro, steps; struct leaf *total_at, *micro_at, *steps_at; bool open; };

static int64_t batch_value(struct ds *d, const char *path, struct leaf **at, struct batch *b) {
    int64_t v = 0;
    *at = given(d, path);
    if (!*at)
        return 0;
    if (is_auto(*at)) {
        b->open = true;
        return 0;
    }
    if (whole(d, *at, 1, &v) && v > 2147483647) {
        ds_say(d, *at, ZT_DS_REFUSED, "more than 2147483647");
        v = 0;
    }
    return v;
}

/* Ranks that the three numbers imply, or those that are given; 0: neither. */
static int64_t batch_ranks(struct ds *d, struct batch *b) {
    int64_t ranks = data_parallel(d);
    if (b->total && b->micro && b->steps && !ranks && b->total % (b->micro * b->steps) == 0)
        ranks = b->total / (b->micro * b->steps);
    return ranks;
}

/* The identity total = micro x steps x ranks. */
static void batch_agrees(struct ds *d, struct batch *b, int64_t ranks) {
    if (!b->total)
        return;
    int64_t per_rank = (b->micro ? b->micro : 1) * (b->steps ? b->steps : 1);
    if (ranks ? b->total % (per_rank * ranks) != 0 : b->total % per_rank != 0)
        ds_say(d, b->total_at, ZT_DS_REFUSED,
               "%lld is not a multiple of %lld x %lld x %lld (micro-batch x accumulation x ranks)", LL(b->total),
               LL(b->micro ? b->micro : 1), LL(b->steps ? b->steps : 1), LL(ranks ? ranks : 1));
    else if (ranks && b->micro && b->steps && b->total != per_rank * ranks)
        ds_say(d, b->total_at, ZT_DS_REFUSED,
               "train_batch_size is micro-batch x accumulation x ranks = %lld x %lld x %lld = %lld, not %lld",
               LL(b->micro), LL(b->steps), LL(ranks), LL(per_rank * ranks), LL(b->total));
}

static void set_local(struct ds *d, struct batch *b, int64_t ranks) {
    if (!b->micro && b->total && !b->open && ranks)
        b->micro = b->total / ((b->steps ? b->steps : 1) * ranks); /* whole: batch_agrees */
    if (b->micro)
        ds_set(d, I_LOCAL, NULL, "%lld", LL(b->micro));
    else
        ds_open(d, I_LOCAL, b->total ? "train_batch_size / accumulation / ranks: give --workers N"
                                     : "sequences per rank and micro-step");
    if (b->micro_at && is_auto(b->micro_at))
        ds_say(d, b->micro_at, ZT_DS_OPEN, "%s: %s: the trainer's per_device_train_batch_size", ds_item_path(I_LOCAL),
               ZT_FILL_IN);
    else if (b->micro_at)
        ds_say(d, b->micro_at, ZT_DS_MAPPED, "%s: %lld", ds_item_path(I_LOCAL), LL(b->micro));
    else if (!b->micro)
        ds_say_absent(d, "train_micro_batch_size_per_gpu", ZT_DS_OPEN, "%s: %s: sequences per rank and micro-step",
                      ds_item_path(I_LOCAL), ZT_FILL_IN);
}

/* "2 x 8 x 4 ranks = 64" with what is known of the three; n: ranks, 0 unknown. */
static const char *product(const struct batch *b, int64_t ranks, char *buf, size_t n) {
    const int64_t steps = b->steps ? b->steps : 1;
    if (!b->micro)
        snprintf(buf, n, "local_batch_size x %lld accumulated x ranks", LL(steps));
    else if (!ranks)
        snprintf(buf, n, "%lld x %lld accumulated = %lld x K_dp, the data-parallel ranks", LL(b->micro), LL(steps),
                 LL(b->micro * steps));
    else
        snprintf(buf, n, "%lld x %lld accumulated x %lld ranks", LL(b->micro), LL(steps), LL(ranks));
    return buf;
}

static bool asks_auto(const struct leaf *l) { return l && is_auto(l); }

static void set_global(struct ds *d, struct batch *b, int64_t ranks) {
    char text[160];
    product(b, ranks, text, sizeof text);
    if (b->total)
        ds_set(d, I_GLOBAL, ranks && b->micro ? text : "train_batch_size", "%lld", LL(b->total));
    else if (asks_auto(b->steps_at))
        ds_open(d, I_GLOBAL, "local_batch_size x accumulation x ranks");
    else if (b->steps > 1 && b->micro && ranks)
        ds_set(d, I_GLOBAL, text, "%lld", LL(b->micro * b->steps * ranks));
    else if (b->steps > 1)
        ds_open(d, I_GLOBAL, text);
}

static void say_accumulation(struct ds *d, struct batch *b, int64_t ranks) {
    const char *key = ds_item_path(I_GLOBAL), *value = d->item[I_GLOBAL].text;
    const enum zt_ds_outcome o = strcmp(value, ZT_FILL_IN) == 0 ? ZT_DS_OPEN : ZT_DS_MAPPED;
    char text[160];
    product(b, ranks, text, sizeof text);
    if (asks_auto(b->steps_at))
        ds_say(d, b->steps_at, o, "%s: %s: the trainer's gradient_accumulation_steps decides it", key, value);
    else if (b->steps_at && value[0])
        ds_say(d, b->steps_at, o, "%s: %s: %s%s", key, value, text,
               o == ZT_DS_OPEN && b->micro ? "; --workers N fills it in" : "");
    else if (b->steps_at)
        ds_say(d, b->steps_at, ZT_DS_SAME, "one micro-step per step is the default");
    if (asks_auto(b->total_at))
        ds_say(d, b->total_at, ZT_DS_SAME, "follows from micro-batch, accumulation and ranks");
    else if (b->total_at)
        ds_say(d, b->total_at, ZT_DS_MAPPED, "%s: %s", key, value);
}

static void batch(struct ds *d) {
    struct batch b = {0};
    b.total = batch_value(d, "train_batch_size", &b.total_at, &b);
    b.micro = batch_value(d, "train_micro_batch_size_per_gpu", &b.micro_at, &b);
    b.steps = batch_value(d, "gradient_accumulation_steps", &b.steps_at, &b);
    int64_t ranks = batch_ranks(d, &b);
    if ((double)b.micro * (double)b.steps * (double)(ranks ? ranks : 1) > 2147483647.0) {
        ds_say(d, b.steps_at, ZT_DS_REFUSED, "more than 2147483647 sequences per optimizer step");
        b.steps = 1;
    }
    batch_agrees(d, &b, ranks);
    if (d->workers)
        ds_set(d, I_WORKERS, NULL, "%d", d->workers);
    set_local(d, &b, ranks);
    set_global(d, &b, ranks);
    say_accumulation(d, &b, ranks);
}

/* ---------------------------------------------------------------------------------- optimizer */

static void betas(struct ds *d) {
    struct leaf *l = given(d, "optimizer.params.betas");
    char text[2][40];
    if (!l)
        return;
    if (is_auto(l)) {
        ds_open(d, I_BETA1, "auto: the trainer's adam_beta1, usually 0.9");
        ds_open(d, I_BETA2, "auto: the trainer's adam_beta2, usually 0.999");
        ds_say(d, l, ZT_DS_OPEN, "optimizer.beta1 and beta2: %s, filled in by the trainer there (usually 0.9, 0.999)",
               ZT_FILL_IN);
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(l->value, i);
        double x = json_number_value(v);
        if (!json_is_number(v) || x < 0 || x >= 1 || json_array_size(l->value) != 2) {
            ds_say(d, l, ZT_DS_REFUSED, "expected two numbers at least 0 and below 1");
            return;
        }
        ds_set(d, i ? I_BETA2 : I_BETA1, NULL, "%s", zt_value_print(x, text[i], sizeof text[i]));
    }
    ds_say(d, l, ZT_DS_MAPPED, "optimizer.beta1: %s, beta2: %s", text[0], text[1]);
}

/* Adam means AdamW there unless adam_w_mode says no; that is the same only without weight decay. */
static void adam_kind(struct ds *d, const char *type) {
    struct leaf *mode = given(d, "optimizer.params.adam_w_mode"), *torch = given(d, "optimizer.params.torch_adam");
    bool w = true, t = false;
    if ((mode && !flag(d, mode, &w)) || (torch && !flag(d, torch, &t)))
        return;
    bool decays = d->item[I_DECAY].text[0] && strcmp(d->item[I_DECAY].text, "0") != 0;
    if (mode && !w && decays && strcasecmp(type, "adamw") != 0)
        ds_say(d, mode, ZT_DS_REFUSED, "Adam with weight decay added to the gradient is not done; AdamW is");
    else if (mode)
        ds_say(d, mode, ZT_DS_SAME, "AdamW%s", w ? "" : ": without weight decay the two are one");
    if (torch)
        ds_say(d, torch, ZT_DS_SAME, "one AdamW, with PyTorch's expressions");
    if (t && strcasecmp(type, "adamw") == 0)
        say_default(d, "optimizer.params.weight_decay", I_DECAY, "0.01", " (PyTorch's AdamW)");
}

static void optimizer_defaults(struct ds *d) {
    say_default(d, "optimizer.params.lr", I_LR, "0.001", "");
    say_default(d, "optimizer.params.betas", I_BETA1, "0.9", "");
    say_default(d, "optimizer.params.betas", I_BETA2, "0.999", "");
    say_default(d, "optimizer.params.eps", I_EPS, "1e-08", "");
    say_default(d, "optimizer.params.weight_decay", I_DECAY, "0", "");
    if (strcmp(d->item[I_DECAY].text, "0") != 0)
        say_default(d, "optimizer.params", I_DECAY_1D, "true",
                    ": weight decay goes to every tensor, unless the code groups them (then false)");
}

static void optimizer(struct ds *d) {
    struct leaf *type = given(d, "optimizer.type");
    const char *name = type ? json_string_value(type->value) : NULL;
    if (type && !name)
        ds_say(d, type, ZT_DS_REFUSED, "expected a name");
    else if (name && strcasecmp(name, "adamw") != 0 && strcasecmp(name, "adam") != 0)
        ds_say(d, type, ZT_DS_REFUSED, "not in this version; there is AdamW");
    else if (name)
        ds_say(d, type, ZT_DS_MAPPED, "optimizer.name: adamw%s",
               strcasecmp(name, "adam") == 0 ? " (Adam has AdamW's weight decay there)" : "");
    copy_number(d, "optimizer.params.lr", I_LR, 0, "learning_rate");
    betas(d);
    copy_number(d, "optimizer.params.eps", I_EPS, 0, "adam_epsilon, usually 1e-8");
    copy_number(d, "optimizer.params.weight_decay", I_DECAY, 0, "weight_decay, usually 0");
    if (name) {
        adam_kind(d, name);
        optimizer_defaults(d);
    } else if (!d->item[I_LR].text[0]) {
        ds_open(d, I_LR, "the optimizer is made in code there: look at betas, eps and weight decay too");
        ds_say_absent(d, "optimizer", ZT_DS_OPEN, "%s: %s; the optimizer is made in code there: look at betas, eps and "
                      "weight decay too", ds_item_path(I_LR), ZT_FILL_IN);
    }
}

static void clipping(struct ds *d) {
    copy_number(d, "gradient_clipping", I_MAX_NORM, 0, "max_grad_norm, usually 1");
    struct leaf *old = given(d, "optimizer.params.max_grad_norm");
    if (old)
        ds_say(d, old, ZT_DS_REFUSED, "not an optimizer's key there either; write gradient_clipping");
    say_default(d, "gradient_clipping", I_MAX_NORM, "0", ": gradients are not clipped (here 1 by default)");
}

/* ---------------------------------------------------------------------------------- schedule */

static void warmup_shape(struct ds *d) {
    struct leaf *l = given(d, "scheduler.params.warmup_type");
    const char *type = l ? json_string_value(l->value) : NULL;
    const char *text = "the warm-up there is logarithmic by default, here it is linear: rates differ during it";
    if (l && type && strcmp(type, "linear") == 0)
        ds_say(d, l, ZT_DS_MAPPED, "linear, as here; update i of N has (i+1)/N of the rate here, i/N there");
    else if (l)
        ds_say(d, l, ZT_DS_WARNED, "%s", text);
    else
        ds_say_absent(d, "scheduler.params.warmup_type", ZT_DS_WARNED, "%s", text);
}

static void warmup(struct ds *d) {
    struct leaf *n = given(d, "scheduler.params.warmup_num_steps");
    int64_t v;
    if (n && !left_open(d, n, I_WARMUP, "warmup_steps") && whole(d, n, 0, &v)) {
        ds_set(d, I_WARMUP, NULL, "%lld", LL(v));
        ds_say(d, n, ZT_DS_MAPPED, "%s: %lld", ds_item_path(I_WARMUP), LL(v));
    }
    if (!n)
        say_default(d, "scheduler.params.warmup_num_steps", I_WARMUP, "1000", "");
    static const char *const low[] = {"scheduler.params.warmup_min_lr", "scheduler.params.warmup_min_ratio"};
    for (int i = 0; i < 2; i++) {
        struct leaf *l = given(d, low[i]);
        if (l && (is_auto(l) || json_number_value(l->value) == 0) && !json_is_boolean(l->value))
            ds_say(d, l, ZT_DS_SAME, "a warm-up begins at 0");
        else if (l)
            ds_say(d, l, ZT_DS_WARNED, "a warm-up begins at 0 here");
    }
    warmup_shape(d);
}

/* The peak of the schedule is the learning rate here. */
static void peak_rate(struct ds *d) {
    struct leaf *l = given(d, "scheduler.params.warmup_max_lr");
    char text[40];
    double v;
    if (l && is_auto(l))
        ds_say(d, l, ZT_DS_SAME, "the optimizer's rate: %s", ds_item_path(I_LR));
    if (!l || is_auto(l) || !number(d, l, 0, &v))
        return;
    zt_value_print(v, text, sizeof text);
    bool other = d->item[I_LR].text[0] && strcmp(d->item[I_LR].text, text) != 0;
    ds_set(d, I_LR, "warmup_max_lr", "%s", text);
    ds_say(d, l, ZT_DS_MAPPED, "%s: %s%s", ds_item_path(I_LR), text,
           other ? ": the schedule sets the rate, whatever the optimizer's lr is" : "");
}

static void total_steps(struct ds *d) {
    struct leaf *l = given(d, "scheduler.params.total_num_steps");
    int64_t v;
    if (!l || left_open(d, l, I_STEPS, "the number of optimizer steps") || !whole(d, l, 1, &v))
        return;
    ds_set(d, I_STEPS, "total_num_steps: where the decay ends", "%lld", LL(v));
    ds_say(d, l, ZT_DS_MAPPED, "%s: %lld", ds_item_path(I_STEPS), LL(v));
}

static void schedule(struct ds *d) {
    struct leaf *type = given(d, "scheduler.type");
    const char *name = type ? json_string_value(type->value) : NULL;
    if (!type)
        return;
    const char *shape = !name                                 ? NULL
                        : strcmp(name, "WarmupLR") == 0       ? "constant"
                        : strcmp(name, "WarmupDecayLR") == 0  ? "linear"
                        : strcmp(name, "WarmupCosineLR") == 0 ? "cosine"
                                                              : NULL;
    if (!shape) {
        ds_say(d, type, ZT_DS_REFUSED, "not in this version; there are WarmupLR, WarmupDecayLR and WarmupCosineLR");
        return;
    }
    ds_set(d, I_SHAPE, NULL, "%s", shape);
    ds_say(d, type, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_SHAPE), shape);
    warmup(d);
    peak_rate(d);
    total_steps(d);
    if (strcmp(shape, "cosine") == 0) {
        copy_number(d, "scheduler.params.cos_min_ratio", I_MIN_LR, 0, "cos_min_ratio");
        say_default(d, "scheduler.params.cos_min_ratio", I_MIN_LR, "0.0001", "");
    }
}

/* ---------------------------------------------------------------------------------- precision */

enum format { FP32, BF16, FP16, OPEN };

/* Numbers of the fp16 scaler are fixed here: those of DeepSpeed's defaults. */
static void scaler(struct ds *d, bool on) {
    static const struct { const char *path; double usual; } fixed[] = {
        {"fp16.initial_scale_power", 16}, {"fp16.loss_scale_window", 1000}, {"fp16.hysteresis", 2},
        {"fp16.min_loss_scale", 1}};
    for (int i = 0; i < 4; i++) {
        struct leaf *l = given(d, fixed[i].path);
        if (l && (!on || json_number_value(l->value) == fixed[i].usual))
            ds_say(d, l, ZT_DS_SAME, on ? "scaler: deepspeed has %g" : "read with fp16 only", fixed[i].usual);
        else if (l)
            ds_say(d, l, ZT_DS_WARNED, "scaler: deepspeed has %g, which cannot be changed", fixed[i].usual);
    }
    struct leaf *scale = given(d, "fp16.loss_scale"), *again = given(d, "fp16.consecutive_hysteresis");
    if (scale && on && !(json_is_number(scale->value) && json_number_value(scale->value) == 0))
        ds_say(d, scale, ZT_DS_REFUSED, "a fixed scale is not in this version; 0 is the dynamic one");
    else if (scale)
        ds_say(d, scale, ZT_DS_SAME, on ? "dynamic" : "read with fp16 only");
    if (again && on && json_is_true(again->value))
        ds_say(d, again, ZT_DS_WARNED, "hysteresis is refilled when the scale grows");
    else if (again)
        ds_say(d, again, ZT_DS_SAME, on ? "the default" : "read with fp16 only");
}

/* Whether a section of its own is switched on; "auto" leaves it open. */
static enum format switched(struct ds *d, const char *path, enum format on, struct leaf **at) {
    bool v = false;
    *at = given(d, path);
    if (!*at)
        return FP32;
    if (is_auto(*at))
        return OPEN;
    return flag(d, *at, &v) && v ? on : FP32;
}

static const char *dtype_word(const json_t *v) {
    const char *s = json_string_value(v);
    if (!s)
        return NULL;
    if (strstr(s, "bf16") || strstr(s, "bfloat16"))
        return "bf16";
    if (strstr(s, "fp16") || strstr(s, "float16") || strcmp(s, "half") == 0)
        return "fp16";
    return strstr(s, "fp32") || strstr(s, "float32") || strcmp(s, "float") == 0 ? "fp32" : NULL;
}

/* The format in which gradients travel: what is asked for, else that of the parameters. */
static void reduce_dtype(struct ds *d, const char *format) {
    struct leaf *l = given(d, "communication_data_type"), *old = given(d, "fp32_allreduce");
    const char *word = l ? dtype_word(l->value) : NULL;
    const bool narrow = strcmp(format, "fp32") != 0;
    if (l && !word)
        ds_say(d, l, ZT_DS_REFUSED, "expected fp32, fp16 or bf16");
    if (!l && old && json_is_true(old->value))
        word = "fp32";
    if (word && strcmp(word, "fp32") != 0 && strcmp(word, format) != 0)
        ds_say(d, l, ZT_DS_REFUSED, "gradients are reduced as fp32%s%s here", narrow ? " or as " : "", narrow ? format : "");
    if (narrow)
        ds_set(d, I_REDUCE, word ? NULL : "as there; fp32 is safer", "%s", word ? word : format);
    if (l)
        ds_say(d, l, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_REDUCE), word ? word : format);
    if (old)
        ds_say(d, old, word ? ZT_DS_MAPPED : ZT_DS_SAME, "%s: %s", ds_item_path(I_REDUCE), word ? word : format);
    if (narrow && !word && !l)
        ds_say_absent(d, "communication_data_type", ZT_DS_ABSENT, "%s: %s, the default there; fp32 is safer",
                      ds_item_path(I_REDUCE), format);
}

/* bf16: 16-bit parameters with an fp32 master; gradients are summed in their own format with ZeRO, in fp32
 * without. */
static const char *bf16_recipe(struct ds *d) {
    struct leaf *acc = given(d, "data_types.grad_accum_dtype"), *no_master = given(d, "bf16.bf16_master_weights_and_grads");
    struct leaf *states = given(d, "bf16.bf16_optimizer_states");
    const char *word = acc ? dtype_word(acc->value) : NULL, *recipe = d->stage > 0 ? "mixed16" : "mixed16_g32";
    bool bare = no_master && json_is_true(no_master->value), small = states && json_is_true(states->value);
    if (acc && !word)
        ds_say(d, acc, ZT_DS_REFUSED, "expected fp32, fp16 or bf16");
    else if (word)
        recipe = strcmp(word, "fp32") == 0 ? "mixed16_g32" : "mixed16";
    recipe = bare ? small ? "pure_bf16" : "mixed16_nomaster" : recipe;
    if (acc)
        ds_say(d, acc, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_RECIPE), recipe);
    if (no_master)
        ds_say(d, no_master, bare ? ZT_DS_MAPPED : ZT_DS_SAME, bare ? "%s: %s (updates are rounded stochastically)"
                                                                     : "the default: %s: %s",
               ds_item_path(I_RECIPE), recipe);
    if (states)
        ds_say(d, states, small ? ZT_DS_MAPPED : ZT_DS_SAME, "%s: %s", ds_item_path(I_RECIPE), recipe);
    return recipe;
}

static void autocast(struct ds *d) {
    struct leaf *type = given(d, "torch_autocast.dtype"), *modules = given(d, "torch_autocast.lower_precision_safe_modules");
    struct leaf *on = ds_find(d, "torch_autocast.enabled");
    const char *word = type ? dtype_word(type->value) : "bf16";
    if (!ds_enabled(d, "torch_autocast"))
        return;
    ds_set(d, I_RECIPE, NULL, "autocast");
    ds_set(d, I_REDUCE, NULL, "fp32");
    if (on)
        ds_say(d, on, ZT_DS_MAPPED, "%s: autocast", ds_item_path(I_RECIPE));
    if (type && (!word || strcmp(word, "bf16") != 0))
        ds_say(d, type, ZT_DS_REFUSED, "autocast computes in bf16 here");
    else if (type)
        ds_say(d, type, ZT_DS_MAPPED, "%s: autocast computes in bf16", ds_item_path(I_RECIPE));
    if (modules)
        ds_say(d, modules, ZT_DS_WARNED, "matrix products are in bf16; norms, softmax and loss in fp32");
}

static void off(struct ds *d, const char *section) {
    char path[96];
    for (int i = 0; i < d->n; i++) {
        snprintf(path, sizeof path, "%s.", section);
        if (strncmp(d->leaf[i].path, path, strlen(path)) == 0 || strcmp(d->leaf[i].path, section) == 0)
            ds_say(d, &d->leaf[i], ZT_DS_SAME, "switched off");
    }
}

static void precision(struct ds *d) {
    struct leaf *b, *old, *f, *acc = NULL;
    enum format bf16 = switched(d, "bf16.enabled", BF16, &b), bfloat = switched(d, "bfloat16.enabled", BF16, &old);
    enum format fp16 = switched(d, "fp16.enabled", FP16, &f);
    struct leaf *master = given(d, "fp16.fp16_master_weights_and_grads");
    bf16 = b ? bf16 : bfloat;
    b = b ? b : old;
    if (bf16 == BF16 && fp16 == FP16) {
        ds_say(d, f, ZT_DS_REFUSED, "bf16 and fp16 are both enabled; choose one");
        ds_say(d, b, ZT_DS_REFUSED, "bf16 and fp16 are both enabled; choose one");
    } else if (bf16 == BF16) {
        const char *recipe = bf16_recipe(d);
        ds_set(d, I_RECIPE, "bf16 parameters, fp32 master", "%s", recipe);
        ds_say(d, b, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_RECIPE), recipe);
        reduce_dtype(d, "bf16");
    } else if (fp16 == FP16) {
        ds_set(d, I_RECIPE, NULL, "fp16");
        ds_set(d, I_SCALER, NULL, "deepspeed");
        ds_say(d, f, ZT_DS_MAPPED, "%s: fp16, scaler: deepspeed", ds_item_path(I_RECIPE));
        if (master && json_is_true(master->value))
            ds_say(d, master, ZT_DS_REFUSED, "recipe fp16 keeps an fp32 master");
        reduce_dtype(d, "fp16");
    } else if (bf16 == OPEN || fp16 == OPEN) {
        ds_open(d, I_RECIPE, "auto: mixed16 for bf16: true, fp16 for fp16: true, else fp32");
        ds_open(d, I_REDUCE, "auto: bf16, fp16 or fp32 as above");
        if (bf16 == OPEN)
            ds_say(d, b, ZT_DS_OPEN, "%s and reduce_dtype: %s: the trainer's argument bf16", ds_item_path(I_RECIPE),
                   ZT_FILL_IN);
        if (fp16 == OPEN)
            ds_say(d, f, ZT_DS_OPEN, "%s and reduce_dtype: %s: the trainer's argument fp16", ds_item_path(I_RECIPE),
                   ZT_FILL_IN);
    } else {
        reduce_dtype(d, "fp32");
        autocast(d);
    }
    scaler(d, fp16 != FP32 && bf16 != BF16);
    acc = given(d, "data_types.grad_accum_dtype");
    if (acc)
        ds_say(d, acc, ZT_DS_WARNED, "the recipe says it: precision.recipe");
    if (bf16 == FP32 || fp16 == FP16) {
        off(d, "bf16");
        off(d, "bfloat16");
    }
    if (fp16 == FP32 || bf16 == BF16)
        off(d, "fp16");
    if (!d->item[I_RECIPE].text[0] || strcmp(d->item[I_RECIPE].text, "autocast") != 0)
        off(d, "torch_autocast");
    if (b && bf16 == OPEN && fp16 == FP16)
        ds_say(d, b, ZT_DS_SAME, "fp16 is enabled");
}

/* ---------------------------------------------------------------------------------- ZeRO */

/* "1 GB as bf16, 2 GB as fp32": sizes are numbers of elements. */
static const char *bucket_bytes(int64_t elements, char *buf, size_t n) {
    snprintf(buf, n, "%g GB as bf16, %g GB as fp32", (double)elements * 2e-9, (double)elements * 4e-9);
    return buf;
}

static void stage(struct ds *d) {
    static const char *const modes[] = {"ddp", "zero1", "zero2", "zero3"};
    struct leaf *l = given(d, ZERO "stage"), *old = ds_find(d, "zero_optimization");
    int64_t v = 0;
    if (old && json_is_boolean(old->value)) {
        v = json_is_true(old->value);
        ds_say(d, old, ZT_DS_MAPPED, "%s: %s (true is stage 1)", ds_item_path(I_MODE), modes[v]);
    } else if (l && is_auto(l)) {
        ds_open(d, I_MODE, "auto: ddp, zero1, zero2 or zero3");
        ds_say(d, l, ZT_DS_OPEN, "%s: %s", ds_item_path(I_MODE), ZT_FILL_IN);
        d->stage = -1;
        return;
    } else if (l && whole(d, l, 0, &v)) {
        if (v > 3) {
            ds_say(d, l, ZT_DS_REFUSED, "there are stages 0 to 3");
            v = 0;
        }
        ds_say(d, l, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_MODE), modes[v]);
    } else if (!l)
        ds_say_absent(d, "zero_optimization.stage", ZT_DS_ABSENT, "%s: ddp, stage 0 there", ds_item_path(I_MODE));
    d->stage = (int)v;
    ds_set(d, I_MODE, NULL, "%s", modes[v]);
}

static void overlap(struct ds *d, bool *on) {
    struct leaf *l = given(d, ZERO "overlap_comm");
    *on = d->stage == 3;
    if (!l || is_auto(l)) {
        if (l)
            ds_say(d, l, ZT_DS_SAME, "the default here: true");
        return;
    }
    if (!flag(d, l, on))
        return;
    ds_set(d, I_OVERLAP, NULL, "%s", *on ? "true" : "false");
    ds_say(d, l, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_OVERLAP), *on ? "true" : "false");
}

/* Stages 1 and 2 flush a bucket of gradients when it is full; stage 3 as well, but its gathers go by module,
 * and here a bucket is what is gathered and reduced. */
static void reduce_bucket(struct ds *d, bool overlapped) {
    struct leaf *l = given(d, ZERO "reduce_bucket_size");
    char size[64], text[40];
    int64_t v;
    if (!l)
        return;
    if (is_auto(l)) {
        ds_say(d, l, ZT_DS_SAME, "auto (hidden size squared): here one collective per unit, %s: 0", ds_item_path(I_BUCKET));
        return;
    }
    if (!whole(d, l, 1, &v))
        return;
    bucket_bytes(v, size, sizeof size);
    if (d->stage == 0) {
        ds_say(d, l, ZT_DS_SAME, "read with ZeRO only");
        return;
    }
    const bool narrow = strcmp(d->item[I_REDUCE].text, "bf16") == 0 || strcmp(d->item[I_REDUCE].text, "fp16") == 0;
    const double mib = (double)v * (narrow ? 2 : 4) / 1048576.0;
    zt_value_print(mib, text, sizeof text);
    if (d->stage == 3 || mib > 65536 || d->stage < 0)
        ds_say(d, l, ZT_DS_WARNED,
               "%lld elements: %s%s. Here gradients of one unit at a time are reduced, which holds less; %s: %s "
               "would be that size, and merge gathers too",
               LL(v), size, overlapped ? ", twice with overlap_comm" : "", ds_item_path(I_BUCKET), text);
    else {
        ds_set(d, I_BUCKET, narrow ? "elements of 2 bytes" : "elements of 4 bytes", "%s", text);
        ds_say(d, l, ZT_DS_MAPPED, "%s: %s: %lld elements: %s%s", ds_item_path(I_BUCKET), text, LL(v), size,
               overlapped ? "; twice there with overlap_comm, once here" : "");
    }
}

static void gather_bucket(struct ds *d) {
    struct leaf *l = given(d, ZERO "allgather_bucket_size");
    char size[64];
    int64_t v;
    if (!l)
        return;
    if (is_auto(l) || d->stage == 0 || d->stage == 3)
        ds_say(d, l, ZT_DS_SAME, d->stage == 0   ? "read with ZeRO only"
                                 : d->stage == 3 ? "read by stages 1 and 2 only"
                                                 : "updated parameters are sent unit by unit");
    else if (whole(d, l, 0, &v))
        ds_say(d, l, ZT_DS_WARNED,
               "%lld elements (%s): one size for both ways, %s; updated parameters are gathered in place", LL(v),
               bucket_bytes(v, size, sizeof size), ds_item_path(I_BUCKET));
}

static void stage3(struct ds *d) {
    struct leaf *pre = given(d, ZERO "stage3_prefetch_bucket_size"),
                *keep = given(d, ZERO "stage3_param_persistence_threshold"),
                *hpz = given(d, ZERO "zero_hpz_partition_size");
    int64_t v;
    bool on = d->stage == 3;
    if (pre && (!on || is_auto(pre)))
        ds_say(d, pre, ZT_DS_SAME, on ? "auto: here %s: 1, a unit ahead" : "read by stage 3 only", ds_item_path(I_PREFETCH));
    else if (pre && whole(d, pre, 0, &v)) {
        ds_set(d, I_PREFETCH, "units ahead", "%d", v > 0);
        ds_say(d, pre, ZT_DS_MAPPED, "%s: %d: %lld elements ahead there, whole units here", ds_item_path(I_PREFETCH), v > 0,
               LL(v));
    }
    if (keep && (!on || is_auto(keep)))
        ds_say(d, keep, ZT_DS_SAME, on ? "auto (10 x hidden size): here %s: 0, everything is cut" : "read by stage 3 only",
               ds_item_path(I_PERSISTENCE));
    else if (keep && whole(d, keep, 0, &v)) {
        ds_set(d, I_PERSISTENCE, "elements", "%lld", LL(v));
        ds_say(d, keep, ZT_DS_MAPPED, "%s: %lld elements", ds_item_path(I_PERSISTENCE), LL(v));
    }
    if (on && !keep)
        ds_say_absent(d, ZERO "stage3_param_persistence_threshold", ZT_DS_ABSENT,
                      "left at %s: 0, everything is cut; tensors of up to 1e5 elements stay whole there",
                      ds_item_path(I_PERSISTENCE));
    if (hpz && (!on || !whole(d, hpz, 0, &v) || v <= 1))
        ds_say(d, hpz, ZT_DS_SAME, on ? "no second partition" : "read by stage 3 only");
    else if (hpz) {
        ds_set(d, I_RESHARD, "zero_hpz_partition_size", "%lld", LL(v));
        ds_say(d, hpz, ZT_DS_MAPPED, "%s: %lld: after forward each of %lld ranks keeps one part", ds_item_path(I_RESHARD),
               LL(v), LL(v));
    }
}

static void mics(struct ds *d) {
    struct leaf *l = given(d, ZERO "mics_shard_size");
    int64_t v;
    if (!l || !whole(d, l, -1, &v))
        return;
    if (v < 1 || d->stage != 3)
        ds_say(d, l, ZT_DS_SAME, v < 1 ? "no groups" : "read by stage 3 only");
    else if (data_parallel(d) % v)
        ds_say(d, l, ZT_DS_REFUSED, "groups of %lld do not divide %d %s", LL(v), data_parallel(d),
               d->tensor > 1 ? "data-parallel ranks" : "workers");
    else {
        ds_set(d, I_SHARD, "mics_shard_size; the rest are replicas", "%lld", LL(v));
        ds_say(d, l, ZT_DS_MAPPED, "%s: %lld, the rest are replicas", ds_item_path(I_SHARD), LL(v));
    }
}

/* Everything below offload_param and offload_optimizer. */
static void offload(struct ds *d, const char *section, const char *what) {
    char device[96];
    snprintf(device, sizeof device, "%s.device", section);
    struct leaf *l = ds_find(d, device), *whole_section = ds_find(d, section);
    const char *to = l ? json_string_value(l->value) : NULL;
    bool none = (l && (json_is_null(l->value) || (to && strcmp(to, "none") == 0))) || (!l && !whole_section);
    for (int i = 0; i < d->n; i++) {
        struct leaf *k = &d->leaf[i];
        if (strncmp(k->path, section, strlen(section)) != 0 || !(k->path[strlen(section)] == '.' || k == whole_section))
            continue;
        if (none || (k == whole_section && json_is_null(k->value)))
            ds_say(d, k, ZT_DS_SAME, "nothing is offloaded");
        else if (k == l || k == whole_section || !l)
            ds_say(d, k, ZT_DS_REFUSED, "offload of %s is not in this version; more shards or a 16-bit recipe hold less",
                   what);
        else
            ds_say(d, k, ZT_DS_WARNED, "read with offload only");
    }
}

static void old_offload(struct ds *d) {
    static const char *const keys[] = {ZERO "cpu_offload", ZERO "cpu_offload_param"};
    for (int i = 0; i < 2; i++) {
        struct leaf *l = given(d, keys[i]);
        if (l && json_is_true(l->value))
            ds_say(d, l, ZT_DS_REFUSED, "offload is not in this version; more shards or a 16-bit recipe hold less");
        else if (l)
            ds_say(d, l, ZT_DS_SAME, "nothing is offloaded");
    }
}

static void zero(struct ds *d) {
    bool overlapped;
    overlap(d, &overlapped);
    reduce_bucket(d, overlapped);
    gather_bucket(d);
    stage3(d);
    mics(d);
    offload(d, ZERO "offload_param", "parameters");
    offload(d, ZERO "offload_optimizer", "the optimizer's state");
    old_offload(d);
}

/* ---------------------------------------------------------------------------------- the rest */

static void small_things(struct ds *d) {
    struct leaf *print = given(d, "steps_per_print"), *drop = given(d, "dataloader_drop_last");
    int64_t v;
    bool b;
    if (print && (is_auto(print) || json_number_value(print->value) > 1e12))
        ds_say(d, print, ZT_DS_SAME, "the default here: every 10 steps");
    else if (print && whole(d, print, 1, &v)) {
        ds_set(d, I_LOG_FREQ, NULL, "%lld", LL(v));
        ds_say(d, print, ZT_DS_MAPPED, "%s: %lld", ds_item_path(I_LOG_FREQ), LL(v));
    }
    if (drop && is_auto(drop))
        ds_say(d, drop, ZT_DS_SAME, "the default here: true");
    else if (drop && flag(d, drop, &b)) {
        ds_set(d, I_DROP_LAST, NULL, "%s", b ? "true" : "false");
        ds_say(d, drop, ZT_DS_MAPPED, "%s: %s", ds_item_path(I_DROP_LAST), b ? "true" : "false");
    }
    ds_open(d, I_PRESET, "or the model's numbers: layers, heads, dim, vocab_size, seq_len_max");
    ds_open(d, I_DATA, "file, folder or glob");
    ds_open(d, I_SEQ_LEN, "tokens in a sequence");
    const bool steps = d->item[I_STEPS].text[0] != '\0';
    if (!steps)
        ds_open(d, I_STEPS, "optimizer steps; or epochs");
    ds_say_absent(d, steps ? "model, data" : "model, data, steps", ZT_DS_OPEN, "%s, %s, %s%s%s: no such file says them",
                  ds_item_path(I_PRESET), ds_item_path(I_DATA), ds_item_path(I_SEQ_LEN), steps ? "" : ", ",
                  steps ? "" : ds_item_path(I_STEPS));
}

void ds_train(struct ds *d) {
    stage(d);
    tensor(d);
    batch(d);
    optimizer(d);
    clipping(d);
    schedule(d);
    precision(d);
    zero(d);
    small_things(d);
}
