/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plot.c: what gnuplot is told, and the child that it runs in. Both its input and its output are files
 * without names: neither side can block the other, and no name has to be quoted. */
#include "clients/zctl/plot.h"
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clients/zctl/out.h"

#define SVG_MOST (256l << 20)

#define HIGH 480 /* of a panel */
#define ALARM "#b00000"

extern char **environ;

/* Colours of Okabe and Ito; text on the dark ones is white. */
static const struct { const char *name, *fill, *text; } category[ZT_PLOT_CATEGORIES] = {
    [ZT_PLOT_PARAMETERS] = {"parameters", "#0072b2", "#ffffff"},
    [ZT_PLOT_GRADIENTS] = {"gradients", "#e69f00", "#000000"},
    [ZT_PLOT_OPTIMIZER] = {"optimizer", "#009e73", "#ffffff"},
    [ZT_PLOT_ACTIVATIONS] = {"activations", "#cc79a7", "#000000"},
    [ZT_PLOT_TEMPORARY] = {"temporary", "#f0e442", "#000000"},
    [ZT_PLOT_COMMUNICATION] = {"communication", "#56b4e9", "#000000"},
    [ZT_PLOT_UNUSED] = {"reserved, not in use", "#e2e2e2", "#000000"},
};

const char *zt_plot_category_name(enum zt_plot_category c) {
    return (unsigned)c < ZT_PLOT_CATEGORIES ? category[c].name : "?";
}

/* ---------------------------------------------------------------------------------- text and numbers */

/* A gnuplot string in single quotes: nothing in it is replaced but a doubled quote (in double quotes a backquote
 * would start a command). tic: what names a tic is a number format too, in which % is doubled. */
static void quote(FILE *f, const char *text, bool tic) {
    char *safe = zt_escape(text, strlen(text), false);
    fputc('\'', f);
    for (const char *p = safe ? safe : ""; *p; p++) {
        if (*p == '\'' || (tic && *p == '%'))
            fputc(*p, f);
        fputc(*p, f);
    }
    fputc('\'', f);
    free(safe);
}

struct scale { double unit; const char *name; };

static struct scale scale_of(int64_t top, bool binary) {
    static const struct scale decimal[] = {{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}, {1, "B"}},
                              two[] = {{1073741824.0, "GiB"}, {1048576.0, "MiB"}, {1024.0, "KiB"}, {1, "B"}};
    const struct scale *s = binary ? two : decimal;
    while (s->unit > 1 && (double)top < s->unit)
        s++;
    return *s;
}

/* ---------------------------------------------------------------------------------- the child */

/* All of f from its start, malloc'ed, with a NUL behind it. */
static int slurp(FILE *f, char **text, size_t *n, struct zt_error *err) {
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (size < 0 || size > SVG_MOST)
        return zt_fail(err, ZT_EIO, "chart: gnuplot wrote %ld bytes, which is no chart", size);
    rewind(f);
    *text = malloc((size_t)size + 1);
    if (!*text)
        return zt_fail(err, ZT_ENOMEM, "no host memory for a chart of %ld bytes", size);
    *n = fread(*text, 1, (size_t)size, f);
    (*text)[*n] = '\0';
    return 0;
}

/* Runs gnuplot on the three streams and waits for its end. */
static int run_gnuplot(FILE *in, FILE *out, FILE *said, struct zt_error *err) {
    char *argv[] = {(char *)(uintptr_t)"gnuplot", (char *)(uintptr_t)"-d", NULL}; /* -d: no settings of the user's */
    posix_spawn_file_actions_t files;
    pid_t pid;
    int status = 0, rc = posix_spawn_file_actions_init(&files);
    if (rc)
        return zt_fail(err, ZT_ENOMEM, "chart: %s", strerror(rc));
    posix_spawn_file_actions_adddup2(&files, fileno(in), 0);
    posix_spawn_file_actions_adddup2(&files, fileno(out), 1);
    posix_spawn_file_actions_adddup2(&files, fileno(said), 2);
    rc = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (rc == ENOENT)
        return zt_fail(err, ZT_EUNSUPPORTED, "charts are drawn by gnuplot, which is not installed: install the package "
                       "gnuplot-nox (Debian, Ubuntu), or leave out --svg and take the numbers from -o json or csv");
    if (rc)
        return zt_fail(err, ZT_EIO, "chart: gnuplot cannot be started: %s", strerror(rc));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return zt_fail(err, ZT_EIO, "chart: gnuplot was lost: %s", strerror(errno));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : ZT_EIO;
}

