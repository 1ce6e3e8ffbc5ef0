/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as the manifest of a checkpoint, or, when the first byte is odd, as the index of
 * one of its writers. Either it is refused by name, or it is written again, read again, and the same. */
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* parse changes the text: a copy, of exactly its size and one byte. */
static char *copy_of(const void *data, size_t n) {
    char *copy = malloc(n + 1);
    ZT_ASSERT(copy);
    if (n) memcpy(copy, data, n);
    copy[n] = '\0';
    return copy;
}

static int parse_manifest(const void *data, size_t n, struct zt_manifest *m, struct zt_error *err) {
    char *copy = copy_of(data, n);
    const int rc = zt_manifest_parse("fuzz.json", copy, n, m, err);
    free(copy);
    return rc;
}

static int parse_index(const void *data, size_t n, const struct zt_manifest *m, struct zt_index *x, struct zt_error *err) {
    char *copy = copy_of(data, n);
    const int rc = zt_index_parse("fuzz.json", copy, n, m, 0, x, err);
    free(copy);
    return rc;
}

static void refused(int rc, const struct zt_error *err) {
    ZT_ASSERT((rc == ZT_ECORRUPT || rc == ZT_EVERSION) && strncmp(err->msg, "fuzz.json: ", 11) == 0);
}

static void try_manifest(const uint8_t *data, size_t size) {
    struct zt_manifest m, again;
    struct zt_error err = {0};
    char *text, *text2;
    size_t n, n2;
    const int rc = parse_manifest(data, size, &m, &err);
    if (rc) {
        refused(rc, &err);
        return;
    }
    ZT_ASSERT(zt_manifest_text(&m, &text, &n, &err) == 0);
    ZT_ASSERT(parse_manifest(text, n, &again, &err) == 0);
    ZT_ASSERT(zt_manifest_text(&again, &text2, &n2, &err) == 0 && n == n2 && memcmp(text, text2, n) == 0);
    zt_manifest_free(&m);
    zt_manifest_free(&again);
    free(text);
    free(text2);
}

static void try_index(const uint8_t *data, size_t size) {
    struct zt_saved_tensor tensors[2] = {
        {.name = "a", .ndim = 2, .shape = {6, 4}, .has = {true, true, true, true}, .type = {ZT_BF16, ZT_F32, ZT_F32, ZT_F32}},
        {.name = "b", .ndim = 1, .shape = {5, 1}, .number = 1, .frozen = true, .has = {true}, .type = {ZT_F16}}};
    const struct zt_manifest m = {.world = 1, .generation = 1, .position = {.step = 10}, .n_tensors = 2, .tensors = tensors};
    struct zt_index x, again;
    struct zt_error err = {0};
    char *text, *text2;
    size_t n, n2;
    const int rc = parse_index(data, size, &m, &x, &err);
    if (rc) {
        refused(rc, &err);
        return;
    }
    for (int64_t i = 0; i < x.n_parts; i++) {
        const struct zt_index_part *p = &x.parts[i];
        ZT_ASSERT(p->tensor < 2 && p->file < x.n_files && tensors[p->tensor].has[p->kind]);
        ZT_ASSERT(p->rect.from[0] + p->rect.size[0] <= tensors[p->tensor].shape[0] && p->rect.from[1] + p->rect.size[1] <= tensors[p->tensor].shape[1]);
        ZT_ASSERT(p->at >= 0 && p->at + p->rect.size[0] * p->rect.size[1] * (int64_t)zt_dtype_size(tensors[p->tensor].type[p->kind]) <= x.files[p->file].bytes);
    }
    for (int f = 0; f < x.n_files; f++) ZT_ASSERT(zt_ckpt_plain_name(x.files[f].name));
    ZT_ASSERT(zt_index_text(&x, &text, &n, &err) == 0);
    ZT_ASSERT(parse_index(text, n, &m, &again, &err) == 0);
    ZT_ASSERT(zt_index_text(&again, &text2, &n2, &err) == 0 && n == n2 && memcmp(text, text2, n) == 0);
    zt_index_free(&x);
    zt_index_free(&again);
    free(text);
    free(text2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (data[0] & 1)
        try_index(data + 1, size - 1);
    else
        try_manifest(data + 1, size - 1);
    return 0;
}
