/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_open.c: everything between the specification and the first step, and its undoing:
 * device, data, model, communicators, runtime, and the agreement of all ranks on where they start
 * from. Memory and thread rules: train_int.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/units.h"
#include "engine/train_int.h"

int64_t zt_default_capacity(int workers_on_host) {
    char line[256];
    int64_t kib = 0, step = 2 * (int64_t)ZT_MIB;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNd64, &kib) == 1) break;
    if (f) fclose(f);
    int64_t bytes = kib * 1024 / 2 / (workers_on_host < 1 ? 1 : workers_on_host);
    return bytes / step * step;
}

static void simulated_work(void *arg, struct zt_cost_work w) {
    struct zt_trainer *t = arg;
    zt_sim_work(t->device, zt_cost_ns(zt_trainer_sim(t)->device, w));
}

static int open_device(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_train_config *c = t->config;
    const struct zt_spec *s = t->spec;
    struct zt_device_config dc = {c->device, (size_t)c->capacity_bytes, c->sim};
    struct zt_kernels_config kc = {c->threads, c->isa, c->gemm, simulated_work, t};
    struct zt_alloc_options ao = {.max_split_size =
                                      (size_t)(s->memory.max_split_size_mib * (double)ZT_MIB),
                                  .gc_threshold = s->memory.gc_threshold,
                                  .poison = ZT_FAILPOINT("engine.poison"),
                                  .watch = c->watch};
    int rc = 0;
    if (!c->kernels) TRY(zt_fail(err, ZT_EINVAL, "trainer: no kernels were given"));
    t->recipe = zt_recipe_find(s->precision.recipe);
    if (!t->recipe || !t->recipe->supported)
        TRY(zt_fail(err, ZT_EUNSUPPORTED, "precision.recipe: %s is not in this version; use fp32",
                    s->precision.recipe));
    if (!zt_policy(s->parallelism.mode)->supported)
        TRY(zt_fail(err, ZT_EUNSUPPORTED, "parallelism.mode: %s is not in this version; use ddp",
                    zt_mode_name(s->parallelism.mode)));
    zt_loss_scaler_init(&t->scaler, s->precision.scaler);
    if (zt_mesh_world(t->mesh) != c->world)
        TRY(zt_fail(err, ZT_EINVAL, "the mesh has %d ranks, the run has %d", zt_mesh_world(t->mesh),
                    c->world));
    if (zt_trainer_limited(t)) dc.capacity_bytes = (size_t)(s->memory.limit_gib * (double)ZT_GIB);
    TRY(zt_device_open(&dc, &t->device, err));
    zt_ledger_init(&t->ledger);
    zt_ledger_set_phase(&t->ledger, ZT_PHASE_INIT);
    TRY(zt_alloc_create(t->device, &t->ledger, &ao, &t->alloc, err));
    TRY(c->kernels->create(&kc, &t->ctx, err));
    t->kernels = c->kernels;
    t->ops = t->kernels->table();
    zt_progress_phase(t, ZT_PHASE_INIT);
out:
    return rc;
}

/* Every rank opens the same files: rank 0 tells of them for all. */
static void data_event(void *arg, const char *kind, const char *message) {
    struct zt_trainer *t = arg;
    if (t->hooks->event && t->config->rank == 0)
        t->hooks->event(t->hooks->arg, ZT_EVENT_INFO, kind, message);
}

/* With training.epochs the number of steps is known here first. */
static void tell_warmup(const struct zt_trainer *t) {
    char text[160];
    if (t->schedule.warmup_steps <= t->total_steps || t->config->rank != 0 || !t->hooks->event)
        return;
    snprintf(text, sizeof text,
             "lr_scheduler.warmup_steps: %lld is more than the %lld steps of the run; the warm-up "
             "takes all of them",
             (long long)t->schedule.warmup_steps, (long long)t->total_steps);
    t->hooks->event(t->hooks->arg, ZT_EVENT_WARNING, "WARMUP_SHORTENED", text);
}

