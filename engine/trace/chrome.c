/* SPDX-License-Identifier: Apache-2.0 */
/* engine/trace/chrome.c: see chrome.h. Every event is one line. Numbers are integers or exact
 * decimals, so that a reader gets back the very nanoseconds. Memory: none but the file's buffer. */
#include "engine/trace/chrome.h"

#include <inttypes.h>
#include <string.h>

/* Streams as the viewer orders them. */
enum track { STEP = 0, COMPUTE, GATHER, REDUCE, COPY, CONTROL, WAIT, N_TRACKS };

static const struct {
    const char *name, *cat;
} tracks[N_TRACKS] = {[STEP] = {"step", "user_annotation"},
                      [COMPUTE] = {"compute", "kernel"},
                      [GATHER] = {"communication: gather", "kernel"},
                      [REDUCE] = {"communication: reduce", "kernel"},
                      [COPY] = {"copies", "gpu_memcpy"},
                      [CONTROL] = {"control messages", "control"},
                      [WAIT] = {"compute waits", "wait"}};

/* ---- JSON ---- */

/* Bytes of the UTF-8 character at s, 0 when it is none. */
static size_t character(const unsigned char *s) {
    size_t n = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t code = n == 1 ? s[0] : s[0] & (0x7fU >> n);
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if ((s[0] & 0xc0) == 0x80 || s[0] > 0xf4) return 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0; /* the NUL at the end is none either */
        code = code << 6 | (s[i] & 0x3fU);
    }
    return code < least[n] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : n;
}

static void text(FILE *f, const char *s) {
    fputc('"', f);
    while (*s) {
        size_t n = character((const unsigned char *)s);
        unsigned char c = (unsigned char)*s;
        if (n == 0)
            fputs("\\ufffd", f);
        else if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\u%04x", c);
        else
            fwrite(s, 1, n, f);
        s += n ? n : 1;
    }
    fputc('"', f);
}

static void text_of(FILE *f, const char *key, const char *s) {
    fprintf(f, ",\"%s\":", key);
    text(f, s);
}

static void micros(FILE *f, const char *key, int64_t ns) {
    uint64_t u = ns < 0 ? -(uint64_t)ns : (uint64_t)ns;
    fprintf(f, ",\"%s\":%s%" PRIu64 ".%03u", key, ns < 0 ? "-" : "", u / 1000,
            (unsigned)(u % 1000));
}

/* Opens an event; the caller closes it. */
static void event(struct zt_chrome *t, const char *ph, enum track tid) {
    fprintf(t->to, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", t->some ? "," : "", ph, t->rank,
            (int)tid);
    t->some = true;
}

/* Opens a slice. */
static void slice(struct zt_chrome *t, enum track tid, const char *cat, const char *name,
                  int64_t start_ns, int64_t end_ns) {
    bool ended = end_ns >= start_ns;
    event(t, ended ? "X" : "B", tid);
    micros(t->to, "ts", start_ns);
    if (ended) micros(t->to, "dur", end_ns - start_ns);
    text_of(t->to, "cat", cat);
    text_of(t->to, "name", name);
}

static void named(struct zt_chrome *t, const char *what, enum track tid, const char *name) {
    event(t, "M", tid);
    text_of(t->to, "name", what);
    fputs(",\"args\":{\"name\":", t->to);
    text(t->to, name);
    fputs("}}", t->to);
}

/* ---- the document ---- */

