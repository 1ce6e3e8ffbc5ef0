/* SPDX-License-Identifier: Apache-2.0 */
/* Charts: what gnuplot drew, read back out of the SVG. Heights of bars and areas under edges are measured in the
 * file and held against the bytes; text of any kind is drawn as it is and starts nothing. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clients/zctl/plot.h"

static char folder[64], path[96];
static struct zt_error err;

static void setup(void) {
    snprintf(folder, sizeof folder, "/tmp/zt-plot-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/chart.svg", folder);
}

static void teardown(void) {
    unlink(path);
    cr_assert_eq(rmdir(folder), 0, "something else was left in %s", folder);
}

TestSuite(plot, .init = setup, .fini = teardown);

static char *svg(void) {
    FILE *f = fopen(path, "r");
    cr_assert(f);
    char *text = calloc(1, 1 << 20);
    cr_assert(text && fread(text, 1, (1 << 20) - 1, f) > 0);
    fclose(f);
    cr_assert(strstr(text, "</svg>"));
    return text;
}

/* Polygons filled with a colour, in the order in which they were drawn (the first is the legend's): left edge,
 * right edge, area. */
struct polygon { double left, right, area; };
static int polygons(const char *text, const char *fill, struct polygon *out, int most) {
    int n = 0;
    char start[80];
    snprintf(start, sizeof start, "<polygon fill = '%s' points = '", fill);
    for (const char *p = strstr(text, start); p; p = strstr(p, start)) {
        double x[64], y[64], twice = 0;
        int k = 0, used;
        p += strlen(start);
        for (; k < 64 && sscanf(p, "%lf,%lf %n", &x[k], &y[k], &used) == 2; k++)
            p += used;
        cr_assert(k >= 4 && n < most);
        out[n] = (struct polygon){x[0], x[0], 0};
        for (int i = 0; i < k; i++) {
            int j = (i + 1) % k;
            twice += x[i] * y[j] - x[j] * y[i];
            out[n].left = x[i] < out[n].left ? x[i] : out[n].left;
            out[n].right = x[i] > out[n].right ? x[i] : out[n].right;
        }
        out[n++].area = twice < 0 ? -twice / 2 : twice / 2;
    }
    return n;
}

#define BLUE "rgb(  0, 114, 178)"
#define ORANGE "rgb(230, 159,   0)"
#define GREEN "rgb(  0, 158, 115)"
#define PINK "rgb(204, 121, 167)"

static bool has(const char *text, const char *word) {
    char whole[600];
    snprintf(whole, sizeof whole, "<text>%s</text>", word);
    bool there = strstr(text, whole);
    snprintf(whole, sizeof whole, ">%s</tspan>", word); /* strings with spaces are spans */
    return there || strstr(text, whole);
}

