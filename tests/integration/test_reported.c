/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that users of other trainers reported, tried on real daemons: each test carries the number of its
 * fault (B01 ...; docs/tests.md lists them with the unit tests). Also the memory figures and the ends of a
 * run that does not fit, as a user sees them. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/rng.h"
#include "tests/integration/harness.h"

#define T 16 /* tokens of a row, unless a test says otherwise */

/* ------------------------------------------------------------------------------------ helpers */

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    cr_assert(json_is_number(v), "%s is not a number in %s", key, json_dumps(row, JSON_COMPACT));
    return json_number_value(v);
}
static const char *text_of(json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    cr_assert(s != NULL, "%s is not a text in %s", key, json_dumps(row, JSON_COMPACT));
    return s;
}

/* Seconds since 1970 of a time as zctl writes it. */
static double seconds_of(const char *iso) {
    struct tm t = {0};
    const char *rest = strptime(iso, "%Y-%m-%dT%H:%M:%S", &t);
    cr_assert(rest != NULL, "%s", iso);
    return (double)timegm(&t) + (*rest == '.' ? strtod(rest, NULL) : 0);
}

static void expect(struct output o, int code, const char *text, const char *what) {
    cr_expect_eq(o.code, code, "%s: exit %d, wanted %d: %s%s", what, o.code, code, o.out, o.err);
    cr_expect(strstr(o.err, text) != NULL || strstr(o.out, text) != NULL, "%s: no '%s' in: %s%s", what, text,
              o.out, o.err);
    output_free(&o);
}

/* n bytes of text drawn from a seed. */
static const char *data_file(struct cluster *c, const char *name, size_t n, uint64_t seed) {
    static char path[4][400];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 400, "%s/%s", c->dir, name);
    FILE *f = fopen(p, "w");
    cr_assert(f != NULL, "%s: %s", p, strerror(errno));
    for (size_t i = 0; i < n; i++) {
        uint32_t w[4];
        zt_rng_words(seed, ZT_RNG_TEST, 0, 0, i, w);
        fputc(w[0] % 7 == 0 ? ' ' : (int)('a' + w[1] % 26), f);
    }
    fclose(f);
    return p;
}

#define SMALL "model: {family: gpt2, layers: 2, heads: 2, dim: 32, vocab_size: 256, seq_len_max: 64}\n"
#define NANO "model: {preset: gpt2-nano}\n"

/* A run file: sections as given, ddp. */
static const char *run_file(struct cluster *c, const char *name, int workers, const char *model, const char *data,
                            const char *more) {
    char text[4096], file[80];
    snprintf(text, sizeof text,
             "version: 1\nname: %s\nworkers: %d\n%sdataset: {path: %s, tokenizer: bytes, shuffle: false}\n%s", name,
             workers, model, data, more);
    snprintf(file, sizeof file, "%s.yaml", name);
    return cluster_file(c, file, text);
}

static void submit(struct cluster *c, const char *file) {
    struct output o = zctl(c, 30, "submit %s", file);
    cr_assert_eq(o.code, 0, "submit: exit %d: %s", o.code, o.err);
    output_free(&o);
}

/* Submits, waits for SUCCEEDED and returns the rows. */
static json_t *rows_of(struct cluster *c, const char *name, const char *file) {
    submit(c, file);
    wait_run(c, name, "SUCCEEDED", 120);
    return zctl_jsonl(c, "metrics %s", name);
}

static json_t *attempt(json_t *status, size_t i) {
    json_t *a = json_array_get(json_object_get(status, "attempts"), i);
    cr_assert(a != NULL, "no attempt %zu in %s", i, json_dumps(status, JSON_COMPACT));
    return a;
}

/* ------------------------------------------------------------------------------------ numerics */

/* The learning rate of these runs is below half a unit in the last place of every weight: parameters never
 * move, so the gradient of a window is a function of its rows alone and windows of different runs compare. */
#define STILL "optimizer: {lr: 1.0e-30, weight_decay: 0}\nmetrics: {parameter_hash_every: 1}\n"

/* B01, B03: a window is weighted by its tokens, whatever micro-batches, ranks and tails it is cut into. */
Test(reported, B01_B03_tokens_weigh_the_same_however_a_window_is_cut) {
    struct cluster c;
    char file[512], data[512];
    cluster_start(&c, 3);
    /* ten micro-batches, accumulation 4: the last window has two, and is that of accumulation 2 bit by bit */
    snprintf(data, sizeof data, "%s", data_file(&c, "ten.txt", 10 * T + 1, 3));
    snprintf(file, sizeof file, "%s", run_file(&c, "four", 1, SMALL, data,
             "training: {epochs: 1, seq_len: 16, local_batch_size: 1, global_batch_size: 4}\n" STILL));
    json_t *four = rows_of(&c, "four", file);
    snprintf(file, sizeof file, "%s", run_file(&c, "two", 1, SMALL, data,
             "training: {epochs: 1, seq_len: 16, local_batch_size: 1, global_batch_size: 2}\n" STILL));
    json_t *two = rows_of(&c, "two", file);
    cr_assert_eq(json_array_size(four), 3);
    cr_assert_eq(json_array_size(two), 5);
    json_t *tail = json_array_get(four, 2), *same = json_array_get(two, 4);
    cr_expect_eq(number(tail, "global_batch"), 2);
    cr_expect_eq(number(tail, "loss"), number(same, "loss"));
    cr_expect_eq(number(tail, "grad_norm"), number(same, "grad_norm"));
    cr_expect_neq(number(tail, "grad_norm"), number(json_array_get(two, 3), "grad_norm"), "other rows");
    json_decref(four);
    json_decref(two);

    /* eleven rows by four: the tail's three rows as micro-batches of 1 + 1 + 1 and of 2 + 1 (a mean of means
     * weighs the lone row too much); ten rows by four on two ranks, one of the tail's two rows on each */
    char eleven[600];
    snprintf(eleven, sizeof eleven, "%s, drop_last: false", data_file(&c, "eleven.txt", 11 * T + 1, 4));
    static const struct { const char *name; int workers, local, tail; } cut[] = {
        {"cut-1x1", 1, 1, 3}, {"cut-1x2", 1, 2, 3}, {"cut-1x4", 1, 4, 3}, {"ten-1x1", 1, 1, 2}, {"ten-2x1", 2, 1, 2}};
    double loss[3] = {0}, norm[3] = {0};
    for (size_t k = 0; k < sizeof cut / sizeof cut[0]; k++) {
        char more[400];
        snprintf(more, sizeof more,
                 "training: {epochs: 1, seq_len: 16, local_batch_size: %d, global_batch_size: 4}\n" STILL, cut[k].local);
        snprintf(file, sizeof file, "%s", run_file(&c, cut[k].name, cut[k].workers, SMALL, cut[k].tail == 3 ? eleven : data, more));
        json_t *rows = rows_of(&c, cut[k].name, file);
        cr_assert_eq(json_array_size(rows), 3, "%s", cut[k].name);
        const int batch[] = {4, 4, cut[k].tail};
        for (size_t i = 0; i < 3; i++) {
            json_t *r = json_array_get(rows, i);
            if (k == 0 || cut[k].tail != cut[k - 1].tail) {
                loss[i] = number(r, "loss");
                norm[i] = number(r, "grad_norm");
            }
            cr_expect_eq(number(r, "global_batch"), batch[i], "%s step %zu", cut[k].name, i + 1);
            cr_expect_eq(number(r, "tokens_supervised"), batch[i] * T, "%s step %zu", cut[k].name, i + 1);
            cr_expect_leq(fabs(number(r, "loss") / loss[i] - 1), 1e-6, "%s step %zu: loss %.9f, cut 1x1 %.9f",
                          cut[k].name, i + 1, number(r, "loss"), loss[i]);
            cr_expect_leq(fabs(number(r, "grad_norm") / norm[i] - 1), 1e-5, "%s step %zu: norm %.9f, cut 1x1 %.9f",
                          cut[k].name, i + 1, number(r, "grad_norm"), norm[i]);
        }
        json_decref(rows);
    }
    cluster_stop(&c);
}

