/* SPDX-License-Identifier: Apache-2.0 */
/* The machine and checkpoints, rule by rule: parts and the commit, what is let go, what a generation begins
 * from, what people set, drains, no progress, a start of the coordinator in the middle of a save. */
#include "tests/coordinator/machine_bench.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(machine_ckpt, .init = bench_open, .fini = bench_close);

static void workers(int n) {
    static const char *names[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    for (int i = 0; i < n; i++) bench_worker(names[i], "a");
    bench_wait(1.2);
}
static struct zt_run_config saving(int world) {
    struct zt_run_config c = bench_config(world);
    c.steps = 1000;
    c.saves = c.on_preempt = true;
    c.keep_latest_k = 2;
    return c;
}
static int running(const char *name, struct zt_run_config c) {
    int r = bench_submit(name, c);
    cr_assert_geq(r, 0, "%s", B.reply.message);
    bench_running(r);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    return r;
}
/* The generation ends by SIGKILL of rank 0; the next one is RUNNING. */
static void again(int r) {
    bench_exit(r, 0, -1, 9);
    bench_exit_all(r, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING, "%s: %s", zt_run_state_name(bench_state(r)), B.run[r].detail);
    bench_wait(70);
    bench_running(r);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
}

/* ---- parts and the commit */
Test(machine_ckpt, a_save_is_committed_when_all_of_it_is_there) {
    workers(2);
    int r = running("job", saving(2));
    bench_steps(r, 0, 1, 10, 0.1);
    cr_assert_eq(bench_shard(r, 0, 10), 0);
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_WRITING);
    cr_assert_eq(bench_get_shards(r, 10), 1, "one part is missing: it waits");
    cr_assert_eq(bench_ckpt_commit(r, 10), ZT_EBUSY);
    cr_assert_eq(bench_shard(r, 1, 10), 0);
    cr_assert_eq(B.n_shards, 0, "the step rows of rank 1 are not in: a hole would be left");
    cr_assert_eq(bench_ckpt_commit(r, 10), ZT_EBUSY);
    bench_steps(r, 1, 1, 10, 0.1);
    cr_assert_eq(B.n_shards, 2);
    for (int k = 0; k < 2; k++) {
        cr_assert_eq(B.shards[k].rank, k);
        cr_assert_eq(B.shards[k].bytes, 100 + k);
        cr_assert_eq(B.shards[k].index[0], k + 1);
    }
    cr_assert_eq(bench_shard(r, 1, 10), 0, "a repeat");
    cr_assert_eq(bench_ckpt(r, 10)->bytes, 201, "counted once");
    B.hold_commits = true;
    cr_assert_eq(bench_ckpt_commit(r, 10), 0);
    cr_assert_gt(B.reply.after_txn, zt_machine_durable(B.m), "answered when the row is durable");
    cr_assert_eq(B.reply.n_remove, 0);
    bench_commit();
    const struct zt_row_ckpt *c = bench_ckpt(r, 10);
    cr_assert_eq(c->state, ZT_CKPT_COMMITTED);
    cr_assert(c->verified && c->committed_ms > 0);
    cr_assert_eq(c->bytes, 201);
    cr_assert_float_eq(c->write_seconds, 2, 1e-12);
    cr_assert_str_eq(c->parameter_hash, "00000000000000000000000000000003", "1 + 2");
    cr_assert_str_eq(c->state_hash, "00000000000000000000000000000006");
    cr_assert_eq(B.n_parts, 0, "parts are of no use any more");
    cr_assert_eq(B.run[r].saved_step, 10);
    cr_assert(bench_find_event("CHECKPOINT_COMMITTED"));
    B.hold_commits = false;
    cr_assert_eq(bench_ckpt_commit(r, 10), 0, "a repeat gets the same answer");
    cr_assert_eq(bench_commit_of(r, 10, 201, "", 99), ZT_EINVAL, "set once");
    cr_assert_eq(bench_shard(r, 0, 10), 0, "a repeat that comes late");
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_COMMITTED);
}
Test(machine_ckpt, sums_carry_into_the_high_word) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) {
        bench_steps(r, k, 1, 5, 0.1);
        struct zt_event ev = bench_event(ZT_EV_SHARD_DONE, bench_holder(r, k));
        ev.at = (struct zt_on_child){B.run[r].run_id, 1, k};
        ev.u.shard.step = 5;
        ev.u.shard.part.bytes = 1;
        memset(ev.u.shard.part.parameter_hash, 0xff, 8); /* 2^64 - 1, twice */
        cr_assert_eq(bench_step(&ev), 0);
    }
    cr_assert_eq(bench_commit_of(r, 5, 2, "0000000000000001fffffffffffffffe", 1), 0, "%s", B.reply.message);
}
Test(machine_ckpt, a_commit_that_does_not_add_up_is_refused) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) {
        bench_steps(r, k, 1, 10, 0.1);
        bench_shard(r, k, 10);
    }
    cr_assert_eq(bench_commit_of(r, 10, 200, "", 1), ZT_EINVAL);
    cr_assert(strstr(B.reply.message, "200 bytes") && strstr(B.reply.message, "201 bytes"), "%s", B.reply.message);
    cr_assert_eq(bench_commit_of(r, 10, 201, "00000000000000000000000000000004", 1), ZT_EINVAL);
    cr_assert_eq(bench_commit_of(r, 9, 201, "", 1), ZT_EINVAL, "nobody told of a part of step 9");
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_WRITING);
    cr_assert_eq(bench_commit_of(r, 10, 201, "00000000000000000000000000000003", 1), 0);
}
Test(machine_ckpt, a_rank_that_cannot_save_ends_the_save_and_nothing_else) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) bench_steps(r, k, 1, 10, 0.1);
    bench_shard(r, 0, 10);
    cr_assert_eq(bench_get_shards(r, 10), 1);
    int before = B.n_replies;
    cr_assert_eq(bench_ckpt_failed(r, 1, 10, true), 0);
    cr_assert_eq(B.n_replies, before + 2, "rank 0 waits no longer");
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_FAILED);
    const struct zt_row_event *e = bench_find_event("CHECKPOINT_FAILED");
    cr_assert(e && strstr(e->message, "rank 1, disk full: no room"), "%s", e ? e->message : "none");
    cr_assert_eq(bench_get_shards(r, 10), ZT_ECANCELLED);
    cr_assert(strstr(B.reply.message, "no room"));
    cr_assert_eq(bench_shard(r, 1, 10), ZT_ECANCELLED, "what comes late changes nothing");
    cr_assert_eq(bench_ckpt_commit(r, 10), ZT_ECANCELLED);
    cr_assert_eq(bench_ckpt_failed(r, 0, 10, false), 0);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(bench_save(r, 20), 0, "the next one is saved");
    cr_assert_eq(bench_ckpt(r, 20)->state, ZT_CKPT_COMMITTED);
}
Test(machine_ckpt, failed_ones_are_few) {
    workers(1);
    int r = running("job", saving(1));
    for (int s = 1; s <= 20; s++) cr_assert_eq(bench_ckpt_failed(r, 0, s, true), 0);
    cr_assert_eq(B.n_ckpts, 8);
    cr_assert(bench_ckpt(r, 20) && bench_ckpt(r, 13) && !bench_ckpt(r, 12));
    cr_assert_eq(bench_shard(r, 0, 5), ZT_ECANCELLED, "a part of one whose row is gone");
}
Test(machine_ckpt, an_older_generation_saves_nothing) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) {
        bench_steps(r, k, 1, 10, 0.1);
        bench_shard(r, k, 10);
    }
    struct zt_event old = bench_event(ZT_EV_CKPT_COMMIT, bench_holder(r, 0));
    uint8_t sha[32] = {1};
    old.at = (struct zt_on_child){B.run[r].run_id, 1, 0};
    old.u.commit.step = 10;
    old.u.commit.bytes = 201;
    old.u.commit.manifest = sha;
    old.u.commit.parameter_hash = old.u.commit.state_hash = "";
    again(r);
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_FAILED);
    cr_assert(strstr(bench_ckpt(r, 10)->message, "generation 1 ended"), "%s", bench_ckpt(r, 10)->message);
    cr_assert_eq(B.attempt[r].start_step, 0, "parts that nobody committed are nothing to go on from");
    cr_assert_eq(bench_step(&old), ZT_CODE_STALE);
    B.stored[r][0] = B.stored[r][1] = 0;
    cr_assert_eq(bench_save(r, 10), 0, "saved anew: %s", B.reply.message);
    cr_assert_eq(bench_ckpt(r, 10)->generation, 2);
}
/* The files are renamed and the commit is under way when the generation is torn down: it counts. */
Test(machine_ckpt, a_commit_while_the_generation_stops_counts) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) {
        bench_steps(r, k, 1, 10, 0.1);
        bench_shard(r, k, 10);
    }
    bench_exit(r, 1, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(bench_get_shards(r, 10), ZT_CODE_STALE);
    cr_assert_eq(bench_ckpt_commit(r, 10), 0);
    bench_exit(r, 0, -1, 9);
    bench_wait(70);
    cr_assert_eq(B.attempt[r].start_step, 10);
}
Test(machine_ckpt, two_saves_at_the_end_of_a_run) {
    workers(2);
    int r = running("job", saving(2));
    for (int k = 0; k < 2; k++) bench_steps(r, k, 1, 20, 0.1);
    bench_shard(r, 0, 10);
    bench_shard(r, 1, 10);
    bench_shard(r, 1, 20); /* rank 0 still publishes step 10 */
    cr_assert_eq(bench_ckpt_commit(r, 10), 0);
    bench_shard(r, 0, 20);
    cr_assert_eq(bench_ckpt_commit(r, 20), 0);
}

