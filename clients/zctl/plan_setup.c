/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_setup.c: what is planned and for what: the device, how many ranks on how many hosts, what
 * their allocators hold, how much data there is. What nobody said is assumed, and told. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/disk_space.h"
#include "clients/zctl/json.h"
#include "clients/zctl/planning.h"
#include "clients/zctl/predict.h"
#include "core/units.h"

void zt_planning_say(json_t *list, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(list, zt_json_text(text));
}

/* ---------------------------------------------------------------------------------- device */

static int choose_device(struct zt_planning *p, struct zt_error *err) {
    const char *name = p->o->device;
    if (!name && strcmp(p->spec.requirements.device, "cpu") != 0)
        return zt_fail(err, ZT_EINVAL, "the run file asks for a device of kind %s; say which: --device NAME",
                       p->spec.requirements.device);
    int rc = zt_devices_load(&p->devices, err);
    return rc ? rc : zt_device_find(p->devices, name ? name : "cpu", &p->device, err);
}

/* ---------------------------------------------------------------------------------- ranks */

static bool is_open(const struct zt_spec *s) {
    return s->workers == 0 && (s->workers_max > 0 || s->parallelism.replicate < 0 || s->parallelism.shard < 0);
}

static int resolve(struct zt_spec *s, const struct zt_spec *parsed, int workers, const char *file,
                   struct zt_error *err) {
    *s = *parsed;
    return zt_spec_resolve_up_to(s, workers, ZT_PLAN_RANKS_MAX, file, err);
}

/* The number that was typed; 0: as the file says, or nobody. */
static int typed_workers(const struct zt_planning *p, const struct zt_spec *parsed, struct zt_error *err) {
    const struct zt_options *o = p->o;
    int per_host = o->gpus_per_node ? o->gpus_per_node : p->device->ranks_per_host > 0 ? p->device->ranks_per_host : 1;
    if (o->workers > 0 && o->nodes > 0 && o->gpus_per_node > 0 && o->workers != o->nodes * o->gpus_per_node)
        return zt_fail(err, ZT_EINVAL, "--workers %d is not --nodes %d x --gpus-per-node %d", o->workers, o->nodes,
                       o->gpus_per_node);
    if (o->workers > 0)
        return o->workers;
    if ((o->nodes == 0 || o->gpus_per_node == 0) && !is_open(parsed))
        return 0; /* only how they are spread */
    if (o->nodes == 0)
        return o->gpus_per_node;
    if ((int64_t)o->nodes * per_host > ZT_PLAN_RANKS_MAX)
        return zt_fail(err, ZT_EINVAL, "%d hosts of %d ranks are more than the %d ranks that a plan is made for", o->nodes,
                       per_host, ZT_PLAN_RANKS_MAX);
    return o->nodes * per_host;
}

/* As many as the coordinator would take, else a host full of them. */
static int assume_workers(struct zt_planning *p, const struct zt_spec *parsed, struct zt_spec *s, struct zt_error *err) {
    int there = p->live.idle > 0 ? p->live.idle : p->live.n_worker;
    int most = there > 0 ? there : p->device->ranks_per_host > 0 ? p->device->ranks_per_host : 1;
    struct zt_error first = {0}, later;
    for (int w = most; w > 0; w--) {
        if (resolve(s, parsed, w, p->file->file, w == most ? &first : &later) != 0)
            continue;
        if (there > 0)
            zt_planning_say(p->assumed, "%d worker%s: as many as are %s and fit the file (--workers N)", w, w == 1 ? "" : "s",
                            p->live.idle > 0 ? "idle now" : "connected");
        else
            zt_planning_say(p->assumed, "%d worker%s: nobody said how many (--workers N, or --nodes and --gpus-per-node)", w,
                            w == 1 ? "" : "s");
        return 0;
    }
    return zt_fail(err, ZT_EINVAL, "%s", first.msg);
}