/* B05: replicas x shard degree 1, no seed in the file: all ranks start equal, stay equal, and train together. */
Test(reported, B05_replicas_of_a_shard_axis_of_one_train_together) {
    struct cluster c;
    char file[512], data[512];
    cluster_start(&c, 4);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 400 * T + 1, 5));
    double loss[10] = {0};
    for (int world = 1; world <= 4; world += 3) {
        char name[16], more[500];
        snprintf(name, sizeof name, "world%d", world);
        snprintf(more, sizeof more,
                 "training: {steps: 10, seq_len: 16, local_batch_size: %d, global_batch_size: 8}\n"
                 "parallelism: {data_parallel_replicate_degree: %d, data_parallel_shard_degree: 1}\n"
                 "metrics: {parameter_hash_every: 1}\n", 8 / world, world);
        snprintf(file, sizeof file, "%s", run_file(&c, name, world, SMALL, data, more));
        json_t *rows = rows_of(&c, name, file), *ranks = zctl_jsonl(&c, "metrics %s --rank all", name);
        cr_assert_eq(json_array_size(rows), 10);
        cr_assert_eq(json_array_size(ranks), 10 * (size_t)world);
        char hash[10][40] = {{0}};
        size_t i;
        json_t *r;
        for (i = 0; i < 10; i++) {
            double l = number(json_array_get(rows, i), "loss");
            if (world == 1) loss[i] = l;
            cr_expect_leq(fabs(l / loss[i] - 1), 1e-6, "world %d step %zu: %.9f, alone %.9f", world, i + 1, l, loss[i]);
        }
        int locals = 0; /* ranks whose own loss is not the global one: they see data of their own */
        json_array_foreach(ranks, i, r) {
            size_t s = (size_t)number(r, "step") - 1;
            cr_assert_eq(strlen(text_of(r, "parameter_hash")), 32);
            if (hash[s][0] == 0) snprintf(hash[s], sizeof hash[s], "%s", text_of(r, "parameter_hash"));
            cr_expect_str_eq(text_of(r, "parameter_hash"), hash[s], "world %d step %zu rank %.0f", world, s + 1,
                             number(r, "rank"));
            locals += number(r, "local_loss") != number(r, "loss");
        }
        if (world == 4) cr_expect_eq(locals, 40);
        for (i = 1; i < 10; i++) cr_expect_str_neq(hash[i], hash[i - 1], "step %zu changed nothing", i + 1);
        json_decref(rows);
        json_decref(ranks);
    }
    cluster_stop(&c);
}

/* B41: ten rows evaluated by 1, 2, 3 and 4 ranks are ten rows and one loss; five on two are five. */
Test(reported, B41_evaluation_counts_every_row_once) {
    struct cluster c;
    char file[512], data[512], ten[512], five[512];
    cluster_start(&c, 4);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 200 * T + 1, 5));
    snprintf(ten, sizeof ten, "%s", data_file(&c, "ten.txt", 10 * T + 1, 6));
    snprintf(five, sizeof five, "%s", data_file(&c, "five.txt", 5 * T + 1, 6));
    double loss[2] = {0};
    for (int k = 0; k < 5; k++) {
        int world = k < 4 ? k + 1 : 2, rows = k < 4 ? 10 : 5;
        char name[16], more[800];
        snprintf(name, sizeof name, "eval%d", k);
        snprintf(more, sizeof more,
                 "training: {steps: 2, seq_len: 16, local_batch_size: %d, global_batch_size: 12}\n"
                 "validation: {path: %s, every_steps: 1}\n" STILL, world == 1 ? 4 : world == 2 ? 3 : world == 3 ? 2 : 1,
                 rows == 10 ? ten : five);
        snprintf(file, sizeof file, "%s", run_file(&c, name, world, SMALL, data, more));
        json_t *r = rows_of(&c, name, file);
        for (size_t i = 0; i < 2; i++) {
            json_t *row = json_array_get(r, i);
            cr_expect_eq(number(row, "eval_tokens"), rows * T, "world %d: %.0f tokens", world, number(row, "eval_tokens"));
            if (k == 0) loss[i] = number(row, "eval_loss");
            if (rows == 10)
                cr_expect_leq(fabs(number(row, "eval_loss") / loss[i] - 1), 1e-6, "world %d: %.9f, alone %.9f", world,
                              number(row, "eval_loss"), loss[i]);
        }
        cr_expect_eq(number(json_array_get(r, 0), "eval_loss"), number(json_array_get(r, 1), "eval_loss"),
                     "parameters stood still");
        json_decref(r);
    }
    cluster_stop(&c);
}

/* ------------------------------------------------------------------------------------ data */

/* B39: world 2, two rows of 64 a rank: 257 tokens are one batch; 256, 1 and 0 are refused with file and need. */
Test(reported, B39_short_data_is_refused_by_name) {
    struct cluster c;
    char file[512], path[400];
    cluster_start(&c, 2);
    const char *more = "training: {epochs: 1, seq_len: 64, local_batch_size: 2}\n";
    for (int bin = 0; bin < 2; bin++) {
        static const int sizes[] = {257, 256, 1, 0};
        for (int k = 0; k < 4; k++) {
            char base[32], name[32];
            snprintf(name, sizeof name, "%s%d", bin ? "bin" : "txt", sizes[k]);
            snprintf(base, sizeof base, "n%d.%s", sizes[k], bin ? "bin" : "txt");
            snprintf(path, sizeof path, "%s/%s", c.dir, base);
            FILE *f = fopen(path, "w");
            for (int i = 0; i < sizes[k]; i++) {
                fputc('a' + i % 26, f);
                if (bin) fputc(0, f); /* uint16, little-endian */
            }
            fclose(f);
            snprintf(file, sizeof file, "%s", run_file(&c, name, 2, SMALL, path, more));
            if (bin) {
                char text[2048];
                snprintf(text, sizeof text, "version: 1\nname: %s\nworkers: 2\n" SMALL
                         "dataset: {path: %s, tokenizer: none, shuffle: false}\n%s", name, path, more);
                snprintf(file, sizeof file, "%s", cluster_file(&c, "bin.yaml", text));
            }
            if (sizes[k] == 257) {
                json_t *rows = rows_of(&c, name, file);
                cr_expect_eq(json_array_size(rows), 1);
                cr_expect_eq(number(json_array_get(rows, 0), "tokens"), 256);
                json_decref(rows);
                continue;
            }
            struct output o = zctl(&c, 60, "submit -f %s", file);
            cr_expect(strstr(o.out, base) != NULL || strstr(o.err, base) != NULL, "%s: no %s in: %s%s", name, base, o.out, o.err);
            cr_expect(strstr(o.out, "257") != NULL || strstr(o.err, "257") != NULL, "%s: no 257 in: %s%s", name, o.out, o.err);
            expect(o, 1, "DATA_ERROR", name);
            json_t *s = zctl_json(&c, "status %s", name);
            cr_expect_eq(number(s, "generation"), 1, "%s: not retried", name);
            cr_expect_eq(number(s, "step"), 0, "%s: before step 1", name);
            json_decref(s);
        }
    }
    snprintf(path, sizeof path, "%s/none-*.bin", c.dir);
    snprintf(file, sizeof file, "%s", run_file(&c, "pattern", 2, SMALL, path, more));
    expect(zctl(&c, 60, "submit -f %s", file), 1, "none-*.bin", "a pattern that matches nothing");
    cluster_stop(&c);
}