/* ---- what a generation begins from */
Test(machine_ckpt, the_next_generation_goes_on_after_the_newest) {
    workers(2);
    int r = running("job", saving(2));
    cr_assert_eq(bench_save(r, 10), 0);
    cr_assert_eq(bench_save(r, 20), 0);
    for (int k = 0; k < 2; k++) bench_steps(r, k, 21, 27, 0.1);
    again(r);
    const struct zt_desired *d = &B.w[bench_holder(r, 0)].desired;
    cr_assert_eq(B.attempt[r].start_step, 20);
    cr_assert_eq(d->start_step, 20);
    cr_assert_eq(d->from, ZT_START_OWN);
    cr_assert_eq(d->manifest[0], 20);
    cr_assert(!d->weights_only && d->save_on_drain);
    cr_assert_eq(bench_loaded(r, 0, 20), 0);
    cr_assert(!bench_find_event("RESUMED"));
    cr_assert_eq(bench_loaded(r, 1, 20), 0);
    cr_assert(bench_find_event("RESUMED"));
    cr_assert_float_eq(B.attempt[r].load_seconds, 1.5, 1e-12, "the slowest rank's");
    B.stored[r][0] = B.stored[r][1] = 20;
    cr_assert_eq(bench_steps(r, 0, 22, 23, 0.1), ZT_EBUSY);
    cr_assert(strstr(B.reply.message, "step 21 is missing"), "%s", B.reply.message);
    for (int k = 0; k < 2; k++) cr_assert_eq(bench_steps(r, k, 21, 30, 0.1), 0);
    bench_exit(r, 0, -1, 9);
    bench_exit_all(r, -1, 9);
    cr_assert_eq(B.attempt[r].last_step, 30);
    cr_assert_eq(B.attempt[r].steps_redone, 7, "21 to 27");
}
Test(machine_ckpt, a_rank_that_goes_on_elsewhere_is_an_error) {
    workers(2);
    int r = running("job", saving(2));
    bench_save(r, 10);
    again(r);
    cr_assert_eq(bench_loaded(r, 0, 9), ZT_EINVAL);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_CKPT_ERROR);
    cr_assert(strstr(B.run[r].detail, "after step 9, it was to go on after step 10"), "%s", B.run[r].detail);
}
Test(machine_ckpt, a_damaged_one_is_passed_over_for_the_older_one) {
    workers(2);
    int r = running("job", saving(2));
    bench_save(r, 10);
    bench_save(r, 20);
    again(r);
    bench_fail(r, 1, ZT_REASON_CKPT_CORRUPT, -1);
    cr_assert_eq(bench_ckpt(r, 20)->state, ZT_CKPT_CORRUPT);
    cr_assert(strstr(bench_ckpt(r, 20)->message, "it broke"));
    const struct zt_row_event *e = bench_find_event("CHECKPOINT_CORRUPT");
    cr_assert(e && strstr(e->message, "goes on after step 10"), "%s", e ? e->message : "none");
    bench_exit_all(r, 1, 0);
    bench_wait(70);
    cr_assert_eq(B.attempt[r].start_step, 10);
    cr_assert_eq(B.run[r].restarts_counted, 0, "nobody's fault");
    bench_running(r);
    B.stored[r][0] = B.stored[r][1] = 10;
    cr_assert_eq(bench_save(r, 20), 0, "it is saved anew: %s", B.reply.message);
    cr_assert_eq(bench_ckpt(r, 20)->state, ZT_CKPT_COMMITTED);
    /* and with none left the run ends rather than begin anew */
    for (int i = 0; i < 2; i++) {
        again(r);
        bench_fail(r, 0, ZT_REASON_CKPT_CORRUPT, -1);
        if (i == 0) {
            bench_exit_all(r, 1, 0);
            bench_wait(70);
            cr_assert_eq(B.attempt[r].start_step, 10);
            bench_running(r);
        }
    }
    bench_exit_all(r, 1, 0);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(B.run[r].reason, ZT_REASON_CKPT_CORRUPT);
    cr_assert(strstr(B.run[r].detail, "not begun anew"), "%s", B.run[r].detail);
}
Test(machine_ckpt, damage_without_a_checkpoint_counts) {
    workers(1);
    int r = running("job", saving(1));
    bench_fail(r, 0, ZT_REASON_CKPT_CORRUPT, -1);
    cr_assert_eq(B.run[r].reason, ZT_REASON_CKPT_ERROR);
    cr_assert(B.attempt[r].counted);
}
static struct zt_run_config from(int world, int source, int64_t step, bool weights_only) {
    struct zt_run_config c = saving(world);
    snprintf(c.source.run_id, sizeof c.source.run_id, "%s", B.run[source].run_id);
    c.source.step = step;
    c.source.weights_only = weights_only;
    memcpy(c.source.manifest, bench_ckpt(source, step)->manifest, 32);
    B.read_txn = zt_machine_durable(B.m);
    return c;
}
static void end(int r) {
    bench_cancel(r, 200 + r);
    bench_exit_all(r, -1, 9);
    bench_wait(1);
    cr_assert_eq(bench_state(r), ZT_RUN_CANCELLED);
}
Test(machine_ckpt, a_run_begins_from_another_ones) {
    workers(1);
    int a = running("a", saving(1));
    bench_save(a, 10);
    bench_save(a, 20);
    end(a);
    int b = running("b", from(1, a, 10, false));
    const struct zt_desired *d = &B.w[0].desired;
    cr_assert_eq(d->from, ZT_START_SOURCE);
    cr_assert_eq(d->start_step, 10);
    cr_assert_eq(d->manifest[0], 10);
    cr_assert_eq(bench_loaded(b, 0, 10), 0);
    cr_assert_eq(bench_set(a, 10, ZT_SET_DELETE, 1), ZT_EINVAL, "it goes on from it");
    cr_assert(strstr(B.reply.message, "goes on from it"), "%s", B.reply.message);
    cr_assert_eq(bench_steps(b, 0, 11, 15, 0.1), 0);
    again(b);
    cr_assert_eq(B.attempt[b].start_step, 10, "it has none of its own yet");
    B.stored[b][0] = 10;
    bench_save(b, 30);
    again(b);
    cr_assert_eq(B.attempt[b].start_step, 30);
    cr_assert_eq(B.w[0].desired.from, ZT_START_OWN);
    end(b);
    cr_assert_eq(bench_set(a, 10, ZT_SET_DELETE, 2), 0, "%s", B.reply.message);
    cr_assert_eq(bench_ckpt(a, 10)->state, ZT_CKPT_DELETING);
    cr_assert_eq(bench_set(a, 20, ZT_SET_DELETE, 3), ZT_EINVAL, "the last verified one");
    cr_assert_eq(bench_set(a, 10, ZT_SET_DELETED, 4), 0);
    cr_assert(!bench_ckpt(a, 10));
}
Test(machine_ckpt, weights_alone_begin_at_step_0) {
    workers(1);
    int a = running("a", saving(1));
    bench_save(a, 10);
    end(a);
    int b = running("b", from(1, a, 10, true));
    cr_assert_eq(B.w[0].desired.start_step, 10, "of the folder");
    cr_assert(B.w[0].desired.weights_only);
    cr_assert_eq(bench_loaded(b, 0, 0), 0);
    cr_assert(!bench_find_event("RESUMED"), "never called a resume");
    cr_assert_eq(bench_save(b, 5), 0, "%s", B.reply.message);
    again(b);
    cr_assert_eq(B.attempt[b].start_step, 5);
    cr_assert(!B.w[0].desired.weights_only, "its own is whole");
}
Test(machine_ckpt, a_damaged_source_ends_the_run) {
    workers(1);
    int a = running("a", saving(1));
    bench_save(a, 10);
    end(a);
    int b = running("b", from(1, a, 10, false));
    bench_fail(b, 0, ZT_REASON_CKPT_CORRUPT, -1);
    bench_exit_all(b, 1, 0);
    cr_assert_eq(bench_state(b), ZT_RUN_FAILED);
    cr_assert_eq(B.run[b].reason, ZT_REASON_CKPT_CORRUPT);
    cr_assert_eq(bench_ckpt(a, 10)->state, ZT_CKPT_CORRUPT);
    cr_assert_eq(bench_set(a, 10, ZT_SET_VERIFIED, 1), 0, "repaired: its run has ended, so it may count again");
    cr_assert_eq(bench_ckpt(a, 10)->state, ZT_CKPT_COMMITTED);
}
Test(machine_ckpt, a_source_that_has_just_gone_is_refused) {
    workers(1);
    int a = running("a", saving(1));
    bench_save(a, 10);
    bench_save(a, 20);
    struct zt_run_config c = from(1, a, 10, false);
    end(a);
    bench_wait(1);
    cr_assert_eq(bench_set(a, 10, ZT_SET_DELETE, 1), 0);
    cr_assert_eq(bench_submit("b", c), ZT_EBUSY, "looked up before the change");
    cr_assert(strstr(B.reply.message, "just changed"), "%s", B.reply.message);
}

