/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_measure.c: comm.measure_seconds: before step 1, what a collective costs between this
 * run's ranks: among those of one host, and over all hosts. Memory and thread rules: train_int.h.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/units.h"
#include "engine/comm/measure.h"
#include "engine/train_int.h"

struct site {
    uint64_t host;
    int64_t most; /* bytes of a message that this rank has room for */
};

struct links {
    struct zt_trainer *t;
    struct zt_comm *host; /* the ranks of this rank's host */
    int hosts, per_host;  /* the least of any host */
    int first;            /* rank that tells of one host: the first of the first that has several */
    int64_t most;
    bool across; /* which of the two is told */
};

/* A quarter of the device, for the whole buffer and a share. */
static int64_t room(const struct zt_trainer *t) {
    int64_t most = ZT_MEASURE_MOST_BYTES, bytes = (int64_t)zt_device_capacity(t->device) / 4;
    while (most > ZT_MEASURE_LEAST_BYTES && most > bytes) most /= 4;
    return most;
}

static int meet(struct links *l, struct site *all, int *list, struct zt_error *err) {
    static const struct zt_coll_why why = {"", "who is on which host", 0, true};
    struct zt_trainer *t = l->t;
    int world = t->config->world, n = 0;
    const char *host = t->config->several_hosts ? t->config->host : "";
    struct site own = {XXH3_64bits(host, strlen(host)), room(t)};
    int rc =
        zt_all_gather(t->control, &own, all, 2, ZT_I64, zt_device_compute(t->device), &why, err);
    if (rc) return rc;
    l->most = ZT_MEASURE_MOST_BYTES;
    l->per_host = world;
    l->first = -1;
    for (int i = 0; i < world; i++) {
        int on = 0, before = 0;
        for (int k = 0; k < world; k++) {
            on += all[k].host == all[i].host;
            before += k < i && all[k].host == all[i].host;
        }
        l->hosts += before == 0;
        if (on < l->per_host) l->per_host = on;
        if (l->first < 0 && on > 1) l->first = i;
        if (all[i].most < l->most) l->most = all[i].most;
        if (all[i].host == own.host) list[n++] = i;
    }
    return zt_comm_split(t->world, "host", list, n, &l->host, err);
}

static void tell(void *arg, const struct zt_measured *m) {
    const struct links *l = arg;
    char text[512];
    int teller = l->across ? 0 : l->first;
    zt_measured_json(m, l->across, l->across ? l->per_host : m->ranks, text, sizeof text);
    if (l->t->config->rank == teller && l->t->hooks->event)
        l->t->hooks->event(l->t->hooks->arg, ZT_EVENT_INFO, "COMM_MEASURED", text);
}

/* The simulated device has the buffers too: they are part of what the run needs to start. */
static int measure(struct links *l, struct zt_error *err) {
    struct zt_trainer *t = l->t;
    struct zt_stream *s = zt_device_compute(t->device);
    int world = t->config->world, parts = (l->hosts > 1) + (l->first >= 0), rc = 0;
    void *full = NULL, *part = NULL;
    int64_t reached;
    size_t whole =
        (size_t)zt_measure_full(l->most, world) * sizeof(float) + (size_t)world * sizeof(float);
    struct zt_measure m = {.control = t->control,
                           .device = t->device,
                           .stream = s,
                           .most = l->most,
                           .seconds = t->spec->comm.measure_seconds / parts,
                           .arg = l,
                           .row = tell};
    TRY(zt_malloc(t->alloc, whole, s, ZT_TAG_COMMUNICATION, "measured message", &full, err));
    TRY(zt_malloc(t->alloc, whole / 2, s, ZT_TAG_COMMUNICATION, "share of it", &part, err));
    m.full = full;
    m.part = part;
    for (int across = 0; across < 2 && !zt_trainer_sim(t); across++) {
        if (across ? l->hosts < 2 : l->first < 0) continue;
        l->across = across;
        m.comm = across ? t->world : l->host;
        TRY(zt_comm_measure(&m, &reached, err));
    }
out:
    zt_free(t->alloc, part);
    zt_free(t->alloc, full);
    zt_alloc_empty_cache(t->alloc);
    return rc;
}

int zt_trainer_measure(struct zt_trainer *t, struct zt_error *err) {
    struct links l = {.t = t};
    int world = t->config->world, *list = NULL, rc = 0;
    struct site *all = NULL;
    if (!(t->spec->comm.measure_seconds > 0)) return 0;
    if (world < 2) {
        if (t->hooks->event)
            t->hooks->event(t->hooks->arg, ZT_EVENT_WARNING, "COMM_NOT_MEASURED",
                            "comm.measure_seconds: one rank has nobody to send to");
        return 0;
    }
    list = calloc((size_t)world, sizeof *list);
    all = calloc((size_t)world, sizeof *all);
    if (!list || !all) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    TRY(meet(&l, all, list, err));
    TRY(measure(&l, err));
out:
    if (l.host) zt_comm_destroy(l.host);
    free(all);
    free(list);
    return rc;
}
