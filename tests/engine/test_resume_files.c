/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of zt_train that save, stop and go on from the files, on forked ranks with a board for a
 * coordinator: the same bits on the same mesh, the same samples and losses on any other, what is told and
 * measured of a load, and what a damaged, missing or foreign checkpoint is answered with. */
#include <glob.h>
#include <math.h>

#include "engine/checkpoint/hf_export.h"
#include "engine/plan/plan.h"
#include "tests/engine/save_util.h"

TestSuite(resume_files, .init = data_setup, .fini = data_teardown, .timeout = 580);

#define MODEL "model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 4, seq_len_max: 16, vocab_size: 257}\n"

/* What the next run begins from; set before its ranks are forked. */
static struct begin {
    int64_t step;
    char folder[300];
    struct zt_sha256 manifest;
    bool known, weights, accept;
} begin;
struct ack { int n; int64_t step, file_bytes, memory_bytes; double seconds; };
static struct ack *acks; /* by rank, shared */

static int on_loaded(void *arg, int64_t step, double seconds, int64_t file_bytes, int64_t memory_bytes,
                     struct zt_error *err) {
    struct ack *a = &acks[save_rank];
    (void)arg, (void)err;
    *a = (struct ack){a->n + 1, step, file_bytes, memory_bytes, seconds};
    return 0;
}

static const struct zt_checkpoint_config *begin_config(struct train_job *j, int rank) {
    static struct zt_checkpoint_config c;
    c = *save_config(j, rank);
    c.resume_step = begin.step;
    c.resume_folder = begin.folder;
    c.resume_manifest = begin.known ? &begin.manifest : NULL;
    c.weights_only = begin.weights;
    c.accept_batch_change = begin.accept;
    c.loaded = on_loaded;
    return &c;
}

/* A run of `yaml` that begins from step `step` of what `from` saved. */
static struct train_job *continuation(const struct train_job *from, int64_t step, int world, const char *yaml) {
    const struct save_board *b = from->board;
    struct train_job *j = train_start(world, yaml);
    save_board(j);
    j->checkpoint = begin_config;
    begin = (struct begin){.step = step};
    snprintf(begin.folder, sizeof begin.folder, "%s", b->folder);
    for (int i = 0; i < b->n_commits; i++)
        if (b->commit[i].step == step) {
            begin.manifest = b->commit[i].manifest;
            begin.known = true;
        }
    if (!acks) acks = ranks_map(RANKS_MAX * sizeof *acks);
    memset(acks, 0, RANKS_MAX * sizeof *acks);
    return j;
}

static struct train_job *ended(struct train_job *j) {
    train_go(j, 0);
    for (int r = 0; r < j->world; r++)
        cr_assert_eq(j->rank[r].rc, 0, "rank %d of %d: %s\n%s", r, j->world, j->rank[r].err.msg, j->yaml);
    return j;
}
static struct train_job *saved_run(int world, const char *yaml) {
    struct train_job *j = train_start(world, yaml);
    save_board(j);
    return ended(j);
}
static void let_go(struct train_job *j) {
    munmap(j->board, sizeof(struct save_board));
    munmap(j, sizeof *j);
}

/* ---- the same mesh: the same bits ---- */

static void same_rest(const struct train_job *a, const struct train_job *b, int from, int to, const char *what) {
    for (int r = 0; r < a->world; r++)
        for (int s = from; s <= to; s++) {
            const struct zt_step_report *x = &a->rank[r].report[s], *y = &b->rank[r].report[s];
            cr_assert_eq(y->step, s, "%s, rank %d: no step %d", what, r, s);
            cr_assert_eq(x->loss, y->loss, "%s, step %d: %.17g, not %.17g", what, s, y->loss, x->loss);
            cr_assert_eq(x->local_loss, y->local_loss, "%s, step %d, rank %d", what, s, r);
            cr_assert_eq(x->grad_norm, y->grad_norm, "%s, step %d", what, s);
            cr_assert_eq(x->lr, y->lr, "%s, step %d", what, s);
            cr_assert_eq(x->sample_hash, y->sample_hash, "%s, step %d, rank %d", what, s, r);
            cr_assert_neq(x->sample_hash, 0u);
            cr_assert_str_eq(x->parameter_hash, y->parameter_hash, "%s, step %d", what, s);
            cr_assert_str_eq(x->state_hash, y->state_hash, "%s, step %d", what, s);
            cr_assert(x->eval_loss == y->eval_loss || (isnan(x->eval_loss) && isnan(y->eval_loss)), "%s", what);
            cr_assert_eq(x->peak_allocated_bytes, y->peak_allocated_bytes, "%s, step %d", what, s);
        }
}

