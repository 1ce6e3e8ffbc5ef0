/* SPDX-License-Identifier: Apache-2.0 */
/* tests/model/golden_model.h: a rig (model_util.h) with the shape, weights and batch of a golden
 * (tests/golden/gen_gpt2.py, gen_llama.py), and the comparison with its arrays. */
#ifndef ZT_TESTS_GOLDEN_MODEL_H
#define ZT_TESTS_GOLDEN_MODEL_H
#include "tests/golden/golden.h"
#include "tests/model/model_util.h"

/* Names of the model's arrays begin with `prefix`: "" in gpt2.bin, "llama:" in llama.bin. */
struct bench {
    struct golden gold;
    const char *prefix;
    struct rig r;
};

/* A golden's short names inside our Hugging Face names. */
static inline const char *short_name(const char *name) {
    const char *prefixes[] = {"transformer.", "model."};
    for (int i = 0; i < 2; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return name + strlen(prefixes[i]);
    return name;
}

static inline struct golden_array golden_need(const struct golden *g, const char *prefix,
                                              const char *name) {
    char full[256];
    struct golden_array a;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    cr_assert_eq(golden_find(g, full, &a), 0, "no %s in the golden", full);
    return a;
}

/* An array of the bench's own model, or of one of its cases: kind "g:", "docs:g:". */
static inline struct golden_array array(const struct bench *b, const char *kind, const char *name) {
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%s%s", b->prefix, kind);
    return golden_need(&b->gold, prefix, name);
}

static inline void gpt2_options(const struct bench *b, struct rig_options *o) {
    int32_t n[7];
    memcpy(n, array(b, "", "shape").data, sizeof n);
    o->config = (struct zt_model_config){.family = ZT_GPT2,
                                         .layers = n[3],
                                         .heads = n[5],
                                         .kv_heads = n[5],
                                         .head_dim = n[4] / n[5],
                                         .dim = n[4],
                                         .ffn_dim = 4 * n[4],
                                         .vocab_size = n[0],
                                         .seq_len_max = n[1],
                                         .norm_eps = 1e-5,
                                         .tied_head = true,
                                         .qkv_bias = true};
    o->B = n[6];
    o->T = n[2];
}

static inline void llama_options(const struct bench *b, struct rig_options *o) {
    struct golden_array real = array(b, "", "real");
    int32_t n[13];
    memcpy(n, array(b, "", "shape").data, sizeof n);
    o->config = (struct zt_model_config){.family = ZT_LLAMA,
                                         .layers = n[3],
                                         .heads = n[5],
                                         .kv_heads = n[6],
                                         .head_dim = n[7],
                                         .dim = n[4],
                                         .ffn_dim = n[8],
                                         .vocab_size = n[0],
                                         .seq_len_max = n[1],
                                         .rope_theta = golden_f64(&real, 0),
                                         .norm_eps = golden_f64(&real, 1),
                                         .tied_head = n[10],
                                         .qkv_bias = n[11],
                                         .qk_norm = n[12]};
    if (golden_f64(&real, 2) != 0) {
        o->config.rope_scaling.type = ZT_ROPE_LLAMA3;
        o->config.rope_scaling.factor = golden_f64(&real, 2);
        o->config.rope_scaling.low_freq_factor = golden_f64(&real, 3);
        o->config.rope_scaling.high_freq_factor = golden_f64(&real, 4);
        o->config.rope_scaling.original_max = (int64_t)golden_f64(&real, 5);
    }
    o->B = n[9];
    o->T = n[2];
}

/* file: of tests/golden. how: everything but config, B and T, which the golden gives. */
static inline void open_golden(struct bench *b, const char *file, const char *prefix,
                               const struct rig_options *how) {
    char path[512];
    struct rig_options o = *how;
    snprintf(path, sizeof path, "%s/tests/golden/%s", ZT_SOURCE_ROOT, file);
    cr_assert_eq(golden_open(path, &b->gold), 0, "cannot read %s", path);
    b->prefix = prefix;
    if (prefix[0] == '\0')
        gpt2_options(b, &o);
    else
        llama_options(b, &o);
    rig_open(&b->r, &o);
    for (int i = 0; i < b->r.table.n_tensors; i++) {
        const char *name = b->r.table.tensors[i].name;
        const bool adapter = b->r.table.tensors[i].piece >= ZT_LORA_A;
        struct golden_array w = array(b, adapter ? "lora:w:" : "w:", short_name(name));
        cr_assert_eq(w.numel, b->r.table.tensors[i].numel, "%s", name);
        memcpy(b->r.master[i], w.data, rig_bytes(&b->r, i, ZT_F32));
    }
    rig_set_parameters(&b->r);
    struct golden_array tok = golden_need(&b->gold, "", "tokens");
    struct golden_array tgt = golden_need(&b->gold, "", "targets");
    memcpy(b->r.tokens, tok.data, (size_t)tok.numel * 4);
    memcpy(b->r.targets, tgt.data, (size_t)tgt.numel * 4);
}

/* Documents and token weights of llama.bin, for the rig's batch. */
static inline void rig_set_starts(struct rig *r, const struct golden *g) {
    struct golden_array a = golden_need(g, "docs:", "starts");
    cr_assert_eq(a.numel, r->o.B * r->o.T);
    r->starts = rig_device(r, (size_t)a.numel * 4, ZT_TAG_PARAMETERS, "starts");
    memcpy(r->starts, a.data, (size_t)a.numel * 4);
}

static inline void rig_set_weights(struct rig *r, const struct golden *g, const char *average) {
    struct golden_array a = golden_need(g, average, "weights");
    cr_assert_eq(a.numel, r->o.B * r->o.T);
    if (r->weights == NULL)
        r->weights = rig_device(r, (size_t)a.numel * 4, ZT_TAG_PARAMETERS, "weights");
    memcpy(r->weights, a.data, (size_t)a.numel * 4);
}

static inline void close_bench(struct bench *b) {
    rig_close(&b->r);
    golden_close(&b->gold);
}

/* ||ours / scale - want|| and ||want|| of tensor i's gradient. */
static inline void gradient_distance(const struct bench *b, int i, const struct golden_array *want,
                                     double scale, double *diff, double *norm) {
    double d = 0, n = 0;
    for (int64_t k = 0; k < want->numel; k++) {
        double w = golden_f64(want, k);
        d += pow(rig_at(b->r.grad[i], b->r.o.grad, k) / scale - w, 2);
        n += w * w;
    }
    *diff = sqrt(d);
    *norm = sqrt(n);
}

/* ||ours - ref|| / ||ref|| of every tensor that trains, with the gradients "PREFIXg:NAME" of g;
 * tensors of next to no gradient are compared with the global norm. */
static inline void check_gradients_of(const struct bench *b, const struct golden *g,
                                      const char *prefix, double tolerance) {
    const struct zt_model_table *t = &b->r.table;
    struct golden_array want[RIG_TENSORS];
    double diff[RIG_TENSORS], norm[RIG_TENSORS], global = 0;
    char key[64];
    snprintf(key, sizeof key, "%sg:", prefix);
    for (int i = 0; i < t->n_tensors; i++) {
        want[i] = golden_need(g, key, short_name(t->tensors[i].name));
        gradient_distance(b, i, &want[i], 1, &diff[i], &norm[i]);
        global += norm[i] * norm[i];
    }
    global = sqrt(global);
    for (int i = 0; i < t->n_tensors; i++) {
        if (t->tensors[i].frozen) continue;
        double off = diff[i] / (norm[i] < 1e-7 * global ? global : norm[i]);
        cr_expect_leq(off, tolerance, "%s%s: %g", key, t->tensors[i].name, off);
    }
}

static inline void expect_loss(const struct bench *b, const char *kind, double loss) {
    struct golden_array want = array(b, kind, "loss");
    cr_expect_leq(fabs(loss / golden_f64(&want, 0) - 1), 1e-6, "%s%sloss %.9f, PyTorch %.9f",
                  b->prefix, kind, loss, golden_f64(&want, 0));
}

static inline void check_gradients(const struct bench *b, double tolerance) {
    check_gradients_of(b, &b->gold, b->prefix, tolerance);
}

/* Logits of the rig's batch against an array of the golden. */
static inline void check_logits(struct bench *b, const struct golden_array *want,
                                double tolerance) {
    struct zt_error e = {0};
    float *logits = rig_device(&b->r, (size_t)want->numel * 4, ZT_TAG_TEMPORARY, "logits");
    struct zt_unit_source src = rig_source(&b->r);
    struct zt_batch batch = rig_batch(&b->r, 0, b->r.o.B);
    ok(zt_model_logits(b->r.model, &src, &batch, logits, &e), &e);
    double diff = 0, ref = 0;
    for (int64_t i = 0; i < want->numel; i++) {
        diff += pow((double)logits[i] - golden_f64(want, i), 2);
        ref += pow(golden_f64(want, i), 2);
    }
    cr_expect_leq(sqrt(diff / ref), tolerance, "%slogits: %g", b->prefix, sqrt(diff / ref));
    zt_free(b->r.alloc, logits);
}

/* Losses and norms of clipped AdamW steps. */
static inline void check_adamw_steps(struct bench *b) {
    struct golden_array losses = array(b, "", "losses"), norms = array(b, "", "norms");
    cr_assert_eq(losses.numel, norms.numel + 1);
    for (int64_t step = 0; step <= norms.numel; step++) {
        rig_zero_gradients(&b->r);
        double loss = rig_step(&b->r, true), want = golden_f64(&losses, step);
        cr_expect_leq(fabs(loss - want), 1e-5, "%sstep %d: %.9f, PyTorch %.9f", b->prefix,
                      (int)step, loss, want);
        if (step == norms.numel) break;
        double norm = rig_update(&b->r, step + 1, 1e-3);
        cr_expect_leq(fabs(norm / golden_f64(&norms, step) - 1), 1e-5, "%snorm at step %d: %g",
                      b->prefix, (int)step, norm);
    }
}

/* ---- 16-bit types ---- */

/* A training step's loss, with the fp64 loss of the same 16-bit weights. */
static inline void check_loss_16(struct bench *b) {
    enum zt_dtype t = b->r.o.compute;
    char key[32];
    snprintf(key, sizeof key, "%s:", zt_dtype_name(t));
    struct golden_array want = array(b, key, "loss");
    double off = fabs(rig_step(&b->r, true) - golden_f64(&want, 0));
    /* the mean over 49 tokens of one rounding of a logit of size 1 */
    cr_expect_leq(off, t == ZT_BF16 ? 0x1p-9 : 0x1p-12, "%s%s: the loss is off by %g", b->prefix,
                  key, off);
}

/* Against the exact gradients of the same 16-bit weights. The golden has the error that rounding
 * every tensor between operators makes ("e:"): ours may be half as much again, and a 16-bit
 * gradient is rounded once more. */
static inline void check_16(const struct bench *b, double scale) {
    bool bf16 = b->r.o.compute == ZT_BF16;
    const char *type = zt_dtype_name(b->r.o.compute);
    double roundoff = b->r.o.grad == ZT_F32 ? 0 : bf16 ? 0x1p-9 : 0x1p-12;
    for (int i = 0; i < b->r.table.n_tensors; i++) {
        const char *name = short_name(b->r.table.tensors[i].name);
        char key[32];
        snprintf(key, sizeof key, "%s:g:", type);
        struct golden_array g = array(b, key, name);
        snprintf(key, sizeof key, "%s:e:", type);
        struct golden_array e = array(b, key, name);
        double off, norm, expect = golden_f64(&e, 0);
        gradient_distance(b, i, &g, scale, &off, &norm);
        cr_expect_leq(off / norm, 1.5 * expect + roundoff,
                      "%s%s, %s gradients: %s is off by %.2g, expected %.2g", b->prefix, type,
                      zt_dtype_name(b->r.o.grad), name, off / norm, expect);
    }
}

static inline void expect_same_for_any_threads(const char *file, const char *prefix,
                                               enum zt_dtype t) {
    struct bench a;
    open_golden(&a, file, prefix, &(struct rig_options){.threads = 1, .compute = t, .grad = t});
    double loss = rig_step(&a.r, true);
    const int threads[] = {2, 3, 4, 8};
    for (int k = 0; k < 4; k++) {
        struct bench b;
        struct rig_options how = {.threads = threads[k], .compute = t, .grad = t};
        open_golden(&b, file, prefix, &how);
        cr_assert_eq(rig_step(&b.r, true), loss, "%d threads", threads[k]);
        for (int i = 0; i < a.r.table.n_tensors; i++)
            cr_assert_eq(memcmp(a.r.grad[i], b.r.grad[i], rig_bytes(&a.r, i, t)), 0,
                         "%s with %d threads", a.r.table.tensors[i].name, threads[k]);
        close_bench(&b);
    }
    close_bench(&a);
}

#endif
