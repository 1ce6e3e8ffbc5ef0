/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as stored traces of a step. What passes the check must be readable: put side by
 * side, summed up, every index and string of it. The input is cut into messages by a length byte each, times
 * four; ranks and parts are what the messages say, in the order that the coordinator gives them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/step_trace.h"
#include "proto/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PARTS = 16 };

static int by_rank_and_part(const void *a, const void *b) {
    const Zt__StepTrace *x = *(Zt__StepTrace *const *)a, *y = *(Zt__StepTrace *const *)b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return (x->part > y->part) - (x->part < y->part);
}

static void look(const struct zt_step_trace_set *s) {
    for (size_t i = 0; i < s->n_ranks; i++) {
        const struct zt_trace_rank *r = &s->ranks[i];
        struct zt_trace_sum sums[ZT_TRACE_SUMS];
        int n = zt_trace_sums(r, NULL, sums);
        size_t count = 0;
        for (int k = 0; k < n; k++) {
            ZT_ASSERT(isfinite(sums[k].took) && isfinite(sums[k].bytes) && sums[k].waited <= sums[k].took);
            count += sums[k].count;
        }
        ZT_ASSERT(n == ZT_TRACE_SUMS || count == r->n);
        for (size_t k = 0; k < r->n; k++) {
            const struct zt_trace_coll *c = &r->v[k];
            ZT_ASSERT(strlen(zt_trace_unit(c)) <= ZT_TRACE_WORD_BYTES && strlen(zt_trace_kind(c)) <= ZT_TRACE_WORD_BYTES);
            ZT_ASSERT(c->wait_ns < 0 || c->transfer_ns + c->wait_ns == c->took_ns);
        }
    }
    ZT_ASSERT((zt_trace_slowest(s) == NULL) == (s->n_ranks == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Zt__StepTrace *parts[PARTS];
    struct zt_step_trace_set s;
    struct zt_error err;
    size_t n = 0;
    while (size > 1 && n < PARTS) {
        size_t len = 4 * (size_t)data[0] < size - 1 ? 4 * (size_t)data[0] : size - 1;
        Zt__StepTrace *t = zt__step_trace__unpack(NULL, len, data + 1);
        if (t && !zt_trace_check(t))
            parts[n++] = t;
        else
            zt__step_trace__free_unpacked(t, NULL);
        data += 1 + len;
        size -= 1 + len;
    }
    qsort(parts, n, sizeof *parts, by_rank_and_part);
    if (zt_trace_set_make(&s, parts, n, &err) == 0) {
        look(&s);
        zt_trace_set_free(&s);
    }
    for (size_t i = 0; i < n; i++) zt__step_trace__free_unpacked(parts[i], NULL);
    return 0;
}
