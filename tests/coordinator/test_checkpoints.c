/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of checkpoints: written, listed by page, looked up by name, changed, and read back by a start. */
#include "coordinator/query_internal.h"
#include "coordinator/recover.h"
#include "tests/coordinator/store_util.h"


static struct zt_row_ckpt row(const char *run, int64_t step, enum zt_ckpt_state state)
{
    struct zt_row_ckpt c = { .step = step, .generation = 1, .state = state, .world = 2, .mesh = { 1, 2, 1 }, .bytes = 1000 + step,
                             .created_ms = 5000, .stall_seconds = 0.25, .write_seconds = 0.5 };
    snprintf(c.run_id, sizeof c.run_id, "%s", run);
    if (state == ZT_CKPT_COMMITTED || state == ZT_CKPT_DELETING) {
        c.committed_ms = 6000;
        c.verified = true;
        memset(c.manifest, (int)(step % 200) + 1, sizeof c.manifest);
        snprintf(c.parameter_hash, sizeof c.parameter_hash, "p%d", (int)step);
    }
    if (state == ZT_CKPT_FAILED)
        snprintf(c.message, sizeof c.message, "rank 1: disk full");
    return c;
}

static void put(struct bench *b, const char *run, int64_t step, enum zt_ckpt_state state)
{
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_ckpt c = row(run, step, state);
    zt_batch_ckpt(batch, &c);
    if (state == ZT_CKPT_WRITING) {
        struct zt_row_part p = { .step = step, .generation = 1, .part = { .rank = 1, .bytes = 7, .index = { 1, 2 }, .parameter_hash = { 3 },
                                                                          .state_hash = { 4 }, .write_seconds = 0.125 } };
        snprintf(p.run_id, sizeof p.run_id, "%s", run);
        zt_batch_part(batch, &p);
    }
    cr_assert_eq(bench_commit(b, batch), 0);
}

/* A run that saves to /ckpt/ID and, with a source, begins from RUN1. */
static void saving_run(struct bench *b, const char *id, const char *name, uint64_t order, const char *source)
{
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(id, name, order, ZT_RUN_RUNNING, 1, 2);
    char folder[64];
    snprintf(folder, sizeof folder, "/ckpt/%s", id);
    r.saved_step = 30;
    r.no_progress = 2;
    r.source_corrupt = source != NULL;
    r.config.saves = r.config.on_preempt = true;
    r.config.keep_latest_k = 3;
    r.config.keep_every = 1000;
    r.config.no_progress_limit = 5;
    if (source) {
        snprintf(r.config.source.run_id, sizeof r.config.source.run_id, "%s", source);
        r.config.source.step = 20;
        r.config.source.weights_only = true;
        for (int i = 0; i < 32; i++)
            r.config.source.manifest[i] = (uint8_t)(7 * i + 200);
    }
    struct zt_run_blobs blobs = { .run_yaml = "version: 1\n", .run_yaml_bytes = 11, .file = "run.yaml", .normalised = "version: 1\n",
                                  .hash = "00", .mode = "ddp", .overrides = "[]", .per_rank_keep = 10,
                                  .saves = { .folder = folder, .interval = 10, .keep_latest_k = 3, .keep_every = 1000,
                                             .source_run = source, .source_name = "base", .source_step = 20,
                                             .source_folder = source ? "/ckpt/base" : NULL, .weights_only = source != NULL,
                                             .accept_batch_change = source != NULL } };
    zt_batch_run(batch, &r, &blobs);
    add_generation(batch, id, 1, 2);
    cr_assert_eq(bench_commit(b, batch), 0);
}

static Zt__Envelope *ask(struct bench *b, const Zt__Envelope *req)
{
    sqlite3 *db = open_reader(b);
    Zt__Envelope *reply = NULL;
    struct zt_error err;
    int code = zt_query(db, req, &reply, &err);
    cr_assert_eq(code, 0, "%s", err.msg);
    sqlite3_close(db);
    return reply;
}

static Zt__Envelope *list(struct bench *b, const char *run, int64_t before)
{
    Zt__ListCheckpoints m = ZT__LIST_CHECKPOINTS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    m.run = (char *)(uintptr_t)run;
    m.has_before_step = 1;
    m.before_step = before;
    req.body_case = ZT__ENVELOPE__BODY_LIST_CHECKPOINTS;
    req.list_checkpoints = &m;
    Zt__Envelope *reply = ask(b, &req);
    cr_assert_eq(reply->body_case, ZT__ENVELOPE__BODY_CHECKPOINT_LIST);
    return reply;
}