void zt_chrome_begin(struct zt_chrome *t, FILE *to, const struct zt_chrome_head *h) {
    *t = (struct zt_chrome){.to = to, .rank = h->rank};
    /* blanks behind these colons: there are readers that look for the rank with a pattern */
    fputs("{\"schemaVersion\": 1, \"distributedInfo\": {\"backend\": ", to);
    text(to, h->backend);
    fprintf(to,
            ", \"rank\": %d, \"world_size\": %d}, \"displayTimeUnit\": \"ms\",\n\"traceEvents\": [",
            h->rank, h->world);
    named(t, "process_name", STEP, h->process);
    event(t, "M", STEP);
    fprintf(to, ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", h->rank);
    if (h->note) {
        event(t, "M", STEP);
        fputs(",\"name\":\"process_labels\",\"args\":{\"labels\":", to);
        text(to, h->note);
        fputs("}}", to);
    }
    for (enum track i = 0; i < N_TRACKS; i++) {
        named(t, "thread_name", i, tracks[i].name);
        event(t, "M", i);
        fprintf(to, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}", (int)i);
    }
}

int zt_chrome_end(struct zt_chrome *t, struct zt_error *err) {
    fputs("\n]}\n", t->to);
    if (fflush(t->to) != 0 || ferror(t->to))
        return zt_fail(err, ZT_EIO, "trace: it could not be written; is the disk full?");
    return 0;
}

/* ---- slices ---- */

void zt_chrome_phase(struct zt_chrome *t, const char *name, int64_t start_ns, int64_t end_ns) {
    slice(t, STEP, tracks[STEP].cat, name, start_ns, end_ns);
    fputc('}', t->to);
}

void zt_chrome_interval(struct zt_chrome *t, const struct zt_interval *iv) {
    enum track tid = iv->kind == ZT_IV_COPY ? COPY : iv->kind == ZT_IV_STALL ? WAIT : COMPUTE;
    ZT_ASSERT(iv->kind != ZT_IV_COMM);
    slice(t, tid, tracks[tid].cat, iv->name ? iv->name : "", iv->start_ns, iv->end_ns);
    if (tid != WAIT) fprintf(t->to, ",\"args\":{\"device\":%d,\"stream\":%d}", t->rank, (int)tid);
    fputc('}', t->to);
}

/* ncclDevKernel_AllGather_dp_shard: one name for all that analysers should add up. */
static void kernel(struct zt_chrome *t, enum track tid, const struct zt_coll_record *r) {
    static const char *const nccl[ZT_COLL_COUNT] = {"Broadcast", "AllReduce", "AllGather",
                                                    "ReduceScatter", "Barrier"};
    char name[64];
    snprintf(name, sizeof name, "ncclDevKernel_%s_%s",
             (unsigned)r->kind < ZT_COLL_COUNT ? nccl[r->kind] : "?", r->group);
    slice(t, tid, tracks[tid].cat, name, r->start_ns, r->end_ns);
}

/* Which unit it is for and why: a slice around the kernel's, which has no stream, so that analysers
 * do not take it for work. */
static void annotation(struct zt_chrome *t, enum track tid, const struct zt_coll_record *r) {
    char name[96];
    snprintf(name, sizeof name, "%s%s%s", r->unit, r->unit[0] && r->reason[0] ? ": " : "",
             r->reason);
    if (!name[0]) return;
    slice(t, tid, "gpu_user_annotation", name, r->start_ns, r->end_ns);
    fputc('}', t->to);
}

/* As profilers of other frameworks call the types. */
static const char *type_of(enum zt_dtype t) {
    static const char *const names[ZT_DTYPE_COUNT] = {
        [ZT_F32] = "Float", [ZT_BF16] = "BFloat16", [ZT_F16] = "Half",
        [ZT_I32] = "Int",   [ZT_I64] = "Long",      [ZT_U8] = "Byte"};
    return (unsigned)t < ZT_DTYPE_COUNT ? names[t] : "?";
}

/* The ranks as a list in a string; of long ones the beginning and the end. */
static void ranks_of(FILE *f, const struct zt_comm_group *g) {
    enum { WHOLE = 32, EDGE = 8 };
    fputs(",\"Process Group Ranks\":\"[", f);
    for (int i = 0; i < g->size; i++) {
        if (g->size > WHOLE && i == EDGE) {
            fputs(", ...", f);
            i = g->size - EDGE;
        }
        fprintf(f, "%s%d", i ? ", " : "", g->ranks[i]);
    }
    fputs("]\"", f);
}

/* What goes in and what comes out, of a buffer of `count` elements at its largest. */
static void sizes_of(FILE *f, const struct zt_coll_record *r, int size) {
    int64_t in = r->count, out = r->count;
    if (r->kind == ZT_COLL_ALL_GATHER) in /= size;
    if (r->kind == ZT_COLL_REDUCE_SCATTER) out /= size;
    fprintf(f, ",\"In msg nelems\":%" PRId64 ",\"Out msg nelems\":%" PRId64 ",\"Group size\":%d",
            in, out, size);
}

void zt_chrome_collective(struct zt_chrome *t, const struct zt_coll_record *r,
                          const struct zt_comm_group *group, int64_t exposed_ns, int64_t stall_ns) {
    enum track tid = r->kind == ZT_COLL_ALL_GATHER ? GATHER : REDUCE;
    FILE *f = t->to;
    if (r->start_ns == 0 && r->end_ns == 0) return;
    if (r->control) { /* in host memory: no kernel */
        slice(t, CONTROL, tracks[CONTROL].cat, r->reason, r->start_ns, r->end_ns);
        fputs(",\"args\":{", f);
    } else {
        annotation(t, tid, r);
        kernel(t, tid, r);
        fprintf(f, ",\"args\":{\"device\":%d,\"stream\":%d,", t->rank, (int)tid);
    }
    fprintf(f, "\"correlation\":%" PRId64, r->id);
    text_of(f, "Collective name", zt_coll_name(r->kind));
    text_of(f, "Process Group Name", r->group);
    if (group && group->size > 0) {
        sizes_of(f, r, group->size);
        ranks_of(f, group);
    }
    text_of(f, "dtype", type_of(r->dtype));
    text_of(f, "unit", r->unit);
    text_of(f, "reason", r->reason);
    fprintf(f,
            ",\"bytes\":%" PRId64 ",\"sent bytes\":%" PRId64 ",\"step\":%" PRId64
            ",\"exposed ns\":%" PRId64 ",\"stall ns\":%" PRId64,
            r->bytes, r->sent_bytes, r->step, exposed_ns, stall_ns);
    micros(f, "queued us", r->queued_ns);
    fputs("}}", f);
}

/* ---- counters ---- */

static void counter(struct zt_chrome *t, const char *name, int64_t at_ns) {
    event(t, "C", STEP);
    micros(t->to, "ts", at_ns);
    text_of(t->to, "name", name);
    fputs(",\"args\":{", t->to);
}

void zt_chrome_memory(struct zt_chrome *t, int64_t at_ns, const int64_t by_tag[ZT_TAG_COUNT],
                      int64_t reserved) {
    int64_t sum = 0;
    counter(t, "memory by category", at_ns);
    for (int i = 0; i < ZT_TAG_COUNT; i++) {
        sum += by_tag[i];
        fprintf(t->to, "%s\"%s\":%" PRId64, i ? "," : "", zt_tag_name((enum zt_tag)i), by_tag[i]);
    }
    fputs("}}", t->to);
    counter(t, "allocated", at_ns);
    fprintf(t->to, "\"bytes\":%" PRId64 "}}", sum);
    counter(t, "reserved", at_ns);
    fprintf(t->to, "\"bytes\":%" PRId64 "}}", reserved);
}
