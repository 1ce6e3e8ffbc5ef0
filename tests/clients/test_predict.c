/* SPDX-License-Identifier: Apache-2.0 */
/* Which plan of a stored document is about a rank, and the words when there is none; capacities of workers. Documents
 * are written out by hand. */
#include <criterion/criterion.h>
#include <string.h>
#include "clients/zctl/predict.h"
#include "core/units.h"

#define MIB (INT64_C(1) << 20)

/* Two plans: one that fits 100 MiB with 64 MiB reserved, one of 40 MiB without room. */
static json_t *document(const char *more) {
    char text[4096];
    snprintf(text, sizeof text,
             "{\"version\": 1, \"mode\": \"zero3\", \"mesh\": {\"replicate\": 1, \"shard\": 4, \"tensor\": 1}, \"limit_bytes\": null,"
             " \"depends_on_capacity\": false, \"assumed\": [], \"connected\": [], \"first_change\": null, %s \"plans\": ["
             "{\"capacity_bytes\": %lld, \"fits\": true, \"peak_reserved_bytes\": %lld, \"shapes\": ["
             "{\"rank\": 0, \"dp_from\": 0, \"dp_to\": 3, \"windows\": {\"init\": {\"peak_allocated_bytes\": 5}, \"eval\": {\"peak_allocated_bytes\": 6}}},"
             "{\"rank\": 3, \"dp_from\": 3, \"dp_to\": 4, \"windows\": {\"init\": {\"peak_allocated_bytes\": 5}, \"eval\": {\"peak_allocated_bytes\": 4}}}]},"
             "{\"capacity_bytes\": %lld, \"fits\": false, \"peak_reserved_bytes\": %lld, \"shapes\": ["
             "{\"rank\": 0, \"dp_from\": 0, \"dp_to\": 4, \"windows\": {\"init\": {\"peak_allocated_bytes\": 9}}}]}]}",
             more, (long long)(100 * MIB), (long long)(64 * MIB), (long long)(40 * MIB), (long long)(64 * MIB));
    const char *why;
    json_t *doc = zt_stored_plan(text, strlen(text), &why);
    cr_assert(doc, "%s", why);
    return doc;
}

static const struct zt_mesh mesh = {1, 4, 1};

static json_int_t peak(const json_t *doc, int rank, const char *window, int64_t capacity, const char **why) {
    *why = NULL;
    const json_t *w = zt_stored_window(doc, mesh, rank, window, capacity, why);
    return w ? json_integer_value(json_object_get(w, "peak_allocated_bytes")) : -1;
}

Test(predict, a_rank_finds_its_shape_and_the_plan_of_its_worker) {
    const char *why;
    json_t *doc = document("");
    cr_expect_eq(peak(doc, 0, "eval", 100 * MIB, &why), 6);
    cr_expect_eq(peak(doc, 2, "eval", 100 * MIB, &why), 6);
    cr_expect_eq(peak(doc, 3, "eval", 100 * MIB, &why), 4);
    cr_expect_eq(peak(doc, 3, "eval", 64 * MIB, &why), 4, "enough for all that is ever reserved: the same bytes");
    cr_expect_eq(peak(doc, 3, "eval", 100 * MIB + 4096, &why), 4, "capacities count in whole segments");
    cr_expect_eq(peak(doc, 3, "eval", 5000 * MIB, &why), 4);
    cr_expect_eq(peak(doc, 0, "init", 40 * MIB, &why), 9, "its own plan, although it does not fit");
    cr_expect_eq(peak(doc, 0, "init", 62 * MIB, &why), -1);
    cr_expect_str_eq(why, "no plan was made for a worker of that capacity");
    cr_expect_eq(peak(doc, 0, "save", 100 * MIB, &why), -1);
    cr_expect_str_eq(why, "the plan has no such window");
    cr_expect_eq(peak(doc, 4, "init", 100 * MIB, &why), -1, "no such rank");
    json_decref(doc);
}

Test(predict, what_makes_bytes_depend_on_the_capacity_is_heeded) {
    const char *why;
    json_t *doc = document("");
    json_object_set_new(doc, "depends_on_capacity", json_true());
    cr_expect_eq(peak(doc, 0, "eval", 100 * MIB, &why), 6);
    cr_expect_eq(peak(doc, 0, "eval", 200 * MIB, &why), -1, "garbage is collected at a share of the capacity");
    json_decref(doc);
    doc = document(""); /* memory.limit_gib makes all workers alike */
    json_object_set_new(doc, "limit_bytes", json_integer(40 * MIB + 77));
    cr_expect_eq(peak(doc, 0, "init", 5000 * MIB, &why), 9);
    json_decref(doc);
}

