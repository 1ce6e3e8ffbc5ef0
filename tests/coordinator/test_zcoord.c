/* SPDX-License-Identifier: Apache-2.0 */
/* The real zcoord process, spoken to over its socket: requests are carried out once, what it acknowledged survives
 * kill -9, and bad starts are refused with a word about the next step. */
#include "tests/coordinator/zcoord_util.h"

static size_t runs_listed(struct zt_call *c)
{
    struct answer a;
    Zt__ListRuns l = ZT__LIST_RUNS__INIT;
    cr_assert_eq(call(c, ZT__ENVELOPE__BODY_LIST_RUNS, &l, &a), 0, "%s", a.err.msg);
    size_t n = a.env->run_list->n_runs;
    drop(&a);
    return n;
}

Test(zcoord, submit_list_cancel_are_idempotent) {
    struct daemon d;
    struct answer a, again;
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    cr_assert_eq(submit(c, "first", yaml, 1, &a), 0, "%s", a.err.msg);
    cr_expect_str_eq(a.env->submit_reply->state, "QUEUED");
    cr_expect_eq(strlen(a.env->submit_reply->run_id), 26);
    cr_expect(a.env->submit_reply->detail && a.env->submit_reply->detail[0], "a waiting run says what it waits for");
    cr_assert_eq(submit(c, "first", yaml, 1, &again), 0, "%s", again.err.msg);
    cr_expect_str_eq(again.env->submit_reply->run_id, a.env->submit_reply->run_id, "a repeat is the same run");
    cr_expect_eq(runs_listed(c), 1);
    drop(&again);
    cr_expect_eq(submit(c, "first", yaml, 2, &again), ZT_ECONFLICT);
    cr_expect(strstr(again.err.msg, a.env->submit_reply->run_id) != NULL, "%s", again.err.msg);
    cr_expect_eq(submit(c, "bad", "version: 1\nname: x\nmodle: {preset: gpt2-nano}\n", 3, &again), ZT_EINVAL);
    cr_expect(strstr(again.err.msg, "run.yaml:3") && strstr(again.err.msg, "model"), "%s", again.err.msg);
    cr_expect_eq(submit(c, "Bad Name", yaml, 3, &again), ZT_EINVAL);
    cr_expect_eq(submit_for(c, 257, "wide", yaml, 3, &again), ZT_EINVAL, "wider than a communicator");
    cr_expect(strstr(again.err.msg, "256 ranks") != NULL, "%s", again.err.msg);
    cr_expect_eq(submit_for(c, 0, "wide", "version: 1\nname: wide\nworkers: 300\nmodel: {preset: gpt2-nano}\ndataset: {path: /x}\n"
                            "training: {steps: 5, seq_len: 8, local_batch_size: 1}\n", 3, &again), ZT_EINVAL);
    cr_expect(strstr(again.err.msg, "run.yaml:3") && strstr(again.err.msg, "300 ranks are more than the 256"), "%s", again.err.msg);
    cr_expect_eq(runs_listed(c), 1, "a refused run leaves nothing");
    /* by prefix, twice with one key, then with another */
    char prefix[12];
    snprintf(prefix, sizeof prefix, "%.11s", a.env->submit_reply->run_id);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(cancel(c, i == 1 ? prefix : "first", i < 2 ? 9 : 10, &again), 0, "%s", again.err.msg);
        cr_expect_str_eq(again.env->cancel_reply->state, "CANCELLED");
        cr_expect_str_eq(again.env->cancel_reply->run_id, a.env->submit_reply->run_id);
        drop(&again);
    }
    cr_expect_eq(cancel(c, "frist", 11, &again), ZT_ENOTFOUND);
    cr_expect(strstr(again.err.msg, "first") != NULL, "%s", again.err.msg);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM runs"), 1);
    cr_expect_eq(number_of(db, "SELECT state = 22 AND reason = 40 FROM runs"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) >= 2 FROM events WHERE kind = 'AUDIT' AND message LIKE '%by test%'"), 1);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM run_specs"), 1);
    sqlite3_close(db);
    struct stat st;
    char token[128];
    snprintf(token, sizeof token, "%s/token", d.dir);
    cr_expect(stat(token, &st) == 0 && (st.st_mode & 0777) == 0600);
    snprintf(token, sizeof token, "%s/%s", d.dir, ZT_DB_NAME);
    cr_expect(stat(token, &st) == 0 && (st.st_mode & 0777) == 0600, "mode %o: others may read runs and logs", st.st_mode & 0777);
    remove_tree(d.dir);
}

