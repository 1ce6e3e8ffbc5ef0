/* SPDX-License-Identifier: Apache-2.0 */
/* zctl checkpoint on folders as they lie there: what is listed, what a manifest says, a fault that verify finds, two that
 * are compared, whatever they were cut into. Values and hashes come from the formula of tests/checkpoint/case.h. And the
 * rule of retention. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/disk_space.h"
#include "clients/zctl/json.h"
#include "tests/checkpoint/case.h"

static char dir[64];
static struct zt_error err;

static void make_dir(void) {
    strcpy(dir, "/tmp/zctl-checkpoint-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

/* A checkpoint of that step, cut over `world` ranks; salt: other values. */
static void save(const char *folder, int64_t step, int world, enum cut cut, int salt) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, world, cut, 1);
    struct zt_sha256 manifest;
    bool adopted, full;
    c.step = step;
    c.generation = 1;
    c.salt = salt;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    ck_free(&c);
}

static struct zt_ckpt *opened(const char *path) {
    struct zt_found_checkpoint f;
    struct zt_ckpt *c = NULL;
    cr_assert_eq(zt_find_on_disk(path, &f, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_open_checkpoint(&f, &c, &err), 0, "%s", err.msg);
    return c;
}

static const char *path_of(const char *name) {
    static char path[2][160];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

Test(checkpoint, a_folder_is_listed_newest_first_with_what_is_left, .init = make_dir, .fini = remove_dir) {
    json_t *list, *row;
    save(dir, 20, 2, CUT_FLAT, 0);
    save(dir, 9, 2, CUT_FLAT, 0);
    save(dir, 100, 3, CUT_FLAT, 0);
    cr_assert_eq(mkdir(path_of("step-00000110.tmp-g2"), 0700), 0);
    cr_assert_eq(mkdir(path_of("step-00000110.tmp-g3"), 0700), 0);
    cr_assert_eq(mkdir(path_of("notes"), 0700), 0);
    cr_assert_eq(zt_list_on_disk(dir, 3, &list, &err), 0, "%s", err.msg);
    json_t *rows = json_object_get(list, "checkpoints"), *left = json_object_get(list, "left");
    cr_assert_eq(json_array_size(rows), 3);
    for (int i = 0; i < 3; i++) {
        row = json_array_get(rows, (size_t)i);
        cr_expect_eq(json_integer_value(json_object_get(row, "step")), ((int[]){100, 20, 9})[i]);
        cr_expect_str_eq(json_string_value(json_object_get(row, "state")), "ON_DISK");
        cr_expect_eq(json_integer_value(json_object_get(row, "shards")), i == 0 ? 3 : 2);
    }
    cr_assert_eq(json_array_size(left), 1, "only of generations before 3");
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(left, 0), "name")), "step-00000110.tmp-g2");
    json_decref(list);
    /* the newest is what the folder's name alone means */
    struct zt_found_checkpoint f;
    cr_assert_eq(zt_find_on_disk(dir, &f, &err), 0);
    cr_expect_eq(f.step, 100);
    cr_expect_eq(zt_find_on_disk(path_of("notes"), &f, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "is no checkpoint (it has no manifest.json) and holds none"), "%s", err.msg);
    cr_expect_eq(zt_find_on_disk(path_of("nowhere"), &f, &err), ZT_ENOTFOUND);
}

/* Bytes of each kind add up to those of the files, and each is elements times the size of its type. */
Test(checkpoint, a_manifest_is_told, .init = make_dir, .fini = remove_dir) {
    save(dir, 7, 3, CUT_COLUMNS, 0);
    struct zt_ckpt *c = opened(dir);
    const struct zt_manifest *m = zt_ckpt_manifest(c);
    json_t *j = zt_json_manifest(m), *bytes = json_object_get(j, "bytes"), *v, *t;
    const char *key;
    json_int_t sum = 0, by_tensor = 0, by_rank = 0;
    size_t i;
    char hash[33];
    json_object_foreach(bytes, key, v)
        sum += strcmp(key, "all") == 0 ? 0 : json_integer_value(v);
    json_array_foreach(json_object_get(j, "tensors"), i, t)
        by_tensor += json_integer_value(json_object_get(t, "bytes"));
    json_array_foreach(json_object_get(j, "writers"), i, t)
        by_rank += json_integer_value(json_object_get(t, "bytes"));
    cr_expect_eq(sum, json_integer_value(json_object_get(bytes, "all")));
    cr_expect_eq(by_rank, json_integer_value(json_object_get(bytes, "all")));
    cr_expect_eq(by_tensor + json_integer_value(json_object_get(bytes, "headers")), by_rank);
    cr_expect_gt(json_integer_value(json_object_get(bytes, "headers")), 0);
    cr_expect_eq(json_array_size(json_object_get(j, "tensors")), (size_t)m->n_tensors);
    cr_expect_eq(json_array_size(json_object_get(j, "writers")), 3);
    cr_expect_eq(json_integer_value(json_object_get(json_object_get(j, "position"), "step")), 7);
    zt_hash_text(m->parameter_hash, hash);
    cr_expect_str_eq(json_string_value(json_object_get(j, "parameter_hash")), hash);
    json_decref(j);
    zt_ckpt_close(c);
}

