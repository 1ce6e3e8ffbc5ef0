/* SPDX-License-Identifier: Apache-2.0 */
/* .jsonl examples: lines, refusals by file and line, packing, masks, document starts, weights. The
 * expected rows are written out by hand from the rules in engine/data/data.h. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "engine/data/internal.h"
#include "tests/engine/data_refuse.h"
#include "tests/engine/data_util.h"

TestSuite(jsonl, .init = data_setup, .fini = data_teardown);

static char events[12][1500];
static int n_events;
static void on_event(void *arg, const char *kind, const char *message) {
    (void)arg;
    cr_assert_lt(n_events, 12);
    snprintf(events[n_events++], sizeof events[0], "%s %s", kind, message);
}

static struct zt_dataset_config config(const char *path, int64_t seq_len) {
    return (struct zt_dataset_config){
        .path = path, .seq_len = seq_len, .vocab_size = 256, .event = on_event};
}

static struct zt_dataset *open_ok(struct zt_dataset_config c) {
    struct zt_dataset *d;
    struct zt_error err = {0};
    n_events = 0;
    cr_assert_eq(zt_dataset_open(&c, &d, &err), 0, "%s", err.msg);
    return d;
}

static const char *lines(const char *name, const char *text) {
    return data_write(name, text, strlen(text));
}

static bool told(const char *start, const char *word) {
    for (int i = 0; i < n_events; i++)
        if (strncmp(events[i], start, strlen(start)) == 0 && strstr(events[i], word)) return true;
    return false;
}

/* ---- rows ---- */

#define MOST 512
struct read_row {
    int32_t tokens[MOST], targets[MOST], starts[MOST];
    float weights[MOST];
    struct zt_row row;
};

static const struct zt_row *get(const struct zt_dataset *d, int64_t sample, struct read_row *r) {
    struct zt_error err = {0};
    r->row = (struct zt_row){r->tokens, r->targets, zt_dataset_has_starts(d) ? r->starts : NULL,
                             zt_dataset_has_weights(d) ? r->weights : NULL, -1};
    memset(r->tokens, 0x55, sizeof r->tokens);
    memset(r->targets, 0x55, sizeof r->targets);
    cr_assert_eq(zt_dataset_read(d, sample, &r->row, &err), 0, "%s", err.msg);
    return &r->row;
}

/* tokens: a letter each, '.' is the end token; targets: the same, '-' is not counted. */
static void expect(const struct zt_dataset *d, int64_t sample, const char *tokens,
                   const char *targets, int64_t padding) {
    static struct read_row r;
    get(d, sample, &r);
    for (size_t i = 0; tokens[i]; i++) {
        cr_assert_eq(r.tokens[i], tokens[i] == '.' ? 0 : tokens[i],
                     "sample %" PRId64 " token %zu is %d", sample, i, r.tokens[i]);
        cr_assert_eq(r.targets[i],
                     targets[i] == '-'   ? -1
                     : targets[i] == '.' ? 0
                                         : targets[i],
                     "sample %" PRId64 " target %zu is %d", sample, i, r.targets[i]);
    }
    cr_assert_eq(r.row.padding, padding, "sample %" PRId64 ": padding %" PRId64, sample,
                 r.row.padding);
}

Test(jsonl, whole_examples_are_packed_and_prompts_masked) {
    const char *p = lines("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
                                     "{\"completion\": \"g\", \"prompt\": \"ef\"}\n"
                                     "{\"prompt\": \"hijk\", \"completion\": \"lmn\"}\n");
    struct zt_dataset *d = open_ok(config(p, 8));
    cr_assert_eq(zt_dataset_samples(d), 2);
    cr_assert(zt_dataset_masked(d));
    /* abcd. is 5 tokens, efg. 4: 9, the T + 1 there are; hijklmn. is 8 */
    expect(d, 0, "abcd.efg", "-cd.--g.", 0);
    expect(d, 1, "hijklmn.", "---lmn.-", 0);
    zt_dataset_close(d);
    d = open_ok(config(p, 9)); /* room 10: 5 + 4, then 8 does not fit */
    expect(d, 0, "abcd.efg.", "-cd.--g.-", 0);
    expect(d, 1, "hijklmn..", "---lmn.--", 1);
    zt_dataset_close(d);
    d = open_ok(config(p, 16)); /* all 17 tokens, the last one a target only */
    cr_assert_eq(zt_dataset_samples(d), 1);
    expect(d, 0, "abcd.efg.hijklmn", "-cd.--g.----lmn.", 0);
    cr_assert(told("DATA_PACKED", "3 examples and 0 texts in 1 samples: 9 targets count"), "%s",
              events[0]);
    zt_dataset_close(d);
}