/* Of the load: acknowledged once by every rank, measured as a window of its own with the first step, without a
 * byte of the device beyond what was there. */
static void check_load(const struct train_job *j, int64_t step, const char *what) {
    for (int r = 0; r < j->world; r++) {
        const struct zt_step_report *q = &j->rank[r].report[step + 1];
        cr_assert_eq(acks[r].n, 1, "%s, rank %d", what, r);
        cr_assert_eq(acks[r].step, step);
        cr_assert_gt(acks[r].file_bytes, 0);
        cr_assert_gt(acks[r].seconds, 0);
        cr_assert_eq(q->load.phase_of_peak, ZT_PHASE_LOAD, "%s", what);
        cr_assert_leq(q->load.peak_allocated_bytes, q->init.peak_allocated_bytes, "%s", what);
        cr_assert_gt(q->load.peak_allocated_bytes, 0);
        cr_assert_eq(j->rank[r].report[step + 2].load.peak_allocated_bytes, -1, "once");
        cr_assert_eq(j->rank[r].report[step + 2].init.peak_allocated_bytes, -1);
        cr_assert_eq(j->rank[r].report[step].step, 0, "no step is repeated");
        cr_assert_eq(save_events(j, r, "MEMORY_GROWTH"), 0);
    }
}

/* The plan of the run has the windows load and save as they were measured, to the byte. */
static void check_plan(const struct train_job *j, int64_t first, int64_t saved, const char *what) {
    static const struct zt_cost_device device = {.name = "test", .memory_bytes = (int64_t)64 << 30,
                                                 .memory_bytes_per_second = 1e10,
                                                 .flops = {[ZT_COST_GEMM] = {[ZT_F32] = 1e11}}};
    struct zt_spec s;
    struct zt_error e;
    struct zt_plan *p = NULL;
    cr_assert_eq(zt_spec_parse(j->yaml, strlen(j->yaml), "test.yaml", NULL, 0, &s, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve(&s, j->world, "test.yaml", &e), 0, "%s", e.msg);
    const struct zt_plan_config c = {.spec = &s, .device = &device, .capacity_bytes = j->capacity, .valid_samples = 7};
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s", e.msg);
    const enum zt_window_name window[] = {ZT_WINDOW_INIT, ZT_WINDOW_LOAD, ZT_WINDOW_SAVE};
    const struct zt_step_report *r = j->rank[0].report;
    const struct zt_window_peak *measured[] = {&r[first].init, &r[first].load, &r[saved].save};
    for (int i = 0; i < 3; i++) {
        const struct zt_window_peak *w = &p->shape[0].window[window[i]];
        cr_assert(p->shape[0].occurs[window[i]], "%s: %s", what, zt_window_name(window[i]));
        cr_assert_eq(w->peak_allocated_bytes, measured[i]->peak_allocated_bytes, "%s: %s", what, zt_window_name(window[i]));
        cr_assert_eq(w->peak_reserved_bytes, measured[i]->peak_reserved_bytes, "%s: %s", what, zt_window_name(window[i]));
        cr_assert_eq(w->phase_of_peak, measured[i]->phase_of_peak);
        cr_assert_eq(memcmp(w->at_peak, measured[i]->at_peak, sizeof w->at_peak), 0, "%s: %s", what,
                     zt_window_name(window[i]));
    }
    zt_plan_free(p);
    zt_spec_free(&s);
}

Test(resume_files, the_same_bits) {
    static const struct { int world; const char *more; } row[] = {
        {3, "parallelism: {mode: ddp}\n"},
        {2, "parallelism: {mode: zero1}\nprecision: {recipe: mixed16, reduce_dtype: fp32}\n"},
        {4, "parallelism: {mode: zero2}\nprecision: {recipe: mixed16_nomaster, reduce_dtype: fp32}\n"},
        {2, "parallelism: {mode: zero3, persistence_threshold: 40}\nprecision: {recipe: pure_bf16, reduce_dtype: bf16}\n"},
        {4, "parallelism: {mode: fsdp, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2}\n"
            "precision: {recipe: fp16, reduce_dtype: fp32}\n"},
        {4, "parallelism: {mode: fsdp, data_parallel_shard_degree: 2, tensor_parallel_degree: 2}\n"
            "precision: {recipe: fsdp_mixed, reduce_dtype: fp32}\n"},
        {1, "parallelism: {mode: ddp}\n"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char yaml[2000];
        snprintf(yaml, sizeof yaml,
                 MODEL "dataset: {path: %s}\nvalidation: {path: %s, every_steps: 4}\n"
                       "training: {steps: 20, seq_len: 16, local_batch_size: 1, global_batch_size: 12}\n"
                       "lr_scheduler: {warmup_steps: 12, decay_type: cosine}\nmetrics: {parameter_hash_every: 1}\n"
                       "checkpoint: {interval: 10}\n%s",
                 data_text("train.txt", 100 * 16 + 1, 7), data_text("valid.txt", 7 * 16 + 1, 11), row[i].more);
        struct train_job *whole = saved_run(row[i].world, yaml),
                         *rest = ended(continuation(whole, 10, row[i].world, yaml));
        const struct zt_manifest *a, *b;
        same_rest(whole, rest, 11, 20, row[i].more);
        check_load(rest, 10, row[i].more);
        check_plan(rest, 11, 20, row[i].more);
        cr_assert_eq(rest->rank[0].result.steps, 20);
        cr_assert_str_eq(rest->rank[0].result.parameter_hash, whole->rank[0].result.parameter_hash);
        struct zt_ckpt *x = save_at(whole->board, 20, &a), *y = save_at(rest->board, 20, &b);
        cr_assert_eq(memcmp(&a->parameter_hash, &b->parameter_hash, sizeof a->parameter_hash), 0);
        cr_assert_eq(memcmp(&a->state_hash, &b->state_hash, sizeof a->state_hash), 0);
        cr_assert(a->position.tokens == b->position.tokens && a->position.updates == b->position.updates &&
                  a->position.cursor.epoch == b->position.cursor.epoch &&
                  a->position.cursor.consumed == b->position.cursor.consumed);
        zt_ckpt_close(x);
        zt_ckpt_close(y);
        let_go(whole);
        let_go(rest);
    }
}

/* ---- other meshes ---- */

static const struct mesh { int world, tensor; const char *parallelism; } meshes[] = {
    {3, 1, "mode: ddp"},
    {4, 1, "mode: zero2"},
    {4, 1, "mode: fsdp, data_parallel_replicate_degree: 2, data_parallel_shard_degree: 2"},
    {4, 2, "mode: fsdp, data_parallel_shard_degree: 2, tensor_parallel_degree: 2"},
    {8, 1, "mode: fsdp"},
};
#define MESHES ((int)(sizeof meshes / sizeof *meshes))

static const char *mesh_yaml(const struct mesh *m) {
    return train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 8, seq_len: 16, local_batch_size: 1, "
                            "global_batch_size: 24}\nmetrics: {parameter_hash_every: 1}\ncheckpoint: {interval: 4}\n"
                            "parallelism: {%s}\n",
                      data_text("train.txt", 100 * 16 + 1, 7), m->parallelism);
}

static uint64_t samples_of(const struct train_job *j, int step, int tensor) {
    uint64_t sum = 0;
    for (int r = 0; r < j->world; r += tensor) sum += j->rank[r].report[step].sample_hash;
    return sum;
}

/* Each of the five is saved, and each of the five goes on from it. That the state is the same, element by
 * element, is what the load itself compares (and test_reshard.c by another way). */
Test(resume_files, every_mesh_from_every_other) {
    for (int i = 0; i < MESHES; i++) {
        struct train_job *whole = saved_run(meshes[i].world, mesh_yaml(&meshes[i]));
        for (int k = 0; k < MESHES; k++) {
            struct train_job *j = ended(continuation(whole, 4, meshes[k].world, mesh_yaml(&meshes[k])));
            check_load(j, 4, meshes[k].parallelism);
            for (int s = 5; s <= 8; s++) {
                const struct zt_step_report *x = &whole->rank[0].report[s], *y = &j->rank[0].report[s];
                cr_assert_float_eq(x->loss, y->loss, 1e-5 * x->loss, "%s from %s, step %d: %.9g, not %.9g",
                                   meshes[k].parallelism, meshes[i].parallelism, s, y->loss, x->loss);
                cr_assert_eq(samples_of(whole, s, meshes[i].tensor), samples_of(j, s, meshes[k].tensor));
            }
            let_go(j);
        }
        let_go(whole);
    }
}

/* What a run was told in many words is stored in others (defaults filled, degrees of the mesh, workers as they
 * were): read again it is the same run, also of an elastic one and with another number of ranks. */
Test(resume_files, a_specification_of_many_keys) {
    char lines[6000], *p = lines;
    for (int i = 0; i < 60; i++)
        p += sprintf(p, "{\"prompt\": \"%02d\", \"completion\": \"%.*s\"}\n", i, 3 + i % 9, "abcdefghijkl");
    const char *yaml = train_yaml(
        "labels: {team: a}\npriority: 7\nworkers: {min: 2, max: 4}\n"
        "model: {family: llama, layers: 2, heads: 4, kv_heads: 2, dim: 32, ffn_dim: 48, vocab_size: 256, "
        "seq_len_max: 32, qkv_bias: true, tied_head: false, dropout: 0.1, "
        "rope_scaling: {type: llama3, factor: 4, original_max: 16}}\n"
        "dataset: {path: %s, document_masks: true, seed: 5}\nvalidation: {fraction: 0.25, every_steps: 3}\n"
        "training: {epochs: 3, seq_len: 16, local_batch_size: 1, global_batch_size: 8, seed: 9, "
        "lora: {rank: 2, alpha: 3, targets: [\"*.q_proj\", \"*.up_proj\"]}}\n"
        "loss: {average: square, chunk_tokens: 8}\noptimizer: {lr: 2e-3, beta2: 0.97, decay_1d: true}\n"
        "lr_scheduler: {warmup_steps: 3, decay_type: sqrt, decay_ratio: 0.5, min_lr_factor: 0.2}\n"
        "precision: {recipe: frozen16, reduce_dtype: fp32}\nparallelism: {mode: zero3, wrap: part, prefetch: 2}\n"
        "activation_checkpoint: {mode: full}\ncheckpoint: {interval: 5, keep_latest_k: 0}\n"
        "metrics: {parameter_hash_every: 1}\n",
        data_write("set.jsonl", lines, (size_t)(p - lines)));
    struct train_job *whole = saved_run(2, yaml);
    const int last = (int)whole->rank[0].result.steps;
    cr_assert_geq(last, 8);
    struct train_job *j = ended(continuation(whole, 5, 2, yaml));
    same_rest(whole, j, 6, last, "many keys");
    let_go(j);
    j = ended(continuation(whole, 5, 4, yaml));
    for (int s = 6; s <= last && s <= j->rank[0].result.steps; s++)
        cr_assert_eq(j->rank[0].report[s].step, s);
    cr_assert_float_eq(j->rank[0].report[6].loss, whole->rank[0].report[6].loss, 1e-2);
    let_go(j);
    let_go(whole);
}

/* Tensors larger than the buffer they are read through (4 MiB, 1,048,576 of fp32): whole ones, and columns of a
 * row, which are cut in the middle of one. */
Test(resume_files, tensors_larger_than_the_buffer) {
    static const char *const parallelism[] = {"mode: ddp", "mode: ddp, tensor_parallel_degree: 2"};
    for (int from = 0; from < 2; from++) {
        const char *yaml[2];
        for (int k = 0; k < 2; k++)
            yaml[k] = train_yaml("model: {family: gpt2, layers: 1, heads: 8, dim: 512, ffn_dim: 4608, vocab_size: 2304, "
                                 "seq_len_max: 8}\ndataset: {path: %s}\n"
                                 "training: {steps: 2, seq_len: 8, local_batch_size: 1, global_batch_size: 1}\n"
                                 "metrics: {parameter_hash_every: 1}\ncheckpoint: {interval: 1}\nparallelism: {%s}\n",
                                 data_text("train.txt", 100 * 16 + 1, 7), parallelism[k]);
        struct train_job *whole = train_start(1 + from, yaml[from]);
        save_board(whole);
        whole->capacity = (int64_t)512 << 20;
        ended(whole);
        for (int to = 0; to < 2; to++) {
            struct train_job *j = continuation(whole, 1, 1 + to, yaml[to]);
            j->capacity = whole->capacity;
            ended(j);
            if (from == to) same_rest(whole, j, 2, 2, parallelism[to]);
            let_go(j);
        }
        let_go(whole);
    }
}

/* ---- what must be found ---- */

/* Saves after steps 3 and 6. A run's first save finds none in flight and its last one waits, so that no
 * run here lacks one of its two. */
static struct train_job *two(const char *more) {
    return saved_run(2, train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 6, seq_len: 16, local_batch_size: 2}\n"
                                         "checkpoint: {interval: 3}\nparallelism: {mode: zero1}\n%s",
                                   data_text("train.txt", 100 * 16 + 1, 7), more));
}