static void open_with_runs(struct bench *b)
{
    bench_folder(b);
    bench_open(b, NULL);
    saving_run(b, RUN1, "base", 1, NULL);
    put(b, RUN1, 10, ZT_CKPT_DELETING);
    put(b, RUN1, 20, ZT_CKPT_COMMITTED);
    put(b, RUN1, 30, ZT_CKPT_COMMITTED);
    put(b, RUN1, 40, ZT_CKPT_FAILED);
    put(b, RUN1, 50, ZT_CKPT_WRITING);
}

Test(checkpoints, a_list_says_all_of_them) {
    struct bench b;
    open_with_runs(&b);
    Zt__Envelope *e = list(&b, "base", 0);
    const Zt__CheckpointList *l = e->checkpoint_list;
    cr_assert_eq(l->n_checkpoints, 5);
    static const char *states[] = { "WRITING", "FAILED", "COMMITTED", "COMMITTED", "DELETING" };
    for (size_t i = 0; i < 5; i++) {
        cr_expect_eq(l->checkpoints[i]->step, 50 - 10 * (int64_t)i);
        cr_expect_str_eq(l->checkpoints[i]->state, states[i]);
        cr_expect_str_eq(l->checkpoints[i]->folder, "/ckpt/" RUN1);
    }
    cr_expect_eq(l->checkpoints[0]->shards, 1);
    cr_expect(!l->checkpoints[0]->has_manifest_sha256);
    cr_expect_str_eq(l->checkpoints[1]->message, "rank 1: disk full");
    cr_expect_eq(l->checkpoints[2]->manifest_sha256.len, 32);
    cr_expect_eq(l->checkpoints[2]->manifest_sha256.data[31], 31);
    cr_expect(l->checkpoints[2]->verified && !l->checkpoints[2]->has_shards);
    cr_expect_eq(l->checkpoints[2]->created_ms, 6000);
    cr_expect_eq(l->interval, 10);
    cr_expect_eq(l->keep_every, 1000);
    cr_expect_str_eq(l->folder, "/ckpt/" RUN1);
    zt_query_free(e);
    e = list(&b, "base", 30);
    cr_expect_eq(e->checkpoint_list->n_checkpoints, 2, "a page begins below the step");
    zt_query_free(e);
    bench_end(&b);
}

Test(checkpoints, a_long_list_comes_in_pages) {
    struct bench b;
    open_with_runs(&b);
    struct zt_batch *batch = zt_batch_new();
    for (int64_t s = 101; s <= 3100; s++) {
        struct zt_row_ckpt c = row(RUN1, s, ZT_CKPT_COMMITTED);
        zt_batch_ckpt(batch, &c);
    }
    cr_assert_eq(bench_commit(&b, batch), 0);
    int64_t before = 0, seen = 0, pages = 0;
    for (bool more = true; more; pages++) {
        Zt__Envelope *e = list(&b, RUN1, before);
        const Zt__CheckpointList *l = e->checkpoint_list;
        cr_assert_lt(zt__envelope__get_packed_size(e), 1 << 20);
        for (size_t i = 0; i < l->n_checkpoints; i++) {
            cr_assert(before == 0 || l->checkpoints[i]->step < before);
            before = l->checkpoints[i]->step;
            seen++;
        }
        more = l->more;
        zt_query_free(e);
    }
    cr_expect_eq(seen, 3005);
    cr_expect_gt(pages, 1);
    bench_end(&b);
}

Test(checkpoints, a_run_tells_of_its_own) {
    struct bench b;
    open_with_runs(&b);
    saving_run(&b, RUN2, "tuned", 2, RUN1);
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_attempt a = { .generation = 1, .attempt = 1, .world = 2, .rank = -1, .detect_seconds = -1, .stop_seconds = -1,
                                .start_seconds = -1, .form_seconds = -1, .load_seconds = 0.75, .from = ZT_START_OWN, .start_step = 30 };
    snprintf(a.run_id, sizeof a.run_id, RUN1);
    zt_batch_attempt(batch, &a);
    cr_assert_eq(bench_commit(&b, batch), 0);
    Zt__GetRun m = ZT__GET_RUN__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    req.body_case = ZT__ENVELOPE__BODY_GET_RUN;
    req.get_run = &m;
    m.run = (char *)(uintptr_t)RUN1;
    Zt__Envelope *e = ask(&b, &req);
    const Zt__RunDetail *d = e->run_detail;
    cr_expect_eq(d->checkpoint->step, 30);
    cr_expect_eq(d->saving->step, 50);
    cr_expect_null(d->resumed_from);
    cr_expect_eq(d->attempts[0]->load_seconds, 0.75);
    cr_expect_eq(d->attempts[0]->start_step, 30);
    zt_query_free(e);
    m.run = (char *)(uintptr_t)RUN2;
    e = ask(&b, &req);
    cr_expect_str_eq(e->run_detail->resumed_from, "run base (" RUN1 ") step 20, weights only");
    cr_expect_null(e->run_detail->checkpoint);
    zt_query_free(e);
    bench_end(&b);
}

