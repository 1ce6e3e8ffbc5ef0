/* SPDX-License-Identifier: Apache-2.0 */
/* Saving beside the step loop, on forked ranks with a board for a coordinator: what is saved is what was
 * trained, written once; it changes no bit and takes no byte of the device; late saves are skipped alike
 * on every rank; whatever fails, training goes on. */
#include "engine/plan/plan.h"
#include "tests/engine/pairwise.h"
#include "tests/engine/save_util.h"

TestSuite(save, .init = data_setup, .fini = data_teardown, .timeout = 300);

#define MODEL "model: {preset: gpt2-nano, layers: 2, dim: 32, heads: 2, seq_len_max: 32}\n"
#define DATA "dataset: {path: %s}\n"
#define HASHES "metrics: {parameter_hash_every: 1}\n"

static const char *text(void) { return data_text("train.txt", 40000, 7); }

/* `steps` of `world` ranks, at one global batch of 12; more: further sections. */
static const char *yaml_of(int world_dp, int steps, const char *more) {
    return train_yaml(MODEL DATA HASHES
                      "training: {steps: %d, seq_len: 16, local_batch_size: %d, global_batch_size: 12}\n%s",
                      text(), steps, 12 / world_dp, more);
}

static void all_ok(const struct train_job *j) {
    for (int r = 0; r < j->world; r++)
        cr_assert_eq(j->rank[r].rc, 0, "rank %d of %d: %s", r, j->world, j->rank[r].err.msg);
}

static void hash_is(struct zt_hash128 h, const char *want) {
    char text[33];
    zt_hash_text(h, text);
    cr_assert_str_eq(text, want);
}

/* What was saved of the step is what the ranks said of it when it was over. */
static void check_step(const struct train_job *j, int64_t step) {
    const struct save_board *b = j->board;
    const struct zt_step_report *r = &j->rank[0].report[step];
    const struct zt_manifest *m;
    struct zt_ckpt *c = save_at(b, step, &m);
    int64_t bytes = 0, tokens = 0;
    hash_is(m->parameter_hash, r->parameter_hash);
    hash_is(m->state_hash, r->state_hash);
    cr_expect_eq(m->position.step, step);
    cr_expect_eq(m->position.updates, step - r->skipped_steps);
    cr_expect_eq(m->position.skipped, r->skipped_steps);
    for (int64_t s = 1; s <= step; s++) tokens += j->rank[0].report[s].global_batch * 16;
    cr_expect_eq(m->position.tokens, tokens);
    cr_expect_eq(m->position.cursor.epoch, 0);
    cr_expect_eq(m->position.cursor.consumed, 12 * step, "what the loader read ahead is not consumed");
    cr_expect_eq(m->position.epoch_samples, 39999 / 16);
    cr_expect_str_eq(m->run_id, "r1");
    cr_expect_eq(m->world, j->world);
    for (int i = 0; i < m->world; i++) bytes += m->ranks[i].bytes;
    for (int i = 0; i < b->n_commits; i++)
        if (b->commit[i].step == step) cr_expect_eq(b->commit[i].bytes, bytes);
    zt_ckpt_close(c);
}

/* ---- modes, meshes, recipes ---- */

struct shape {
    const char *mode, *recipe, *more;
    int replicate, shard, tensor;
};

static struct train_job *run_shape(const struct shape *s, const char *checkpoint) {
    struct train_job *j = train_start(
        s->replicate * s->shard * s->tensor,
        yaml_of(s->replicate * s->shard, 4,
                train_yaml("parallelism: {mode: %s, data_parallel_replicate_degree: %d, "
                           "data_parallel_shard_degree: %d, tensor_parallel_degree: %d%s}\n"
                           "precision: {recipe: %s, reduce_dtype: fp32}\n%s",
                           s->mode, s->replicate, s->shard, s->tensor, s->more, s->recipe, checkpoint)));
    if (checkpoint[0]) save_board(j);
    train_go(j, 0);
    all_ok(j);
    return j;
}

