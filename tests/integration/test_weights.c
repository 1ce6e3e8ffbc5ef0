/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that begin from weights alone, on real daemons: from another run by name and step, from its folder, and
 * with checkpoint.load; on other workers, in another mode and recipe. They begin anew and are never called a
 * resume; a restart before their first checkpoint begins with the same weights once more. */
#include <criterion/criterion.h>
#include <string.h>
#include "tests/integration/harness.h"

static struct cluster c;

/* The first save of a run and its last one are taken whatever the speed of the disk. */
#define SAVES "checkpoint: {folder: saved, interval: 10, keep_latest_k: 0}\nmetrics: {parameter_hash_every: 1}\n"
/* No parameter moves at this rate: the hash after a step is that of what was loaded. */
#define STILL "optimizer: {lr: 1.0e-30, weight_decay: 0}\nmetrics: {parameter_hash_every: 1}\n"

static void ok(const char *what, struct output o) {
    cr_assert_eq(o.code, 0, "%s: exit %d\n%s%s", what, o.code, o.out, o.err);
    output_free(&o);
}

static json_t *step_row(const char *run, int64_t step) {
    json_t *rows = zctl_jsonl(&c, "metrics %s", run), *row, *found = NULL;
    size_t i;
    json_array_foreach(rows, i, row)
        if (json_integer_value(json_object_get(row, "step")) == step)
            found = json_incref(row);
    json_decref(rows);
    cr_assert(found, "%s has no step %lld", run, (long long)step);
    return found;
}

static int events_of(const char *run, const char *kind) {
    json_t *rows = zctl_jsonl(&c, "events %s", run), *row;
    size_t i;
    int n = 0;
    json_array_foreach(rows, i, row)
        n += strcmp(json_string_value(json_object_get(row, "kind")), kind) == 0;
    json_decref(rows);
    return n;
}

/* It began at step 1 with these parameters. */
static void began_with(const char *run, const char *hash) {
    wait_run(&c, run, "SUCCEEDED", 90);
    json_t *first = step_row(run, 1);
    cr_assert_str_eq(json_string_value(json_object_get(first, "parameter_hash")), hash, "%s", run);
    cr_assert_eq(events_of(run, "WEIGHTS_LOADED"), 1, "%s", run);
    cr_assert_eq(events_of(run, "RESUMED"), 0, "%s", run);
    json_decref(first);
}

Test(weights, begin_anew_with_what_another_run_learned, .timeout = 300) {
    cluster_init(&c);
    cluster_start(&c, 2);
    ok("base", zctl(&c, 60, "submit %s", cluster_run_file(&c, "base", 20, 2, SAVES)));
    wait_run(&c, "base", "SUCCEEDED", 90);
    json_t *tenth = step_row("base", 10), *list = zctl_json(&c, "checkpoint ls base");
    const char *hash = json_string_value(json_object_get(tenth, "parameter_hash")),
               *folder = json_string_value(json_object_get(list, "folder"));
    char id[64], set[1024];
    json_t *status = zctl_json(&c, "status base");
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(status, "run")));
    snprintf(set, sizeof set, "model.init_from=run:%s@10", id);
    ok("by name", zctl(&c, 60, "submit %s --set %s", cluster_run_file(&c, "named", 3, 1, STILL), set));
    began_with("named", hash);
    ok("in another form",
       zctl(&c, 60, "submit %s --set %s",
            cluster_run_file(&c, "other", 3, 2, STILL "precision: {recipe: mixed16, reduce_dtype: fp32}\nparallelism: {mode: zero2}\n"),
            set));
    began_with("other", hash);
    snprintf(set, sizeof set, "model.init_from=%s/step-00000010", folder);
    ok("by folder", zctl(&c, 60, "submit %s --set %s", cluster_run_file(&c, "folder", 3, 2, STILL "parallelism: {mode: fsdp}\n"), set));
    began_with("folder", hash);
    ok("weights_only",
       zctl(&c, 60, "submit %s --resume base@10",
            cluster_run_file(&c, "only", 3, 2, "optimizer: {lr: 1.0e-30, weight_decay: 0}\nmetrics: {parameter_hash_every: 1}\n"
                                               "checkpoint: {interval: 3, load: weights_only}\n")));
    began_with("only", hash);
    struct output o = zctl(&c, 30, "status only");
    cr_assert(strstr(o.out, "weights") && strstr(o.out, "base"), "status says so:\n%s", o.out);
    output_free(&o);
    json_decref(status);
    json_decref(list);
    json_decref(tenth);
    cluster_stop(&c);
}