Test(jsonl, an_empty_prompt_leaves_the_first_byte_as_context) {
    const char *p = lines("a.jsonl", "{\"prompt\": \"\", \"completion\": \"abc\"}\n"
                                     "{\"prompt\": \"\", \"completion\": \"d\"}");
    struct zt_dataset *d = open_ok(config(p, 6));
    expect(d, 0, "abc.d.", "bc.-.-", 0);
    zt_dataset_close(d);
}

Test(jsonl, texts_go_on_in_the_next_sample_and_every_target_comes_once) {
    const char *p = lines("a.jsonl", "{\"text\": \"abcdefghij\"}\n{\"text\": \"kl\"}\n"
                                     "{\"text\": \"m\"}\n");
    struct zt_dataset *d = open_ok(config(p, 4));
    /* abcdefghij. kl. m. : pieces abcde, efghi, ij. + kl, l. + m. */
    cr_assert_eq(zt_dataset_samples(d), 4);
    expect(d, 0, "abcd", "bcde", 0);
    expect(d, 1, "efgh", "fghi", 0);
    expect(d, 2, "ij.k", "j.-l", 0);
    expect(d, 3, "l.m.", ".-.-", 0);
    cr_assert(told("DATA_PACKED", "0 examples and 3 texts in 4 samples: 13 targets count"));
    zt_dataset_close(d);
}

/* Each text of 1 to 40 letters in front of another, at each T: every letter but the first and the
 * end token is a target once, in order. */
Test(jsonl, no_target_of_a_text_is_lost_at_any_length) {
    for (int64_t T = 1; T <= 12; T++)
        for (int n = 1; n <= 40; n++) {
            char line[128], seen[128];
            int at = 0;
            snprintf(line, sizeof line, "{\"text\": \"%.*s\"}\n{\"text\": \"XYZ\"}\n", n,
                     "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG");
            struct zt_dataset *d = open_ok(config(lines("t.jsonl", line), T));
            static struct read_row r;
            for (int64_t s = 0; s < zt_dataset_samples(d); s++) {
                get(d, s, &r);
                for (int64_t i = 0; i < T; i++)
                    if (r.targets[i] != -1) seen[at++] = r.targets[i] ? (char)r.targets[i] : '.';
            }
            seen[at] = '\0';
            snprintf(line, sizeof line, "%.*s.YZ.", n - 1,
                     "bcdefghijklmnopqrstuvwxyz0123456789ABCDEFG");
            cr_assert_str_eq(seen, line, "T %" PRId64 ", %d letters", T, n);
            zt_dataset_close(d);
        }
}

Test(jsonl, long_examples_lose_their_ends_and_prompts_without_room_are_passed_over) {
    const char *p = lines("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cdefgh\"}\n"
                                     "{\"prompt\": \"abcdefg\", \"completion\": \"h\"}\n"
                                     "{\"prompt\": \"abcde\", \"completion\": \"f\"}\n"
                                     "{\"prompt\": \"xy\", \"completion\": \"z\"}\n");
    struct zt_dataset *d = open_ok(config(p, 5));
    cr_assert_eq(zt_dataset_samples(d), 3);
    expect(d, 0, "abcde", "-cdef", 0);
    expect(d, 1, "abcde", "----f", 0);
    expect(d, 2, "xyz..", "-z.--", 1);
    cr_assert(told("DATA_CUT", "2 examples are longer than the 6 tokens of a sample"), "%s",
              events[1]);
    cr_assert(told("DATA_CUT", "a.jsonl:1"));
    cr_assert(told("DATA_SKIPPED", "1 examples whose prompts alone fill the 6 tokens"));
    cr_assert(told("DATA_SKIPPED", "a.jsonl:2"));
    zt_dataset_close(d);
}