/* Saving takes no byte of the device: not for itself, not in the steps around it. */
static void same_device_bytes(const struct train_job *j, const struct train_job *plain) {
    for (int r = 0; r < j->world; r++)
        for (int s = 1; s <= 4; s++) {
            const struct zt_step_report *a = &j->rank[r].report[s], *b = &plain->rank[r].report[s];
            cr_expect_eq(a->peak_allocated_bytes, b->peak_allocated_bytes);
            cr_expect_eq(a->peak_reserved_bytes, b->peak_reserved_bytes);
            cr_expect_eq(a->end_of_step_allocated_bytes, b->end_of_step_allocated_bytes);
            cr_expect_eq(b->save.peak_allocated_bytes, -1);
            cr_expect_eq(a->save.peak_allocated_bytes, s % 2 ? -1 : a->end_of_step_allocated_bytes);
            if (s % 2) continue;
            cr_expect_eq(a->save.phase_of_peak, ZT_PHASE_SAVE);
            cr_expect_gt(a->checkpoint_seconds, 0);
        }
}

/* No rank writes more than it holds, and what replicas hold alike is not written twice: of all parts
 * together the model's bytes remain when heads and indexes are taken off. */
static void check_bytes(const struct train_job *j) {
    const struct save_board *b = j->board;
    for (int r = 0; r < j->world; r++) {
        const struct zt_step_report *q = &j->rank[r].report[4];
        cr_expect_leq(b->done[4][r].bytes, q->persistent_parameters + q->persistent_optimizer + 65536);
        cr_expect_gt(b->done[4][r].write_seconds, 0);
    }
}

static void check_shape(const struct shape *s) {
    struct train_job *plain = run_shape(s, ""), *j = run_shape(s, "checkpoint: {interval: 2}\n");
    const struct save_board *b = j->board;
    cr_assert_eq(b->n_commits, 2);
    check_step(j, 2);
    check_step(j, 4);
    for (int k = 1; k <= 4; k++) {
        cr_assert_eq(j->rank[0].report[k].loss, plain->rank[0].report[k].loss, "saving changes no bit");
        cr_assert_str_eq(j->rank[0].report[k].parameter_hash, plain->rank[0].report[k].parameter_hash);
        cr_assert_str_eq(j->rank[0].report[k].state_hash, plain->rank[0].report[k].state_hash);
    }
    same_device_bytes(j, plain);
    check_bytes(j);
    cr_expect_eq(b->n_failed, 0, "%s", b->failed);
    cr_expect(!save_exists(b->folder, "step-00000004.tmp-g1"));
}

