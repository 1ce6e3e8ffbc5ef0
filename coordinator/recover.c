/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/recover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/migrate.h"
#include "coordinator/query_internal.h"
#include "coordinator/run_config.h"

#define LIVE "r.state NOT IN (20, 21, 22)"
#define KEY_TTL_MS ((int64_t)24 * 3600 * 1000)

static void column(struct query *q, int i, char *out, size_t n)
{
    const char *t = (const char *)sqlite3_column_text(q->s, i);
    snprintf(out, n, "%s", t ? t : "");
}
#define TEXT(i, field) column(&q, i, field, sizeof field)
#define INT(i) sqlite3_column_int64(q.s, i)

/* Makes room for one more element of each of two parallel arrays. */
static bool grow(struct query *q, void **a, size_t size_a, void **b, size_t size_b, size_t n)
{
    if (n & (n - 1))
        return true;
    size_t cap = n ? n * 2 : 1;
    void *x = realloc(*a, cap * size_a);
    if (x)
        *a = x;
    void *y = b ? realloc(*b, cap * size_b) : x;
    if (b && y)
        *b = y;
    if (!x || !y)
        q->oom = true;
    return x && y;
}

static void read_incarnation(struct query *q, int i, struct zt_incarnation *out)
{
    if (sqlite3_column_bytes(q->s, i) == (int)sizeof out->bytes)
        memcpy(out->bytes, sqlite3_column_blob(q->s, i), sizeof out->bytes);
}

static int read_runs(sqlite3 *db, int64_t wall_ms, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    size_t n = 0;
    q_open(&q, db, "SELECT r.run_id, r.name, r.place, r.state, r.reason, r.detail, r.cause_rank, r.generation, r.attempt,"
                   " r.restarts_counted, r.failures_in_row, r.cancel_requested, r.workers, r.replicate, r.shard, r.tensor,"
                   " r.best_step, r.submitted_ms, r.started_ms, r.ended_ms, r.parameter_hash, r.config, s.run_yaml, s.overrides,"
                   " r.init_timeouts, r.saved_step, r.no_progress, r.source_corrupt, v.folder, v.source_folder,"
                   " v.accept_batch_change"
                   " FROM runs r LEFT JOIN run_specs s ON s.run_id = r.run_id LEFT JOIN run_saves v ON v.run_id = r.run_id WHERE " LIVE " ORDER BY r.place", err);
    while (q_row(&q)) {
        if (!grow(&q, (void **)&r->runs, sizeof *r->runs, (void **)&r->texts, sizeof *r->texts, n) ||
            !grow(&q, (void **)&r->run_age_ms, sizeof(int64_t), (void **)&r->run_started_age_ms, sizeof(int64_t), n))
            break;
        struct zt_row_run *o = &r->runs[n];
        struct zt_run_text *t = &r->texts[n];
        memset(o, 0, sizeof *o);
        memset(t, 0, sizeof *t);
        n = ++r->recovery.n_runs;
        TEXT(0, o->run_id);
        TEXT(1, o->name);
        o->order = (uint64_t)INT(2);
        o->state = (enum zt_run_state)INT(3);
        o->reason = (enum zt_reason)INT(4);
        TEXT(5, o->detail);
        o->cause_rank = (int32_t)INT(6);
        o->generation = (uint32_t)INT(7);
        o->attempt = (uint32_t)INT(8);
        o->restarts_counted = (uint32_t)INT(9);
        o->failures_in_row = (uint32_t)INT(10);
        o->cancel_requested = INT(11) != 0;
        o->workers = (int32_t)INT(12);
        o->mesh = (struct zt_mesh){ (int)INT(13), (int)INT(14), (int)INT(15) };
        o->best_step = INT(16);
        o->submitted_ms = INT(17);
        o->started_ms = INT(18);
        o->ended_ms = INT(19);
        TEXT(20, o->parameter_hash);
        o->init_timeouts = (uint32_t)INT(24);
        o->saved_step = INT(25);
        o->no_progress = (uint32_t)INT(26);
        o->source_corrupt = INT(27) != 0;
        if (zt_run_config_from_json((const char *)sqlite3_column_text(q.s, 21), &o->config, err)) {
            q.code = zt_fail_prefix(err, "run %s", o->run_id);
            break;
        }
        r->run_age_ms[n - 1] = wall_ms > o->submitted_ms ? wall_ms - o->submitted_ms : 0;
        r->run_started_age_ms[n - 1] = o->started_ms == 0 ? -1 : wall_ms > o->started_ms ? wall_ms - o->started_ms : 0;
        snprintf(t->run_id, sizeof t->run_id, "%s", o->run_id);
        snprintf(t->name, sizeof t->name, "%s", o->name);
        ProtobufCBinaryData yaml = q_blob(&q, 22);
        t->yaml = yaml.data;
        t->yaml_bytes = yaml.len;
        t->overrides = q_string(&q, 23);
        t->folder = q_string(&q, 28);
        t->source_folder = q_string(&q, 29);
        t->accept_batch_change = INT(30) != 0;
    }
    r->recovery.runs = r->runs;
    r->recovery.run_age_ms = r->run_age_ms;
    r->recovery.run_started_age_ms = r->run_started_age_ms;
    return q_close(&q);
}

