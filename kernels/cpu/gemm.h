/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/gemm.h: one GEMM on two libraries, cut into output tiles by shape (decision D1).
 *
 * fp32, and bf16 where the library has real bf16 kernels on this machine. Every other 16-bit
 * product is emulated: the operands are widened to fp32, exactly, the fp32 GEMM runs, and the
 * result is rounded once. The wide copies are of this process alone and live outside the device
 * allocator, since what the allocator holds may not depend on the processor (D3).
 *
 * The library runs single-threaded on each tile; the reduction dimension is never cut. The cut is
 * part of the numeric contract (a tile's bits are not those of one big call), so it has a version.
 * Owns its plans and the per-thread scratch, which live outside the device allocator. Thread rule:
 * one caller at a time; the pool works underneath. */
#ifndef ZT_KERNELS_CPU_GEMM_H
#define ZT_KERNELS_CPU_GEMM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/workspace.h"

#define ZT_GEMM_RULE_VERSION 1

struct zt_gemm_shape {
    enum zt_gemm_op op;
    int64_t M, N, K;
    enum zt_dtype t, ct; /* of the operands and the bias; of the result */
    bool accumulate, bias;
    bool workspace; /* the caller gave room for packed weights */
};

/* C in tiles of r x c; nr x nc of them, the last row and column hold the rest. */
struct zt_gemm_cut {
    int64_t r, c, nr, nc;
};

struct zt_gemm_cut zt_gemm_cut_onednn(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K);
struct zt_gemm_cut zt_gemm_cut_openblas(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K);

struct zt_gemm;
/* isa: a vector table's name, or NULL. An explicit name also limits oneDNN, as long as this
 * process has not used it before; zt_gemm_describe says what is in force. */
int zt_gemm_create(struct zt_pool *pool, const struct zt_vec *vec, const char *isa,
                   const char *library, struct zt_gemm **out, struct zt_error *err);
void zt_gemm_destroy(struct zt_gemm *g);
const char *zt_gemm_describe(const struct zt_gemm *g);
/* What a GEMM on operands of type t computes in; NULL for a type it does not take. */
const char *zt_gemm_compute(const struct zt_gemm *g, enum zt_dtype t);
int zt_gemm_run(struct zt_gemm *g, const struct zt_gemm_shape *s, const void *A, const void *B,
                const void *bias, void *C, void *workspace, struct zt_error *err);

/* Run by every thread that calls a library, before it does: OpenMP teams of one. */
void zt_gemm_thread_start(void);

/* The two libraries behind it. A plan serves one shape; run executes all tiles. `create` sets
 * native_bf16 when the library computes in bf16 here; only then does it see that type. */
struct zt_gemm_library {
    int (*create)(struct zt_gemm *g, const char *isa, struct zt_error *err);
    void (*destroy)(void *state);
    int (*plan)(struct zt_gemm *g, const struct zt_gemm_shape *s, void **plan,
                struct zt_error *err);
    void (*plan_destroy)(struct zt_gemm *g, void *plan);
    int (*run)(struct zt_gemm *g, void *plan, const void *A, const void *B, const void *bias,
               void *C, void *workspace, struct zt_error *err);
};
extern const struct zt_gemm_library zt_gemm_onednn, zt_gemm_openblas;

#define ZT_GEMM_PLANS 256

struct zt_gemm {
    struct zt_pool *pool;
    const struct zt_vec *vec;
    const struct zt_gemm_library *library;
    void *state; /* the library's */
    bool native_bf16;
    float *wide; /* of emulated operands; grows */
    size_t wide_floats;
    char text[160];
    int plans;
    uint64_t clock;
    struct {
        struct zt_gemm_shape shape;
        void *plan;
        uint64_t used;
    } plan[ZT_GEMM_PLANS];
};

#endif
