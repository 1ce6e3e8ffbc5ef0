/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets: what a path means, formats, sample boundaries, refusals by name. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>

#include "engine/data/data.h"
#include "tests/engine/data_refuse.h"
#include "tests/engine/data_util.h"

TestSuite(data, .init = data_setup, .fini = data_teardown);

static char events[8][1500];
static int n_events;
static void on_event(void *arg, const char *kind, const char *message) {
    cr_assert_eq(arg, &n_events);
    cr_assert_str_eq(kind, "DATA_SKIPPED");
    cr_assert_lt(n_events, 8);
    snprintf(events[n_events++], sizeof events[0], "%s", message);
}

static struct zt_dataset_config config(const char *path, int64_t seq_len, int64_t vocab) {
    return (struct zt_dataset_config){.path = path,
                                      .seq_len = seq_len,
                                      .vocab_size = vocab,
                                      .event = on_event,
                                      .event_arg = &n_events};
}

static struct zt_dataset *open_ok(struct zt_dataset_config c) {
    struct zt_dataset *d;
    struct zt_error err = {0};
    cr_assert_eq(zt_dataset_open(&c, &d, &err), 0, "%s", err.msg);
    return d;
}

/* T + 1 tokens of a sample: its inputs and the last target; the others are the inputs again. */
static int read_line(const struct zt_dataset *d, int64_t sample, int64_t T, int32_t *out,
                     struct zt_error *err) {
    int32_t target[512];
    struct zt_row row = {.tokens = out, .targets = target, .padding = -1};
    int rc = zt_dataset_read(d, sample, &row, err);
    if (rc != 0) return rc;
    cr_assert_eq(row.padding, 0);
    out[T] = target[T - 1];
    cr_assert_arr_eq(out + 1, target, (size_t)T * sizeof *out);
    return 0;
}

static void expect_tokens(const struct zt_dataset *d, int64_t sample, int64_t n, int64_t first,
                          uint32_t step, uint32_t mod, int32_t base) {
    int32_t t[512];
    struct zt_error err = {0};
    cr_assert_eq(read_line(d, sample, n - 1, t, &err), 0, "%s", err.msg);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(t[i], (int32_t)((uint32_t)(first + i) * step % mod) + base,
                     "sample %" PRId64 " token %" PRId64, sample, i);
}

Test(data, samples_of_a_text_share_one_token) {
    for (int64_t bytes = 9; bytes < 40; bytes++) {
        struct zt_dataset *d = open_ok(config(data_text("t.txt", (size_t)bytes, 3), 8, 256));
        cr_assert_eq(zt_dataset_samples(d), (bytes - 1) / 8);
        for (int64_t s = 0; s < zt_dataset_samples(d); s++)
            expect_tokens(d, s, 9, s * 8, 3, 26, 'a'); /* [s T, s T + T] */
        zt_dataset_close(d);
    }
}

Test(data, bytes_are_ids_0_to_255) {
    unsigned char all[257];
    for (int i = 0; i < 257; i++) all[i] = (unsigned char)i;
    struct zt_dataset *d = open_ok(config(data_write("all", all, 257), 256, 256));
    expect_tokens(d, 0, 257, 0, 1, 256, 0);
    zt_dataset_close(d);
}

Test(data, bin_formats) {
    struct {
        const char *name;
        int width;
        int32_t magic, version;
        uint32_t mod;
    } row[] = {{"raw.bin", 2, 0, 0, 50257},
               {"gpt2.bin", 2, 20240520, 1, 50257},
               {"llama.bin", 4, 20240801, 7, 128256},
               {"llama1.bin", 4, 20240801, 1, 128256}};
    for (size_t i = 0; i < 4; i++) {
        const char *p = data_bin(row[i].name, 1000, row[i].width, row[i].magic, row[i].version,
                                 1000, 7919, row[i].mod);
        struct zt_dataset_config c = config(p, 64, row[i].mod);
        for (int t = 0; t < 2; t++) { /* the tokenizer is for text: shards are read under both */
            c.tokenizer = t ? ZT_TOKENIZER_NONE : ZT_TOKENIZER_BYTES;
            struct zt_dataset *d = open_ok(c);
            cr_assert_eq(zt_dataset_samples(d), 15);
            for (int64_t s = 0; s < 15; s++) expect_tokens(d, s, 65, s * 64, 7919, row[i].mod, 0);
            zt_dataset_close(d);
        }
    }
}

