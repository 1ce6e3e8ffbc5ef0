/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated step as a trace file, read back: exposed time by this file's own arithmetic on the slices, the peak
 * by the memory counter, and what viewers and analysers of profiles ask of such a file. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/plan_charts.h"

#define HEAD "version: 1\nname: t\nmodel: {preset: gpt2-nano}\ndataset: {path: /x, tokenizer: bytes}\n"
#define TRAINING "training: {steps: 20, seq_len: 64, local_batch_size: 2}\n"
#define TWO_MICROS "training: {steps: 20, seq_len: 64, local_batch_size: 2, global_batch_size: 16}\n"

struct way { const char *yaml; int ranks, per_host; bool queued; double slow; };
static const struct way ways[] = {
    {HEAD TRAINING "parallelism: {mode: ddp}\n", 4, 0, true, 0},
    {HEAD TRAINING "parallelism: {mode: ddp}\n", 4, 2, false, 0},
    {HEAD TRAINING "parallelism: {mode: zero1}\n", 4, 0, true, 0},
    {HEAD TWO_MICROS "parallelism: {mode: zero1, max_inflight_reduces: 1}\n", 4, 0, false, 0},
    {HEAD TWO_MICROS "parallelism: {mode: zero2}\n", 4, 2, true, 0},
    {HEAD TWO_MICROS "parallelism: {mode: zero3, prefetch: 0}\n", 4, 0, true, 0},
    {HEAD TRAINING "parallelism: {mode: zero3, prefetch: 1, reshard_after_forward: 2}\n", 4, 0, false, 0},
    {HEAD TRAINING "parallelism: {mode: fsdp, prefetch: 0}\n", 4, 0, false, 0},
    {HEAD TRAINING "parallelism: {mode: fsdp, prefetch: 1}\n", 4, 0, true, 0},
    {HEAD TRAINING "parallelism: {mode: fsdp, prefetch: 2}\n", 4, 2, true, 0},
    {HEAD TWO_MICROS "parallelism: {mode: fsdp, overlap: false}\n", 4, 0, true, 0},
    {HEAD TRAINING "parallelism: {mode: fsdp, data_parallel_replicate_degree: 2}\n", 8, 4, true, 0},
    {HEAD TWO_MICROS "parallelism: {mode: zero2, data_parallel_replicate_degree: 2}\n", 4, 1, false, 0},
    {HEAD TRAINING "precision: {recipe: fsdp_mixed, reduce_dtype: fp32}\nparallelism: {mode: fsdp}\n", 4, 0, true, 0},
    {HEAD TRAINING "precision: {recipe: mixed16, reduce_dtype: fp32}\nparallelism: {mode: zero1}\n", 4, 2, true, 0},
    {HEAD TRAINING "parallelism: {mode: fsdp}\n", 4, 0, true, 1.7},
    {HEAD TRAINING "validation: {fraction: 0.1, every_steps: 5}\nparallelism: {mode: fsdp}\n", 4, 0, true, 0},
    {HEAD TRAINING "parallelism: {mode: ddp}\n", 1, 0, true, 0},
};
#define N_WAYS (sizeof ways / sizeof *ways)

/* A link so slow that much of it shows. */
static struct zt_cost_device device_of(const struct way *w) {
    struct zt_cost_device d = {.name = "test", .queued = w->queued, .memory_bytes = INT64_C(1) << 40,
                               .launch_ns = 7, .host_ns = w->queued ? 3 : 0, .memory_bytes_per_second = 1e9,
                               .within = {1037, 3e8, 0}, .across = {9041, 4e7, 0}};
    d.flops[ZT_COST_GEMM][ZT_F32] = d.flops[ZT_COST_ATTENTION_FORWARD][ZT_F32] = 2e9;
    d.flops[ZT_COST_ATTENTION_BACKWARD][ZT_F32] = 1e9;
    return d;
}

