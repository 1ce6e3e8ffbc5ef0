/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plot.h: charts of memory as SVG files, drawn by gnuplot (Debian package gnuplot-nox), which runs as
 * a child and reads what it is told from a file without a name. gnuplot need not be installed for anything else:
 * without it a chart is refused, and the message says which package.
 *
 * Text of the caller's (titles, labels) may be anything; it is drawn as it is, never read as a command or as
 * markup. All pointers are borrowed for the call. One thread. */
#ifndef ZT_ZCTL_PLOT_H
#define ZT_ZCTL_PLOT_H
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"

/* From the bottom of a stack up. Each has a colour of its own, the same in every chart, that people who see
 * colours differently can tell apart. */
enum zt_plot_category {
    ZT_PLOT_PARAMETERS = 0, ZT_PLOT_GRADIENTS, ZT_PLOT_OPTIMIZER, ZT_PLOT_ACTIVATIONS, ZT_PLOT_TEMPORARY,
    ZT_PLOT_COMMUNICATION,
    ZT_PLOT_UNUSED,             /* in segments of the allocator, but not handed out */
    ZT_PLOT_CATEGORIES
};
const char *zt_plot_category_name(enum zt_plot_category c); /* "parameters", ... */

struct zt_plot_head {
    const char *title;
    const char *x_label;        /* NULL: none */
    int64_t capacity;           /* bytes: a dashed line across; 0 = none */
    const char *capacity_label; /* "a100-80: 80 GB"; NULL: "capacity" */
    bool binary;                /* axis and numbers in GiB (MiB, KiB) instead of GB (MB, kB) */
};

/* Stacked bars: one a mode. The total stands above each bar, a category's own number inside its part where there
 * is room. A category that is 0 in all bars has no entry in the legend. */
struct zt_plot_bar {
    const char *label;
    int64_t bytes[ZT_PLOT_CATEGORIES];
    const char *note;           /* a line below the label; NULL: none */
    bool alarm;                 /* the note in the colour of the capacity */
};

/* What is live over a step: the bytes of point i hold from x[i] to x[i + 1]; the last point ends the chart. Marks
 * are vertical lines with a word at the top, such as where backward begins; a row further down for words that would
 * lie over each other. */
struct zt_plot_mark { double x; const char *label; int row; };
struct zt_plot_area {
    int n;                      /* 2 or more points */
    const double *x;            /* ascending */
    const int64_t (*bytes)[ZT_PLOT_CATEGORIES];
    int n_marks;
    const struct zt_plot_mark *marks;
};

/* Writes the chart to `path` ("-": standard output); a file that is there is replaced, once gnuplot made a whole chart.
 * ZT_EUNSUPPORTED: gnuplot is not installed; ZT_EINVAL: nothing to draw, negative bytes, a path that cannot be
 * written; ZT_EIO: gnuplot failed, with what it said. */
int zt_plot_bars(const char *path, const struct zt_plot_head *h, const struct zt_plot_bar *bars, int n,
                 struct zt_error *err);
int zt_plot_area(const char *path, const struct zt_plot_head *h, const struct zt_plot_area *a,
                 struct zt_error *err);

/* Several charts in one file, one below the other. A panel has bars or an area. */
struct zt_plot_panel {
    struct zt_plot_head head;
    const struct zt_plot_bar *bars;
    int n_bars;
    const struct zt_plot_area *area; /* when bars is NULL */
};
#define ZT_PLOT_PANELS 4
int zt_plot_panels(const char *path, const struct zt_plot_panel *panels, int n, struct zt_error *err);
#endif