Test(data, short_shards_name_file_and_need) {
    static const int64_t tokens[] = {257, 256, 1, 0};
    for (int header = 0; header < 2; header++)
        for (int i = 0; i < 4; i++) {
            const char *p = data_bin("shard.bin", (size_t)tokens[i], 2, header ? 20240520 : 0, 1,
                                     (int32_t)tokens[i], 1, 50257);
            struct zt_dataset_config c = config(p, 64, 50257);
            c.min_samples = 4; /* one global batch: world 2, micro 2 */
            if (tokens[i] == 257) {
                struct zt_dataset *d = open_ok(c);
                cr_assert_eq(zt_dataset_samples(d), 4);
                zt_dataset_close(d);
            } else {
                refused(c, ZT_EDATA, WORDS("shard.bin", "257"));
            }
        }
    refused(config(data_path("none-*.bin"), 64, 256), ZT_EDATA,
            WORDS("none-*.bin", "no file matches"));
    refused(config("", 64, 256), ZT_EDATA, WORDS("dataset.path"));
    refused(config(data_path("absent.txt"), 64, 256), ZT_EDATA,
            WORDS("absent.txt", "No such file"));
    cr_assert_eq(n_events, 0);
}

Test(data, a_single_short_text_is_refused_by_name) {
    static const size_t bytes[] = {256, 64, 1, 0};
    for (int i = 0; i < 4; i++) {
        struct zt_dataset_config c = config(data_text("short.txt", bytes[i], 1), 64, 256);
        c.min_samples = 4;
        refused(c, ZT_EDATA, WORDS("short.txt", "257"));
    }
    struct zt_dataset_config c = config(data_text("short.txt", 64, 1), 64, 256);
    refused(c, ZT_EDATA, WORDS("short.txt", "64 tokens", "at least 65"));
}

Test(data, damaged_shards_are_refused) {
    refused(config(data_bin("a.bin", 1000, 2, 20240520, 1, 1001, 1, 100), 8, 100), ZT_EDATA,
            WORDS("a.bin", "1001", "cut short"));
    refused(config(data_bin("b.bin", 1000, 2, 20240520, 1, -1, 1, 100), 8, 100), ZT_EDATA,
            WORDS("b.bin"));
    refused(config(data_bin("c.bin", 1000, 2, 20240520, 2, 1000, 1, 100), 8, 100), ZT_EUNSUPPORTED,
            WORDS("c.bin", "version 2"));
    refused(config(data_write("d.bin", "\x88\xd6\x34\x01 and no more", 17), 8, 100), ZT_EDATA,
            WORDS("d.bin", "header"));
    refused(config(data_write("e.bin", "odd", 3), 1, 100), ZT_EDATA, WORDS("e.bin", "3 bytes"));
}

Test(data, an_id_outside_the_vocabulary_names_file_and_place) {
    uint16_t t[40] = {0};
    t[21] = 50257;
    struct zt_dataset *d = open_ok(config(data_write("ids.bin", t, sizeof t), 10, 50257));
    int32_t out[11];
    struct zt_error err = {0};
    cr_assert_eq(read_line(d, 0, 10, out, &err), 0);
    cr_assert_eq(read_line(d, 2, 10, out, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "ids.bin") && strstr(err.msg, "token 21 ") &&
                  strstr(err.msg, "byte 42") && strstr(err.msg, "50257"),
              "%s", err.msg);
    zt_dataset_close(d);
    uint32_t w[300] = {20240801, 7, 44};
    w[256 + 3] = 0xffffffff; /* must not be taken for -1 */
    d = open_ok(config(data_write("wide.bin", w, sizeof w), 10, 128256));
    cr_assert_eq(read_line(d, 0, 10, out, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "4294967295"), "%s", err.msg);
    zt_dataset_close(d);
}

static void make_folder(void) {
    data_text("b.txt", 30, 1);
    data_text("B.txt", 20, 3);
    data_text("\xc3\xa4.txt", 20, 5);
    data_text("10", 20, 7);
    data_text("9", 20, 9);
    data_text("tiny", 8, 1);
    data_text("empty", 0, 1);
    mkdir(data_path("sub"), 0700);
    data_text("sub/inside.txt", 100, 1);
    if (symlink("b.txt", data_path("link.txt")) != 0) abort();
}

