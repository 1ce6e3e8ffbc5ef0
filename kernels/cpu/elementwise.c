/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/elementwise.c: add, scale, fill, copy, cast, GELU, SwiGLU, dropout, random initial
 * values. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>
#include "core/rng.h"

#define GRAIN_MEMORY 32768 /* elements that are only moved */
#define GRAIN_MATH 8192    /* elements with an exponential or so each */

struct operands {
    const struct zt_vec_of *of;
    enum zt_dtype t;
    void *out;
    const void *a, *b;
    float factor;
};

static void add_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->of->add(zt_cpu_at(o->out, first, o->t), zt_cpu_at(o->a, first, o->t),
               zt_cpu_at(o->b, first, o->t), (size_t)count);
}

int zt_cpu_add(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *a, const void *b,
               int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("add", t, err);
    if (rc != ZT_OK) return rc;
    struct operands o = {&x->vec->of[t], t, out, a, b, 0.0f};
    zt_cpu_range(x, n, GRAIN_MEMORY, add_range, &o);
    return ZT_OK;
}

static void scale_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->of->scale(zt_cpu_at(o->out, first, o->t), o->factor, (size_t)count);
}

int zt_cpu_scale(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float factor, int64_t n,
                 struct zt_error *err) {
    int rc = zt_cpu_need_float("scale", t, err);
    if (rc != ZT_OK) return rc;
    struct operands o = {&x->vec->of[t], t, v, NULL, NULL, factor};
    zt_cpu_range(x, n, GRAIN_MEMORY, scale_range, &o);
    return ZT_OK;
}

static void gelu_forward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->of->gelu_forward(zt_cpu_at(o->out, first, o->t), zt_cpu_at(o->a, first, o->t),
                        (size_t)count);
}

int zt_cpu_gelu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                        struct zt_error *err) {
    int rc = zt_cpu_need_float("gelu_forward", t, err);
    if (rc != ZT_OK) return rc;
    struct operands o = {&x->vec->of[t], t, out, in, NULL, 0.0f};
    zt_cpu_range(x, n, GRAIN_MATH, gelu_forward_range, &o);
    return ZT_OK;
}

static void gelu_backward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->of->gelu_backward(zt_cpu_at(o->out, first, o->t), zt_cpu_at(o->a, first, o->t),
                         zt_cpu_at(o->b, first, o->t), (size_t)count);
}

int zt_cpu_gelu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dx, const void *in,
                         const void *dout, int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("gelu_backward", t, err);
    if (rc != ZT_OK) return rc;
    struct operands o = {&x->vec->of[t], t, dx, in, dout, 0.0f};
    zt_cpu_range(x, n, GRAIN_MATH, gelu_backward_range, &o);
    return ZT_OK;
}

struct swiglu {
    const struct zt_vec_of *of;
    enum zt_dtype t;
    void *out, *dgate, *dup; /* out: the product */
    const void *gate, *up, *dout;
};

static void swiglu_forward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct swiglu *o = arg;
    (void)thread;
    o->of->swiglu_forward(zt_cpu_at(o->out, first, o->t), zt_cpu_at(o->gate, first, o->t),
                          zt_cpu_at(o->up, first, o->t), (size_t)count);
}

int zt_cpu_swiglu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *gate,
                          const void *up, int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("swiglu_forward", t, err);
    if (rc != ZT_OK) return rc;
    struct swiglu o = {.of = &x->vec->of[t], .t = t, .out = out, .gate = gate, .up = up};
    zt_cpu_range(x, n, GRAIN_MATH, swiglu_forward_range, &o);
    return ZT_OK;
}

static void swiglu_backward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct swiglu *o = arg;
    (void)thread;
    o->of->swiglu_backward(zt_cpu_at(o->dgate, first, o->t), zt_cpu_at(o->dup, first, o->t),
                           o->out ? zt_cpu_at(o->out, first, o->t) : NULL,
                           zt_cpu_at(o->gate, first, o->t), zt_cpu_at(o->up, first, o->t),
                           zt_cpu_at(o->dout, first, o->t), (size_t)count);
}

int zt_cpu_swiglu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dgate, void *dup,
                           void *product, const void *gate, const void *up, const void *dout,
                           int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("swiglu_backward", t, err);
    if (rc != ZT_OK) return rc;
    struct swiglu o = {&x->vec->of[t], t, product, dgate, dup, gate, up, dout};
    zt_cpu_range(x, n, GRAIN_MATH, swiglu_backward_range, &o);
    return ZT_OK;
}

/* ---- from one type to another, in pieces that stay in the first cache ---- */

struct cast {
    const struct zt_vec *vec;
    void *dst;
    const void *src;
    enum zt_dtype dt, st;
    bool add;
};

#define CAST_PIECE 1024

