/* SPDX-License-Identifier: Apache-2.0 */
/* engine/generate.h: the next token of a text, by a model on the CPU, as it is evaluated: no dropout,
 * nothing kept. Weights are held and computed with in fp32, whatever they are stored in. Every token is a
 * forward pass over all tokens before it: no keys or values are kept.
 *
 * All memory is of the device's allocator, and its capacity is what the same calls need on the simulated
 * device: zt_generator_bytes says it before anything is opened. One thread. */
#ifndef ZT_ENGINE_GENERATE_H
#define ZT_ENGINE_GENERATE_H
#include "core/model.h"
#include "engine/checkpoint/weights.h"
#include "kernels/ops.h"

/* Segments that up to `positions` tokens need. */
int zt_generator_bytes(const struct zt_model_table *t, double lora_scale, int64_t positions, int64_t *bytes,
                     struct zt_error *err);

struct zt_generator;
/* kernels: of the cpu. positions: the longest text there will be, at most the model's seq_len_max. The
 * weights are read; w may be closed after. ZT_EOOM, ZT_ENOMEM: there is no room. */
int zt_generator_open(const struct zt_weights *w, const struct zt_kernels *kernels, int threads, int64_t positions,
                    struct zt_generator **out, struct zt_error *err);
void zt_generator_close(struct zt_generator *s);
/* Logits [vocab_size] behind the last of n tokens, 1 <= n <= positions; the generator's until the next call. */
int zt_generator_logits(struct zt_generator *s, const int32_t *tokens, int64_t n, const float **logits,
                      struct zt_error *err);

/* temperature 0: the largest logit. Else one of the top_k largest (0: of all), drawn with probability
 * proportional to exp(logit / temperature). Of equal logits the lower id counts as larger. */
struct zt_pick { double temperature; int64_t top_k; uint64_t seed; };
/* The choice for the token at `position`: of (seed, position) and the logits alone. scratch: V numbers. -1
 * when a logit is not a number. */
int32_t zt_pick_token(const struct zt_pick *p, const float *logits, int64_t V, int64_t position, double *scratch);

#endif
