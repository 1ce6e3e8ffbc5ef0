/* SPDX-License-Identifier: Apache-2.0 */
/* core/span.h: where the elements of a buffer are in a logical tensor. Pure; any thread. */
#ifndef ZT_CORE_SPAN_H
#define ZT_CORE_SPAN_H
#include <stdint.h>

/* Element i of the buffer is element first + ((at + i) / row) * stride + (at + i) % row of the tensor.
 * A cut of columns has rows that are `stride` apart; one stretch of the tensor is a single row. */
struct zt_span {
    uint64_t first;
    int64_t at, row, stride;
};
static inline struct zt_span zt_span_plain(uint64_t first, int64_t n) {
    return (struct zt_span){first, 0, n, n};
}
/* Logical index of element i, and how many from it on, at most n, follow one another. */
static inline int64_t zt_span_run(const struct zt_span *s, int64_t i, int64_t n, uint64_t *index) {
    const int64_t in_row = (s->at + i) % s->row;
    *index = s->first + (uint64_t)((s->at + i) / s->row * s->stride + in_row);
    return n < s->row - in_row ? n : s->row - in_row;
}

#endif