Test(jsonl, line_ends_empty_lines_and_other_keys) {
    const char *p = lines("a.jsonl", "\n{\"text\": \"ab\", \"id\": 7, \"meta\": {\"x\": [1]}}\r\n"
                                     " \t\r\n\r\n{\"text\": \"c\\r\\nd\"}");
    struct zt_dataset *d = open_ok(config(p, 8));
    static struct read_row r;
    static const int32_t want[] = {'a', 'b', 0, 'c', '\r', '\n', 'd', 0};
    get(d, 0, &r);
    cr_assert_arr_eq(r.tokens, want, sizeof want);
    cr_assert(told("DATA_SKIPPED", "3 empty lines are passed over, the first at"));
    cr_assert(told("DATA_SKIPPED", "a.jsonl:1"));
    cr_assert(told("DATA_SKIPPED", "1 lines have further keys, which are not read"));
    cr_assert(told("DATA_SKIPPED", "a.jsonl:2"));
    zt_dataset_close(d);
}

Test(jsonl, text_is_its_utf8_bytes) {
    const char *p =
        lines("a.jsonl", "{\"prompt\": \"\xc3\xa4\", \"completion\": \"\\u20ac\\ud83d\\ude00\"}");
    struct zt_dataset *d = open_ok(config(p, 9));
    static struct read_row r;
    static const int32_t want[] = {0xc3, 0xa4, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80};
    get(d, 0, &r);
    cr_assert_arr_eq(r.tokens, want, sizeof want);
    cr_assert_eq(r.targets[0], -1);
    cr_assert_eq(r.targets[1], 0xe2);
    cr_assert_eq(r.targets[8], 0);
    zt_dataset_close(d);
}

/* ---- refusals ---- */

Test(jsonl, bad_lines_are_refused_by_file_line_and_cause) {
    static const struct {
        const char *line, *cause;
    } row[] = {
        {"nonsense", "not JSON"},
        {"\xef\xbb\xbf{\"text\": \"abc\"}", "a byte order mark"},
        {"{\"text\": \"abc\"", "ends too early"},
        {"{\"text\": \"abc", "ends too early"},
        {"{\"text\": \"a\"} {\"text\": \"b\"}", "more than one JSON value"},
        {"[\"text\"]", "not an object"},
        {"7", "not an object"},
        {"null", "not an object"},
        {"{}", "the key \"prompt\" is missing"},
        {"{\"prompt\": \"a\"}", "the key \"completion\" is missing"},
        {"{\"completion\": \"a\"}", "the key \"prompt\" is missing"},
        {"{\"messages\": []}", "the key \"prompt\" is missing"},
        {"{\"text\": 7}", "\"text\" is not a string"},
        {"{\"prompt\": null, \"completion\": \"a\"}", "\"prompt\" is not a string"},
        {"{\"prompt\": \"a\", \"completion\": [\"b\"]}", "\"completion\" is not a string"},
        {"{\"prompt\": \"a\", \"completion\": \"\"}", "the completion is empty"},
        {"{\"text\": \"\"}", "the text is empty"},
        {"{\"text\": \"a\", \"prompt\": \"b\"}", "\"text\" beside"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "twice"},
        {"{\"text\": \"a\\u0000b\"}", "a NUL character"},
        {"{\"text\": \"a\xff\"}", "invalid UTF-8"},
        {"{\"text\": \"\xc3\"}", "invalid UTF-8"},
        {"{\"text\": \"\xed\xa0\x80\"}", "invalid UTF-8"},
        {"{\"text\": \"\\ud800\"}", "not JSON"},
        {"{\"text\": \"a\tb\"}", "not JSON"},
        {"{\"text\": \"a\", \"x\": 1e999}", "out of range"},
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "{\"text\": \"good\"}\n\n%s\n{\"text\": \"good\"}\n",
                 row[i].line);
        refused(config(lines("bad.jsonl", text), 4), ZT_EDATA,
                WORDS("bad.jsonl:3: ", row[i].cause));
    }
    static const char nul[] = "{\"text\": \"a\0b\"}\n";
    refused(config(data_write("nul.jsonl", nul, sizeof nul - 1), 4), ZT_EDATA,
            WORDS("nul.jsonl:1: ", "not JSON"));
    static const char after[] = "{\"text\": \"a\"}\0\n";
    refused(config(data_write("nul.jsonl", after, sizeof after - 1), 4), ZT_EDATA,
            WORDS("nul.jsonl:1: "));
}