/* How words of other programs in the run file were read. */
static void tell_notes(const struct zt_trainer *t) {
    for (int i = 0; i < t->spec->notes.n && t->config->rank == 0 && t->hooks->event; i++)
        t->hooks->event(t->hooks->arg, ZT_EVENT_INFO, "RUN_FILE", t->spec->notes.item[i]);
}

/* As far as a run file tells, where the data are not looked at. */
static bool has_examples(const struct zt_spec *s) {
    size_t n = strlen(s->dataset.path);
    return s->loss.average != ZT_AVERAGE_TOKEN ||
           (n > 6 && strcmp(s->dataset.path + n - 6, ".jsonl") == 0);
}

static int open_data(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    bool cut = s->validation.enabled && !s->validation.path[0];
    struct zt_dataset_config dc = {.path = s->dataset.path,
                                   .tokenizer = s->dataset.tokenizer,
                                   .seq_len = s->training.seq_len,
                                   .vocab_size = s->model.vocab_size,
                                   .tail_fraction = cut ? s->validation.fraction : 0.0,
                                   .document_starts = s->dataset.document_masks,
                                   .average = s->loss.average,
                                   .min_samples = s->training.global_batch_size,
                                   .event = data_event,
                                   .event_arg = t};
    int rc = 0;
    t->stage = ZT_STAGE_DATA;
    if (zt_trainer_sim(t)) {
        t->counts_static = !has_examples(s);
        t->total_steps = zt_trainer_sim(t)->total_steps;
        t->schedule = zt_spec_schedule(s, t->total_steps);
        return 0;
    }
    if (!s->dataset.path[0])
        TRY(zt_fail(err, ZT_EUNSUPPORTED,
                    "dataset.sources is not in this version; give dataset.path"));
    TRY(zt_dataset_open(&dc, &t->train_set, err));
    t->counts_static = !zt_dataset_masked(t->train_set);
    if (s->validation.enabled) {
        dc.path = cut ? s->dataset.path : s->validation.path;
        dc.tail = cut;
        dc.min_samples = 1;
        dc.event = cut ? NULL : data_event; /* the same files: told once */
        rc = zt_dataset_open(&dc, &t->valid_set, err);
        if (rc) {
            zt_fail_prefix(err, "validation");
            goto out;
        }
    }
    struct zt_loader_config lc = {.dataset = t->train_set,
                                  .dp_index = t->dp_index,
                                  .dp_size = t->dp_size,
                                  .local_batch = s->training.local_batch_size,
                                  .seq_len = s->training.seq_len,
                                  .accumulation = zt_spec_accumulation(s),
                                  .shuffle = s->dataset.shuffle,
                                  .drop_last = s->dataset.drop_last,
                                  .seed = s->dataset.seed,
                                  .epochs = s->training.epochs,
                                  .tail = s->training.accumulation_tail};
    TRY(zt_loader_create(&lc, &t->loader, err));
    t->total_steps = s->training.epochs ? zt_loader_windows(t->loader) : s->training.steps;
    if (t->total_steps < 1)
        TRY(zt_fail(err, ZT_EDATA,
                    "%s: %lld samples in %lld epochs do not fill one optimizer step of "
                    "%lld sequences; add data, or lower training.global_batch_size",
                    s->dataset.path, (long long)zt_dataset_samples(t->train_set),
                    (long long)s->training.epochs, (long long)s->training.global_batch_size));
    t->schedule = zt_spec_schedule(s, t->total_steps);
    tell_warmup(t);
    tell_notes(t);
out:
    return rc;
}

/* Device memory of one micro-batch. */
static int open_feed(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    struct zt_row *f = &t->feed;
    const struct {
        const char *what;
        void *at; /* of the pointer */
        bool wanted;
    } part[] = {{"tokens", &f->tokens, true},
                {"targets", &f->targets, true},
                {"document starts", &f->starts, s->dataset.document_masks},
                {"token weights", &f->weights, s->loss.average != ZT_AVERAGE_TOKEN}};
    size_t bytes = (size_t)(s->training.local_batch_size * s->training.seq_len) * sizeof *f->tokens;
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        void *p = NULL;
        if (!part[i].wanted) continue;
        int rc = zt_malloc(t->alloc, bytes, zt_device_compute(t->device), ZT_TAG_ACTIVATIONS,
                           part[i].what, &p, err);
        if (rc) return rc;
        memcpy(part[i].at, &p, sizeof p);
    }
    return 0;
}

