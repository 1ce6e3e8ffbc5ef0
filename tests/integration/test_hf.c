/* SPDX-License-Identifier: Apache-2.0 */
/* Out to Hugging Face's format and in again with real daemons: a run's checkpoint by RUN@STEP, a new run that begins
 * from what was exported, adapters on top of it, and texts from all of them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/integration/harness.h"

static struct cluster c;

#define SAVES "checkpoint: {folder: saved, interval: 10, keep_latest_k: 0}\nmetrics: {parameter_hash_every: 1}\n"

static void started(void) {
    cluster_init(&c);
    cluster_start(&c, 2);
}
static void ended(void) { cluster_stop(&c); }

/* zctl must end with that code; what it said, to be freed. */
static struct output typed(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static struct output typed(int code, const char *fmt, ...) {
    char command[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    struct output out = zctl(&c, 60, "%s", command);
    cr_assert_eq(out.code, code, "%s: exit %d\n%s%s", command, out.code, out.out, out.err);
    return out;
}

static void expect_said(int code, const char *wanted, const char *command) {
    struct output out = typed(code, "%s", command);
    cr_expect(strstr(out.out, wanted) || strstr(out.err, wanted), "%s: \"%s\" is not in\n%s%s", command, wanted, out.out, out.err);
    output_free(&out);
}

static const char *at(const char *fmt, const char *a, const char *b) {
    static char text[8][1024];
    static int turn;
    char *to = text[turn++ % 8];
    snprintf(to, sizeof text[0], fmt, a, b);
    return to;
}

/* The parameters' hash after the last step of a run. */
static void hash_of(const char *run, char hash[40]) {
    json_t *list = zctl_json(&c, "checkpoint ls %s", run);
    const char *text = json_string_value(json_object_get(json_array_get(json_object_get(list, "checkpoints"), 0), "parameter_hash"));
    cr_assert_not_null(text, "%s has no checkpoint", run);
    snprintf(hash, 40, "%s", text);
    json_decref(list);
}

Test(hf, out_and_in_again, .init = started, .fini = ended, .timeout = 300) {
    char hash[40], base[512], adapter[512], merged[512], made[512];
    snprintf(base, sizeof base, "%s/base-hf", c.dir);
    snprintf(adapter, sizeof adapter, "%s/adapter", c.dir);
    snprintf(merged, sizeof merged, "%s/merged", c.dir);
    snprintf(made, sizeof made, "%s/made", c.dir);
    struct output out = typed(0, "submit %s", cluster_run_file(&c, "base", 20, 2, SAVES));
    output_free(&out);
    wait_run(&c, "base", "SUCCEEDED", 60);
    hash_of("base", hash);
    expect_said(0, "1 file, from", at("export base@20 %s%s", base, ""));
    expect_said(5, "is there already", at("export base %s%s", base, ""));
    expect_said(3, "no checkpoint of step 7", at("export base@7 %s%s", base, "-7"));
    /* what was exported is what the ranks hashed */
    out = typed(0, "import %s --out %s -o json", base, made);
    cr_expect(strstr(out.out, hash), "%s is not in %s", hash, out.out);
    output_free(&out);
    /* the same text from the run, the folder and the import */
    out = typed(0, "sample base@20 --prompt Permission --tokens 24");
    cr_expect(strncmp(out.out, "Permission", 10) == 0 && strlen(out.out) >= 24, "%s", out.out);
    const char *const places[] = {base, made};
    for (int i = 0; i < 2; i++) {
        struct output same = typed(0, "sample %s --prompt Permission --tokens 24", places[i]);
        cr_expect_str_eq(same.out, out.out, "%s", places[i]);
        output_free(&same);
    }
    output_free(&out);
    /* a run that begins from it, with adapters; its base does not move */
    out = typed(0, "submit %s --set model.init_from=%s --set training.lora.rank=2 --set training.lora.alpha=4 "
                "--set training.lora.targets=[\"*.c_attn\"]", cluster_run_file(&c, "lora", 10, 2, SAVES), base);
    output_free(&out);
    wait_run(&c, "lora", "SUCCEEDED", 60);
    expect_said(0, base, "events lora");
    expect_said(0, "PEFT", at("export lora %s%s", adapter, ""));
    expect_said(0, "in fp32", at("export lora %s --merge-lora%s", merged, ""));
    struct stat st;
    cr_expect_eq(stat(at("%s/%s", adapter, "adapter_config.json"), &st), 0);
    cr_expect_eq(stat(at("%s/%s", merged, "config.json"), &st), 0);
    out = typed(0, "sample lora --prompt Permission --tokens 8");
    struct output same = typed(0, "sample %s --prompt Permission --tokens 8", merged);
    cr_expect_str_eq(out.out, same.out);
    output_free(&out);
    output_free(&same);
}