Test(checkpoints, a_name_stands_for_one) {
    struct bench b;
    struct zt_error err;
    struct zt_ckpt_source s;
    struct zt_ckpt_facts f;
    open_with_runs(&b);
    saving_run(&b, RUN2, "empty", 2, NULL);
    sqlite3 *db = open_reader(&b);
    cr_assert_eq(zt_query_ckpt_source(db, "base", -1, &s, &err), 0, "%s", err.msg);
    cr_expect_eq(s.step, 30);
    cr_expect_str_eq(s.run_id, RUN1);
    cr_expect_str_eq(s.folder, "/ckpt/" RUN1);
    cr_expect_str_eq(s.normalised, "version: 1\n");
    cr_expect_eq(s.world, 2);
    cr_expect_eq(s.manifest[0], 31);
    zt_ckpt_source_free(&s);
    cr_assert_eq(zt_query_ckpt_source(db, "01J8ZK4QA", 20, &s, &err), 0, "%s", err.msg);
    cr_expect_eq(s.step, 20);
    zt_ckpt_source_free(&s);
    cr_expect_eq(zt_query_ckpt_source(db, "base", 40, &s, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "is FAILED") && strstr(err.msg, "committed are 30, 20"), "%s", err.msg);
    cr_expect_eq(zt_query_ckpt_source(db, "base", 25, &s, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "was not saved"), "%s", err.msg);
    cr_expect_eq(zt_query_ckpt_source(db, "empty", -1, &s, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "none of its saves"), "%s", err.msg);
    cr_expect_eq(zt_query_ckpt_source(db, "bse", -1, &s, &err), ZT_ENOTFOUND);
    cr_expect(strstr(err.msg, "did you mean"), "%s", err.msg);
    cr_assert_eq(zt_query_ckpt_facts(db, RUN1, 20, &f, &err), 0);
    cr_expect(f.found && f.state == ZT_CKPT_COMMITTED && !f.pinned && f.others == 1);
    cr_assert_eq(zt_query_ckpt_facts(db, RUN1, 21, &f, &err), 0);
    cr_expect(!f.found);
    sqlite3_close(db);
    bench_end(&b);
}

Test(checkpoints, changes_to_rows_of_runs_that_have_ended) {
    struct bench b;
    open_with_runs(&b);
    static const struct { enum zt_ckpt_set what; const char *sql; int64_t want; } steps[] = {
        { ZT_SET_PIN, "SELECT pinned FROM checkpoints WHERE step = 20", 1 },
        { ZT_SET_UNPIN, "SELECT pinned FROM checkpoints WHERE step = 20", 0 },
        { ZT_SET_CORRUPT, "SELECT state * 10 + verified FROM checkpoints WHERE step = 20 AND message = 'why'", 30 },
        { ZT_SET_VERIFIED, "SELECT state * 10 + verified FROM checkpoints WHERE step = 20", 21 },
        { ZT_SET_DELETE, "SELECT state FROM checkpoints WHERE step = 20", 4 },
        { ZT_SET_DELETED, "SELECT count(*) FROM checkpoints WHERE step = 20", 0 },
    };
    sqlite3 *db = open_reader(&b);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct zt_batch *batch = zt_batch_new();
        zt_batch_ckpt_set(batch, RUN1, 20, steps[i].what, "why");
        cr_assert_eq(bench_commit(&b, batch), 0);
        cr_expect_eq(number_of(db, steps[i].sql), steps[i].want, "change %zu", i);
    }
    cr_expect_eq(number_of(db, "SELECT count(*) FROM checkpoints"), 4, "the others are as they were");
    struct zt_batch *batch = zt_batch_new();
    zt_batch_ckpt_gone(batch, RUN1, 50);
    cr_assert_eq(bench_commit(&b, batch), 0);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM checkpoint_shards"), 0, "its parts go with it");
    sqlite3_close(db);
    bench_end(&b);
}

Test(checkpoints, a_row_without_a_manifest_is_never_committed) {
    struct bench b;
    open_with_runs(&b);
    struct zt_row_ckpt c = row(RUN1, 60, ZT_CKPT_COMMITTED);
    memset(c.manifest, 0, sizeof c.manifest);
    struct zt_batch *batch = zt_batch_new();
    zt_batch_ckpt(batch, &c);
    cr_expect_neq(bench_commit(&b, batch), 0, "the schema refuses it");
    bench_end(&b);
}

