/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_typed.h: the routines on tensors of one storage type, included by vec_body.h once
 * per type after these are defined:
 *   ELEM                       what an element is stored as
 *   TY(name)                    the name with the type's suffix
 *   LOAD(p), STORE(p, x)       16 elements to and from fp32 lanes
 *   IS_F32                     1 where a store and a load give back the value
 * See vec.h for what each routine does. */

INLINE v16 TY(load_tail)(const ELEM *p, size_t n, float fill) {
#if IS_F32
    return v_load_tail(p, n, fill);
#else
    ELEM t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return v_select(v_lt(lane_numbers(), v_set1((float)n)), LOAD(t), v_set1(fill));
#endif
}

INLINE void TY(store_tail)(ELEM *p, size_t n, v16 x) {
#if IS_F32
    v_store_tail(p, n, x);
#else
    ELEM t[16];
    STORE(t, x);
    memcpy(p, t, n * sizeof *p);
#endif
}

/* 16 elements at i of a row of C, the tail's missing lanes holding `fill`. */
INLINE v16 TY(row_load)(const ELEM *row, int64_t i, int64_t C, float fill) {
    return i + 16 <= C ? LOAD(row + i) : TY(load_tail)(row + i, (size_t)(C - i), fill);
}

INLINE void TY(row_store)(ELEM *row, int64_t i, int64_t C, v16 x) {
    if (i + 16 <= C)
        STORE(row + i, x);
    else
        TY(store_tail)(row + i, (size_t)(C - i), x);
}

/* ---- elementwise: whole vectors, then the tail with the same expression ---- */

static void TY(widen)(float *out, const void *in, size_t n) {
    for (int64_t i = 0; i < (int64_t)n; i += 16)
        row_store_f32(out, i, (int64_t)n, TY(row_load)(in, i, (int64_t)n, 0.0f));
}

static void TY(narrow)(void *out, const float *in, size_t n) {
    for (int64_t i = 0; i < (int64_t)n; i += 16)
        TY(row_store)(out, i, (int64_t)n, row_load_f32(in, i, (int64_t)n, 0.0f));
}

static void TY(add)(void *out, const void *a, const void *b, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16)
        TY(row_store)(out, i, C, v_add(TY(row_load)(a, i, C, 0.0f), TY(row_load)(b, i, C, 0.0f)));
}

static void TY(add_f32)(void *v, const float *more, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16)
        TY(row_store)(v, i, C, v_add(TY(row_load)(v, i, C, 0.0f), row_load_f32(more, i, C, 0.0f)));
}

static void TY(scale)(void *v, float factor, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16)
        TY(row_store)(v, i, C, v_mul(TY(row_load)(v, i, C, 0.0f), v_set1(factor)));
}

static void TY(gelu_forward)(void *out, const void *in, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16)
        TY(row_store)(out, i, C, gelu_one(TY(row_load)(in, i, C, 0.0f)));
}

static void TY(gelu_backward)(void *dx, const void *in, const void *dout, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16) TY(row_store)
    (dx, i, C, gelu_slope(TY(row_load)(in, i, C, 0.0f), TY(row_load)(dout, i, C, 0.0f)));
}

static void TY(swiglu_forward)(void *out, const void *gate, const void *up, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16)
        TY(row_store)
    (out, i, C, swiglu_one(TY(row_load)(gate, i, C, 0.0f), TY(row_load)(up, i, C, 0.0f)));
}

static void TY(swiglu_backward)(void *dgate, void *dup, void *product, const void *gate,
                                const void *up, const void *dout, size_t n) {
    const int64_t C = (int64_t)n;
    for (int64_t i = 0; i < C; i += 16) {
        v16 dg, du, p;
        swiglu_slopes(TY(row_load)(gate, i, C, 0.0f), TY(row_load)(up, i, C, 0.0f),
                      TY(row_load)(dout, i, C, 0.0f), &dg, &du, &p);
        TY(row_store)(dgate, i, C, dg);
        TY(row_store)(dup, i, C, du);
        if (product) TY(row_store)(product, i, C, p);
    }
}