static int submit_plan(struct zt_call *c, uint8_t key_byte, const char *plan, size_t bytes, bool force, struct answer *a)
{
    uint8_t key[16] = { key_byte };
    Zt__Submit s = ZT__SUBMIT__INIT;
    s.request_key.data = key;
    s.request_key.len = sizeof key;
    s.run_yaml.data = (uint8_t *)(uintptr_t)yaml;
    s.run_yaml.len = strlen(yaml);
    s.file = (char *)"run.yaml";
    s.has_workers = 1;
    s.workers = 2;
    s.has_plan = 1;
    s.plan.data = (uint8_t *)(uintptr_t)plan;
    s.plan.len = bytes;
    s.has_force = force;
    s.force = force;
    return call(c, ZT__ENVELOPE__BODY_SUBMIT, &s, a);
}

/* 64 KiB of plan are taken and given back to the byte; one more, or what is no JSON object, is refused by name. */
Test(zcoord, a_plan_is_bounded_and_kept_as_it_is) {
    enum { MOST = 64 * 1024 };
    static char plan[MOST + 2];
    struct daemon d;
    struct answer a;
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    memset(plan, ' ', sizeof plan);
    plan[0] = '{';
    plan[MOST] = '}';
    cr_expect_eq(submit_plan(c, 1, plan, MOST + 1, false, &a), ZT_EINVAL);
    cr_expect(strstr(a.err.msg, "plan: larger than 64 KiB") != NULL, "%s", a.err.msg);
    static const char *const bad[] = { "", "{", "[1]", "nothing", "{\"a\":\"\\u0000\"}", "{\"a\":\"\xff\"}", "{} {}" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(submit_plan(c, (uint8_t)(2 + i), bad[i], strlen(bad[i]), false, &a), ZT_EINVAL, "%s", bad[i]);
        cr_expect(strstr(a.err.msg, "plan: not a JSON object") != NULL, "%s: %s", bad[i], a.err.msg);
    }
    cr_expect_eq(runs_listed(c), 0, "a refused run leaves nothing");
    plan[MOST - 1] = '}';
    cr_assert_eq(submit_plan(c, 20, plan, MOST, true, &a), 0, "%s", a.err.msg);
    drop(&a);
    Zt__GetRun get = ZT__GET_RUN__INIT;
    get.run = (char *)"plain";
    cr_assert_eq(call(c, ZT__ENVELOPE__BODY_GET_RUN, &get, &a), 0, "%s", a.err.msg);
    const Zt__RunDetail *r = a.env->run_detail;
    cr_expect(r->has_plan && r->plan.len == MOST && memcmp(r->plan.data, plan, MOST) == 0);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'AUDIT' AND message LIKE '%forced: its plan fits no worker%'"), 1);
    sqlite3_close(db);
    remove_tree(d.dir);
}

Test(zcoord, acknowledged_runs_survive_kill_nine) {
    struct daemon d;
    struct answer a;
    char id[8][32];
    fresh(&d);
    for (uint8_t round = 0; round < 4; round++) {
        start(&d);
        struct zt_call *c = dial(&d);
        char name[16];
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "r%d", round * 2 + i);
            cr_assert_eq(submit(c, name, yaml, (uint8_t)(1 + round * 2 + i), &a), 0, "%s", a.err.msg);
            snprintf(id[round * 2 + i], 32, "%s", a.env->submit_reply->run_id);
            drop(&a);
        }
        /* keys survive too: the reply of the last round comes back after the restart */
        if (round > 0) {
            snprintf(name, sizeof name, "r%d", round * 2 - 1);
            cr_assert_eq(submit(c, name, yaml, (uint8_t)(round * 2), &a), 0, "%s", a.err.msg);
            cr_expect_str_eq(a.env->submit_reply->run_id, id[round * 2 - 1]);
            drop(&a);
        }
        cr_expect_eq(runs_listed(c), 2u * (size_t)(round + 1));
        Zt__GetStatus s = ZT__GET_STATUS__INIT;
        cr_assert_eq(call(c, ZT__ENVELOPE__BODY_GET_STATUS, &s, &a), 0, "%s", a.err.msg);
        cr_expect_eq(a.env->cluster_status->epoch, round + 1u);
        drop(&a);
        zt_call_close(c);
        cr_expect_eq(stop(&d, SIGKILL), 128 + SIGKILL);
    }
    remove_tree(d.dir);
}