/* ---- what is let go */
static bool removes(int64_t step) {
    for (int i = 0; i < B.reply.n_remove; i++)
        if (B.reply.remove[i] == step) return true;
    return false;
}
Test(machine_ckpt, retention) {
    workers(1);
    struct zt_run_config c = saving(1);
    c.keep_every = 40;
    int r = running("job", c);
    for (int s = 10; s <= 30; s += 10) bench_save(r, s);
    cr_assert_eq(B.reply.n_remove, 1);
    cr_assert(removes(10));
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_DELETING);
    bench_save(r, 40);
    cr_assert(removes(10) && removes(20), "10 again: nobody said that it is gone");
    cr_assert_eq(bench_removed(r, 10), 0);
    cr_assert_eq(bench_removed(r, 20), 0);
    cr_assert_eq(bench_removed(r, 20), 0, "a repeat");
    cr_assert_eq(bench_removed(r, 40), ZT_EINVAL, "that one is kept");
    cr_assert(!bench_ckpt(r, 10) && bench_find_event("CHECKPOINT_REMOVED"));
    cr_assert_eq(bench_set(r, 30, ZT_SET_PIN, 1), 0);
    for (int s = 50; s <= 90; s += 10) bench_save(r, s);
    for (int s = 10; s <= 90; s += 10) {
        const struct zt_row_ckpt *k = bench_ckpt(r, s);
        bool kept = s == 30 /* pinned */ || s % 40 == 0 || s == 90 || s == 80;
        cr_assert_eq(k && k->state == ZT_CKPT_COMMITTED, kept, "step %d", s);
    }
}
Test(machine_ckpt, what_the_generation_began_from_stays) {
    workers(1);
    int r = running("job", saving(1));
    bench_save(r, 10);
    again(r);
    B.stored[r][0] = 10;
    for (int s = 20; s <= 50; s += 10) bench_save(r, s);
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_COMMITTED);
    cr_assert_eq(bench_ckpt(r, 20)->state, ZT_CKPT_DELETING);
    again(r);
    B.stored[r][0] = 50;
    bench_save(r, 60);
    cr_assert_eq(bench_ckpt(r, 10)->state, ZT_CKPT_DELETING, "now nothing needs it");
}

