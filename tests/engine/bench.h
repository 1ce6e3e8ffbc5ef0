/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/bench.h: one rank with a device, communicators, a small GPT-2 and the sharding
 * runtime, fed with made-up tokens: token k of a sample is a function of the sample's number alone,
 * so any division over ranks and micro-steps trains on the same data. For forked ranks (see
 * ranks.h). */
#ifndef ZT_TESTS_ENGINE_BENCH_H
#define ZT_TESTS_ENGINE_BENCH_H
#include "core/rng.h"
#include "engine/shard/runtime_int.h"
#include "tests/engine/ranks.h"

#define BENCH_T 16
#define BENCH_ROWS 64

struct bench_options {
    const char *more;            /* lines added to the specification, NULL = none */
    const struct zt_policy *row; /* NULL = the mode of the specification */
    int shard, tensor;           /* degrees, 0 = 1 */
    bool sequence;               /* parallel */
    size_t capacity;             /* 0 = 64 MiB */
    int threads;
    bool no_overlap; /* options that run.yaml does not open yet */
    double bucket_mib;
    const char *model; /* fields of the model, NULL = 3 layers of width 32 */
    const char *lora;  /* adapters: "rank: 4, targets: [...]"; NULL = none */
    void (*tune)(struct zt_spec *s, const void *arg); /* last word on the specification */
    const void *tune_arg;
    bool no_model;
    bool poison;     /* struct zt_alloc_options */
    int64_t late_ns; /* each collective waits a random time up to this */
    int per_host;    /* ranks of a host, hosts linked by tcp; 0: all on one, by shared memory */
};
struct bench {
    int rank, world;
    struct zt_spec spec;
    struct zt_mesh mesh;
    struct zt_device *device;
    struct zt_ledger ledger;
    struct zt_alloc *alloc;
    struct zt_ops_ctx *ctx;
    struct zt_model_table table;
    struct zt_model *model;
    struct zt_tensor_group group;
    struct zt_comm *comm, *tensor, *dp_shard, *dp_replicate, *reshard, *control;
    struct zt_intervals intervals;
    struct zt_runtime *runtime;
    int32_t *tokens, *targets;
    double norm, loss;
    double scale;            /* of the loss: 1, 1024 where the recipe scales it */
    struct zt_update update; /* the last one */
};

static inline int bench_spec(struct bench *b, const struct bench_options *o, struct zt_error *e) {
    char text[2048];
    snprintf(text, sizeof text,
             "version: 1\nname: bench\n"
             "model: {%s%s, seq_len_max: %d}\n"
             "dataset: {path: /nowhere, tokenizer: none}\n"
             "training: {steps: 10, seq_len: %d, local_batch_size: 1, seed: 7%s%s%s}\n%s",
             o->model && strstr(o->model, "family:") ? "" : "family: gpt2, ",
             o->model ? o->model : "layers: 3, heads: 2, dim: 32, vocab_size: 64", BENCH_T, BENCH_T,
             o->lora ? ", lora: {" : "", o->lora ? o->lora : "", o->lora ? "}" : "",
             o->more ? o->more : "");
    int rc = zt_spec_parse(text, strlen(text), "bench.yaml", NULL, 0, &b->spec, e);
    if (rc == 0) rc = zt_spec_resolve(&b->spec, b->world, "bench.yaml", e);
    if (rc) return rc;
    int shard = o->shard ? o->shard : 1, tensor = o->tensor ? o->tensor : 1;
    b->mesh = (struct zt_mesh){b->world / shard / tensor, shard, tensor};
    b->spec.parallelism.sequence_parallel = o->sequence;
    if (o->row) b->spec.parallelism.mode = o->row->mode;
    b->spec.parallelism.overlap = !o->no_overlap;
    b->spec.parallelism.bucket_mib = o->bucket_mib;
    if (o->tune) o->tune(&b->spec, o->tune_arg);
    return 0;
}

static inline int bench_split(struct bench *b, enum zt_axis axis, const char *name,
                              struct zt_comm **out, struct zt_error *e) {
    int ranks[RANKS_MAX];
    int n = zt_mesh_group(b->mesh, axis, b->rank, ranks);
    return zt_comm_split(b->comm, name, ranks, n, out, e);
}