Test(zcoord, roles_and_shutdown) {
    struct daemon d;
    struct answer a;
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    Zt__Register r = ZT__REGISTER__INIT; /* a client may not speak as a worker */
    uint8_t incarnation[16] = { 7 };
    r.worker_id = (char *)"box/cpu-0";
    r.incarnation.data = incarnation;
    r.incarnation.len = 16;
    r.host = (char *)"box";
    r.device = (char *)"cpu";
    r.capacity_bytes = 1 << 30;
    r.threads = 1;
    cr_expect_eq(call(c, ZT__ENVELOPE__BODY_REGISTER_WORKER, &r, &a), ZT_EAUTH);
    Zt__TrainerState inner = ZT__TRAINER_STATE__INIT; /* meant for the trainer's socket pair only */
    cr_expect_eq(call(c, ZT__ENVELOPE__BODY_TRAINER_STATE, &inner, &a), ZT_EUNSUPPORTED);
    Zt__Shutdown s = ZT__SHUTDOWN__INIT;
    cr_expect_eq(call(c, ZT__ENVELOPE__BODY_SHUTDOWN, &s, &a), 0, "%s", a.err.msg);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(finish(&d), 0, "%s", d.out);
    remove_tree(d.dir);
}

/* ------------------------------------------------------------------------------ two workers without trainers */
struct fake { struct zt_client *c; struct fake_run *run; int number, rank; uint32_t generation; bool started, aborted; int acks; char run_id[32]; };
struct fake_run { uv_loop_t loop; struct fake w[2]; int phase; bool closed[2]; uint8_t comm[2][8]; int comm_ids, refusals; };

static void on_desired(struct fake *f, const Zt__Desired *d)
{
    if (d && d->action == ZT__DESIRED__ACTION__START && !f->started) {
        f->started = true;
        f->rank = (int)d->assignment->rank;
        f->generation = d->generation;
        snprintf(f->run_id, sizeof f->run_id, "%s", d->run_id);
        cr_expect_eq(d->assignment->world, 2);
        cr_expect_eq(d->assignment->replicate, 2);
        cr_expect_eq(d->assignment->run_yaml.len, strlen(yaml));
        cr_expect(memcmp(d->assignment->run_yaml.data, yaml, strlen(yaml)) == 0, "the file arrives byte for byte");
        cr_expect_str_eq(d->assignment->run_name, "fake");
    }
    if (d && d->action == ZT__DESIRED__ACTION__ABORT)
        f->aborted = true;
}

static void on_push(void *arg, const Zt__Envelope *env)
{
    if (env->body_case == ZT__ENVELOPE__BODY_BEAT_REPLY)
        on_desired(arg, env->beat_reply->desired);
}

static void on_reply(void *arg, const Zt__Envelope *env, const struct zt_error *err)
{
    struct fake *f = arg;
    f->acks++;
    if (err)
        f->run->refusals++;
    if (env && env->body_case == ZT__ENVELOPE__BODY_BEAT_REPLY)
        on_desired(f, env->beat_reply->desired);
    if (env && env->body_case == ZT__ENVELOPE__BODY_COMM_ID && env->comm_id->id.len == 8) {
        memcpy(f->run->comm[f->rank], env->comm_id->id.data, 8);
        f->run->comm_ids++;
    }
}

static void say(struct fake *f, Zt__Envelope__BodyCase which, void *body)
{
    struct zt_error err;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    env.body_case = which;
    env.beat = body;
    cr_assert_eq(zt_client_request(f->c, &env, false, 10, on_reply, f, &err), 0, "%s", err.msg);
}

/* Runs the loop until worker 0 and 1 have had `acks` answers in all and `started` of them START. */
static void until(struct fake_run *r, int acks, int started)
{
    uv_timer_t guard;
    uv_timer_init(&r->loop, &guard);
    uv_timer_start(&guard, bench_tick, 5, 5);
    bool ok = false;
    for (int i = 0; i < 4000 && !ok; i++) {
        uv_run(&r->loop, UV_RUN_ONCE);
        ok = r->w[0].acks + r->w[1].acks >= acks && r->w[0].started + r->w[1].started >= started;
    }
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&r->loop, UV_RUN_NOWAIT);
    cr_assert(ok, "%d + %d answers of %d, %d + %d started of %d", r->w[0].acks, r->w[1].acks, acks, r->w[0].started, r->w[1].started, started);
}

