/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of zctl: exactly the documented fields, in their order, with null for what is missing. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include "clients/zctl/json.h"

/* The field lists of the manual. */
static const char step_fields[] =
    "run generation step loss grad_norm lr clip_coefficient loss_scale skipped skipped_steps tokens tokens_per_second step_seconds data_seconds "
    "forward_seconds backward_seconds optimizer_seconds checkpoint_seconds eval_seconds comm_seconds "
    "exposed_comm_seconds stall_seconds tail_seconds straggler_wait_seconds idle_seconds exposed_by "
    "peak_allocated_bytes peak_reserved_bytes peak_rank eval_loss eval_perplexity eval_tokens tokens_input "
    "tokens_supervised tokens_padding global_batch sample_hash";
static const char hash_fields[] = " parameter_hash state_hash";
static const char rank_fields[] =
    " rank coords local_loss nonfinite_gradients phase_of_peak at_peak category_max reserved_at_peak_bytes "
    "max_unused_reserved_bytes end_of_step_allocated_bytes outside_allocator_bytes sent_bytes "
    "parameter_hash state_hash";
static const char tag_fields[] = "parameters gradients optimizer activations temporary communication";

static void expect_fields(json_t *o, const char *fields) {
    char got[2048] = "";
    const char *key;
    json_t *v;
    cr_assert(json_is_object(o));
    json_object_foreach(o, key, v) {
        if (got[0])
            strcat(got, " ");
        strcat(got, key);
    }
    cr_assert_str_eq(got, fields);
}

static double number(json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    cr_assert(json_is_number(v), "%s", key);
    return json_number_value(v);
}

static Zt__TagBytes tags = ZT__TAG_BYTES__INIT;

static Zt__StepReport report(void) {
    Zt__StepReport r = ZT__STEP_REPORT__INIT;
    static Zt__ExposedBy by = ZT__EXPOSED_BY__INIT;
    static Zt__ExposedBy *list[1] = {&by};
    r.rank = 5;
    r.generation = 2;
    r.step = 7;
    r.has_loss = true;
    r.loss = 2.5;
    r.has_tokens = true;
    r.tokens = 4096;
    r.has_step_seconds = true;
    r.step_seconds = 0.5;
    r.has_peak_allocated_bytes = true;
    r.peak_allocated_bytes = 21;
    r.has_loss_scale = r.has_skipped = r.has_skipped_steps = r.has_clip_coefficient = true;
    r.loss_scale = 65536;
    r.skipped = false;
    r.skipped_steps = 2;
    r.clip_coefficient = 0.5;
    by.group = (char *)(uintptr_t)"dp_replicate";
    by.kind = (char *)(uintptr_t)"all_reduce";
    by.seconds = 0.25;
    r.exposed_by = list;
    r.n_exposed_by = 1;
    r.phase_of_peak = (char *)(uintptr_t)"backward";
    tags.has_parameters = tags.has_gradients = tags.has_optimizer = true;
    tags.has_activations = tags.has_temporary = tags.has_communication = true;
    tags.parameters = 1;
    tags.gradients = 2;
    tags.optimizer = 3;
    tags.activations = 4;
    tags.temporary = 5;
    tags.communication = 6;
    r.at_peak = &tags;
    return r;
}

Test(json, step_row) {
    Zt__StepReport r = report();
    Zt__StepRow row = ZT__STEP_ROW__INIT;
    row.step = 7;
    row.generation = 2;
    row.max = &r;
    row.has_tokens_per_second = true;
    row.tokens_per_second = 8192;
    row.has_peak_rank = true;
    row.peak_rank = 5;
    r.has_sample_hash = true;
    r.sample_hash = 0xfedcba9876543210ull;
    r.state_hash = (char *)(uintptr_t)"0a";
    json_t *o = zt_json_step("01ABC", &row);
    char all[2048];
    snprintf(all, sizeof all, "%s%s", step_fields, hash_fields);
    expect_fields(o, all);
    cr_assert_str_eq(json_string_value(json_object_get(o, "sample_hash")), "fedcba9876543210");
    cr_assert_str_eq(json_string_value(json_object_get(o, "state_hash")), "0a");
    cr_assert(json_is_null(json_object_get(o, "parameter_hash")));
    cr_assert_str_eq(json_string_value(json_object_get(o, "run")), "01ABC");
    cr_assert_eq(number(o, "step"), 7);
    cr_assert_eq(number(o, "loss"), 2.5);
    cr_assert_eq(number(o, "tokens_per_second"), 8192);
    cr_assert_eq(number(o, "peak_rank"), 5);
    cr_assert(json_is_integer(json_object_get(o, "peak_allocated_bytes")));
    cr_assert(number(o, "loss_scale") == 65536 && number(o, "skipped_steps") == 2 && number(o, "clip_coefficient") == 0.5);
    cr_assert(json_is_false(json_object_get(o, "skipped")));
    cr_assert(json_is_null(json_object_get(o, "eval_loss")));
    cr_assert(json_is_null(json_object_get(o, "eval_perplexity")));
    cr_assert(json_is_null(json_object_get(o, "peak_reserved_bytes")));
    json_t *by = json_object_get(o, "exposed_by");
    cr_assert_eq(json_array_size(by), 1);
    expect_fields(json_array_get(by, 0), "group kind seconds");
    json_decref(o);
}