/* ---- what people set */
Test(machine_ckpt, sets_are_carried_out_once) {
    workers(1);
    int r = running("job", saving(1));
    bench_save(r, 10);
    bench_save(r, 20);
    cr_assert_eq(bench_set(r, 10, ZT_SET_PIN, 1), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_UNPIN, 2), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_PIN, 1), 0, "a repeat of the first key");
    cr_assert(!bench_ckpt(r, 10)->pinned, "changes nothing");
    cr_assert_eq(bench_set(r, 10, ZT_SET_PIN, 3), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_DELETE, 4), ZT_EINVAL);
    cr_assert(strstr(B.reply.message, "pinned"), "%s", B.reply.message);
    cr_assert_eq(bench_set(r, 20, ZT_SET_DELETE, 5), ZT_EINVAL, "the newest of a live run");
    cr_assert_eq(bench_set(r, 30, ZT_SET_PIN, 6), ZT_ENOTFOUND);
    cr_assert_eq(bench_set(r, 10, ZT_SET_DELETED, 7), ZT_EINVAL, "it was not to be removed");
    cr_assert_eq(bench_set(r, 10, ZT_SET_UNPIN, 8), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_DELETE, 9), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_DELETED, 10), 0);
    cr_assert_eq(bench_set(r, 10, ZT_SET_DELETED, 11), 0, "gone is gone");
    cr_assert_eq(bench_set(r, 20, ZT_SET_CORRUPT, 12), 0);
    cr_assert_eq(bench_set(r, 20, ZT_SET_VERIFIED, 13), ZT_EINVAL, "its run may have gone on without it");
    bench_exit(r, 0, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED, "there was one, and none is left");
    cr_assert_eq(B.run[r].reason, ZT_REASON_CKPT_CORRUPT);
}

