/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_poison.c: the detector of buffer hazards. First the allocator's poison alone,
 * then planted hazards: collectives whose buffers are freed before the wait. A gate on the stream
 * holds the collective back until the free is over, so the order is certain and no time is
 * involved. The wrong programs do not run under AddressSanitizer, which stops them itself. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdatomic.h>

#include "engine/device/alloc.h"
#include "tests/engine/ranks.h"

#ifdef __SANITIZE_ADDRESS__
#define WRONG_PROGRAMS_RUN 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WRONG_PROGRAMS_RUN 0
#endif
#endif
#ifndef WRONG_PROGRAMS_RUN
#define WRONG_PROGRAMS_RUN 1
#endif

#define MIB ((size_t)1 << 20)

struct rig {
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    struct zt_error e;
};

static int rig_open(struct rig *r) {
    struct zt_device_config c = {"cpu", 64 * MIB};
    struct zt_alloc_options o = {.poison = true};
    memset(r, 0, sizeof *r);
    zt_ledger_init(&r->ledger);
    int rc = zt_device_open(&c, &r->device, &r->e);
    return rc ? rc : zt_alloc_create(r->device, &r->ledger, &o, &r->alloc, &r->e);
}

static void rig_close(struct rig *r) {
    zt_alloc_destroy(r->alloc);
    zt_device_close(r->device);
}

static void *get(struct rig *r, size_t bytes) {
    void *p = NULL;
    zt_malloc(r->alloc, bytes, NULL, ZT_TAG_TEMPORARY, "x", &p, &r->e);
    return p;
}

static bool all_junk(const unsigned char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0xFF) return false;
    return true;
}

Test(poison, new_and_used_blocks_are_nan) {
    struct rig r;
    static const size_t sizes[] = {1, 512, 1000, 300000, 3 * MIB, 11 * MIB};
    cr_assert_eq(rig_open(&r), 0, "%s", r.e.msg);
    for (int round = 0; round < 3; round++) {
        unsigned char *p[6];
        for (int i = 0; i < 6; i++) {
            p[i] = get(&r, sizes[i]);
            cr_assert(p[i] && all_junk(p[i], sizes[i]), "round %d, %zu bytes", round, sizes[i]);
            memset(p[i], round, sizes[i]);
        }
        float *f = get(&r, 4);
        cr_assert(isnan(*f), "in every type: fp32");
        zt_free(r.alloc, f);
        for (int i = 0; i < 6; i++) zt_free(r.alloc, p[(i * 5 + round) % 6]);
        if (round == 1) zt_alloc_empty_cache(r.alloc); /* and segments that come back */
    }
    rig_close(&r);
}

Test(poison, off_by_default) {
    struct rig r;
    struct zt_alloc *plain;
    cr_assert_eq(rig_open(&r), 0, "%s", r.e.msg);
    cr_assert_eq(zt_alloc_create(r.device, &r.ledger, NULL, &plain, &r.e), 0);
    unsigned char *p = NULL;
    cr_assert_eq(zt_malloc(plain, 512, NULL, ZT_TAG_TEMPORARY, "x", (void **)&p, &r.e), 0);
    cr_assert_eq(p[0], 0, "fresh memory of the machine");
    zt_free(plain, p);
    zt_alloc_destroy(plain);
    rig_close(&r);
}

static int wait_gate(void *arg, struct zt_error *err) {
    atomic_int *gate = arg;
    (void)err;
    while (!atomic_load(gate)) ranks_pause();
    return 0;
}

/* A stream that was recorded still owns the bytes: they change when it has passed, not before. */
Test(poison, a_recorded_stream_keeps_its_bytes, .timeout = 60) {
    struct rig r;
    struct zt_stream *s;
    static atomic_int gate;
    cr_assert_eq(rig_open(&r), 0, "%s", r.e.msg);
    const struct zt_device_ops *dev = zt_device_ops(r.device);
    cr_assert_eq(dev->stream_create(r.device, ZT_STREAM_COPY, &s, &r.e), 0);
    unsigned char *p = get(&r, 512), *other;
    memset(p, 7, 512);
    cr_assert_eq(dev->submit(s, wait_gate, &gate, &r.e), 0);
    cr_assert_eq(zt_record_stream(r.alloc, p, s, &r.e), 0);
    zt_free(r.alloc, p);
    other = get(&r, 512);
    cr_assert_neq(other, p);
    cr_assert_eq(p[511], 7, "still in use there");
    atomic_store(&gate, 1);
    cr_assert_eq(dev->stream_sync(s, &r.e), 0);
    cr_assert_eq(get(&r, 512), p, "free now");
    cr_assert(all_junk(p, 512));
    zt_free(r.alloc, p);
    zt_free(r.alloc, other);
    dev->stream_destroy(s);
    rig_close(&r);
}

/* ---- planted hazards ---- */

#define COUNT 1000

struct hazard {
    struct ranks_shared shared;
    bool early_send, early_recv; /* freed before the wait; else after it */
    int nans[2];                 /* of each rank, in what it received */
    int next_malloc[2];
    char message[2][256];
};

