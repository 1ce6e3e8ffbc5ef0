/* SPDX-License-Identifier: Apache-2.0 */
/* core/cost.h: what an operator or a collective costs on a described device, in integer nanoseconds:
 * the one cost table behind kernels/sim, comm/sim and simulated libraries in tests (D19). An estimate
 * by its nature; memory never depends on it.
 *
 *   operator    launch + max(FLOPs / reached rate, bytes / memory bandwidth)
 *               reached rate = rate / ((1 + half_side / side) (1 + half_head / head))
 *   collective  rounds x alpha + sent bytes / bandwidth  (ring: docs/planner.md; rounds and sent bytes
 *               as in D13: all-gather, reduce-scatter K-1 and (K-1)/K, all-reduce twice that)
 *
 * A rate is that of large operators; the half sizes say what small ones reach: half of the rate where
 * the side (of a GEMM the least of M, N, K, of attention the length T) or the head's width is that
 * long. 0: any size reaches the rate.
 *
 * Every operator counts each byte that it must read or write once, and the FLOPs of its products
 * (2 M N K; causal attention at half of the full square). Pure; any thread. */
#ifndef ZT_CORE_COST_H
#define ZT_CORE_COST_H
#include <stdbool.h>
#include <stdint.h>
#include "core/dtype.h"
#include "core/error.h"

enum zt_cost_class {
    ZT_COST_MEMORY = 0,        /* elementwise, norms, copies: bytes alone */
    ZT_COST_GEMM,
    ZT_COST_ATTENTION_FORWARD,
    ZT_COST_ATTENTION_BACKWARD,
    ZT_COST_RANDOM,            /* drawing weights and noise; flops = elements */
    ZT_COST_ROWS,              /* GELU, SwiGLU, norms, cross-entropy: flops = elements; no rate: bytes alone */
    ZT_COST_CLASSES
};

/* alpha_ns 0 and a bandwidth: a time measured or stated as a whole. bandwidth: bus bandwidth of one
 * rank and direction (busbw of nccl-tests). nvls: of an all-reduce inside a switch; 0 = there is none. */
struct zt_cost_link { int64_t alpha_ns; double bytes_per_second, nvls_bytes_per_second; };

struct zt_cost_device {
    char name[32], title[96];
    bool queued;               /* the host queues kernels and runs ahead (GPU); else it computes itself */
    int64_t memory_bytes;      /* of the device */
    int64_t outside_bytes;     /* stated allowance: context, communicator and library buffers */
    char outside_source[128];  /* where that figure comes from, or "assumed: ..." */
    int64_t launch_ns;         /* per operator, on the device */
    int64_t host_ns;           /* per operator, on the host; only when queued */
    double memory_bytes_per_second;            /* reached by a copy, read + write */
    int64_t cache_bytes;                       /* an operator that moves no more than this ... */
    double cached_bytes_per_second;            /* ... moves it so fast; 0: no faster */
    double flops[ZT_COST_CLASSES][ZT_DTYPE_COUNT]; /* reached per second; 0 = not known: fp32's is taken */
    double half_side[ZT_COST_CLASSES], half_head[ZT_COST_CLASSES];
    double peak_flops[ZT_DTYPE_COUNT];         /* of the data sheet, dense; for MFU; 0 = none */
    int ranks_per_host;        /* as machines of this device are usually built */
    struct zt_cost_link within, across;        /* between ranks of one host, of several */
    bool measured;             /* by zctl calibrate on the machine at hand ... */
    int measured_ranks, measured_threads;      /* ... with so many ranks at once, threads each */
    int64_t measured_comm_min, measured_comm_max; /* bytes; outside: the plan says so; 0: not measured */
};

/* ZT_EINVAL names the first figure that is negative, not finite, or missing though nothing can be
 * said without it (memory, its bandwidth, a GEMM rate in fp32 or bf16). */
int zt_cost_check(const struct zt_cost_device *d, struct zt_error *err);

struct zt_cost_work { enum zt_cost_class class_; enum zt_dtype type; double flops, bytes, side, head; };
int64_t zt_cost_ns(const struct zt_cost_device *d, struct zt_cost_work w);

/* Work by operator; letters and types as in kernels/ops.h. */
struct zt_cost_work zt_work_gemm(int64_t M, int64_t N, int64_t K, enum zt_dtype t, enum zt_dtype ct,
                                 bool accumulate);
/* Causal: half of the products. Neither what starts mask nor the draws of dropout are in it. */
struct zt_cost_work zt_work_attention(bool backward, int64_t B, int64_t T, int64_t H, int64_t KV,
                                      int64_t D, enum zt_dtype t);
/* bytes that are read or written in all */
struct zt_cost_work zt_work_bytes(double bytes);
struct zt_cost_work zt_work_random(int64_t n, enum zt_dtype t);
/* n elements of a row operator that reads and writes `bytes` in all */
struct zt_cost_work zt_work_rows(int64_t n, double bytes, enum zt_dtype t);

/* A group of `size` ranks, `per_host` of them on each host it spans (size: one host). `full` is the
 * whole buffer in bytes. Ring over the slowest link: across hosts the members of one host share that
 * host's links, one each. Broadcast: full bytes, size - 1 rounds; barrier: rounds alone. */
enum zt_cost_coll { ZT_COST_ALL_GATHER = 0, ZT_COST_REDUCE_SCATTER, ZT_COST_ALL_REDUCE, ZT_COST_BROADCAST, ZT_COST_BARRIER };
int64_t zt_cost_collective_ns(const struct zt_cost_device *d, enum zt_cost_coll kind, int size, int per_host,
                              int64_t full);

/* Of a ring: rounds, and bytes that each rank sends. 0 for a group of one. */
int zt_cost_rounds(enum zt_cost_coll kind, int size);
double zt_cost_sent(enum zt_cost_coll kind, int size, int64_t full);
/* nccl-tests' words for a collective that took `seconds`: algbw = full / seconds, busbw = algbw x
 * (sent / full). busbw is what a link carries and what B above is; algbw is no link's bandwidth: the
 * time is sent / busbw = full / algbw, never sent / algbw. ZT_EINVAL for fewer than two ranks, no bytes
 * (so a barrier has none) or a time that is not above 0 and finite. */
struct zt_cost_bandwidth { double algbw, busbw; };
int zt_cost_bandwidth(enum zt_cost_coll kind, int size, int64_t full, double seconds,
                      struct zt_cost_bandwidth *out, struct zt_error *err);

/* Fits from measured times, for zctl calibrate. Least squares of relative errors, so that small sizes
 * count as much as large ones; *error: the root of the mean squared relative error (0.1: 10 %).
 * ZT_EINVAL: too few samples (two of different size are needed for two figures) or nonsense in them. */
struct zt_cost_sample { double flops, side, seconds; };
/* seconds = flops / rate x (1 + half_side / side); samples of one side give half_side 0 */
int zt_cost_fit_rate(const struct zt_cost_sample *s, int n, double *rate, double *half_side,
                     double *error, struct zt_error *err);
struct zt_cost_transfer { double rounds, sent, seconds; };
/* seconds = rounds x alpha + sent / B. An alpha below 0 is no cost, and times that shrink with the size (a
 * busy machine) tell none: then alpha is 0 and B alone is fitted. */
int zt_cost_fit_link(const struct zt_cost_transfer *s, int n, struct zt_cost_link *link, double *error,
                     struct zt_error *err);

#endif