static void both(struct fake_run *r, void (*fn)(struct fake *f), int *acks)
{
    for (int i = 0; i < 2; i++)
        fn(&r->w[i]);
    *acks += 2;
    until(r, *acks, 0);
    cr_assert_eq(r->refusals, 0);
}

static void say_register(struct fake *f)
{
    Zt__Register m = ZT__REGISTER__INIT;
    uint8_t incarnation[16] = { (uint8_t)(1 + f->number) };
    char id[16];
    snprintf(id, sizeof id, "box/cpu-%d", f->number);
    m.worker_id = id;
    m.incarnation.data = incarnation;
    m.incarnation.len = 16;
    m.host = (char *)"box";
    m.device = (char *)"cpu";
    m.capacity_bytes = 1 << 30;
    m.threads = 1;
    say(f, ZT__ENVELOPE__BODY_REGISTER_WORKER, &m);
}

static void say_ready(struct fake *f)
{
    Zt__RankReady m = ZT__RANK_READY__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    say(f, ZT__ENVELOPE__BODY_RANK_READY, &m);
}

static void say_in_comm(struct fake *f)
{
    Zt__RankInComm m = ZT__RANK_IN_COMM__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    say(f, ZT__ENVELOPE__BODY_RANK_IN_COMM, &m);
}

static void say_comm(struct fake *f)
{
    Zt__PutCommId put = ZT__PUT_COMM_ID__INIT;
    Zt__GetCommId get = ZT__GET_COMM_ID__INIT;
    put.run_id = get.run_id = f->run_id;
    put.generation = get.generation = f->generation;
    put.group = get.group = (char *)"world";
    put.id.data = (uint8_t *)(uintptr_t)"secret-1";
    put.id.len = 8;
    if (f->rank == 0)
        say(f, ZT__ENVELOPE__BODY_PUT_COMM_ID, &put);
    else
        say(f, ZT__ENVELOPE__BODY_GET_COMM_ID, &get);
}

/* Numbers that no trainer can mean: neither obeyed nor an overflow. */
static void say_wild_beat(struct fake *f)
{
    Zt__Beat m = ZT__BEAT__INIT;
    uint8_t incarnation[16] = { (uint8_t)(1 + f->number) };
    char id[16];
    snprintf(id, sizeof id, "box/cpu-%d", f->number);
    m.worker_id = id;
    m.incarnation.data = incarnation;
    m.incarnation.len = 16;
    m.seq = 1;
    m.run_id = f->run_id;
    m.has_generation = m.has_rank = m.has_phase = m.has_step = m.has_progress_age_ms = 1;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    m.phase = ZT__TRAINER_PHASE__TP_RUNNING;
    m.step = INT64_MAX;
    m.progress_age_ms = INT64_MAX;
    say(f, ZT__ENVELOPE__BODY_BEAT, &m);
}

static void say_steps(struct fake *f)
{
    static struct a_report a[20];
    Zt__StepReport *list[20];
    uint8_t incarnation[16] = { (uint8_t)(1 + f->number) };
    Zt__ReportSteps m = ZT__REPORT_STEPS__INIT;
    for (int i = 0; i < 20; i++)
        list[i] = report(&a[i], (uint32_t)f->rank, i + 1, f->generation);
    m.run_id = f->run_id;
    m.seq = 1;
    m.incarnation.data = incarnation;
    m.incarnation.len = 16;
    m.steps = list;
    m.n_steps = 20;
    say(f, ZT__ENVELOPE__BODY_REPORT_STEPS, &m);
}

static void say_log(struct fake *f)
{
    Zt__LogAppend m = ZT__LOG_APPEND__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    m.data.data = (uint8_t *)(uintptr_t)"a line\n";
    m.data.len = 7;
    say(f, ZT__ENVELOPE__BODY_LOG_APPEND, &m);
}

static void say_event(struct fake *f)
{
    Zt__ReportEvent m = ZT__REPORT_EVENT__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    m.kind = (char *)"DATA_SKIPPED";
    m.message = (char *)"something";
    m.has_seq = 1;
    say(f, ZT__ENVELOPE__BODY_REPORT_EVENT, &m);
}

