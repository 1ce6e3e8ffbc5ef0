/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank writes, without devices: over all ranks of a run every logical element of the model is
 * there once, of every kind that the recipe has, whatever the mode, the mesh, the recipe and the layout;
 * and how what replicas own alike is dealt. */
#include <criterion/criterion.h>

#include "engine/checkpoint/parts.h"
#include "tests/engine/pairwise.h"
#include "tests/engine/plan_case.h"

/* ---- dealing: by hand ---- */

static void dealt(const int64_t *bytes, int n, int hands, const int *want) {
    int writer[16];
    struct zt_error e;
    cr_assert_eq(zt_save_deal(bytes, n, hands, writer, &e), 0);
    for (int i = 0; i < n; i++)
        cr_expect_eq(writer[i], want[i], "%d: to %d, not %d", i, writer[i], want[i]);
}

Test(save_parts, dealing_largest_first_to_the_least_laden) {
    /* 9 -> 0, 7 -> 1, 6 -> 2, 5 -> 2 (6 < 7 < 9), 4 -> 1 (7), 3 -> 0 (9 < 11 = 11), 3 -> 1 (11, 11, 12) */
    dealt((int64_t[]){3, 9, 5, 7, 4, 6, 3}, 7, 3, (int[]){0, 0, 2, 1, 1, 2, 1});
    dealt((int64_t[]){5, 5, 5, 5}, 4, 2, (int[]){0, 1, 0, 1}); /* ties: by index, by hand */
    dealt((int64_t[]){0, 8, 0}, 3, 2, (int[]){0, 0, 0});
    dealt((int64_t[]){1, 2, 3}, 3, 1, (int[]){0, 0, 0});
    dealt((int64_t[]){4}, 1, 5, (int[]){0});
}

/* No hand has more than another by more than the largest thing. */
Test(save_parts, dealing_is_even) {
    enum { N = 200 };
    int64_t bytes[N], held[7], largest = 0;
    int writer[N];
    for (int hands = 2; hands <= 7; hands++) {
        memset(held, 0, sizeof held);
        for (int i = 0; i < N; i++) {
            bytes[i] = 1 + (i * 7919LL) % 1009;
            if (bytes[i] > largest) largest = bytes[i];
        }
        cr_assert_eq(zt_save_deal(bytes, N, hands, writer, NULL), 0);
        for (int i = 0; i < N; i++) held[writer[i]] += bytes[i];
        for (int a = 0; a < hands; a++)
            for (int b = 0; b < hands; b++) cr_expect_leq(held[a] - held[b], largest);
    }
}

/* ---- every element once ---- */

enum { F_MODE = 0, F_MESH, F_TENSOR, F_TRAIN, F_RECIPE, F_FAMILY, F_BUCKET, F_PERSIST, F_WRAP, F_LAZY, F_COUNT };
static const int meshes[][2] = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}, {3, 2}, {2, 3}};
static const char *const recipes[] = {"fp32", "mixed16", "pure_bf16", "fp16", "fsdp_mixed", "frozen16"};
enum { MESHES = sizeof meshes / sizeof *meshes, RECIPES = sizeof recipes / sizeof *recipes };

static void fix(int *row) {
    if (row[F_MODE] == ZT_DDP && meshes[row[F_MESH]][1] > 1) row[F_MESH] = 0;
    if (row[F_MODE] != ZT_ZERO3 && row[F_MODE] != ZT_FSDP) {
        row[F_PERSIST] = 0;
        if (row[F_RECIPE] == 4) row[F_RECIPE] = 0;
    }
}

static struct px_case case_of(const int *row) {
    return (struct px_case){.mode = (enum zt_mode)row[F_MODE],
                            .replicate = meshes[row[F_MESH]][0],
                            .shard = meshes[row[F_MESH]][1],
                            .tensor = row[F_TENSOR] ? 2 : 0,
                            .trainable = row[F_TRAIN] == 1 ? "*mlp*" : NULL,
                            .lora = row[F_TRAIN] == 2 ? "*_proj" : NULL,
                            .recipe = recipes[row[F_RECIPE]],
                            .family = (enum px_family)row[F_FAMILY],
                            .bucket_mib = row[F_BUCKET] ? 0.01 : 0,
                            .persistence = row[F_PERSIST] ? 60 : 0,
                            .wrap = row[F_WRAP] ? 2 : 0,
                            .prefetch = 1,
                            .inflight = 1,
                            .micros = 1,
                            .steps = 4,
                            .lazy = row[F_LAZY]};
}

/* By tensor and kind: how often each element was written. */
struct cover {
    uint8_t *of[ZT_SAVED_COUNT];
};

static int64_t elements(const struct zt_saved_tensor *t) { return t->shape[0] * t->shape[1]; }

static void mark(struct cover *c, const struct zt_save_parts *p, const struct zt_saved_piece *piece) {
    const struct zt_saved_tensor *t = &p->tensors[piece->tensor];
    int64_t columns = t->ndim == 2 ? t->shape[1] : 1, rows = elements(t) / columns;
    uint8_t *of = c[piece->tensor].of[piece->kind];
    const struct zt_rect *r = &piece->rect;
    cr_assert(r->from[0] >= 0 && r->size[0] > 0 && r->from[0] + r->size[0] <= rows);
    cr_assert(r->from[1] >= 0 && r->size[1] > 0 && r->from[1] + r->size[1] <= columns);
    for (int64_t i = r->from[0]; i < r->from[0] + r->size[0]; i++)
        for (int64_t k = r->from[1]; k < r->from[1] + r->size[1]; k++) of[i * columns + k]++;
}