static int settle_workers(struct zt_planning *p, struct zt_spec *spec, struct zt_error *err) {
    struct zt_spec *parsed = malloc(sizeof *parsed);
    if (!parsed)
        return zt_fail(err, ZT_ENOMEM, "no memory for a plan");
    *parsed = *spec;
    parsed->verbatim = NULL;
    int typed = typed_workers(p, parsed, err);
    if (typed > 0 && parsed->workers > 0 && typed != parsed->workers) {
        zt_planning_say(p->assumed, "%d ranks instead of the file's workers: %d", typed, parsed->workers);
        parsed->workers = 0;
    }
    int rc = typed < 0 ? typed
             : typed > 0 || !is_open(parsed) ? resolve(spec, parsed, typed, p->file->file, err)
                                             : assume_workers(p, parsed, spec, err);
    if (rc == 0 && parsed->workers_max > 0 && spec->workers > parsed->workers_min)
        zt_planning_say(p->assumed, "planned for %d workers; the run is elastic (%d to %d), and with fewer of them each rank needs more memory",
                        spec->workers, parsed->workers_min, parsed->workers_max);
    free(parsed);
    return rc;
}

/* ---------------------------------------------------------------------------------- hosts */

/* Of a placement on workers that are there: the host with the fewest ranks counts, its link is the narrowest. */
static int placed_per_host(const struct zt_plan_live *l, int *hosts, bool *uneven) {
    int least = l->n_order, most = 0;
    *hosts = 0;
    for (int i = 0, n; i < l->n_order; i += n) {
        const char *host = l->worker[l->order[i]].host;
        for (n = 1; i + n < l->n_order && strcmp(l->worker[l->order[i + n]].host, host) == 0;)
            n++;
        least = n < least ? n : least;
        most = n > most ? n : most;
        ++*hosts;
    }
    *uneven = least != most;
    return least;
}

static int settle_hosts(struct zt_planning *p, const struct zt_spec *spec, struct zt_error *err) {
    const struct zt_options *o = p->o;
    int world = spec->workers, per_host = o->gpus_per_node ? o->gpus_per_node : o->nodes ? world / o->nodes : 0;
    bool uneven = false;
    if (o->nodes && per_host * o->nodes != world)
        return zt_fail(err, ZT_EINVAL, "%d ranks are not the same number on each of %d hosts", world, o->nodes);
    if (per_host == 0 && p->live.n_order == world) {
        p->ranks_per_host = placed_per_host(&p->live, &p->hosts, &uneven);
        if (uneven)
            zt_planning_say(p->assumed, "times as if every host had %d of the ranks; they differ", p->ranks_per_host);
        return 0;
    }
    if (per_host == 0) /* cpu: workers of one machine unless something else is said */
        per_host = p->device->queued && p->device->ranks_per_host > 0 ? p->device->ranks_per_host : world;
    p->ranks_per_host = per_host < world ? per_host : world;
    p->hosts = (world + p->ranks_per_host - 1) / p->ranks_per_host;
    return 0;
}

/* ---------------------------------------------------------------------------------- all of it */

/* The smallest of the workers that it would run on. */
static int64_t live_capacity(const struct zt_planning *p) {
    int64_t least = 0;
    for (int i = 0; i < p->live.n_order; i++) {
        int64_t c = p->live.worker[p->live.order[i]].capacity;
        least = least == 0 || c < least ? c : least;
    }
    for (int i = 0; p->live.n_order == 0 && i < p->live.n_worker; i++) {
        int64_t c = p->live.worker[i].capacity;
        least = least == 0 || c < least ? c : least;
    }
    return least;
}

int zt_planning_settle(struct zt_planning *p, struct zt_spec *spec, struct zt_plan_config *c, struct zt_error *err) {
    int rc = settle_workers(p, spec, err);
    if (rc == 0)
        rc = settle_hosts(p, spec, err);
    if (rc)
        return rc;
    int64_t typed = (int64_t)(p->o->capacity_gib * (double)ZT_GIB);
    *c = (struct zt_plan_config){.spec = spec,
                                 .device = p->device,
                                 .capacity_bytes = typed ? typed : live_capacity(p),
                                 .ranks_per_host = p->ranks_per_host,
                                 .straggler = p->o->straggler};
    char why[ZT_PATH_MAX + 512];
    zt_predict_data(spec, &c->valid_samples, &c->total_steps, why, sizeof why);
    if (why[0])
        zt_planning_say(p->assumed, "%s", why);
    return 0;
}

