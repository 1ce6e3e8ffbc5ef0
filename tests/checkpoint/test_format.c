/* SPDX-License-Identifier: Apache-2.0 */
/* Rectangles against brute force, names, and manifest and index: the same text for the same values, and
 * nothing but that is read. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/checkpoint/case.h"

/* The rectangles hold exactly the span's elements, in the span's order. */
static void check_rects(struct zt_span s, int64_t count, int64_t columns, int most) {
    struct zt_rect r[ZT_SPAN_RECTS];
    const int n = zt_span_rects(s, count, columns, r);
    int64_t e = 0;
    cr_assert(n <= most, "%d rectangles", n);
    for (int i = 0; i < n; i++)
        for (int64_t row = 0; row < r[i].size[0]; row++)
            for (int64_t column = 0; column < r[i].size[1]; column++, e++) {
                uint64_t index;
                cr_assert(e < count);
                zt_span_run(&s, e, 1, &index);
                cr_assert(r[i].from[1] + column < columns);
                cr_assert_eq((int64_t)index, (r[i].from[0] + row) * columns + r[i].from[1] + column);
            }
    cr_assert_eq(e, count);
}

Test(format, rectangles_of_every_stretch, .timeout = 60) {
    for (int64_t rows = 1; rows <= 5; rows++)
        for (int64_t columns = 1; columns <= 6; columns++)
            for (int64_t from = 0; from < rows * columns; from++)
                for (int64_t to = from; to <= rows * columns; to++) {
                    if (to > from) check_rects(zt_span_plain((uint64_t)from, to - from), to - from, columns, 3);
                    check_rects((struct zt_span){0, from, rows * columns, rows * columns}, to - from, columns, 3);
                }
}

Test(format, rectangles_of_every_cut_of_columns, .timeout = 60) {
    for (int64_t rows = 1; rows <= 4; rows++)
        for (int64_t columns = 1; columns <= 6; columns++)
            for (int64_t left = 0; left < columns; left++)
                for (int64_t width = 1; left + width <= columns; width++)
                    for (int64_t at = 0; at < rows * width; at++)
                        for (int64_t count = 0; at + count <= rows * width; count++)
                            check_rects((struct zt_span){(uint64_t)left, at, width, columns}, count, columns, 3);
}

/* A fused q/k/v, cut per head: rank `rank` of `degree` has a stretch of each third; its own part of that is
 * cut again by shards. */
Test(format, rectangles_of_every_cut_of_a_fused_matrix, .timeout = 60) {
    for (int64_t columns = 1; columns <= 4; columns++)
        for (int degree = 1; degree <= 3; degree++)
            for (int rank = 0; rank < degree; rank++) {
                const int64_t third = 6 * columns, row = third / degree, n = 3 * row;
                for (int64_t at = 0; at < n; at++)
                    for (int64_t count = 0; at + count <= n; count++)
                        check_rects((struct zt_span){(uint64_t)(rank * row), at, row, third}, count, columns, ZT_SPAN_RECTS);
            }
}

Test(format, names, .timeout = 10) {
    char name[64];
    uint32_t g;
    zt_ckpt_step_name(1000, name);
    cr_assert_str_eq(name, "step-00001000");
    zt_ckpt_step_name(123456789012, name);
    cr_assert_eq(zt_ckpt_step_of(name), 123456789012);
    zt_ckpt_temp_name(7, 3, name);
    cr_assert_str_eq(name, "step-00000007.tmp-g3");
    cr_assert_eq(zt_ckpt_temp_of(name, &g), 7);
    cr_assert_eq(g, 3);
    zt_ckpt_rank_name(0, name);
    cr_assert_str_eq(name, "rank-00001.json");
    static const char *const none[] = {"step-1000", "step-000000100", "step-00001000 ", "step-00001000.tmp-g1", "step--0000001", "step-+0000001", "trash", "",
                                       "step-99999999999999999999", "xstep-00001000"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) cr_assert_eq(zt_ckpt_step_of(none[i]), -1, "%s", none[i]);
    static const char *const temps[] = {"step-00000007.tmp-g03", "step-00000007.tmp-g", "step-7.tmp-g1", "step-00000007", "step-00000007.tmp-g1x", "step-00000007.tmp-g-1"};
    for (size_t i = 0; i < sizeof temps / sizeof *temps; i++) cr_assert_eq(zt_ckpt_temp_of(temps[i], &g), -1, "%s", temps[i]);
    static const char *const outside[] = {"", ".", "..", "/etc/passwd", "../secret.safetensors", "a/b", "a\\b", "a\nb"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) cr_assert(!zt_ckpt_plain_name(outside[i]), "%s", outside[i]);
    cr_assert(zt_ckpt_plain_name("model-00001-of-00002.safetensors"));
}

/* ---- manifest ---- */