static int write_chart(const char *path, const char *svg, size_t n, struct zt_error *err) {
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdout : fopen(path, "we");
    if (!f)
        return zt_fail(err, ZT_EINVAL, "%s: the chart cannot be written: %s", path, strerror(errno));
    bool whole = fwrite(svg, 1, n, f) == n && fflush(f) == 0;
    int why = errno;
    if (!standard && fclose(f) != 0 && whole) {
        whole = false;
        why = errno;
    }
    return whole ? 0 : zt_fail(err, ZT_EIO, "%s: the chart cannot be written: %s", path, strerror(why));
}

/* `script` holds what gnuplot is told; it is closed here. */
static int draw(const char *path, FILE *script, struct zt_error *err) {
    FILE *out = tmpfile(), *said = tmpfile();
    char *svg = NULL, *words = NULL, *safe = NULL;
    size_t n = 0, n_words = 0;
    int rc = 0;
    if (!out || !said || fflush(script) != 0 || ferror(script) || lseek(fileno(script), 0, SEEK_SET) != 0)
        rc = zt_fail(err, ZT_EIO, "chart: no room for temporary files: %s", strerror(errno));
    bool ran = rc == 0;
    if (rc == 0) {
        err->msg[0] = '\0';
        rc = run_gnuplot(script, out, said, err);
    }
    if (ran && (rc == 0 || err->msg[0] == '\0')) { /* it ended: well, or with words of its own */
        int got = slurp(out, &svg, &n, err);
        got = got ? got : slurp(said, &words, &n_words, err);
        if (got == 0 && (rc || !strstr(svg, "</svg>"))) {
            safe = zt_escape(words, n_words > 300 ? 300 : n_words, false);
            got = zt_fail(err, ZT_EIO, "chart: gnuplot drew nothing; it said: %s", safe && safe[0] ? safe : "nothing");
        }
        rc = got ? got : write_chart(path, svg, n, err);
    }
    free(safe);
    free(words);
    free(svg);
    if (out)
        fclose(out);
    if (said)
        fclose(said);
    fclose(script);
    return rc;
}

/* ---------------------------------------------------------------------------------- what both have */

/* Title, axes and capacity of a panel, the first or another one; room above the top is for words. */
static void begin(FILE *f, const struct zt_plot_head *h, double top, double room, struct scale s) {
    fputs("reset\nset title ", f);
    quote(f, h->title ? h->title : "", false);
    fprintf(f, "\nset ylabel '%s'\nset yrange [0:%.17g]\nset grid ytics lc rgb '#dddddd'\nset border 3\n"
               "set tics nomirror out\nset key outside right top Left reverse samplen 1\n",
            s.name, top / s.unit * room);
    if (h->x_label) {
        fputs("set xlabel ", f);
        quote(f, h->x_label, false);
        fputc('\n', f);
    }
    if (h->capacity > 0) {
        double y = (double)h->capacity / s.unit;
        fprintf(f, "set arrow from graph 0, first %.17g to graph 1, first %.17g nohead front dt 2 lw 2 lc rgb '%s'\n"
                   "set label ", y, y, ALARM);
        quote(f, h->capacity_label ? h->capacity_label : "capacity", false);
        fprintf(f, " at graph 0.99, first %.17g right offset 0,0.6 front tc rgb '%s'\n", y, ALARM);
    }
}

/* The sum of a stack, or a refusal. */
static int stack_of(const int64_t bytes[ZT_PLOT_CATEGORIES], int64_t *sum, struct zt_error *err) {
    *sum = 0;
    for (int c = 0; c < ZT_PLOT_CATEGORIES; c++)
        if (bytes[c] < 0 || __builtin_add_overflow(*sum, bytes[c], sum))
            return zt_fail(err, ZT_EINVAL, "chart: %lld bytes of %s cannot be drawn", (long long)bytes[c],
                           category[c].name);
    return 0;
}

/* ---------------------------------------------------------------------------------- bars */

#define HALF 0.32 /* of a bar's width, on an axis that has one bar at each whole number */

/* A part of every bar: "x middle low high". */
static void bar_data(FILE *f, const struct zt_plot_bar *bars, int n, int c, struct scale s) {
    fprintf(f, "$c%d << EOD\n", c);
    for (int i = 0; i < n; i++) {
        int64_t low = 0;
        for (int k = 0; k < c; k++)
            low += bars[i].bytes[k];
        double a = (double)low / s.unit, b = (double)(low + bars[i].bytes[c]) / s.unit;
        fprintf(f, "%d %.17g %.17g %.17g\n", i, (a + b) / 2, a, b);
    }
    fputs("EOD\n", f);
}

