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

int zt_trainer_open_loader(struct zt_trainer *t, struct zt_cursor at, struct zt_error *err) {
    const struct zt_spec *s = t->spec;
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
                                  .tail = s->training.accumulation_tail,
                                  .start = at};
    zt_loader_destroy(t->loader);
    t->loader = NULL;
    return zt_loader_create(&lc, &t->loader, err);
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
    TRY(zt_trainer_open_loader(t, (struct zt_cursor){0, 0}, err));
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
    return zt_trainer_agree(t, err);
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
    zt_report_window(&t->ledger, t->runtime, &t->init_peak);
    TRY(zt_trainer_load(t, err));
    TRY(zt_trainer_save_open(t, err));
    zt_progress_state(t, ZT_TRAINER_RUNNING);
out:
    return rc;
}

void zt_trainer_close(struct zt_trainer *t, bool failed) {
    /* A failure of this rank alone: the others, and our own queued collectives, must not wait. */
    if (failed && t->world) zt_comm_abort(t->world);
    zt_saver_destroy(t->saver, true);
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
