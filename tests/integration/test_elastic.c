/* SPDX-License-Identifier: Apache-2.0 */
/* A run with workers: {min: 2, max: 4} on real processes. Workers that go away for good make it go on with fewer from
 * its last checkpoint, workers that come make its next formation larger; the global batch and the samples of every
 * step stay, losses agree with a run of four from beginning to end, and below the least number it waits. */
#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/integration/trial.h"

#define STEPS 150

struct step { char samples[20]; double loss; int64_t batch; };

static void submit(struct cluster *c, const char *name, const char *workers) {
    char text[2048], file[512], data[400];
    snprintf(data, sizeof data, "%s", cluster_data(c));
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: %s\n"
             "model: {family: gpt2, layers: 2, heads: 4, dim: 64, vocab_size: 256, seq_len_max: 64, dropout: 0.1}\n"
             "dataset: {path: %s, tokenizer: bytes}\n"
             "training: {steps: %d, seq_len: 64, local_batch_size: 2, global_batch_size: 8, seed: 7}\n"
             "parallelism: {mode: fsdp}\nprecision: {recipe: fp32}\n"
             "checkpoint: {folder: %s/checkpoints, interval: 10}\n",
             name, workers, data, STEPS, c->dir);
    snprintf(file, sizeof file, "%s.yaml", name);
    struct output o = zctl(c, 30, "submit %s", cluster_file(c, file, text));
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
}

static void read_steps(struct cluster *c, const char *name, struct step *steps) {
    json_t *rows = zctl_jsonl(c, "metrics %s", name);
    cr_assert_eq(json_array_size(rows), STEPS, "%s: %zu rows", name, json_array_size(rows));
    for (int i = 0; i < STEPS; i++) {
        const json_t *r = json_array_get(rows, (size_t)i);
        const char *h = json_string_value(json_object_get(r, "sample_hash"));
        cr_assert(h, "%s: step %d has no sample_hash", name, i + 1);
        cr_assert_eq(json_integer_value(json_object_get(r, "step")), (json_int_t)i + 1);
        snprintf(steps[i].samples, sizeof steps[i].samples, "%s", h);
        steps[i].loss = json_number_value(json_object_get(r, "loss"));
        steps[i].batch = json_integer_value(json_object_get(r, "global_batch"));
    }
    json_decref(rows);
}

/* Ranks of a generation, as status has them; of the newest. */
static int ranks(struct cluster *c, const char *name, int64_t *generation) {
    json_t *s = zctl_json(c, "status %s", name);
    int n = (int)json_array_size(json_object_get(s, "ranks"));
    *generation = json_integer_value(json_object_get(s, "generation"));
    json_decref(s);
    return n;
}

static void check(struct cluster *c, const char *name, const struct step *base, int world) {
    static struct step steps[STEPS];
    int64_t generation;
    wait_run(c, name, "SUCCEEDED", 300);
    cr_expect_eq(ranks(c, name, &generation), world, "%s", name);
    cr_expect_eq(generation, 2, "%s: generation %d", name, (int)generation);
    read_steps(c, name, steps);
    for (int i = 0; i < STEPS; i++) {
        cr_assert_str_eq(steps[i].samples, base[i].samples, "%s: step %d saw other samples", name, i + 1);
        cr_assert_eq(steps[i].batch, 8, "%s: step %d", name, i + 1);
        cr_assert_float_eq(steps[i].loss, base[i].loss, 1e-3 * base[i].loss, "%s: step %d: %.9g, not %.9g", name, i + 1,
                           steps[i].loss, base[i].loss);
    }
}

static void end_worker(struct cluster *c, int i) {
    kill(c->worker[i], SIGKILL);
    waitpid(c->worker[i], NULL, 0);
    c->worker[i] = 0;
}

struct state { struct cluster *c; const char *run, *want; };
static bool is_in(void *arg) {
    struct state *s = arg;
    char state[64];
    int64_t step;
    run_state(s->c, s->run, state, sizeof state, &step);
    return strcmp(state, s->want) == 0;
}

Test(elastic, fewer_and_more_workers) {
    static struct step base[STEPS];
    struct cluster c = {0};
    cluster_start(&c, 4);
    submit(&c, "base", "4");
    wait_run(&c, "base", "SUCCEEDED", 300);
    read_steps(&c, "base", base);

    /* one of four goes for good: three divide 8 sequences in batches of 2 nowhere, two do */
    submit(&c, "fewer", "{min: 2, max: 4}");
    wait_step(&c, "fewer", 15, 120);
    end_worker(&c, 3);
    check(&c, "fewer", base, 2);

    /* a second and a third: one worker is too few, so it waits until there are two */
    cluster_start_worker(&c, 3, NULL);
    cluster_wait_idle(&c, 4);
    submit(&c, "waits", "{min: 2, max: 4}");
    wait_step(&c, "waits", 15, 120);
    end_worker(&c, 3);
    end_worker(&c, 2);
    end_worker(&c, 1);
    struct state s = {&c, "waits", "RESTARTING"};
    wait_for(is_in, &s, 60, "the run to wait for workers");
    cluster_start_worker(&c, 1, NULL);
    wait_run(&c, "waits", "SUCCEEDED", 300);
    int64_t generation;
    cr_expect_eq(ranks(&c, "waits", &generation), 2);
    static struct step steps[STEPS];
    read_steps(&c, "waits", steps);
    for (int i = 0; i < STEPS; i++) cr_assert_str_eq(steps[i].samples, base[i].samples, "step %d", i + 1);

    /* begun with two; the next formation takes the two that have come */
    submit(&c, "more", "{min: 2, max: 4}");
    wait_step(&c, "more", 15, 120);
    cr_expect_eq(ranks(&c, "more", &generation), 2);
    cluster_start_worker(&c, 2, NULL);
    cluster_start_worker(&c, 3, NULL);
    cluster_wait_idle(&c, 2);
    pid_t child = trainer_of(c.worker[0]);
    cr_assert_gt(child, 0);
    kill(child, SIGKILL);
    check(&c, "more", base, 4);
    cluster_stop(&c);
}