Test(save, every_mode_and_mesh) {
    static const struct shape shapes[] = {
        {"ddp", "fp32", "", 1, 1, 1},
        {"ddp", "mixed16", "", 3, 1, 1},
        {"ddp", "pure_bf16", "", 2, 1, 2},
        {"zero1", "fp32", "", 1, 2, 1},
        {"zero2", "mixed16", ", bucket_mib: 0.02", 2, 2, 1},
        {"zero3", "fp16", ", persistence_threshold: 64", 1, 3, 1},
        {"fsdp", "fsdp_mixed", "", 2, 2, 1},
        {"fsdp", "mixed16", ", persistence_threshold: 40, bucket_mib: 0.05", 1, 2, 2},
        {"fsdp", "fp32", "", 2, 2, 2},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(&shapes[i]);
}

/* Frozen tensors have parameters alone; adapters the rest. */
Test(save, adapters) {
    struct train_job *j = train_start(
        2, train_yaml(MODEL DATA HASHES
                      "training: {steps: 2, seq_len: 16, local_batch_size: 6, global_batch_size: 12, "
                      "lora: {rank: 2, alpha: 4, targets: [\"*c_attn\"]}}\n"
                      "precision: {recipe: frozen16, reduce_dtype: fp32}\nparallelism: {mode: fsdp}\ncheckpoint: {interval: 1}\n",
                      text()));
    save_board(j);
    train_go(j, 0);
    all_ok(j);
    check_step(j, 2);
    const struct zt_manifest *m;
    struct zt_ckpt *c = save_at(j->board, 2, &m);
    for (int i = 0; i < m->n_tensors; i++) {
        bool adapter = strstr(m->tensors[i].name, "lora") != NULL;
        cr_expect_eq(m->tensors[i].frozen, !adapter);
        cr_expect_eq(m->tensors[i].has[ZT_SAVED_V], adapter);
        cr_expect(m->tensors[i].has[ZT_SAVED_PARAMETER]);
    }
    zt_ckpt_close(c);
}

/* ---- against the plan ---- */

static struct zt_plan *plan_of(const struct train_job *j) {
    static const struct zt_cost_device device = {.name = "test",
                                                 .memory_bytes = (int64_t)8 << 30,
                                                 .memory_bytes_per_second = 1e10,
                                                 .flops = {[ZT_COST_GEMM] = {[ZT_F32] = 1e11, [ZT_BF16] = 1e11}},
                                                 .ranks_per_host = 8,
                                                 .within = {1000, 1e10, 0},
                                                 .across = {20000, 1e9, 0}};
    struct zt_spec spec;
    struct zt_error e = {0};
    struct zt_plan *p = NULL;
    cr_assert_eq(zt_spec_parse(j->yaml, strlen(j->yaml), "test.yaml", NULL, 0, &spec, &e), 0, "%s", e.msg);
    cr_assert_eq(zt_spec_resolve(&spec, j->world, "test.yaml", &e), 0, "%s", e.msg);
    const struct zt_plan_config c = {.spec = &spec, .device = &device, .capacity_bytes = j->capacity, .valid_samples = -1};
    cr_assert_eq(zt_plan_make(&c, &p, &e), 0, "%s", e.msg);
    zt_spec_free(&spec);
    return p;
}

static void same_window(const struct zt_plan *p, enum zt_window_name w, const struct zt_window_peak *m) {
    const struct zt_window_peak *k = &p->shape[0].window[w];
    cr_assert(p->shape[0].occurs[w]);
    cr_expect_eq(k->peak_allocated_bytes, m->peak_allocated_bytes, "%s: planned %lld, measured %lld", zt_window_name(w),
                 (long long)k->peak_allocated_bytes, (long long)m->peak_allocated_bytes);
    cr_expect_eq(k->peak_reserved_bytes, m->peak_reserved_bytes);
    cr_expect_eq(k->phase_of_peak, m->phase_of_peak);
    cr_expect_arr_eq(k->at_peak, m->at_peak, sizeof k->at_peak);
    cr_expect_arr_eq(k->persistent, m->persistent, sizeof k->persistent);
}

/* What a run that goes on has loaded before its first step, and what it saves, are planned to the byte,
 * lazily made moments too. */
static void check_plan(const char *mode, const char *recipe, const char *state) {
    struct train_job *j = train_start(
        2, yaml_of(2, 4, train_yaml("parallelism: {mode: %s}\nprecision: {recipe: %s, reduce_dtype: fp32}\n"
                                    "optimizer: {state_init: %s}\ncheckpoint: {interval: 2}\n",
                                    mode, recipe, state)));
    struct save_board *b = save_board(j);
    struct zt_plan *p = plan_of(j);
    train_go(j, 0);
    all_ok(j);
    struct train_job *on = train_start(2, "");
    memcpy(on->yaml, j->yaml, sizeof on->yaml);
    struct save_board *again = save_board(on);
    memcpy(again->folder, b->folder, sizeof b->folder);
    again->resume = 2;
    train_go(on, 0);
    all_ok(on);
    same_window(p, ZT_WINDOW_SAVE, &j->rank[0].report[4].save);
    same_window(p, ZT_WINDOW_LOAD, &on->rank[0].report[3].load);
    cr_expect_str_eq(on->rank[0].report[4].state_hash, j->rank[0].report[4].state_hash);
    cr_expect_eq(p->host.checkpoint, b->done[4][p->host.checkpoint_rank].bytes);
    zt_plan_free(p);
}

Test(save, windows_and_buffer_are_planned) {
    check_plan("fsdp", "mixed16", "eager");
    check_plan("zero2", "fp32", "lazy");
    check_plan("ddp", "mixed16", "lazy");
}

/* On the host: this process grows by the buffer, which is what the rank writes, and by what is read back
 * into; never by the model. */
Test(save, no_rank_holds_the_model_on_its_host) {
    struct train_job *j = train_start(
        4, train_yaml("model: {preset: gpt2-nano, layers: 4, dim: 256, heads: 2, seq_len_max: 32}\n" DATA
                      "training: {steps: 4, seq_len: 16, local_batch_size: 1, global_batch_size: 4}\n"
                      "parallelism: {mode: fsdp}\ncheckpoint: {interval: 2}\n",
                      text()));
    struct save_board *b = save_board(j);
    int64_t model = 0;
    train_go(j, 0);
    all_ok(j);
    for (int r = 0; r < 4; r++) model += b->done[4][r].bytes;
    for (int r = 0; r < 4; r++) {
        int64_t grown = j->rank[r].report[4].outside_allocator_bytes - j->rank[r].report[1].outside_allocator_bytes;
        cr_assert_geq(grown, b->done[4][r].bytes * 9 / 10, "rank %d: %lld", r, (long long)grown);
#ifndef __SANITIZE_ADDRESS__ /* which keeps freed memory */
        cr_assert_leq(grown, model / 2, "rank %d: %lld of %lld", r, (long long)grown, (long long)model);
#endif
    }
}

/* ---- when ---- */

/* A writer that waits for the coordinator: the saves that fall due meanwhile are skipped on every rank
 * alike, with one event for 1, 2, 4, ... of them; the last one waits. */
Test(save, late_saves_are_skipped_by_all) {
    struct train_job *j = train_start(3, yaml_of(3, 9, "checkpoint: {interval: 1}\n"));
    struct save_board *b = save_board(j);
    b->held = 7; /* until step 7 is reported */
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->commit[0].step, 1);
    cr_assert_eq(b->commit[b->n_commits - 1].step, 9);
    for (int s = 1; s <= 9; s++) {
        bool saved = j->rank[0].report[s].save.peak_allocated_bytes >= 0;
        for (int r = 1; r < 3; r++)
            cr_assert_eq(j->rank[r].report[s].save.peak_allocated_bytes >= 0, saved, "step %d", s);
        if (s > 1 && s <= 7) cr_assert(!saved, "step %d", s);
        if (s == 1 || s == 9) cr_assert(saved);
    }
    for (int i = 0; i < b->n_commits; i++) check_step(j, b->commit[i].step);
    cr_assert_geq(save_events(j, 0, "CHECKPOINT_SKIPPED"), 3); /* of 6 at least: the 1st, 2nd, 4th */
    cr_assert_leq(save_events(j, 0, "CHECKPOINT_SKIPPED"), 4);
    cr_assert_eq(save_events(j, 1, "CHECKPOINT_SKIPPED"), 0);
    cr_assert(strstr(j->rank[0].event[0].message, "step 2 is not saved"), "%s", j->rank[0].event[0].message);
}

