/* SPDX-License-Identifier: Apache-2.0 */
/* tests/golden/golden.h: reads a "ZTGOLD1" file of named arrays (written by the gen_*.py beside it).
 * golden_open keeps the whole file; arrays point into it and live until golden_close. */
#ifndef ZT_TESTS_GOLDEN_H
#define ZT_TESTS_GOLDEN_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct golden { char *data; size_t bytes; };
struct golden_array { char dtype; uint32_t ndim; int64_t dim[4]; int64_t numel; const char *data; };

static int golden_open(const char *path, struct golden *g) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return -1;
    fseek(f, 0, SEEK_END);
    g->bytes = (size_t)ftell(f);
    rewind(f);
    g->data = malloc(g->bytes + 1);
    int ok = g->data != NULL && fread(g->data, 1, g->bytes, f) == g->bytes &&
             g->bytes > 8 && memcmp(g->data, "ZTGOLD1\n", 8) == 0;
    fclose(f);
    return ok ? 0 : -1;
}

/* 0 and *out when there is an array of that name. Values may be unaligned: use golden_f64 & co. */
static int golden_find(const struct golden *g, const char *name, struct golden_array *out) {
    size_t at = 8;
    while (at < g->bytes) {
        uint32_t len;
        memcpy(&len, g->data + at, 4);
        const char *own = g->data + at + 4;
        at += 4 + len;
        struct golden_array a = {.dtype = g->data[at], .numel = 1};
        memcpy(&a.ndim, g->data + at + 1, 4);
        at += 5;
        for (uint32_t i = 0; i < a.ndim && i < 4; i++) {
            memcpy(&a.dim[i], g->data + at + 8 * i, 8);
            a.numel *= a.dim[i];
        }
        at += 8 * (size_t)a.ndim;
        a.data = g->data + at;
        at += (size_t)a.numel * (a.dtype == 'd' ? 8 : 4);
        if (strlen(name) == len && memcmp(own, name, len) == 0) {
            *out = a;
            return 0;
        }
    }
    return -1;
}

static inline double golden_f64(const struct golden_array *a, int64_t i) {
    double d;
    float f;
    if (a->dtype == 'd') {
        memcpy(&d, a->data + 8 * i, 8);
        return d;
    }
    memcpy(&f, a->data + 4 * i, 4);
    return (double)f;
}

static void golden_close(struct golden *g) { free(g->data); }

#endif
