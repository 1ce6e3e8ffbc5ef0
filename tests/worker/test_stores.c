/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's stores without a process: the report ring with its spill file, the log, exit verdicts,
 * and the conversion of a step report. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "worker/child.h"
#include "worker/logs.h"
#include "worker/memory.h"
#include "worker/steps.h"
#include "proto/trace.h"
#include "worker/traces.h"
#include "worker/trainer.h"

static char spill[300];

static void make_spill(void)
{
    const char *tmp = getenv("TMPDIR");
    char folder[200];
    snprintf(folder, sizeof(folder), "%s/zt-steps-XXXXXX", tmp ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(spill, sizeof(spill), "%s/spill", folder);
}

static void drop_spill(void)
{
    cr_assert_neq(access(spill, F_OK), 0, "the spill file was left");
    *strrchr(spill, '/') = '\0';
    cr_assert_eq(rmdir(spill), 0);
}

TestSuite(steps, .init = make_spill, .fini = drop_spill);

static void push(struct zw_steps *s, int64_t step)
{
    Zt__StepReport r = ZT__STEP_REPORT__INIT;
    Zt__TagBytes at = ZT__TAG_BYTES__INIT;
    struct zt_error err;
    r.step = step;
    r.has_loss = r.has_forward_seconds = 1;
    r.loss = (double)step / 3.0;
    r.at_peak = &at;
    r.has_tokens = 1;
    r.tokens = 7 * step;
    r.phase_of_peak = (char *)(uintptr_t)"backward";
    cr_assert_eq(zw_steps_push(s, &r, &err), 0);
}

/* Takes everything; returns how many were thin. Checks order from `first` and values. */
static int drain(struct zw_steps *s, int64_t first, int64_t last)
{
    struct zw_batch b;
    int thin = 0;
    int64_t next = first;
    for (;;) {
        zw_steps_take(s, &b);
        if (b.n == 0) {
            break;
        }
        cr_assert_leq(b.n, (size_t)ZW_BATCH_REPORTS);
        for (size_t i = 0; i < b.n; i++) {
            Zt__StepReport *r = zt__step_report__unpack(NULL, b.reports[i].n, b.reports[i].bytes);
            cr_assert_not_null(r);
            cr_assert_eq(r->step, next);
            cr_assert_eq(r->loss, (double)next / 3.0);
            cr_assert_eq(r->tokens, 7 * next);
            cr_assert_str_eq(r->phase_of_peak, "backward");
            cr_assert_eq(r->thinned != 0, r->at_peak == NULL);
            cr_assert_eq(r->thinned != 0, !r->has_forward_seconds);
            thin += r->thinned;
            next++;
            zt__step_report__free_unpacked(r, NULL);
        }
        zw_batch_free(&b);
    }
    cr_assert_eq(next, last + 1);
    cr_assert_eq(zw_steps_count(s), 0u);
    return thin;
}

Test(steps, in_order_and_whole_up_to_the_limit)
{
    struct zw_steps s;
    zw_steps_init(&s, &zt_sys_posix, spill);
    for (int64_t i = 1; i <= ZW_STEPS_FULL; i++) {
        push(&s, i);
    }
    cr_assert_eq(zw_steps_count(&s), (size_t)ZW_STEPS_FULL);
    cr_assert_neq(access(spill, F_OK), 0);
    cr_assert_eq(drain(&s, 1, ZW_STEPS_FULL), 0);
    zw_steps_free(&s);
}

Test(steps, one_more_thins_the_oldest)
{
    struct zw_steps s;
    zw_steps_init(&s, &zt_sys_posix, spill);
    for (int64_t i = 1; i <= ZW_STEPS_FULL + 1; i++) {
        push(&s, i);
    }
    cr_assert_eq(s.spilled, 1u);
    cr_assert_eq(drain(&s, 1, ZW_STEPS_FULL + 1), 1);
    zw_steps_free(&s);
}

Test(steps, spill_and_take_mixed)
{
    struct zw_steps s;
    struct zw_batch b;
    zw_steps_init(&s, &zt_sys_posix, spill);
    s.full_max = 50;
    int64_t pushed = 0, taken = 0;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 97; i++) {
            push(&s, ++pushed);
        }
        zw_steps_take(&s, &b);
        for (size_t i = 0; i < b.n; i++) {
            Zt__StepReport *r = zt__step_report__unpack(NULL, b.reports[i].n, b.reports[i].bytes);
            cr_assert_eq(r->step, ++taken);
            zt__step_report__free_unpacked(r, NULL);
        }
        zw_batch_free(&b);
    }
    cr_assert_gt(s.spilled, 1000u);
    cr_assert_leq(s.n, 51u, "memory is bounded");
    drain(&s, taken + 1, pushed);
    zw_steps_free(&s);
}

