/* SPDX-License-Identifier: Apache-2.0 */
/* The real zcoord and checkpoints, as a client meets them: what a run may begin from is looked up at its submit and
 * refused there by name, and what people set is carried out once. The database is made beforehand: a run that has
 * ended, with checkpoints. */
#include "core/spec.h"
#include "tests/coordinator/zcoord_util.h"

#define SAVING(name, extra)                                                                                                    \
    "version: 1\nname: " name "\nworkers: 2\nmodel: {preset: gpt2-nano}\n"                                                      \
    "dataset: {path: /usr/share/common-licenses, tokenizer: bytes}\n"                                                          \
    "training: {steps: 200, seq_len: 64, local_batch_size: 2, global_batch_size: 8}\nparallelism: {mode: ddp}\n" extra "\n"
#define FOLDER "checkpoint: {folder: /tmp/never-written"

/* RUN1, "base", ended, with steps 10 (CORRUPT), 20 and 30. */
static void make_base(struct daemon *d)
{
    struct bench b;
    struct zt_error err;
    struct zt_spec spec;
    memset(&spec, 0, sizeof spec);
    memset(&b, 0, sizeof b);
    snprintf(b.dir, sizeof b.dir, "%s", d->dir);
    bench_open(&b, NULL);
    const char *text = SAVING("base", FOLDER ", interval: 10}");
    cr_assert_eq(zt_spec_parse(text, strlen(text), "run.yaml", NULL, 0, &spec, &err), 0, "%s", err.msg);
    char *normalised = zt_spec_normalise(&spec);
    zt_spec_free(&spec);
    struct zt_batch *batch = zt_batch_new();
    struct zt_row_run r = a_run(RUN1, "base", 1, ZT_RUN_SUCCEEDED, 1, 2);
    r.ended_ms = 1;
    struct zt_run_blobs blobs = { .run_yaml = text, .run_yaml_bytes = strlen(text), .file = "run.yaml", .normalised = normalised,
                                  .hash = "00", .mode = "ddp", .overrides = "[]", .per_rank_keep = 10,
                                  .saves = { .folder = "/tmp/never-written/" RUN1, .interval = 10 } };
    zt_batch_run(batch, &r, &blobs);
    add_generation(batch, RUN1, 1, 2);
    for (int64_t s = 10; s <= 30; s += 10) {
        struct zt_row_ckpt c = { .run_id = RUN1, .step = s, .generation = 1, .state = s == 10 ? ZT_CKPT_CORRUPT : ZT_CKPT_COMMITTED,
                                 .world = 2, .mesh = { 2, 1, 1 }, .committed_ms = 5, .verified = s != 10 };
        memset(c.manifest, (int)s, sizeof c.manifest);
        zt_batch_ckpt(batch, &c);
    }
    cr_assert_eq(bench_commit(&b, batch), 0);
    free(normalised);
    bench_close(&b);
}

static int submit_from(struct zt_call *c, uint8_t key_byte, const char *text, const char *run, int64_t step, bool accept, struct answer *a)
{
    uint8_t key[16] = { key_byte };
    Zt__Submit s = ZT__SUBMIT__INIT;
    s.request_key.data = key;
    s.request_key.len = sizeof key;
    s.run_yaml.data = (uint8_t *)(uintptr_t)text;
    s.run_yaml.len = strlen(text);
    s.file = (char *)"run.yaml";
    s.resume_run = (char *)(uintptr_t)run;
    s.has_resume_step = step > 0;
    s.resume_step = step;
    s.has_accept_batch_change = accept;
    s.accept_batch_change = accept;
    return call(c, ZT__ENVELOPE__BODY_SUBMIT, &s, a);
}

static int set(struct zt_call *c, uint8_t key_byte, const char *run, int64_t step, Zt__SetCheckpoint__What what, struct answer *a)
{
    uint8_t key[16] = { key_byte, 1 };
    Zt__SetCheckpoint s = ZT__SET_CHECKPOINT__INIT;
    s.request_key.data = key;
    s.request_key.len = sizeof key;
    s.run = (char *)(uintptr_t)run;
    s.step = step;
    s.what = what;
    return call(c, ZT__ENVELOPE__BODY_SET_CHECKPOINT, &s, a);
}