/* Numbers inside the parts, where a part is as high as a line of text. */
static void bar_numbers(FILE *f, const struct zt_plot_bar *bars, int n, double top, struct scale s) {
    for (int i = 0; i < n; i++) {
        double low = 0;
        for (int c = 0; c < ZT_PLOT_CATEGORIES; c++) {
            double v = (double)bars[i].bytes[c] / s.unit;
            if (v > 0.06 * top)
                fprintf(f, "set label '%.2f' at first %d, first %.17g center front font ',11' tc rgb '%s'\n", v, i,
                        low + v / 2, category[c].text);
            low += v;
        }
        fprintf(f, "set label '%.2f' at first %d, first %.17g center offset 0,0.6 front\n", low, i, low);
    }
}

static bool bar_notes(FILE *f, const struct zt_plot_bar *bars, int n) {
    bool some = false;
    for (int i = 0; i < n; i++) {
        if (!bars[i].note)
            continue;
        some = true;
        fputs("set label ", f);
        quote(f, bars[i].note, false);
        fprintf(f, " at first %d, graph 0 center offset 0,-2.2 font ',11' tc rgb '%s'\n", i,
                bars[i].alarm ? ALARM : "#555555");
    }
    return some;
}

static void bars_script(FILE *f, const struct zt_plot_bar *bars, int n, double top, struct scale s) {
    bool some[ZT_PLOT_CATEGORIES] = {false}, first = true;
    fprintf(f, "set xrange [-0.6:%.1f]\nset xtics scale 0 (", n - 0.4);
    for (int i = 0; i < n; i++) {
        fputs(i ? ", " : "", f);
        quote(f, bars[i].label ? bars[i].label : "", true);
        fprintf(f, " %d", i);
        for (int c = 0; c < ZT_PLOT_CATEGORIES; c++)
            some[c] = some[c] || bars[i].bytes[c] > 0;
    }
    fputs(")\n", f);
    bar_numbers(f, bars, n, top, s);
    if (bar_notes(f, bars, n))
        fputs("set bmargin 5\nset xlabel offset 0,-1.4\n", f);
    for (int c = 0; c < ZT_PLOT_CATEGORIES; c++)
        if (some[c])
            bar_data(f, bars, n, c, s);
    for (int c = ZT_PLOT_CATEGORIES - 1; c >= 0; c--) { /* the legend reads as the stack does: its top first */
        if (!some[c])
            continue;
        fprintf(f, "%s $c%d using 1:2:($1-%g):($1+%g):3:4 with boxxyerror fs solid border rgb '#ffffff' lc rgb '%s' "
                   "title '%s'", first ? "plot" : ",", c, HALF, HALF, category[c].fill, category[c].name);
        first = false;
    }
    fputc('\n', f);
}

/* Room for the longest label below each bar. */
static int bars_width(const struct zt_plot_bar *bars, int n) {
    size_t longest = 12;
    for (int i = 0; i < n; i++) {
        if (bars[i].label && strlen(bars[i].label) > longest)
            longest = strlen(bars[i].label);
        if (bars[i].note && strlen(bars[i].note) > longest)
            longest = strlen(bars[i].note);
    }
    int width = 260 + n * (int)(longest > 40 ? 40 : longest) * 9;
    return width < 640 ? 640 : width;
}

static int bars_most(const struct zt_plot_bar *bars, int n, int64_t *most, struct zt_error *err) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        int rc = stack_of(bars[i].bytes, &sum, err);
        if (rc)
            return rc;
        *most = sum > *most ? sum : *most;
    }
    return n < 1 || n > 64 || *most == 0
               ? zt_fail(err, ZT_EINVAL, "chart: nothing to draw in %d bars (1 to 64 with bytes in them)", n)
               : 0;
}

/* ---------------------------------------------------------------------------------- area */

/* The upper edge of category c over the step, with a corner where the bytes change. */
static void area_data(FILE *f, const struct zt_plot_area *a, int c, struct scale s) {
    fprintf(f, "$c%d << EOD\n", c);
    double last = 0;
    for (int i = 0; i < a->n; i++) {
        int64_t edge = 0;
        for (int k = 0; k <= c; k++)
            edge += a->bytes[i][k];
        if (i > 0)
            fprintf(f, "%.17g %.17g\n", a->x[i], last);
        last = (double)edge / s.unit;
        if (i + 1 < a->n)
            fprintf(f, "%.17g %.17g\n", a->x[i], last);
    }
    fputs("EOD\n", f);
}

