/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/oom.h"

#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"
#include "core/oom_advice.h"
#include "core/units.h"

#define FIRST_CHANGE_MAX 400 /* bytes of the plan's text that are passed on */

/* What the device is asked for when a request finds no block: the allocator's segments (engine/device/alloc.h). */
static int64_t segment(int64_t request)
{
    if (request <= (int64_t)ZT_MIB)
        return 2 * (int64_t)ZT_MIB;
    if (request < 10 * (int64_t)ZT_MIB)
        return 20 * (int64_t)ZT_MIB;
    return (int64_t)zt_round_up((size_t)request, 2 * ZT_MIB);
}

/* Every other rank had room for this request at this place; ranks allocate alike. */
static int others_had_room(sqlite3 *db, const char *run_id, uint32_t generation, int32_t rank, const Zt__OomDetail *d,
                           bool *room, struct zt_error *err)
{
    struct query q;
    int64_t least = 0;
    q_open(&q, db, "SELECT min(capacity_bytes) FROM assignments WHERE run_id = ?1 AND generation = ?2 AND rank <> ?3", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    q_int(&q, 3, rank);
    if (q_row(&q))
        least = sqlite3_column_int64(q.s, 0); /* NULL (no other rank) reads as 0 */
    int64_t need = 0;
    *room = d->request >= 0 && d->request < INT64_MAX / 4 && d->reserved >= 0 &&
            !__builtin_add_overflow(d->reserved, segment(d->request), &need) && least >= need && d->capacity < need;
    return q_close(&q);
}

/* memory.limit_gib holds for all ranks: a capacity below what the worker offered is no fault of the worker. */
static int limited(sqlite3 *db, const char *run_id, uint32_t generation, int32_t rank, const Zt__OomDetail *d, bool *is,
                   struct zt_error *err)
{
    struct query q;
    *is = false;
    q_open(&q, db, "SELECT capacity_bytes FROM assignments WHERE run_id = ?1 AND generation = ?2 AND rank = ?3", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, generation);
    q_int(&q, 3, rank);
    if (q_row(&q)) {
        int64_t offered = sqlite3_column_int64(q.s, 0);
        *is = offered - d->capacity >= 2 * (int64_t)ZT_MIB; /* capacities are rounded down to a segment */
    }
    return q_close(&q);
}

static int first_change(sqlite3 *db, const char *run_id, Zt__OomDetail *d, struct zt_error *err)
{
    struct query q;
    /* a JSON object when it came (dispatch.c), perhaps one too deep for the database */
    q_open(&q, db, "SELECT CASE WHEN json_valid(p) THEN CASE json_type(p, '$.first_change') WHEN 'text'"
                   " THEN substr(json_extract(p, '$.first_change'), 1, ?2) END END"
                   " FROM (SELECT CAST(plan AS TEXT) AS p FROM run_specs WHERE run_id = ?1)", err);
    q_text(&q, 1, run_id);
    q_int(&q, 2, FIRST_CHANGE_MAX);
    if (q_row(&q))
        d->first_change = q_string_or_null(&q, 0);
    return q_close(&q);
}

/* The allocated peak that the plan has for a device without a limit, the same for every capacity; 0: not told. */
static int planned_peak(sqlite3 *db, const char *run_id, int64_t *peak, struct zt_error *err)
{
    struct query q;
    *peak = 0;
    q_open(&q, db, "SELECT CASE WHEN json_valid(p) THEN CASE json_type(p, '$.plans[0].peak_allocated_bytes')"
                   " WHEN 'integer' THEN json_extract(p, '$.plans[0].peak_allocated_bytes') END END"
                   " FROM (SELECT CAST(plan AS TEXT) AS p FROM run_specs WHERE run_id = ?1)", err);
    q_text(&q, 1, run_id);
    if (q_row(&q))
        *peak = sqlite3_column_int64(q.s, 0); /* NULL reads as 0 */
    return q_close(&q);
}

static int64_t bytes(protobuf_c_boolean has, int64_t v) { return has ? v : 0; }

int zt_oom_explain(sqlite3 *db, const char *run_id, uint32_t generation, int32_t rank, int64_t step, Zt__OomDetail *d,
                   struct zt_error *err)
{
    const Zt__TagBytes *t = d->by_tag;
    bool room = false, low = false;
    int64_t peak = 0;
    char text[1024];
    free(d->location); /* a worker has no say in these */
    free(d->first_change);
    d->location = d->first_change = NULL;
    if (others_had_room(db, run_id, generation, rank, d, &room, err) || limited(db, run_id, generation, rank, d, &low, err) ||
        first_change(db, run_id, d, err) || planned_peak(db, run_id, &peak, err))
        return err->code;
    struct zt_oom_site s = { .phase = d->phase, .tag = d->tag, .step = step, .fragmentation = d->fragmentation,
                             .one_rank = room && !low, .request = d->request,
                             .reserved = d->reserved, .allocated = d->allocated, .capacity = d->capacity, .needs = peak,
                             .parameters = bytes(t->has_parameters, t->parameters),
                             .gradients = bytes(t->has_gradients, t->gradients),
                             .optimizer = bytes(t->has_optimizer, t->optimizer),
                             .activations = bytes(t->has_activations, t->activations),
                             .temporary = bytes(t->has_temporary, t->temporary),
                             .communication = bytes(t->has_communication, t->communication) };
    d->location = strdup(zt_oom_text(&s, text, sizeof text));
    return d->location ? 0 : zt_fail(err, ZT_ENOMEM, "out of memory");
}