/* 10, 9, B.txt, b.txt, ä.txt: byte order; links, folders and short texts left out. */
static void expect_folder(const struct zt_dataset *d) {
    static const uint32_t step[] = {7, 7, 9, 9, 3, 3, 1, 1, 1, 5, 5};
    static const int64_t in_file[] = {0, 1, 0, 1, 0, 1, 0, 1, 2, 0, 1};
    cr_assert_eq(zt_dataset_samples(d), 11);
    for (int64_t s = 0; s < 11; s++) expect_tokens(d, s, 9, in_file[s] * 8, step[s], 26, 'a');
}

Test(data, folder_in_byte_order_never_across_files) {
    make_folder();
    struct zt_dataset *d = open_ok(config(data_folder, 8, 256));
    expect_folder(d);
    zt_dataset_close(d);
    cr_assert_eq(n_events, 3);
    cr_assert(strstr(events[0], "1 symbolic links and 1 folders"), "%s", events[0]);
    cr_assert(strstr(events[1], "/empty: has 0 bytes"), "%s", events[1]);
    cr_assert(strstr(events[2], "/tiny: has 8 bytes, fewer than the 9"), "%s", events[2]);
}

Test(data, a_folder_may_be_reached_through_a_link_and_a_slash) {
    make_folder();
    char link[80], slash[96];
    snprintf(link, sizeof link, "%s-link", data_folder);
    cr_assert_eq(symlink(data_folder, link), 0);
    struct zt_dataset *d = open_ok(config(link, 8, 256));
    expect_folder(d);
    zt_dataset_close(d);
    snprintf(slash, sizeof slash, "%s/", link);
    n_events = 0;
    d = open_ok(config(slash, 8, 256));
    expect_folder(d);
    zt_dataset_close(d);
    cr_assert_eq(unlink(link), 0);
}

Test(data, a_file_may_be_named_through_a_link) {
    make_folder();
    struct zt_dataset *d = open_ok(config(data_path("link.txt"), 8, 256));
    cr_assert_eq(zt_dataset_samples(d), 3);
    zt_dataset_close(d);
}

Test(data, glob) {
    make_folder();
    struct zt_dataset *d = open_ok(config(data_path("*.txt"), 8, 256)); /* B b (link) ä */
    cr_assert_eq(zt_dataset_samples(d), 7);
    expect_tokens(d, 0, 9, 0, 3, 26, 'a');
    expect_tokens(d, 2, 9, 0, 1, 26, 'a');
    expect_tokens(d, 6, 9, 8, 5, 26, 'a');
    zt_dataset_close(d);
    data_text("we[i]rd.txt", 20, 11); /* an existing file is never taken for a pattern */
    d = open_ok(config(data_path("we[i]rd.txt"), 8, 256));
    cr_assert_eq(zt_dataset_samples(d), 2);
    zt_dataset_close(d);
}

Test(data, nothing_usable_is_refused) {
    mkdir(data_path("void"), 0700);
    refused(config(data_path("void"), 8, 256), ZT_EDATA, WORDS("void", "no regular file"));
    data_text("void/tiny", 3, 1);
    data_text("void/less", 2, 1);
    refused(config(data_path("void"), 8, 256), ZT_EDATA,
            WORDS("void", "longest has 3 tokens", "at least 9"));
    cr_assert_eq(mkfifo(data_path("fifo"), 0600), 0);
    refused(config(data_path("fifo"), 8, 256), ZT_EDATA, WORDS("fifo", "neither"));
    struct zt_dataset_config c = config(data_text("x.txt", 100, 1), 8, 256);
    c.tokenizer = ZT_TOKENIZER_NONE;
    refused(c, ZT_EDATA, WORDS("x.txt", "tokenizer"));
    c = config(data_path("x.txt"), 0, 256);
    refused(c, ZT_EINVAL, WORDS("seq_len"));
    c = config(data_path("x.txt"), 8, 256);
    c.min_samples = 13;
    refused(c, ZT_EDATA, WORDS("x.txt", "12 samples", "at least 105"));
}