/* ------------------------------------------------------------------------------------ memory */

/* gpt2-nano by hand: root 256 x 128 + 256 x 128 + 2 x 128, four blocks of 12 x 128^2 + 13 x 128; each unit's
 * buffer is a multiple of 512 bytes already. */
#define NANO_P (4 * ((256 + 256 + 2) * 128 + 4 * (12 * 128 * 128 + 13 * 128)))
static const char *const tags[] = {"parameters", "gradients", "optimizer", "activations", "temporary", "communication"};

static double tag_sum(json_t *tagged) {
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += number(tagged, tags[i]);
    return sum;
}

/* B33: peaks are per step, never below what lives, evaluation apart; P, G and O are the formulas. */
Test(reported, B33_peaks_are_per_step_and_hold_what_lives) {
    struct cluster c;
    char file[512], data[512], valid[512], more[800];
    cluster_start(&c, 2);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 20000, 5));
    snprintf(valid, sizeof valid, "%s", data_file(&c, "valid.txt", 2000, 6));
    snprintf(more, sizeof more,
             "training: {steps: 7, seq_len: 32, local_batch_size: 2, global_batch_size: 8}\n"
             "validation: {path: %s, every_steps: 3}\nmetrics: {warmup_steps: 2}\n", valid);
    snprintf(file, sizeof file, "%s", run_file(&c, "peaks", 2, NANO, data, more));
    json_decref(rows_of(&c, "peaks", file));
    json_t *ranks = zctl_jsonl(&c, "metrics peaks --rank all"), *r;
    double live[2] = {0}, second[2] = {0}, third[2] = {0};
    size_t i;
    cr_assert_eq(json_array_size(ranks), 14);
    for (int step = 1; step <= 7; step++)
        json_array_foreach(ranks, i, r) {
            if (number(r, "step") != step) continue;
            int k = (int)number(r, "rank");
            double peak = number(r, "peak_allocated_bytes"), end = number(r, "end_of_step_allocated_bytes");
            cr_expect_eq(tag_sum(json_object_get(r, "at_peak")), peak, "rank %d step %d", k, step);
            cr_expect_geq(peak, live[k], "rank %d step %d: peak below what was live at its start", k, step);
            cr_expect_geq(peak, NANO_P * 4, "rank %d step %d: parameters, gradients, m and v live at once", k, step);
            cr_expect_geq(number(r, "reserved_at_peak_bytes"), peak);
            cr_expect_leq(number(r, "reserved_at_peak_bytes"), number(r, "peak_reserved_bytes"));
            cr_expect_geq(end, NANO_P * 3, "parameters and the optimizer stay");
            if (step == 2) second[k] = end;
            if (step > 2) cr_expect_eq(end, second[k], "rank %d step %d: %.0f bytes stay, step 2 %.0f", k, step, end, second[k]);
            if (step == 3) third[k] = peak;
            if (step > 3) cr_expect_eq(peak, third[k], "rank %d step %d: a step's peak is its own", k, step);
            live[k] = end;
        }
    json_decref(ranks);

    json_t *memory = zctl_json(&c, "memory peaks");
    int seen[2] = {0};
    json_array_foreach(json_object_get(memory, "ranks"), i, r) {
        static const char *const windows[] = {"init", "first_step", "steady", "eval"};
        json_t *m = json_object_get(r, "measured"), *p = json_object_get(m, "persistent_bytes");
        const char *w = text_of(r, "window");
        for (int k = 0; k < 4; k++)
            if (strcmp(w, windows[k]) == 0) seen[(int)number(r, "rank")] |= 1 << k;
        cr_expect_eq(tag_sum(json_object_get(m, "at_peak")), number(m, "peak_allocated_bytes"), "%s", w);
        cr_expect_eq(number(p, "parameters"), NANO_P, "%s", w);
        cr_expect_eq(number(p, "optimizer"), 2 * NANO_P, "%s", w);
        if (strcmp(w, "steady") == 0 || strcmp(w, "first_step") == 0) cr_expect_eq(number(p, "gradients"), NANO_P, "%s", w);
        if (strcmp(w, "eval") == 0) {
            cr_expect_str_eq(text_of(m, "phase_of_peak"), "eval");
            cr_expect_eq(number(json_object_get(m, "at_peak"), "gradients"), 0);
        }
        if (strcmp(w, "steady") == 0) cr_expect_eq(number(m, "peak_allocated_bytes"), third[(int)number(r, "rank")]);
    }
    cr_expect_eq(seen[0], 15, "windows of rank 0: %d", seen[0]);
    cr_expect_eq(seen[1], 15, "windows of rank 1: %d", seen[1]);
    json_decref(memory);
    /* nine rows by four: the third step has one row, so its peak is lower than that of the second */
    char nine[600];
    snprintf(nine, sizeof nine, "%s, drop_last: false", data_file(&c, "nine.txt", 9 * 32 + 1, 5));
    snprintf(file, sizeof file, "%s", run_file(&c, "falls", 1, NANO, nine,
             "training: {epochs: 1, seq_len: 32, local_batch_size: 4}\n"));
    ranks = rows_of(&c, "falls", file);
    cr_assert_eq(json_array_size(ranks), 3);
    cr_expect_eq(number(json_array_get(ranks, 2), "global_batch"), 1);
    cr_expect_lt(number(json_array_get(ranks, 2), "peak_allocated_bytes"),
                 number(json_array_get(ranks, 1), "peak_allocated_bytes"), "a peak is of its step, not the highest so far");
    json_decref(ranks);
    json_t *events = zctl_jsonl(&c, "events peaks");
    json_array_foreach(events, i, r)
        cr_expect_str_neq(text_of(r, "kind"), "MEMORY_GROWTH", "nothing grows: %s", json_dumps(r, JSON_COMPACT));
    json_decref(events);
    cluster_stop(&c);
}