/* Every file call fails once, or the disk is full for good: no report is lost, all in order. */
Test(steps, no_disk_loses_nothing)
{
    for (int64_t at = 1; at < 60; at++) {
        struct zt_sys_nth nth = {.real = &zt_sys_posix, .fail_at = at, .error = 28};
        struct zt_sys sys = zt_sys_fail_nth(&nth);
        struct zw_steps s;
        zw_steps_init(&s, &sys, spill);
        s.full_max = 5;
        for (int64_t i = 1; i <= 30; i++) {
            push(&s, i);
        }
        if (nth.calls >= at) { /* the failure hit a write: reads come later */
            cr_assert_eq(zw_steps_count(&s), 30u);
            drain(&s, 1, 30);
        } else {
            zw_steps_clear(&s);
        }
        zw_steps_free(&s);
        (void)unlink(spill);
    }
    struct zw_steps s;
    zw_steps_init(&s, &zt_sys_posix, "/nonexistent/folder/spill");
    s.full_max = 5;
    for (int64_t i = 1; i <= 30; i++) {
        push(&s, i);
    }
    cr_assert_eq(drain(&s, 1, 30), 25);
    zw_steps_free(&s);
}

/* --------------------------------------------------------------------------------------- traces */

/* The parts as they were given, unpacked copies. */
struct parts { Zt__StepTrace *s[8]; int n; };

static int keep_part(void *arg, Zt__StepTrace *s, struct zt_error *err)
{
    struct parts *p = arg;
    size_t n = zt__step_trace__get_packed_size(s);
    uint8_t *bytes = malloc(n);
    (void)err;
    cr_assert_null(zt_trace_check(s), "%s", zt_trace_check(s));
    zt__step_trace__pack(s, bytes);
    p->s[p->n++] = zt__step_trace__unpack(NULL, n, bytes);
    free(bytes);
    return 0;
}

static const char *word_of(const Zt__StepTrace *s, uint32_t i) { return s->words[i]; }