struct pair {
    struct rig rig;
    struct zt_comm *comm;
    struct zt_stream *stream;
    struct zt_event *done;
};

static int pair_open(struct pair *p, int rank, struct hazard *h) {
    struct zt_comm_id id = {{0}};
    struct zt_error *e = &p->rig.e;
    EXPECT(rig_open(&p->rig) == 0, "%s", e->msg);
    const struct zt_device_ops *dev = zt_device_ops(p->rig.device);
    EXPECT(dev->stream_create(p->rig.device, ZT_STREAM_REDUCE, &p->stream, e) == 0, "%s", e->msg);
    EXPECT(dev->event_create(p->rig.device, &p->done, e) == 0, "%s", e->msg);
    if (rank == 0) EXPECT(zt_comm_mint(&id, e) == 0, "%s", e->msg);
    EXPECT(ranks_exchange(&h->shared, rank, &id, e) == 0, "%s", e->msg);
    EXPECT(zt_comm_init(&id, rank, 2, p->rig.device, 60, &p->comm, e) == 0, "%s", e->msg);
    return 0;
}

static void pair_close(struct pair *p) {
    const struct zt_device_ops *dev = zt_device_ops(p->rig.device);
    dev->stream_destroy(p->stream);
    dev->event_destroy(p->done);
    zt_comm_destroy(p->comm);
    rig_close(&p->rig);
}

static int hazard_rank(int rank, int world, void *arg) {
    struct hazard *h = arg;
    struct pair p;
    static atomic_int gate;
    static float seen[2 * COUNT];
    struct zt_coll_why why = {"unit", "planted", 1, false};
    struct zt_error *e = &p.rig.e;
    (void)world;
    if (pair_open(&p, rank, h)) return 1;
    const struct zt_device_ops *dev = zt_device_ops(p.rig.device);
    float *send = get(&p.rig, COUNT * sizeof *send), *recv = get(&p.rig, 2 * COUNT * sizeof *recv);
    for (int i = 0; i < COUNT; i++) send[i] = (float)(rank * COUNT + i);
    EXPECT(dev->submit(p.stream, wait_gate, &gate, e) == 0, "%s", e->msg);
    EXPECT(zt_all_gather(p.comm, send, recv, COUNT, ZT_F32, p.stream, &why, e) == 0, "%s", e->msg);
    EXPECT(dev->event_record(p.done, p.stream, e) == 0, "%s", e->msg);
    if (h->early_send) zt_free(p.rig.alloc, send);
    if (h->early_recv) zt_free(p.rig.alloc, recv);
    atomic_store(&gate, 1);
    EXPECT(dev->stream_wait_event(zt_device_compute(p.rig.device), p.done, NULL, e) == 0, "%s",
           e->msg);
    if (!h->early_recv) memcpy(seen, recv, sizeof seen);
    for (int i = 0; i < 2 * COUNT; i++) h->nans[rank] += isnan(seen[i]) != 0;
    for (int i = 0; i < 2 * COUNT && !h->early_send && !h->early_recv; i++)
        EXPECT(seen[i] == (float)i, "%d", i);
    if (!h->early_send) zt_free(p.rig.alloc, send);
    if (!h->early_recv) zt_free(p.rig.alloc, recv);
    void *again = NULL; /* the whole of the small segment, whoever had it */
    h->next_malloc[rank] = zt_malloc(p.rig.alloc, MIB, NULL, ZT_TAG_TEMPORARY, "again", &again, e);
    snprintf(h->message[rank], sizeof h->message[rank], "%.255s", e->msg);
    zt_free(p.rig.alloc, again);
    pair_close(&p);
    return 0;
}

static struct hazard *hazard(bool early_send, bool early_recv) {
    struct hazard *h = ranks_map(sizeof *h);
    h->early_send = early_send;
    h->early_recv = early_recv;
    cr_assert_eq(ranks_run(2, 60, hazard_rank, h, NULL), 0);
    return h;
}

Test(poison, the_right_order_is_clean, .timeout = 120) {
    struct hazard *h = hazard(false, false);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(h->nans[r], 0);
        cr_assert_eq(h->next_malloc[r], 0, "%s", h->message[r]);
    }
}

Test(poison, a_buffer_freed_before_it_was_sent_arrives_as_nan, .timeout = 120) {
    if (!WRONG_PROGRAMS_RUN) cr_skip_test("AddressSanitizer stops this program itself");
    struct hazard *h = hazard(true, false);
    for (int r = 0; r < 2; r++) cr_assert_eq(h->nans[r], 2 * COUNT, "rank %d: %d", r, h->nans[r]);
}

Test(poison, a_buffer_freed_before_it_was_filled_is_found, .timeout = 120) {
    if (!WRONG_PROGRAMS_RUN) cr_skip_test("AddressSanitizer stops this program itself");
    struct hazard *h = hazard(false, true);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(h->next_malloc[r], ZT_EINTERNAL);
        cr_assert(strstr(h->message[r], "\"again\"") && strstr(h->message[r], "while it was free"),
                  "%s", h->message[r]);
    }
}