static void say_done(struct fake *f)
{
    Zt__RankDone m = ZT__RANK_DONE__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    m.steps = 20;
    m.parameter_hash = (char *)"0123456789abcdef0123456789abcdef";
    say(f, ZT__ENVELOPE__BODY_RANK_DONE, &m);
}

static void say_exited(struct fake *f)
{
    Zt__ChildExited m = ZT__CHILD_EXITED__INIT;
    m.run_id = f->run_id;
    m.generation = f->generation;
    m.rank = (uint32_t)f->rank;
    m.has_exit_code = 1;
    say(f, ZT__ENVELOPE__BODY_CHILD_EXITED, &m);
}

static void mark_closed(void *arg) { *(bool *)arg = true; }

static void connect_fakes(struct fake_run *r, struct daemon *d)
{
    struct zt_error err;
    char path[128];
    memset(r, 0, sizeof *r);
    uv_loop_init(&r->loop);
    for (int i = 0; i < 2; i++) {
        struct zt_client_config c = { .port = d->port, .role = ZT__ROLE__ROLE_WORKER, .principal = "fake", .arg = &r->w[i], .on_push = on_push };
        snprintf(c.host, sizeof c.host, "127.0.0.1");
        snprintf(path, sizeof path, "%s/token", d->dir);
        cr_assert_eq(zt_token_load(&zt_sys_posix, path, &c.token, &err), 0);
        r->w[i].run = r;
        r->w[i].number = i;
        cr_assert_eq(zt_client_open(&r->loop, &c, &r->w[i].c, &err), 0, "%s", err.msg);
    }
}

static void close_fakes(struct fake_run *r)
{
    for (int i = 0; i < 2; i++)
        zt_client_close(r->w[i].c, mark_closed, &r->closed[i]);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    cr_expect(r->closed[0] && r->closed[1]);
    cr_expect_eq(uv_loop_close(&r->loop), 0);
}

Test(zcoord, a_run_of_two_workers_from_submit_to_succeeded) {
    struct daemon d;
    struct answer a;
    struct fake_run r;
    int acks = 0;
    signal(SIGPIPE, SIG_IGN);
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    connect_fakes(&r, &d);
    both(&r, say_register, &acks);
    cr_assert_eq(submit(c, "fake", yaml, 1, &a), 0, "%s", a.err.msg);
    drop(&a);
    until(&r, acks, 2); /* START is pushed */
    cr_expect_eq(r.w[0].rank + r.w[1].rank, 1);
    both(&r, say_ready, &acks);
    both(&r, say_comm, &acks); /* the getter waits for the putter, whoever comes first */
    cr_expect_eq(r.comm_ids, 2);
    cr_expect(memcmp(r.comm[0], "secret-1", 8) == 0 && memcmp(r.comm[1], "secret-1", 8) == 0);
    both(&r, say_in_comm, &acks);
    both(&r, say_wild_beat, &acks);
    both(&r, say_steps, &acks);
    both(&r, say_steps, &acks); /* as after a lost acknowledgement */
    both(&r, say_log, &acks);
    both(&r, say_log, &acks);
    both(&r, say_event, &acks);
    both(&r, say_event, &acks);
    both(&r, say_done, &acks);
    both(&r, say_exited, &acks);
    Zt__GetRun get = ZT__GET_RUN__INIT;
    get.run = (char *)"fake";
    for (int i = 0; i < 100; i++) {
        cr_assert_eq(call(c, ZT__ENVELOPE__BODY_GET_RUN, &get, &a), 0, "%s", a.err.msg);
        if (strcmp(a.env->run_detail->summary->state, "SUCCEEDED") == 0)
            break;
        drop(&a);
        until(&r, acks, 0);
    }
    cr_expect_str_eq(a.env->run_detail->summary->state, "SUCCEEDED");
    cr_expect_str_eq(a.env->run_detail->parameter_hash, "0123456789abcdef0123456789abcdef");
    cr_expect_eq(a.env->run_detail->summary->step, 20);
    drop(&a);
    say_in_comm(&r.w[0]); /* of a run that is over: refused */
    until(&r, ++acks, 0);
    cr_expect_eq(r.refusals, 1);
    close_fakes(&r);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    struct bench b;
    snprintf(b.dir, sizeof b.dir, "%s", d.dir);
    sqlite3 *db = open_reader(&b);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rank"), 40);
    cr_expect_eq(number_of(db, "SELECT count(*) FROM step_rollup"), 20);
    cr_expect_eq(number_of(db, "SELECT (SELECT sum(tokens) FROM step_rank) = (SELECT sum(tokens) FROM step_rollup)"), 1);
    cr_expect_eq(number_of(db, "SELECT sum(length(data)) FROM logs"), 14, "a repeated piece is stored once");
    cr_expect_eq(number_of(db, "SELECT count(*) FROM events WHERE kind = 'DATA_SKIPPED'"), 2, "a repeated event is stored once");
    sqlite3_close(db);
    remove_tree(d.dir);
}

