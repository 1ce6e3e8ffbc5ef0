/* SPDX-License-Identifier: Apache-2.0 */
/* worker/saves.c: see saves.h. */
#include "worker/saves.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

static char *run_of(const struct zw_saves *s)
{
    return s->start->run_id;
}

/* An answer that says no more than that it has arrived. */
static int ask_ack(struct zw_saves *s, Zt__Envelope *env, struct zt_error *err)
{
    Zt__Envelope *reply;
    void *arena;
    int rc = zw_link_ask(s->link, env, 0, &reply, &arena, err);
    if (rc == 0) {
        zt_envelope_free(reply, arena);
    }
    return rc;
}

static void put_hash(uint8_t out[16], struct zt_hash128 h)
{
    for (int i = 0; i < 8; i++) {
        out[i] = (uint8_t)(h.lo >> (8 * i));
        out[8 + i] = (uint8_t)(h.hi >> (8 * i));
    }
}

static struct zt_hash128 get_hash(const uint8_t in[16])
{
    struct zt_hash128 h = {0, 0};
    for (int i = 0; i < 8; i++) {
        h.lo |= (uint64_t)in[i] << (8 * i);
        h.hi |= (uint64_t)in[8 + i] << (8 * i);
    }
    return h;
}

static void hash_text(char out[33], struct zt_hash128 h)
{
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, h.hi, h.lo);
}

static int shard_done(void *arg, const struct zt_shard_done *d, struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ShardDone m = ZT__SHARD_DONE__INIT;
    struct zt_sha256 index = d->index;
    uint8_t parameters[16], state[16];
    put_hash(parameters, d->parameter_hash);
    put_hash(state, d->state_hash);
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.rank = s->start->assignment->rank;
    m.step = d->step;
    m.bytes = d->bytes;
    m.index_sha256 = (ProtobufCBinaryData){sizeof(index.byte), index.byte};
    m.parameter_hash = (ProtobufCBinaryData){sizeof(parameters), parameters};
    m.state_hash = (ProtobufCBinaryData){sizeof(state), state};
    m.has_stall_seconds = m.has_write_seconds = 1;
    m.stall_seconds = d->stall_seconds;
    m.write_seconds = d->write_seconds;
    env.body_case = ZT__ENVELOPE__BODY_SHARD_DONE;
    env.shard_done = &m;
    int rc = ask_ack(s, &env, err);
    if (rc == 0 && s->neighbour) {
        zw_neighbour_saved(s->neighbour, d->step);
    }
    return rc;
}

static int take_shard(const Zt__ShardDone *m, int64_t step, int rank, struct zt_shard_done *out,
                      struct zt_error *err)
{
    if (m->step != step || m->rank != (uint32_t)rank || m->bytes < 0 || m->index_sha256.len != sizeof(out->index.byte) ||
        m->parameter_hash.len != 16 || m->state_hash.len != 16) {
        return zt_fail(err, ZT_EPROTO, "the coordinator's list of parts of step %lld is not whole: entry %d is rank %u, "
                       "step %lld", (long long)step, rank, m->rank, (long long)m->step);
    }
    *out = (struct zt_shard_done){.rank = rank, .step = step, .bytes = m->bytes,
                                  .parameter_hash = get_hash(m->parameter_hash.data),
                                  .state_hash = get_hash(m->state_hash.data),
                                  .stall_seconds = m->stall_seconds, .write_seconds = m->write_seconds};
    memcpy(out->index.byte, m->index_sha256.data, sizeof(out->index.byte));
    return 0;
}

static int shards(void *arg, int64_t step, struct zt_shard_done *all, int world, struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__GetShards m = ZT__GET_SHARDS__INIT;
    void *arena;
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.step = step;
    env.body_case = ZT__ENVELOPE__BODY_GET_SHARDS;
    env.get_shards = &m;
    int rc = zw_link_ask(s->link, &env, 0, &reply, &arena, err);
    if (rc) {
        return rc;
    }
    if (reply->body_case != ZT__ENVELOPE__BODY_SHARDS || reply->shards->n_shards != (size_t)world) {
        rc = zt_fail(err, ZT_EPROTO, "the coordinator's list of parts of step %lld has %zu of %d entries",
                     (long long)step, reply->body_case == ZT__ENVELOPE__BODY_SHARDS ? reply->shards->n_shards : 0, world);
    }
    for (int r = 0; r < world && rc == 0; r++) {
        rc = take_shard(reply->shards->shards[r], step, r, &all[r], err);
    }
    zt_envelope_free(reply, arena);
    return rc;
}

static int take_committed(const Zt__Envelope *reply, int64_t **remove, int *n, struct zt_error *err)
{
    *remove = NULL;
    *n = 0;
    if (reply->body_case != ZT__ENVELOPE__BODY_CKPT_COMMITTED) {
        return zt_fail(err, ZT_EPROTO, "the coordinator answered a commit with %s", zt_envelope_body_name(reply));
    }
    const Zt__CkptCommitted *c = reply->ckpt_committed;
    if (c->n_remove == 0) {
        return 0;
    }
    *remove = malloc(c->n_remove * sizeof(**remove));
    if (!*remove) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a list of checkpoints to remove");
    }
    memcpy(*remove, c->remove, c->n_remove * sizeof(**remove));
    *n = (int)c->n_remove;
    return 0;
}