static int read_attempts(sqlite3 *db, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT a.run_id, a.generation, a.attempt, a.world, a.started_ms, a.ended_ms, a.reason, a.rank, a.worker_id,"
                   " a.message, a.last_step, a.steps_redone, a.counted, a.detect_seconds, a.stop_seconds, a.start_seconds,"
                   " a.form_seconds, a.load_seconds, a.start_from, a.start_step FROM runs r JOIN attempts a ON a.run_id = r.run_id AND a.generation = r.generation"
                   " WHERE " LIVE, err);
    while (q_row(&q) && grow(&q, (void **)&r->attempts, sizeof *r->attempts, NULL, 0, r->recovery.n_attempts)) {
        struct zt_row_attempt *o = &r->attempts[r->recovery.n_attempts++];
        memset(o, 0, sizeof *o);
        TEXT(0, o->run_id);
        o->generation = (uint32_t)INT(1);
        o->attempt = (uint32_t)INT(2);
        o->world = (int32_t)INT(3);
        o->started_ms = INT(4);
        o->ended_ms = INT(5);
        o->reason = (enum zt_reason)INT(6);
        o->rank = (int32_t)INT(7);
        TEXT(8, o->worker_id);
        TEXT(9, o->message);
        o->last_step = INT(10);
        o->steps_redone = INT(11);
        o->counted = INT(12) != 0;
        o->detect_seconds = sqlite3_column_double(q.s, 13);
        o->stop_seconds = sqlite3_column_double(q.s, 14);
        o->start_seconds = sqlite3_column_double(q.s, 15);
        o->form_seconds = sqlite3_column_double(q.s, 16);
        o->load_seconds = sqlite3_column_double(q.s, 17);
        o->from = (enum zt_start)INT(18);
        o->start_step = INT(19);
    }
    r->recovery.attempts = r->attempts;
    return q_close(&q);
}

/* Reports of a rank and generation are accepted in order only, so its highest row is also its last contiguous
 * one. A row of a newer roll-up may be trimmed, the newest never is. */
static int read_ranks(sqlite3 *db, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT a.run_id, a.generation, a.rank, a.local_rank, a.workers_on_host, a.worker_id, a.host, a.incarnation,"
                   " a.done, a.released, a.done_steps, a.parameter_hash,"
                   " (SELECT max(s.step) FROM step_rank s WHERE s.run_id = a.run_id AND s.rank = a.rank"
                   "  AND s.generation = a.generation)"
                   " FROM runs r JOIN assignments a ON a.run_id = r.run_id AND a.generation = r.generation WHERE " LIVE, err);
    while (q_row(&q) && grow(&q, (void **)&r->ranks, sizeof *r->ranks, (void **)&r->rank_step, sizeof(int64_t),
                             r->recovery.n_ranks)) {
        r->rank_step[r->recovery.n_ranks] = INT(12);
        struct zt_row_rank *o = &r->ranks[r->recovery.n_ranks++];
        memset(o, 0, sizeof *o);
        TEXT(0, o->run_id);
        o->generation = (uint32_t)INT(1);
        o->rank = (int32_t)INT(2);
        o->local_rank = (int32_t)INT(3);
        o->workers_on_host = (int32_t)INT(4);
        TEXT(5, o->worker_id);
        TEXT(6, o->host);
        read_incarnation(&q, 7, &o->incarnation);
        o->done = INT(8) != 0;
        o->released = INT(9) != 0;
        o->done_steps = INT(10);
        TEXT(11, o->parameter_hash);
    }
    r->recovery.ranks = r->ranks;
    r->recovery.rank_step = r->rank_step;
    return q_close(&q);
}