/* Pieces of the file never reach a message: they may be anything. */
Test(jsonl, messages_are_ascii) {
    struct zt_dataset *d;
    struct zt_error err = {0};
    struct zt_dataset_config c = config(lines("x.jsonl", "{\"text\": \x01\xfe\xff\x1b[31m}"), 4);
    cr_assert_eq(zt_dataset_open(&c, &d, &err), ZT_EDATA);
    for (const char *p = err.msg; *p; p++) cr_assert(*p >= ' ' && *p < 127, "%s", err.msg);
}

Test(jsonl, deep_nesting_is_refused) {
    enum { DEEP = 100000 };
    static const char head[] = "{\"text\": \"a\", \"x\": ";
    const size_t n = sizeof head - 1;
    char *text = malloc(2 * DEEP + 64);
    cr_assert_not_null(text);
    memcpy(text, head, n);
    memset(text + n, '[', DEEP);
    memset(text + n + DEEP, ']', DEEP);
    strcpy(text + n + 2 * DEEP, "}\n");
    refused(config(lines("deep.jsonl", text), 4), ZT_EDATA, WORDS("deep.jsonl:1: ", "too deep"));
    free(text);
}

Test(jsonl, a_line_has_a_largest_length) {
    size_t head = strlen("{\"text\": \""), n = ZT_LINE_MAX - head - 2;
    char *text = malloc(ZT_LINE_MAX + 64);
    memcpy(text, "{\"text\": \"", head);
    memset(text + head, 'x', n + 1);
    memcpy(text + head + n, "\"}\n{\"text\": \"y\"}\n", 17);
    struct zt_dataset *d = open_ok(config(data_write("l.jsonl", text, head + n + 17), 1 << 20));
    cr_assert_eq(zt_dataset_samples(d), 16); /* 2^24 - 12 targets, 2^20 a sample, then y. */
    zt_dataset_close(d);
    memcpy(text + head + n, "x\"}\n", 4);
    refused(config(data_write("l.jsonl", text, head + n + 4), 64), ZT_EDATA,
            WORDS("l.jsonl:1: ", "longer than 16777216 bytes"));
    free(text);
}

Test(jsonl, a_set_is_of_one_kind) {
    mkdir(data_path("m"), 0700);
    data_text("m/README.md", 100, 1);
    lines("m/a.jsonl", "{\"text\": \"abc\"}\n");
    refused(config(data_path("m"), 4), ZT_EDATA,
            WORDS("m/a.jsonl: is .jsonl examples", "README.md is text", "FOLDER/*.jsonl"));
    struct zt_dataset *d = open_ok(config(data_path("m/*.jsonl"), 4));
    cr_assert_eq(zt_dataset_samples(d), 1);
    zt_dataset_close(d);
    struct zt_dataset_config c = config(data_path("m/a.jsonl"), 4);
    c.tokenizer = ZT_TOKENIZER_NONE;
    refused(c, ZT_EDATA, WORDS("a.jsonl", "tokenizer"));
    c = config(data_path("m/a.jsonl"), 4);
    c.vocab_size = 99;
    refused(c, ZT_EDATA, WORDS("a.jsonl:1: ", "token 99 ", "vocabulary of 99"));
}