static char *manifest_text(const struct ck_case *c, size_t *n) {
    struct zt_shard_written *none = calloc((size_t)c->world, sizeof *none);
    struct zt_manifest m;
    struct zt_error err;
    char *text;
    ck_manifest(c, none, &m);
    cr_assert_eq(zt_manifest_text(&m, &text, n, &err), 0, "%s", err.msg);
    free(m.ranks);
    free(none);
    return text;
}

static int parse_copy(const char *text, size_t n, struct zt_manifest *m, struct zt_error *err) {
    char *copy = malloc(n + 1);
    memcpy(copy, text, n);
    copy[n] = '\0';
    const int rc = zt_manifest_parse("manifest.json", copy, n, m, err);
    free(copy);
    return rc;
}

Test(format, a_manifest_is_the_same_text_again, .timeout = 10) {
    struct ck_case c = ck_make(&zt_sys_posix, "", 3, CUT_FLAT, 1);
    struct zt_manifest m;
    struct zt_error err;
    size_t n, n2;
    char *text = manifest_text(&c, &n), *again;
    cr_assert_eq(parse_copy(text, n, &m, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_manifest_text(&m, &again, &n2, &err), 0);
    cr_assert_eq(n, n2);
    cr_assert_arr_eq(text, again, n);
    zt_manifest_free(&m);
    free(text);
    free(again);
    ck_free(&c);
}

/* Replaces the first `from` by `to`; what comes of it is refused and the message has `word`. */
static void spoiled(const char *text, const char *from, const char *to, int code, const char *word) {
    struct zt_manifest m;
    struct zt_error err = {0};
    const char *at = strstr(text, from);
    char *bad;
    cr_assert_not_null(at, "%s is not in the manifest", from);
    cr_assert(asprintf(&bad, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    cr_assert_eq(parse_copy(bad, strlen(bad), &m, &err), code, "%s for %s: %s", to, from, err.msg);
    cr_assert(strstr(err.msg, "manifest.json"), "%s", err.msg);
    cr_assert(strstr(err.msg, word), "%s for %s: said %s", to, from, err.msg);
    free(bad);
}

Test(format, a_manifest_with_a_fault_is_refused_by_field, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, "", 3, CUT_FLAT, 1);
    size_t n;
    char *text = manifest_text(&c, &n);
    spoiled(text, "\"format\":1", "\"format\":2", ZT_EVERSION, "format 2");
    spoiled(text, "\"format\":1,\n", "", ZT_ECORRUPT, "'format' has to come first");
    spoiled(text, "\"run_id\":\"r-1\",", "\"run_id\":\"r-1\",\"more\":1,", ZT_ECORRUPT, "more");
    spoiled(text, "\"run_id\":\"r-1\",", "", ZT_ECORRUPT, "'run_id' is missing");
    spoiled(text, "\"run_id\":\"r-1\",", "\"run_id\":\"r-1\",\"run_id\":\"r-1\",", ZT_ECORRUPT, "twice");
    spoiled(text, "\"run_id\":\"r-1\"", "\"run_id\":1", ZT_ECORRUPT, "run_id");
    spoiled(text, "\"run_id\":\"r-1\"", "\"run_id\":\"r\\u001b\"", ZT_ECORRUPT, "run_id");
    spoiled(text, "\"run_id\":\"r-1\"", "\"run_id\":\"0123456789012345678901234567890123456789012345678901234567890123\"", ZT_ECORRUPT, "run_id: longer than 63");
    spoiled(text, "\"world\":3", "\"world\":4097", ZT_ECORRUPT, "mesh.world");
    spoiled(text, "\"world\":3", "\"world\":4", ZT_ECORRUPT, "mesh");
    spoiled(text, "\"step\":10", "\"step\":1099511627777", ZT_ECORRUPT, "position.step");
    spoiled(text, "\"step\":10", "\"step\":-1", ZT_ECORRUPT, "position.step");
    spoiled(text, "\"tokens\":12345", "\"tokens\":9223372036854775808", ZT_ECORRUPT, "position.tokens");
    spoiled(text, "\"good\":5", "\"good\":5.0", ZT_ECORRUPT, "position.scaler.good");
    spoiled(text, "fedcba9876543210", "fedcba987654321", ZT_ECORRUPT, "position.data_digest");
    spoiled(text, "fedcba9876543210", "FEDCBA9876543210", ZT_ECORRUPT, "position.data_digest");
    spoiled(text, "\"shape\":[13,8]", "\"shape\":[13,8,1]", ZT_ECORRUPT, "tensors[0].shape");
    spoiled(text, "\"shape\":[13,8]", "\"shape\":[0,8]", ZT_ECORRUPT, "tensors[0].shape");
    spoiled(text, "\"shape\":[13,8]", "\"shape\":[4294967296,4294967296]", ZT_ECORRUPT, "tensors[0].shape");
    spoiled(text, "\"master\":\"fp32\"", "\"master\":\"i32\"", ZT_ECORRUPT, "tensors[0].master");
    spoiled(text, ",\"exp_avg\":\"fp32\"", "", ZT_ECORRUPT, "one of its two moments");
    spoiled(text, "h.0.ln.weight", "wte.weight", ZT_ECORRUPT, "tensor wte.weight is there twice");
    spoiled(text, "\"number\":1,", "\"number\":0,", ZT_ECORRUPT, "have the number 0");
    spoiled(text, "\"number\":1,", "\"number\":1073741824,", ZT_ECORRUPT, "tensors[1].number");
    spoiled(text, "]}\n", "]}\n{}", ZT_ECORRUPT, "more behind the end");
    for (size_t cut = 0; cut + 1 < n; cut++) { /* the last byte is a newline */
        struct zt_manifest m;
        struct zt_error err;
        cr_assert_neq(parse_copy(text, cut, &m, &err), 0, "%zu of %zu bytes are read", cut, n);
    }
    free(text);
    ck_free(&c);
}

/* ---- index ---- */

static int parse_index(const char *text, const struct zt_manifest *m, struct zt_index *x, struct zt_error *err) {
    char *copy = strdup(text);
    const int rc = zt_index_parse("rank-00001.json", copy, strlen(text), m, 0, x, err);
    free(copy);
    return rc;
}

static void spoiled_index(const struct zt_manifest *m, const char *text, const char *from, const char *to, const char *word) {
    struct zt_index x;
    struct zt_error err = {0};
    const char *at = strstr(text, from);
    char *bad;
    cr_assert_not_null(at, "%s is not in the index", from);
    cr_assert(asprintf(&bad, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    cr_assert_eq(parse_index(bad, m, &x, &err), ZT_ECORRUPT, "%s for %s: %s", to, from, err.msg);
    cr_assert(strstr(err.msg, word), "%s for %s: said %s", to, from, err.msg);
    free(bad);
}

#define FILE_NAME "shard-00001-model-00001-of-00001.safetensors"

Test(format, an_index_is_the_same_text_again_and_nothing_else, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, "", 1, CUT_FLAT, 1);
    struct zt_shard_written none = {0};
    struct zt_manifest m;
    struct zt_error err;
    struct zt_hash128 piece = {1, 2};
    struct zt_index_file file = {.name = FILE_NAME, .bytes = 5000, .n_pieces = 1, .pieces = &piece};
    struct zt_index_part part = {0, ZT_SAVED_PARAMETER, 0, 512, {{3, 0}, {10, 8}}};
    struct zt_index x = {.step = 10, .generation = 1, .n_files = 1, .files = &file, .n_parts = 1, .parts = &part}, y;
    char *text, *again;
    size_t n, n2;
    ck_manifest(&c, &none, &m);
    cr_assert_eq(zt_index_text(&x, &text, &n, &err), 0);
    cr_assert_eq(parse_index(text, &m, &y, &err), 0, "%s", err.msg);
    cr_assert(y.n_parts == 1 && y.parts[0].at == 512 && y.parts[0].rect.size[0] == 10 && y.files[0].pieces[0].hi == 2);
    cr_assert_eq(zt_index_text(&y, &again, &n2, &err), 0);
    cr_assert(n == n2 && memcmp(text, again, n) == 0);
    zt_index_free(&y);
    spoiled_index(&m, text, FILE_NAME, "../secret.safetensors", "files[0].name");
    spoiled_index(&m, text, FILE_NAME, "/etc/shard-00001-x.safetensors", "files[0].name");
    spoiled_index(&m, text, FILE_NAME, "", "files[0].name");
    spoiled_index(&m, text, FILE_NAME, "shard-00002-model-00001-of-00001.safetensors", "files[0].name");
    spoiled_index(&m, text, FILE_NAME, "shard-00001-../x.safetensors", "files[0].name");
    spoiled_index(&m, text, FILE_NAME, "shard-00001-\\u0000.safetensors", "escape");
    spoiled_index(&m, text, "\"bytes\":5000", "\"bytes\":5000000", "1 hashes for 5000000 bytes");
    spoiled_index(&m, text, "\"bytes\":5000", "\"bytes\":600", "its place is not in");
    spoiled_index(&m, text, "\"step\":10", "\"step\":11", "step");
    spoiled_index(&m, text, "\"generation\":1", "\"generation\":2", "generation");
    spoiled_index(&m, text, "\"rank\":0", "\"rank\":1", "rank");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[7,0,0,512,3,10,0,8]", "parts[0]");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,4,0,512,3,10,0,8]", "parts[0]");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[5,1,0,512,0,1,0,1]", "the manifest has none");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,1,512,3,10,0,8]", "parts[0]");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,512,95,10,0,8]", "leaves the tensor");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,512,3,10,1,8]", "leaves the tensor");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,513,3,10,0,8]", "its place is not in");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,9223372036854775806,3,10,0,8]", "its place is not in");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,512,3,0,0,8]", "parts[0]");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,512,3,10,0,8,1]", "more than eight");
    spoiled_index(&m, text, "[0,0,0,512,3,10,0,8]", "[0,0,0,512,3,10,0]", "fewer than eight");
    free(again);
    free(text);
    free(m.ranks);
    ck_free(&c);
}