/* 1e9 parameters, mixed16, 8 ranks: 16 / 5.5 / 3.75 / 2 GB. Every part is as high as its bytes. */
Test(plot, bars_are_as_high_as_their_bytes) {
    static const struct zt_plot_bar bars[] = {
        {"ddp", {2000000000, 2000000000, 12000000000, 0, 0, 0}},
        {"zero1", {2000000000, 2000000000, 1500000000, 0, 0, 0}},
        {"zero2", {2000000000, 250000000, 1500000000, 0, 0, 0}},
        {"zero3", {250000000, 250000000, 1500000000, 0, 0, 0}}};
    static const char *const fills[] = {BLUE, ORANGE, GREEN};
    const struct zt_plot_head h = {.title = "state"};
    cr_assert_eq(zt_plot_bars(path, &h, bars, 4, &err), 0, "%s", err.msg);
    char *text = svg();
    const char *const words[] = {"16.00", "5.50", "3.75", "ddp", "zero3", "GB", "state", "parameters", "gradients",
                                 "optimizer", "12.00", "1.50"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        cr_assert(has(text, words[i]), "%s", words[i]);
    cr_assert_not(has(text, "activations"), "a category without bytes is in the legend");
    double per_byte = 0;
    for (int c = 0; c < 3; c++) {
        struct polygon p[8];
        cr_assert_eq(polygons(text, fills[c], p, 8), 5, "the legend and four bars");
        for (int i = 0; i < 4; i++) {
            double high = p[i + 1].area / (p[i + 1].right - p[i + 1].left);
            per_byte = per_byte > 0 ? per_byte : high / 2e9;
            cr_assert_float_eq(high, per_byte * (double)bars[i].bytes[c], 0.1, "bar %d, category %d", i, c);
        }
    }
    cr_assert_gt(per_byte * 16e9, 200, "the tallest bar fills the chart");
    free(text);
}

/* The area under an edge is the integral of what is below it; bytes hold until the next point. */
Test(plot, area_holds_until_the_next_point) {
    static const double x[] = {0, 1, 2, 4, 8};
    static const int64_t bytes[][ZT_PLOT_CATEGORIES] = {{1000, 0, 3000, 0, 0, 0}, {1000, 0, 3000, 4000, 0, 0},
                                                        {1000, 2000, 3000, 1000, 0, 0}, {1000, 500, 3000, 0, 0, 0},
                                                        {0, 0, 0, 0, 0, 0}};
    static const struct zt_plot_mark mark = {2, "backward"};
    const struct zt_plot_head h = {.title = "step", .x_label = "ms (estimate)", .binary = true};
    const struct zt_plot_area a = {5, x, bytes, 1, &mark};
    cr_assert_eq(zt_plot_area(path, &h, &a, &err), 0, "%s", err.msg);
    char *text = svg();
    static const char *const fills[] = {BLUE, ORANGE, GREEN, PINK};
    /* 1000 x 8; + 2000 x 2 + 500 x 4; + 3000 x 8; + 4000 x 1 + 1000 x 2 */
    static const double integral[] = {8000, 14000, 38000, 44000};
    double per = 0;
    for (int c = 0; c < 4; c++) {
        struct polygon p[4];
        cr_assert_eq(polygons(text, fills[c], p, 4), 2, "the legend and one area");
        per = per > 0 ? per : p[1].area / integral[0];
        cr_assert_float_eq(p[1].area / per, integral[c], 0.002 * integral[c], "category %d", c);
    }
    cr_assert(has(text, "KiB") && has(text, "backward") && has(text, "activations"));
    cr_assert_not(has(text, "temporary"));
    free(text);
}

/* A line at the capacity, which is inside the chart though all bars are far below it. */
Test(plot, capacity_line) {
    static const struct zt_plot_bar bar = {"zero3", {2000000000, 0, 0, 0, 0, 0}};
    const struct zt_plot_head h = {.title = "t", .capacity = 80000000000, .capacity_label = "a100-80: 80 GB"};
    cr_assert_eq(zt_plot_bars(path, &h, &bar, 1, &err), 0, "%s", err.msg);
    char *text = svg();
    cr_assert(has(text, "a100-80: 80 GB"));
    const char *line = strstr(text, "stroke='rgb(176,   0,   0)'");
    cr_assert(line || strstr(text, "rgb(176,   0,   0)"), "no line in the colour of the capacity");
    struct polygon p[4];
    cr_assert_eq(polygons(text, BLUE, p, 4), 2);
    double x0, y0, x1, y1;
    const char *d = NULL;
    for (const char *q = text; (q = strstr(q, "stroke-dasharray")) != NULL && !d; q++)
        d = strstr(q, "d='M");
    cr_assert(d && sscanf(d, "d='M%lf,%lf L%lf,%lf", &x0, &y0, &x1, &y1) == 4 && y0 == y1 && x1 > x0 + 100);
    free(text);
}

/* Quotes, backquotes, markup, formats and escape sequences are text. */
Test(plot, text_is_text) {
    char bait[128], title[400], label[400];
    snprintf(bait, sizeof bait, "%s/made", folder);
    snprintf(title, sizeof title, "it's `touch %s` \"$(touch %s)\" <b>&amp; a_b^{c} \\n \033[31m", bait, bait);
    snprintf(label, sizeof label, "100%% %%d '\n; system('touch %s') #", bait);
    const struct zt_plot_bar bar = {label, {1000, 0, 0, 0, 0, 0}};
    const struct zt_plot_head h = {.title = title, .x_label = label, .capacity = 2000, .capacity_label = label};
    cr_assert_eq(zt_plot_bars(path, &h, &bar, 1, &err), 0, "%s", err.msg);
    char *text = svg();
    cr_assert(strstr(text, "it's `touch"), "the title is not as it was");
    cr_assert(strstr(text, "&lt;b") && strstr(text, "&amp;amp; a_b^{c} \\n \\033[31m"), "markup is not as it was");
    cr_assert(strstr(text, "100% %d '\\012; system('touch"), "the label is not as it was");
    cr_assert_neq(access(bait, F_OK), 0, "text was run as a command");
    free(text);
}

Test(plot, refusals) {
    static const struct zt_plot_bar none = {"a", {0}}, negative = {"a", {1, -1, 0, 0, 0, 0}},
                                    huge = {"a", {INT64_MAX, 1, 0, 0, 0, 0}}, good = {"a", {1, 0, 0, 0, 0, 0}};
    static const double back[] = {0, 2, 1}, still[] = {1, 1};
    static const int64_t bytes[3][ZT_PLOT_CATEGORIES] = {{1, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0}, {0}};
    const struct zt_plot_head h = {.title = "t"};
    cr_assert_eq(zt_plot_bars(path, &h, &none, 1, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_bars(path, &h, &none, 0, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_bars(path, &h, &negative, 1, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "gradients"), "%s", err.msg);
    cr_assert_eq(zt_plot_bars(path, &h, &huge, 1, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_area(path, &h, &(struct zt_plot_area){3, back, bytes, 0, NULL}, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_area(path, &h, &(struct zt_plot_area){2, still, bytes, 0, NULL}, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_area(path, &h, &(struct zt_plot_area){1, still, bytes, 0, NULL}, &err), ZT_EINVAL);
    cr_assert_eq(zt_plot_bars("/nowhere/at/all.svg", &h, &good, 1, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "/nowhere/at/all.svg"), "%s", err.msg);
    cr_assert_neq(access(path, F_OK), 0, "a refusal left a file");
}

/* Without gnuplot: which package, and no file. With one that fails: what it said. */
Test(plot, gnuplot_missing_or_broken) {
    static const struct zt_plot_bar good = {"a", {1, 0, 0, 0, 0, 0}};
    const struct zt_plot_head h = {.title = "t"};
    setenv("PATH", "/nowhere", 1);
    cr_assert_eq(zt_plot_bars(path, &h, &good, 1, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "gnuplot-nox"), "%s", err.msg);
    cr_assert_neq(access(path, F_OK), 0);
    char fake[96], search[128];
    snprintf(fake, sizeof fake, "%s/gnuplot", folder);
    snprintf(search, sizeof search, "%s:/usr/bin:/bin", folder);
    for (int broken = 0; broken < 2; broken++) {
        FILE *f = fopen(fake, "w");
        cr_assert(f);
        fputs(broken ? "#!/bin/sh\necho '<svg>'\nexit 0\n" : "#!/bin/sh\necho no such terminal >&2\nexit 1\n", f);
        fclose(f);
        chmod(fake, 0755);
        setenv("PATH", search, 1);
        cr_assert_eq(zt_plot_bars(path, &h, &good, 1, &err), ZT_EIO, "%d", broken);
        cr_assert(strstr(err.msg, broken ? "nothing" : "no such terminal"), "%s", err.msg);
        cr_assert_neq(access(path, F_OK), 0);
    }
    unlink(fake);
}
