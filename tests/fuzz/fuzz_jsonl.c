/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a .jsonl file; the first byte is the length of samples. Either the
 * file is refused by name and line, or its rows can be read, each row's places hold together, and
 * their targets and padding are as many as the index said. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct memory {
    const uint8_t *bytes;
    size_t n;
};

static ssize_t read_memory(void *arg, int fd, void *buf, size_t n, off_t at) {
    const struct memory *m = arg;
    size_t left = (size_t)at < m->n ? m->n - (size_t)at : 0;
    (void)fd;
    if (n > left) n = left;
    if (n > 7 && at % 3 == 0) n = 7; /* short reads */
    if (n > 0) memcpy(buf, m->bytes + at, n);
    return (ssize_t)n;
}

#define MOST 64
struct cells {
    int32_t tokens[MOST], targets[MOST], starts[MOST];
    float weights[MOST];
};

/* The targets that count. */
static int64_t check_row(const struct cells *c, const struct zt_row *row, int64_t T) {
    int64_t counted = 0;
    for (int64_t i = 0; i < T; i++) {
        ZT_ASSERT(c->tokens[i] >= 0 && c->tokens[i] < 256);
        ZT_ASSERT(c->targets[i] >= -1 && c->targets[i] < 256);
        ZT_ASSERT(c->starts[i] >= 0 && c->starts[i] <= i);
        ZT_ASSERT((c->weights[i] > 0) == (c->targets[i] != -1));
        if (c->targets[i] == -1) continue;
        counted++;
        if (i + 1 < T)
            ZT_ASSERT(c->targets[i] == c->tokens[i + 1] && c->starts[i] == c->starts[i + 1]);
    }
    ZT_ASSERT(row->padding >= 0 && row->padding < T);
    return counted;
}

static void read_rows(const struct zt_pack *p, const struct zt_row_index *x,
                      const struct zt_pack_count *count) {
    struct zt_error err;
    int64_t supervised = 0, padding = 0;
    for (int64_t i = 0; i < x->n; i++) {
        struct cells c;
        memset(&c, 0x55, sizeof c);
        struct zt_row row = {c.tokens, c.targets, c.starts, c.weights, -1};
        ZT_ASSERT(zt_pack_row(p, &x->row[i], &row, &err) == ZT_OK);
        supervised += check_row(&c, &row, p->seq_len);
        padding += row.padding;
    }
    ZT_ASSERT(supervised == count->supervised && padding == count->padding);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    struct memory m = {data + 1, size - 1};
    struct zt_sys sys = {.arg = &m, .pread = read_memory};
    struct zt_pack p = {&sys, 3, "fuzz.jsonl", 1 + data[0] % MOST, 256, ZT_AVERAGE_SQUARE};
    struct zt_pack_count count = {.examples = 0};
    struct zt_row_index x;
    struct zt_error err = {0};
    int rc = zt_pack_index(&p, &x, &count, &err);
    if (rc == ZT_OK)
        read_rows(&p, &x, &count);
    else
        ZT_ASSERT(rc == ZT_EDATA && strncmp(err.msg, "fuzz.jsonl:", 11) == 0);
    free(x.row);
    return 0;
}
