/* SPDX-License-Identifier: Apache-2.0 */
/* The plan as a chart, measured in the SVG: parts of bars are as high as the bytes of the plans, areas below the edges
 * of the step are integrals over its time, the peak is told, what does not fit is marked. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/plan_charts.h"
#include "core/units.h"

#define YAML "version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n" \
    "training: {steps: 20, seq_len: 64, local_batch_size: 2, global_batch_size: 16}\nparallelism: {mode: zero1}\n"

#define BLUE "rgb(  0, 114, 178)"   /* parameters */
#define ORANGE "rgb(230, 159,   0)" /* gradients */
#define GREEN "rgb(  0, 158, 115)"  /* optimizer */

static char path[64];
static struct zt_error err;
static struct zt_spec spec;
static struct zt_cost_device device;
static struct zt_plan *plan, *other[2];

static struct zt_plan *plan_of(const struct zt_spec *s, int64_t capacity, bool details) {
    struct zt_plan_config c = {.spec = s, .device = &device, .capacity_bytes = capacity, .valid_samples = -1,
                               .details = details};
    struct zt_plan *p = NULL;
    cr_assert_eq(zt_plan_make(&c, &p, &err), 0, "%s", err.msg);
    return p;
}

static void setup(void) {
    static struct zt_spec ddp, fsdp;
    strcpy(path, "/tmp/zt-test-draw-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    device = (struct zt_cost_device){.name = "toy", .queued = true, .memory_bytes = 40000000, .host_ns = 3,
                                     .memory_bytes_per_second = 1e11, .within = {1000, 1e10, 0}, .across = {1000, 1e10, 0}};
    device.flops[ZT_COST_GEMM][ZT_F32] = 1e12;
    cr_assert_eq(zt_spec_parse(YAML, strlen(YAML), "t.yaml", NULL, 0, &spec, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_spec_resolve(&spec, 4, "t.yaml", &err), 0, "%s", err.msg);
    cr_assert_eq(zt_plan_mode(&spec, ZT_DDP, &ddp, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_plan_mode(&spec, ZT_FSDP, &fsdp, &err), 0, "%s", err.msg);
    plan = plan_of(&spec, 0, true);
    other[0] = plan_of(&ddp, plan->peak_reserved_bytes, false);
    other[1] = plan_of(&fsdp, 0, false);
    cr_assert(!other[0]->fits && other[1]->fits);
}

static void teardown(void) {
    unlink(path);
    zt_plan_free(plan);
    zt_plan_free(other[0]);
    zt_plan_free(other[1]);
    zt_spec_free(&spec);
}

TestSuite(plan_draw, .init = setup, .fini = teardown);

static char *drawn(void) {
    const struct zt_plan_bar modes[] = {
        {"ddp", other[0], false}, {"zero1", plan, true}, {"zero2", NULL, false}, {"fsdp", other[1], false}};
    cr_assert_eq(zt_plan_draw(plan, &spec, &device, modes, 4, path, &err), 0, "%s", err.msg);
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 22);
    cr_assert(f && text && fread(text, 1, (1 << 22) - 1, f) > 0);
    fclose(f);
    cr_assert(strstr(text, "</svg>"));
    return text;
}

static bool has(const char *text, const char *word) {
    char whole[600];
    snprintf(whole, sizeof whole, ">%s<", word);
    return strstr(text, whole);
}

/* What is filled with a colour, in the order in which it was drawn: width and area of each polygon. */
struct polygon { double width, area; };
static int polygons(const char *text, const char *fill, struct polygon *out, int most) {
    char start[80];
    int n = 0;
    snprintf(start, sizeof start, "<polygon fill = '%s' points = '", fill);
    for (const char *p = strstr(text, start); p; p = strstr(p, start)) {
        double x, y, x0 = 0, y0 = 0, first_x = 0, first_y = 0, left = 1e9, right = -1e9, twice = 0;
        int k = 0, used;
        p += strlen(start);
        for (; sscanf(p, "%lf,%lf %n", &x, &y, &used) == 2; k++, p += used) {
            left = x < left ? x : left;
            right = x > right ? x : right;
            if (k)
                twice += x0 * y - x * y0;
            else
                first_x = x, first_y = y;
            x0 = x;
            y0 = y;
        }
        twice += x0 * first_y - first_x * y0;
        cr_assert(k >= 4 && n < most);
        out[n++] = (struct polygon){right - left, twice < 0 ? -twice / 2 : twice / 2};
    }
    return n;
}

/* Legend, three bars, legend, area; a colour's place in the ledger is that of its tag. */
Test(plan_draw, bars_are_the_plans) {
    static const struct { const char *fill; enum zt_tag tag; } parts[] = {
        {BLUE, ZT_TAG_PARAMETERS}, {ORANGE, ZT_TAG_GRADIENTS}, {GREEN, ZT_TAG_OPTIMIZER}};
    const struct zt_plan *const of[] = {other[0], plan, other[1]};
    char *text = drawn();
    double per_byte = 0;
    for (size_t c = 0; c < 3; c++) {
        struct polygon p[8];
        cr_assert_eq(polygons(text, parts[c].fill, p, 8), 6);
        for (int i = 0; i < 3; i++) {
            double high = p[i + 1].area / p[i + 1].width, bytes = (double)of[i]->at_peak[parts[c].tag];
            per_byte = per_byte > 0 ? per_byte : high / bytes;
            cr_expect_float_eq(high, per_byte * bytes, 0.2, "bar %d, %s: %g", i, zt_tag_name(parts[c].tag), high);
        }
    }
    free(text);
}

/* The edges of the step, upwards: parameters; and gradients; and the optimizer's state. The height of a byte is not
 * known here, so areas are compared with each other. */
Test(plan_draw, areas_are_integrals_over_the_step) {
    static const char *const fills[] = {BLUE, ORANGE, GREEN};
    double integral[3] = {0}, area[3];
    for (size_t i = 0; i < plan->n_curve; i++) {
        int64_t end = i + 1 < plan->n_curve ? plan->curve[i + 1].at_ns : plan->step_ns;
        double held = (double)(end - plan->curve[i].at_ns), edge = 0;
        for (int c = 0; c < 3; c++) {
            edge += (double)plan->curve[i].by_tag[c];
            integral[c] += edge * held;
        }
    }
    char *text = drawn();
    for (int c = 0; c < 3; c++) {
        struct polygon p[8];
        cr_assert_eq(polygons(text, fills[c], p, 8), 6);
        area[c] = p[5].area;
    }
    cr_expect_float_eq(area[1] / area[0], integral[1] / integral[0], 0.005 * integral[1] / integral[0]);
    cr_expect_float_eq(area[2] / area[0], integral[2] / integral[0], 0.005 * integral[2] / integral[0]);
    free(text);
}

Test(plan_draw, words) {
    char *text = drawn(), line[96], n[32];
    static const char *const words[] = {
        "gpt2-nano on 4 x toy: memory of a rank at its peak, by mode (bytes exact, times estimated)", "MiB", "ddp",
        "zero1 (this file)", "fsdp", "does not fit", "forward 1", "forward 2", "backward 1", "optimizer",
        "us since the step began (estimate)", "parameters", "reserved, not in use", "capacity of the allocator: 38.15 MiB"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_expect(has(text, words[i]), "\"%s\" is not in the chart", words[i]);
    cr_expect_not(has(text, "zero2"), "a mode that cannot take the run has a bar");
    snprintf(line, sizeof line, "peak %s allocated",
             zt_format_bytes((double)plan->shape[0].window[ZT_WINDOW_STEADY].peak_allocated_bytes, n, sizeof n));
    cr_expect(has(text, line), "%s", line);
    snprintf(line, sizeof line, "%s, %.0f %% exposed", zt_format_seconds(plan->step_seconds, n, sizeof n),
             100 * plan->exposed.exposed_comm_seconds / plan->step_seconds);
    cr_expect(has(text, line), "%s", line);
    snprintf(line, sizeof line, "%.2f", (double)plan->peak_reserved_bytes / 1048576);
    cr_expect(has(text, line), "%s", line);
    free(text);
}

/* A step of a hundred thousand changes makes no chart of that many corners, and keeps its peak. */
Test(plan_draw, long_steps_are_thinned) {
    size_t n = 100000;
    struct zt_plan_point *v = calloc(n, sizeof *v), *was = plan->curve;
    cr_assert(v);
    for (size_t i = 0; i < n; i++) {
        v[i].at_ns = (int64_t)i;
        v[i].by_tag[ZT_TAG_ACTIVATIONS] = (i % 2 ? 1 << 20 : 2 << 20);
        v[i].reserved = 9 << 20;
    }
    v[54321].by_tag[ZT_TAG_ACTIVATIONS] = 8 << 20;
    plan->curve = v;
    plan->n_curve = n;
    plan->step_ns = (int64_t)n;
    char *text = drawn();
    cr_expect(has(text, "peak 8.00 MiB allocated"));
    cr_expect_lt(strlen(text), 500000);
    free(text);
    plan->curve = was;
    free(v);
}

Test(plan_draw, what_cannot_be_drawn) {
    const struct zt_plan_bar none = {"ddp", NULL, false};
    cr_assert_eq(zt_plan_draw(plan, &spec, &device, &none, 1, path, &err), 0, "the step alone: %s", err.msg);
    cr_assert_eq(zt_plan_draw(other[1], &spec, &device, NULL, 0, path, &err), ZT_EINTERNAL, "no details");
    cr_assert_eq(zt_plan_draw(plan, &spec, &device, &none, 1, "/nowhere/a.svg", &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "/nowhere/a.svg"), "%s", err.msg);
    setenv("PATH", "/nowhere", 1);
    cr_assert_eq(zt_plan_draw(plan, &spec, &device, &none, 1, path, &err), ZT_EUNSUPPORTED);
    cr_assert(strstr(err.msg, "gnuplot-nox"), "%s", err.msg);
}