Test(jsonl, too_little_is_refused) {
    struct zt_dataset_config c = config(lines("e.jsonl", "\n\n"), 4);
    refused(c, ZT_EDATA, WORDS("e.jsonl", "0 examples and 0 texts give 0 samples"));
    refused(config(lines("e.jsonl", ""), 4), ZT_EDATA, WORDS("e.jsonl", "0 samples"));
    c = config(lines("e.jsonl", "{\"text\": \"abcdefgh\"}\n"), 4);
    c.min_samples = 3;
    refused(c, ZT_EDATA, WORDS("e.jsonl", "2 samples", "needs 3"));
}

/* ---- document starts and weights ---- */

static void expect_starts(const struct zt_dataset *d, int64_t sample, const int32_t *want,
                          size_t n) {
    static struct read_row r;
    get(d, sample, &r);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(r.starts[i], want[i], "sample %" PRId64 " place %zu starts at %d", sample, i,
                     r.starts[i]);
}

Test(jsonl, documents_of_a_sample_begin_where_lines_do) {
    const char *p = lines("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
                                     "{\"prompt\": \"e\", \"completion\": \"f\"}\n"
                                     "{\"prompt\": \"ghi\", \"completion\": \"j\"}\n");
    struct zt_dataset_config c = config(p, 10);
    c.document_starts = true;
    struct zt_dataset *d = open_ok(c);
    expect_starts(d, 0, (const int32_t[]){0, 0, 0, 0, 0, 5, 5, 5, 8, 9}, 10); /* padding: itself */
    expect_starts(d, 1, (const int32_t[]){0, 0, 0, 0, 0, 5, 6, 7, 8, 9}, 10);
    zt_dataset_close(d);
}

Test(jsonl, documents_of_texts_and_shards) {
    uint16_t h[512 + 20] = {0};
    int32_t head[] = {20240520, 1, 20};
    memcpy(h, head, sizeof head);
    static const uint16_t tokens[20] = {50256, 1, 2, 50256, 3, 4, 5, 6, 50256, 50256,
                                        7,     8, 9, 10,    1, 2, 3, 4, 50256, 5};
    memcpy(h + 512, tokens, sizeof tokens);
    struct zt_dataset_config c = config(data_write("s.bin", h, sizeof h), 9);
    c.vocab_size = 50257;
    c.document_starts = true;
    struct zt_dataset *d = open_ok(c);
    expect_starts(d, 0, (const int32_t[]){0, 0, 0, 3, 3, 3, 3, 3, 8}, 9);
    expect_starts(d, 1, (const int32_t[]){0, 0, 0, 0, 0, 0, 0, 0, 0}, 9);
    zt_dataset_close(d);
    uint32_t w[256 + 9] = {20240801, 7, 9};
    w[256 + 4] = 128000;
    c.path = data_write("w.bin", w, sizeof w);
    c.seq_len = 8;
    c.vocab_size = 128256;
    d = open_ok(c);
    expect_starts(d, 0, (const int32_t[]){0, 0, 0, 0, 4, 4, 4, 4}, 8);
    zt_dataset_close(d);
    c.vocab_size = 128000;
    refused(c, ZT_EINVAL, WORDS("w.bin", "128000", "vocabulary"));
    c.path = data_bin("raw.bin", 100, 2, 0, 0, 0, 1, 100);
    refused(c, ZT_EINVAL, WORDS("raw.bin", "dataset.document_masks", "which token begins"));
    c = config(data_text("t.txt", 20, 3), 8); /* a file is one document */
    c.document_starts = true;
    d = open_ok(c);
    expect_starts(d, 1, (const int32_t[]){0, 0, 0, 0, 0, 0, 0, 0}, 8);
    zt_dataset_close(d);
}

/* An example of n targets: each weighs 1/n, or 1/sqrt(n); the others 0. A text that is cut into
 * samples is one example. */
