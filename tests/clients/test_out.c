/* SPDX-License-Identifier: Apache-2.0 */
/* What is printed: escaping for terminals, cells, tables, CSV, and the four formats of one list. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "clients/zctl/out.h"

static void expect_escape(const char *in, size_t n, bool tabs, const char *want) {
    char *got = zt_escape(in, n, tabs);
    cr_assert_str_eq(got, want);
    free(got);
}

Test(out, escapes_what_a_terminal_would_act_on) {
    expect_escape("plain text", 10, false, "plain text");
    expect_escape("\033[2J\033]0;title\007", 14, false, "\\033[2J\\033]0;title\\007");
    expect_escape("a\tb\n", 4, true, "a\tb\\012");
    expect_escape("a\tb", 3, false, "a\\011b");
    expect_escape("a\0b", 3, false, "a\\000b");
    expect_escape("\x7f", 1, false, "\\177");
    expect_escape("\xc2\x9b[1m", 5, false, "\\233[1m"); /* CSI as one character */
    expect_escape("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82", 15, false,
                  "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82");
    expect_escape("\xe2\x80\xae" "evil", 7, false, "\\u202eevil"); /* right-to-left override */
    expect_escape("\xff\xc3", 2, false, "\\377\\303");             /* not UTF-8 */
    expect_escape("\xc0\x80", 2, false, "\\300\\200");             /* overlong NUL */
    expect_escape("\xed\xa0\x80", 3, false, "\\355\\240\\200");    /* surrogate */
}

