/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/data_util.h: temp folders with small data files. Aborts on a failed set-up. One
 * thread. */
#ifndef ZT_TESTS_ENGINE_DATA_UTIL_H
#define ZT_TESTS_ENGINE_DATA_UTIL_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char data_folder[64];

static inline void data_setup(void) {
    strcpy(data_folder, "/tmp/zt-test-data-XXXXXX");
    if (!mkdtemp(data_folder)) abort();
}

static inline void data_teardown(void) {
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", data_folder);
    if (system(cmd) != 0) abort();
}

/* Path of `name` in the folder; up to 8 at a time. */
static inline const char *data_path(const char *name) {
    static char path[8][512];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, sizeof path[0], "%s/%s", data_folder, name);
    return p;
}

static inline const char *data_write(const char *name, const void *bytes, size_t n) {
    const char *p = data_path(name);
    FILE *f = fopen(p, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) abort();
    return p;
}

/* A text of n bytes: byte i = 'a' + (i * step) % 26. */
static inline const char *data_text(const char *name, size_t n, unsigned step) {
    char *t = malloc(n + 1);
    for (size_t i = 0; i < n; i++) t[i] = (char)('a' + i * step % 26);
    const char *p = data_write(name, t, n);
    free(t);
    return p;
}

/* Tokens of width 2 or 4 behind an optional llm.c header (magic 0: none): token i = i * step % mod.
 */
static inline const char *data_bin(const char *name, size_t n, int width, int32_t magic,
                                   int32_t version, int32_t said, uint32_t step, uint32_t mod) {
    size_t head = magic ? 1024 : 0;
    unsigned char *b = calloc(1, head + n * (size_t)width + 1);
    int32_t h[3] = {magic, version, said};
    if (magic) memcpy(b, h, sizeof h);
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)i * step % mod;
        memcpy(b + head + i * (size_t)width, &v, (size_t)width); /* little-endian host */
    }
    const char *p = data_write(name, b, head + n * (size_t)width);
    free(b);
    return p;
}
#endif