Test(json, nothing_measured_is_null_and_no_list_is_an_empty_list) {
    Zt__StepRow row = ZT__STEP_ROW__INIT;
    json_t *o = zt_json_step("r", &row), *v;
    const char *key;
    char all[2048];
    snprintf(all, sizeof all, "%s%s", step_fields, hash_fields);
    expect_fields(o, all);
    json_object_foreach(o, key, v) {
        if (strcmp(key, "exposed_by") == 0)
            cr_assert(json_is_array(v) && json_array_size(v) == 0);
        else if (strcmp(key, "run") && strcmp(key, "step") && strcmp(key, "generation"))
            cr_assert(json_is_null(v), "%s", key);
    }
    json_decref(o);
}

Test(json, not_finite_is_null) {
    cr_assert(json_is_null(zt_json_real(true, NAN)));
    cr_assert(json_is_null(zt_json_real(true, INFINITY)));
    cr_assert(json_is_null(zt_json_real(false, 1)));
}

Test(json, rank_row) {
    Zt__StepReport r = report();
    char all[2048];
    struct zt_mesh mesh = {2, 4, 1};
    r.parameter_hash = (char *)(uintptr_t)"00ff";
    json_t *o = zt_json_rank("r", mesh, &r);
    snprintf(all, sizeof all, "%s%s", step_fields, rank_fields);
    expect_fields(o, all);
    expect_fields(json_object_get(o, "coords"), "replicate shard tensor");
    cr_assert_eq(number(json_object_get(o, "coords"), "replicate"), 1);
    cr_assert_eq(number(json_object_get(o, "coords"), "shard"), 1);
    expect_fields(json_object_get(o, "at_peak"), tag_fields);
    const char *key;
    json_t *v;
    double sum = 0;
    json_object_foreach(json_object_get(o, "at_peak"), key, v) sum += json_number_value(v);
    cr_assert_eq(sum, number(o, "peak_allocated_bytes"));
    cr_assert(json_is_null(json_object_get(o, "category_max")));
    cr_assert_eq(number(o, "tokens_per_second"), 8192);
    cr_assert_str_eq(json_string_value(json_object_get(o, "parameter_hash")), "00ff");
    json_decref(o);
    /* a mesh that does not hold the rank says nothing about it */
    mesh.shard = 1;
    o = zt_json_rank("r", mesh, &r);
    cr_assert(json_is_null(json_object_get(o, "coords")));
    json_decref(o);
}

Test(json, run_detail) {
    Zt__RunSummary s = ZT__RUN_SUMMARY__INIT;
    Zt__RunDetail d = ZT__RUN_DETAIL__INIT;
    Zt__RankInfo rank = ZT__RANK_INFO__INIT, *ranks[1] = {&rank};
    Zt__Attempt a = ZT__ATTEMPT__INIT, *attempts[1] = {&a};
    s.run_id = (char *)(uintptr_t)"01A";
    s.name = (char *)(uintptr_t)"n";
    s.state = (char *)(uintptr_t)"RUNNING";
    s.submitted_ms = 1700000000123;
    rank.worker = rank.host = rank.device = (char *)(uintptr_t)"w";
    d.summary = &s;
    d.replicate = 2;
    d.shard = d.tensor = 1;
    d.n_ranks = d.n_attempts = 1;
    d.ranks = ranks;
    d.attempts = attempts;
    json_t *o = zt_json_run(&d);
    static const char *const wanted[] = {"run", "name", "state", "reason", "step", "steps", "generation",
                                         "parameter_hash", "mesh", "ranks", "checkpoint", "attempts"};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        cr_assert(json_object_get(o, wanted[i]), "%s", wanted[i]);
    expect_fields(json_object_get(o, "mesh"), "replicate shard tensor");
    expect_fields(json_array_get(json_object_get(o, "ranks"), 0),
                  "rank local_rank worker host device coords state step");
    cr_assert(json_is_null(json_object_get(o, "checkpoint")));
    cr_assert(json_is_null(json_object_get(o, "parameter_hash")));
    cr_assert_str_eq(json_string_value(json_object_get(o, "submitted")), "2023-11-14T22:13:20.123Z");
    json_decref(o);
}