/* ---- budgets */
Test(machine_ckpt, a_new_checkpoint_refills_the_budget) {
    workers(1);
    int r = running("job", saving(1));
    for (int i = 1; i <= 6; i++) { /* twice what max_restarts allows */
        cr_assert_eq(bench_save(r, 10 * i), 0);
        cr_assert_eq(B.run[r].restarts_counted, 0);
        bench_exit(r, 0, 1, 0);
        cr_assert_eq(bench_state(r), ZT_RUN_RESTARTING, "%s", B.run[r].detail);
        cr_assert_eq(B.run[r].restarts_counted, 1);
        bench_wait(70);
        bench_running(r);
        B.stored[r][0] = 10 * i;
    }
}
Test(machine_ckpt, no_progress_ends_the_run) {
    workers(1);
    struct zt_run_config c = saving(1);
    c.no_progress_limit = 3;
    int r = running("job", c);
    bench_save(r, 10);
    for (int i = 0; i < 3; i++) again(r); /* the first of them has saved */
    cr_assert_eq(B.run[r].no_progress, 2);
    B.stored[r][0] = 10;
    bench_save(r, 20);
    cr_assert_eq(B.run[r].no_progress, 0);
    for (int i = 0; i < 3; i++) again(r);
    bench_exit(r, 0, -1, 9);
    cr_assert_eq(bench_state(r), ZT_RUN_FAILED);
    cr_assert_eq(B.run[r].reason, ZT_REASON_NO_PROGRESS);
    cr_assert(strstr(B.run[r].detail, "3 generations in a row"), "%s", B.run[r].detail);
}
Test(machine_ckpt, no_progress_needs_checkpoints) {
    workers(1);
    struct zt_run_config c = bench_config(1);
    c.no_progress_limit = 1;
    int r = running("job", c);
    for (int i = 0; i < 4; i++) again(r);
}