/* Some rank fails with this; the others too, or with what follows from it. */
static void fails(struct train_job *j, int code, enum zt_reason reason, const char *says) {
    int found = 0;
    train_go(j, 0);
    for (int r = 0; r < j->world; r++) {
        const struct train_rank *k = &j->rank[r];
        cr_assert_neq(k->rc, 0);
        cr_assert_eq(acks[r].n, 0, "nothing is acknowledged");
        cr_assert_eq(atomic_load(&k->steps), 0, "and nothing trained");
        if (k->rc != code) {
            cr_assert(k->rc == ZT_EPEER || k->rc == ZT_ECOMM, "rank %d: %s", r, k->err.msg);
            continue;
        }
        cr_assert_eq(k->result.reason, reason, "%s", k->err.msg);
        cr_assert_eq(k->result.phase, ZT_PHASE_LOAD);
        cr_assert(strstr(k->err.msg, says), "rank %d: %s, not \"%s\"", r, k->err.msg, says);
        found++;
    }
    cr_assert_gt(found, 0);
    let_go(j);
}

static void flip_a_bit(const char *path, long at) {
    FILE *f = fopen(path, "r+b");
    cr_assert(f && fseek(f, at, SEEK_SET) == 0, "%s", path);
    int c = fgetc(f);
    cr_assert(c != EOF && fseek(f, at, SEEK_SET) == 0 && fputc(c ^ 4, f) != EOF && fclose(f) == 0);
}