/* Every figure of an OOM_DEVICE report, and that they fit together. */
static void check_oom(json_t *status, double capacity, const char *phase, const char *tag) {
    cr_expect_str_eq(text_of(status, "state"), "FAILED");
    cr_expect_str_eq(text_of(status, "reason"), "OOM_DEVICE");
    cr_expect_eq(json_array_size(json_object_get(status, "attempts")), 1, "no retry");
    cr_expect_eq(number(status, "generation"), 1);
    json_t *a = attempt(status, 0), *o = json_object_get(a, "oom");
    cr_assert(json_is_object(o), "%s", json_dumps(a, JSON_COMPACT));
    cr_expect_geq(number(a, "rank"), 0);
    cr_expect_leq(number(a, "rank"), 1);
    cr_expect_str_eq(text_of(o, "phase"), phase);
    if (tag != NULL) cr_expect_str_eq(text_of(o, "tag"), tag);
    double request = number(o, "request_bytes"), reserved = number(o, "reserved_bytes");
    double allocated = number(o, "allocated_bytes"), largest = number(o, "largest_free_block_bytes");
    double split = number(o, "inactive_split_bytes");
    cr_expect_gt(request, 0);
    cr_expect_eq(number(o, "capacity_bytes"), capacity);
    cr_expect_eq(number(o, "free_device_bytes"), capacity - reserved);
    cr_expect_eq(tag_sum(json_object_get(o, "by_tag")), allocated, "the ledger sums to what is allocated");
    cr_expect_leq(allocated + largest, reserved);
    cr_expect_leq(allocated + split, reserved);
    /* a block that is big enough can only be one of the other pool: what lacks then is a segment */
    cr_expect_str_eq(text_of(o, "cause"), reserved - allocated >= request && largest < request ? "fragmentation" : "capacity");
    cr_expect_gt(strlen(text_of(o, "what")), 0);
    /* the words a person reads say the same */
    const char *words = text_of(a, "message");
    char number_text[6][48];
    snprintf(number_text[0], 48, "rank %.0f", number(a, "rank"));
    snprintf(number_text[1], 48, "asked for %.0f", request);
    snprintf(number_text[2], 48, "phase %s", phase);
    snprintf(number_text[3], 48, "largest free block %.0f", largest);
    snprintf(number_text[4], 48, "inactive_split %.0f", split);
    snprintf(number_text[5], 48, "cause: %s", text_of(o, "cause"));
    for (int i = 0; i < 6; i++) cr_expect(strstr(words, number_text[i]) != NULL, "no '%s' in: %s", number_text[i], words);
}

/* B53 (memory): too little memory is told in full, ends the run at once with exit code 1, and is not retried. */
Test(reported, B53_out_of_memory_is_told_in_full_and_never_retried) {
    struct cluster c;
    char file[512], data[512];
    cluster_init(&c);
    cluster_start_coord(&c);
    for (int i = 0; i < 2; i++) cluster_start_worker(&c, i, "--memory-gib 0.00390625"); /* 4 MiB */
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 20000, 5));
    const char *more = "training: {steps: 4, seq_len: 32, local_batch_size: 2}\nrestart: {max_restarts: 5}\n";
    /* parameters and m fit, v does not */
    snprintf(file, sizeof file, "%s", run_file(&c, "small", 2, NANO, data, more));
    expect(zctl(&c, 60, "submit --force -f %s", file), 1, "OOM_DEVICE", "submit -f");
    json_t *s = zctl_json(&c, "status small");
    check_oom(s, 4 << 20, "init", "optimizer");
    json_decref(s);
    /* no block at all is big enough for the first buffer: that is capacity, not fragmentation */
    snprintf(file, sizeof file, "%s", run_file(&c, "wide", 2,
             "model: {family: gpt2, layers: 1, heads: 2, dim: 512, vocab_size: 4096, seq_len_max: 64}\n", data, more));
    expect(zctl(&c, 60, "submit --force -f %s", file), 1, "capacity", "submit -f");
    s = zctl_json(&c, "status wide");
    check_oom(s, 4 << 20, "init", "parameters");
    cr_expect_str_eq(text_of(json_object_get(attempt(s, 0), "oom"), "cause"), "capacity");
    json_decref(s);
    cluster_stop(&c);

    /* the same through zctl run */
    cluster_init(&c);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 20000, 5));
    snprintf(file, sizeof file, "%s", run_file(&c, "alone", 2, NANO, data, more));
    expect(zctl(&c, 60, "run %s --force --workers 2 --memory-gib 0.00390625", file), 1, "OOM_DEVICE", "zctl run");
    s = zctl_json(&c, "--state %s/xdg/ztrain/local status alone", c.dir);
    check_oom(s, 4 << 20, "init", "optimizer");
    json_decref(s);
    cluster_stop(&c);
}

/* The step of the first failure that was recorded. */
static int failed_step(struct cluster *c) {
    char path[400];
    sqlite3 *db;
    sqlite3_stmt *q;
    snprintf(path, sizeof path, "%s/coord/ztrain.db", c->dir);
    cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    cr_assert_eq(sqlite3_prepare_v2(db, "SELECT step FROM failures WHERE oom IS NOT NULL", -1, &q, NULL), SQLITE_OK,
                 "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW);
    int step = sqlite3_column_int(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return step;
}

/* state_init lazy, capacity between the peak of backward (2 P and a little) and that of the update (4 P). */
Test(reported, lazy_state_runs_out_in_the_first_update) {
    struct cluster c;
    char file[512], data[512];
    cluster_init(&c);
    cluster_start_coord(&c);
    for (int i = 0; i < 2; i++) cluster_start_worker(&c, i, "--memory-gib 0.009765625"); /* 10 MiB */
    cr_assert(2 * NANO_P < 10 << 20 && 4 * NANO_P > 10 << 20);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 20000, 5));
    snprintf(file, sizeof file, "%s", run_file(&c, "lazy", 2, NANO, data,
             "training: {steps: 4, seq_len: 8, local_batch_size: 1}\noptimizer: {state_init: lazy}\n"));
    expect(zctl(&c, 60, "submit --force -f %s", file), 1, "OOM_DEVICE", "lazy");
    json_t *s = zctl_json(&c, "status lazy");
    check_oom(s, 10 << 20, "optimizer", "optimizer");
    json_t *by = json_object_get(json_object_get(attempt(s, 0), "oom"), "by_tag");
    cr_expect_eq(number(by, "parameters"), NANO_P);
    cr_expect_eq(number(by, "gradients"), NANO_P, "forward and backward went through");
    cr_expect_eq(failed_step(&c), 1, "in step 1");
    cr_expect_eq(number(s, "step"), 0, "no step was finished");
    cr_expect_eq(number(attempt(s, 0), "last_step"), 0, "by no rank");
    json_decref(s);
    /* eager: it does not get as far as step 1 */
    snprintf(file, sizeof file, "%s", run_file(&c, "eager", 2, NANO, data,
             "training: {steps: 4, seq_len: 8, local_batch_size: 1}\noptimizer: {state_init: eager}\n"));
    expect(zctl(&c, 60, "submit --force -f %s", file), 1, "OOM_DEVICE", "eager");
    s = zctl_json(&c, "status eager");
    check_oom(s, 10 << 20, "init", "optimizer");
    json_decref(s);
    cluster_stop(&c);
}