Test(traces, what_the_engine_says_becomes_parts)
{
    enum { N = ZT_TRACE_PART_RECORDS + 3 };
    static struct zt_coll_record c[N];
    static int64_t exposed[N], stall[N];
    static const int ranks[] = {1, 3};
    const struct zt_comm_group groups[] = {{"world", ranks, 2}, {"dp_shard", ranks, 2}};
    struct parts p = {.n = 0};
    struct zt_error err;
    for (int64_t i = 0; i < N; i++) {
        c[i] = (struct zt_coll_record){.id = i + 1, .seq = 100 + i, .kind = i % 2 ? ZT_COLL_ALL_REDUCE : ZT_COLL_ALL_GATHER,
                                       .dtype = ZT_BF16, .count = 8, .bytes = 16, .sent_bytes = 12, .step = 4,
                                       .control = i == 2, .queued_ns = 5000 + i, .start_ns = 6000 + i, .end_ns = 7000 + i};
        snprintf(c[i].group, sizeof(c[i].group), "%s", i == 1 ? "late" : "dp_shard");
        snprintf(c[i].unit, sizeof(c[i].unit), "block%d", (int)(i % 4));
        snprintf(c[i].reason, sizeof(c[i].reason), "gather for forward");
        exposed[i] = i;
        stall[i] = 2 * i;
    }
    c[0].queued_ns = 900; /* before the step began, as a prefetch may be */
    c[0].start_ns = 0;
    c[1].end_ns = 0;
    struct zt_step_trace t = {.step = 4, .start_ns = 1000, .end_ns = 9000, .records = c, .exposed_ns = exposed,
                              .stall_ns = stall, .n = N, .dropped = 7, .groups = groups, .n_groups = 2};
    cr_assert_eq(zw_trace_parts(&t, keep_part, &p, &err), 0);
    cr_assert_eq(p.n, 2);
    const Zt__StepTrace *a = p.s[0], *b = p.s[1];
    cr_assert(a->step == 4 && a->step_ns == 8000 && a->part == 0 && a->parts == 2 && a->dropped == 7);
    cr_assert(b->step == 4 && b->step_ns == 8000 && b->part == 1 && b->parts == 2 && !b->has_dropped);
    cr_assert_eq(a->n_records, (size_t)ZT_TRACE_PART_RECORDS);
    cr_assert_eq(b->n_records, 3u);
    cr_assert_eq(a->n_words, 2u + 1 + 4 + 1, "kinds, types, units and reasons, each once");
    cr_assert_eq(a->n_groups, 3u);
    cr_assert_eq(b->n_groups, 2u);
    cr_assert_str_eq(a->groups[2]->name, "late");
    cr_assert_eq(a->groups[2]->n_ranks, 0u, "nobody said who is in it");
    cr_assert(a->groups[1]->n_ranks == 2 && a->groups[1]->ranks[0] == 1 && a->groups[1]->ranks[1] == 3);
    const Zt__TraceRecord *r = a->records[0];
    cr_assert(r->queued_ns == -100 && !r->has_started_ns && !r->has_ended_ns && r->exposed_ns == 0);
    r = a->records[1];
    cr_assert(r->group == 2 && r->has_started_ns && r->started_ns == 1000 && !r->has_ended_ns);
    r = a->records[2];
    cr_assert(r->control && !r->has_exposed_ns && !r->has_stall_ns);
    r = b->records[2];
    cr_assert(r->seq == 100 + N - 1 && r->group == 1 && r->count == 8 && r->bytes == 16 && r->sent_bytes == 12);
    cr_assert(r->queued_ns == 4000 + N - 1 && r->started_ns == 1000 && r->ended_ns == 2000);
    cr_assert(r->exposed_ns == N - 1 && r->stall_ns == 2 * (N - 1) && !r->control);
    cr_assert_str_eq(word_of(b, r->kind), "all_gather");
    cr_assert_str_eq(word_of(b, r->dtype), "bf16");
    cr_assert_str_eq(word_of(b, r->unit), "block2");
    cr_assert_str_eq(word_of(b, r->reason), "gather for forward");
    for (int i = 0; i < p.n; i++) {
        zt__step_trace__free_unpacked(p.s[i], NULL);
    }
    /* a step without collectives is a trace too */
    p.n = 0;
    t.n = t.dropped = 0;
    cr_assert_eq(zw_trace_parts(&t, keep_part, &p, &err), 0);
    cr_assert(p.n == 1 && p.s[0]->n_records == 0 && p.s[0]->parts == 1);
    zt__step_trace__free_unpacked(p.s[0], NULL);
}

Test(traces, the_oldest_go_when_memory_is_full)
{
    struct zw_traces t;
    struct zw_batch b;
    struct zt_error err;
    char text[40], *words[1] = {text};
    zw_traces_init(&t);
    t.max = 1000;
    for (int64_t step = 1; step <= 50; step++) {
        Zt__StepTrace s = ZT__STEP_TRACE__INIT;
        memset(text, 'x', 39);
        text[39] = '\0';
        s.step = step;
        s.parts = 1;
        s.words = words;
        s.n_words = 1;
        cr_assert_eq(zw_traces_push(&t, &s, &err), 0);
        cr_assert_leq(t.bytes, 1000u);
    }
    cr_assert_gt(t.dropped, 20u);
    int64_t next = (int64_t)t.dropped + 1;
    cr_assert_eq(t.dropped_step, next - 1);
    for (;;) {
        zw_traces_take(&t, &b);
        if (b.n == 0) {
            break;
        }
        for (size_t i = 0; i < b.n; i++) {
            Zt__StepTrace *s = zt__step_trace__unpack(NULL, b.reports[i].n, b.reports[i].bytes);
            cr_assert_eq(s->step, next++);
            zt__step_trace__free_unpacked(s, NULL);
        }
        zw_batch_free(&b);
    }
    cr_assert_eq(next, 51);
    cr_assert_eq(t.bytes, 0u);
    zw_traces_clear(&t);
}

/* ----------------------------------------------------------------------------------------- logs */

static void take_all(struct zw_logs *l, char *out)
{
    uint64_t offset, expect = 0;
    bool err;
    size_t n, at = 0;
    while ((n = zw_logs_peek(l, out + at, 40, &offset, &err)) > 0) {
        cr_assert_eq(offset, expect);
        at += n;
        expect += n;
        zw_logs_ack(l, expect);
    }
    out[at] = '\0';
}

