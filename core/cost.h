/* SPDX-License-Identifier: Apache-2.0 */
/* core/cost.h: what an operator or a collective costs on a described device, in integer nanoseconds:
 * the one cost table behind kernels/sim, comm/sim and simulated libraries in tests (D19). An estimate
 * by its nature; memory never depends on it.
 *
 *   operator    launch + max(FLOPs / rate of its class and type, bytes / memory bandwidth)
 *   collective  rounds x alpha + sent bytes / bandwidth  (ring: docs/planner.md; rounds and sent bytes
 *               as in D13: all-gather, reduce-scatter K-1 and (K-1)/K, all-reduce twice that)
 *
 * Every operator counts each byte that it must read or write once, and the FLOPs of its products
 * (2 M N K; causal attention at half of the full square). Pure; any thread. */
#ifndef ZT_CORE_COST_H
#define ZT_CORE_COST_H
#include <stdbool.h>
#include <stdint.h>
#include "core/dtype.h"

enum zt_cost_class {
    ZT_COST_MEMORY = 0,        /* elementwise, norms, copies: bytes alone */
    ZT_COST_GEMM,
    ZT_COST_ATTENTION_FORWARD,
    ZT_COST_ATTENTION_BACKWARD,
    ZT_COST_RANDOM,            /* drawing weights and noise; flops = elements */
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
    int64_t launch_ns;         /* per operator, on the device */
    int64_t host_ns;           /* per operator, on the host; only when queued */
    double memory_bytes_per_second;            /* reached by a copy, read + write */
    double flops[ZT_COST_CLASSES][ZT_DTYPE_COUNT]; /* reached per second; 0 = not known: fp32's is taken */
    double peak_flops[ZT_DTYPE_COUNT];         /* of the data sheet, dense; for MFU; 0 = none */
    int ranks_per_host;        /* as machines of this device are usually built */
    struct zt_cost_link within, across;        /* between ranks of one host, of several */
    bool measured;             /* by zctl calibrate on the machine at hand */
    int64_t measured_comm_min, measured_comm_max; /* bytes; outside: the plan says so */
};

struct zt_cost_work { enum zt_cost_class class_; enum zt_dtype type; double flops, bytes; };
int64_t zt_cost_ns(const struct zt_cost_device *d, struct zt_cost_work w);

/* Work by operator; letters and types as in kernels/ops.h. */
struct zt_cost_work zt_work_gemm(int64_t M, int64_t N, int64_t K, enum zt_dtype t, enum zt_dtype ct,
                                 bool accumulate);
struct zt_cost_work zt_work_attention(bool backward, int64_t B, int64_t T, int64_t H, int64_t D,
                                      enum zt_dtype t);
/* n elements that are read and written `passes` times in all */
struct zt_cost_work zt_work_bytes(double bytes);
struct zt_cost_work zt_work_random(int64_t n, enum zt_dtype t);

/* A group of `size` ranks, `per_host` of them on each host it spans (size: one host). `full` is the
 * whole buffer in bytes. Ring over the slowest link: across hosts the members of one host share that
 * host's links, one each. Broadcast: full bytes, size - 1 rounds; barrier: rounds alone. */
enum zt_cost_coll { ZT_COST_ALL_GATHER = 0, ZT_COST_REDUCE_SCATTER, ZT_COST_ALL_REDUCE, ZT_COST_BROADCAST, ZT_COST_BARRIER };
int64_t zt_cost_collective_ns(const struct zt_cost_device *d, enum zt_cost_coll kind, int size, int per_host,
                              int64_t full);

#endif