/* ---- drain */
Test(machine_ckpt, a_drain_waits_for_the_checkpoint) {
    workers(3);
    int r = running("job", saving(2));
    bench_wait(1);
    int w = bench_holder(r, 1);
    B.w[w].draining = true;
    bench_beat(w);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.w[w].desired.action, ZT_DESIRED_RUN);
    for (int k = 0; k < 2; k++) bench_steps(r, k, 1, 7, 0.1);
    bench_shard(r, 1, 7);
    cr_assert_eq(bench_fail(r, 1, ZT_REASON_DRAINED, -1), 0);
    cr_assert_eq(bench_exit(r, 1, 0, 0), 0);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING, "rank 0 still publishes");
    cr_assert_eq(B.w[bench_holder(r, 0)].desired.action, ZT_DESIRED_RUN);
    bench_shard(r, 0, 7);
    cr_assert_eq(bench_ckpt_commit(r, 7), 0);
    bench_fail(r, 0, ZT_REASON_DRAINED, -1);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_DRAINED);
    bench_exit(r, 0, 0, 0);
    bench_wait(3);
    cr_assert_eq(B.run[r].generation, 2);
    cr_assert_eq(B.attempt[r].start_step, 7);
    cr_assert(bench_holder(r, 0) != w && bench_holder(r, 1) != w);
}
Test(machine_ckpt, a_drain_that_takes_too_long_is_cut) {
    workers(3);
    int r = running("job", saving(2));
    bench_wait(1);
    int w = bench_holder(r, 1);
    B.w[w].draining = true;
    bench_wait(14);
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    bench_wait(3);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    cr_assert_eq(B.run[r].reason, ZT_REASON_DRAINED);
    cr_assert(strstr(B.run[r].detail, "term_grace"), "%s", B.run[r].detail);
}
Test(machine_ckpt, without_on_preempt_a_drain_is_at_once) {
    workers(3);
    struct zt_run_config c = saving(2);
    c.on_preempt = false;
    int r = running("job", c);
    B.w[bench_holder(r, 1)].draining = true;
    bench_beat(bench_holder(r, 1));
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
}

