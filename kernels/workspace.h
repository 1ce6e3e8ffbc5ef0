/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/workspace.h: how much scratch memory an operator is handed: pure functions of the shape, the
 * same on every device (D3), so that a plan on a simulated one is exact. In bytes. Pure; any thread. */
#ifndef ZT_KERNELS_WORKSPACE_H
#define ZT_KERNELS_WORKSPACE_H
#include "kernels/ops.h"

/* A head (the vocabulary as one dimension): its packed copy would be huge, so it has none. */
bool zt_gemm_is_head(enum zt_gemm_op op, int64_t N, int64_t K);
/* Packed weights; 0 where the rule never packs: DW, heads, fp16, which is emulated. */
size_t zt_gemm_workspace(enum zt_gemm_op op, int64_t M, int64_t N, int64_t K, enum zt_dtype t);

/* Reductions over N rows: at most 32 blocks, of at least 32 rows, a partial sum each. */
int64_t zt_block_rows(int64_t N);
int64_t zt_block_count(int64_t N);
size_t zt_bias_backward_workspace(int64_t N, int64_t C);
size_t zt_layernorm_backward_workspace(int64_t N, int64_t C);
size_t zt_rmsnorm_backward_workspace(int64_t N, int64_t C);
size_t zt_embedding_backward_workspace(int64_t N, enum zt_dtype gt);
/* Causal attention keeps its tiles in registers and per-thread scratch: none. */
size_t zt_attention_workspace(const struct zt_attention *a, enum zt_dtype t);

#endif