Test(json, checkpoints_of_a_run) {
    Zt__RunSummary s = ZT__RUN_SUMMARY__INIT;
    Zt__RunDetail d = ZT__RUN_DETAIL__INIT;
    Zt__Checkpoint c = ZT__CHECKPOINT__INIT, w = ZT__CHECKPOINT__INIT;
    uint8_t hash[32] = {0xab, 1, [31] = 0xcd};
    s.run_id = s.name = s.state = (char *)(uintptr_t)"x";
    d.summary = &s;
    d.checkpoint = &c;
    d.saving = &w;
    d.resumed_from = (char *)(uintptr_t)"run base (01B) step 7";
    c.step = 1000;
    c.state = (char *)(uintptr_t)"COMMITTED";
    c.has_manifest_sha256 = c.has_world = c.has_verified = true;
    c.manifest_sha256.data = hash;
    c.manifest_sha256.len = sizeof hash;
    c.world = 4;
    c.verified = true;
    w.step = 1500;
    w.state = (char *)(uintptr_t)"WRITING";
    w.has_shards = true;
    w.shards = 3;
    json_t *o = zt_json_run(&d), *j = json_object_get(o, "checkpoint");
    expect_fields(j, "step generation state bytes shards shards_in verified pinned stall_seconds write_seconds created "
                     "parameter_hash state_hash manifest_sha256 folder message");
    cr_assert_eq(number(j, "step"), 1000);
    cr_assert_eq(number(j, "shards"), 4);
    cr_assert(json_is_true(json_object_get(j, "verified")) && json_is_null(json_object_get(j, "pinned")));
    cr_assert_str_eq(json_string_value(json_object_get(j, "manifest_sha256")),
                     "ab010000000000000000000000000000000000000000000000000000000000cd");
    cr_assert_eq(number(json_object_get(o, "saving"), "shards_in"), 3);
    cr_assert_str_eq(json_string_value(json_object_get(o, "resumed_from")), "run base (01B) step 7");
    json_decref(o);
}

Test(json, number_formats) {
    Zt__DtypesReport r = ZT__DTYPES_REPORT__INIT;
    Zt__DtypeRow a = ZT__DTYPE_ROW__INIT, b = ZT__DTYPE_ROW__INIT, *rows[2] = {&a, &b};
    a.what = (char *)(uintptr_t)"gathered";
    a.configured = a.stored = a.used = (char *)(uintptr_t)"bf16";
    b.what = (char *)(uintptr_t)"master";
    r.rank = 3;
    r.step = 1;
    r.recipe = (char *)(uintptr_t)"fsdp_mixed";
    r.rows = rows;
    r.n_rows = 2;
    json_t *o = zt_json_dtypes(&r), *types = json_object_get(o, "types");
    expect_fields(o, "rank step recipe types compute kernels");
    expect_fields(json_array_get(types, 0), "what configured stored used");
    cr_assert_str_eq(json_string_value(json_object_get(json_array_get(types, 0), "used")), "bf16");
    cr_assert(json_is_null(json_object_get(json_array_get(types, 1), "stored")));
    cr_assert(json_is_null(json_object_get(o, "compute")));
    json_decref(o);
}

Test(json, memory_row) {
    Zt__WindowPeak w = ZT__WINDOW_PEAK__INIT;
    Zt__MemoryRow m = ZT__MEMORY_ROW__INIT;
    report(); /* fills tags */
    w.phase_of_peak = (char *)(uintptr_t)"forward";
    w.at_peak = &tags;
    w.persistent = &tags;
    m.window = (char *)(uintptr_t)"steady";
    m.measured = &w;
    json_t *p = json_pack("{s:i}", "peak_allocated_bytes", 5), *both = zt_json_memory(&m, p);
    expect_fields(both, "rank window predicted measured");
    cr_assert(json_equal(json_object_get(both, "predicted"), p));
    json_decref(both);
    json_decref(p);
    json_t *o = zt_json_memory(&m, NULL);
    expect_fields(o, "rank window predicted measured");
    cr_assert(json_is_null(json_object_get(o, "predicted")));
    expect_fields(json_object_get(o, "measured"),
                  "peak_allocated_bytes peak_reserved_bytes phase_of_peak at_peak persistent_bytes");
    expect_fields(json_object_get(json_object_get(o, "measured"), "persistent_bytes"),
                  "parameters gradients optimizer");
    json_decref(o);
}

Test(json, times) {
    cr_assert(json_is_null(zt_json_time(0)));
    json_t *t = zt_json_time(1);
    cr_assert_str_eq(json_string_value(t), "1970-01-01T00:00:00.001Z");
    json_decref(t);
    t = zt_json_time(951782400000); /* 29 February 2000 */
    cr_assert_str_eq(json_string_value(t), "2000-02-29T00:00:00.000Z");
    json_decref(t);
}

/* A model that knows nothing of 256 equally likely bytes: loss ln 256, perplexity 256. */
Test(json, perplexity_is_exp_of_the_loss) {
    Zt__StepReport r = report();
    Zt__StepRow row = ZT__STEP_ROW__INIT;
    r.has_eval_loss = true;
    r.eval_loss = 5.545177444479562;
    row.max = &r;
    json_t *o = zt_json_step("01ABC", &row);
    double d = number(o, "eval_perplexity") - 256.0;
    cr_assert(d < 1e-9 && d > -1e-9, "%.12f", number(o, "eval_perplexity"));
    json_decref(o);
}
