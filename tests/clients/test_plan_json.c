/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as JSON: exactly the documented fields in their order, bytes as they are in the struct, null for what is
 * not known. Plans are made by hand here; what the planner puts into one is tested with the planner. */
#include <criterion/criterion.h>
#include <string.h>
#include "clients/zctl/plan_json.h"

static const char plan_fields[] =
    "version device capacity_bytes outside_bytes fits oom peak_allocated_bytes peak_reserved_bytes peak_window "
    "phase_of_peak at_peak persistent_bytes shapes parameters trainable workers data_parallel accumulation global_batch "
    "tokens_per_step total_steps total_tokens step_seconds_estimate forward_seconds_estimate backward_seconds_estimate "
    "optimizer_seconds_estimate exposed_comm_seconds_estimate tokens_per_second_estimate flops_per_token "
    "sent_bytes_per_step";
static const char window_fields[] = "peak_allocated_bytes peak_reserved_bytes phase_of_peak at_peak persistent_bytes";
static const char tag_fields[] = "parameters gradients optimizer activations temporary communication";
static const char oom_fields[] = "step phase what tag request_bytes capacity_bytes reserved_bytes allocated_bytes "
                                 "largest_free_block_bytes cause by_tag";
static const char mode_fields[] = "mode fits peak_allocated_bytes peak_reserved_bytes peak_window phase_of_peak at_peak "
                                  "persistent_bytes sent_bytes_per_step step_seconds_estimate "
                                  "exposed_comm_seconds_estimate tokens_per_second_estimate why";

static void expect_fields(json_t *o, const char *fields) {
    char got[2048] = "";
    const char *key;
    json_t *v;
    cr_assert(json_is_object(o), "%s", fields);
    json_object_foreach(o, key, v) {
        if (got[0])
            strcat(got, " ");
        strcat(got, key);
    }
    cr_assert_str_eq(got, fields);
}

static json_int_t number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    cr_assert(json_is_integer(v), "%s", key);
    return json_integer_value(v);
}

static struct zt_window_peak window(int64_t first) {
    return (struct zt_window_peak){.peak_allocated_bytes = first + 21, .peak_reserved_bytes = first + 1000,
                                   .phase_of_peak = ZT_PHASE_BACKWARD,
                                   .at_peak = {first + 1, 2, 3, 4, 5, 6}, .persistent = {first + 7, 8, 9}};
}

/* Three ranks, the last of which has a smaller evaluation batch. */
static struct zt_plan plan(void) {
    struct zt_plan p = {.fits = true, .capacity_bytes = 1 << 30, .outside_bytes = 11, .peak_allocated_bytes = 321,
                        .peak_reserved_bytes = 2000, .peak_window = ZT_WINDOW_EVAL, .phase_of_peak = ZT_PHASE_EVAL,
                        .at_peak = {100, 100, 100, 20, 1, 0}, .persistent = {31, 32, 33}, .n_shapes = 2, .parameters = 12,
                        .trainable = 10, .world = 3, .dp_size = 3, .accumulation = 2, .global_batch = 24,
                        .tokens_per_step = 240, .step_seconds = 0.5, .sent_bytes = 77};
    p.shape[0] = (struct zt_plan_shape){.rank = 0, .dp_from = 0, .dp_to = 2, .occurs = {[ZT_WINDOW_INIT] = true, [ZT_WINDOW_EVAL] = true}};
    p.shape[0].window[ZT_WINDOW_INIT] = window(0);
    p.shape[0].window[ZT_WINDOW_EVAL] = window(300);
    p.shape[1] = (struct zt_plan_shape){.rank = 2, .dp_from = 2, .dp_to = 3, .occurs = {[ZT_WINDOW_INIT] = true}};
    p.shape[1].window[ZT_WINDOW_INIT] = window(50);
    return p;
}

static const struct zt_cost_device device = {.name = "cpu"};

Test(plan_json, has_the_documented_fields) {
    struct zt_plan p = plan();
    json_t *j = zt_plan_json(&p, &device), *s, *w;
    expect_fields(j, plan_fields);
    expect_fields(json_object_get(j, "at_peak"), tag_fields);
    expect_fields(json_object_get(j, "persistent_bytes"), "parameters gradients optimizer");
    cr_expect_eq(number(j, "version"), 1);
    cr_expect_str_eq(json_string_value(json_object_get(j, "device")), "cpu");
    cr_expect_eq(number(j, "capacity_bytes"), 1 << 30);
    cr_expect(json_is_true(json_object_get(j, "fits")) && json_is_null(json_object_get(j, "oom")));
    cr_expect_eq(number(j, "peak_allocated_bytes"), 321);
    cr_expect_str_eq(json_string_value(json_object_get(j, "peak_window")), "eval");
    cr_expect_str_eq(json_string_value(json_object_get(j, "phase_of_peak")), "eval");
    cr_expect_eq(number(json_object_get(j, "at_peak"), "activations"), 20);
    cr_expect_eq(number(json_object_get(j, "persistent_bytes"), "optimizer"), 33);
    cr_expect_eq(number(j, "sent_bytes_per_step"), 77);
    cr_expect(json_is_null(json_object_get(j, "total_steps")) && json_is_null(json_object_get(j, "total_tokens")), "not known");
    cr_expect_eq(json_real_value(json_object_get(j, "step_seconds_estimate")), 0.5);
    cr_assert_eq(json_array_size(json_object_get(j, "shapes")), 2);
    s = json_array_get(json_object_get(j, "shapes"), 0);
    expect_fields(s, "rank dp_from dp_to windows");
    expect_fields(json_object_get(s, "windows"), "init eval");
    w = json_object_get(json_object_get(s, "windows"), "eval");
    expect_fields(w, window_fields);
    cr_expect_eq(number(w, "peak_reserved_bytes"), 1300);
    cr_expect_str_eq(json_string_value(json_object_get(w, "phase_of_peak")), "backward");
    cr_expect_eq(number(json_object_get(w, "at_peak"), "parameters"), 301);
    cr_expect_eq(number(json_object_get(w, "persistent_bytes"), "gradients"), 8);
    json_decref(j);
}