Test(zcoord_ckpt, a_submit_hears_at_once_what_it_cannot_begin_from) {
    static const struct { const char *yaml, *run; int64_t step; int code; const char *why; } bad[] = {
        { SAVING("b", FOLDER "}"), "nosuch", 0, ZT_ENOTFOUND, "no run \"nosuch\"" },
        { SAVING("b", FOLDER "}"), "base", 25, ZT_ENOTFOUND, "step 25 of run base (" RUN1 ") was not saved" },
        { SAVING("b", FOLDER "}"), "base", 10, ZT_ENOTFOUND, "is CORRUPT, so nothing can begin from it; committed are 30, 20" },
        { SAVING("b", FOLDER ", load: never}"), "base", 0, ZT_EINVAL, "checkpoint.load: never contradicts --resume base" },
        { SAVING("b", FOLDER ", load: weights_only}"), NULL, 0, ZT_EINVAL, "weights_only needs a checkpoint" },
        { SAVING("b", FOLDER ", load: \"step:20\"}"), NULL, 0, ZT_ENOTFOUND, "no run \"b\"" },
        { SAVING("base", FOLDER ", load: \"step:40\"}"), NULL, 0, ZT_ENOTFOUND, "step 40 of run base" },
        { SAVING("b", FOLDER ", load: \"run:base@40\"}"), NULL, 0, ZT_ENOTFOUND, "step 40 of run base" },
        { SAVING("b", "checkpoint: {folder: here}"), NULL, 0, ZT_EINVAL, "checkpoint.folder: here is not absolute" },
        { SAVING("b", "optimizer: {beta1: 0.8}\n" FOLDER "}"), "base", 0, ZT_EINVAL, "optimizer.beta1" },
    };
    struct daemon d;
    struct answer a;
    fresh(&d);
    make_base(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(submit_from(c, (uint8_t)(100 + i), bad[i].yaml, bad[i].run, bad[i].step, false, &a), bad[i].code, "row %zu: %s", i,
                     a.err.msg);
        cr_expect(strstr(a.err.msg, bad[i].why), "row %zu: %s", i, a.err.msg);
        drop(&a);
    }
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM runs"), 1, "a refused run leaves nothing");
    sqlite3_close(db);
    remove_tree(d.dir);
}

Test(zcoord_ckpt, what_a_run_begins_from_is_fixed_at_its_submit) {
    static const struct { const char *name, *yaml, *run; int64_t step, want; bool weights; } good[] = {
        { "newest", SAVING("newest", FOLDER "}"), "base", 0, 30, false },
        { "older", SAVING("older", FOLDER "}"), RUN1, 20, 20, false },
        { "weights", SAVING("weights", "optimizer: {beta1: 0.8}\n" FOLDER ", load: weights_only}"), "base", 20, 20, true },
        { "named", SAVING("named", FOLDER ", load: \"run:base@20\"}"), NULL, 0, 20, false },
        { "tuned", "version: 1\nname: tuned\nworkers: 1\nmodel: {preset: gpt2-nano, init_from: \"run:base@20\"}\n"
                   "dataset: {path: /x, tokenizer: bytes}\ntraining: {steps: 5, seq_len: 64, local_batch_size: 2}\n", NULL, 0, 20, true },
        { "base", SAVING("base", FOLDER ", load: \"step:20\"}"), NULL, 0, 20, false }, /* of the newest run of its own name */
    };
    struct daemon d;
    struct answer a;
    fresh(&d);
    make_base(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char want[160];
        cr_assert_eq(submit_from(c, (uint8_t)(1 + i), good[i].yaml, good[i].run, good[i].step, false, &a), 0, "row %zu: %s", i, a.err.msg);
        drop(&a);
        Zt__GetRun g = ZT__GET_RUN__INIT;
        g.run = (char *)(uintptr_t)good[i].name;
        cr_assert_eq(call(c, ZT__ENVELOPE__BODY_GET_RUN, &g, &a), 0, "%s", a.err.msg);
        snprintf(want, sizeof want, "run base (" RUN1 ") step %d%s", (int)good[i].want, good[i].weights ? ", weights only" : "");
        cr_assert(a.env->run_detail->resumed_from, "row %zu", i);
        cr_expect_str_eq(a.env->run_detail->resumed_from, want, "row %zu", i);
        drop(&a);
    }
    /* a repeat of the key is the same run, even when what it began from is gone meanwhile */
    cr_expect_eq(set(c, 1, RUN1, 20, ZT__SET_CHECKPOINT__WHAT__DELETE, &a), ZT_EINVAL, "runs wait to go on from it");
    cr_expect(strstr(a.err.msg, "goes on from it"), "%s", a.err.msg);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGKILL), 128 + SIGKILL);
    start(&d);
    c = dial(&d);
    cr_expect_eq(set(c, 2, RUN1, 20, ZT__SET_CHECKPOINT__WHAT__DELETE, &a), ZT_EINVAL, "after a start too: %s", a.err.msg);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    remove_tree(d.dir);
}

