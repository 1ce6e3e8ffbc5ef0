/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl plan` with a coordinator: which workers it names is where the run then starts, in rank order; what it waits
 * for when they are busy or too few; the capacities that they registered; a batch that is not the last run's. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "tests/integration/harness.h"

#define WORLD 4

/* Two hosts, named so that their order is not that of their start; the last worker has less memory. */
static const char *const where[WORLD] = {"--host host-b --address 127.0.0.3 --memory-gib 1",
                                         "--host host-a --address 127.0.0.2 --memory-gib 1",
                                         "--host host-b --address 127.0.0.3 --memory-gib 1",
                                         "--host host-a --address 127.0.0.2 --memory-gib 0.5"};

static bool all_idle(void *arg) {
    json_t *j = zctl_json(arg, "workers"), *w;
    size_t i;
    int idle = 0;
    json_array_foreach(json_object_get(j, "workers"), i, w)
        idle += strcmp(json_string_value(json_object_get(w, "state")), "IDLE") == 0;
    json_decref(j);
    return idle == WORLD;
}

static void start(struct cluster *c) {
    cluster_init(c);
    cluster_start_coord(c);
    for (int i = 0; i < WORLD; i++)
        cluster_start_worker(c, i, where[i]);
    wait_for(all_idle, c, 60, "idle workers");
}

static const json_t *at(const json_t *j, const char *a, const char *b) {
    const json_t *v = json_object_get(json_object_get(j, a), b);
    cr_assert(v, "%s.%s", a, b);
    return v;
}

/* The plan's workers by rank, and those that the coordinator took. */
Test(plan_workers, it_starts_where_the_plan_said, .timeout = 240) {
    struct cluster c = {0};
    char file[512];
    start(&c);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "placed", 2, WORLD,
             "parallelism: {mode: fsdp, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2}\n"));
    json_t *p = zctl_json(&c, "plan %s", file);
    const json_t *on = at(p, "workers", "on");
    cr_assert(json_is_true(at(p, "workers", "starts_now")));
    cr_assert_eq(json_array_size(on), WORLD);
    cr_assert_eq(json_integer_value(at(p, "mesh", "hosts")), 2);
    cr_assert_eq(json_integer_value(at(p, "mesh", "ranks_per_host")), 2);
    /* planned for the smallest of them, and for each capacity apart */
    cr_assert_eq(json_integer_value(at(p, "chosen", "capacity_bytes")), INT64_C(1) << 29);
    const json_t *capacities = at(p, "workers", "capacities");
    cr_assert_eq(json_array_size(capacities), 2);
    cr_assert_eq(json_integer_value(json_object_get(json_array_get(capacities, 0), "capacity_bytes")), INT64_C(1) << 30);
    cr_assert_eq(json_integer_value(json_object_get(json_array_get(capacities, 0), "workers")), 3);
    cr_assert(json_is_true(json_object_get(json_array_get(capacities, 1), "fits")));
    struct output o = zctl(&c, 120, "submit %s -f", file);
    cr_assert_eq(o.code, 0, "%s%s", o.out, o.err);
    output_free(&o);
    json_t *s = zctl_json(&c, "status placed"), *rank;
    size_t i;
    json_array_foreach(json_object_get(s, "ranks"), i, rank)
        cr_assert_str_eq(json_string_value(json_array_get(on, (size_t)json_integer_value(json_object_get(rank, "rank")))),
                         json_string_value(json_object_get(rank, "worker")), "rank %zu", i);
    cr_assert_eq(i, WORLD);
    json_decref(s);
    json_decref(p);
    cluster_stop(&c);
}

Test(plan_workers, what_it_waits_for, .timeout = 240) {
    struct cluster c = {0};
    char busy[512], two[512];
    start(&c);
    /* more than there are */
    struct output o = zctl(&c, 30, "plan %s", cluster_run_file(&c, "many", 2, WORLD + 1, ""));
    cr_assert_eq(o.code, 0, "%s", o.err);
    cr_assert(strstr(o.out, "waits for 1 worker: needs 5, 4 idle; there are not enough of them"), "%s", o.out);
    output_free(&o);
    /* those that are too small do not count */
    o = zctl(&c, 30, "plan %s", cluster_run_file(&c, "large", 2, WORLD, "requirements: {memory_gib: 0.75}\n"));
    cr_assert(strstr(o.out, "waits for 1 worker: needs 4, 3 idle, 1 with too little memory"), "%s", o.out);
    output_free(&o);
    snprintf(busy, sizeof busy, "%s", cluster_run_file(&c, "busy", 1000000, 3, ""));
    o = zctl(&c, 30, "submit %s", busy);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    wait_run(&c, "busy", "RUNNING", 60);
    snprintf(two, sizeof two, "%s", cluster_run_file(&c, "two", 2, 2, ""));
    json_t *p = zctl_json(&c, "plan %s", two);
    cr_assert(json_is_false(at(p, "workers", "starts_now")));
    cr_assert_eq(json_integer_value(at(p, "workers", "idle")), 1);
    cr_assert_eq(json_integer_value(at(p, "workers", "busy")), 3);
    json_decref(p);
    /* one that needs a single worker starts beside it, but not before one that waits */
    p = zctl_json(&c, "plan %s", cluster_run_file(&c, "one", 2, 1, ""));
    cr_assert(json_is_true(at(p, "workers", "starts_now")));
    json_decref(p);
    o = zctl(&c, 30, "submit %s", two);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
    o = zctl(&c, 30, "plan %s", cluster_run_file(&c, "one", 2, 1, ""));
    cr_assert(strstr(o.out, "waits for its turn behind \"two\""), "%s", o.out);
    output_free(&o);
    o = zctl(&c, 30, "cancel two");
    output_free(&o);
    o = zctl(&c, 30, "cancel busy");
    output_free(&o);
    wait_run(&c, "busy", "CANCELLED", 60);
    cluster_stop(&c);
}

/* Twice the batch with the lr of before is said; with another lr it is somebody's intention. */
Test(plan_workers, another_batch_at_the_same_pace, .timeout = 240) {
    struct cluster c = {0};
    char file[512];
    start(&c);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "again", 2, 2, ""));
    struct output o = zctl(&c, 120, "submit %s -f", file);
    cr_assert_eq(o.code, 0, "%s%s", o.out, o.err);
    output_free(&o);
    json_t *p = zctl_json(&c, "plan %s", file);
    cr_assert_eq(json_array_size(json_object_get(p, "warnings")), 0);
    json_decref(p);
    p = zctl_json(&c, "plan %s --set training.local_batch_size=4", file);
    const char *said = json_string_value(json_array_get(json_object_get(p, "warnings"), 0));
    cr_assert(said && strstr(said, "global batch 8 instead of 4, tokens per step 256 instead of 128"), "%s", said);
    json_decref(p);
    p = zctl_json(&c, "plan %s --set training.local_batch_size=4 --set optimizer.lr=6e-4", file);
    cr_assert_eq(json_array_size(json_object_get(p, "warnings")), 0);
    json_decref(p);
    cluster_stop(&c);
}