static int build_model(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    int rc = 0;
    t->stage = ZT_STAGE_OPEN;
    TRY(zt_spec_table(s, &t->table, err));
    TRY(zt_model_table_cut(&t->table, t->mesh.tensor,
                           zt_mesh_coords(t->mesh, t->config->rank).tensor, err));
    t->group = (struct zt_tensor_group){.degree = t->table.tensor_degree,
                                        .rank = t->table.tensor_rank,
                                        .sequence = s->parallelism.sequence_parallel,
                                        .busy = zt_probe_busy,
                                        .arg = &t->probe};
    struct zt_model_env env = {.ops = t->ops,
                               .ctx = t->ctx,
                               .alloc = t->alloc,
                               .device = t->device,
                               .ledger = &t->ledger,
                               .compute = t->recipe->compute,
                               .grad = t->recipe->grad,
                               .recompute = s->activation_checkpoint.mode,
                               .recompute_every = s->activation_checkpoint.every,
                               .chunk_tokens = s->loss.chunk_tokens,
                               .positions = s->training.seq_len,
                               .lora_scale = zt_spec_lora_scale(s),
                               .dropout_seed = (uint64_t)s->training.seed,
                               .tensor = &t->group};
    TRY(zt_model_create(&t->table, &env, &t->model, err));
    TRY(open_feed(t, err));
    t->words = calloc((size_t)t->config->world * ZT_CONTROL_WORDS, sizeof *t->words);
    if (!t->words) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
out:
    return rc;
}

static int split(struct zt_trainer *t, enum zt_axis axis, const char *name, int *ranks,
                 struct zt_comm **out, struct zt_error *err) {
    int n = zt_mesh_group(t->mesh, axis, t->config->rank, ranks);
    int rc = zt_comm_split(t->world, name, ranks, n, out, err);
    if (rc == 0) zt_comm_set_timeout(*out, t->spec->comm.train_timeout_seconds);
    return rc;
}

/* reshard_after_forward: m: the m contiguous neighbours in the shard group. */
static int split_reshard(struct zt_trainer *t, int *ranks, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
    int m = s->parallelism.reshard_int;
    if (s->parallelism.reshard != ZT_RESHARD_INT || m <= 1 || m >= t->mesh.shard) return 0;
    if (t->mesh.shard % m)
        return zt_fail(err, ZT_EINVAL,
                       "parallelism.reshard_after_forward: %d does not divide the shard degree %d",
                       m, t->mesh.shard);
    zt_mesh_group(t->mesh, ZT_AXIS_SHARD, t->config->rank, ranks);
    int first = zt_mesh_coords(t->mesh, t->config->rank).shard / m * m;
    int rc = zt_comm_split(t->dp_shard, "dp_reshard", ranks + first, m, &t->reshard, err);
    if (rc == 0) zt_comm_set_timeout(t->reshard, s->comm.train_timeout_seconds);
    return rc;
}