Test(logs, lines_stay_whole_and_streams_apart)
{
    struct zw_logs l;
    char out[256];
    zw_logs_init(&l);
    zw_logs_feed(&l, false, "hel", 3);
    zw_logs_feed(&l, true, "oops\n", 5);
    zw_logs_feed(&l, false, "lo\nwor", 6);
    take_all(&l, out);
    cr_assert_str_eq(out, "oops\nhello\n");
    cr_assert_eq(l.next, 11u);
    zw_logs_age(&l); /* seen once */
    cr_assert_eq(l.next, 11u);
    zw_logs_age(&l); /* still there: it goes as it is */
    cr_assert_eq(l.next, 14u);
    zw_logs_free(&l);
}

Test(logs, peek_repeats_until_acknowledged)
{
    struct zw_logs l;
    char a[64], b[64];
    uint64_t off;
    bool err;
    zw_logs_init(&l);
    zw_logs_feed(&l, false, "one\ntwo\n", 8);
    cr_assert_eq(zw_logs_peek(&l, a, sizeof(a), &off, &err), 8u);
    cr_assert_eq(zw_logs_peek(&l, b, sizeof(b), &off, &err), 8u);
    cr_assert_eq(memcmp(a, b, 8), 0);
    zw_logs_ack(&l, 4); /* half of it */
    cr_assert_eq(zw_logs_peek(&l, b, sizeof(b), &off, &err), 4u);
    cr_assert_eq(off, 4u);
    cr_assert_eq(memcmp(b, "two\n", 4), 0);
    zw_logs_ack(&l, 8);
    cr_assert_eq(zw_logs_peek(&l, b, sizeof(b), &off, &err), 0u);
    zw_logs_free(&l);
}

Test(logs, bounded_with_a_visible_gap)
{
    struct zw_logs l;
    static char line[4096];
    char out[64];
    uint64_t off;
    bool err;
    zw_logs_init(&l);
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (int i = 0; i < 1000; i++) {
        zw_logs_feed(&l, i % 2, line, sizeof(line));
        cr_assert_leq(l.bytes, ZW_LOGS_MAX);
    }
    cr_assert_eq(l.next, 1000u * sizeof(line));
    cr_assert_gt(zw_logs_peek(&l, out, sizeof(out), &off, &err), 0u);
    cr_assert_eq(off, l.next - l.bytes, "the offset tells how much is missing");
    cr_assert_eq(l.dropped, off);
    cr_assert_eq(l.tail_n, ZW_TAIL_MAX);
    zw_logs_free(&l);
}

/* ------------------------------------------------------------------------------------- verdicts */

Test(verdict, of_exits_and_signals)
{
    static const struct { int status; bool oom; enum zt_reason reason; int code, sig; } t[] = {
        {0, false, ZT_REASON_EXIT_NONZERO, 0, 0},
        {1 << 8, false, ZT_REASON_EXIT_NONZERO, 1, 0},
        {75 << 8, false, ZT_REASON_EXIT_NONZERO, 75, 0},
        {78 << 8, false, ZT_REASON_CONFIG_ERROR, 78, 0},
        {85 << 8, false, ZT_REASON_PREEMPTED, 85, 0},
        {93 << 8, false, ZT_REASON_CONFIG_ERROR, 93, 0},
        {SIGKILL, false, ZT_REASON_KILLED, -1, SIGKILL},
        {SIGKILL, true, ZT_REASON_OOM_HOST, -1, SIGKILL},
        {SIGTERM, false, ZT_REASON_KILLED, -1, SIGTERM},
        {SIGSEGV, false, ZT_REASON_SIGNAL, -1, SIGSEGV},
        {SIGSEGV | 0x80, true, ZT_REASON_SIGNAL, -1, SIGSEGV}, /* core dumped */
        {SIGABRT, false, ZT_REASON_SIGNAL, -1, SIGABRT},
        {SIGBUS, false, ZT_REASON_SIGNAL, -1, SIGBUS},
        {SIGFPE, false, ZT_REASON_SIGNAL, -1, SIGFPE},
        {SIGILL, false, ZT_REASON_SIGNAL, -1, SIGILL},
    };
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct zw_verdict v;
        zw_verdict_of(t[i].status, t[i].oom, &v);
        cr_assert_eq(v.reason, t[i].reason, "status %d", t[i].status);
        cr_assert_eq(v.exit_code, t[i].code);
        cr_assert_eq(v.signal, t[i].sig);
        cr_assert_neq(v.text[0], '\0');
    }
    cr_assert_eq(zw_exit_code(ZT_REASON_NONE), 0);
    cr_assert_eq(zw_exit_code(ZT_REASON_CONFIG_ERROR), 78);
    cr_assert_eq(zw_exit_code(ZT_REASON_VERSION_MISMATCH), 78);
    cr_assert_eq(zw_exit_code(ZT_REASON_NAN_LOSS), 93);
    cr_assert_eq(zw_exit_code(ZT_REASON_OOM_DEVICE), 93);
    cr_assert_eq(zw_exit_code(ZT_REASON_PEER_LOST), 75);
    cr_assert_eq(zw_exit_code(ZT_REASON_COMM_ERROR), 75);
}