Test(plan_json, of_a_run_that_does_not_fit) {
    struct zt_plan p = plan();
    p.fits = false;
    p.oom_step = 1;
    p.oom = (struct zt_oom){.request = 4096, .capacity = 1 << 20, .reserved = 1 << 20, .tag = ZT_TAG_TEMPORARY,
                            .phase = ZT_PHASE_FORWARD, .what = "block 0: qkv", .by_tag = {9}};
    json_t *j = zt_plan_json(&p, &device), *m = json_object_get(j, "oom");
    expect_fields(m, oom_fields);
    cr_expect(json_is_false(json_object_get(j, "fits")));
    cr_expect_str_eq(json_string_value(json_object_get(m, "cause")), "capacity");
    cr_expect_str_eq(json_string_value(json_object_get(m, "what")), "block 0: qkv");
    cr_expect_str_eq(json_string_value(json_object_get(m, "tag")), "temporary");
    cr_expect_eq(number(json_object_get(m, "by_tag"), "parameters"), 9);
    json_decref(j);
}

/* Nobody is connected: whether it fits is not known, and no number stands in for that. */
Test(plan_json, without_a_capacity_nothing_is_said_of_fitting) {
    struct zt_plan p = plan();
    p.capacity_bytes = ZT_PLAN_NO_LIMIT;
    json_t *j = zt_plan_json(&p, NULL);
    expect_fields(j, plan_fields);
    cr_expect(json_is_null(json_object_get(j, "capacity_bytes")) && json_is_null(json_object_get(j, "fits")) &&
              json_is_null(json_object_get(j, "device")));
    json_decref(j);
}

Test(plan_json, every_rank_has_the_windows_of_its_shape) {
    struct zt_plan p = plan();
    static const struct { int rank; const char *window; json_int_t peak; } want[] = {
        {0, "init", 21}, {0, "eval", 321}, {1, "init", 21}, {1, "eval", 321}, {2, "init", 71}};
    json_t *rows = zt_plan_json_ranks(&p);
    cr_assert_eq(json_array_size(rows), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *row = json_array_get(rows, i);
        expect_fields(row, "rank window predicted");
        cr_expect_eq(number(row, "rank"), want[i].rank);
        cr_expect_str_eq(json_string_value(json_object_get(row, "window")), want[i].window);
        cr_expect_eq(number(json_object_get(row, "predicted"), "peak_allocated_bytes"), want[i].peak);
    }
    json_decref(rows);
    /* with tensor parallelism two neighbours share a data-parallel place */
    p.world = 6;
    rows = zt_plan_json_ranks(&p);
    cr_assert_eq(json_array_size(rows), 10);
    cr_expect_eq(number(json_object_get(json_array_get(rows, 7), "predicted"), "peak_allocated_bytes"), 321, "rank 3 is of place 1");
    cr_expect_eq(number(json_object_get(json_array_get(rows, 8), "predicted"), "peak_allocated_bytes"), 71, "rank 4 is of place 2");
    json_decref(rows);
}

Test(plan_json, a_mode_that_cannot_take_the_run_says_why) {
    struct zt_plan p = plan();
    json_t *j = zt_plan_json_mode("zero2", &p, NULL);
    expect_fields(j, mode_fields);
    cr_expect_eq(number(j, "peak_allocated_bytes"), 321);
    cr_expect(json_is_null(json_object_get(j, "why")));
    json_decref(j);
    j = zt_plan_json_mode("zero2", NULL, "no_sync is refused");
    expect_fields(j, mode_fields);
    cr_expect(json_is_null(json_object_get(j, "fits")) && json_is_null(json_object_get(j, "at_peak")));
    cr_expect_str_eq(json_string_value(json_object_get(j, "why")), "no_sync is refused");
    json_decref(j);
}

Test(plan_json, the_curve_is_there_with_details_only) {
    struct zt_plan p = plan();
    json_t *list = zt_plan_json_curve(&p), *o;
    cr_expect_eq(json_array_size(list), 0);
    json_decref(list);
    struct zt_plan_point at[] = {{.at_ns = 1500000, .phase = ZT_PHASE_FORWARD, .by_tag = {10, 0, 20, 3}, .reserved = 40, .what = "block 0: qkv"},
                                 {.at_ns = 2500000, .phase = ZT_PHASE_BACKWARD, .by_tag = {10, 7, 20, 3}, .reserved = 60, .what = "head"}};
    p.curve = at;
    p.n_curve = 2;
    list = zt_plan_json_curve(&p);
    cr_assert_eq(json_array_size(list), 2);
    o = json_array_get(list, 1);
    expect_fields(o, "seconds_estimate phase what allocated_bytes reserved_bytes by_tag");
    cr_expect_eq(number(o, "allocated_bytes"), 40);
    cr_expect_eq(number(o, "reserved_bytes"), 60);
    cr_expect_float_eq(json_real_value(json_object_get(o, "seconds_estimate")), 0.0025, 1e-12);
    cr_expect_str_eq(json_string_value(json_object_get(o, "phase")), "backward");
    json_decref(list);
}
