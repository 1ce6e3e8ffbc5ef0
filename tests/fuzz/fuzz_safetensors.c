/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a safetensors file. Either it is refused by name, or its tensors lie side by
 * side from the head to the end of the file, each as large as its shape says and found by its name. */
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct memory { const uint8_t *bytes; size_t n; };

static ssize_t read_memory(void *arg, int fd, void *buf, size_t n, off_t at) {
    const struct memory *m = arg;
    size_t left = (size_t)at < m->n ? m->n - (size_t)at : 0;
    (void)fd;
    if (n > left) n = left;
    if (n > 7 && at % 3 == 0) n = 7; /* short reads */
    if (n > 0) memcpy(buf, m->bytes + at, n);
    return (ssize_t)n;
}

static int stat_memory(void *arg, int fd, struct stat *st) {
    const struct memory *m = arg;
    (void)fd;
    *st = (struct stat){.st_mode = S_IFREG | 0644, .st_size = (off_t)m->n};
    return 0;
}

static void look(const struct zt_safetensors *s, size_t size) {
    int64_t at = zt_safetensors_head_bytes(s);
    for (int i = 0; i < zt_safetensors_count(s); i++) {
        struct zt_safetensor t;
        int64_t elements = 1;
        zt_safetensors_get(s, i, &t);
        for (int d = 0; d < t.ndim; d++) ZT_ASSERT(!__builtin_mul_overflow(elements, t.shape[d], &elements));
        ZT_ASSERT(elements == t.elements && t.bytes == elements * zt_st_type_size(t.type) && t.at == at);
        ZT_ASSERT(zt_safetensors_find(s, t.name) == i && strlen(t.name) <= ZT_ST_NAME_MAX);
        at += t.bytes;
    }
    ZT_ASSERT(at == (int64_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct memory m = {data, size};
    const struct zt_sys sys = {.arg = &m, .pread = read_memory, .fstat = stat_memory};
    struct zt_safetensors *s = NULL;
    struct zt_error err = {0};
    const int rc = zt_safetensors_open_fd(&sys, 3, "fuzz.safetensors", &s, &err);
    if (rc == 0)
        look(s, size);
    else
        ZT_ASSERT(rc == ZT_EINVAL && strncmp(err.msg, "fuzz.safetensors: ", 18) == 0 && !s);
    zt_safetensors_free(s);
    return 0;
}
