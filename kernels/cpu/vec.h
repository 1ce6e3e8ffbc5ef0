/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec.h: the table of vector routines, one per instruction set.
 *
 * The same source (vec_body.h on vec_lanes.h) is compiled once each for SSE2, AVX2 and AVX-512, and
 * what reads or writes tensors (vec_typed.h) once more for each storage type. All of it works on 16
 * virtual fp32 lanes: a 16-bit element is widened exactly when it is loaded and rounded once, to
 * nearest even, when it is stored. Reductions keep 16 partial results that are added in one fixed
 * tree, tails use the expression of the body, and no fused multiply-add is used. So every routine
 * gives the same bits on all three sets, with one exception: attention uses fma where the set has
 * it, so its bits are shared by AVX2 and AVX-512 and differ on SSE2.
 *
 * Routines are serial and own nothing; scratch is handed in. Thread rule: any thread. */
#ifndef ZT_KERNELS_CPU_VEC_H
#define ZT_KERNELS_CPU_VEC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/dtype.h"

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

/* Dropout (kernels/ops.h): a word below the threshold drops. In attention a head's query q and key k
 * have word k % 4 of draw first + q quads + k / 4. */
struct zt_vec_dropout {
    bool on;
    uint32_t threshold;
    float factor; /* of what is kept */
    uint64_t seed;
    uint32_t step, stream; /* the counter's last two words */
    uint64_t first;
    int64_t quads;
};

/* One query head of attention. Rows are so many elements apart. */
struct zt_vec_attention {
    const void *q, *k, *v;  /* this head's first row */
    const void *out, *dout; /* [T] rows, out_row apart; only backward */
    void *o;                /* forward output, out_row */
    float *lse;             /* [T] of this head */
    void *dq, *dk, *dv;     /* as q, k, v; backward only */
    int64_t q_row, k_row, v_row, out_row;
    int64_t T, D;
    float scale;
    const int32_t *starts; /* [T]: the first position that each attends to, or NULL: all 0 */
    struct zt_vec_dropout dropout;
    const void *next_k, *next_v; /* of the head this thread probably takes next, or NULL: a hint */
    float *scratch;              /* zt_vec_attention_scratch() floats, 64-byte aligned */
};

#define ZT_ATTENTION_BLOCK 64 /* queries, or keys, of one tile */

/* The tiles that one call of backward visits, by blocks of queries and of keys, and what it sums:
 * dq (then of all keys), dk and dv (then of all queries), or all three. dk and dv are summed in the
 * scratch over the heads of a group, one call each in order by one thread: zeroed before the first,
 * stored after the last. Any cut into parts adds in the same order. */
struct zt_vec_attention_part {
    int64_t query, queries, key, keys; /* the first block and how many */
    bool to_queries, to_keys;
    bool first, last;
};

#define ZT_VEC_RANDOM 256 /* elements that zt_vec.random serves at a time */