/* Workers that are there count where the plan is for their kind of device. */
static int ask(struct zt_planning *p, struct zt_error *err) {
    struct zt_source s;
    struct zt_error why = {0};
    if (p->o->device && strcmp(p->o->device, p->file->spec.requirements.device) != 0) {
        snprintf(p->live.why, sizeof p->live.why, "planned for %s, whatever is connected", p->o->device);
        return 0;
    }
    int opened = zt_source_open(p->o, &s, &why);
    if (opened) {
        p->live.unreachable = opened == ZT_EUNREACHABLE;
        snprintf(p->live.why, sizeof p->live.why, "%.500s", why.msg);
        return 0;
    }
    zt_plan_live_ask(p, &s, &p->file->spec);
    int rc = zt_planning_settle(p, &p->spec, &p->config, err);
    if (rc == 0 && p->live.answered) {
        rc = zt_plan_live_place(&p->live, zt_spec_mesh(&p->spec), err);
        zt_plan_live_compare(p, &s);
    }
    zt_source_close(&s);
    return rc;
}

/* Whether rank `a` and rank `b` are on one host. */
static bool same_host(const struct zt_planning *p, int a, int b) {
    const struct zt_plan_live *l = &p->live;
    if (l->n_order > 0 && l->n_order == p->spec.workers)
        return strcmp(l->worker[l->order[a]].host, l->worker[l->order[b]].host) == 0;
    return a / p->ranks_per_host == b / p->ranks_per_host;
}

static void warn_of_disk_space(struct zt_planning *p) {
    struct zt_disk_space d;
    char text[ZT_PATH_MAX + 256];
    if (zt_disk_space(&p->spec, p->config.total_steps, &d) && zt_disk_space_short(&d))
        zt_planning_say(p->warnings, "%s", zt_disk_space_text(&d, text, sizeof text));
}

static void warn_of_split_tensor_group(struct zt_planning *p) {
    const int t = p->spec.parallelism.tensor;
    for (int i = 0; i < p->spec.workers; i++)
        if (!same_host(p, i - i % t, i)) { /* tensor is innermost */
            zt_planning_say(p->warnings,
                            "the tensor group of ranks %d to %d is not on one host: every layer waits for the link "
                            "between hosts; take a tensor_parallel_degree that divides the ranks of a host",
                            i - i % t, i - i % t + t - 1);
            return;
        }
}

int zt_planning_open(const struct zt_options *o, struct zt_run_file *f, struct zt_planning *p, struct zt_error *err) {
    p->o = o;
    p->file = f;
    p->first = -1;
    p->assumed = json_array();
    p->warnings = json_array();
    p->spec = f->spec;
    p->spec.verbatim = NULL;
    int rc = choose_device(p, err);
    if (rc == 0)
        rc = ask(p, err);
    if (rc)
        return rc;
    /* once more: now it is known where it would run */
    json_array_clear(p->assumed);
    p->spec = f->spec;
    p->spec.verbatim = NULL;
    rc = zt_planning_settle(p, &p->spec, &p->config, err);
    if (rc == 0) {
        warn_of_split_tensor_group(p);
        warn_of_disk_space(p);
    }
    return rc;
}

void zt_planning_close(struct zt_planning *p) {
    for (int i = 0; i < p->n_modes; i++)
        if (p->mode[i].plan != p->plan)
            zt_plan_free(p->mode[i].plan);
    zt_plan_free(p->plan);
    free(p->live.worker);
    free(p->live.order);
    json_decref(p->assumed);
    json_decref(p->warnings);
    json_decref(p->sweep);
    zt_devices_free(p->devices);
}