/* The same state is equal, whatever it was cut into. */
Test(checkpoint, other_cuts_of_the_same_state_are_equal, .init = make_dir, .fini = remove_dir) {
    save(path_of("a"), 5, 1, CUT_WHOLE, 0);
    save(path_of("b"), 5, 3, CUT_COLUMNS, 0);
    struct zt_ckpt *a = opened(path_of("a")), *b = opened(path_of("b"));
    json_t *j = NULL, *row;
    size_t i;
    cr_assert_eq(zt_diff_checkpoints(a, b, &j, NULL, NULL, &err), 0, "%s", err.msg);
    cr_expect(json_is_true(json_object_get(j, "equal")));
    cr_expect_eq(json_array_size(json_object_get(j, "position")), 0);
    cr_expect_gt(json_array_size(json_object_get(j, "tensors")), 4);
    json_array_foreach(json_object_get(j, "tensors"), i, row) {
        cr_expect_eq(json_integer_value(json_object_get(row, "different")), 0);
        cr_expect(json_is_null(json_object_get(row, "first")));
    }
    json_decref(j);
    zt_ckpt_close(a);
    zt_ckpt_close(b);
}

/* Another state: the first element that differs, the most by value and by ratio, by the formula. */
Test(checkpoint, what_differs_is_told_by_element, .init = make_dir, .fini = remove_dir) {
    save(path_of("a"), 5, 2, CUT_FLAT, 0);
    save(path_of("b"), 6, 3, CUT_FLAT, 1);
    struct ck_case x = ck_make(&zt_sys_posix, dir, 2, CUT_FLAT, 1), y = x;
    y.salt = 1;
    struct zt_ckpt *a = opened(path_of("a")), *b = opened(path_of("b"));
    json_t *j = NULL, *row;
    size_t at = 0;
    cr_assert_eq(zt_diff_checkpoints(a, b, &j, NULL, NULL, &err), 0, "%s", err.msg);
    cr_expect(json_is_false(json_object_get(j, "equal")));
    cr_expect_gt(json_array_size(json_object_get(j, "position")), 0, "another step");
    for (int t = 0; t < x.n_tensors; t++)
        for (int k = 0; k < ZT_SAVED_COUNT; k++) {
            if (!x.tensors[t].has[k])
                continue;
            int64_t n = x.tensors[t].shape[0] * (x.tensors[t].ndim == 2 ? x.tensors[t].shape[1] : 1), first = -1, different = 0;
            double most = 0, ratio = 0;
            for (int64_t i = 0; i < n; i++) {
                double p = (double)ck_value(&x, t, (enum zt_saved)k, i), q = (double)ck_value(&y, t, (enum zt_saved)k, i);
                double d = p > q ? p - q : q - p, big = (p < 0 ? -p : p) > (q < 0 ? -q : q) ? (p < 0 ? -p : p) : (q < 0 ? -q : q);
                if (p == q)
                    continue;
                first = first < 0 ? i : first;
                different++;
                most = d > most ? d : most;
                ratio = d / big > ratio ? d / big : ratio;
            }
            row = json_array_get(json_object_get(j, "tensors"), at++);
            cr_expect_str_eq(json_string_value(json_object_get(row, "tensor")), x.tensors[t].name);
            cr_expect_eq(json_integer_value(json_object_get(row, "different")), different);
            cr_expect_eq(json_number_value(json_object_get(row, "max_abs")), most);
            cr_expect_eq(json_number_value(json_object_get(row, "max_rel")), ratio);
            if (different > 0)
                cr_expect_eq(json_integer_value(json_object_get(row, "first")), first);
        }
    cr_expect_eq(at, json_array_size(json_object_get(j, "tensors")));
    json_decref(j);
    zt_ckpt_close(a);
    zt_ckpt_close(b);
    ck_free(&x);
}

/* A committed one that is not there is a fault where the run's folder is; elsewhere it is not seen, which condemns nothing. */
Test(checkpoint, one_that_is_gone_and_one_that_is_not_seen, .init = make_dir, .fini = remove_dir) {
    struct zt_found_checkpoint f = {.run_id = "01A", .label = "n@42"};
    struct zt_ckpt *c = NULL;
    snprintf(f.folder, sizeof f.folder, "%s/step-00000042", dir);
    cr_expect_eq(zt_open_checkpoint(&f, &c, &err), ZT_ECORRUPT);
    cr_expect(strstr(err.msg, "step-00000042 is gone, though "), "%s", err.msg);
    snprintf(f.folder, sizeof f.folder, "%s/elsewhere/step-00000042", dir);
    cr_expect_eq(zt_open_checkpoint(&f, &c, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "not to be seen from this machine"), "%s", err.msg);
}

