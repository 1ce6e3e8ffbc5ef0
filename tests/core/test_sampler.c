/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler against torch's DistributedSampler, and the evaluation split. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <string.h>

#include "core/sampler.h"
#include "tests/core/golden.h"

static void expect(int64_t n, int world, bool shuffle, bool drop, uint64_t seed, int64_t epoch,
                   int rank, const int64_t *want, int64_t count) {
    struct zt_sampler s;
    struct zt_error err = {0};
    cr_assert_eq(zt_sampler_init(&s, n, world, shuffle, drop, seed, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_sampler_set_epoch(&s, epoch, &err), 0, "%s", err.msg);
    cr_assert_eq(s.per_rank, count);
    for (int64_t i = 0; i < count; i++)
        cr_assert_eq(zt_sampler_get(&s, rank, i), want[i],
                     "n %" PRId64 " K %d rank %d place %" PRId64, n, world, rank, i);
    zt_sampler_free(&s);
}

Test(sampler, published_rows) {
    static const int64_t ep0[3][4] = {{4, 5, 0, 2}, {1, 3, 8, 4}, {7, 9, 6, 1}};
    static const int64_t ep1[3][4] = {{5, 2, 9, 4}, {6, 0, 3, 5}, {1, 8, 7, 6}};
    for (int r = 0; r < 3; r++) {
        expect(10, 3, true, false, 0, 0, r, ep0[r], 4);
        expect(10, 3, true, true, 0, 0, r, ep0[r], 3);
        expect(10, 3, true, false, 0, 1, r, ep1[r], 4);
    }
    expect(5, 2, false, false, 0, 0, 0, (int64_t[]){0, 2, 4}, 3);
    expect(5, 2, false, false, 0, 0, 1, (int64_t[]){1, 3, 0}, 3);
    for (int r = 0; r < 4; r++) expect(2, 4, false, false, 0, 0, r, (int64_t[]){r % 2}, 1);
}

Test(sampler, equals_torch) {
    FILE *f = golden_open("sampler.txt");
    char *line = NULL;
    size_t cap = 0;
    int rows = 0;
    while (getline(&line, &cap, f) > 0) {
        if (line[0] != 'S') continue;
        char *p = line + 1;
        int64_t h[7], ids[256], count = 0;
        for (int i = 0; i < 7; i++) cr_assert(golden_int(&p, &h[i]));
        while (golden_int(&p, &ids[count])) count++;
        expect(h[0], (int)h[1], h[2] != 0, h[3] != 0, (uint64_t)h[4], h[5], (int)h[6], ids, count);
        rows++;
    }
    free(line);
    fclose(f);
    cr_assert(rows > 300);
}

Test(sampler, going_back_to_an_epoch_gives_its_list_again) {
    struct zt_sampler s;
    cr_assert_eq(zt_sampler_init(&s, 101, 4, true, false, 9, NULL), 0);
    int64_t first[26], again[26];
    for (int i = 0; i < 26; i++) first[i] = zt_sampler_get(&s, 2, i);
    cr_assert_eq(zt_sampler_set_epoch(&s, 5, NULL), 0);
    cr_assert_eq(zt_sampler_set_epoch(&s, 0, NULL), 0);
    for (int i = 0; i < 26; i++) again[i] = zt_sampler_get(&s, 2, i);
    cr_assert_arr_eq(first, again, sizeof first);
    zt_sampler_free(&s);
}

Test(sampler, refusals_name_the_cause) {
    struct zt_sampler s;
    struct zt_error err = {0};
    cr_assert_eq(zt_sampler_init(&s, 0, 2, true, true, 0, &err), ZT_EDATA);
    cr_assert_eq(zt_sampler_init(&s, 3, 4, true, true, 0, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "3 samples") && strstr(err.msg, "4 data-parallel ranks"), "%s",
              err.msg);
    cr_assert_eq(zt_sampler_init(&s, 3, 0, true, true, 0, &err), ZT_EINVAL);
    cr_assert_eq(zt_sampler_init(&s, 214748364, 1, true, true, 0, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "shuffle: false"), "%s", err.msg);
}

Test(sampler, evaluation_has_every_row_once) {
    cr_assert_eq(zt_eval_count(10, 3, 0), 4);
    cr_assert_eq(zt_eval_count(10, 3, 1), 3);
    cr_assert_eq(zt_eval_count(10, 3, 2), 3);
    cr_assert_eq(zt_eval_count(5, 2, 0) + zt_eval_count(5, 2, 1), 5);
    cr_assert_eq(zt_eval_count(2, 4, 3), 0);
    cr_assert_eq(zt_eval_count(0, 4, 0), 0);
    for (int64_t n = 0; n < 40; n++)
        for (int world = 1; world < 9; world++) {
            int seen[40] = {0};
            for (int r = 0; r < world; r++)
                for (int64_t i = 0; i < zt_eval_count(n, world, r); i++) seen[r + i * world]++;
            for (int64_t i = 0; i < n; i++) cr_assert_eq(seen[i], 1);
        }
}