/* --------------------------------------------------------------------------------------- report */

Test(report, missing_is_absent_and_present_is_equal)
{
    static struct zw_report_box box;
    struct zt_step_report r;
    memset(&r, 0, sizeof(r));
    r.rank = 2;
    r.generation = 9;
    r.step = 41;
    r.last = true;
    r.loss = 2.5;
    r.local_loss = r.grad_norm = NAN;
    r.eval_loss = NAN;
    r.eval_tokens = r.eval_rows = -1;
    r.tokens = 128;
    r.exposed.n_by = 1;
    r.exposed.by[0].group = "dp_shard";
    r.exposed.by[0].kind = "all_reduce";
    r.exposed.by[0].seconds = 0.25;
    r.exposed.exposed_comm_seconds = 0.25;
    for (int i = 0; i < ZT_TAG_COUNT; i++) {
        r.at_peak[i] = 100 + i;
    }
    r.init.peak_allocated_bytes = -1;
    r.eval.peak_allocated_bytes = 77;
    r.loss_scale = 4096;
    r.clip_coefficient = NAN;
    r.skipped = true;
    r.skipped_steps = 6;
    r.nonfinite_gradients = -1;
    strcpy(r.parameter_hash, "abc");
    zw_report_fill(&box, &r);
    const Zt__StepReport *m = &box.report;
    size_t n = zt__step_report__get_packed_size(m);
    uint8_t *bytes = malloc(n);
    cr_assert_eq(zt__step_report__pack(m, bytes), n);
    Zt__StepReport *g = zt__step_report__unpack(NULL, n, bytes);
    cr_assert_not_null(g);
    cr_assert_eq(g->rank, 2u);
    cr_assert_eq(g->generation, 9u);
    cr_assert_eq(g->step, 41);
    cr_assert(g->last);
    cr_assert_eq(g->loss, 2.5);
    cr_assert_not(g->has_local_loss);
    cr_assert_not(g->has_grad_norm);
    cr_assert_not(g->has_eval_loss);
    cr_assert_not(g->has_eval_rows);
    cr_assert_eq(g->tokens, 128);
    cr_assert_eq(g->n_exposed_by, 1u);
    cr_assert_str_eq(g->exposed_by[0]->kind, "all_reduce");
    cr_assert_eq(g->at_peak->communication, 105);
    cr_assert_null(g->init_peak);
    cr_assert_eq(g->eval_peak->peak_allocated_bytes, 77);
    cr_assert_str_eq(g->parameter_hash, "abc");
    cr_assert(g->has_loss_scale && g->loss_scale == 4096 && g->has_skipped && g->skipped && g->skipped_steps == 6);
    cr_assert(!g->has_clip_coefficient && !g->has_nonfinite_gradients);
    zt__step_report__free_unpacked(g, NULL);
    free(bytes);
}

Test(report, number_formats_by_name_and_none_where_there_is_none)
{
    struct zt_dtypes_report d = {.rank = 1, .generation = 4, .step = 2, .recipe = "mixed16", .compute = "bf16, fp32 sums"};
    struct zw_dtypes_box box;
    for (int i = 0; i < ZT_ROW_COUNT; i++) {
        d.row[i].configured = d.row[i].stored = d.row[i].used = ZT_BF16;
    }
    d.row[ZT_ROW_MASTER].stored = ZT_F32;
    d.row[ZT_ROW_MASTER].used = -1;
    zw_dtypes_fill(&box, &d);
    const Zt__DtypesReport *r = &box.report;
    cr_assert(r->rank == 1 && r->generation == 4 && r->step == 2 && r->n_rows == ZT_ROW_COUNT);
    cr_assert_str_eq(r->recipe, "mixed16");
    cr_assert_str_eq(r->compute, "bf16, fp32 sums");
    cr_assert_null(r->kernels);
    cr_assert_str_eq(r->rows[ZT_ROW_GATHERED]->what, "gathered");
    cr_assert_str_eq(r->rows[ZT_ROW_GATHERED]->used, "bf16");
    cr_assert_str_eq(r->rows[ZT_ROW_MASTER]->stored, "fp32");
    cr_assert_null(r->rows[ZT_ROW_MASTER]->used);
}