Test(resume_files, what_is_damaged_or_gone_is_found) {
    struct train_job *whole = two("");
    const struct save_board *b = whole->board;
    char path[700];
    struct train_job *j = continuation(whole, 3, 2, whole->yaml + strlen("version: 1\nname: t\n"));
    begin.manifest.byte[7] ^= 1;
    fails(j, ZT_ECORRUPT, ZT_REASON_CKPT_CORRUPT, "manifest.json");
    j = continuation(whole, 3, 2, whole->yaml + strlen("version: 1\nname: t\n"));
    begin.step = 2;
    fails(j, ZT_ECORRUPT, ZT_REASON_CKPT_CORRUPT, "step-00000002: it is not there any more");
    j = continuation(whole, 3, 2, whole->yaml + strlen("version: 1\nname: t\n"));
    strcat(begin.folder, "-elsewhere");
    fails(j, ZT_ENOTFOUND, ZT_REASON_CKPT_ERROR, "this host does not see the run's checkpoints");
    snprintf(path, sizeof path, "%s/step-00000006/optim-00002-00001-of-*.safetensors", b->folder);
    glob_t g;
    cr_assert(glob(path, 0, NULL, &g) == 0 && g.gl_pathc == 1, "%s", path);
    const char *file = g.gl_pathv[0], *name = strrchr(file, '/') + 1;
    flip_a_bit(file, 3000);
    j = continuation(whole, 6, 2, whole->yaml + strlen("version: 1\nname: t\n"));
    fails(j, ZT_ECORRUPT, ZT_REASON_CKPT_CORRUPT, name);
    cr_assert_eq(unlink(file), 0);
    j = continuation(whole, 6, 2, whole->yaml + strlen("version: 1\nname: t\n"));
    fails(j, ZT_ECORRUPT, ZT_REASON_CKPT_CORRUPT, name);
    globfree(&g);
    /* the older one is good */
    j = ended(continuation(whole, 3, 2, whole->yaml + strlen("version: 1\nname: t\n")));
    cr_assert_str_eq(j->rank[0].result.parameter_hash, whole->rank[0].result.parameter_hash);
    let_go(j);
    let_go(whole);
}