/* As engine/train_open.c does it. */
static inline int bench_split_reshard(struct bench *b, struct zt_error *e) {
    int ranks[RANKS_MAX], m = b->spec.parallelism.reshard_int;
    if (b->spec.parallelism.reshard != ZT_RESHARD_INT || m <= 1 || m >= b->mesh.shard) return 0;
    zt_mesh_group(b->mesh, ZT_AXIS_SHARD, b->rank, ranks);
    int first = zt_mesh_coords(b->mesh, b->rank).shard / m * m;
    return zt_comm_split(b->dp_shard, "dp_reshard", ranks + first, m, &b->reshard, e);
}

/* Host k is 127.0.0.(2 + k). */
static inline int bench_world(struct bench *b, struct ranks_shared *shared,
                              const struct bench_options *o, struct zt_error *e) {
    struct zt_comm_id id = {{0}};
    struct zt_comm_door *door = NULL;
    char host[16], address[32];
    int rc = 0;
    if (b->world > 1) {
        if (o->per_host) {
            snprintf(host, sizeof host, "host%d", b->rank / o->per_host);
            snprintf(address, sizeof address, "127.0.0.%d", 2 + b->rank / o->per_host);
            RT_TRY(zt_comm_door_open(&(struct zt_comm_site){host, address, 0}, &door, e));
        }
        if (b->rank == 0) RT_TRY(zt_comm_mint_at(door, &id, e));
        RT_TRY(ranks_exchange(shared, b->rank, &id, e));
    }
    RT_TRY(zt_comm_init_at(door, &id, b->rank, b->world, b->device, 60, &b->comm, e));
out:
    return rc;
}

/* The model's own collectives are read out of the log in time, as the trainer has it. */
static inline void bench_busy(void *arg, bool computing) {
    struct bench *b = arg;
    if (computing && zt_runtime_queued(b->runtime, NULL)) abort();
}

static inline int bench_open(struct bench *b, int rank, int world, struct ranks_shared *shared,
                             const struct bench_options *o, struct zt_error *e) {
    void *p = NULL;
    int rc = 0;
    memset(b, 0, sizeof *b);
    b->rank = rank;
    b->world = world;
    RT_TRY(bench_spec(b, o, e));
    struct zt_device_config dc = {"cpu", o->capacity ? o->capacity : (size_t)64 << 20};
    struct zt_alloc_options ao = {.poison = o->poison};
    RT_TRY(zt_device_open(&dc, &b->device, e));
    zt_ledger_init(&b->ledger);
    RT_TRY(zt_alloc_create(b->device, &b->ledger, &ao, &b->alloc, e));
    RT_TRY(zt_ops_cpu_create(o->threads ? o->threads : 1, NULL, NULL, &b->ctx, e));
    RT_TRY(zt_spec_table(&b->spec, &b->table, e));
    RT_TRY(zt_model_table_cut(&b->table, b->mesh.tensor, zt_mesh_coords(b->mesh, rank).tensor, e));
    const struct zt_recipe *recipe = zt_recipe_find(b->spec.precision.recipe);
    b->scale = recipe->scaled ? 1024 : 1;
    b->group = (struct zt_tensor_group){.degree = b->table.tensor_degree,
                                        .rank = b->table.tensor_rank,
                                        .sequence = b->spec.parallelism.sequence_parallel,
                                        .busy = bench_busy,
                                        .arg = b};
    struct zt_model_env env = {.ops = zt_ops_cpu(),
                               .ctx = b->ctx,
                               .alloc = b->alloc,
                               .device = b->device,
                               .ledger = &b->ledger,
                               .compute = recipe->compute,
                               .grad = recipe->grad,
                               .recompute = b->spec.activation_checkpoint.mode,
                               .recompute_every = b->spec.activation_checkpoint.every,
                               .chunk_tokens = b->spec.loss.chunk_tokens,
                               .lora_scale = zt_spec_lora_scale(&b->spec),
                               .dropout_seed = (uint64_t)b->spec.training.seed,
                               .tensor = &b->group};
    if (!o->no_model) RT_TRY(zt_model_create(&b->table, &env, &b->model, e));
    RT_TRY(bench_world(b, shared, o, e));
    if (o->late_ns)
        zt_comm_inject(b->comm, &(struct zt_comm_inject){.seed = 5, .max_delay_ns = o->late_ns});
    RT_TRY(bench_split(b, ZT_AXIS_TENSOR, "tensor", &b->tensor, e));
    b->group.comm = b->tensor;
    RT_TRY(bench_split(b, ZT_AXIS_SHARD, "dp_shard", &b->dp_shard, e));
    RT_TRY(bench_split_reshard(b, e));
    RT_TRY(bench_split(b, ZT_AXIS_REPLICATE, "dp_replicate", &b->dp_replicate, e));
    RT_TRY(bench_split(b, ZT_AXIS_WORLD, "control", &b->control, e));
    struct zt_runtime_env re = {.spec = &b->spec,
                                .table = &b->table,
                                .mesh = b->mesh,
                                .rank = rank,
                                .device = b->device,
                                .alloc = b->alloc,
                                .ledger = &b->ledger,
                                .ops = zt_ops_cpu(),
                                .ctx = b->ctx,
                                .world = b->comm,
                                .dp_shard = b->dp_shard,
                                .dp_replicate = b->dp_replicate,
                                .reshard = b->reshard,
                                .control = b->control,
                                .tensor = b->tensor,
                                .intervals = &b->intervals};
    RT_TRY(rt_create(&re, o->row ? o->row : zt_policy(b->spec.parallelism.mode), &b->runtime, e));
    RT_TRY(zt_malloc(b->alloc, BENCH_ROWS * BENCH_T * 4, zt_device_compute(b->device),
                     ZT_TAG_ACTIVATIONS, "tokens", &p, e));
    b->tokens = p;
    RT_TRY(zt_malloc(b->alloc, BENCH_ROWS * BENCH_T * 4, zt_device_compute(b->device),
                     ZT_TAG_ACTIVATIONS, "targets", &p, e));
    b->targets = p;
out:
    return rc;
}

