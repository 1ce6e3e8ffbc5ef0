/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_chrome.c: the trace file as a JSON reader sees it: any text in names, instants
 * to the nanosecond, what has not ended, who counts as communication. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/trace/chrome.h"

static char *document;
static size_t length;
static struct zt_chrome t;

static void begin(const char *process, const char *note) {
    FILE *f = open_memstream(&document, &length);
    cr_assert(f);
    zt_chrome_begin(&t, f, &(struct zt_chrome_head){"shm", process, note, 3, 8});
}

/* The events that are no names. */
static json_t *done(void) {
    json_error_t e;
    size_t i;
    cr_assert_eq(zt_chrome_end(&t, NULL), 0);
    fclose(t.to);
    cr_assert(strstr(document, "\"rank\": 3"), "analysers look for the rank with a pattern");
    json_t *j = json_loads(document, JSON_REJECT_DUPLICATES, &e), *all, *v, *out = json_array();
    cr_assert(j, "line %d: %s in %s", e.line, e.text, document);
    all = json_object_get(j, "traceEvents");
    json_array_foreach(all, i, v) {
        cr_assert_eq(json_integer_value(json_object_get(v, "pid")), 3);
        if (strcmp(json_string_value(json_object_get(v, "ph")), "M")) json_array_append(out, v);
    }
    json_decref(j);
    free(document);
    return out;
}

static const char *word(const json_t *e, const char *key) {
    const char *s = json_string_value(json_object_get(e, key));
    return s ? s : "";
}
static double number(const json_t *e, const char *key) {
    cr_assert(json_is_number(json_object_get(e, key)), "%s", key);
    return json_number_value(json_object_get(e, key));
}

static struct zt_coll_record record(enum zt_coll kind, int64_t start, int64_t end) {
    struct zt_coll_record r = {.id = 41,
                               .group = "dp_shard",
                               .kind = kind,
                               .dtype = ZT_BF16,
                               .count = 1200,
                               .bytes = 2400,
                               .sent_bytes = 1800,
                               .unit = "h.3",
                               .reason = "why",
                               .step = 5,
                               .queued_ns = start,
                               .start_ns = start,
                               .end_ns = end};
    return r;
}