#ifdef ZT_FAILPOINTS
/* A rank whose disk is slow keeps the others waiting longer than a collective may take in training; one whose
 * disk fails ends the attempt, which may be tried again. */
Test(resume_files, a_slow_disk_and_one_that_fails) {
    struct train_job *whole = two(""), *j;
    char yaml[2500];
    snprintf(yaml, sizeof yaml, "%scomm: {train_timeout_seconds: 5}\ntimeouts: {progress: 1}\n",
             whole->yaml + strlen("version: 1\nname: t\n"));
    j = continuation(whole, 3, 2, yaml);
    j->fail_rank = 1;
    strcpy(j->fail, "ckpt.load_begin:sleep=11000");
    ended(j);
    cr_assert_str_eq(j->rank[0].result.parameter_hash, whole->rank[0].result.parameter_hash);
    let_go(j);
    j = continuation(whole, 3, 2, yaml);
    j->fail_rank = 1;
    strcpy(j->fail, "ckpt.load_begin:error");
    fails(j, ZT_EIO, ZT_REASON_CKPT_ERROR, "ckpt.load_begin");
    let_go(whole);
}
#endif

Test(resume_files, a_run_that_may_not_go_on_is_told_why) {
    struct train_job *whole = two("");
    static const struct { const char *more, *says; } row[] = {
        {"optimizer: {beta2: 0.9}\n", "optimizer.beta2: 0.95 in the checkpoint, 0.9 now"},
        {"loss: {average: token}\nprecision: {recipe: mixed16, reduce_dtype: fp32}\n",
         "precision.recipe: fp32 in the checkpoint, mixed16 now"},
    };
    for (int i = 0; i < 2; i++) {
        char yaml[2500];
        snprintf(yaml, sizeof yaml, "%s%s", whole->yaml + strlen("version: 1\nname: t\n"), row[i].more);
        fails(continuation(whole, 3, 2, yaml), ZT_EINVAL, ZT_REASON_CONFIG_ERROR, row[i].says);
    }
    char yaml[2500], *at;
    snprintf(yaml, sizeof yaml, "%s", whole->yaml + strlen("version: 1\nname: t\n"));
    at = strstr(yaml, "local_batch_size: 2");
    at[strlen("local_batch_size: ")] = '3';
    fails(continuation(whole, 3, 2, yaml), ZT_EINVAL, ZT_REASON_CONFIG_ERROR,
          "training.global_batch_size: 4 in the checkpoint, 6 now");
    struct train_job *j = continuation(whole, 3, 2, yaml);
    begin.accept = true;
    ended(j);
    cr_assert_eq(j->rank[0].report[5].global_batch, 6);
    let_go(j);
    /* a run's last step: there is nothing to train, and its end is said */
    j = ended(continuation(whole, 6, 2, whole->yaml + strlen("version: 1\nname: t\n")));
    cr_assert_eq(atomic_load(&j->rank[0].steps), 0);
    cr_assert_eq(j->rank[0].result.steps, 6);
    cr_assert_str_eq(j->rank[0].result.parameter_hash, whole->rank[0].result.parameter_hash);
    let_go(j);
    let_go(whole);
}