static int commit(void *arg, const struct zt_commit *c, int64_t **remove, int *n_remove, struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT, *reply;
    Zt__CkptCommit m = ZT__CKPT_COMMIT__INIT;
    struct zt_sha256 manifest = c->manifest;
    char parameters[33], state[33];
    void *arena;
    hash_text(parameters, c->parameter_hash);
    hash_text(state, c->state_hash);
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.step = c->step;
    m.manifest_sha256 = (ProtobufCBinaryData){sizeof(manifest.byte), manifest.byte};
    m.bytes = c->bytes;
    m.folder = (char *)(uintptr_t)c->folder;
    m.has_adopted = 1;
    m.adopted = c->adopted;
    m.parameter_hash = parameters;
    m.state_hash = state;
    env.body_case = ZT__ENVELOPE__BODY_CKPT_COMMIT;
    env.ckpt_commit = &m;
    int rc = zw_link_ask(s->link, &env, 0, &reply, &arena, err);
    if (rc == 0) {
        rc = take_committed(reply, remove, n_remove, err);
        zt_envelope_free(reply, arena);
    }
    return rc;
}

static int removed(void *arg, int64_t step, struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__CkptRemoved m = ZT__CKPT_REMOVED__INIT;
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.step = step;
    env.body_case = ZT__ENVELOPE__BODY_CKPT_REMOVED;
    env.ckpt_removed = &m;
    return ask_ack(s, &env, err);
}

static int failed(void *arg, int64_t step, bool disk_full, const char *message, struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__CkptFailed m = ZT__CKPT_FAILED__INIT;
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.rank = s->start->assignment->rank;
    m.step = step;
    m.message = (char *)(uintptr_t)message;
    m.has_disk_full = 1;
    m.disk_full = disk_full;
    env.body_case = ZT__ENVELOPE__BODY_CKPT_FAILED;
    env.ckpt_failed = &m;
    return ask_ack(s, &env, err);
}

/* Nobody waits for the answer: training begins meanwhile. */
static int loaded(void *arg, int64_t step, double seconds, int64_t file_bytes, int64_t memory_bytes,
                  struct zt_error *err)
{
    struct zw_saves *s = arg;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__RankLoaded m = ZT__RANK_LOADED__INIT;
    m.run_id = run_of(s);
    m.generation = s->start->generation;
    m.rank = s->start->assignment->rank;
    m.step = step;
    m.has_seconds = m.has_bytes = m.has_memory_bytes = 1;
    m.seconds = seconds;
    m.bytes = file_bytes;
    m.memory_bytes = memory_bytes;
    env.body_case = ZT__ENVELOPE__BODY_RANK_LOADED;
    env.rank_loaded = &m;
    return zw_link_post(s->link, &env, err);
}

static void cancel(void *arg)
{
    struct zw_saves *s = arg;
    zw_link_cancel(s->link);
}

static void warn(void *arg, const char *kind, const char *message)
{
    struct zw_saves *s = arg;
    s->event(s->event_arg, ZT_EVENT_WARNING, kind, message);
}

/* Another host's copy is worth having, and never a reason to fail. */
static void open_neighbour(struct zw_saves *s)
{
    const Zt__Assignment *a = s->start->assignment;
    const struct zw_neighbour_config c = {
        .folder = s->config.folder, .memory = s->config.memory, .rank = (int)a->rank, .world = (int)a->world,
        .generation = s->start->generation, .arg = s, .warn = warn};
    struct zt_error err;
    if (zw_neighbour_open(&c, &s->neighbour, &err)) {
        warn(s, "MEMORY_COPY_SKIPPED", err.msg);
    }
}

int zw_saves_init(struct zw_saves *s, struct zw_link *l, const Zt__TrainerStart *start, const struct zt_spec *spec,
                  const struct zt_checkpoint_config **out, struct zt_error *err)
{
    const Zt__Assignment *a = start->assignment;
    s->link = l;
    s->start = start;
    *out = NULL;
    if (!a->checkpoint_folder && !a->resume_folder) {
        return 0;
    }
    if (a->has_resume_manifest && a->resume_manifest.len != sizeof(s->manifest.byte)) {
        return zt_fail(err, ZT_EPROTO, "the coordinator's hash of the manifest to go on from has %zu bytes, not %zu: "
                       "zcoord and zworker are of different versions", a->resume_manifest.len, sizeof(s->manifest.byte));
    }
    if (a->has_resume_manifest) {
        memcpy(s->manifest.byte, a->resume_manifest.data, sizeof(s->manifest.byte));
    }
    s->config = (struct zt_checkpoint_config){
        .folder = a->checkpoint_folder, .run_id = start->run_id, .run_name = a->run_name, .version = ZT_VERSION,
        .memory = spec->checkpoint.memory_copies > 0 ? start->memory_folder : NULL,
        .resume_step = (int64_t)a->start_step, .resume_folder = a->resume_folder,
        .resume_manifest = a->has_resume_manifest ? &s->manifest : NULL,
        .weights_only = a->weights_only, .accept_batch_change = a->accept_batch_change,
        .hooks = {.arg = s, .shard_done = shard_done, .shards = shards, .commit = commit, .removed = removed,
                  .failed = failed, .cancel = cancel},
        .loaded = loaded};
    if (spec->checkpoint.memory_copies > 1 && s->config.memory && s->config.folder && a->world > 1) {
        open_neighbour(s);
    }
    *out = &s->config;
    return 0;
}

void zw_saves_end(struct zw_saves *s)
{
    zw_neighbour_close(s->neighbour);
    s->neighbour = NULL;
}