static void spec_of(const struct way *w, struct zt_spec *s) {
    struct zt_error e = {0};
    cr_assert_eq(zt_spec_parse(w->yaml, strlen(w->yaml), "t.yaml", NULL, 0, s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve_up_to(s, w->ranks, ZT_PLAN_RANKS_MAX, "t.yaml", &e), 0, "%s", e.msg);
}

static struct zt_plan *plan_of(const struct way *w, const struct zt_spec *s) {
    struct zt_cost_device d = device_of(w);
    struct zt_plan_config c = {.spec = s, .device = &d, .ranks_per_host = w->per_host ? w->per_host : w->ranks,
                               .valid_samples = -1, .straggler = w->slow, .details = true};
    struct zt_error e = {0};
    struct zt_plan *p = NULL;
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s", e.msg);
    return p;
}

/* The file as written, parsed; duplicate keys are errors. */
static json_t *written(const struct zt_plan *p, const struct zt_spec *s) {
    char path[] = "/tmp/zt-test-trace-XXXXXX";
    struct zt_error e = {0};
    json_error_t je;
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    cr_assert_eq(zt_plan_write_trace(p, s, path, &e), 0, "%s", e.msg);
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &je);
    cr_assert(j, "line %d: %s", je.line, je.text);
    unlink(path);
    return j;
}

static const char *word(const json_t *e, const char *key) {
    const char *s = json_string_value(json_object_get(e, key));
    return s ? s : "";
}
static int64_t ns(const json_t *e, const char *key) {
    const json_t *v = json_object_get(e, key);
    cr_assert(json_is_number(v), "%s", key);
    return llround(json_number_value(v) * 1000);
}
static int64_t number(const json_t *e, const char *key) {
    const json_t *v = json_object_get(json_object_get(e, "args"), key);
    cr_assert(json_is_integer(v), "%s of %s", key, word(e, "name"));
    return json_integer_value(v);
}

/* What an analyser of profiles makes of a slice: a kernel of communication, of computation, or neither. */
enum sort { NEITHER, COMM, COMPUTE };
static enum sort sort_of(const json_t *e) {
    if (strcmp(word(e, "ph"), "X") || strcmp(word(e, "cat"), "kernel"))
        return NEITHER;
    return strncmp(word(e, "name"), "ncclDevKernel_", 14) == 0 ? COMM : COMPUTE;
}