#ifdef ZT_FAILPOINTS
/* A block of 512 bytes that stays at every step from the third on is reported, with tag and bytes. */
Test(reported, planted_leak_is_an_event) {
    struct cluster c;
    char file[512], data[512];
    cluster_init(&c);
    cluster_start_coord(&c);
    cluster_start_worker(&c, 0, NULL);
    setenv("ZT_FAIL", "engine.leak:error", 1);
    cluster_start_worker(&c, 1, NULL);
    unsetenv("ZT_FAIL");
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 20000, 5));
    snprintf(file, sizeof file, "%s", run_file(&c, "leak", 2, SMALL, data,
             "training: {steps: 6, seq_len: 16, local_batch_size: 1}\n"));
    json_decref(rows_of(&c, "leak", file));
    json_t *s = zctl_json(&c, "status leak"), *events = zctl_jsonl(&c, "events leak"), *e;
    double rank = -1;
    size_t i;
    json_array_foreach(json_object_get(s, "ranks"), i, e)
        if (strstr(text_of(e, "worker"), "/w1") != NULL) rank = number(e, "rank");
    cr_assert_geq(rank, 0);
    int n = 0;
    static const int bytes[] = {512, 1024, 2048}, steps[] = {3, 4, 6}; /* told when it appears and when it has doubled */
    json_array_foreach(events, i, e) {
        if (strcmp(text_of(e, "kind"), "MEMORY_GROWTH") != 0) continue;
        char want[64];
        const char *m = text_of(e, "message");
        cr_assert_lt(n, 3, "one event too many: %s", m);
        cr_expect_eq(number(e, "rank"), rank);
        snprintf(want, sizeof want, "step %d:", steps[n]);
        cr_expect(strstr(m, want) != NULL, "no '%s' in: %s", want, m);
        snprintf(want, sizeof want, "tag activations +%d bytes", bytes[n]);
        cr_expect(strstr(m, want) != NULL, "no '%s' in: %s", want, m);
        n++;
    }
    cr_expect_eq(n, 3, "%d events", n);
    json_decref(s);
    json_decref(events);
    cluster_stop(&c);
}
#endif

/* ------------------------------------------------------------------------------------ processes */

struct gone { pid_t pid; };
static bool is_gone(void *arg) { return kill(((struct gone *)arg)->pid, 0) != 0 && errno == ESRCH; }

struct idle { struct cluster *c; int n; };
static bool all_idle(void *arg) {
    struct idle *w = arg;
    json_t *j = zctl_json(w->c, "workers"), *list = json_is_array(j) ? j : json_object_get(j, "workers"), *x;
    size_t i;
    int n = 0;
    json_array_foreach(list, i, x) n += strcmp(text_of(x, "state"), "IDLE") == 0;
    json_decref(j);
    return n == w->n;
}
static void wait_idle(struct cluster *c, int n) {
    struct idle w = {c, n};
    wait_for(all_idle, &w, 30, "workers to be idle");
}

/* The worker that holds a rank, by the name the harness gave it ("w2"). */
static int holder_of(struct cluster *c, const char *run, int rank) {
    json_t *s = zctl_json(c, "status %s", run), *r;
    size_t i;
    int w = -1;
    json_array_foreach(json_object_get(s, "ranks"), i, r)
        if (number(r, "rank") == rank) w = atoi(strrchr(text_of(r, "worker"), '/') + 2);
    json_decref(s);
    cr_assert(w >= 0 && w < c->workers, "rank %d of %s has no worker", rank, run);
    return w;
}

static void same_losses(json_t *a, json_t *b, const char *what) {
    cr_assert_eq(json_array_size(a), json_array_size(b), "%s: %zu rows, %zu", what, json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        cr_expect_eq(number(json_array_get(a, i), "loss"), number(json_array_get(b, i), "loss"), "%s: step %zu", what, i + 1);
}

/* B43: rank 1 of 4 dies: the others are stopped within 10 s, one restart, the same losses. */
Test(reported, B43_one_dead_rank_stops_the_others) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 4);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "base", 200, 4, ""));
    json_t *base = rows_of(&c, "base", file);
    wait_idle(&c, 4);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "dead", 200, 4, ""));
    submit(&c, file);
    wait_step(&c, "dead", 7, 60);
    struct gone child[4];
    int victim = holder_of(&c, "dead", 1);
    for (int i = 0; i < 4; i++) child[i].pid = trainer_of(c.worker[i]);
    cr_assert_gt(child[victim].pid, 0, "the run was over too soon");
    kill(child[victim].pid, SIGKILL);
    double end = now_s() + 10;
    for (int i = 0; i < 4; i++)
        if (child[i].pid > 0) wait_for(is_gone, &child[i], end - now_s(), "the other trainers to be stopped");
    wait_run(&c, "dead", "SUCCEEDED", 120);
    json_t *s = zctl_json(&c, "status dead"), *a = attempt(s, 0), *rows = zctl_jsonl(&c, "metrics dead");
    cr_expect_eq(json_array_size(json_object_get(s, "attempts")), 2, "one restart");
    cr_expect_eq(number(s, "generation"), 2);
    cr_expect_str_eq(text_of(a, "reason"), "KILLED");
    cr_expect_eq(number(a, "rank"), 1);
    cr_expect_leq(number(a, "detect_seconds") + number(a, "stop_seconds"), 10);
    same_losses(rows, base, "after the restart");
    json_decref(rows);
    json_decref(base);
    json_decref(s);
    cluster_stop(&c);
}

struct local_run { struct cluster *c; char file[512]; struct output o; pthread_t thread; };
static void *local_run(void *arg) {
    struct local_run *r = arg;
    r->o = zctl(r->c, 120, "run %s --workers 2 --memory-gib 0.125 --threads 1 -o json", r->file);
    return NULL;
}