static void cast_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct cast *c = arg;
    (void)thread;
    for (int64_t i = 0; i < count; i += CAST_PIECE) {
        const size_t n = (size_t)(count - i < CAST_PIECE ? count - i : CAST_PIECE);
        float wide[CAST_PIECE];
        void *to = zt_cpu_at(c->dst, first + i, c->dt);
        c->vec->of[c->st].widen(wide, zt_cpu_at(c->src, first + i, c->st), n);
        if (c->add)
            c->vec->of[c->dt].add_f32(to, wide, n);
        else
            c->vec->of[c->dt].narrow(to, wide, n);
    }
}

int zt_cpu_cast(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                enum zt_dtype st, int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("cast", st, err);
    if (rc == ZT_OK) rc = zt_cpu_need_float("cast", dt, err);
    if (rc != ZT_OK) return rc;
    if (dt == st) return zt_cpu_copy(x, dst, src, (size_t)n * zt_dtype_size(dt), err);
    struct cast c = {x->vec, dst, src, dt, st, false};
    zt_cpu_range(x, n, GRAIN_MEMORY, cast_range, &c);
    return ZT_OK;
}

int zt_cpu_accumulate(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                      enum zt_dtype st, int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_float("accumulate", st, err);
    if (rc == ZT_OK) rc = zt_cpu_need_float("accumulate", dt, err);
    if (rc != ZT_OK) return rc;
    struct cast c = {x->vec, dst, src, dt, st, true};
    zt_cpu_range(x, n, GRAIN_MEMORY, cast_range, &c);
    return ZT_OK;
}

struct noise {
    const struct zt_vec *vec;
    uint16_t *dst;
    const float *src;
    uint64_t seed;
    struct zt_span span;
    uint32_t step, stream;
};

/* How many elements from i on can be drawn at once, at most `left`, and the first one's index. */
static int64_t drawn(const struct zt_span *s, int64_t i, int64_t left, uint64_t *index) {
    return zt_span_run(s, i, left < ZT_VEC_RANDOM ? left : ZT_VEC_RANDOM, index);
}

static void round_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct noise *r = arg;
    uint32_t word[4][ZT_VEC_RANDOM];
    (void)thread;
    for (int64_t i = first, n; i < first + count; i += n) {
        uint64_t index;
        n = drawn(&r->span, i, first + count - i, &index);
        r->vec->random(word, r->seed, r->step, r->stream, index, (size_t)n);
        r->vec->round_noisy(r->dst + i, r->src + i, word[0], (size_t)n);
    }
}

int zt_cpu_round_stochastic(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const float *src,
                            int64_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                            struct zt_span span, struct zt_error *err) {
    if (dt != ZT_BF16)
        return zt_fail(err, ZT_EUNSUPPORTED, "round_stochastic: to bf16 only, not %s",
                       zt_dtype_name(dt));
    struct noise r = {x->vec, dst, src, seed, span, step, 0};
    int rc = zt_cpu_stream("round_stochastic", ZT_RNG_ROUNDING, tensor, &r.stream, err);
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MATH, round_range, &r);
    return rc;
}

struct dropout {
    const struct zt_vec *vec;
    enum zt_dtype t;
    void *out;
    const void *in;
    struct zt_vec_dropout d;
    struct zt_span span;
};

/* Words 4 `first` and on of a stream, in the order of the elements. */
static void draw_words(const struct dropout *j, uint32_t *flat, uint64_t first, size_t draws) {
    uint32_t word[4][ZT_VEC_RANDOM];
    j->vec->random(word, j->d.seed, j->d.step, j->d.stream, first, draws);
    for (size_t i = 0; i < draws; i++)
        for (size_t w = 0; w < 4; w++) flat[4 * i + w] = word[w][i];
}

static void dropout_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct dropout *j = arg;
    const int64_t most = 4 * (ZT_VEC_RANDOM - 1); /* of which the first may be in a draw's middle */
    uint32_t words[4 * ZT_VEC_RANDOM + 16] = {0};
    (void)thread;
    for (int64_t i = first, n; i < first + count; i += n) {
        uint64_t index;
        const int64_t left = first + count - i;
        n = zt_span_run(&j->span, i, left < most ? left : most, &index);
        const size_t skip = index % 4;
        draw_words(j, words, index / 4, (skip + (size_t)n + 3) / 4);
        j->vec->of[j->t].keep(zt_cpu_at(j->out, i, j->t), zt_cpu_at(j->in, i, j->t), words + skip,
                              &j->d, (size_t)n);
    }
}

int zt_cpu_dropout(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                   const struct zt_dropout *d, struct zt_span span, struct zt_error *err) {
    struct dropout j = {.vec = x->vec, .t = t, .out = out, .in = in, .span = span};
    int rc = zt_cpu_need_float("dropout", t, err);
    if (rc == ZT_OK) rc = zt_cpu_dropout_draw("dropout", d, &j.d, err);
    if (rc != ZT_OK) return rc;
    if (!j.d.on)
        return out == in ? ZT_OK : zt_cpu_copy(x, out, in, (size_t)n * zt_dtype_size(t), err);
    zt_cpu_range(x, n, GRAIN_MATH, dropout_range, &j);
    return ZT_OK;
}