static void read_bytes(struct query *q, int i, uint8_t *out, size_t n)
{
    if (sqlite3_column_bytes(q->s, i) == (int)n)
        memcpy(out, sqlite3_column_blob(q->s, i), n);
}

static int read_ckpts(sqlite3 *db, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT c.run_id, c.step, c.generation, c.state, c.world, c.replicate, c.shard, c.tensor, c.manifest, c.bytes,"
                   " c.created_ms, c.committed_ms, c.pinned, c.verified, c.stall_seconds, c.write_seconds, c.parameter_hash,"
                   " c.state_hash, c.message FROM checkpoints c JOIN runs r ON r.run_id = c.run_id WHERE " LIVE
                   " ORDER BY c.run_id, c.step", err);
    while (q_row(&q) && grow(&q, (void **)&r->ckpts, sizeof *r->ckpts, NULL, 0, r->recovery.n_ckpts)) {
        struct zt_row_ckpt *o = &r->ckpts[r->recovery.n_ckpts++];
        memset(o, 0, sizeof *o);
        TEXT(0, o->run_id);
        o->step = INT(1);
        o->generation = (uint32_t)INT(2);
        o->state = (enum zt_ckpt_state)INT(3);
        o->world = (int32_t)INT(4);
        o->mesh = (struct zt_mesh){ (int)INT(5), (int)INT(6), (int)INT(7) };
        read_bytes(&q, 8, o->manifest, sizeof o->manifest);
        o->bytes = INT(9);
        o->created_ms = INT(10);
        o->committed_ms = INT(11);
        o->pinned = INT(12) != 0;
        o->verified = INT(13) != 0;
        o->stall_seconds = sqlite3_column_double(q.s, 14);
        o->write_seconds = sqlite3_column_double(q.s, 15);
        TEXT(16, o->parameter_hash);
        TEXT(17, o->state_hash);
        TEXT(18, o->message);
    }
    r->recovery.ckpts = r->ckpts;
    return q_close(&q);
}

static int read_parts(sqlite3 *db, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT p.run_id, p.step, p.generation, p.rank, p.bytes, p.index_sha256, p.parameter_hash, p.state_hash,"
                   " p.stall_seconds, p.write_seconds FROM checkpoint_shards p JOIN runs r ON r.run_id = p.run_id WHERE " LIVE, err);
    while (q_row(&q) && grow(&q, (void **)&r->parts, sizeof *r->parts, NULL, 0, r->recovery.n_parts)) {
        struct zt_row_part *o = &r->parts[r->recovery.n_parts++];
        memset(o, 0, sizeof *o);
        TEXT(0, o->run_id);
        o->step = INT(1);
        o->generation = (uint32_t)INT(2);
        o->part.rank = (int32_t)INT(3);
        o->part.bytes = INT(4);
        read_bytes(&q, 5, o->part.index, sizeof o->part.index);
        read_bytes(&q, 6, o->part.parameter_hash, sizeof o->part.parameter_hash);
        read_bytes(&q, 7, o->part.state_hash, sizeof o->part.state_hash);
        o->part.stall_seconds = sqlite3_column_double(q.s, 8);
        o->part.write_seconds = sqlite3_column_double(q.s, 9);
    }
    r->recovery.parts = r->parts;
    return q_close(&q);
}