static struct train_job *stopped(const char *checkpoint) {
    struct train_job *j = train_start(2, yaml_of(2, 9, checkpoint));
    save_board(j);
    j->stop_rank = 1;
    j->stop_step = 3;
    train_go(j, 0);
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(j->rank[r].rc, ZT_ECANCELLED);
        cr_assert_eq(j->rank[r].result.steps, 3);
    }
    return j;
}

Test(save, a_stop_saves_where_it_stands) {
    struct train_job *j = stopped("checkpoint: {interval: 5}\n");
    cr_assert_eq(((struct save_board *)j->board)->n_commits, 1);
    check_step(j, 3);
    j = stopped("checkpoint: {interval: 5, on_preempt: false}\n");
    cr_assert_eq(((struct save_board *)j->board)->n_commits, 0);
}

Test(save, what_retention_lets_go_is_removed) {
    struct train_job *j = train_start(2, yaml_of(2, 6, "checkpoint: {interval: 1}\n"));
    struct save_board *b = save_board(j);
    b->keep = 2;
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->n_removed, b->n_commits - 2);
    for (int i = 0; i < b->n_removed; i++) {
        char name[32];
        cr_assert_eq(b->removed[i], b->commit[i].step);
        zt_ckpt_step_name(b->removed[i], name);
        cr_assert(!save_exists(b->folder, name), "%s", name);
    }
    check_step(j, b->commit[b->n_commits - 1].step);
    check_step(j, b->commit[b->n_commits - 2].step);
}

/* One rank needs nobody: without hooks it saves, and tells by events. */
static const struct zt_checkpoint_config *no_hooks(struct train_job *j, int rank) {
    static struct zt_checkpoint_config c;
    c = *save_config(j, rank);
    c.hooks = (struct zt_save_hooks){0};
    return &c;
}