/* B45: two jobs at once on one host do not meet: both end as they do alone. */
Test(reported, B45_two_runs_at_once_on_one_host) {
    struct cluster c;
    struct local_run r[4] = {{0}};
    char data[512];
    cluster_init(&c);
    snprintf(data, sizeof data, "%s", data_file(&c, "train.txt", 40000, 5));
    json_t *j[4];
    for (int k = 0; k < 4; k++) { /* 0 and 1 alone, 2 and 3 (the same jobs) together */
        char more[200];
        r[k].c = &c;
        snprintf(more, sizeof more, "training: {steps: 400, seq_len: 32, local_batch_size: 2, seed: %d}\n", k % 2 + 1);
        snprintf(r[k].file, sizeof r[k].file, "%s", run_file(&c, k % 2 ? "red" : "blue", 2, SMALL, data, more));
        cr_assert_eq(pthread_create(&r[k].thread, NULL, local_run, &r[k]), 0);
        if (k != 2) pthread_join(r[k].thread, NULL);
        if (k == 3) pthread_join(r[2].thread, NULL);
    }
    for (int k = 0; k < 4; k++) {
        cr_assert_eq(r[k].o.code, 0, "run %d: exit %d: %s", k, r[k].o.code, r[k].o.err);
        j[k] = json_loads(r[k].o.out, 0, NULL);
        cr_assert(j[k] != NULL, "%s", r[k].o.out);
        cr_expect_eq(number(j[k], "generation"), 1);
        cr_expect_eq(number(j[k], "steps"), 400);
    }
    for (int k = 0; k < 2; k++) {
        cr_expect_eq(number(j[k], "last_loss"), number(j[k + 2], "last_loss"), "loss alone and together");
        cr_expect_str_eq(text_of(j[k], "parameter_hash"), text_of(j[k + 2], "parameter_hash"));
    }
    cr_expect_str_neq(text_of(j[0], "parameter_hash"), text_of(j[1], "parameter_hash"), "two different jobs");
    cr_expect_str_neq(text_of(j[2], "state_folder"), text_of(j[3], "state_folder"), "folders of their own");
    double started[2], ended[2];
    for (int k = 0; k < 2; k++) {
        json_t *one = zctl_json(&c, "--state %s status %s", text_of(j[k + 2], "state_folder"), text_of(j[k + 2], "run"));
        started[k] = seconds_of(text_of(one, "started"));
        ended[k] = seconds_of(text_of(one, "ended"));
        json_decref(one);
    }
    cr_expect(started[0] < ended[1] && started[1] < ended[0], "one waited for the other: %.3f to %.3f, %.3f to %.3f",
              started[0], ended[0], started[1], ended[1]);
    for (int k = 0; k < 4; k++) {
        json_decref(j[k]);
        output_free(&r[k].o);
    }
    cluster_stop(&c);
}

/* B45: a worker that is stopped and comes back within 2 s costs one new generation, not the run. */
Test(reported, B45_a_quick_rejoin_is_one_new_generation) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 3); /* long runs: they must still go on when step 5 has been seen, on a busy machine too */
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "base", 800, 3, ""));
    json_t *base = rows_of(&c, "base", file);
    static const int sigs[] = {SIGTERM, SIGKILL};
    for (int k = 0; k < 2; k++) {
        char name[16];
        wait_idle(&c, 3);
        snprintf(name, sizeof name, "rejoin%d", k);
        snprintf(file, sizeof file, "%s", cluster_run_file(&c, name, 800, 3, ""));
        submit(&c, file);
        wait_step(&c, name, 5, 60);
        cr_assert_gt(trainer_of(c.worker[1]), 0, "the run was over too soon");
        kill(c.worker[1], sigs[k]);
        waitpid(c.worker[1], NULL, 0);
        cluster_start_worker(&c, 1, NULL);
        wait_run(&c, name, "SUCCEEDED", 120);
        json_t *s = zctl_json(&c, "status %s", name), *rows = zctl_jsonl(&c, "metrics %s", name);
        cr_expect_eq(number(s, "generation"), 2, "signal %d: generation %.0f", sigs[k], number(s, "generation"));
        if (sigs[k] == SIGTERM) cr_expect_str_eq(text_of(attempt(s, 0), "reason"), "DRAINED");
        cr_expect_eq(number(s, "restarts_counted"), 0, "not the run's fault");
        same_losses(rows, base, name);
        json_decref(s);
        json_decref(rows);
    }
    json_decref(base);
    cluster_stop(&c);
}

/* B47: 0 means done and nothing else. */
Test(reported, B47_exit_codes_tell_how_it_ended) {
    struct cluster c;
    char file[512];
    cluster_start(&c, 2);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "good", 3, 2, ""));
    expect(zctl(&c, 60, "submit -f %s", file), 0, "SUCCEEDED", "a good run");
    expect(zctl(&c, 30, "wait good"), 0, "", "wait for a good run");

    /* a data path that is not there */
    snprintf(file, sizeof file, "%s", run_file(&c, "nodata", 2, SMALL, "/nonexistent/corpus",
             "training: {steps: 2, seq_len: 32, local_batch_size: 2}\n"));
    expect(zctl(&c, 60, "submit -f %s", file), 1, "DATA_ERROR", "missing data");
    expect(zctl(&c, 30, "wait nodata"), 1, "", "wait for missing data");
    expect(zctl(&c, 60, "run %s --workers 2 --memory-gib 0.125", file), 1, "DATA_ERROR", "zctl run, missing data");

    /* a worker that aborts, no restart allowed */
    wait_idle(&c, 2);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "abort", 100000, 2, "restart: {max_restarts: 0}\n"));
    submit(&c, file);
    wait_step(&c, "abort", 3, 60);
    int victim = holder_of(&c, "abort", 1);
    kill(trainer_of(c.worker[victim]), SIGABRT);
    expect(zctl(&c, 60, "wait abort"), 1, "", "wait for an aborted run");
    json_t *s = zctl_json(&c, "status abort"), *a = attempt(s, 0);
    cr_expect_str_eq(text_of(s, "state"), "FAILED");
    cr_expect_str_eq(text_of(a, "reason"), "SIGNAL");
    cr_expect_eq(number(a, "rank"), 1);
    cr_expect(strstr(text_of(a, "message"), "SIGABRT") != NULL, "%s", text_of(a, "message"));
    json_decref(s);

    wait_idle(&c, 2);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "cancelled", 100000, 2, ""));
    submit(&c, file);
    wait_step(&c, "cancelled", 1, 60);
    expect(zctl(&c, 30, "cancel cancelled"), 0, "", "cancel");
    expect(zctl(&c, 60, "wait cancelled"), 9, "", "wait for a cancelled run");
    expect(zctl(&c, 30, "wait cancelled --timeout 5"), 9, "", "and again");

    wait_idle(&c, 2);
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "long", 100000, 2, ""));
    submit(&c, file);
    expect(zctl(&c, 30, "wait long --timeout 1"), 124, "", "wait that gives up");
    expect(zctl(&c, 30, "cancel long"), 0, "", "cancel");
    wait_run(&c, "long", "CANCELLED", 30);
    cluster_stop(&c);
}

