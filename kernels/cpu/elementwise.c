/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/elementwise.c: add, scale, fill, copy, cast, GELU and random initial values. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>
#include "core/rng.h"

#define GRAIN_MEMORY 32768 /* elements that are only moved */
#define GRAIN_MATH 8192    /* elements with an exponential or so each */

struct operands {
    const struct zt_vec *vec;
    float *out;
    const float *a, *b;
    float factor;
};

static void add_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->vec->add(o->out + first, o->a + first, o->b + first, (size_t)count);
}

int zt_cpu_add(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *a, const void *b,
               int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_f32("add", t, err);
    struct operands o = {x->vec, out, a, b, 0.0f};
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MEMORY, add_range, &o);
    return rc;
}

static void scale_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->vec->scale(o->out + first, o->factor, (size_t)count);
}

int zt_cpu_scale(struct zt_ops_ctx *x, enum zt_dtype t, void *v, float factor, int64_t n,
                 struct zt_error *err) {
    int rc = zt_cpu_need_f32("scale", t, err);
    struct operands o = {x->vec, v, NULL, NULL, factor};
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MEMORY, scale_range, &o);
    return rc;
}

static void gelu_forward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->vec->gelu_forward(o->out + first, o->a + first, (size_t)count);
}

int zt_cpu_gelu_forward(struct zt_ops_ctx *x, enum zt_dtype t, void *out, const void *in, int64_t n,
                        struct zt_error *err) {
    int rc = zt_cpu_need_f32("gelu_forward", t, err);
    struct operands o = {x->vec, out, in, NULL, 0.0f};
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MATH, gelu_forward_range, &o);
    return rc;
}

static void gelu_backward_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct operands *o = arg;
    (void)thread;
    o->vec->gelu_backward(o->out + first, o->a + first, o->b + first, (size_t)count);
}

int zt_cpu_gelu_backward(struct zt_ops_ctx *x, enum zt_dtype t, void *dx, const void *in,
                         const void *dout, int64_t n, struct zt_error *err) {
    int rc = zt_cpu_need_f32("gelu_backward", t, err);
    struct operands o = {x->vec, dx, in, dout, 0.0f};
    if (rc == ZT_OK) zt_cpu_range(x, n, GRAIN_MATH, gelu_backward_range, &o);
    return rc;
}

/* ---- casts: nearest, ties to even ---- */

static uint16_t f32_to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    const uint32_t sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    if (mag >= 0x47800000u) /* 65536 and above, infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (mag >= 0x38800000u) { /* normal; a carry out of the mantissa may give infinity, rightly */
        uint32_t h = (mag - 0x38000000u) >> 13, rest = mag & 0x1fffu;
        return (uint16_t)(sign | (h + (rest > 0x1000u || (rest == 0x1000u && (h & 1u)))));
    }
    /* subnormal: adding 0.5 lets the FPU round at 2^-24 */
    float a;
    memcpy(&a, &mag, 4);
    a += 0.5f;
    memcpy(&u, &a, 4);
    return (uint16_t)(sign | (u - 0x3f000000u));
}

static float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    uint32_t u;
    float f;
    if (e == 0) {
        f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    } else if (e == 31) {
        u = sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0u);
    } else {
        u = sign | (e + 112u) << 23 | m << 13;
    }
    memcpy(&f, &u, 4);
    return f;
}

struct cast {
    const struct zt_vec *vec;
    void *dst;
    const void *src;
    enum zt_dtype dt, st;
};

#define CAST_PIECE 1024

/* Elements [at, at + n) of src, as fp32. */
static void widen(const struct zt_vec *vec, float *wide, const void *src, enum zt_dtype st,
                  int64_t at, size_t n) {
    const uint16_t *s16 = (const uint16_t *)src + at;
    if (st == ZT_F32)
        memcpy(wide, (const float *)src + at, n * sizeof *wide);
    else if (st == ZT_BF16)
        vec->bf16_to_f32(wide, s16, n);
    else
        for (size_t i = 0; i < n; i++) wide[i] = f16_to_f32(s16[i]);
}

static void narrow(const struct zt_vec *vec, void *dst, enum zt_dtype dt, int64_t at,
                   const float *wide, size_t n) {
    uint16_t *d16 = (uint16_t *)dst + at;
    if (dt == ZT_F32)
        memcpy((float *)dst + at, wide, n * sizeof *wide);
    else if (dt == ZT_BF16)
        vec->f32_to_bf16(d16, wide, n);
    else
        for (size_t i = 0; i < n; i++) d16[i] = f32_to_f16(wide[i]);
}

static void cast_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct cast *c = arg;
    (void)thread;
    for (int64_t i = 0; i < count; i += CAST_PIECE) {
        const size_t n = (size_t)(count - i < CAST_PIECE ? count - i : CAST_PIECE);
        float wide[CAST_PIECE];
        widen(c->vec, wide, c->src, c->st, first + i, n);
        narrow(c->vec, c->dst, c->dt, first + i, wide, n);
    }
}

