/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer asks about checkpoints, through a real zworker: passed on under the right name, again after a
 * lost connection and after a refusal that may pass, and ended by one that may not; a part is told behind
 * the rows of its steps; a drain saves first. */
#include "tests/worker/fake.h"

#define START ZT__DESIRED__ACTION__START

static pid_t begin(struct fake *f)
{
    f->checkpoint_folder = "/nowhere/01RUN";
    pid_t w = fake_worker(f, "a", NULL);
    UNTIL(f, f->peer != NULL && f->beats > 0);
    fake_want(f, START, 7);
    return w;
}

Test(checkpoint, every_question_is_passed_on)
{
    struct fake f;
    fake_init(&f);
    fake_script(&f, "state 4\nask loaded 2\nsteps 1 5\nask shard 5\nask shards 5\nask commit 5\nask removed 4\n"
                    "ask failed 6\ndone 5\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_code, 0, "the puppet liked an answer not: %d %s", f.exit_code, f.fail_message);
    cr_assert(f.loaded == 1 && f.shard_dones == 1 && f.shards_asked == 1 && f.commits == 1 && f.removed == 1 &&
              f.ckpt_failed == 1);
    cr_assert_eq(f.shard_at_rows, 5);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(checkpoint, a_part_is_told_behind_the_rows_of_its_steps)
{
    struct fake f;
    fake_init(&f);
    f.refuse_steps_busy = 1000000;
    fake_script(&f, "state 4\nsteps 1 5\nask failed 3\nask shard 5\ndone 5\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.ckpt_failed == 1); /* not held back, and the part comes right behind it */
    int left = f.refuse_steps_busy;
    UNTIL(&f, f.refuse_steps_busy < left - 2);
    cr_assert_eq(f.shard_dones, 0);
    f.refuse_steps_busy = 0;
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_code, 0);
    cr_assert_eq(f.shard_dones, 1);
    cr_assert_eq(f.shard_at_rows, 5);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* Rows that nobody wants do not hold back the word that ends the trainer's wait. */
Test(checkpoint, stale_ends_the_wait)
{
    struct fake f;
    fake_init(&f);
    f.stale_steps = true;
    f.refuse_ckpt = 1000;
    f.refuse_ckpt_code = ZT__CODE__STALE_GENERATION;
    fake_script(&f, "state 4\nsteps 1 5\nask shard 5 24\nask shards 5 24\nask commit 5 24\ndone 5\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_code, 0);
    cr_assert_eq(f.ckpt_refused, 3);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(checkpoint, refusals_that_may_pass_are_tried_again)
{
    static const Zt__Code codes[] = {ZT__CODE__BUSY, ZT__CODE__IO, ZT__CODE__NO_MEMORY, ZT__CODE__TIMEOUT,
                                     ZT__CODE__CONFLICT};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        struct fake f;
        fake_init(&f);
        f.refuse_ckpt = 2;
        f.refuse_ckpt_code = codes[i];
        fake_script(&f, "state 4\nsteps 1 5\nask commit 5\ndone 5\n");
        pid_t w = begin(&f);
        UNTIL(&f, f.exits == 1);
        cr_assert_eq(f.exit_code, 0, "code %d", (int)codes[i]);
        cr_assert(f.ckpt_refused == 2 && f.commits == 1);
        fake_quit_worker(&f, w);
        fake_end(&f);
    }
}

Test(checkpoint, a_final_refusal_is_the_trainers)
{
    struct fake f;
    fake_init(&f);
    f.refuse_ckpt = 2;
    f.refuse_ckpt_code = ZT__CODE__CANCELLED;
    fake_script(&f, "state 4\nask shards 5 10\nask commit 5 10\ndone 5\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_code, 0);
    cr_assert_eq(f.ckpt_refused, 2);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

Test(checkpoint, a_coordinator_that_comes_back_is_asked_again)
{
    struct fake f;
    fake_init(&f);
    f.hold_ckpt = true;
    fake_script(&f, "state 4\nsteps 1 5\nask shards 5\nask commit 5\ndone 5\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.shards_asked == 1 && f.step_rows == 5);
    fake_stop(&f);
    f.action = ZT__DESIRED__ACTION__RUN;
    fake_listen(&f);
    UNTIL(&f, f.shards_asked == 2); /* unanswered by the old one: asked again */
    fake_stop(&f);
    f.hold_ckpt = false;
    fake_listen(&f);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_code, 0);
    cr_assert_eq(f.shards_asked, 3);
    cr_assert_eq(f.commits, 1);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* A trainer that was killed while it asked: its question is no reason to stay. */
Test(checkpoint, abort_while_asking)
{
    struct fake f;
    fake_init(&f);
    f.refuse_ckpt = 1000000;
    f.refuse_ckpt_code = ZT__CODE__BUSY;
    fake_script(&f, "state 4\nask commit 5\nhang\n");
    pid_t w = begin(&f);
    UNTIL(&f, f.ckpt_refused > 1);
    fake_want(&f, ZT__DESIRED__ACTION__ABORT, 7);
    UNTIL(&f, f.exits == 1);
    cr_assert_eq(f.exit_signal, SIGKILL);
    f.action = ZT__DESIRED__ACTION__IDLE;
    int refused = f.ckpt_refused, beats = f.beats;
    UNTIL(&f, f.beats >= beats + 20);
    cr_assert_leq(f.ckpt_refused, refused + 1);
    f.refuse_ckpt = 0;
    fake_script(&f, "state 4\ndone 0\n");
    fake_want(&f, START, 8);
    UNTIL(&f, f.done == 1 && f.exits > 1 && f.exit_generation == 8);
    fake_quit_worker(&f, w);
    fake_end(&f);
}

/* ---------------------------------------------------------------------------------------- drain */

Test(drain, a_run_with_checkpoints_saves_first)
{
    struct fake f;
    fake_init(&f);
    f.save_on_drain = true;
    f.term_grace = 60;
    fake_script(&f, "state 4\nrunning\nsteps 1 5\nuntil_stop\nsteps 6 6\nask shard 6\nask commit 6\n"
                    "fail %d stopped after step 6 as asked\nexit 75\n", (int)ZT_REASON_DRAINED);
    pid_t w = begin(&f);
    UNTIL(&f, f.step_rows == 5);
    kill(w, SIGTERM);
    UNTIL(&f, f.exits == 1);
    f.action = ZT__DESIRED__ACTION__IDLE;
    cr_assert_eq(fake_wait(&f, w), 0);
    cr_assert_eq(f.exit_code, 75, "it was killed before it had saved");
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_DRAINED);
    cr_assert_eq(f.failures, 1);
    cr_assert_eq(f.step_rows, 6);
    cr_assert_eq(f.commits, 1);
    cr_assert_geq(f.draining_beats, 1);
    fake_end(&f);
}

Test(drain, within_the_grace)
{
    struct fake f;
    fake_init(&f);
    f.save_on_drain = true;
    f.term_grace = 0.5;
    fake_script(&f, "state 4\nrunning\nsteps 1 5\nuntil_stop\ntouch %s/asked\nhang\n", f.dir);
    pid_t w = begin(&f);
    UNTIL(&f, f.step_rows == 5);
    kill(w, SIGTERM);
    UNTIL(&f, f.exits == 1);
    f.action = ZT__DESIRED__ACTION__IDLE;
    cr_assert_eq(fake_wait(&f, w), 0);
    cr_assert(file_exists(in_dir(&f, "asked")));
    cr_assert_eq(f.exit_signal, SIGKILL);
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_DRAINED);
    cr_assert_not_null(strstr(f.fail_message, "no checkpoint within timeouts.term_grace"), "%s", f.fail_message);
    fake_end(&f);
}

/* Nothing to save yet, or it is not wanted: as a run without checkpoints. */
static void killed_at_once(bool save, const char *running)
{
    struct fake f;
    fake_init(&f);
    f.save_on_drain = save;
    f.term_grace = 600;
    fake_script(&f, "state 4\n%ssteps 1 5\nuntil_stop\nhang\n", running);
    pid_t w = begin(&f);
    UNTIL(&f, f.step_rows == 5);
    kill(w, SIGTERM);
    UNTIL(&f, f.exits == 1);
    f.action = ZT__DESIRED__ACTION__IDLE;
    cr_assert_eq(fake_wait(&f, w), 0);
    cr_assert_eq(f.exit_signal, SIGKILL);
    cr_assert_eq(f.reason, (uint32_t)ZT_REASON_DRAINED);
    cr_assert_str_eq(f.fail_message, "this worker was asked to stop (drained)");
    fake_end(&f);
}
Test(drain, when_saving_is_not_wanted) { killed_at_once(false, "running\n"); }
Test(drain, before_the_first_step) { killed_at_once(true, ""); }