Test(save, alone_without_a_coordinator) {
    struct train_job *j = train_start(1, yaml_of(1, 2, "checkpoint: {interval: 5}\n"));
    struct save_board *b = save_board(j);
    j->checkpoint = no_hooks;
    train_go(j, 0);
    all_ok(j);
    cr_assert(save_exists(b->folder, "step-00000002/manifest.json"));
    cr_assert_eq(save_events(j, 0, "CHECKPOINT_COMMITTED"), 1);
    j = train_start(2, yaml_of(2, 2, "checkpoint: {interval: 5}\n"));
    save_board(j);
    j->checkpoint = no_hooks;
    train_go(j, 0);
    cr_assert_eq(j->rank[0].rc, ZT_EINVAL);
    cr_assert(strstr(j->rank[0].err.msg, "2 ranks save, and they have no way to tell each other"));
}

/* ---- failures ---- */

/* The save of step 2 fails on rank 1, that of step 4 does not. */
static struct save_board *fails_at_2(struct train_job *j) {
    struct save_board *b = j->board;
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->n_failed, 1, "%d: %s", b->n_failed, b->failed);
    cr_assert_eq(atomic_load(&b->failed_step), 2);
    for (int i = 0; i < b->n_commits; i++) cr_assert_neq(b->commit[i].step, 2);
    check_step(j, 4);
    cr_assert(!save_exists(b->folder, "step-00000002"));
    cr_assert(!save_exists(b->folder, "step-00000002.tmp-g1"));
    return b;
}

static struct train_job *four_steps(void) {
    struct train_job *j = train_start(2, yaml_of(2, 4, "checkpoint: {interval: 2}\n"));
    save_board(j);
    return j;
}

Test(save, a_copy_that_fails) {
    struct train_job *j = four_steps();
    j->fail_rank = 1;
    snprintf(j->fail, sizeof j->fail, "ckpt.copy:nth=1:error");
    struct save_board *b = fails_at_2(j);
    cr_expect(strstr(b->failed, "ckpt.copy"), "%s", b->failed);
    cr_expect(!b->failed_full);
}

static void broken(int rank, int error, bool fsync, bool full, const char *says) {
    struct train_job *j = four_steps();
    struct save_board *b = j->board;
    b->broken_rank = rank;
    b->broken_errno = error;
    b->break_fsync = fsync;
    fails_at_2(j);
    cr_expect(strstr(b->failed, says), "%s", b->failed);
    cr_expect_eq(b->failed_full, full);
}

Test(save, a_full_disk) { broken(1, ENOSPC, false, true, strerror(ENOSPC)); }
Test(save, a_full_disk_of_rank_0) { broken(0, ENOSPC, false, true, strerror(ENOSPC)); }
Test(save, a_disk_that_fails) { broken(1, EIO, true, false, strerror(EIO)); }

/* The last save is tried again: three times the disk fails, then it is there. */
Test(save, the_last_one_is_patient) {
    struct train_job *j = train_start(2, yaml_of(2, 2, "checkpoint: {interval: 5}\n"));
    struct save_board *b = save_board(j);
    b->broken_rank = 1;
    b->broken_errno = ENOSPC;
    b->broken_calls = 3;
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->n_failed, 0, "%s", b->failed);
    check_step(j, 2);
    cr_assert_eq(save_events(j, 1, "CHECKPOINT_RETRIED"), 1);
    cr_assert_eq(save_events(j, 0, "CHECKPOINT_RETRIED"), 0);
}

/* Whichever call of the file system fails on the way to the first commit: training goes on, what is committed
 * is whole, and the next save is good. */
static int64_t fails_at(int64_t nth) {
    struct train_job *j = train_start(1, yaml_of(1, 2, "checkpoint: {interval: 1}\n"));
    struct save_board *b = save_board(j);
    b->fail_nth = nth;
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->commit[b->n_commits - 1].step, 2, "call %lld: %s", (long long)nth, b->failed);
    cr_assert_leq(b->n_failed, 1);
    for (int i = 0; i < b->n_commits; i++) check_step(j, b->commit[i].step);
    cr_assert(!save_exists(b->folder, "step-00000001.tmp-g1"), "call %lld", (long long)nth);
    int64_t calls = b->calls;
    munmap(b, sizeof *b);
    munmap(j, sizeof *j);
    return calls;
}