static int open_comm(struct zt_trainer *t, struct zt_error *err) {
    const struct zt_train_config *c = t->config;
    struct zt_comm_id id = {{0}};
    struct zt_comm_door *door = NULL;
    int *ranks = calloc((size_t)c->world, sizeof *ranks), rc = 0;
    t->stage = ZT_STAGE_COMM;
    if (!ranks) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    if (c->world > 1 && !zt_trainer_sim(t)) {
        const struct zt_comm_site site = {c->host, c->address, 0};
        if (c->several_hosts) TRY(zt_comm_door_open(&site, &door, err));
        if (c->rank == 0) TRY(zt_comm_mint_at(door, &id, err));
        if (t->hooks->comm_id) TRY(t->hooks->comm_id(t->hooks->arg, c->rank, &id, err));
    }
    rc = zt_comm_init_at(door, &id, c->rank, c->world, t->device,
                         t->spec->comm.init_timeout_seconds, &t->world, err);
    door = NULL; /* the world's, or closed */
    TRY(rc);
    zt_comm_set_timeout(t->world, t->spec->comm.init_timeout_seconds); /* of the splits */
    if (c->progress && c->progress_bytes > ZT_PROGRESS_RING + zt_comm_log_bytes(1))
        TRY(zt_comm_log_place(t->world, (char *)c->progress + ZT_PROGRESS_RING,
                              c->progress_bytes - ZT_PROGRESS_RING));
    if (c->sim && c->sim->log) TRY(zt_comm_log_place(t->world, c->sim->log, c->sim->log_bytes));
    if (c->inject) zt_comm_inject(t->world, c->inject);
    if (c->progress) zt_comm_watch(t->world, &c->progress->held_by);
    TRY(split(t, ZT_AXIS_TENSOR, "tensor", ranks, &t->tensor, err));
    TRY(split(t, ZT_AXIS_SHARD, "dp_shard", ranks, &t->dp_shard, err));
    TRY(split_reshard(t, ranks, err));
    TRY(split(t, ZT_AXIS_REPLICATE, "dp_replicate", ranks, &t->dp_replicate, err));
    TRY(split(t, ZT_AXIS_WORLD, "control", ranks, &t->control, err));
    zt_comm_set_timeout(t->world, t->spec->comm.train_timeout_seconds);
    zt_progress_state(t, ZT_TRAINER_IN_COMM);
    if (t->hooks->in_comm) TRY(t->hooks->in_comm(t->hooks->arg, err));
out:
    zt_comm_door_close(door);
    free(ranks);
    return rc;
}

/* ---- agreement ---- */

/* On a mismatch of what ranks `rank` and `other` both hold: which tensor differs. Every rank comes
 * here; `other` tells its sums, `rank` what differs from them. */
static int name_divergence(struct zt_trainer *t, struct zt_hash128 *per_tensor, int rank, int other,
                           struct zt_error *err) {
    struct zt_coll_why why = {"", "hash of every tensor", t->step, true};
    struct zt_stream *compute = zt_device_compute(t->device);
    bool whole = zt_mesh_coords(t->mesh, rank).tensor != zt_mesh_coords(t->mesh, other).tensor;
    int64_t n = t->table.n_tensors, first = 0;
    struct zt_hash128 *theirs = calloc((size_t)n, sizeof *theirs);
    int rc = 0;
    if (!theirs) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    memcpy(theirs, per_tensor, (size_t)n * sizeof *theirs);
    TRY(zt_broadcast(t->control, theirs, 2 * n, ZT_I64, other, ZT_ROOT_NONE, compute, &why, err));
    while (first < n && (!memcmp(&theirs[first], &per_tensor[first], sizeof *theirs) ||
                         (whole && t->table.tensors[first].tp_dim >= 0)))
        first++;
    TRY(zt_broadcast(t->control, &first, 1, ZT_I64, rank, ZT_ROOT_NONE, compute, &why, err));
    TRY(zt_fail(
        err, ZT_EDIVERGED,
        "step %lld: rank %d holds other parameters than its %s rank %d, first in %s; the run's "
        "numbers are not to be trusted: look for a faulty machine or memory on one of the two",
        (long long)t->step, rank, whole ? "tensor group's" : "replica", other,
        first < n ? t->table.tensors[first].name : "?"));
out:
    free(theirs);
    return rc;
}

/* What a rank says of its parameters: the sum that counts, and that over what every rank of its
 * tensor group holds whole. */
struct sums {
    struct zt_hash128 own, whole;
};

static struct zt_hash128 whole_sum(const struct zt_trainer *t,
                                   const struct zt_hash128 *per_tensor) {
    struct zt_hash128 sum = {0, 0};
    for (int i = 0; i < t->table.n_tensors; i++)
        if (t->table.tensors[i].tp_dim < 0) zt_hash128_add(&sum, per_tensor[i]);
    return sum;
}