Test(jsonl, weights_are_of_the_targets_that_count) {
    const char *p = lines("a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cde\"}\n"
                                     "{\"prompt\": \"f\", \"completion\": \"g\"}\n"
                                     "{\"text\": \"0123456789abcdef\"}\n");
    for (int a = ZT_AVERAGE_SAMPLE; a <= ZT_AVERAGE_SQUARE; a++) {
        struct zt_dataset_config c = config(p, 9);
        c.average = (enum zt_average)a;
        struct zt_dataset *d = open_ok(c);
        double sum[3] = {0}; /* by how many targets its line has */
        for (int64_t s = 0; s < zt_dataset_samples(d); s++) {
            static struct read_row r;
            get(d, s, &r);
            for (int64_t i = 0; i < 9; i++) {
                if (r.targets[i] == -1) {
                    cr_assert_eq(r.weights[i], 0.0f);
                    continue;
                }
                int n = s > 0 ? 16 : i < 6 ? 4 : 2;
                double own = a == ZT_AVERAGE_SAMPLE ? 1.0 / n : 1.0 / sqrt(n);
                cr_assert_float_eq(r.weights[i], own, 1e-7, "sample %" PRId64 " place %" PRId64, s,
                                   i);
                sum[n == 4 ? 0 : n == 2 ? 1 : 2] += (double)r.weights[i];
            }
        }
        for (int i = 0; i < 3; i++) { /* a line weighs 1, or the root of its targets */
            double root[] = {2, sqrt(2), 4};
            cr_assert_float_eq(sum[i], a == ZT_AVERAGE_SAMPLE ? 1 : root[i], 1e-6);
        }
        zt_dataset_close(d);
    }
    struct zt_dataset_config c = config(data_text("t.txt", 20, 3), 8);
    c.average = ZT_AVERAGE_SQUARE;
    refused(c, ZT_EINVAL, WORDS("t.txt", "loss.average: square", ".jsonl"));
    c = config(data_bin("s.bin", 20, 2, 20240520, 1, 20, 1, 100), 8);
    c.average = ZT_AVERAGE_SAMPLE;
    refused(c, ZT_EINVAL, WORDS("s.bin", "loss.average: sample"));
}

/* ---- several files, splits, order, digest ---- */

Test(jsonl, files_are_apart_and_the_tail_is_of_rows) {
    mkdir(data_path("f"), 0700);
    for (int f = 0; f < 2; f++) {
        char text[1024] = "", name[32];
        for (int i = 0; i < 10; i++)
            sprintf(text + strlen(text), "{\"prompt\": \"%c\", \"completion\": \"%cxy\"}\n",
                    'a' + f, 'A' + i);
        snprintf(name, sizeof name, "f/%d.jsonl", f);
        lines(name, text);
    }
    struct zt_dataset_config c = config(data_path("f"), 11); /* two lines of 5 tokens a row */
    struct zt_dataset *all = open_ok(c);
    cr_assert_eq(zt_dataset_samples(all), 10);
    expect(all, 4, "aIxy.aJxy..", "Ixy.-Jxy.--", 1);
    expect(all, 5, "bAxy.bBxy..", "Axy.-Bxy.--", 1);
    c.tail_fraction = 0.4;
    struct zt_dataset *front = open_ok(c);
    c.tail = true;
    struct zt_dataset *tail = open_ok(c);
    cr_assert_eq(zt_dataset_samples(front), 6);
    cr_assert_eq(zt_dataset_samples(tail), 4);
    expect(front, 2, "aExy.aFxy..", "Exy.-Fxy.--", 1);
    expect(tail, 0, "aGxy.aHxy..", "Gxy.-Hxy.--", 1);
    expect(tail, 2, "bGxy.bHxy..", "Gxy.-Hxy.--", 1);
    zt_dataset_close(all);
    zt_dataset_close(front);
    zt_dataset_close(tail);
}

/* Equal lengths in all, rows that begin elsewhere: another deck. */
Test(jsonl, the_digest_covers_where_rows_begin) {
    mkdir(data_path("1"), 0700);
    mkdir(data_path("2"), 0700);
    mkdir(data_path("3"), 0700);
    lines("1/a.jsonl",
          "{\"prompt\":\"aaaa\",\"completion\":\"bb\"}\n"
          "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    lines("2/a.jsonl",
          "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n"
          "{\"prompt\":\"aaaa\",\"completion\":\"bb\"}\n");
    lines("3/a.jsonl",
          "{\"prompt\":\"aaaa\",\"completion\":\"bc\"}\n"
          "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"prompt\":\"a\",\"completion\":\"b\"}\n");
    uint64_t digest[3];
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "%d", i + 1);
        struct zt_dataset *d = open_ok(config(data_path(name), 7));
        cr_assert_eq(zt_dataset_samples(d), 2);
        digest[i] = zt_dataset_digest(d);
        zt_dataset_close(d);
    }
    cr_assert_neq(digest[0], digest[1]);
    cr_assert_eq(digest[0], digest[2]); /* of places, not of contents */
}