/* Routines on tensors of one storage type. */
struct zt_vec_of {
    void (*widen)(float *out, const void *in, size_t n);
    void (*narrow)(void *out, const float *in, size_t n);
    void (*add)(void *out, const void *a, const void *b, size_t n);
    void (*add_f32)(void *v, const float *more, size_t n); /* v += more */
    void (*scale)(void *v, float factor, size_t n);
    void (*gelu_forward)(void *out, const void *in, size_t n);
    void (*gelu_backward)(void *dx, const void *in, const void *dout, size_t n);
    void (*swiglu_forward)(void *out, const void *gate, const void *up, size_t n);
    void (*swiglu_backward)(void *dgate, void *dup, void *product, const void *gate, const void *up,
                            const void *dout, size_t n);
    /* out = in factor where the element's word keeps it, else 0; words are there to the next 16 */
    void (*keep)(void *out, const void *in, const uint32_t *words, const struct zt_vec_dropout *d,
                 size_t n);
    /* rows of LayerNorm; residual and sum may be NULL */
    void (*layernorm_forward)(void *out, float *mean, float *rstd, const void *in,
                              const void *residual, void *sum, const void *weight, const void *bias,
                              int64_t rows, int64_t C, float eps);
    /* dx of the rows; part[2][C] = their sums for dweight and dbias (written, not added) */
    void (*layernorm_backward)(void *dx, float *part, const void *dout, const void *in,
                               const void *weight, const float *mean, const float *rstd,
                               int64_t rows, int64_t C, bool accumulate_dx);
    /* rows of RMSNorm; part[C] as above */
    void (*rmsnorm_forward)(void *out, float *rstd, const void *in, const void *residual, void *sum,
                            const void *weight, int64_t rows, int64_t C, float eps);
    void (*rmsnorm_backward)(void *dx, float *part, const void *dout, const void *in,
                             const void *weight, const float *rstd, int64_t rows, int64_t C,
                             bool accumulate_dx);
    /* `heads` heads of one row by the angles cos[D/2], sin[D/2] times sign (1 or -1) */
    void (*rope_row)(void *v, const float *angles, int64_t heads, int64_t D, float sign);
    /* part[C] = column sums of rows x C, rows added in order */
    void (*column_sums)(float *part, const void *in, int64_t rows, int64_t C);
    /* of a row's n elements: the greatest (-inf of none; NaN is passed over); the sum of e^(x - top) */
    float (*row_max)(const void *row, int64_t n);
    float (*exp_sum)(const void *row, int64_t n, float top);
    /* x = factor e^(x - top), less `scale` at target (-1: nowhere) */
    void (*softmax_gradient)(void *row, int64_t n, float top, float factor, int64_t target,
                             float scale);
    void (*cross_entropy_row)(void *logits, float *loss, int64_t V, int64_t target, float scale,
                              bool backward);
    void (*attention_forward)(const struct zt_vec_attention *a, int64_t query_block);
    void (*attention_backward)(const struct zt_vec_attention *a,
                               const struct zt_vec_attention_part *p);
};

struct zt_vec {
    const char *name;                                   /* "sse2", "avx2", "avx512" */
    bool fma;                                           /* attention uses fused multiply-add */
    struct zt_vec_of of[3];                             /* ZT_F32, ZT_BF16, ZT_F16 */
    void (*exp)(float *out, const float *in, size_t n); /* <= 1 ulp; below -87.33 gives 0 */
    void (*log)(float *out, const float *in, size_t n); /* <= 1 ulp; normal numbers > 0 */
    void (*adamw)(float *p, float *m, float *v, const float *g, size_t n,
                  const struct zt_vec_adamw *a);
    /* out[w][i] = word w of the draw of element first + i (core/rng.h), n <= ZT_VEC_RANDOM;
     * `stream` is the counter's last word, purpose << 24 | tensor. All of out may be written. */
    void (*random)(uint32_t (*out)[ZT_VEC_RANDOM], uint64_t seed, uint32_t step, uint32_t stream,
                   uint64_t first, size_t n);
    /* out[i] = (float)(z std), z the standard normal of words 0 and 1 as zt_rng_normal has it, by
     * vector code that is off by less than 2^-48 of z. Where that could show in the float, i is put
     * into `doubtful` (their number is returned) and zt_rng_normal must tell. n <= ZT_VEC_RANDOM.
     */
    size_t (*normal)(float *out, const uint32_t (*words)[ZT_VEC_RANDOM], size_t n, double std,
                     uint16_t *doubtful);
    /* bf16 of in, the low half of each noise word added below the cut */
    void (*round_noisy)(uint16_t *out, const float *in, const uint32_t *noise, size_t n);
    /* One block of `width` (16, 32, 48, 64) columns of the packed weights that oneDNN's brgemm
     * reads, zero-filled beyond K rows and `columns` columns: of fp32, out[roundup(K,16)][width];
     * of bf16 in pairs of rows, out[roundup(K,32)/2][width][2]. Strides count elements, one is 1.
     */
    void (*pack_f32)(float *out, const float *w, int64_t k_stride, int64_t n_stride, int64_t K,
                     int64_t columns, int64_t width);
    void (*pack_bf16)(uint16_t *out, const uint16_t *w, int64_t k_stride, int64_t n_stride,
                      int64_t K, int64_t columns, int64_t width);
};

/* Floats of scratch that one thread needs for a head of width D and T positions. */
size_t zt_vec_attention_scratch(int64_t T, int64_t D);

extern const struct zt_vec zt_vec_sse2, zt_vec_avx2, zt_vec_avx512;

/* The table named, or the best one for NULL; NULL when unknown or this machine lacks it. */
const struct zt_vec *zt_vec_find(const char *name);

#endif