/* ---- a start of the coordinator */
Test(machine_ckpt, parts_that_were_acknowledged_are_known_after_a_start) {
    workers(2);
    int r = running("job", saving(2));
    cr_assert_eq(bench_save(r, 10), 0);
    for (int k = 0; k < 2; k++) bench_steps(r, k, 11, 20, 0.1);
    bench_shard(r, 0, 20);
    bench_reopen();
    for (int k = 0; k < 2; k++) {
        B.w[k].phase = ZT_TP_RUNNING;
        bench_register(k);
    }
    cr_assert_eq(bench_state(r), ZT_RUN_RUNNING);
    cr_assert_eq(B.run[r].generation, 1);
    cr_assert_eq(bench_get_shards(r, 20), 1);
    bench_shard(r, 1, 20);
    cr_assert_eq(B.n_shards, 2);
    cr_assert_eq(bench_ckpt_commit(r, 20), 0);
    cr_assert_eq(bench_ckpt_commit(r, 10), 0, "a repeat of before");
    again(r);
    cr_assert_eq(B.attempt[r].start_step, 20);
    bench_reopen();
    for (int k = 0; k < 2; k++) bench_register(k);
    cr_assert_eq(B.w[bench_holder(r, 0)].desired.start_step, 20, "the assignment is what it was");
    cr_assert_eq(B.w[bench_holder(r, 0)].desired.manifest[0], 20);
    B.stored[r][0] = B.stored[r][1] = 20;
    cr_assert_eq(bench_steps(r, 0, 21, 22, 0.1), 0, "%s", B.reply.message);
}