/* Read back as it was given; what is no UTF-8 becomes the sign for that. */
Test(chrome, any_text_in_a_name) {
    static const struct {
        const char *given, *read;
    } names[] = {
        {"plain", "plain"},
        {"a \"quote\" and \\ and /", "a \"quote\" and \\ and /"},
        {"line\nfeed\ttab\x01\x7f", "line\nfeed\ttab\x01\x7f"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"cut \xe2\x82", "cut \xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf\xed\xa0\x80z", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"},
        {"\xff\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    size_t n = sizeof names / sizeof *names;
    begin("p\"\n\xff", "n\\");
    for (size_t i = 0; i < n; i++) zt_chrome_phase(&t, names[i].given, 0, 1);
    json_t *v = done();
    cr_assert_eq(json_array_size(v), n);
    for (size_t i = 0; i < n; i++)
        cr_expect_str_eq(word(json_array_get(v, i), "name"), names[i].read);
    json_decref(v);
}

/* Three months of uptime and a nanosecond; before the origin too. */
Test(chrome, instants_are_exact) {
    static const int64_t at[] = {0, 1, 999, 1000, INT64_C(7776000000000001), -1, -1500};
    size_t n = sizeof at / sizeof *at;
    begin("p", NULL);
    for (size_t i = 0; i < n; i++) zt_chrome_phase(&t, "x", at[i], at[i] + 1001);
    json_t *v = done();
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(v, i);
        cr_expect_eq(llround(number(e, "ts") * 1000), at[i], "%.4f", number(e, "ts"));
        cr_expect_eq(llround(number(e, "dur") * 1000), 1001);
    }
    json_decref(v);
}

/* By category and name: collectives of the data, computation, copies; the rest is none of them. */
Test(chrome, what_counts_as_what) {
    static const struct {
        enum zt_interval_kind kind;
        const char *cat;
    } kinds[] = {{ZT_IV_COMPUTE, "kernel"},
                 {ZT_IV_UPDATE, "kernel"},
                 {ZT_IV_COPY, "gpu_memcpy"},
                 {ZT_IV_STALL, "wait"}};
    static const char *const names[ZT_COLL_COUNT] = {
        [ZT_COLL_BROADCAST] = "ncclDevKernel_Broadcast_dp_shard",
        [ZT_COLL_ALL_REDUCE] = "ncclDevKernel_AllReduce_dp_shard",
        [ZT_COLL_ALL_GATHER] = "ncclDevKernel_AllGather_dp_shard",
        [ZT_COLL_REDUCE_SCATTER] = "ncclDevKernel_ReduceScatter_dp_shard",
        [ZT_COLL_BARRIER] = "ncclDevKernel_Barrier_dp_shard"};
    begin("p", NULL);
    for (int i = 0; i < 4; i++)
        zt_chrome_interval(&t, &(struct zt_interval){1, 2, kinds[i].kind, NULL, "thing", false});
    for (int k = 0; k < ZT_COLL_COUNT; k++) {
        struct zt_coll_record r = record((enum zt_coll)k, 10, 20);
        zt_chrome_collective(&t, &r, NULL, 7, 8);
    }
    struct zt_coll_record control = record(ZT_COLL_ALL_GATHER, 30, 40);
    control.control = true;
    zt_chrome_collective(&t, &control, NULL, 0, 0);
    json_t *v = done();
    for (size_t i = 0; i < 4; i++) {
        cr_expect_str_eq(word(json_array_get(v, i), "cat"), kinds[i].cat);
        cr_expect_str_eq(word(json_array_get(v, i), "name"), "thing");
    }
    for (size_t k = 0; k < ZT_COLL_COUNT; k++) {
        const json_t *e = json_array_get(v, 5 + 2 * k), *a = json_object_get(e, "args");
        const json_t *around = json_array_get(v, 4 + 2 * k);
        cr_expect_str_eq(word(around, "cat"), "gpu_user_annotation");
        cr_expect_str_eq(word(around, "name"), "h.3: why");
        cr_expect(json_equal(json_object_get(around, "ts"), json_object_get(e, "ts")));
        cr_expect(json_equal(json_object_get(around, "dur"), json_object_get(e, "dur")));
        cr_expect_str_eq(word(e, "cat"), "kernel");
        cr_expect_str_eq(word(e, "name"), names[k]);
        cr_expect_eq(number(a, "exposed ns"), 7);
        cr_expect_eq(number(a, "stall ns"), 8);
        cr_expect_not(json_object_get(a, "Group size"), "not known");
    }
    const json_t *e = json_array_get(v, 4 + 2 * ZT_COLL_COUNT);
    cr_expect_str_eq(word(e, "cat"), "control");
    cr_expect_str_eq(word(e, "name"), "why");
    json_decref(v);
}

/* A scatter of 1,200 elements over 100 ranks takes all in and gives 12; of a long list the edges.
 */
Test(chrome, groups_and_sizes) {
    int ranks[100];
    struct zt_coll_record r = record(ZT_COLL_REDUCE_SCATTER, 10, 20);
    for (int i = 0; i < 100; i++) ranks[i] = 2 * i;
    begin("p", NULL);
    zt_chrome_collective(&t, &r, &(struct zt_comm_group){"dp_shard", ranks, 100}, 0, 0);
    zt_chrome_collective(&t, &r, &(struct zt_comm_group){"dp_shard", ranks, 4}, 0, 0);
    json_t *v = done();
    const json_t *a = json_object_get(json_array_get(v, 1), "args");
    cr_assert_eq(number(a, "In msg nelems"), 1200);
    cr_assert_eq(number(a, "Out msg nelems"), 12);
    cr_assert_eq(number(a, "Group size"), 100);
    cr_assert_str_eq(word(a, "dtype"), "BFloat16");
    cr_assert_str_eq(word(a, "Process Group Ranks"),
                     "[0, 2, 4, 6, 8, 10, 12, 14, ..., 184, 186, 188, 190, 192, 194, 196, 198]");
    a = json_object_get(json_array_get(v, 3), "args");
    cr_assert_str_eq(word(a, "Process Group Ranks"), "[0, 2, 4, 6]");
    json_decref(v);
}

/* Of a step that hung: what is under way is open, what has not begun is not there. */
Test(chrome, collectives_under_way) {
    struct zt_coll_record r = record(ZT_COLL_ALL_REDUCE, 500, 0), waits = r;
    waits.start_ns = 0;
    begin("p", NULL);
    zt_chrome_collective(&t, &r, NULL, 0, 0);
    zt_chrome_collective(&t, &waits, NULL, 0, 0);
    json_t *v = done();
    cr_assert_eq(json_array_size(v), 2);
    for (size_t i = 0; i < 2; i++) {
        cr_assert_str_eq(word(json_array_get(v, i), "ph"), "B");
        cr_assert_not(json_object_get(json_array_get(v, i), "dur"));
    }
    json_decref(v);
}

Test(chrome, counters_are_sums) {
    static const int64_t tags[ZT_TAG_COUNT] = {1, 20, 300, 4000, 50000, INT64_C(6000000000000)};
    begin("p", NULL);
    zt_chrome_memory(&t, 77, tags, INT64_C(7000000000000));
    json_t *v = done();
    cr_assert_eq(json_array_size(v), 3);
    for (int i = 0; i < ZT_TAG_COUNT; i++)
        cr_assert_eq(
            number(json_object_get(json_array_get(v, 0), "args"), zt_tag_name((enum zt_tag)i)),
            (double)tags[i]);
    cr_assert_eq(number(json_object_get(json_array_get(v, 1), "args"), "bytes"), 6000000054321.0);
    cr_assert_eq(number(json_object_get(json_array_get(v, 2), "args"), "bytes"), 7e12);
    json_decref(v);
}

Test(chrome, a_full_disk_is_told) {
    struct zt_error e = {0};
    FILE *f = fopen("/dev/full", "w");
    zt_chrome_begin(&t, f, &(struct zt_chrome_head){"shm", "p", NULL, 0, 1});
    cr_assert_eq(zt_chrome_end(&t, &e), ZT_EIO);
    cr_assert(strstr(e.msg, "disk"), "%s", e.msg);
    fclose(f);
}