/* Edges of intervals in order of time; between two of them it is known what runs. */
struct edge { int64_t at; int comm, compute; };
static int by_time(const void *a, const void *b) {
    const struct edge *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

struct times { int64_t exposed, comm, compute, told; size_t n_comm; };
static struct times times_of(const json_t *events, int64_t end) {
    struct edge *edge = calloc(2 * json_array_size(events) + 1, sizeof *edge);
    struct times t = {0};
    size_t i, n = 0;
    json_t *e;
    cr_assert(edge);
    json_array_foreach(events, i, e) {
        enum sort s = sort_of(e);
        if (s == NEITHER)
            continue;
        int64_t from = ns(e, "ts"), to = from + ns(e, "dur");
        cr_assert(from >= 0 && to <= end, "%s ends at %ld, the step at %ld", word(e, "name"), (long)to, (long)end);
        edge[n++] = (struct edge){from, s == COMM, s == COMPUTE};
        edge[n++] = (struct edge){to, -(s == COMM), -(s == COMPUTE)};
        t.n_comm += s == COMM;
        t.told += s == COMM ? number(e, "exposed ns") : 0;
    }
    qsort(edge, n, sizeof *edge, by_time);
    for (int comm = 0, compute = 0, k = 0; k + 1 < (int)n; k++) {
        int64_t length = edge[k + 1].at - edge[k].at;
        comm += edge[k].comm;
        compute += edge[k].compute;
        t.comm += comm ? length : 0;
        t.compute += compute ? length : 0;
        t.exposed += comm && !compute ? length : 0;
    }
    free(edge);
    return t;
}

Test(plan_trace, exposed_time_is_the_arithmetic_on_the_slices) {
    for (size_t i = 0; i < N_WAYS; i++) {
        struct zt_spec s;
        spec_of(&ways[i], &s);
        struct zt_plan *p = plan_of(&ways[i], &s);
        json_t *j = written(p, &s);
        struct times t = times_of(json_object_get(j, "traceEvents"), p->step_ns);
        int64_t shares = 0;
        size_t data = 0;
        for (int64_t k = 0; k < p->n_collectives; k++) {
            shares += p->exposed_ns[k];
            data += !p->collectives[k].control;
        }
        cr_expect_eq(t.exposed, llround(p->exposed.exposed_comm_seconds * 1e9), "way %zu: %ld ns, the table has %.0f", i,
                     (long)t.exposed, p->exposed.exposed_comm_seconds * 1e9);
        cr_expect_eq(t.exposed, shares, "way %zu: %ld, its shares %ld", i, (long)t.exposed, (long)shares);
        cr_expect_eq(t.exposed, t.told, "way %zu", i);
        cr_expect_eq(t.comm, llround(p->exposed.comm_seconds * 1e9), "way %zu", i);
        cr_expect_eq(t.compute, llround(p->exposed.compute_seconds * 1e9), "way %zu", i);
        cr_expect_eq(t.n_comm, data, "way %zu", i);
        /* or nothing was tried: some shows, and where streams run side by side some does not */
        cr_expect_eq(t.exposed > 0, ways[i].ranks > 1, "way %zu", i);
        if (ways[i].ranks > 1 && s.parallelism.overlap && s.parallelism.prefetch > 0)
            cr_expect_lt(t.exposed, t.comm, "way %zu", i);
        json_decref(j);
        zt_plan_free(p);
        zt_spec_free(&s);
    }
}

Test(plan_trace, the_memory_counter_has_the_peak) {
    for (size_t i = 0; i < N_WAYS; i++) {
        struct zt_spec s;
        spec_of(&ways[i], &s);
        struct zt_plan *p = plan_of(&ways[i], &s);
        json_t *j = written(p, &s), *e;
        const struct zt_window_peak *w = &p->shape[0].window[ZT_WINDOW_STEADY];
        int64_t most = 0, reserved = 0, sum = 0, first = -1, last = -1;
        size_t k;
        bool composition = false;
        json_array_foreach(json_object_get(j, "traceEvents"), k, e) {
            if (strcmp(word(e, "ph"), "C"))
                continue;
            cr_assert(last < 0 ? ns(e, "ts") == 0 : ns(e, "ts") >= last);
            cr_assert_leq(ns(e, "ts"), p->step_ns);
            last = ns(e, "ts");
            if (strcmp(word(e, "name"), "memory by category") == 0) {
                bool same = true;
                sum = 0;
                for (int c = 0; c < ZT_TAG_COUNT; c++) {
                    sum += number(e, zt_tag_name((enum zt_tag)c));
                    same = same && number(e, zt_tag_name((enum zt_tag)c)) == w->at_peak[c];
                }
                composition = composition || same;
                first = first < 0 ? sum : first;
            } else if (strcmp(word(e, "name"), "allocated") == 0) {
                cr_assert_eq(number(e, "bytes"), sum);
                most = sum > most ? sum : most;
            } else {
                cr_assert_str_eq(word(e, "name"), "reserved");
                cr_assert_geq(number(e, "bytes"), sum);
                reserved = number(e, "bytes") > reserved ? number(e, "bytes") : reserved;
            }
        }
        cr_expect_eq(most, w->peak_allocated_bytes, "way %zu: %ld, the table has %ld", i, (long)most,
                     (long)w->peak_allocated_bytes);
        cr_expect_eq(reserved, w->peak_reserved_bytes, "way %zu", i);
        cr_expect(last == p->step_ns && sum == first, "way %zu: a usual step leaves what it found", i);
        cr_expect(composition, "way %zu: no point has the composition of the peak", i);
        json_decref(j);
        zt_plan_free(p);
        zt_spec_free(&s);
    }
}

/* Slices of one thread: apart, or one within the other where the outer one is a phase, or says what is in it. */
struct slice { int64_t tid, from, to; const char *name; bool around; };
static int by_place(const void *a, const void *b) {
    const struct slice *x = a, *y = b;
    if (x->tid != y->tid)
        return (x->tid > y->tid) - (x->tid < y->tid);
    if (x->from != y->from)
        return (x->from > y->from) - (x->from < y->from);
    if (x->to != y->to)
        return (x->to < y->to) - (x->to > y->to); /* the longer first */
    return y->around - x->around;
}

static void check_nesting(const json_t *events) {
    struct slice *v = calloc(json_array_size(events) + 1, sizeof *v);
    size_t i, n = 0;
    json_t *e;
    cr_assert(v);
    json_array_foreach(events, i, e) {
        if (strcmp(word(e, "ph"), "X"))
            continue;
        int64_t from = ns(e, "ts");
        v[n++] = (struct slice){json_integer_value(json_object_get(e, "tid")), from, from + ns(e, "dur"), word(e, "name"),
                               strcmp(word(e, "cat"), "gpu_user_annotation") == 0};
    }
    qsort(v, n, sizeof *v, by_place);
    for (i = 1; i < n; i++) {
        if (v[i].tid != v[i - 1].tid || v[i].from >= v[i - 1].to)
            continue;
        bool inside = v[i].from >= v[i - 1].from && v[i].to <= v[i - 1].to;
        cr_expect(inside && (v[i].tid == 0 || (v[i - 1].around && !v[i].around)),
                  "thread %ld: \"%s\" from %ld lies over \"%s\", which ends at %ld", (long)v[i].tid, v[i].name,
                  (long)v[i].from, v[i - 1].name, (long)v[i - 1].to);
    }
    free(v);
}

Test(plan_trace, nothing_overlaps_on_a_thread_and_all_have_names) {
    for (size_t i = 0; i < N_WAYS; i++) {
        struct zt_spec s;
        spec_of(&ways[i], &s);
        struct zt_plan *p = plan_of(&ways[i], &s);
        json_t *j = written(p, &s), *events = json_object_get(j, "traceEvents"), *e;
        bool named[16] = {false}, process = false;
        size_t k;
        json_array_foreach(events, k, e) {
            int64_t tid = json_integer_value(json_object_get(e, "tid"));
            cr_assert(tid >= 0 && tid < 16 && json_integer_value(json_object_get(e, "pid")) == 0);
            cr_assert(word(e, "name")[0], "an event without a name");
            const char *name = word(json_object_get(e, "args"), "name");
            if (strcmp(word(e, "name"), "thread_name") == 0)
                named[tid] = name[0] != '\0';
            process = process || (strcmp(word(e, "name"), "process_name") == 0 && strstr(name, "rank 0 of"));
            if (strcmp(word(e, "ph"), "X") == 0)
                cr_assert(named[tid] && word(e, "cat")[0]); /* names come first */
        }
        cr_assert(process);
        check_nesting(events);
        json_decref(j);
        zt_plan_free(p);
        zt_spec_free(&s);
    }
}

Test(plan_trace, head_of_the_document) {
    struct zt_spec s;
    const struct way *w = &ways[8];
    spec_of(w, &s);
    struct zt_plan *p = plan_of(w, &s);
    json_t *j = written(p, &s), *d = json_object_get(j, "distributedInfo");
    cr_assert_eq(json_integer_value(json_object_get(j, "schemaVersion")), 1);
    cr_assert_str_eq(word(j, "displayTimeUnit"), "ms");
    cr_assert_str_eq(word(d, "backend"), "sim");
    cr_assert_eq(json_integer_value(json_object_get(d, "rank")), 0);
    cr_assert_eq(json_integer_value(json_object_get(d, "world_size")), 4);
    json_decref(j);
    zt_plan_free(p);
    zt_spec_free(&s);
}

/* 2 x 4: rank 0 shards with 0..3 and has its replica in 4. A ring sends (K-1)/K of a gather or a scatter and twice
 * that of an all-reduce; in and out are the parts that the ranks hold. */
Test(plan_trace, collectives_have_their_groups_and_sizes) {
    struct zt_spec s;
    const struct way *w = &ways[11];
    spec_of(w, &s);
    struct zt_plan *p = plan_of(w, &s);
    json_t *j = written(p, &s), *e;
    int gathers = 0, scatters = 0, sums = 0;
    size_t k;
    json_array_foreach(json_object_get(j, "traceEvents"), k, e) {
        if (sort_of(e) != COMM)
            continue;
        const json_t *a = json_object_get(e, "args");
        const char *name = word(e, "name");
        int64_t in = number(e, "In msg nelems"), out = number(e, "Out msg nelems"), size = number(e, "Group size"),
                sent = number(e, "sent bytes"), bytes = number(e, "bytes");
        bool gather = strstr(name, "AllGather"), scatter = strstr(name, "ReduceScatter");
        cr_assert_str_eq(word(a, "dtype"), "Float");
        cr_assert_str_eq(word(a, "Collective name"), gather ? "all_gather" : scatter ? "reduce_scatter" : "all_reduce");
        cr_assert(word(a, "unit")[0] && word(a, "reason")[0]);
        if (gather || scatter) {
            cr_assert_eq(size, 4);
            cr_assert_str_eq(word(a, "Process Group Name"), "dp_shard");
            cr_assert_str_eq(word(a, "Process Group Ranks"), "[0, 1, 2, 3]");
            cr_assert_eq(gather ? 4 * in : in, gather ? out : 4 * out);
            cr_assert_eq(4 * (gather ? out : in), bytes);
            cr_assert_eq(4 * sent, 3 * bytes);
        } else {
            cr_assert(size == 2 && in == out && 4 * in == bytes && sent == bytes);
            cr_assert_str_eq(word(a, "Process Group Ranks"), "[0, 4]");
        }
        gathers += gather;
        scatters += scatter;
        sums += !gather && !scatter;
    }
    cr_assert(gathers > 0 && scatters > 0 && sums == scatters);
    json_decref(j);
    zt_plan_free(p);
    zt_spec_free(&s);
}

/* Two micro-steps: forward, backward, forward, backward, update, end to end over the step. */
Test(plan_trace, phases_cover_the_step) {
    struct zt_spec s;
    const struct way *w = &ways[4];
    struct zt_plan_phase part[8];
    static const enum zt_phase phase[] = {ZT_PHASE_FORWARD, ZT_PHASE_BACKWARD, ZT_PHASE_FORWARD, ZT_PHASE_BACKWARD,
                                          ZT_PHASE_OPTIMIZER};
    static const int micro[] = {0, 0, 1, 1, -1};
    spec_of(w, &s);
    struct zt_plan *p = plan_of(w, &s);
    cr_assert_eq(zt_plan_phases(p, part, 8), 5);
    for (int i = 0; i < 5; i++) {
        cr_assert(part[i].phase == phase[i] && part[i].micro == micro[i], "part %d", i);
        cr_assert_eq(part[i].start_ns, i ? part[i - 1].end_ns : 0);
        cr_assert_gt(part[i].end_ns, part[i].start_ns);
    }
    cr_assert_eq(part[4].end_ns, p->step_ns);
    cr_assert_float_eq((double)(part[4].end_ns - part[4].start_ns), p->optimizer_seconds * 1e9, 0.5);
    cr_assert_eq(zt_plan_phases(p, part, 2), 5, "as many as there are");
    zt_plan_free(p);
    zt_spec_free(&s);
}

Test(plan_trace, what_cannot_be_written_is_told) {
    struct zt_spec s;
    struct zt_error e = {0};
    spec_of(&ways[0], &s);
    struct zt_plan *p = plan_of(&ways[0], &s);
    cr_assert_eq(zt_plan_write_trace(p, &s, "/nowhere/trace.json", &e), ZT_EINVAL);
    cr_assert(strstr(e.msg, "/nowhere/trace.json") && strstr(e.msg, "No such file"), "%s", e.msg);
    cr_assert_eq(zt_plan_write_trace(p, &s, "/dev/full", &e), ZT_EIO);
    cr_assert(strstr(e.msg, "/dev/full"), "%s", e.msg);
    cr_assert_eq(access("/dev/full", F_OK), 0, "a device is not removed");
    p->step_ns = 0;
    cr_assert_eq(zt_plan_write_trace(p, &s, "/dev/null", &e), ZT_EINTERNAL);
    zt_plan_free(p);
    zt_spec_free(&s);
}