/* The first of the ranks that hold what the one at c does. */
static int first_replica(const struct zt_trainer *t, struct zt_coords c) {
    c.replicate = 0;
    /* whole parameters: shard ranks are replicas too */
    if (!zt_policy(t->spec->parallelism.mode)->shard_optimizer) c.shard = 0;
    return zt_mesh_rank(t->mesh, c);
}

int zt_trainer_check_hash(struct zt_trainer *t, struct zt_hash128 *global, struct zt_error *err) {
    struct zt_coll_why why = {"", "parameter hash", t->step, true};
    struct zt_hash128 *tensors = calloc((size_t)t->table.n_tensors, sizeof *tensors);
    struct sums own, *all = calloc((size_t)t->config->world, sizeof *all);
    int rc = 0;
    if (!tensors || !all) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    TRY(zt_runtime_parameter_hash(t->runtime, &own.own, tensors, err));
    own.whole = whole_sum(t, tensors);
    TRY(zt_all_gather(t->control, &own, all, sizeof own / sizeof(int64_t), ZT_I64,
                      zt_device_compute(t->device), &why, err));
    *global = (struct zt_hash128){0, 0};
    for (int i = 0; i < t->config->world; i++) {
        struct zt_coords c = zt_mesh_coords(t->mesh, i);
        int replica = first_replica(t, c), peer = i - c.tensor; /* tensor is innermost */
        if (replica == i)
            zt_hash128_add(global, all[i].own);
        else if (memcmp(&all[i], &all[replica], sizeof *all))
            TRY(name_divergence(t, tensors, i, replica, err));
        if (memcmp(&all[i].whole, &all[peer].whole, sizeof all->whole))
            TRY(name_divergence(t, tensors, i, peer, err));
    }
out:
    free(tensors);
    free(all);
    return rc;
}

enum agreed { A_SPEC = 0, A_TRAIN, A_TRAIN_SAMPLES, A_VALID, A_VALID_SAMPLES, A_COUNT };

/* What this rank starts from: specification and model table, and which samples there are. */
static void own_start(const struct zt_trainer *t, int64_t own[A_COUNT]) {
    const char *text = t->spec->normalised_hash;
    uint64_t h = XXH3_64bits(text, strlen(text));
    for (int i = 0; i < t->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &t->table.tensors[i];
        h = XXH3_64bits_withSeed(d->name, strlen(d->name), h ^ (uint64_t)d->numel);
    }
    own[A_SPEC] = (int64_t)h;
    own[A_TRAIN] = t->train_set ? (int64_t)zt_dataset_digest(t->train_set) : 0;
    own[A_TRAIN_SAMPLES] = t->train_set ? zt_dataset_samples(t->train_set) : 0;
    own[A_VALID] = t->valid_set ? (int64_t)zt_dataset_digest(t->valid_set) : 0;
    own[A_VALID_SAMPLES] = t->valid_set ? zt_dataset_samples(t->valid_set) : 0;
}

static int same_data(const char *key, int rank, const int64_t *zero, const int64_t *other,
                     struct zt_error *err) {
    if (!memcmp(zero, other, 2 * sizeof *zero)) return 0;
    return zt_fail(err, ZT_EDATA,
                   "%s: rank %d finds other files than rank 0: %lld samples, rank 0 has %lld; the "
                   "names and lengths of the files must be the same on every host",
                   key, rank, (long long)other[1], (long long)zero[1]);
}

/* Before step 1: the same specification and model table everywhere, the same samples (ranks that
 * deal different decks repeat and miss samples, or end their epochs apart), the same weights. */