Test(predict, another_mesh_is_another_run) {
    const char *why = NULL;
    json_t *doc = document("");
    cr_expect_null(zt_stored_window(doc, (struct zt_mesh){1, 2, 1}, 0, "init", 100 * MIB, &why));
    cr_expect_str_eq(why, "it was planned for another number of workers");
    json_decref(doc);
}

Test(predict, no_plan_and_foreign_plans_say_so) {
    static const struct { const char *text, *why; } cases[] = {
        {"", "it was submitted without a plan"},
        {"{\"version\": 2, \"plans\": []}", "its plan is of another version of zctl"},
        {"{\"plans\": []}", "its plan is of another version of zctl"},
        {"{\"version\": 1}", "its plan is of another version of zctl"},
        {"{\"version\": 1, \"plans\"", "its plan is of another version of zctl"},
        {"[]", "its plan is of another version of zctl"},
    };
    const char *why;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_null(zt_stored_plan(cases[i].text, strlen(cases[i].text), &why));
        cr_expect_str_eq(why, cases[i].why, "%s", cases[i].text);
    }
    static const char empty[] = "{\"version\":1,\"plans\":[],\"why\":\"x\"}";
    json_t *none = zt_stored_plan(empty, strlen(empty), &why);
    cr_assert(none);
    cr_expect_eq(peak(none, 0, "init", MIB, &why), -1);
    cr_expect_str_eq(why, "no plan could be made when it was submitted");
    json_decref(none);
    /* types that a document of ours never has */
    static const char *const odd[] = {"{\"version\":1,\"plans\":[5]}", "{\"version\":1,\"plans\":[{\"shapes\":{}}]}",
                                      "{\"version\":1,\"mesh\":[],\"plans\":[{\"capacity_bytes\":\"x\",\"fits\":3,\"shapes\":[1,[],{}]}]}"};
    for (size_t i = 0; i < 3; i++) {
        json_t *doc = zt_stored_plan(odd[i], strlen(odd[i]), &why);
        cr_assert(doc, "%s", odd[i]);
        cr_expect_eq(peak(doc, 0, "init", 0, &why), -1, "%s", odd[i]);
        cr_expect_eq(peak(doc, 0, "init", MIB, &why), -1, "%s", odd[i]);
        json_decref(doc);
    }
}

Test(predict, capacities_are_kept_apart_largest_first) {
    struct zt_connected c = {0};
    zt_connected_add(&c, 4 * MIB, 1);
    zt_connected_add(&c, 8 * MIB, 2);
    zt_connected_add(&c, 4 * MIB, 1);
    zt_connected_add(&c, 6 * MIB, 1);
    cr_expect_eq(c.workers, 5);
    cr_assert_eq(c.n, 3);
    cr_expect(c.capacity[0].bytes == 8 * MIB && c.capacity[0].workers == 2);
    cr_expect(c.capacity[1].bytes == 6 * MIB && c.capacity[1].workers == 1);
    cr_expect(c.capacity[2].bytes == 4 * MIB && c.capacity[2].workers == 2);
    for (int i = 0; i < 200; i++)
        zt_connected_add(&c, (10 + 2 * i) * MIB, 1);
    cr_expect_eq(c.n, ZT_PREDICT_MAX_CAPACITIES);
    cr_expect(c.more);
    cr_expect_eq(c.capacity[0].bytes, 408 * MIB, "the largest stay");
    cr_expect_eq(c.workers, 205);
    for (int i = 1; i < c.n; i++)
        cr_expect_lt(c.capacity[i].bytes, c.capacity[i - 1].bytes);
}

Test(predict, the_allocator_has_the_lower_of_worker_and_limit) {
    static struct zt_spec s;
    cr_expect_eq(zt_predict_capacity(&s, 100 * MIB), 100 * MIB);
    cr_expect_eq(zt_predict_capacity(&s, 101 * MIB), 100 * MIB, "whole segments of 2 MiB");
    s.memory.limit_gib = 0.05; /* 51.2 MiB */
    cr_expect_eq(zt_predict_capacity(&s, 100 * MIB), 50 * MIB);
    cr_expect_eq(zt_predict_capacity(&s, 40 * MIB), 40 * MIB);
}