static inline void bench_close(struct bench *b) {
    zt_runtime_destroy(b->runtime);
    zt_model_destroy(b->model);
    if (b->control) zt_comm_destroy(b->control);
    if (b->dp_replicate) zt_comm_destroy(b->dp_replicate);
    if (b->reshard) zt_comm_destroy(b->reshard);
    if (b->dp_shard) zt_comm_destroy(b->dp_shard);
    if (b->tensor) zt_comm_destroy(b->tensor);
    if (b->comm) zt_comm_destroy(b->comm);
    if (b->alloc) {
        zt_free(b->alloc, b->tokens);
        zt_free(b->alloc, b->targets);
        zt_alloc_destroy(b->alloc);
    }
    zt_model_table_free(&b->table);
    zt_ops_cpu_destroy(b->ctx);
    if (b->device) zt_device_close(b->device);
    zt_intervals_free(&b->intervals);
    zt_spec_free(&b->spec);
}

static inline int32_t bench_token(int64_t sample, int64_t k) {
    uint32_t w[4];
    zt_rng_words(3, ZT_RNG_TEST, 0, 0, (uint64_t)(sample * 1000 + k), w);
    return (int32_t)(w[0] % 64);
}

static inline void bench_row(struct bench *b, int64_t at, int64_t sample) {
    for (int64_t k = 0; k < BENCH_T; k++) {
        b->tokens[at * BENCH_T + k] = bench_token(sample, k);
        b->targets[at * BENCH_T + k] = bench_token(sample, k + 1);
    }
}

/* Forward and backward of a window over samples [first, first + n): `micros` micro-steps, rows
 * dealt to ranks in turn inside each. Leaves the reduced gradients where they are. */
