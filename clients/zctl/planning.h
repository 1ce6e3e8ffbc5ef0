/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/planning.h: what `zctl plan` is made of: what is planned and for what (plan_setup.c), the workers
 * that are there (plan_live.c), the same run in other modes (plan_modes.c) and with other values (plan_sweep.c),
 * rows of all that (plan_rows.c), and pages for people (plan_table.c, plan_mesh.c). Private to those files and to
 * what draws a plan.
 *
 * The planning owns its plans, JSON and table of devices. One thread. */
#ifndef ZT_ZCTL_PLANNING_H
#define ZT_ZCTL_PLANNING_H
#include <jansson.h>
#include "clients/zctl/cmd.h"
#include "engine/plan/devices.h"
#include "engine/plan/plan.h"

#define ZT_PLAN_ROOM 0.92     /* of the capacity: what a mode must fit to be named as the first that does */
#define ZT_SWEEP_ROWS 64

/* A connected worker that may be given a rank of this run, now or later. */
struct zt_plan_worker { char id[192], host[128]; int64_t capacity; bool idle; };
struct zt_plan_live {
    bool answered;            /* else why says what there was instead, unreachable that nobody is there */
    bool unreachable;
    char why[512];
    int n, idle, busy, lost, held, small; /* n: those of the device; small: of too little memory */
    struct zt_plan_worker *worker; /* idle or busy ones, in the order of the coordinator's answer */
    int n_worker;
    int queued;               /* runs that have their turn before this one */
    char first_queued[ZT_NAME_MAX + 1];
    int *order; int n_order;  /* index into worker by rank; n_order 0: does not start now */
};

/* One row of "the same run in other modes". */
struct zt_planned_mode {
    enum zt_mode mode;
    int replicate, shard;
    bool chosen;              /* as the file has it */
    struct zt_plan *plan;     /* NULL: the mode cannot take this run */
    char why[256];
};
#define ZT_PLANNED_MODES 8

struct zt_planning {
    const struct zt_options *o;
    struct zt_run_file *file;
    struct zt_spec spec;      /* resolved; shares nothing with the file's */
    struct zt_devices *devices;
    const struct zt_cost_device *device; /* of them */
    int ranks_per_host, hosts;
    struct zt_plan_config config;
    struct zt_plan *plan;     /* of the file, with details */
    double even_seconds;      /* with a straggler: a step without it; else 0 */
    struct zt_planned_mode mode[ZT_PLANNED_MODES];
    int n_modes, first;       /* index of the first that fits in ZT_PLAN_ROOM; -1: none */
    struct zt_plan_live live;
    json_t *assumed, *warnings; /* arrays of sentences */
    json_t *sweep;            /* rows; NULL: not asked for */
};

/* ---- plan_setup.c ---- */
/* Device, workers, data, capacity; asks the coordinator. The file is loaded. */
int zt_planning_open(const struct zt_options *o, struct zt_run_file *f, struct zt_planning *p, struct zt_error *err);
void zt_planning_close(struct zt_planning *p);
/* spec (parsed) with as many ranks as are planned for, and what a plan of it needs; for the file itself and for
 * each row of a sweep. spec and config->spec are the same afterwards. */
int zt_planning_settle(struct zt_planning *p, struct zt_spec *spec, struct zt_plan_config *c, struct zt_error *err);
void zt_planning_say(json_t *list, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- plan_live.c ---- */
/* Workers and queue; *live is filled also when nobody answers. */
void zt_plan_live_ask(struct zt_planning *p, struct zt_source *s, const struct zt_spec *spec);
/* Which worker becomes which rank if it were submitted now. */
int zt_plan_live_place(struct zt_plan_live *l, struct zt_mesh mesh, struct zt_error *err);
/* What differs from the last run of that name although it learns at the same pace. */
void zt_plan_live_compare(struct zt_planning *p, struct zt_source *s);
/* {answered, why, workers, idle, ..., starts_now, on[], capacities[{capacity_bytes, workers, fits}]} */
json_t *zt_plan_live_json(struct zt_planning *p);
void zt_plan_live_print(FILE *out, struct zt_planning *p, const json_t *live);

/* ---- plan_modes.c ---- */
int zt_planning_modes(struct zt_planning *p, struct zt_error *err);
/* "fsdp x 2" with two replicas of a sharded mode. */
const char *zt_planned_mode_name(const struct zt_planned_mode *m, char *buf, size_t n);
bool zt_plan_has_room(const struct zt_plan *p);
/* Which is the first, and because of what; or what is in the way of all. */
const char *zt_planning_first(const struct zt_planning *p, char *buf, size_t n);

/* ---- plan_sweep.c ---- */
int zt_planning_sweep(struct zt_planning *p, struct zt_error *err);

/* ---- plan_rows.c ---- */
json_t *zt_plan_rows_units(const struct zt_plan *p);   /* equal neighbours are one row */
json_t *zt_plan_rows_traffic(const struct zt_plan *p); /* by group and kind */
json_t *zt_plan_rows_schedule(const struct zt_plan *p);
json_t *zt_plan_rows_modes(const struct zt_planning *p);
json_t *zt_planning_json(struct zt_planning *p);       /* the whole document */
double zt_plan_exposed_share(const struct zt_plan *p); /* of the step */
/* Of the device's peak in the type of the kernels; 0: it has none. peak, type: what it is a share of. */
double zt_plan_mfu(const struct zt_planning *p);
double zt_plan_peak(const struct zt_planning *p, enum zt_dtype *type);
#define ZT_MFU_FORMULA "6(N-N_embed)+12LHQT"

/* ---- plan_table.c, plan_mesh.c ---- */
int zt_planning_print(FILE *out, struct zt_planning *p, const json_t *doc, struct zt_error *err);
void zt_plan_print_mesh(FILE *out, const struct zt_planning *p);
int zt_plan_print_ranks(FILE *out, const struct zt_planning *p, struct zt_error *err);
/* A unit that all of a table's byte figures are told in. */
struct zt_plan_unit_of { double bytes; const char *name; };
struct zt_plan_unit_of zt_plan_unit_of(int64_t largest);

#endif