/* ---- elastic */
static struct zt_run_config elastic(int most, int least) {
    struct zt_run_config c = saving(0);
    c.elastic = true;
    c.replicate = 2;
    c.shard = 2;
    c.tensor = 1;
    memset(c.allowed, 0, sizeof c.allowed);
    for (int w = least; w <= most; w++) c.allowed[0] |= (uint64_t)(w != 3) << (w - 1); /* as a global batch of 4 does */
    return c;
}
Test(machine_ckpt, an_elastic_run_goes_on_with_fewer_and_with_more) {
    workers(4);
    int r = running("job", elastic(4, 2));
    cr_assert_eq(B.run[r].workers, 4);
    cr_assert(B.run[r].mesh.replicate == 2 && B.run[r].mesh.shard == 2);
    cr_assert_eq(bench_save(r, 10), 0);
    int lost = bench_holder(r, 3), also = bench_holder(r, 2);
    B.w[lost].silent = B.w[also].silent = true;
    bench_wait(8);
    cr_assert_eq(bench_state(r), ZT_RUN_STOPPING);
    for (int k = 0; k < 2; k++) bench_exit(r, k, -1, 9);
    bench_wait(3);
    cr_assert_eq(bench_state(r), ZT_RUN_STARTING, "%s", B.run[r].detail);
    cr_assert_eq(B.run[r].workers, 2);
    cr_assert(B.run[r].mesh.replicate == 1 && B.run[r].mesh.shard == 2, "replicas go first");
    cr_assert_eq(B.attempt[r].start_step, 10);
    cr_assert(bench_find_event("RESIZED"));
    bench_running(r);
    B.stored[r][0] = B.stored[r][1] = 10;
    cr_assert_eq(bench_save(r, 20), 0, "%s", B.reply.message);
    cr_assert_eq(bench_ckpt(r, 20)->world, 2);
    B.w[lost].silent = B.w[also].silent = false;
    bench_restart_worker(lost);
    bench_restart_worker(also);
    bench_wait(2);
    cr_assert_eq(B.run[r].workers, 2, "nothing is stopped for more workers");
    again(r);
    cr_assert_eq(B.run[r].workers, 4);
    cr_assert_eq(B.attempt[r].start_step, 20);
    bench_reopen();
    cr_assert_eq(zt_machine_runs(B.m), 1);
}
Test(machine_ckpt, an_elastic_run_waits_below_its_least) {
    workers(1);
    int r = bench_submit("job", elastic(4, 2));
    bench_wait(2);
    cr_assert_eq(bench_state(r), ZT_RUN_QUEUED);
    cr_assert(strstr(B.run[r].detail, "need 2 workers, 1 idle"), "%s", B.run[r].detail);
    bench_worker("8", "a");
    bench_worker("9", "a");
    bench_wait(2);
    cr_assert_eq(B.run[r].workers, 2, "three do not divide the batch");
}