/* ---------------------------------------------------------------------------------- as it is typed */

static char *typed(int *code, const char *words) {
    char command[600], *out = NULL, chunk[512];
    size_t n = 0, got;
    snprintf(command, sizeof command, "%s checkpoint %s 2>&1", ZCTL, words);
    FILE *f = popen(command, "r"), *mem = open_memstream(&out, &n);
    cr_assert(f && mem);
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0)
        fwrite(chunk, 1, got, mem);
    int status = pclose(f);
    fclose(mem);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return out;
}

#define TYPED(wanted_code, wanted, ...)                                                                               \
    do {                                                                                                              \
        char words[400];                                                                                              \
        int code;                                                                                                     \
        snprintf(words, sizeof words, __VA_ARGS__);                                                                   \
        char *out = typed(&code, words);                                                                              \
        cr_expect(code == (wanted_code) && strstr(out, wanted), "zctl checkpoint %s: exit %d\n%s", words, code, out);    \
        free(out);                                                                                                    \
    } while (0)

Test(checkpoint, verify_finds_a_flipped_bit, .init = make_dir, .fini = remove_dir, .timeout = 60) {
    save(dir, 30, 2, CUT_FLAT, 0);
    TYPED(0, "verified: ", "verify %s", dir);
    TYPED(0, "step 30", "show %s", dir);
    TYPED(0, "30", "ls %s", dir);
    char path[200];
    snprintf(path, sizeof path, "%s/step-00000030", dir);
    char command[300];
    snprintf(command, sizeof command, "ls %s/optim-*.safetensors | head -1", path);
    FILE *f = popen(command, "r");
    char file[200] = "";
    cr_assert(f && fgets(file, sizeof file, f));
    pclose(f);
    file[strcspn(file, "\n")] = '\0';
    int fd = open(file, O_RDWR);
    struct stat st;
    unsigned char byte;
    cr_assert(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &byte, 1, st.st_size - 3) == 1);
    byte ^= 0x10;
    cr_assert_eq(pwrite(fd, &byte, 1, st.st_size - 3), 1);
    close(fd);
    TYPED(1, "is CORRUPT: ", "verify %s", dir);
    TYPED(1, "optim-", "verify %s -o json", dir);
    TYPED(1, "\"verified\":false", "verify %s -o json", dir);
}

Test(checkpoint, diff_as_it_is_typed, .init = make_dir, .fini = remove_dir, .timeout = 60) {
    save(path_of("a"), 5, 2, CUT_FLAT, 0);
    save(path_of("b"), 5, 3, CUT_COLUMNS, 0);
    save(path_of("c"), 5, 2, CUT_FLAT, 1);
    TYPED(0, "EQUAL: ", "diff %s/a %s/b", dir, dir);
    TYPED(1, "DIFFERENT: ", "diff %s/a %s/c", dir, dir);
    TYPED(3, "nowhere", "diff %s/a %s/nowhere", dir, dir);
    TYPED(2, "the coordinator keeps the list", "rm %s/a", dir);
    TYPED(2, "the coordinator keeps the list", "pin %s/a", dir);
    TYPED(2, "say which one: quickstart@STEP", "rm quickstart");
    TYPED(2, "has no option --dry-run", "ls %s/a --dry-run", dir);
}

/* ---------------------------------------------------------------------------------- retention */

/* Rows newest first, as "step state flags": v verified, p pinned. */
static json_t *listed(int64_t k, int64_t every, const char *const *rows) {
    json_t *list = json_object(), *array = json_array();
    for (int i = 0; rows[i]; i++) {
        long long step;
        char state[20], flags[8] = "";
        cr_assert_geq(sscanf(rows[i], "%lld %19s %7s", &step, state, flags), 2);
        json_t *o = json_object();
        json_object_set_new(o, "step", json_integer(step));
        json_object_set_new(o, "state", json_string(state));
        json_object_set_new(o, "bytes", json_integer(10));
        json_object_set_new(o, "verified", json_boolean(strchr(flags, 'v') != NULL));
        json_object_set_new(o, "pinned", json_boolean(strchr(flags, 'p') != NULL));
        json_array_append_new(array, o);
    }
    json_object_set_new(list, "keep_latest_k", json_integer(k));
    json_object_set_new(list, "keep_every", json_integer(every));
    json_object_set_new(list, "checkpoints", array);
    return list;
}