/* A row is the same whoever reads it, in whatever order. */
Test(jsonl, any_order_gives_the_same_rows) {
    char *text = malloc(1 << 16);
    size_t at = 0;
    for (int i = 0; i < 300; i++)
        at += (size_t)sprintf(text + at,
                              i % 3 ? "{\"prompt\": \"%0*d\", \"completion\": \"%0*d\"}\n"
                                    : "{\"text\": \"%0*d%0*d\"}\n",
                              1 + i * 7 % 23, i, 1 + i * 5 % 31, i);
    struct zt_dataset_config c = config(data_write("m.jsonl", text, at), 48);
    c.document_starts = true;
    c.average = ZT_AVERAGE_SAMPLE;
    struct zt_dataset *a = open_ok(c), *b = open_ok(c);
    int64_t n = zt_dataset_samples(a), targets = 0, padding = 0;
    static struct read_row x, y;
    double lines_in_all = 0;
    for (int64_t s = 0; s < n; s++) get(a, s, &x);
    for (int64_t s = n; s-- > 0;) {
        get(a, s, &x);
        get(b, s, &y);
        cr_assert_arr_eq(x.tokens, y.tokens, 48 * 4);
        cr_assert_arr_eq(x.targets, y.targets, 48 * 4);
        cr_assert_arr_eq(x.starts, y.starts, 48 * 4);
        cr_assert_arr_eq(x.weights, y.weights, 48 * 4);
        padding += x.row.padding;
        for (int i = 0; i < 48; i++) {
            targets += x.targets[i] != -1;
            lines_in_all += (double)x.weights[i];
            cr_assert(x.starts[i] >= 0 && x.starts[i] <= i);
        }
    }
    cr_assert_float_eq(lines_in_all, 300, 1e-3);
    char said[64];
    snprintf(said, sizeof said, "%" PRId64 " targets count, padding %.1f %%", targets,
             100.0 * (double)padding / (double)(48 * n));
    cr_assert(told("DATA_PACKED", said), "%s, not %s", events[0], said);
    zt_dataset_close(a);
    zt_dataset_close(b);
    free(text);
}

/* Each file call in turn fails: an error that names the file. */
Test(jsonl, every_failing_file_call_is_reported) {
    const char *p = lines("t.jsonl", "{\"text\": \"abcdefghijkl\"}\n");
    bool passed = false;
    int64_t at;
    for (at = 1; at < 40 && !passed; at++) {
        struct zt_sys_nth state = {.real = &zt_sys_posix, .fail_at = at, .error = EIO};
        struct zt_sys sys = zt_sys_fail_nth(&state);
        struct zt_dataset_config c = config(p, 4);
        c.sys = &sys;
        struct zt_dataset *d;
        struct zt_error err = {0};
        int32_t tokens[4], targets[4];
        struct zt_row row = {.tokens = tokens, .targets = targets};
        int rc = zt_dataset_open(&c, &d, &err);
        if (rc == 0) rc = zt_dataset_read(d, 2, &row, &err);
        zt_dataset_close(d);
        passed = state.calls < at;
        if (rc != 0)
            cr_assert(rc == ZT_EDATA && strstr(err.msg, "t.jsonl") &&
                          strstr(err.msg, "Input/output"),
                      "%s", err.msg);
        else
            cr_assert(passed || at == 5 || at == 9, "call %" PRId64, at); /* the closes */
    }
    /* open fstat read read (the end) close; open fstat read close: the row is full; then none */
    cr_assert_eq(at, 11, "%" PRId64, at);
}
