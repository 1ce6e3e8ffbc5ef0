/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/places.c: where segments lie in a range of addresses; see backend.h. */
#include <stdlib.h>
#include <string.h>
#include "engine/device/backend.h"

/* Offset of the first hole that holds `bytes`, and the place in the list; false when none does. */
static bool first_fit(const struct zt_places *p, size_t bytes, size_t *offset, size_t *at) {
    size_t from = 0;
    for (size_t i = 0; i < p->n; i++) {
        if (p->at[i].offset - from >= bytes) {
            *offset = from;
            *at = i;
            return true;
        }
        from = p->at[i].offset + p->at[i].bytes;
    }
    *offset = from;
    *at = p->n;
    return p->room - from >= bytes;
}

int zt_places_take(struct zt_places *p, size_t bytes, size_t *offset, struct zt_error *err) {
    size_t at = 0;
    if (bytes > p->capacity - p->used)
        return zt_fail(err, ZT_EOOM,
                       "device memory: a segment of %zu bytes does not fit: capacity %zu, in "
                       "segments %zu, free %zu bytes",
                       bytes, p->capacity, p->used, p->capacity - p->used);
    if (!first_fit(p, bytes, offset, &at))
        return zt_fail(err, ZT_EOOM,
                       "device memory: no hole of %zu bytes in the address range of %zu bytes, "
                       "which %zu segments cut up; release cached segments",
                       bytes, p->room, p->n);
    if (p->n == p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 64;
        struct zt_place *more = realloc(p->at, cap * sizeof *more);
        if (!more) return zt_fail(err, ZT_ENOMEM, "host memory for the list of segments");
        p->at = more;
        p->cap = cap;
    }
    memmove(p->at + at + 1, p->at + at, (p->n - at) * sizeof *p->at);
    p->at[at] = (struct zt_place){*offset, bytes};
    p->n++;
    p->used += bytes;
    return 0;
}

void zt_places_give(struct zt_places *p, size_t offset, size_t bytes) {
    size_t at = 0;
    while (at < p->n && p->at[at].offset != offset) at++;
    ZT_ASSERT(at < p->n && p->at[at].bytes == bytes);
    p->n--;
    p->used -= bytes;
    memmove(p->at + at, p->at + at + 1, (p->n - at) * sizeof *p->at);
}

void zt_places_free(struct zt_places *p) {
    free(p->at);
    memset(p, 0, sizeof *p);
}