Test(save, any_call_that_fails, .timeout = 500) {
    int64_t calls = fails_at(INT64_C(1) << 40);
    cr_assert_geq(calls, 20);
    for (int64_t n = 1; n <= calls; n += pw_every()) fails_at(n);
}

/* A stored parameter of fp16 that went beyond its range while the loss was finite. */
Test(save, values_that_are_not_finite) {
    struct train_job *j = train_start(
        2, train_yaml(MODEL DATA "training: {steps: 1, seq_len: 16, local_batch_size: 6, global_batch_size: 12}\n"
                                 "precision: {recipe: fp16, reduce_dtype: fp32}\noptimizer: {lr: 1.0e6}\n"
                                 "lr_scheduler: {warmup_steps: 0}\ncheckpoint: {interval: 5}\n",
                      text()));
    struct save_board *b = save_board(j);
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->n_commits, 0);
    cr_assert_geq(b->n_failed, 1);
    cr_assert(strstr(b->failed, "not finite"), "%s", b->failed);
}

/* Rank 1 dies while rank 0's writer waits for somebody who will never tell it: rank 0's failure ends the
 * wait. */
Test(save, a_failed_rank_gives_its_save_up) {
    struct train_job *j = train_start(2, yaml_of(2, 9, "checkpoint: {interval: 2}\n"));
    struct save_board *b = save_board(j);
    b->deaf = true;
    j->kill_rank = 1;
    j->kill_step = 4;
    train_go(j, 1);
    cr_assert_neq(j->rank[0].rc, 0);
    cr_assert_eq(b->cancelled[0], 1);
    cr_assert_eq(b->n_commits, 0);
}

/* ---- the wait at the end is seen ---- */

Test(save, waiting_for_the_coordinator_is_no_hang) {
    struct train_job *j = train_start(1, yaml_of(1, 2, "checkpoint: {interval: 5}\n"));
    struct save_board *b = save_board(j);
    j->progress_bytes = 4096;
    j->progress = ranks_map(j->progress_bytes);
    b->touches = 3;
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(b->n_commits, 1);
}

/* ---- the copy in memory ---- */

/* But for the manifest, which is of all ranks. */
static bool same_files(const char *disk, const char *memory) {
    char cmd[1200];
    snprintf(cmd, sizeof cmd, "diff -r -x manifest.json '%s' '%s' >&2", disk, memory);
    return system(cmd) == 0;
}

Test(save, memory_holds_the_files_of_the_newest) {
    struct train_job *j = train_start(2, yaml_of(2, 4, "parallelism: {mode: fsdp}\nprecision: {recipe: mixed16, reduce_dtype: fp32}\ncheckpoint: {interval: 2}\n"));
    struct save_board *b = save_board(j);
    char newest[300];
    snprintf(b->memory, sizeof b->memory, "%s", data_path("memory"));
    cr_assert_eq(mkdir(b->memory, 0700), 0);
    /* what an earlier generation left, cut otherwise: goes, but for another rank's */
    data_write("memory/optim-00001-00007-of-00009.safetensors", "x", 1);
    data_write("memory/optim-00003-00001-of-00001.safetensors", "x", 1);
    data_write("memory/rank-00001.json", "x", 1);
    train_go(j, 0);
    cr_assert(save_exists(b->memory, "optim-00003-00001-of-00001.safetensors"));
    cr_assert_eq(unlink(data_path("memory/optim-00003-00001-of-00001.safetensors")), 0);
    all_ok(j);
    snprintf(newest, sizeof newest, "%s/step-00000004", b->folder);
    cr_assert(save_exists(b->memory, "rank-00001.json") && save_exists(b->memory, "rank-00002.json"));
    cr_assert(same_files(newest, b->memory));
    check_step(j, 4);
}

Test(save, no_memory_folder_is_told_and_saved_without) {
    struct train_job *j = train_start(1, yaml_of(1, 2, "checkpoint: {interval: 5}\n"));
    struct save_board *b = save_board(j);
    snprintf(b->memory, sizeof b->memory, "%s", data_path("nowhere"));
    train_go(j, 0);
    all_ok(j);
    cr_assert_eq(save_events(j, 0, "MEMORY_COPY_SKIPPED"), 1);
    check_step(j, 2);
}