static const struct zt_column columns[] = {
    {"NAME", "name", ZT_CELL_TEXT, 0},
    {"LOSS", "loss", ZT_CELL_FIXED, 4},
    {"TOKENS", "tokens", ZT_CELL_COUNT, 0},
    {"BYTES", "mem.bytes", ZT_CELL_BYTES, 0},
    {"SHARE", "share", ZT_CELL_SHARE, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static json_t *two_rows(void) {
    json_t *rows = json_loads("[{\"name\": \"a\\u001b[1m\", \"loss\": 2.5, \"tokens\": 1234567,"
                              "  \"mem\": {\"bytes\": 1048576}, \"share\": 0.078},"
                              " {\"name\": \"b,\\\"c\\\"\", \"loss\": null, \"tokens\": 0,"
                              "  \"mem\": {\"bytes\": 512}, \"share\": null}]",
                              0, NULL);
    cr_assert(rows);
    return rows;
}

static char *print(enum zt_format format) {
    struct zt_options o = {.format = format};
    struct zt_error err;
    char *text = NULL;
    size_t n = 0;
    json_t *rows = two_rows(), *json = json_object();
    json_object_set_new(json, "list", rows);
    FILE *f = open_memstream(&text, &n);
    cr_assert_eq(zt_print_rows(f, &o, json, rows, columns, &err), 0, "%s", err.msg);
    fclose(f);
    json_decref(json);
    return text;
}

Test(out, table) {
    char *text = print(ZT_FORMAT_TABLE);
    cr_assert_str_eq(text, "NAME        LOSS     TOKENS     BYTES  SHARE\n"
                           "a\\033[1m  2.5000  1,234,567  1.00 MiB  7.8 %\n"
                           "b,\"c\"          -          0     512 B      -\n");
    free(text);
}

Test(out, csv) {
    char *text = print(ZT_FORMAT_CSV);
    cr_assert_str_eq(text, "name,loss,tokens,mem.bytes,share\n"
                           "a\033[1m,2.5,1234567,1048576,0.078\n"
                           "\"b,\"\"c\"\"\",,0,512,\n");
    free(text);
}

Test(out, json_and_lines) {
    char *text = print(ZT_FORMAT_JSON);
    json_t *o = json_loads(text, 0, NULL);
    cr_assert_eq(json_array_size(json_object_get(o, "list")), 2);
    cr_assert_eq(json_integer_value(zt_json_at(json_array_get(json_object_get(o, "list"), 0), "mem.bytes")),
                 1048576);
    cr_assert_null(zt_json_at(json_array_get(json_object_get(o, "list"), 1), "loss"));
    cr_assert_null(zt_json_at(json_array_get(json_object_get(o, "list"), 1), "mem.no"));
    json_decref(o);
    free(text);
    text = print(ZT_FORMAT_JSONL);
    int lines = 0;
    for (char *l = strtok(text, "\n"); l; l = strtok(NULL, "\n"), lines++) {
        o = json_loads(l, 0, NULL);
        cr_assert(json_is_object(o), "%s", l);
        json_decref(o);
    }
    cr_assert_eq(lines, 2);
    free(text);
}

Test(out, color) {
    struct zt_options o = {.color = ZT_COLOR_ALWAYS};
    cr_assert(zt_color_on(&o, stdout));
    o.color = ZT_COLOR_NEVER;
    cr_assert_not(zt_color_on(&o, stdout));
    o.color = ZT_COLOR_AUTO;
    FILE *f = tmpfile(); /* no terminal */
    cr_assert_not(zt_color_on(&o, f));
    fclose(f);
    cr_assert_str_eq(zt_state_color("FAILED", false), "");
    cr_assert_str_neq(zt_state_color("FAILED", true), "");
}

/* A terminal's last column is wrapped between words and never cut; a file has it in one line. */
Test(out, the_last_column_is_wrapped, .timeout = 20) {
    static const struct zt_column two[] = {{"N", "n", ZT_CELL_COUNT, 0}, {"WHY", "why", ZT_CELL_TEXT, 0}, {NULL, NULL, ZT_CELL_TEXT, 0}};
    static const struct { unsigned short width; const char *want; } row[] = {
        {24, "N  WHY\r\n1  prefetch for\r\n   backward: freed after\r\n   forward\r\n2  -\r\nend"},
        {25, "N  WHY\r\n1  prefetch for backward:\r\n   freed after forward\r\n2  -\r\nend"},
        {200, "N  WHY\r\n1  prefetch for backward: freed after forward\r\n2  -\r\nend"},
        {5, "N  WHY\r\n1  prefetch for backward: freed after forward\r\n2  -\r\nend"}};
    if (access("/dev/pts/ptmx", F_OK) != 0) cr_skip_test("no pseudo terminals here: /dev/pts is not mounted");
    json_t *rows = json_loads("[{\"n\": 1, \"why\": \"prefetch for backward: freed after forward\"}, {\"n\": 2}]", 0, NULL);
    struct zt_error err;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct winsize w = {.ws_col = row[i].width, .ws_row = 24};
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        cr_assert(rows && master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
        FILE *tty = fopen(ptsname(master), "w");
        char got[512] = "";
        cr_assert(tty && ioctl(fileno(tty), TIOCSWINSZ, &w) == 0);
        cr_assert_eq(zt_print_table(tty, rows, two, &err), 0);
        fputs("end", tty);
        fflush(tty);
        for (size_t n = 0; !strstr(got, "end") && n + 1 < sizeof got;) {
            ssize_t m = read(master, got + n, sizeof got - 1 - n);
            cr_assert_gt(m, 0);
            n += (size_t)m;
        }
        cr_expect_str_eq(got, row[i].want, "%d columns: %s", row[i].width, got);
        fclose(tty);
        close(master);
    }
    json_decref(rows);
}

/* What a terminal acts on does not reach one in JSON or CSV either; a file gets the text as it is. */
Test(out, json_and_csv_on_a_terminal, .timeout = 20) {
    if (access("/dev/pts/ptmx", F_OK) != 0) cr_skip_test("no pseudo terminals here: /dev/pts is not mounted");
    json_t *rows = json_loads("[{\"name\": \"a\\u009b1m\\u202eb\\u001b[2J\"}]", 0, NULL);
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    cr_assert(rows && master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    FILE *tty = fopen(ptsname(master), "w");
    char got[512] = "";
    cr_assert(tty);
    zt_print_json_line(tty, json_array_get(rows, 0));
    zt_print_json(tty, json_array_get(rows, 0));
    zt_print_csv(tty, rows);
    fputs("end", tty);
    fflush(tty);
    for (size_t n = 0; !strstr(got, "end") && n + 1 < sizeof got;) {
        ssize_t m = read(master, got + n, sizeof got - 1 - n);
        cr_assert_gt(m, 0);
        n += (size_t)m;
    }
    cr_expect(!strstr(got, "\xc2\x9b") && !strstr(got, "\xe2\x80\xae") && !strchr(got, '\033'), "%s", got);
    cr_expect(strstr(got, "a\\u009B1m\\u202Eb\\u001B[2J") != NULL, "%s", got);
    cr_expect(strstr(got, "a\\2331m\\u202eb\\033[2J") != NULL, "%s", got);
    fclose(tty);
    close(master);
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    zt_print_json_line(file, json_array_get(rows, 0));
    fclose(file);
    cr_expect(strstr(text, "\xc2\x9b") != NULL, "%s", text);
    free(text);
    json_decref(rows);
}