static int read_workers(sqlite3 *db, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT worker_id, host, device, version, isa, backend, address, incarnation, state, flags, capacity_bytes,"
                   " threads, pid, run_id, generation, rank, local_rank, at_ms FROM workers", err);
    while (q_row(&q) && grow(&q, (void **)&r->workers, sizeof *r->workers, NULL, 0, r->recovery.n_workers)) {
        struct zt_row_worker *o = &r->workers[r->recovery.n_workers++];
        memset(o, 0, sizeof *o);
        TEXT(0, o->worker_id);
        TEXT(1, o->host);
        TEXT(2, o->device);
        TEXT(3, o->version);
        TEXT(4, o->isa);
        TEXT(5, o->backend);
        TEXT(6, o->address);
        read_incarnation(&q, 7, &o->incarnation);
        o->state = (enum zt_worker_state)INT(8);
        o->flags = (uint32_t)INT(9);
        o->capacity_bytes = INT(10);
        o->threads = (uint32_t)INT(11);
        o->pid = (uint64_t)INT(12);
        TEXT(13, o->run_id);
        o->generation = (uint32_t)INT(14);
        o->rank = (int32_t)INT(15);
        o->local_rank = (int32_t)INT(16);
        o->at_ms = INT(17);
    }
    r->recovery.workers = r->workers;
    return q_close(&q);
}

static int read_keys(sqlite3 *db, int64_t wall_ms, struct zt_recovered *r, struct zt_error *err)
{
    struct query q;
    q_open(&q, db, "SELECT key, verb, run_id, name, at_ms FROM rpc_dedup WHERE at_ms > ?1 AND length(key) = 16 ORDER BY at_ms", err);
    q_int(&q, 1, wall_ms - KEY_TTL_MS);
    while (q_row(&q) && grow(&q, (void **)&r->keys, sizeof *r->keys, (void **)&r->key_age_ms, sizeof(int64_t),
                             r->recovery.n_keys)) {
        int64_t at = INT(4);
        r->key_age_ms[r->recovery.n_keys] = wall_ms > at ? wall_ms - at : 0;
        struct zt_row_key *o = &r->keys[r->recovery.n_keys++];
        memset(o, 0, sizeof *o);
        memcpy(o->key, sqlite3_column_blob(q.s, 0), sizeof o->key);
        TEXT(1, o->verb);
        TEXT(2, o->run_id);
        TEXT(3, o->name);
        o->at_ms = at;
    }
    r->recovery.keys = r->keys;
    r->recovery.key_age_ms = r->key_age_ms;
    return q_close(&q);
}

int zt_recover(sqlite3 *db, uint64_t epoch, int64_t wall_ms, struct zt_recovered *out, struct zt_error *err)
{
    memset(out, 0, sizeof *out);
    sqlite3_int64 last = 0;
    int code = zt_db_int(db, "SELECT coalesce(max(place), 0) FROM runs", 0, &last, err);
    out->recovery.last_order = (uint64_t)last;
    out->recovery.epoch = epoch;
    if (!code)
        code = read_runs(db, wall_ms, out, err);
    if (!code)
        code = read_attempts(db, out, err);
    if (!code)
        code = read_ranks(db, out, err);
    if (!code)
        code = read_workers(db, out, err);
    if (!code)
        code = read_ckpts(db, out, err);
    if (!code)
        code = read_parts(db, out, err);
    if (!code)
        code = read_keys(db, wall_ms, out, err);
    if (code)
        zt_recovered_free(out);
    return code;
}

void zt_run_text_free(struct zt_run_text *t)
{
    free(t->yaml);
    free(t->overrides);
    free(t->folder);
    free(t->source_folder);
    memset(t, 0, sizeof *t);
}

void zt_recovered_free(struct zt_recovered *r)
{
    for (size_t i = 0; i < r->recovery.n_runs; i++)
        zt_run_text_free(&r->texts[i]);
    free(r->ckpts);
    free(r->parts);
    free(r->runs);
    free(r->texts);
    free(r->run_age_ms);
    free(r->run_started_age_ms);
    free(r->attempts);
    free(r->ranks);
    free(r->rank_step);
    free(r->workers);
    free(r->keys);
    free(r->key_age_ms);
    memset(r, 0, sizeof *r);
}