static void say_draining(struct fake *f)
{
    Zt__Beat m = ZT__BEAT__INIT;
    uint8_t incarnation[16] = { (uint8_t)(1 + f->number) };
    char id[16];
    snprintf(id, sizeof id, "box/cpu-%d", f->number);
    m.worker_id = id;
    m.incarnation.data = incarnation;
    m.incarnation.len = 16;
    m.seq = 1;
    m.has_draining = 1;
    m.draining = f->number == 0;
    say(f, ZT__ENVELOPE__BODY_BEAT, &m);
}

/* Both hang up; only the one that was draining is gone, long before its beats could be missed. */
Test(zcoord, a_drained_worker_that_hangs_up_is_gone_at_once) {
    struct daemon d;
    struct answer a;
    struct fake_run r;
    int acks = 0;
    signal(SIGPIPE, SIG_IGN);
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    connect_fakes(&r, &d);
    both(&r, say_register, &acks);
    both(&r, say_draining, &acks);
    close_fakes(&r);
    Zt__ListWorkers list = ZT__LIST_WORKERS__INIT;
    double age = 0;
    for (int i = 0; i < 200; i++) {
        struct timespec pause = { 0, 10000000 };
        cr_assert_eq(call(c, ZT__ENVELOPE__BODY_LIST_WORKERS, &list, &a), 0, "%s", a.err.msg);
        const Zt__WorkerList *l = a.env->worker_list;
        age = l->n_workers ? l->workers[0]->beat_age_seconds : 0;
        if (l->n_workers == 2 && strcmp(l->workers[0]->state, "GONE") == 0)
            break;
        drop(&a);
        a.env = NULL;
        nanosleep(&pause, NULL);
    }
    cr_assert_not_null(a.env, "still not gone %.1f s after its last beat", age);
    cr_expect_str_eq(a.env->worker_list->workers[1]->state, "IDLE");
    drop(&a);
    Zt__GetStatus get = ZT__GET_STATUS__INIT;
    cr_assert_eq(call(c, ZT__ENVELOPE__BODY_GET_STATUS, &get, &a), 0, "%s", a.err.msg);
    cr_expect_eq(a.env->cluster_status->workers_idle, 1);
    cr_expect_eq(a.env->cluster_status->workers_lost, 0);
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    remove_tree(d.dir);
}

/* A file size limit stands for a disk that refuses writes. */
Test(zcoord, a_disk_that_refuses_keeps_reads_alive) {
    struct daemon d;
    struct answer a;
    struct rlimit small = { 0, RLIM_INFINITY }, old;
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    cr_assert_eq(submit(c, "before", yaml, 1, &a), 0, "%s", a.err.msg);
    drop(&a);
    cr_assert_eq(prlimit(d.pid, RLIMIT_FSIZE, &small, &old), 0);
    cr_expect_eq(submit(c, "during", yaml, 2, &a), ZT_EBUSY, "nothing may be confirmed");
    cr_expect(strstr(a.err.msg, "write") != NULL, "%s", a.err.msg);
    cr_expect_eq(submit(c, "refused", yaml, 3, &a), ZT_EBUSY);
    cr_expect_eq(submit(c, "during", yaml, 2, &a), ZT_EBUSY, "a repeat is not left hanging either");
    cr_expect_eq(cancel(c, "before", 4, &a), ZT_EBUSY, "nor is a cancel");
    cr_expect(strstr(a.err.msg, "zctl list") != NULL, "%s", a.err.msg);
    cr_expect_eq(runs_listed(c), 1, "reads go on");
    cr_assert_eq(prlimit(d.pid, RLIMIT_FSIZE, &old, NULL), 0);
    int code = ZT_EBUSY;
    for (int i = 0; i < 200 && code == ZT_EBUSY; i++) { /* the writer tries again by itself */
        struct timespec pause = { 0, 50000000 };
        nanosleep(&pause, NULL);
        code = submit(c, "during", yaml, 2, &a);
        if (!code)
            drop(&a);
    }
    cr_expect_eq(code, 0, "%s", a.err.msg);
    cr_expect_eq(runs_listed(c), 2, "the repeated request is the same run");
    cr_assert_eq(cancel(c, "before", 4, &a), 0, "%s", a.err.msg);
    cr_expect_str_eq(a.env->cancel_reply->state, "CANCELLED");
    drop(&a);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    remove_tree(d.dir);
}