static void area_script(FILE *f, const struct zt_plot_area *a, struct scale s) {
    bool some[ZT_PLOT_CATEGORIES] = {false}, first = true;
    fprintf(f, "set xrange [%.17g:%.17g]\n", a->x[0], a->x[a->n - 1]);
    for (int i = 0; i < a->n_marks; i++) {
        const struct zt_plot_mark *m = &a->marks[i];
        bool late = m->x - a->x[0] > 0.85 * (a->x[a->n - 1] - a->x[0]);
        fprintf(f, "set arrow from first %.17g, graph 0 to first %.17g, graph %.2f nohead front dt 3 lc rgb '#555555'\n"
                   "set label ", m->x, m->x, 1 - 0.05 * m->row);
        quote(f, m->label ? m->label : "", false);
        fprintf(f, " at first %.17g, graph %.2f %s front font ',11' tc rgb '#555555'\n", m->x, 0.98 - 0.05 * m->row,
                late ? "right offset -0.4,0" : "left offset 0.4,0");
    }
    for (int i = 0; i < a->n; i++)
        for (int c = 0; c < ZT_PLOT_CATEGORIES; c++)
            some[c] = some[c] || a->bytes[i][c] > 0;
    for (int c = 0; c < ZT_PLOT_CATEGORIES; c++)
        if (some[c])
            area_data(f, a, c, s);
    for (int c = ZT_PLOT_CATEGORIES - 1; c >= 0; c--) { /* each covers the lower part of the one before */
        if (!some[c])
            continue;
        fprintf(f, "%s $c%d using 1:2 with filledcurves y1=0 fs solid noborder lc rgb '%s' title '%s'",
                first ? "plot" : ",", c, category[c].fill, category[c].name);
        first = false;
    }
    fputc('\n', f);
}

static int area_most(const struct zt_plot_area *a, int64_t *most, struct zt_error *err) {
    int64_t sum = 0;
    if (a->n < 2)
        return zt_fail(err, ZT_EINVAL, "chart: nothing to draw in %d points", a->n);
    for (int i = 0; i < a->n; i++) {
        int rc = stack_of(a->bytes[i], &sum, err);
        if (rc)
            return rc;
        *most = sum > *most ? sum : *most;
        if (!(a->x[i] - a->x[0] >= 0) || (i > 0 && !(a->x[i] >= a->x[i - 1])))
            return zt_fail(err, ZT_EINVAL, "chart: point %d lies before the one before it", i);
    }
    return *most == 0 || !(a->x[a->n - 1] > a->x[0])
               ? zt_fail(err, ZT_EINVAL, "chart: nothing to draw: no bytes, or no time between the points")
               : 0;
}

/* ---------------------------------------------------------------------------------- files */

int zt_plot_panels(const char *path, const struct zt_plot_panel *panels, int n, struct zt_error *err) {
    int64_t most[ZT_PLOT_PANELS] = {0};
    int width = 640, rc = n < 1 || n > ZT_PLOT_PANELS ? zt_fail(err, ZT_EINVAL, "chart: %d panels", n) : 0;
    for (int i = 0; i < n && rc == 0; i++) {
        const struct zt_plot_panel *p = &panels[i];
        if (!p->bars && !p->area)
            return zt_fail(err, ZT_EINVAL, "chart: nothing to draw");
        rc = p->bars ? bars_most(p->bars, p->n_bars, &most[i], err) : area_most(p->area, &most[i], err);
        int wide = p->bars ? bars_width(p->bars, p->n_bars) : 960;
        width = wide > width ? wide : width;
    }
    if (rc)
        return rc;
    FILE *f = tmpfile();
    if (!f)
        return zt_fail(err, ZT_EIO, "chart: no room for a temporary file: %s", strerror(errno));
    fprintf(f, "set encoding utf8\nset terminal svg noenhanced size %d,%d font 'sans-serif,13' background rgb 'white'\n",
            width, n * HIGH);
    if (n > 1)
        fprintf(f, "set multiplot layout %d,1\n", n);
    for (int i = 0; i < n; i++) {
        const struct zt_plot_panel *p = &panels[i];
        int64_t top = p->head.capacity > most[i] ? p->head.capacity : most[i];
        struct scale s = scale_of(top, p->head.binary);
        begin(f, &p->head, (double)top, !p->bars && p->area->n_marks > 0 ? 1.25 : 1.12, s);
        if (p->bars)
            bars_script(f, p->bars, p->n_bars, (double)top / s.unit, s);
        else
            area_script(f, p->area, s);
    }
    if (n > 1)
        fputs("unset multiplot\n", f);
    return draw(path, f, err);
}

int zt_plot_bars(const char *path, const struct zt_plot_head *h, const struct zt_plot_bar *bars, int n,
                 struct zt_error *err) {
    return zt_plot_panels(path, &(struct zt_plot_panel){.head = *h, .bars = bars, .n_bars = n}, 1, err);
}

int zt_plot_area(const char *path, const struct zt_plot_head *h, const struct zt_plot_area *a,
                 struct zt_error *err) {
    return zt_plot_panels(path, &(struct zt_plot_panel){.head = *h, .area = a}, 1, err);
}
