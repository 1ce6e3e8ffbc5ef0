/* SPDX-License-Identifier: Apache-2.0 */
/* tests/core/golden.h: opening a golden data file and walking its numbers. One thread. */
#ifndef ZT_TESTS_CORE_GOLDEN_H
#define ZT_TESTS_CORE_GOLDEN_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static inline FILE *golden_open(const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", ZT_GOLDEN_DIR, name);
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        abort();
    }
    return f;
}

/* Next number of a line, moving *p; 0 at the line's end. */
static inline int golden_int(char **p, int64_t *v) {
    char *end;
    *v = (int64_t)strtoull(*p, &end, 10);
    int found = end != *p;
    *p = end;
    return found;
}
static inline int golden_double(char **p, double *v) {
    char *end;
    *v = strtod(*p, &end);
    int found = end != *p;
    *p = end;
    return found;
}
#endif