static int run_to_end(struct daemon *d, const char *a, const char *b2, const char *c, const char *e, const char *f)
{
    const char *argv[] = { ZCOORD, a, b2, c, e, f, NULL };
    launch(d, argv);
    return finish(d);
}

Test(zcoord, bad_starts_are_refused) {
    struct daemon d, other;
    char listen[32], pid[32], path[128];
    fresh(&d);
    start(&d);
    fresh(&other);
    snprintf(listen, sizeof listen, "127.0.0.1:%d", d.port);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", listen, "--state", other.dir), 5);
    cr_expect(strstr(other.out, "in use") && strstr(other.out, "--listen"), "%s", other.out);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", "127.0.0.1:0", "--state", d.dir), 5);
    snprintf(pid, sizeof pid, "pid %d", (int)d.pid);
    cr_expect(strstr(other.out, pid) && strstr(other.out, d.dir), "%s", other.out);
    cr_expect_eq(run_to_end(&other, "migrate", "--state", d.dir, NULL, NULL), 5);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", "0.0.0.0:0", "--state", other.dir), 2);
    cr_expect(strstr(other.out, "loopback") && strstr(other.out, "until TLS exists"), "%s", other.out);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", "127.0.0.1", "--state", other.dir), 2);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", "127.0.0.1:99999", "--state", other.dir), 2);
    cr_expect_eq(run_to_end(&other, "sreve", NULL, NULL, NULL, NULL), 2);
    cr_expect_eq(run_to_end(&other, "help", NULL, NULL, NULL, NULL), 0);
    static const struct { mode_t mode; const char *may; } wide[] = { { 0777, "write" }, { 0720, "write" }, { 0750, "look into" },
                                                                     { 0701, "look into" } };
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
        chmod(other.dir, wide[i].mode);
        cr_expect_eq(run_to_end(&other, "serve", "--listen", "127.0.0.1:0", "--state", other.dir), 4, "%o", wide[i].mode);
        cr_expect(strstr(other.out, "chmod 700") && strstr(other.out, wide[i].may), "%s", other.out);
        cr_expect_eq(run_to_end(&other, "migrate", "--state", other.dir, NULL, NULL), 4, "%o", wide[i].mode);
    }
    chmod(other.dir, 0700);
    snprintf(path, sizeof path, "%s/token", other.dir);
    chmod(path, 0644);
    cr_expect_eq(run_to_end(&other, "serve", "--listen", "127.0.0.1:0", "--state", other.dir), 4);
    cr_expect(strstr(other.out, path) != NULL, "%s", other.out);
    cr_expect_eq(stop(&d, SIGINT), 0, "%s", d.out);
    cr_expect_eq(run_to_end(&other, "migrate", "--state", d.dir, NULL, NULL), 0);
    remove_tree(d.dir);
    remove_tree(other.dir);
}

Test(zcoord, garbage_on_the_port_harms_nobody) {
    struct daemon d;
    struct answer a;
    fresh(&d);
    start(&d);
    struct zt_call *c = dial(&d);
    cr_assert_eq(submit(c, "kept", yaml, 1, &a), 0, "%s", a.err.msg);
    drop(&a);
    unsigned seed = 12345;
    for (int i = 0; i < 100; i++) {
        struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)d.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        uint8_t junk[300];
        cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)(rand_r(&seed) >> 7);
        if (i % 3 == 0)
            memset(junk, 0, 4);
        ssize_t sent = send(fd, junk, sizeof junk, MSG_NOSIGNAL);
        cr_expect(sent != 0);
        close(fd);
    }
    cr_expect_eq(runs_listed(c), 1);
    zt_call_close(c);
    cr_expect_eq(stop(&d, SIGTERM), 0, "%s", d.out);
    remove_tree(d.dir);
}
