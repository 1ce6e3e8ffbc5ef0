/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec.h: the table of vector routines, one per instruction set.
 *
 * The same source (vec_body.h on vec_lanes.h) is compiled once each for SSE2, AVX2 and AVX-512.
 * All of it works on 16 virtual lanes, reductions keep 16 partial results that are added in one
 * fixed tree, tails use the expression of the body, and no fused multiply-add is used. So every
 * routine gives the same bits on all three sets, with one exception: attention uses fma where the
 * set has it, so its bits are shared by AVX2 and AVX-512 and differ on SSE2.
 *
 * Routines are serial and own nothing; scratch is handed in. Thread rule: any thread. */
#ifndef ZT_KERNELS_CPU_VEC_H
#define ZT_KERNELS_CPU_VEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* AdamW's scalars, computed once in double and rounded to float (T-ADAM's order). */
struct zt_vec_adamw {
    float grad_scale;
    float decay;    /* 1 - lr wd */
    float one_m_b1; /* 1 - beta1 */
    float beta2;
    float one_m_b2; /* 1 - beta2 */
    float sqrt_bc2; /* sqrt(1 - beta2^t) */
    float eps;
    float step_size; /* lr / (1 - beta1^t) */
};

/* One unit of attention: one head's block of queries (forward), keys (backward). */
struct zt_vec_attention {
    const float *q, *k, *v;  /* this head's first row; rows are `stride` floats apart */
    const float *out, *dout; /* [T] rows of `ostride` floats; dout only backward */
    float *o;                /* forward output, ostride */
    float *lse;              /* [T] of this head */
    float *dq, *dk, *dv;     /* as q, k, v; backward only */
    int64_t stride, ostride;
    int64_t T, D;
    float scale;
    const float *next_k, *next_v; /* of the head this thread probably takes next, or NULL: a hint */
    float *scratch;               /* zt_vec_attention_scratch() floats, 64-byte aligned */
};

#define ZT_ATTENTION_BLOCK 64 /* queries, or keys, of one tile */

struct zt_vec {
    const char *name; /* "sse2", "avx2", "avx512" */
    bool fma;         /* attention uses fused multiply-add */
    void (*add)(float *out, const float *a, const float *b, size_t n);
    void (*scale)(float *v, float factor, size_t n);
    void (*exp)(float *out, const float *in, size_t n); /* <= 1 ulp; below -87.33 gives 0 */
    void (*log)(float *out, const float *in, size_t n); /* <= 1 ulp; normal numbers > 0 */
    void (*gelu_forward)(float *out, const float *in, size_t n);
    void (*gelu_backward)(float *dx, const float *in, const float *dout, size_t n);
    /* rows of LayerNorm; residual and sum may be NULL */
    void (*layernorm_forward)(float *out, float *mean, float *rstd, const float *in,
                              const float *residual, float *sum, const float *weight,
                              const float *bias, int64_t rows, int64_t C, float eps);
    /* dx of the rows; part[2][C] = their sums for dweight and dbias (written, not added) */
    void (*layernorm_backward)(float *dx, float *part, const float *dout, const float *in,
                               const float *weight, const float *mean, const float *rstd,
                               int64_t rows, int64_t C, bool accumulate_dx);
    /* part[C] = column sums of rows x C, rows added in order */
    void (*column_sums)(float *part, const float *in, int64_t rows, int64_t C);
    void (*cross_entropy_row)(float *logits, float *loss, int64_t V, int64_t target, float scale,
                              bool backward);
    void (*adamw)(float *p, float *m, float *v, const float *g, size_t n,
                  const struct zt_vec_adamw *a);
    void (*f32_to_bf16)(uint16_t *out, const float *in, size_t n); /* nearest, ties to even */
    void (*bf16_to_f32)(float *out, const uint16_t *in, size_t n);
    /* One block of `width` (16, 32, 48, 64) columns of the packed weights that oneDNN's brgemm
     * reads: out[roundup(K,16)][width], zero-filled beyond K rows and `columns` columns. */
    void (*pack_16)(float *out, const float *w, int64_t k_stride, int64_t n_stride, int64_t K,
                    int64_t columns, int64_t width);
    void (*attention_forward)(const struct zt_vec_attention *a, int64_t query_block);
    void (*attention_backward)(const struct zt_vec_attention *a);
};

/* Floats of scratch that one thread needs for a head of width D and T positions. */
size_t zt_vec_attention_scratch(int64_t T, int64_t D);

extern const struct zt_vec zt_vec_sse2, zt_vec_avx2, zt_vec_avx512;

/* The table named, or the best one for NULL; NULL when unknown or this machine lacks it. */
const struct zt_vec *zt_vec_find(const char *name);

#endif