static bool is_float(enum zt_dtype t) { return t == ZT_F32 || t == ZT_BF16 || t == ZT_F16; }

int zt_cpu_cast(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                enum zt_dtype st, int64_t n, struct zt_error *err) {
    if (!is_float(dt) || !is_float(st))
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "cast: only between fp32, bf16 and fp16 (dtypes %d to %d were asked for)",
                       (int)st, (int)dt);
    if (dt == st) return zt_cpu_copy(x, dst, src, (size_t)n * (dt == ZT_F32 ? 4u : 2u), err);
    struct cast c = {x->vec, dst, src, dt, st};
    zt_cpu_range(x, n, GRAIN_MEMORY, cast_range, &c);
    return ZT_OK;
}

static void accumulate_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct cast *c = arg;
    (void)thread;
    for (int64_t i = 0; i < count; i += CAST_PIECE) {
        const int64_t at = first + i;
        const size_t n = (size_t)(count - i < CAST_PIECE ? count - i : CAST_PIECE);
        float sum[CAST_PIECE], more[CAST_PIECE];
        widen(c->vec, sum, c->dst, c->dt, at, n);
        widen(c->vec, more, c->src, c->st, at, n);
        c->vec->add(sum, sum, more, n);
        narrow(c->vec, c->dst, c->dt, at, sum, n);
    }
}

int zt_cpu_accumulate(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const void *src,
                      enum zt_dtype st, int64_t n, struct zt_error *err) {
    if (!is_float(dt) || !is_float(st))
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "accumulate: only fp32, bf16 and fp16 (%s to %s were asked for)",
                       zt_dtype_name(st), zt_dtype_name(dt));
    struct cast c = {x->vec, dst, src, dt, st};
    zt_cpu_range(x, n, GRAIN_MEMORY, accumulate_range, &c);
    return ZT_OK;
}

struct noise {
    uint16_t *dst;
    const float *src;
    uint64_t seed, first;
    uint32_t step, tensor;
};

static void round_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct noise *r = arg;
    (void)thread;
    for (int64_t i = first; i < first + count; i++) {
        uint32_t u, w[4];
        memcpy(&u, &r->src[i], 4);
        zt_rng_words(r->seed, ZT_RNG_ROUNDING, r->step, r->tensor, r->first + (uint64_t)i, w);
        const uint32_t quiet = (u & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u;
        if ((u & 0x7f800000u) == 0x7f800000u)
            u |= quiet; /* the low half may be all there is of a NaN */
        else
            u += w[0] & 0xffffu;
        r->dst[i] = (uint16_t)(u >> 16);
    }
}

int zt_cpu_round_stochastic(struct zt_ops_ctx *x, void *dst, enum zt_dtype dt, const float *src,
                            int64_t n, uint64_t seed, uint32_t step, uint32_t tensor,
                            uint64_t first, struct zt_error *err) {
    if (dt != ZT_BF16)
        return zt_fail(err, ZT_EUNSUPPORTED, "round_stochastic: to bf16 only (%s was asked for)",
                       zt_dtype_name(dt));
    struct noise r = {dst, src, seed, first, step, tensor};
    zt_cpu_range(x, n, 4096, round_range, &r);
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
    if (!is_float(t) && (!whole || (t == ZT_U8 && (value < 0.0f || value > 255.0f))))
        return zt_fail(err, ZT_EINVAL, "fill: %g is not a value of the integer dtype %d",
                       (double)value, (int)t);
    switch (t) {
    case ZT_F32:
        p.size = 4, p.value.f32 = value;
        break;
    case ZT_BF16:
        p.size = 2, x->vec->f32_to_bf16(&p.value.u16, &value, 1);
        break;
    case ZT_F16:
        p.size = 2, p.value.u16 = f32_to_f16(value);
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
    float *v;
    uint64_t seed, first;
    uint32_t tensor;
    double std;
};

static void normal_range(void *arg, int64_t first, int64_t count, int thread) {
    const struct normal *r = arg;
    (void)thread;
    for (int64_t i = first; i < first + count; i++) {
        double z = zt_rng_normal(r->seed, ZT_RNG_INIT, 0, r->tensor, r->first + (uint64_t)i);
        r->v[i] = (float)(z * r->std);
    }
}

int zt_cpu_fill_normal(struct zt_ops_ctx *x, enum zt_dtype t, void *v, uint64_t seed,
                       uint32_t tensor, uint64_t first, int64_t n, double std,
                       struct zt_error *err) {
    int rc = zt_cpu_need_f32("fill_normal", t, err);
    struct normal r = {v, seed, first, tensor, std};
    if (rc == ZT_OK) zt_cpu_range(x, n, 4096, normal_range, &r);
    return rc;
}