struct copy {
    char *dst;
    const char *src;
};

static void copy_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct copy *c = arg;
    (void)thread;
    memcpy(c->dst + first, c->src + first, (size_t)count);
}

int zt_cpu_copy(struct zt_ops_ctx *x, void *dst, const void *src, size_t bytes,
                struct zt_error *err) {
    (void)err;
    struct copy c = {dst, src};
    zt_cpu_range(x, (int64_t)bytes, 4 * GRAIN_MEMORY, copy_range, &c);
    return ZT_OK;
}

struct pattern {
    char *dst;
    size_t size;
    union {
        float f32;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
    } value;
};

static void fill_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct pattern *p = arg;
    char *d = p->dst + (size_t)first * p->size;
    (void)thread;
    switch (p->size) {
    case 1:
        memset(d, p->value.u8, (size_t)count);
        break;
    case 2:
        for (int64_t i = 0; i < count; i++) ((uint16_t *)(void *)d)[i] = p->value.u16;
        break;
    case 4:
        for (int64_t i = 0; i < count; i++) ((int32_t *)(void *)d)[i] = p->value.i32;
        break;
    default:
        for (int64_t i = 0; i < count; i++) ((int64_t *)(void *)d)[i] = p->value.i64;
    }
}

int zt_cpu_fill(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float value, int64_t n,
                struct zt_error *err) {
    struct pattern p = {.dst = v};
    const bool whole = value == truncf(value) && fabsf(value) < 0x1p31f;
    const bool is_float = t == ZT_F32 || t == ZT_BF16 || t == ZT_F16;
    if (!is_float && (!whole || (t == ZT_U8 && (value < 0.0f || value > 255.0f))))
        return zt_fail(err, ZT_EINVAL, "fill: %g is not a value of the integer dtype %d",
                       (double)value, (int)t);
    switch (t) {
    case ZT_F32:
        p.size = 4, p.value.f32 = value;
        break;
    case ZT_BF16:
    case ZT_F16:
        p.size = 2, x->vec->of[t].narrow(&p.value.u16, &value, 1);
        break;
    case ZT_I32:
        p.size = 4, p.value.i32 = (int32_t)value;
        break;
    case ZT_I64:
        p.size = 8, p.value.i64 = (int64_t)value;
        break;
    case ZT_U8:
        p.size = 1, p.value.u8 = (uint8_t)value;
        break;
    default:
        return zt_fail(err, ZT_EINVAL, "fill: dtype %d is not known", (int)t);
    }
    zt_cpu_range(x, n, GRAIN_MEMORY, fill_range, &p);
    return ZT_OK;
}

struct normal {
    const struct zt_vec *vec;
    enum zt_dtype t;
    void *v;
    uint64_t seed;
    struct zt_span span;
    uint32_t tensor, stream;
    double std;
};

/* A 16-bit element is its fp32 value, rounded: what a cast of the fp32 tensor gives. */
static void normal_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct normal *r = arg;
    uint32_t word[4][ZT_VEC_RANDOM];
    uint16_t doubtful[ZT_VEC_RANDOM];
    (void)thread;
    for (int64_t i = first, n; i < first + count; i += n) {
        float wide[ZT_VEC_RANDOM];
        uint64_t from;
        n = drawn(&r->span, i, first + count - i, &from);
        r->vec->random(word, r->seed, 0, r->stream, from, (size_t)n);
        size_t left_out = r->vec->normal(wide, (const uint32_t(*)[ZT_VEC_RANDOM])word, (size_t)n,
                                         r->std, doubtful);
        while (left_out-- > 0) {
            const size_t k = doubtful[left_out];
            wide[k] = (float)(zt_rng_normal(r->seed, ZT_RNG_INIT, 0, r->tensor, from + k) * r->std);
        }
        r->vec->of[r->t].narrow(zt_cpu_at(r->v, i, r->t), wide, (size_t)n);
    }
}

int zt_cpu_fill_normal(struct zt_ops_ctx *x, enum zt_dtype t, void *v, uint64_t seed,
                       uint32_t tensor, struct zt_span span, int64_t n, double std,
                       struct zt_error *err) {
    int rc = zt_cpu_need_float("fill_normal", t, err);
    if (rc != ZT_OK) return rc;
    struct normal r = {x->vec, t, v, seed, span, tensor, 0, std};
    rc = zt_cpu_stream("fill_normal", ZT_RNG_INIT, tensor, &r.stream, err);
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MATH, normal_range, &r);
    return rc;
}

int zt_cpu_count_targets(struct zt_ops_ctx *x, const int32_t *targets, int64_t n, int64_t *valid,
                         struct zt_error *err) {
    (void)x, (void)err;
    for (int64_t i = 0; i < n; i++) *valid += targets[i] != -1;
    return ZT_OK;
}