static void TY(keep)(void *out, const void *in, const uint32_t *words,
                     const struct zt_vec_dropout *d, size_t n) {
    const int64_t C = (int64_t)n;
    const i16v threshold = i_set1((int32_t)d->threshold);
    const v16 factor = v_set1(d->factor);
    for (int64_t i = 0; i < C; i += 16) {
        const v16 kept = v_mul(TY(row_load)(in, i, C, 0.0f), factor);
        TY(row_store)
        (out, i, C, v_select(i_above(threshold, i_load(words + i)), v_zero(), kept));
    }
}

/* ---- rows ---- */

/* The sum with the residual is normalised as it was stored: that is what backward reads. */
static void TY(layernorm_forward)(void *out, float *mean, float *rstd, const void *in,
                                  const void *residual, void *sum, const void *weight,
                                  const void *bias, int64_t rows, int64_t C, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        const ELEM *x = (const ELEM *)in + r * C;
        v16 total = v_zero(), squares = v_zero();
        if (residual) {
            const ELEM *more = (const ELEM *)residual + r * C;
            ELEM *s = (ELEM *)sum + r * C;
            for (int64_t i = 0; i < C; i += 16) {
                TY(row_store)
                (s, i, C, v_add(TY(row_load)(x, i, C, 0.0f), TY(row_load)(more, i, C, 0.0f)));
                total = v_add(total, TY(row_load)(s, i, C, 0.0f));
            }
            x = s;
        } else {
            for (int64_t i = 0; i < C; i += 16) total = v_add(total, TY(row_load)(x, i, C, 0.0f));
        }
        const float mu = v_sum(total) / (float)C;
        const v16 mus = v_set1(mu);
        for (int64_t i = 0; i < C; i += 16) {
            v16 d = v_sub(TY(row_load)(x, i, C, mu), mus);
            squares = v_add(squares, v_mul(d, d));
        }
        const float rs = 1.0f / sqrtf(v_sum(squares) / (float)C + eps);
        const v16 rss = v_set1(rs);
        ELEM *o = (ELEM *)out + r * C;
        for (int64_t i = 0; i < C; i += 16) {
            v16 n = v_mul(v_sub(TY(row_load)(x, i, C, mu), mus), rss);
            v16 w = TY(row_load)(weight, i, C, 0.0f), b = TY(row_load)(bias, i, C, 0.0f);
            TY(row_store)(o, i, C, v_add(v_mul(n, w), b));
        }
        mean[r] = mu;
        rstd[r] = rs;
    }
}

/* dx = (dn - mean(dn) - n mean(dn n)) rstd, with n the normalised input and dn = dout weight. */
static void TY(layernorm_backward)(void *dx, float *part, const void *dout, const void *in,
                                   const void *weight, const float *mean, const float *rstd,
                                   int64_t rows, int64_t C, bool accumulate_dx) {
    float *dw = part, *db = part + C;
    for (int64_t r = 0; r < rows; r++) {
        const ELEM *dy = (const ELEM *)dout + r * C, *x = (const ELEM *)in + r * C;
        const v16 mu = v_set1(mean[r]), rs = v_set1(rstd[r]);
        v16 sum_dn = v_zero(), sum_dnn = v_zero();
        for (int64_t i = 0; i < C; i += 16) {
            v16 d = TY(row_load)(dy, i, C, 0.0f);
            v16 n = v_mul(v_sub(TY(row_load)(x, i, C, mean[r]), mu), rs);
            v16 dn = v_mul(d, TY(row_load)(weight, i, C, 0.0f));
            v16 dny = v_mul(d, n);
            sum_dn = v_add(sum_dn, dn);
            sum_dnn = v_add(sum_dnn, v_mul(dn, n));
            row_store_f32(dw, i, C, r ? v_add(row_load_f32(dw, i, C, 0.0f), dny) : dny);
            row_store_f32(db, i, C, r ? v_add(row_load_f32(db, i, C, 0.0f), d) : d);
        }
        const v16 a = v_set1(v_sum(sum_dn) / (float)C), b = v_set1(v_sum(sum_dnn) / (float)C);
        ELEM *g = (ELEM *)dx + r * C;
        for (int64_t i = 0; i < C; i += 16) {
            v16 dn = v_mul(TY(row_load)(dy, i, C, 0.0f), TY(row_load)(weight, i, C, 0.0f));
            v16 n = v_mul(v_sub(TY(row_load)(x, i, C, mean[r]), mu), rs);
            v16 v = v_mul(v_sub(v_sub(dn, a), v_mul(n, b)), rs);
            TY(row_store)(g, i, C, accumulate_dx ? v_add(TY(row_load)(g, i, C, 0.0f), v) : v);
        }
    }
}