Test(checkpoints, a_start_reads_all_of_it_back) {
    struct bench b;
    struct zt_recovered r;
    struct zt_error err;
    open_with_runs(&b);
    saving_run(&b, RUN2, "tuned", 2, RUN1);
    sqlite3 *db = open_reader(&b);
    cr_assert_eq(zt_recover(db, 7, 100000, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.recovery.n_runs, 2);
    const struct zt_row_run *t = &r.recovery.runs[1];
    cr_expect_eq(t->saved_step, 30);
    cr_expect_eq(t->no_progress, 2);
    cr_expect(t->source_corrupt && !r.recovery.runs[0].source_corrupt);
    cr_expect(t->config.saves && t->config.on_preempt && t->config.source.weights_only);
    cr_expect_eq(t->config.keep_latest_k, 3);
    cr_expect_eq(t->config.keep_every, 1000);
    cr_expect_eq(t->config.no_progress_limit, 5);
    cr_expect_str_eq(t->config.source.run_id, RUN1);
    cr_expect_eq(t->config.source.step, 20);
    for (int i = 0; i < 32; i++)
        cr_expect_eq(t->config.source.manifest[i], (uint8_t)(7 * i + 200));
    cr_expect_str_eq(r.texts[0].folder, "/ckpt/" RUN1);
    cr_expect_str_eq(r.texts[1].source_folder, "/ckpt/base");
    cr_expect(r.texts[1].accept_batch_change && !r.texts[0].accept_batch_change);
    cr_assert_eq(r.recovery.n_ckpts, 5);
    struct zt_row_ckpt want = row(RUN1, 30, ZT_CKPT_COMMITTED);
    cr_expect_arr_eq(r.recovery.ckpts[2].manifest, want.manifest, 32);
    cr_expect_eq(r.recovery.ckpts[2].state, want.state);
    cr_expect_eq(r.recovery.ckpts[2].bytes, want.bytes);
    cr_expect_eq(r.recovery.ckpts[2].mesh.shard, 2);
    cr_expect_str_eq(r.recovery.ckpts[2].parameter_hash, "p30");
    cr_expect_eq(r.recovery.ckpts[2].write_seconds, 0.5);
    cr_expect_str_eq(r.recovery.ckpts[3].message, "rank 1: disk full");
    cr_assert_eq(r.recovery.n_parts, 1);
    const struct zt_row_part *p = &r.recovery.parts[0];
    cr_expect(p->step == 50 && p->part.rank == 1 && p->part.bytes == 7 && p->part.index[1] == 2 && p->part.parameter_hash[0] == 3 &&
              p->part.state_hash[0] == 4 && p->part.write_seconds == 0.125);
    zt_recovered_free(&r);
    sqlite3_close(db);
    bench_end(&b);
}

/* A database of the version before has runs without any of this: they go on. */
Test(checkpoints, runs_of_the_version_before) {
    struct bench b;
    struct zt_migrate_result m;
    struct zt_recovered r;
    struct zt_error err;
    sqlite3 *db;
    bench_folder(&b);
    cr_assert_eq(zt_db_open(b.dir, zt_migrations, 6, &db, &m, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_db_exec(db, "INSERT INTO runs (run_id, name, place, state, generation, attempt, restarts_counted, failures_in_row,"
                                " cancel_requested, workers, replicate, shard, tensor, best_step, submitted_ms, started_ms, ended_ms,"
                                " priority, steps, config) VALUES ('" RUN1 "', 'old', 1, 5, 1, 1, 0, 0, 0, 1, 1, 1, 1, 3, 1, 1, 0, 50, 10,"
                                " '{\"workers\":1,\"replicate\":1,\"shard\":1,\"tensor\":1,\"steps\":10}')", &err), 0, "%s", err.msg);
    cr_assert_eq(zt_db_exec(db, "INSERT INTO attempts VALUES ('" RUN1 "', 1, 1, 1, 1, 0, 0, -1, '', '', 0, 0, 0, -1, -1, -1, -1)", &err), 0);
    sqlite3_close(db);
    cr_assert_eq(zt_db_open(b.dir, zt_migrations, zt_n_migrations, &db, &m, &err), 0, "%s", err.msg);
    cr_expect_eq(m.from, 6);
    cr_assert_eq(zt_recover(db, 2, 100, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.recovery.n_runs, 1);
    cr_expect(!r.recovery.runs[0].config.saves && r.recovery.runs[0].saved_step == 0);
    cr_expect_eq(r.recovery.attempts[0].load_seconds, -1);
    cr_expect_eq(r.recovery.attempts[0].from, ZT_START_FRESH);
    zt_recovered_free(&r);
    sqlite3_close(db);
    remove_tree(b.dir);
}
