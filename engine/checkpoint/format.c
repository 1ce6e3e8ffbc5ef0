/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/format.c: names, rectangles and hashes of checkpoints; see format.h. */
#include "engine/checkpoint/format.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

const char *zt_saved_suffix(enum zt_saved k) {
    static const char *const suffix[ZT_SAVED_COUNT] = {"", ".master", ".exp_avg", ".exp_avg_sq"};
    return suffix[k];
}

/* ---- rectangles ---- */

/* Elements [first, first + count) of a matrix of `columns` columns, row by row. */
static int stretch(int64_t first, int64_t count, int64_t columns, struct zt_rect *out) {
    int64_t row = first / columns;
    const int64_t column = first % columns;
    int n = 0;
    if (count > 0 && column > 0) {
        const int64_t rest = columns - column < count ? columns - column : count;
        out[n++] = (struct zt_rect){{row++, column}, {1, rest}};
        count -= rest;
    }
    const int64_t rows = count / columns;
    if (rows > 0) out[n++] = (struct zt_rect){{row, 0}, {rows, columns}};
    if (count % columns > 0) out[n++] = (struct zt_rect){{row + rows, 0}, {1, count % columns}};
    return n;
}

int zt_span_rects(struct zt_span s, int64_t count, int64_t columns, struct zt_rect out[ZT_SPAN_RECTS]) {
    const int64_t first = (int64_t)s.first;
    int n = 0;
    ZT_ASSERT(columns > 0 && s.row > 0 && s.at >= 0);
    if (s.stride == columns && s.row < columns && s.at % s.row + count > s.row) {
        /* some columns of each row: as if these were the whole matrix */
        ZT_ASSERT(first % columns + s.row <= columns);
        n = stretch(s.at, count, s.row, out);
        for (int i = 0; i < n; i++) {
            out[i].from[0] += first / columns;
            out[i].from[1] += first % columns;
        }
        return n;
    }
    struct zt_rect more[3];
    for (int64_t i = 0, run; i < count; i += run) {
        uint64_t index;
        run = s.stride == s.row ? count : zt_span_run(&s, i, count - i, &index);
        if (s.stride == s.row) index = s.first + (uint64_t)s.at;
        const int k = stretch((int64_t)index, run, columns, more);
        ZT_ASSERT(n + k <= ZT_SPAN_RECTS);
        memcpy(out + n, more, (size_t)k * sizeof *more);
        n += k;
    }
    return n;
}

/* ---- SHA-256 ---- */

void zt_sha256_of(const void *data, size_t n, struct zt_sha256 *out) {
    ZT_ASSERT(EVP_Digest(data, n, out->byte, NULL, EVP_sha256(), NULL) == 1);
}

void zt_sha256_text(const struct zt_sha256 *s, char out[65]) {
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", s->byte[i]);
}

bool zt_sha256_parse(const char *text, struct zt_sha256 *out) {
    static const char digits[] = "0123456789abcdef";
    memset(out, 0, sizeof *out);
    for (int i = 0; i < 64; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d) return false;
        out->byte[i / 2] = (uint8_t)(out->byte[i / 2] << 4 | (d - digits));
    }
    return text[64] == '\0';
}

/* ---- names ---- */

void zt_ckpt_rank_name(int rank, char out[32]) { snprintf(out, 32, "rank-%05d.json", rank + 1); }
void zt_ckpt_step_name(int64_t step, char out[32]) { snprintf(out, 32, "step-%08lld", (long long)step); }
void zt_ckpt_temp_name(int64_t step, uint32_t generation, char out[64]) {
    snprintf(out, 64, "step-%08lld.tmp-g%u", (long long)step, generation);
}

/* The names are made again and compared, so that no other spelling of a number passes. */
int64_t zt_ckpt_step_of(const char *name) {
    char again[32];
    long long step = -1;
    if (strlen(name) >= sizeof again || sscanf(name, "step-%lld", &step) != 1 || step < 0) return -1;
    zt_ckpt_step_name(step, again);
    return strcmp(name, again) == 0 ? step : -1;
}

int64_t zt_ckpt_temp_of(const char *name, uint32_t *generation) {
    char again[64];
    long long step = -1;
    if (strlen(name) >= sizeof again || sscanf(name, "step-%lld.tmp-g%u", &step, generation) != 2 || step < 0) return -1;
    zt_ckpt_temp_name(step, *generation, again);
    return strcmp(name, again) == 0 ? step : -1;
}

bool zt_ckpt_plain_name(const char *name) {
    const size_t n = strlen(name);
    if (n == 0 || n > 255 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < ' ' || name[i] == 0x7f) return false;
    return true;
}
