/* SPDX-License-Identifier: Apache-2.0 */
/* A run that saves every step, in this process and without Criterion: for ThreadSanitizer, which sees the
 * step loop and the writer's thread share the buffer, the position and the progress page. */
#include "engine/train.h"
#include "tests/engine/data_util.h"

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s: ", #condition);                                                   \
            fprintf(stderr, __VA_ARGS__);                                                          \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int steps, commits;

static int on_step(void *arg, const struct zt_step_report *r, struct zt_error *err) {
    (void)arg, (void)r, (void)err;
    steps++;
    return 0;
}

/* On the writer's thread; read when that is over. */
static int on_commit(void *arg, const struct zt_commit *c, int64_t **remove, int *n,
                     struct zt_error *err) {
    (void)arg, (void)c, (void)remove, (void)err;
    commits++;
    *n = 0;
    return 0;
}

int main(void) {
    static struct zt_spec spec;
    static struct zt_progress progress;
    struct zt_error err = {0};
    struct zt_train_result result;
    char text[1024];
    data_setup();
    int n = snprintf(text, sizeof text,
                     "version: 1\nname: t\nmodel: {preset: gpt2-nano, layers: 1, dim: 32, heads: 2, seq_len_max: 32}\n"
                     "dataset: {path: %s}\ntraining: {steps: 8, seq_len: 16, local_batch_size: 2}\n"
                     "checkpoint: {interval: 1}\n",
                     data_text("train.txt", 4000, 7));
    CHECK(zt_spec_parse(text, (size_t)n, "t", NULL, 0, &spec, &err) == 0, "%s\n", err.msg);
    CHECK(zt_spec_resolve(&spec, 1, "t", &err) == 0, "%s\n", err.msg);
    struct zt_checkpoint_config k = {.folder = data_path("saved"), .run_id = "r", .hooks = {.commit = on_commit}};
    struct zt_train_config c = {.spec = &spec,
                                .world = 1,
                                .generation = 1,
                                .device = "cpu",
                                .kernels = &zt_kernels_cpu,
                                .capacity_bytes = (int64_t)128 << 20,
                                .threads = 2,
                                .progress = &progress,
                                .checkpoint = &k};
    struct zt_train_hooks h = {.step = on_step};
    CHECK(zt_train(&c, &h, &result, &err) == 0, "%s\n", err.msg);
    CHECK(steps == 8, "%d\n", steps);
    CHECK(commits >= 2 && commits <= 8, "%d: the first and the last at least\n", commits);
    zt_spec_free(&spec);
    data_teardown();
    return 0;
}