/* B29: at an absurd rate the ranks stop before the update at the first norm that is not finite, and every
 * checkpoint that was kept is finite: going on from the newest is possible. */
Test(resume_files, a_run_that_blows_up_leaves_finite_checkpoints) {
    struct train_job *j = train_start(
        2, train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 30, seq_len: 16, local_batch_size: 2}\n"
                            "optimizer: {lr: 1.0e+6}\ncheckpoint: {interval: 1, keep_latest_k: 2}\n"
                            "parallelism: {mode: fsdp}\n",
                      data_text("train.txt", 100 * 16 + 1, 7)));
    struct save_board *b = save_board(j);
    b->keep = 2;
    train_go(j, 0);
    cr_assert_gt(b->n_commits, 0);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(j->rank[r].rc, ZT_ENAN, "%s", j->rank[r].err.msg);
        cr_assert_eq(j->rank[r].result.reason, ZT_REASON_NAN_LOSS);
        cr_assert_eq(j->rank[r].result.steps, j->rank[0].result.steps);
    }
    for (int i = b->n_commits > 2 ? b->n_commits - 2 : 0; i < b->n_commits; i++) {
        const struct zt_manifest *m;
        struct zt_ckpt *c = save_at(b, b->commit[i].step, &m);
        struct zt_tensor_source s = zt_ckpt_source(c);
        static float value[300 * 32];
        struct zt_error e;
        for (int t = 0; t < m->n_tensors; t++)
            for (int k = 0; k < ZT_SAVED_COUNT; k++) {
                const struct zt_saved_tensor *d = &m->tensors[t];
                int64_t n = d->shape[0] * d->shape[1];
                if (!d->has[k]) continue;
                cr_assert_leq(n, 300 * 32);
                cr_assert_eq(s.read(s.arg, d->name, (enum zt_saved)k, d->ndim, d->shape, zt_span_plain(0, n), n, ZT_F32,
                                    value, &e), 0, "%s", e.msg);
                for (int64_t v = 0; v < n; v++) cr_assert(isfinite(value[v]), "%s", d->name);
            }
        zt_ckpt_close(c);
    }
    let_go(j);
}