Test(zcoord_ckpt, what_people_set_is_carried_out_once) {
    struct daemon d;
    struct answer a;
    fresh(&d);
    make_base(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    static const struct { uint8_t key; int64_t step; Zt__SetCheckpoint__What what; int code; } row[] = {
        { 1, 20, ZT__SET_CHECKPOINT__WHAT__PIN, 0 },           { 2, 20, ZT__SET_CHECKPOINT__WHAT__DELETE, ZT_EINVAL },
        { 3, 20, ZT__SET_CHECKPOINT__WHAT__UNPIN, 0 },         { 1, 20, ZT__SET_CHECKPOINT__WHAT__PIN, 0 /* a repeat: not again */ },
        { 4, 20, ZT__SET_CHECKPOINT__WHAT__DELETE, 0 },        { 5, 30, ZT__SET_CHECKPOINT__WHAT__DELETE, ZT_EINVAL /* the last */ },
        { 6, 20, ZT__SET_CHECKPOINT__WHAT__VERIFIED, ZT_EINVAL }, { 7, 20, ZT__SET_CHECKPOINT__WHAT__DELETED, 0 },
        { 8, 20, ZT__SET_CHECKPOINT__WHAT__DELETED, 0 },       { 9, 20, ZT__SET_CHECKPOINT__WHAT__PIN, ZT_ENOTFOUND },
        { 10, 10, ZT__SET_CHECKPOINT__WHAT__VERIFIED, 0 /* repaired */ }, { 11, 30, ZT__SET_CHECKPOINT__WHAT__CORRUPT_FOUND, 0 },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        cr_expect_eq(set(c, row[i].key, "base", row[i].step, row[i].what, &a), row[i].code, "row %zu: %s", i, a.err.msg);
        drop(&a);
    }
    Zt__ListCheckpoints l = ZT__LIST_CHECKPOINTS__INIT;
    l.run = (char *)"base";
    cr_assert_eq(call(c, ZT__ENVELOPE__BODY_LIST_CHECKPOINTS, &l, &a), 0, "%s", a.err.msg);
    const Zt__CheckpointList *k = a.env->checkpoint_list;
    cr_assert_eq(k->n_checkpoints, 2);
    cr_expect_str_eq(k->checkpoints[0]->state, "CORRUPT");
    cr_expect_str_eq(k->checkpoints[1]->state, "COMMITTED");
    cr_expect_eq(k->checkpoints[1]->step, 10);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'CHECKPOINT_CORRUPT' AND run_id = '" RUN1 "'"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'CHECKPOINT_REMOVED' AND run_id = '" RUN1 "'"), 1);
    sqlite3_close(db);
    remove_tree(d.dir);
}

/* A client may not say that something is saved, and SetCheckpoint is checked for its shape. */
Test(zcoord_ckpt, only_workers_save) {
    struct daemon d;
    struct answer a;
    uint8_t zero[32] = { 0 };
    fresh(&d);
    make_base(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    Zt__ShardDone done = ZT__SHARD_DONE__INIT;
    Zt__GetShards get = ZT__GET_SHARDS__INIT;
    Zt__CkptCommit commit = ZT__CKPT_COMMIT__INIT;
    Zt__CkptRemoved removed = ZT__CKPT_REMOVED__INIT;
    Zt__CkptFailed failed = ZT__CKPT_FAILED__INIT;
    Zt__RankLoaded loaded = ZT__RANK_LOADED__INIT;
    done.run_id = get.run_id = commit.run_id = removed.run_id = failed.run_id = loaded.run_id = (char *)(uintptr_t)RUN1;
    done.index_sha256 = commit.manifest_sha256 = (ProtobufCBinaryData){ 32, zero };
    done.parameter_hash = done.state_hash = (ProtobufCBinaryData){ 16, zero };
    failed.message = (char *)"x";
    const struct { Zt__Envelope__BodyCase which; void *body; } row[] = {
        { ZT__ENVELOPE__BODY_SHARD_DONE, &done },     { ZT__ENVELOPE__BODY_GET_SHARDS, &get },
        { ZT__ENVELOPE__BODY_CKPT_COMMIT, &commit },  { ZT__ENVELOPE__BODY_CKPT_REMOVED, &removed },
        { ZT__ENVELOPE__BODY_CKPT_FAILED, &failed },  { ZT__ENVELOPE__BODY_RANK_LOADED, &loaded },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        cr_expect_eq(call(c, row[i].which, row[i].body, &a), ZT_EAUTH, "row %zu: %s", i, a.err.msg);
    cr_expect_eq(set(c, 1, "base", 0, ZT__SET_CHECKPOINT__WHAT__PIN, &a), ZT_EINVAL);
    cr_expect_neq(set(c, 1, "base", 20, (Zt__SetCheckpoint__What)9, &a), 0, "a change of a later version");
    cr_expect_eq(set(c, 1, "bsae", 20, ZT__SET_CHECKPOINT__WHAT__PIN, &a), ZT_ENOTFOUND);
    Zt__SetCheckpoint short_key = ZT__SET_CHECKPOINT__INIT;
    short_key.run = (char *)"base";
    short_key.step = 20;
    short_key.what = ZT__SET_CHECKPOINT__WHAT__PIN;
    short_key.request_key = (ProtobufCBinaryData){ 15, zero };
    cr_expect_eq(call(c, ZT__ENVELOPE__BODY_SET_CHECKPOINT, &short_key, &a), ZT_EINVAL);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM checkpoints WHERE state = 2 AND pinned = 0"), 2, "nothing has changed");
    sqlite3_close(db);
    remove_tree(d.dir);
}
