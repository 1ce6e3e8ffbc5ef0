/* SPDX-License-Identifier: Apache-2.0 */
/* What `zctl explain MODE --file` says before a run is what the run then does: bytes that each rank sends in
 * a step, counted at the transport, and bytes that it keeps, counted by the allocator. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/integration/harness.h"

#define WORKERS 4
#define TWO_MICRO_STEPS "--set training.global_batch_size=16"

static int64_t whole(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    cr_assert(json_is_integer(v), "%s", key);
    return json_integer_value(v);
}

/* Persistent bytes of rank 0 in the steady window, else the newest one. */
static const json_t *kept(const json_t *memory) {
    const json_t *found = NULL, *row;
    size_t i;
    json_array_foreach(json_object_get(memory, "ranks"), i, row) {
        const char *window = json_string_value(json_object_get(row, "window"));
        if (whole(row, "rank") == 0 && strcmp(window, "init") != 0)
            found = json_object_get(json_object_get(row, "measured"), "persistent_bytes");
    }
    cr_assert(found);
    return found;
}

static void compare(struct cluster *c, const char *name, const char *mode, int replicas, const char *yaml) {
    const char *file = cluster_run_file(c, name, 2, WORKERS, yaml);
    struct output o = zctl(c, 60, "submit %s -f " TWO_MICRO_STEPS, file);
    cr_assert_eq(o.code, 0, "%s: %s%s", name, o.out, o.err);
    output_free(&o);
    json_t *said = zctl_json(c, "explain %s --file %s --replicate %d " TWO_MICRO_STEPS, mode, file, replicas);
    json_t *rows = zctl_jsonl(c, "metrics %s --rank all --step 2", name), *memory = zctl_json(c, "memory %s", name);
    const json_t *model = json_object_get(said, "model"), *row;
    const json_t *will = json_object_get(model, "persistent_bytes"), *was = kept(memory);
    size_t i;
    cr_assert_eq(json_array_size(rows), WORKERS, "%s", name);
    json_array_foreach(rows, i, row)
        cr_expect_eq(whole(row, "sent_bytes"), whole(model, "sent_bytes_per_step"), "%s: rank %zu sent %lld, said %lld",
                     name, i, (long long)whole(row, "sent_bytes"), (long long)whole(model, "sent_bytes_per_step"));
    static const char *const keys[] = {"parameters", "gradients", "optimizer"};
    for (i = 0; i < 3; i++)
        cr_expect_eq(whole(was, keys[i]), whole(will, keys[i]), "%s: %s %lld, said %lld", name, keys[i],
                     (long long)whole(was, keys[i]), (long long)whole(will, keys[i]));
    json_decref(said);
    json_decref(rows);
    json_decref(memory);
}

Test(explain_mode, is_what_a_run_does, .timeout = 300) {
    static const struct { const char *name, *mode; int replicas; const char *parallelism; } row[] = {
        {"ddp", "ddp", 1, "mode: ddp"},
        {"zero1", "zero1", 1, "mode: zero1, bucket_mib: 0.05"},
        {"zero2", "zero2", 2, "mode: zero2, data_parallel_replicate_degree: 2"},
        {"zero3", "zero3", 1, "mode: zero3, wrap: part"},
        {"zero3-2", "zero3", 1, "mode: zero3, reshard_after_forward: 2, prefetch: 0"},
        {"fsdp", "fsdp", 1, "mode: fsdp, persistence_threshold: 200, bucket_mib: 0.1"},
        {"nosync", "fsdp", 1, "mode: fsdp, no_sync: true"},
        {"hsdp", "hsdp", 2, "mode: hsdp, data_parallel_replicate_degree: 2, prefetch: 2"},
        {"keep", "SHARD_GRAD_OP", 1, "mode: SHARD_GRAD_OP"},
    };
    struct cluster c = {0};
    cluster_init(&c);
    cluster_start(&c, WORKERS);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char yaml[400];
        snprintf(yaml, sizeof yaml, "parallelism: {%s}\n", row[i].parallelism);
        compare(&c, row[i].name, row[i].mode, row[i].replicas, yaml);
    }
    cluster_stop(&c);
}
