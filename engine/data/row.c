/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/row.c: host memory of rows. Any thread. */
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/data/data.h"

bool zt_row_alloc(struct zt_row *r, int64_t rows, int64_t seq_len, bool starts, bool weights) {
    size_t n, bytes;
    memset(r, 0, sizeof *r);
    if (!zt_mul_size((size_t)rows, (size_t)seq_len, &n) || !zt_mul_size(n, sizeof(int32_t), &bytes))
        return false;
    if (bytes == 0) bytes = 1;
    r->tokens = malloc(bytes);
    r->targets = malloc(bytes);
    if (starts) r->starts = malloc(bytes);
    if (weights) r->weights = malloc(bytes);
    if (r->tokens && r->targets && !r->starts == !starts && !r->weights == !weights) return true;
    zt_row_free(r);
    return false;
}

void zt_row_free(struct zt_row *r) {
    free(r->tokens);
    free(r->targets);
    free(r->starts);
    free(r->weights);
    memset(r, 0, sizeof *r);
}

struct zt_row zt_row_at(const struct zt_row *r, int64_t at) {
    return (struct zt_row){.tokens = r->tokens + at,
                           .targets = r->targets + at,
                           .starts = r->starts ? r->starts + at : NULL,
                           .weights = r->weights ? r->weights + at : NULL};
}