static inline int bench_window(struct bench *b, int64_t step, int64_t first, int64_t n,
                               int64_t micros, struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    struct zt_fixsum loss;
    int64_t valid = 0, rows = n / micros / b->world;
    int dp = zt_mesh_dp_index(b->mesh, b->rank), rc = 0;
    zt_fixsum_zero(&loss);
    zt_intervals_begin_step(&b->intervals, rt_now(b->runtime));
    RT_TRY(zt_runtime_window_begin(b->runtime, step, e));
    for (int64_t m = 0; m < micros; m++) {
        for (int64_t i = 0; i < rows; i++) bench_row(b, i, first + (m * rows + i) * b->world + dp);
        struct zt_batch batch = {b->tokens, b->targets, rows, BENCH_T};
        RT_TRY(zt_runtime_micro_begin(b->runtime, m, m == micros - 1, e));
        RT_TRY(zt_model_step(b->model, &s, &batch, (float)(b->scale / (double)(n * BENCH_T)),
                             true, false, &loss, &valid, e));
    }
    RT_TRY(zt_runtime_wait_gradients(b->runtime, e));
    b->loss = zt_fixsum_value(&loss) / (double)(n * BENCH_T); /* this rank's part */
out:
    return rc;
}

static inline int bench_update(struct bench *b, double lr, struct zt_error *e) {
    b->update = (struct zt_update){.lr = lr, .loss_scale = b->scale};
    int rc = zt_runtime_update(b->runtime, &b->update, e);
    b->norm = b->update.grad_norm;
    return rc;
}

static inline int bench_step(struct bench *b, int64_t step, int64_t first, int64_t n,
                             int64_t micros, struct zt_error *e) {
    int rc = bench_window(b, step, first, n, micros, e);
    if (rc == 0) rc = bench_update(b, 1e-2, e);
    if (rc == 0) rc = zt_runtime_collect(b->runtime, e);
    return rc;
}

/* Backward along the walk without a model: fill (may be NULL) writes the gradients of a unit. The
 * root opens first and closes last. */
static inline int bench_backward(struct bench *b,
                                 void (*fill)(struct bench *b, int unit,
                                              const struct zt_unit_view *v),
                                 struct zt_error *e) {
    struct zt_unit_source s = zt_runtime_source(b->runtime);
    struct zt_model_walk w;
    struct zt_unit_view v, first;
    int rc = zt_model_walk_build(&b->table, &w, e);
    if (rc) return rc;
    for (int i = 0; i < w.n_backward; i++) {
        RT_TRY(s.backward_begin(s.arg, w.backward[i], i ? &v : &first, e));
        if (i && fill) fill(b, w.backward[i], &v);
        RT_TRY(i ? s.backward_end(s.arg, w.backward[i], e)
                 : s.parameters_done(s.arg, w.backward[0], e));
    }
    if (fill) fill(b, w.backward[0], &first);
    RT_TRY(s.backward_end(s.arg, w.backward[0], e));
out:
    zt_model_walk_free(&w);
    return rc;
}

#define OK(call) EXPECT((call) == 0, "%s", e.msg)

/* Rows of the table as they will be opened: the runtime must already carry them out. */
static inline const struct zt_policy *bench_mode(enum zt_mode m) {
    static struct zt_policy rows[ZT_MODE_COUNT];
    rows[m] = *zt_policy(m);
    rows[m].supported = true;
    return &rows[m];
}

#define BENCH_STEPS 4
struct bench_result {
    uint64_t hash[2];
    double norm, loss;
};
struct bench_job {
    struct ranks_shared shared;
    struct bench_options o;
    int64_t global, micros;
    struct bench_result r[BENCH_STEPS + 1][RANKS_MAX];
};

/* Several steps; after each the hash of own elements. */
static inline int bench_steps(int rank, int world, void *arg) {
    struct bench_job *j = arg;
    struct bench b;
    struct zt_hash128 h, tensors[64];
    struct zt_error e = {0};
    OK(bench_open(&b, rank, world, &j->shared, &j->o, &e));
    for (int s = 0; s <= BENCH_STEPS; s++) {
        if (s) OK(bench_step(&b, s, s * 100, j->global, j->micros, &e));
        EXPECT(b.table.n_tensors <= 64, "size");
        OK(zt_runtime_parameter_hash(b.runtime, &h, tensors, &e));
        struct zt_hash128 sum = {0, 0};
        for (int k = 0; k < b.table.n_tensors; k++) zt_hash128_add(&sum, tensors[k]);
        EXPECT(sum.lo == h.lo && sum.hi == h.hi, "tensors do not add up");
        j->r[s][rank] = (struct bench_result){{h.lo, h.hi}, b.norm, b.loss};
    }
    bench_close(&b);
    return 0;
}

#endif