/* As in LayerNorm, the sum is normalised as it was stored. */
static void TY(rmsnorm_forward)(void *out, float *rstd, const void *in, const void *residual,
                                void *sum, const void *weight, int64_t rows, int64_t C, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        const ELEM *x = (const ELEM *)in + r * C;
        if (residual) {
            ELEM *s = (ELEM *)sum + r * C;
            TY(add)(s, x, (const ELEM *)residual + r * C, (size_t)C);
            x = s;
        }
        v16 squares = v_zero();
        for (int64_t i = 0; i < C; i += 16) {
            v16 v = TY(row_load)(x, i, C, 0.0f);
            squares = v_add(squares, v_mul(v, v));
        }
        const float rs = 1.0f / sqrtf(v_sum(squares) / (float)C + eps);
        const v16 rss = v_set1(rs);
        ELEM *o = (ELEM *)out + r * C;
        for (int64_t i = 0; i < C; i += 16) {
            v16 n = v_mul(TY(row_load)(x, i, C, 0.0f), rss);
            TY(row_store)(o, i, C, v_mul(n, TY(row_load)(weight, i, C, 0.0f)));
        }
        rstd[r] = rs;
    }
}

/* dx = (dn - n mean(dn n)) rstd, with n the normalised input and dn = dout weight. */
static void TY(rmsnorm_backward)(void *dx, float *part, const void *dout, const void *in,
                                 const void *weight, const float *rstd, int64_t rows, int64_t C,
                                 bool accumulate_dx) {
    for (int64_t r = 0; r < rows; r++) {
        const ELEM *dy = (const ELEM *)dout + r * C, *x = (const ELEM *)in + r * C;
        const v16 rs = v_set1(rstd[r]);
        v16 sum_dnn = v_zero();
        for (int64_t i = 0; i < C; i += 16) {
            v16 n = v_mul(TY(row_load)(x, i, C, 0.0f), rs);
            v16 dny = v_mul(TY(row_load)(dy, i, C, 0.0f), n);
            sum_dnn = v_add(sum_dnn, v_mul(dny, TY(row_load)(weight, i, C, 0.0f)));
            row_store_f32(part, i, C, r ? v_add(row_load_f32(part, i, C, 0.0f), dny) : dny);
        }
        const v16 b = v_set1(v_sum(sum_dnn) / (float)C);
        ELEM *g = (ELEM *)dx + r * C;
        for (int64_t i = 0; i < C; i += 16) {
            v16 dn = v_mul(TY(row_load)(dy, i, C, 0.0f), TY(row_load)(weight, i, C, 0.0f));
            v16 n = v_mul(TY(row_load)(x, i, C, 0.0f), rs);
            v16 v = v_mul(v_sub(dn, v_mul(n, b)), rs);
            TY(row_store)(g, i, C, accumulate_dx ? v_add(TY(row_load)(g, i, C, 0.0f), v) : v);
        }
    }
}

static void TY(rope_row)(void *v, const float *angles, int64_t heads, int64_t D, float sign) {
    const int64_t half = D / 2;
    const v16 signs = v_set1(sign);
    for (int64_t h = 0; h < heads; h++) {
        ELEM *low = (ELEM *)v + h * D, *high = low + half;
        for (int64_t i = 0; i < half; i += 16) {
            const v16 c = row_load_f32(angles, i, half, 0.0f);
            const v16 s = v_mul(row_load_f32(angles + half, i, half, 0.0f), signs);
            const v16 a = TY(row_load)(low, i, half, 0.0f), b = TY(row_load)(high, i, half, 0.0f);
            TY(row_store)(low, i, half, v_sub(v_mul(a, c), v_mul(b, s)));
            TY(row_store)(high, i, half, v_add(v_mul(b, c), v_mul(a, s)));
        }
    }
}