/* ------------------------------------------------------------------------- folders in shared memory */

static int files_in(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        n += e->d_name[0] != '.';
    }
    if (d) {
        closedir(d);
    }
    return n;
}

static void leave(const char *folder, const char *name)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
}

Test(memory, the_last_one_that_lets_go_removes_it)
{
    char base[] = "/tmp/zt-memory-XXXXXX", path[512];
    struct zw_memory a, b, c;
    struct zt_error err;
    cr_assert_not_null(mkdtemp(base));
    zw_memory_init(&a);
    zw_memory_init(&b);
    zw_memory_init(&c);
    cr_assert_eq(zw_memory_take(&a, base, "box", "01A", &err), 0, "%s", err.msg);
    cr_assert_eq(zw_memory_take(&a, base, "box", "01A", &err), 0, "again");
    cr_assert_eq(zw_memory_take(&b, base, "box", "01A", &err), 0);
    cr_assert_eq(zw_memory_take(&c, base, "other", "01A", &err), 0);
    cr_assert_str_eq(a.path, b.path);
    cr_assert_str_neq(a.path, c.path, "another host's");
    snprintf(path, sizeof(path), "%s", a.path);
    leave(path, "rank-00001.json");
    zw_memory_release(&a);
    cr_assert_not(zw_memory_held(&a));
    cr_assert_eq(files_in(path), 2, "b still uses it");
    cr_assert_eq(zw_memory_sweep(base), 0, "both are held");
    cr_assert_eq(zw_memory_take(&b, base, "box", "01B", &err), 0); /* another run: the old folder is let go */
    cr_assert_neq(access(path, F_OK), 0);
    zw_memory_release(&b);
    zw_memory_release(&c);
    cr_assert_eq(files_in(base), 0);
    cr_assert_eq(rmdir(base), 0);
}

Test(memory, what_a_dead_owner_left_is_swept)
{
    char base[] = "/tmp/zt-memory-XXXXXX";
    struct zw_memory m;
    struct zt_error err;
    cr_assert_not_null(mkdtemp(base));
    pid_t pid = fork();
    if (pid == 0) {
        zw_memory_init(&m);
        if (zw_memory_take(&m, base, "box", "01A", &err) == 0) {
            leave(m.path, "shard-00001-model-00001-of-00001.safetensors");
        }
        kill(getpid(), SIGKILL);
    }
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    cr_assert_eq(files_in(base), 1);
    leave(base, "ztrain-of-somebody-else");
    cr_assert_eq(zw_memory_sweep(base), 1);
    cr_assert_eq(files_in(base), 1, "only our folders");
    char path[300];
    snprintf(path, sizeof(path), "%s/ztrain-of-somebody-else", base);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(base), 0);
}

Test(memory, a_folder_that_is_not_ours_is_refused)
{
    char base[] = "/tmp/zt-memory-XXXXXX", path[400], target[400];
    struct zw_memory m;
    struct zt_error err;
    cr_assert_not_null(mkdtemp(base));
    zw_memory_init(&m);
    snprintf(path, sizeof(path), "%s/ztrain-%u-box-01A", base, (unsigned)geteuid());
    snprintf(target, sizeof(target), "%s/target", base);
    cr_assert_eq(mkdir(target, 0700), 0);
    cr_assert_eq(symlink(target, path), 0);
    cr_assert_eq(zw_memory_take(&m, base, "box", "01A", &err), ZT_EIO);
    cr_assert_not_null(strstr(err.msg, "private folder"), "%s", err.msg);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(chmod(path, 0755), 0);
    cr_assert_eq(zw_memory_take(&m, base, "box", "01A", &err), ZT_EIO);
    cr_assert_eq(zw_memory_take(&m, base, "box", "../x", &err), ZT_EUNSUPPORTED);
    cr_assert_not(zw_memory_held(&m));
    cr_assert_eq(zw_memory_sweep(base), 0);
    rmdir(path);
    rmdir(target);
    cr_assert_eq(rmdir(base), 0);
}