#ifdef ZT_FAILPOINTS
/* B53: a job that fails in step 3 every time: three attempts, growing pauses, then FAILED with the first cause. */
Test(reported, B53_the_same_failure_is_not_repeated_for_ever) {
    struct cluster c;
    char file[512];
    cluster_init(&c);
    cluster_start_coord(&c);
    cluster_start_worker(&c, 0, NULL);
    setenv("ZT_FAIL", "engine.leak:exit=1", 1); /* hit at the end of every step from the third on */
    cluster_start_worker(&c, 1, NULL);
    unsetenv("ZT_FAIL");
    snprintf(file, sizeof file, "%s", cluster_run_file(&c, "again", 10, 2,
             "restart: {max_restarts: 2, backoff_seconds: {initial: 0.5, max: 60}}\n"));
    struct output o = zctl(&c, 90, "submit -f %s", file);
    expect(o, 1, "EXIT_NONZERO", "the same failure again and again");
    json_t *s = zctl_json(&c, "status again");
    cr_expect_str_eq(text_of(s, "state"), "FAILED");
    cr_expect_str_eq(text_of(s, "reason"), "EXIT_NONZERO");
    cr_expect_eq(number(s, "restarts_counted"), 2);
    cr_assert_eq(json_array_size(json_object_get(s, "attempts")), 3, "%s", json_dumps(s, JSON_COMPACT));
    double rank = number(attempt(s, 0), "rank"), pause[2];
    for (size_t i = 0; i < 3; i++) {
        json_t *a = attempt(s, i);
        cr_expect_str_eq(text_of(a, "reason"), "EXIT_NONZERO", "attempt %zu", i + 1);
        cr_expect_eq(number(a, "rank"), rank);
        /* finished steps: the failing rank never finishes its third, the other one may have */
        cr_expect(number(a, "last_step") == 2 || number(a, "last_step") == 3, "attempt %zu: step %.0f", i + 1,
                  number(a, "last_step"));
        cr_expect(json_is_true(json_object_get(a, "counted")));
        if (i > 0) pause[i - 1] = seconds_of(text_of(a, "started")) - seconds_of(text_of(attempt(s, i - 1), "ended"));
    }
    cr_expect_geq(pause[0], 0.49, "first pause %.3f s", pause[0]);
    cr_expect_geq(pause[1], 0.99, "second pause %.3f s", pause[1]);
    cr_expect(strstr(text_of(s, "detail"), "max_restarts 2") != NULL, "%s", text_of(s, "detail"));
    json_t *rows = zctl_jsonl(&c, "metrics again");
    cr_expect_eq(json_array_size(rows), 2, "two steps were finished, %zu", json_array_size(rows));
    json_decref(rows);
    json_decref(s);
    cluster_stop(&c);
}
#endif

/* ------------------------------------------------------------------------------------ limits and clocks */

