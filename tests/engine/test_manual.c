/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of docs/manual.md, "Choosing a sharding mode", against the runs they describe: bytes
 * of state, peak and traffic of gpt2-nano on four ranks, every row of its tables, to the byte. */
#include "tests/engine/train_util.h"

TestSuite(manual, .init = data_setup, .fini = data_teardown);

#define ROWS_MAX 16

struct figures {
    int64_t parameters, gradients, optimizer, peak, sent;
};

/* ---- the document ---- */

static char *chapter(void) {
    static char *text; /* one copy, for the whole program */
    if (text) return strstr(text, "\n## Choosing a sharding mode\n");
    FILE *f = fopen(ZT_MANUAL, "re");
    cr_assert(f, ZT_MANUAL);
    size_t n = 0, got;
    char piece[4096];
    FILE *out = open_memstream(&text, &n);
    while ((got = fread(piece, 1, sizeof piece, f)) > 0) fwrite(piece, 1, got, out);
    fclose(f);
    fclose(out);
    char *from = strstr(text, "\n## Choosing a sharding mode\n");
    cr_assert(from);
    char *to = strstr(from + 1, "\n## ");
    cr_assert(to);
    *to = 0;
    return from;
}

/* "1,234,567" */
static int64_t number(const char **at) {
    int64_t v = 0;
    const char *p = *at + strcspn(*at, "0123456789");
    for (; (*p >= '0' && *p <= '9') || *p == ','; p++)
        if (*p != ',') v = v * 10 + (*p - '0');
    *at = p;
    return v;
}

static const char *with_commas(int64_t v) {
    static char text[32];
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%lld", (long long)v), k = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) text[k++] = ',';
        text[k++] = digits[i];
    }
    text[k] = 0;
    return text;
}

/* Cell 1 of a row is `key`; `skip` more cells, then the five figures. */
static bool row_of(const char **line, char key[128], int skip, struct figures *f) {
    const char *p = strstr(*line, "\n| `");
    const char *next = strstr(*line, "\n### ");
    if (!p || (next && p > next)) return false;
    p += 4;
    size_t n = strcspn(p, "`");
    cr_assert_lt(n, 128);
    memcpy(key, p, n);
    key[n] = 0;
    p += n + 1;
    for (; skip > 0; skip--) p = strchr(p, '|') + 1;
    p = strchr(p, '|');
    f->parameters = number(&p);
    f->gradients = number(&p);
    f->optimizer = number(&p);
    f->peak = number(&p);
    f->sent = number(&p);
    *line = p;
    return true;
}

/* ---- the runs ---- */

static struct figures measured(const char *more, int accumulation) {
    const char *path = data_path("text.txt");
    struct train_job *j =
        train_ok(4, train_yaml("model: {preset: gpt2-nano}\ndataset: {path: %s, tokenizer: bytes}\n"
                               "training: {steps: 2, seq_len: 128, local_batch_size: 1, "
                               "global_batch_size: %d%s",
                               path, 4 * accumulation, more));
    const struct zt_step_report *r = &j->rank[0].report[2];
    for (int k = 1; k < 4; k++) {
        const struct zt_step_report *o = &j->rank[k].report[2];
        cr_assert_eq(o->peak_allocated_bytes, r->peak_allocated_bytes, "rank %d: %s", k, more);
        cr_assert_eq(o->sent_bytes, r->sent_bytes, "rank %d: %s", k, more);
    }
    struct figures f = {r->persistent_parameters, r->persistent_gradients, r->persistent_optimizer,
                        r->peak_allocated_bytes, r->sent_bytes};
    munmap(j, sizeof *j);
    return f;
}

static void write_text(void) {
    char text[40 * 130];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 26);
    data_write("text.txt", text, sizeof text);
}

static void expect_row(const char *key, const struct figures *doc, const char *more) {
    struct figures is = measured(more, 1);
    cr_expect_eq(memcmp(&is, doc, sizeof is), 0, "%s: the run has %lld | %lld | %lld | %lld | %lld",
                 key, (long long)is.parameters, (long long)is.gradients, (long long)is.optimizer,
                 (long long)is.peak, (long long)is.sent);
}

static int expect_table(const char *title, int skip, const char *format) {
    const char *line = strstr(chapter(), title);
    struct figures doc;
    char key[128], more[512];
    int rows = 0;
    cr_assert(line, "%s", title);
    line += strlen(title);
    for (; row_of(&line, key, skip, &doc); rows++) {
        snprintf(more, sizeof more, format, key);
        expect_row(key, &doc, more);
    }
    return rows;
}

Test(manual, modes) {
    write_text();
    cr_expect_eq(expect_table("### One model in every mode", 0, "}\nparallelism: %s\n"), 7);
}

Test(manual, recipes) {
    write_text();
    cr_expect_eq(expect_table("### One model in every recipe", 1,
                              "}\nparallelism: {mode: fsdp}\n"
                              "precision: {recipe: %s, reduce_dtype: fp32}\n"),
                 8);
}

Test(manual, frozen) {
    write_text();
    cr_expect_eq(expect_table("### Training a part of the model", 0,
                              ", trainable: [\"*.h.3.*\", \"*.ln_f.*\"]}\n"
                              "parallelism: {mode: %s}\n"),
                 2);
}

/* The figures between the tables. */
Test(manual, prose) {
    static const struct {
        const char *parallelism;
        int accumulation;
        bool peak;
    } said[] = {
        {"{mode: fsdp, wrap: part}", 1, true},
        {"{mode: fsdp, wrap: 2}", 1, true},
        {"{mode: fsdp, prefetch: 0}", 1, true},
        {"{mode: ddp}", 4, true},
        {"{mode: zero2}", 4, true},
        {"{mode: zero2}", 4, false},
        {"{mode: zero3}", 4, false},
    };
    const char *text = chapter();
    write_text();
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        char more[128];
        snprintf(more, sizeof more, "}\nparallelism: %s\n", said[i].parallelism);
        struct figures f = measured(more, said[i].accumulation);
        const char *figure = with_commas(said[i].peak ? f.peak : f.sent);
        cr_expect(strstr(text, figure), "%s: %s is not in the text", said[i].parallelism, figure);
    }
}