/* Copies in this host's memory are read in place of the files where they are what the manifest says. */
Test(resume_files, from_the_copies_in_memory) {
    const char *yaml = train_yaml(MODEL "dataset: {path: %s}\ntraining: {steps: 6, seq_len: 16, local_batch_size: 2}\n"
                                        "checkpoint: {interval: 3}\nparallelism: {mode: zero3}\n"
                                        "metrics: {parameter_hash_every: 1}\n",
                                  data_text("train.txt", 100 * 16 + 1, 7));
    struct train_job *whole = train_start(2, yaml);
    struct save_board *b = save_board(whole);
    snprintf(b->memory, sizeof b->memory, "%s", data_path("memory"));
    cr_assert_eq(mkdir(b->memory, 0700), 0);
    ended(whole);
    struct train_job *j = continuation(whole, 6, 2, yaml);
    strcpy(((struct save_board *)j->board)->memory, b->memory);
    ended(j);
    for (int r = 0; r < 2; r++) cr_assert_gt(acks[r].memory_bytes, 0);
    cr_assert_str_eq(j->rank[0].result.parameter_hash, whole->rank[0].result.parameter_hash);
    let_go(j);
    j = continuation(whole, 3, 2, yaml); /* the copies are of step 6: passed over */
    strcpy(((struct save_board *)j->board)->memory, b->memory);
    ended(j);
    for (int r = 0; r < 2; r++) cr_assert(acks[r].memory_bytes == 0 && acks[r].file_bytes > 0);
    same_rest(whole, j, 4, 6, "memory");
    let_go(j);
    let_go(whole);
}

/* ---- weights alone ---- */

/* A rate so small that no parameter moves: the hash after step 1 is that of what was loaded. */
#define STILL "optimizer: {lr: 1.0e-30, weight_decay: 0}\nmetrics: {parameter_hash_every: 1}\n"

static const char *begins(const char *init_from, const char *more) {
    return train_yaml("model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 4, seq_len_max: 16, vocab_size: 257, "
                      "init_from: \"%s\"}\ndataset: {path: %s}\n"
                      "training: {steps: 3, seq_len: 16, local_batch_size: 2}\n" STILL "%s",
                      init_from, data_text("train.txt", 100 * 16 + 1, 7), more);
}