static double cpu_seconds(pid_t pid) {
    char path[64], text[1024];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    cr_assert_gt(n, 0);
    text[n] = 0;
    cr_assert_eq(sscanf(strrchr(text, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system), 2);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static int count_lines(struct cluster *c, const char *name) {
    char path[400];
    int n = 0, ch;
    snprintf(path, sizeof path, "%s/%s", c->dir, name);
    FILE *f = fopen(path, "r");
    while (f != NULL && (ch = fgetc(f)) != EOF) n += ch == '\n';
    if (f != NULL) fclose(f);
    return n;
}

#define FLOOD 200
static void flood_more(struct cluster *c, int fd[FLOOD]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < FLOOD; i++) {
        char byte;
        if (fd[i] >= 0) {
            ssize_t n = recv(fd[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            int failed = 0;
            socklen_t size = sizeof failed;
            getsockopt(fd[i], SOL_SOCKET, SO_ERROR, &failed, &size);
            char drain[512];
            while (n > 0 && (n = recv(fd[i], drain, sizeof drain, MSG_DONTWAIT)) > 0) {}
            if (n != 0 && failed == 0) continue;
            close(fd[i]); /* the daemon has had enough of it: another one comes */
        }
        fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        cr_assert_geq(fd[i], 0);
        int rc = connect(fd[i], (struct sockaddr *)&a, sizeof a);
        cr_assert(rc == 0 || errno == EINPROGRESS, "connect: %s", strerror(errno));
    }
}

/* A run of slow steps: a good part of a second each, so that what the coordinator costs is not the run's doing. */
static const char *slow_run(struct cluster *c, const char *name, int steps, const char *extra) {
    char more[400], data[512];
    snprintf(data, sizeof data, "%s", data_file(c, "slow.txt", 100000, 5));
    snprintf(more, sizeof more, "training: {steps: %d, seq_len: 256, local_batch_size: 4}\n%s", steps, extra);
    return run_file(c, name, 2, NANO, data, more);
}

/* B49: at the descriptor limit, 200 idle connections, the coordinator neither spins nor fills its log, and a
 * run does not notice. */
Test(reported, B49_idle_connections_at_the_descriptor_limit) {
    struct cluster c;
    char file[512];
    int fd[FLOOD];
    cluster_init(&c);
    c.coord_nofile = 64;
    cluster_start_coord(&c);
    cluster_start_worker(&c, 0, NULL);
    cluster_start_worker(&c, 1, NULL);
    wait_idle(&c, 2);
    snprintf(file, sizeof file, "%s", slow_run(&c, "flooded", 100000, ""));
    submit(&c, file);
    wait_step(&c, "flooded", 2, 60);
    for (int i = 0; i < FLOOD; i++) fd[i] = -1;
    flood_more(&c, fd);
    int lines = count_lines(&c, "coord.log");
    double from = now_s(), cpu = cpu_seconds(c.coord);
    while (now_s() < from + 8) { /* past the 5 s after which a worker without beats is lost */
        nap_ms(100);
        flood_more(&c, fd);
    }
    double share = (cpu_seconds(c.coord) - cpu) / (now_s() - from);
    lines = count_lines(&c, "coord.log") - lines;
    fprintf(stderr, "the coordinator used %.1f %% of a core and wrote %d lines\n", 100 * share, lines);
    cr_expect_lt(share, 0.10, "the coordinator used %.1f %% of a core", 100 * share);
    cr_expect_leq(lines, 40, "%d lines of log in 8 s", lines);
    for (int i = 0; i < FLOOD; i++) close(fd[i]);
    json_t *s = zctl_json(&c, "status flooded");
    int64_t step = (int64_t)number(s, "step");
    cr_expect_str_eq(text_of(s, "state"), "RUNNING");
    cr_expect_eq(number(s, "generation"), 1, "the run kept its heartbeats");
    json_decref(s);
    wait_step(&c, "flooded", step + 2, 60);
    json_t *events = zctl_jsonl(&c, "events flooded"), *e;
    size_t i;
    json_array_foreach(events, i, e) {
        const char *to = json_string_value(json_object_get(e, "to"));
        cr_expect(to == NULL || strcmp(to, "LOST") != 0, "%s", json_dumps(e, JSON_COMPACT));
    }
    json_decref(events);
    expect(zctl(&c, 30, "cancel flooded"), 0, "", "cancel");
    wait_run(&c, "flooded", "CANCELLED", 30);
    cluster_stop(&c);
}

/* B49: the coordinator's wall clock jumps by five minutes, both ways, under a running job: nobody is lost, and
 * who is really gone is not kept. */
Test(reported, B49_a_jump_of_the_clock_loses_and_keeps_nobody) {
    struct cluster c;
    char file[512], path[400];
    cluster_init(&c);
    snprintf(path, sizeof path, "%s/shift", c.dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && ftruncate(fd, 8) == 0);
    volatile int64_t *shift = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(shift != MAP_FAILED);
    close(fd);
    char asan[512];
    const char *options = getenv("ASAN_OPTIONS");
    snprintf(asan, sizeof asan, "%s%sverify_asan_link_order=0", options != NULL ? options : "", options != NULL ? ":" : "");
    setenv("ASAN_OPTIONS", asan, 1);
    setenv("ZT_CLOCK_SHIFT", path, 1);
    setenv("LD_PRELOAD", ZT_CLOCKSHIFT, 1);
    cluster_start_coord(&c);
    unsetenv("LD_PRELOAD");
    cluster_start_worker(&c, 0, NULL);
    cluster_start_worker(&c, 1, NULL);
    wait_idle(&c, 2);
    snprintf(file, sizeof file, "%s", slow_run(&c, "jumps", 100000, ""));
    submit(&c, file);
    wait_step(&c, "jumps", 2, 60);
    static const int jump[] = {300, -300, 0};
    for (int k = 0; k < 3; k++) {
        *shift = jump[k];
        double end = now_s() + 6; /* longer than a worker may be silent */
        while (now_s() < end) {
            char state[64];
            int64_t step;
            run_state(&c, "jumps", state, sizeof state, &step);
            cr_assert_str_eq(state, "RUNNING", "after %+d s", jump[k]);
            nap_ms(200);
        }
        json_t *s = zctl_json(&c, "status jumps");
        cr_expect_eq(number(s, "generation"), 1, "after %+d s", jump[k]);
        int64_t step = (int64_t)number(s, "step");
        json_decref(s);
        wait_step(&c, "jumps", step + 1, 60);
        char probe[16]; /* the clock did move: this run is stamped with the other time */
        snprintf(probe, sizeof probe, "probe%d", k);
        snprintf(file, sizeof file, "%s", cluster_run_file(&c, probe, 2, 2, ""));
        submit(&c, file);
        s = zctl_json(&c, "status %s", probe);
        cr_expect_leq(fabs(seconds_of(text_of(s, "submitted")) - (double)time(NULL) - jump[k]), 60, "submitted %s",
                      text_of(s, "submitted"));
        json_decref(s);
        expect(zctl(&c, 30, "cancel %s", probe), 0, "", "cancel the probe");
    }
    /* a worker that stops while the clock goes back is lost all the same */
    *shift = -300;
    int victim = holder_of(&c, "jumps", 1);
    pid_t child = trainer_of(c.worker[victim]);
    kill(c.worker[victim], SIGSTOP);
    kill(child, SIGSTOP);
    double end = now_s() + 30;
    bool found = false;
    while (!found && now_s() < end) {
        json_t *s = zctl_json(&c, "status jumps"), *a = json_array_get(json_object_get(s, "attempts"), 0);
        const char *reason = json_string_value(json_object_get(a, "reason"));
        if (reason != NULL) {
            cr_expect_str_eq(reason, "WORKER_LOST");
            cr_expect_eq(number(a, "rank"), 1);
            found = true;
        }
        json_decref(s);
        nap_ms(100);
    }
    cr_expect(found, "a stopped worker was kept");
    kill(c.worker[victim], SIGCONT);
    if (kill(child, 0) == 0) kill(child, SIGCONT);
    expect(zctl(&c, 30, "cancel jumps"), 0, "", "cancel");
    wait_run(&c, "jumps", "CANCELLED", 60);
    cluster_stop(&c);
}

/* ------------------------------------------------------------------------------------ run files */

/* B55, B57, B59 through the command line; the full tables are in tests/core. */
Test(reported, B55_B57_B59_run_files) {
    struct cluster c;
    char file[512];
    cluster_init(&c);
    const char *training = "training: {steps: 2, seq_len: 32, local_batch_size: 2}\n";
    static const char *const same[] = {"3e-4", "3E-4", "3.0e-4", ".0003"};
    for (int i = 0; i < 4; i++) { /* B55: written in the file, not quoted */
        char more[200];
        snprintf(more, sizeof more, "%soptimizer: {lr: %s}\n", training, same[i]);
        snprintf(file, sizeof file, "%s", run_file(&c, "lr", 1, SMALL, "/x", more));
        expect(zctl(&c, 10, "validate %s --show", file), 0, "\n  lr: 0.0003\n", same[i]);
    }
    static const char *const bad[] = {"3e-4x", ".nan", ".inf", "1e400", "-3e-4", "0"};
    for (int i = 0; i < 6; i++) {
        char more[200];
        snprintf(more, sizeof more, "%soptimizer: {lr: %s}\n", training, bad[i]);
        snprintf(file, sizeof file, "%s", run_file(&c, "lr", 1, SMALL, "/x", more));
        struct output o = zctl(&c, 10, "validate %s", file);
        cr_expect(strstr(o.err, bad[i]) != NULL || strstr(o.out, bad[i]) != NULL, "%s: %s%s", bad[i], o.out, o.err);
        expect(o, 2, "lr.yaml:7:17: optimizer.lr", bad[i]);
    }
    snprintf(file, sizeof file, "%s", run_file(&c, "count", 1, SMALL, "/x",
             "training: {steps: 1e3, seq_len: 32, local_batch_size: 2}\n"));
    expect(zctl(&c, 10, "validate %s", file), 2, "write 1000", "a count with an exponent");

    /* B57 */
    static const struct { const char *line, *says; } slip[] = {
        {"optimizer: {clpi: 1.0}\n", "slip.yaml:7:13: optimizer.clpi: unknown key (did you mean \"optimizer.max_norm\"?)"},
        {"lr_scheduler: {max_norm: 1.0}\n", "slip.yaml:7:16: lr_scheduler.max_norm: unknown key (did you mean \"optimizer.max_norm\"?)"},
        {"parallelism: {mode: ddp, no_sync: true}\n", "slip.yaml:7:26: parallelism.no_sync: ddp reduces once per accumulation window"},
    };
    for (int i = 0; i < 3; i++) {
        char more[300];
        snprintf(more, sizeof more, "%s%s", training, slip[i].line);
        snprintf(file, sizeof file, "%s", run_file(&c, "slip", 1, SMALL, "/x", more));
        expect(zctl(&c, 10, "validate %s", file), 2, slip[i].says, slip[i].line);
    }
    snprintf(file, sizeof file, "%s", run_file(&c, "slip", 1, SMALL, "/x", training));
    expect(zctl(&c, 10, "validate %s --set train.clpi=1", file), 2, "train.clpi: unknown key", "--set");

    /* B59: global = local x ranks x accumulation; the missing one is derived and printed, the rest refused */
    expect(zctl(&c, 10, "validate %s --set training.global_batch_size=8", file), 0, "global batch 8 = 2 x 1 x 4", "derived");
    expect(zctl(&c, 10, "validate %s --set workers=3", file), 0, "global batch 6 = 2 x 3 x 1", "derived");
    static const struct { const char *set, *says; } batch[] = {
        {"training.gradient_accumulation_steps=1", "unknown key (did you mean \"training.global_batch_size\"?)"},
        {"training.global_batch_size=8 --set workers=3", "8 is not a multiple of local_batch_size 2 x 3"},
        {"training.global_batch_size=1", "1 sequences are fewer than one local_batch_size of 2"},
        {"training.global_batch_size=0", "0 is out of range"},
        {"training.local_batch_size=0", "0 is out of range"},
        {"training.local_batch_size=-2", "-2 is out of range"},
        {"workers=0", "0 is out of range"},
    };
    for (size_t i = 0; i < sizeof batch / sizeof batch[0]; i++)
        expect(zctl(&c, 10, "validate %s --set %s", file, batch[i].set), 2, batch[i].says, batch[i].set);
    expect(zctl(&c, 30, "run %s --set workers=3 --set training.global_batch_size=8", file), 2,
           "8 is not a multiple of local_batch_size 2 x 3", "zctl run refuses before it starts anything");
    cluster_stop(&c);
}