/* nth counts the rectangles of a tensor and kind from 0. */
static void check_order(const struct zt_save_parts *p) {
    int *next = calloc((size_t)p->n_tensors * ZT_SAVED_COUNT, sizeof *next);
    for (int i = 0; i < p->n_pieces; i++) {
        int *n = &next[p->pieces[i].tensor * ZT_SAVED_COUNT + (int)p->pieces[i].kind];
        cr_assert_eq(p->pieces[i].nth, (*n)++);
    }
    free(next);
}

static bool wanted(const struct zt_spec *s, const struct zt_tensor_def *d, int kind, bool moments) {
    const char *r = s->precision.recipe;
    bool master = !strcmp(r, "mixed16") || !strcmp(r, "fp16");
    if (kind == ZT_SAVED_PARAMETER) return true;
    if (d->frozen) return false;
    return kind == ZT_SAVED_MASTER ? master : moments;
}

static struct cover *cover_new(const struct zt_model_table *t) {
    struct cover *c = calloc((size_t)t->n_tensors, sizeof *c);
    for (int i = 0; i < t->n_tensors; i++)
        for (int k = 0; k < ZT_SAVED_COUNT; k++)
            c[i].of[k] = calloc((size_t)(t->tensors[i].whole[0] * t->tensors[i].whole[1]), 1);
    return c;
}

static void cover_check(struct cover *c, const struct zt_spec *s, const struct zt_model_table *t,
                        bool moments, const char *name) {
    for (int i = 0; i < t->n_tensors; i++)
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            const struct zt_tensor_def *d = &t->tensors[i];
            for (int64_t e = 0; e < d->whole[0] * d->whole[1]; e++)
                cr_assert_eq(c[i].of[k][e], wanted(s, d, k, moments),
                             "%s: element %lld of %s, kind %d, is written %d times", name,
                             (long long)e, d->name, k, c[i].of[k][e]);
            free(c[i].of[k]);
        }
    free(c);
}

/* One rank: marks what it writes; its bytes are those that zt_save_bytes says. */
static void rank_writes(const struct zt_spec *spec, int rank, bool moments, struct cover *c,
                        int64_t *total) {
    struct zt_model_table table;
    struct zt_unit_layout layout;
    struct zt_save_parts parts;
    struct zt_error e;
    struct zt_mesh mesh = zt_spec_mesh(spec);
    struct zt_coords at = zt_mesh_coords(mesh, rank);
    int64_t bytes[8], sum = 0;
    cr_assert_eq(zt_spec_table(spec, &table, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_model_table_cut(&table, mesh.tensor, at.tensor, &e), 0, "%s", e.msg);
    const struct zt_layout_options o =
        zt_layout_options_of(spec, zt_policy(spec->parallelism.mode), mesh.shard);
    cr_assert_eq(zt_unit_layout_build(&table, &o, &layout, &e), 0, "%s", e.msg);
    const struct zt_save_who who = {spec, &table, &layout, mesh, moments};
    cr_assert_eq(zt_save_parts_build(&who, rank, &parts, &e), 0, "%s", e.msg);
    check_order(&parts);
    for (int i = 0; i < parts.n_pieces; i++) {
        const struct zt_saved_piece *p = &parts.pieces[i];
        mark(c, &parts, p);
        sum += p->rect.size[0] * p->rect.size[1] * (int64_t)zt_dtype_size(p->type);
    }
    cr_assert_eq(zt_save_bytes(&who, at.shard, bytes, &e), 0);
    cr_expect_eq(bytes[at.replicate], sum);
    cr_expect_eq(parts.bytes, sum);
    *total += sum;
    if (rank == mesh.replicate * mesh.shard * mesh.tensor - 1)
        cr_expect_eq(*total, zt_save_model_bytes(&parts)); /* of all ranks: the model, once */
    zt_save_parts_free(&parts);
    zt_unit_layout_free(&layout);
    zt_model_table_free(&table);
}

static void check_case(const int *row) {
    const struct px_case c = case_of(row);
    char name[PX_TEXT];
    struct zt_spec spec;
    struct zt_error e;
    struct zt_model_table whole;
    cr_assert_eq(px_spec(&c, &spec, &e), 0);
    cr_assert_eq(zt_spec_table(&spec, &whole, &e), 0);
    struct cover *cover = cover_new(&whole);
    int64_t total = 0;
    bool moments = !row[F_LAZY];
    for (int r = 0; r < px_world(&c); r++) rank_writes(&spec, r, moments, cover, &total);
    cover_check(cover, &spec, &whole, moments, px_name(&c, name));
    zt_model_table_free(&whole);
    zt_spec_free(&spec);
}

Test(save_parts, every_element_is_written_once, .timeout = 240) {
    static const int levels[F_COUNT] = {[F_MODE] = ZT_MODE_COUNT, [F_MESH] = MESHES,
                                        [F_TENSOR] = 2,           [F_TRAIN] = 3,
                                        [F_RECIPE] = RECIPES,     [F_FAMILY] = PX_FAMILIES,
                                        [F_BUCKET] = 2,           [F_PERSIST] = 2,
                                        [F_WRAP] = 2,             [F_LAZY] = 2};
    const struct pw_product product = {F_COUNT, levels, 5, fix};
    static int rows[PW_ROWS_MAX][PW_FACTORS_MAX];
    static struct pw_pairs pairs;
    int n = pw_cover(&product, rows, &pairs);
    cr_assert_eq(pw_missing(&product, &pairs, NULL), 0);
    for (int i = 0; i < n; i += pw_every()) check_case(rows[i]);
}