static void TY(column_sums)(float *part, const void *in, int64_t rows, int64_t C) {
    int64_t c = 0;
    for (; c + 64 <= C; c += 64) {
        v16 s0 = v_zero(), s1 = v_zero(), s2 = v_zero(), s3 = v_zero();
        for (int64_t r = 0; r < rows; r++) {
            const ELEM *x = (const ELEM *)in + r * C + c;
            s0 = v_add(s0, LOAD(x));
            s1 = v_add(s1, LOAD(x + 16));
            s2 = v_add(s2, LOAD(x + 32));
            s3 = v_add(s3, LOAD(x + 48));
        }
        v_store(part + c, s0);
        v_store(part + c + 16, s1);
        v_store(part + c + 32, s2);
        v_store(part + c + 48, s3);
    }
    for (; c < C; c += 16) {
        v16 s = v_zero();
        for (int64_t r = 0; r < rows; r++)
            s = v_add(s, TY(row_load)((const ELEM *)in + r * C, c, C, 0.0f));
        row_store_f32(part, c, C, s);
    }
}

static float TY(row_max)(const void *row, int64_t n) {
    const float ninf = -__builtin_inff();
    v16 best = v_set1(ninf);
    for (int64_t i = 0; i < n; i += 16) best = v_max(TY(row_load)(row, i, n, ninf), best);
    return v_highest(best);
}

/* `keep`: the exponentials take the place of what they are of. A NaN makes the sum NaN. */
INLINE float TY(exponentials)(ELEM *row, int64_t n, float top, bool keep) {
    const float ninf = -__builtin_inff();
    const v16 tops = v_set1(top);
    v16 total = v_zero();
    for (int64_t i = 0; i < n; i += 16) {
        v16 e = v_exp_negative(v_sub(TY(row_load)(row, i, n, ninf), tops));
        if (keep) TY(row_store)(row, i, n, e);
        total = v_add(total, e);
    }
    return v_sum(total);
}

/* `kept`: the row holds exponentials already. */
INLINE void TY(gradient_row)(ELEM *row, int64_t n, float top, float factor, int64_t target,
                             float scale, bool kept) {
    const v16 factors = v_set1(factor), tops = v_set1(top);
    for (int64_t i = 0; i < n; i += 16) {
        v16 e = TY(row_load)(row, i, n, -__builtin_inff());
        if (!kept) e = v_exp_negative(v_sub(e, tops));
        e = v_mul(e, factors);
        if (target >= i && target < i + 16) {
            float lanes[16];
            v_store(lanes, e);
            lanes[target - i] -= scale;
            e = v_load(lanes);
        }
        TY(row_store)(row, i, n, e);
    }
}

static float TY(exp_sum)(const void *row, int64_t n, float top) {
    return TY(exponentials)((ELEM *)(uintptr_t)row, n, top, false);
}

static void TY(softmax_gradient)(void *row, int64_t n, float top, float factor, int64_t target,
                                 float scale) {
    TY(gradient_row)(row, n, top, factor, target, scale, false);
}

/* In fp32 the exponentials are kept in place of the logits until their sum is known; a narrower
 * type would round them there, so they are computed twice. */
static void TY(cross_entropy_row)(void *logits, float *loss, int64_t V, int64_t target, float scale,
                                  bool backward) {
    ELEM *row = logits;
    if (target < 0) {
        *loss = 0.0f;
        if (backward) memset(row, 0, (size_t)V * sizeof *row);
        return;
    }
    float picked, log_sum;
    TY(widen)(&picked, row + target, 1);
    const float top = TY(row_max)(row, V);
    const float sum = TY(exponentials)(row, V, top, IS_F32 && backward);
    vec_log(&log_sum, &sum, 1);
    *loss = log_sum + (top - picked);
    if (backward) TY(gradient_row)(row, V, top, scale / sum, target, scale, IS_F32);
}

#include "kernels/cpu/vec_attention_typed.h"

#undef ELEM
#undef TY
#undef LOAD
#undef STORE
#undef IS_F32