Test(data, several_files_count_together_for_a_batch) {
    data_text("a.txt", 17, 1);
    data_text("b.txt", 17, 1);
    struct zt_dataset_config c = config(data_folder, 8, 256);
    c.min_samples = 4;
    zt_dataset_close(open_ok(c));
    c.min_samples = 5;
    refused(c, ZT_EDATA, WORDS(data_folder, "2 files", "a.txt", "4 samples", "at least 41"));
}

Test(data, tail_split_is_disjoint_and_complete) {
    data_text("a.txt", 8 * 100 + 1, 3);
    data_text("b.txt", 8 * 7 + 1, 5);
    data_text("c.txt", 8 * 2 + 1, 7); /* a tenth of 2 samples: none held out */
    struct zt_dataset_config c = config(data_folder, 8, 256);
    c.tail_fraction = 0.29;
    struct zt_dataset *front = open_ok(c);
    c.tail = true;
    struct zt_dataset *tail = open_ok(c);
    cr_assert_eq(zt_dataset_samples(front), 71 + 5 + 2);
    cr_assert_eq(zt_dataset_samples(tail), 29 + 2 + 0);
    expect_tokens(front, 70, 9, 70 * 8, 3, 26, 'a');
    expect_tokens(front, 71, 9, 0, 5, 26, 'a');
    expect_tokens(front, 76, 9, 0, 7, 26, 'a');
    expect_tokens(tail, 0, 9, 71 * 8, 3, 26, 'a');
    expect_tokens(tail, 28, 9, 99 * 8, 3, 26, 'a');
    expect_tokens(tail, 29, 9, 5 * 8, 5, 26, 'a');
    expect_tokens(tail, 30, 9, 6 * 8, 5, 26, 'a');
    zt_dataset_close(front);
    zt_dataset_close(tail);
    c.tail_fraction = 0.001;
    refused(c, ZT_EDATA, WORDS("held-out tail", "validation.fraction"));
    c.tail_fraction = 1;
    refused(c, ZT_EINVAL, WORDS("validation.fraction"));
}

Test(data, a_file_changed_under_the_run_is_refused) {
    const char *p = data_text("t.txt", 100, 1);
    struct zt_dataset *d = open_ok(config(p, 8, 256));
    int32_t out[9];
    struct zt_error err = {0};
    cr_assert_eq(read_line(d, 3, 8, out, &err), 0);
    data_text("t.txt", 101, 1);
    cr_assert_eq(read_line(d, 3, 8, out, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "t.txt") && strstr(err.msg, "not the file it was"), "%s", err.msg);
    unlink(p);
    cr_assert_eq(read_line(d, 3, 8, out, &err), ZT_EDATA);
    cr_assert(strstr(err.msg, "t.txt") && strstr(err.msg, "No such file"), "%s", err.msg);
    zt_dataset_close(d);
}

static int descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Each file call in turn fails: an error that names the file, no descriptor left open. */
Test(data, every_failing_file_call_is_reported) {
    const char *p = data_bin("t.bin", 100, 2, 20240520, 1, 100, 1, 100);
    int before = descriptors();
    bool passed = false;
    int64_t at;
    for (at = 1; at < 40 && !passed; at++) {
        struct zt_sys_nth state = {.real = &zt_sys_posix, .fail_at = at, .error = EIO};
        struct zt_sys sys = zt_sys_fail_nth(&state);
        struct zt_dataset_config c = config(p, 8, 256);
        c.sys = &sys;
        struct zt_dataset *d;
        struct zt_error err = {0};
        int32_t out[9];
        int rc = zt_dataset_open(&c, &d, &err);
        if (rc == 0) rc = read_line(d, 1, 8, out, &err);
        zt_dataset_close(d);
        cr_assert_eq(descriptors(), before, "call %" PRId64, at);
        passed = state.calls < at;
        if (rc != 0)
            cr_assert(rc == ZT_EDATA && strstr(err.msg, "t.bin") && strstr(err.msg, "Input/output"),
                      "%s", err.msg);
        else /* closing a file that was only read says nothing about the data */
            cr_assert(passed || at == 5 || at == 9, "call %" PRId64, at);
    }
    cr_assert_eq(at, 11); /* open fstat read read close; open fstat read close; then none */
}