static void expect_gone(int64_t k, int64_t every, const char *wanted, const char *const *rows) {
    json_t *list = listed(k, every, rows), *go = zt_retention(list), *o;
    char got[128] = "";
    size_t i;
    json_array_foreach(go, i, o)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%lld", got[0] ? " " : "",
                 (long long)json_integer_value(json_object_get(o, "step")));
    cr_expect_str_eq(got, wanted);
    json_decref(go);
    json_decref(list);
}

Test(retention, what_goes) {
    static const char *const plain[] = {"60 COMMITTED v", "50 COMMITTED", "40 COMMITTED", "30 COMMITTED", "20 COMMITTED", NULL};
    static const char *const odd[] = {"70 WRITING", "60 COMMITTED", "50 FAILED", "40 CORRUPT", "30 COMMITTED v", "20 COMMITTED p",
                                      "10 COMMITTED v", "5 DELETING", NULL};
    expect_gone(0, 0, "", plain); /* all are kept */
    expect_gone(2, 0, "40 30 20", plain);
    expect_gone(2, 20, "30", plain);
    expect_gone(9, 0, "", plain);
    /* the newest that is verified stays however old; what is no committed one is neither counted nor let go */
    expect_gone(1, 0, "10 5", odd);
    expect_gone(3, 0, "10 5", odd);
    expect_gone(4, 0, "5", odd);
}

/* ---------------------------------------------------------------------------------- disk space */

static struct zt_spec spec;

static void parse(const char *recipe) {
    char text[600];
    snprintf(text, sizeof text,
             "version: 1\nname: n\nmodel: {preset: gpt2-nano}\ndataset: {path: /d}\ntraining: {steps: 100, seq_len: 8, "
             "local_batch_size: 1}\nprecision: {recipe: %s, reduce_dtype: fp32}\n", recipe);
    cr_assert_eq(zt_spec_parse(text, strlen(text), "run.yaml", NULL, 0, &spec, &err), 0, "%s", err.msg);
    spec.checkpoint.enabled = true;
    strcpy(spec.checkpoint.folder, "/nowhere/at/all");
}

/* gpt2-nano has 858,880 parameters; a parameter's bytes by recipe are those of docs/memory.md. */
Test(disk_space, bytes_by_recipe) {
    static const struct { const char *recipe; int64_t bytes; } rows[] = {
        {"fp32", 4 + 4 + 4}, {"mixed16", 2 + 4 + 4 + 4}, {"mixed16_nomaster", 2 + 4 + 4}, {"pure_bf16", 2 + 2 + 2}};
    struct zt_disk_space d;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parse(rows[i].recipe);
        cr_assert(zt_disk_space(&spec, 0, &d));
        cr_expect_eq(d.each, 858880 * rows[i].bytes, "%s: %lld", rows[i].recipe, (long long)d.each);
        zt_spec_free(&spec);
    }
    parse("fp32");
    spec.checkpoint.enabled = false;
    cr_expect_not(zt_disk_space(&spec, 0, &d));
    zt_spec_free(&spec);
}

/* Those that are kept and the one that is written before another goes, never more than are saved at all. */
Test(disk_space, how_many_at_a_time) {
    static const struct { int64_t steps, interval, k, every, most; } rows[] = {
        {100, 10, 3, 0, 4}, {100, 10, 0, 0, 10}, {100, 10, 3, 50, 6}, {100, 60, 3, 0, 2}, {25, 10, 2, 0, 3}, {100, 500, 3, 0, 1}};
    struct zt_disk_space d;
    char text[512];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        parse("fp32");
        spec.training.steps = rows[i].steps;
        spec.checkpoint.interval = rows[i].interval;
        spec.checkpoint.keep_latest_k = rows[i].k;
        spec.checkpoint.keep_every = rows[i].every;
        cr_assert(zt_disk_space(&spec, 0, &d));
        cr_expect_eq(d.most, rows[i].most, "row %zu: %lld", i, (long long)d.most);
        cr_expect_eq(d.all, d.each * d.most);
        zt_spec_free(&spec);
    }
    /* of a folder that is not there yet the nearest above it that is */
    cr_expect_str_eq(d.folder, "/");
    cr_expect_geq(d.free, 0);
    d.free = d.all - 1;
    cr_expect(zt_disk_space_short(&d));
    cr_expect_str_eq(zt_disk_space_text(&d, text, sizeof text),
                     "checkpoints: 9.83 MiB each, at most 1 at a time (9.83 MiB); / has 9.83 MiB free: that is not enough");
    d.free = d.all;
    cr_expect_not(zt_disk_space_short(&d));
    d.free = -1;
    cr_expect_not(zt_disk_space_short(&d), "what is not known is no reason to warn");
}