/* It began anew with these weights. */
static void check_begun(const struct train_job *j, const char *hash, const char *what) {
    for (int r = 0; r < j->world; r++) {
        const struct zt_step_report *q = &j->rank[r].report[1];
        cr_assert_eq(q->step, 1, "%s", what);
        cr_assert_str_eq(q->parameter_hash, hash, "%s", what);
        cr_assert_eq(q->load.phase_of_peak, ZT_PHASE_LOAD);
        cr_assert_leq(q->load.peak_allocated_bytes, q->init.peak_allocated_bytes);
        cr_assert_eq(save_events(j, r, "WEIGHTS_LOADED"), r == 0, "%s", what);
        cr_assert_eq(save_events(j, r, "RESUMED"), 0, "it is never called a resume");
    }
}

/* What a run had after step 6 as the beginning of another, by its folder, its run's and Hugging Face's; by what
 * a coordinator says; in another recipe and on another mesh. */
Test(resume_files, weights_alone) {
    struct train_job *whole = two("metrics: {parameter_hash_every: 1}\n");
    const struct save_board *b = whole->board;
    const char *hash = whole->rank[0].result.parameter_hash;
    char step[400], hf[400];
    snprintf(step, sizeof step, "%s/step-00000006", b->folder);
    snprintf(hf, sizeof hf, "%s", data_path("hf"));
    struct zt_weights w = {.manifest = NULL};
    struct zt_error e;
    cr_assert_eq(zt_weights_open(NULL, step, NULL, &w, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_hf_export(&(struct zt_hf_export){.from = &w, .folder = hf, .type = ZT_F32},
                              &(struct zt_hf_exported){0}, &e), 0, "%s", e.msg);
    zt_weights_close(&w);
    static const char *const more[] = {"parallelism: {mode: fsdp}\n",
                                       "parallelism: {mode: zero2}\nprecision: {recipe: mixed16, reduce_dtype: fp32}\n",
                                       "parallelism: {mode: ddp, tensor_parallel_degree: 2}\n"};
    const char *const folders[] = {step, b->folder, hf};
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 3; i++) {
            struct train_job *j = ended(train_start(2, begins(folders[f], more[i])));
            check_begun(j, hash, folders[f]);
            munmap(j, sizeof *j);
        }
    struct train_job *j = continuation(whole, 6, 2, begins("fresh", more[0])), *fresh;
    begin.weights = true;
    check_begun(ended(j), hash, "weights_only");
    for (int r = 0; r < 2; r++) cr_assert(acks[r].n == 1 && acks[r].step == 0);
    fresh = ended(train_start(2, begins("fresh", more[0])));
    for (int s = 1; s <= 3; s++)
        for (int r = 0; r < 2; r++) cr_assert_eq(fresh->rank[r].report[s].sample_hash, j->rank[r].report[s].sample_hash);
    munmap(fresh, sizeof *fresh);
    let_go(j);
    let_go(whole);
}

Test(resume_files, weights_that_do_not_fit_are_refused) {
    struct train_job *whole = two("");
    const struct save_board *b = whole->board;
    char yaml[2048];
    const struct { const char *from, *to, *says; } row[] = {
        {"layers: 2", "layers: 3", "layers"},
        {b->folder, "/nowhere/at/all", "/nowhere/at/all"},
        {b->folder, "run:other@3", "which folder that is only a coordinator knows"},
    };
    for (int i = 0; i < 3; i++) {
        snprintf(yaml, sizeof yaml, "%s", begins(b->folder, "parallelism: {mode: ddp}\n"));
        char *at = strstr(yaml, row[i].from), rest[2048];
        snprintf(rest, sizeof rest, "%s", at + strlen(row[i].from));
        snprintf(at, sizeof yaml - (size_t)(at - yaml), "%s%s", row[i].to, rest);
        struct train_job *j = train_start(2, yaml);
        train_go(j, 0);
        for (int r = 0; r < 2; r++) {
            cr_assert_neq(j->rank[r].rc, 0, "%s", row[i].to);
            cr_assert(j->rank[r].rc == ZT_EPEER || strstr(j->rank[r].err.msg, row[i].says), "%s", j->rank[r].err.msg);
        }
        munmap(j, sizeof *j);
    }
    let_go(whole);
}