static int agree(struct zt_trainer *t, struct zt_error *err) {
    struct zt_coll_why why = {"", "specification and data", 0, true};
    struct zt_hash128 ignored;
    int64_t own[A_COUNT], *all = calloc((size_t)t->config->world * A_COUNT, sizeof *all);
    int rc = 0;
    if (!all) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    own_start(t, own);
    TRY(zt_all_gather(t->control, own, all, A_COUNT, ZT_I64, zt_device_compute(t->device), &why,
                      err));
    for (int i = 1; i < t->config->world; i++) {
        const int64_t *other = all + (size_t)i * A_COUNT;
        if (other[A_SPEC] != all[A_SPEC])
            TRY(zt_fail(err, ZT_EVERSION,
                        "rank %d runs another specification or model than rank 0; "
                        "all workers of a run must be given the same run.yaml and version",
                        i));
        TRY(same_data("dataset.path", i, all + A_TRAIN, other + A_TRAIN, err));
        TRY(same_data("validation", i, all + A_VALID, other + A_VALID, err));
    }
    TRY(zt_trainer_check_hash(t, &ignored, err));
out:
    free(all);
    return rc;
}

static int open_runtime(struct zt_trainer *t, struct zt_error *err) {
    struct zt_runtime_env env = {.spec = t->spec,
                                 .table = &t->table,
                                 .mesh = t->mesh,
                                 .rank = t->config->rank,
                                 .device = t->device,
                                 .alloc = t->alloc,
                                 .ledger = &t->ledger,
                                 .ops = t->ops,
                                 .ctx = t->ctx,
                                 .world = t->world,
                                 .dp_shard = t->dp_shard,
                                 .dp_replicate = t->dp_replicate,
                                 .reshard = t->reshard,
                                 .control = t->control,
                                 .tensor = t->tensor,
                                 .intervals = &t->intervals,
                                 .progress = t->config->progress};
    int rc = zt_runtime_create(&env, &t->runtime, err);
    if (rc) return rc;
    t->probe = (struct zt_probe){.inner = zt_runtime_source(t->runtime),
                                 .device = t->device,
                                 .intervals = &t->intervals,
                                 .progress = t->config->progress,
                                 .runtime = t->runtime};
    t->group.comm = t->tensor;
    return agree(t, err);
}

int zt_trainer_open(struct zt_trainer *t, struct zt_error *err) {
    int rc = 0;
    t->mesh = zt_spec_mesh(t->spec);
    t->dp_index = zt_mesh_dp_index(t->mesh, t->config->rank);
    t->dp_size = zt_mesh_dp(t->mesh);
    zt_progress_state(t, ZT_TRAINER_STARTING);
    TRY(open_device(t, err));
    TRY(open_data(t, err));
    TRY(build_model(t, err));
    zt_progress_state(t, ZT_TRAINER_READY);
    if (t->hooks->ready) TRY(t->hooks->ready(t->hooks->arg, err));
    TRY(open_comm(t, err));
    TRY(zt_trainer_measure(t, err));
    t->stage = ZT_STAGE_RUN;
    TRY(open_runtime(t, err));
    zt_progress_state(t, ZT_TRAINER_RUNNING);
out:
    return rc;
}

void zt_trainer_close(struct zt_trainer *t, bool failed) {
    /* A failure of this rank alone: the others, and our own queued collectives, must not wait. */
    if (failed && t->world) zt_comm_abort(t->world);
    zt_loader_destroy(t->loader);
    zt_runtime_destroy(t->runtime);
    zt_model_destroy(t->model);
    if (t->control) zt_comm_destroy(t->control);
    if (t->dp_replicate) zt_comm_destroy(t->dp_replicate);
    if (t->reshard) zt_comm_destroy(t->reshard);
    if (t->dp_shard) zt_comm_destroy(t->dp_shard);
    if (t->tensor) zt_comm_destroy(t->tensor);
    if (t->world) zt_comm_destroy(t->world);
    if (t->alloc) {
        zt_free(t->alloc, t->feed.tokens);
        zt_free(t->alloc, t->feed.targets);
        zt_free(t->alloc, t->feed.starts);
        zt_free(t->alloc, t->feed.weights);
        zt_alloc_destroy(t->alloc);
    }
    zt_dataset_close(t->valid_set);
    zt_dataset_close(t->train_set);
    zt_model_table_free(&t->table);
    if (t->kernels) t->kernels->destroy(t->ctx);
    if (t->device) zt_device_close(t->device);
    zt_intervals_free(&t->intervals);
    zt_trace_free(&t->trace);
    zt_window_free(&t->window);
    free(t->words);
}
