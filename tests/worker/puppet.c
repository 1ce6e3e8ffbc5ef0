/* SPDX-License-Identifier: Apache-2.0 */
/* tests/worker/puppet.c: plays the trainer. Its script is the run.yaml of the assignment, one command a
 * line:
 *   pid FILE       append this process's id to FILE
 *   state N        TrainerState with phase N
 *   put / get      exchange the communicator id, wait for the answer
 *   steps A B      step reports A to B, one frame each
 *   dtypes NAME    the number formats, recipe NAME
 *   traces A B N   the collectives of steps A to B, N in each, one frame a step
 *   log N          N numbered lines to stdout; err TEXT a line to stderr; part TEXT without a newline
 *   event TEXT     ReportEvent; fail R TEXT TrainerFailure with reason R
 *   done N         TrainerDone; exit N, signal N, hang (SIGTERM is ignored), garbage
 *   wait FILE      until FILE exists; touch FILE
 *   running        the progress page says that steps are under way
 *   ask KIND N C   a question about the checkpoint of step N (shard, shards, commit, removed, failed, loaded);
 *                  waits for the answer, whose code must be C (left out: OK)
 *   until_stop     until the supervisor asks this trainer to stop
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "engine/report.h"
#include "proto/frame.h"

static int fd = 3;
static struct zt_decoder decoder;
static Zt__Envelope *got;
static void *got_arena;
static int frames;

static int on_frame(void *arg, const Zt__Envelope *env, struct zt_error *err)
{
    (void)arg;
    frames++;
    zt_envelope_free(got, got_arena);
    return zt_envelope_copy(env, &got, &got_arena, err);
}

static void next_frame(void)
{
    char c;
    struct zt_error err;
    int before = frames;
    while (frames == before) {
        if (read(fd, &c, 1) != 1 || zt_decoder_feed(&decoder, &c, 1, on_frame, NULL, &err)) {
            exit(99);
        }
    }
}

static void put_frame(Zt__Envelope *env)
{
    uint8_t *p;
    size_t n, at = 0;
    struct zt_error err;
    if (zt_frame_pack(env, &p, &n, &err)) {
        exit(98);
    }
    while (at < n) {
        ssize_t k = write(fd, p + at, n - at);
        if (k <= 0) {
            exit(97);
        }
        at += (size_t)k;
    }
    free(p);
}

static void nap(void)
{
    const struct timespec t = {.tv_nsec = 5000000};
    nanosleep(&t, NULL);
}

static void send_state(int phase)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerState st = ZT__TRAINER_STATE__INIT;
    st.phase = (Zt__TrainerPhase)phase;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_STATE;
    env.trainer_state = &st;
    put_frame(&env);
}

static void comm_id(int put)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__PutCommId p = ZT__PUT_COMM_ID__INIT;
    Zt__GetCommId g = ZT__GET_COMM_ID__INIT;
    uint8_t id[128];
    memset(id, 0x42, sizeof(id));
    p.run_id = g.run_id = (char *)(uintptr_t)"";
    p.group = g.group = (char *)(uintptr_t)"world";
    p.id = (ProtobufCBinaryData){sizeof(id), id};
    env.request_id = 5;
    env.body_case = put ? ZT__ENVELOPE__BODY_PUT_COMM_ID : ZT__ENVELOPE__BODY_GET_COMM_ID;
    if (put) {
        env.put_comm_id = &p;
    } else {
        env.get_comm_id = &g;
    }
    put_frame(&env);
    next_frame();
    if (got->request_id != 5 || got->code != ZT__CODE__OK || got->comm_id->id.len != 128 ||
        got->comm_id->id.data[7] != 0x42) {
        exit(96);
    }
}

static void send_steps(long from, long to)
{
    uint8_t none[1] = {0};
    for (long i = from; i <= to; i++) {
        Zt__Envelope env = ZT__ENVELOPE__INIT;
        Zt__ReportSteps r = ZT__REPORT_STEPS__INIT;
        Zt__StepReport s = ZT__STEP_REPORT__INIT, *list[1] = {&s};
        Zt__TagBytes at = ZT__TAG_BYTES__INIT;
        at.has_parameters = 1;
        at.parameters = i;
        s.step = i;
        s.has_loss = 1;
        s.loss = 1.0 / (double)i;
        s.has_forward_seconds = 1;
        s.at_peak = &at;
        r.run_id = (char *)(uintptr_t)"";
        r.incarnation = (ProtobufCBinaryData){0, none};
        r.n_steps = 1;
        r.steps = list;
        env.body_case = ZT__ENVELOPE__BODY_REPORT_STEPS;
        env.report_steps = &r;
        put_frame(&env);
    }
}

static void send_traces(long from, long to, long n)
{
    char *words[1] = {(char *)(uintptr_t)"w"};
    Zt__TraceGroup group = ZT__TRACE_GROUP__INIT, *groups[1] = {&group};
    Zt__TraceRecord *records = calloc((size_t)n, sizeof(*records)), **list = calloc((size_t)n, sizeof(*list));
    uint32_t ranks[2] = {0, 3};
    group.name = words[0];
    group.ranks = ranks;
    group.n_ranks = 2;
    for (long i = from; i <= to; i++) {
        Zt__Envelope env = ZT__ENVELOPE__INIT;
        Zt__ReportTraces r = ZT__REPORT_TRACES__INIT;
        Zt__StepTrace s = ZT__STEP_TRACE__INIT, *one[1] = {&s};
        s.step = i;
        s.parts = 1;
        s.step_ns = (uint64_t)(i * 1000);
        s.words = words;
        s.groups = groups;
        s.records = list;
        s.n_words = s.n_groups = 1;
        s.n_records = (size_t)n;
        for (long k = 0; k < n; k++) {
            list[k] = &records[k];
            zt__trace_record__init(list[k]);
            list[k]->seq = (uint64_t)k + 1;
        }
        r.run_id = (char *)(uintptr_t)"";
        r.n_traces = 1;
        r.traces = one;
        env.body_case = ZT__ENVELOPE__BODY_REPORT_TRACES;
        env.report_traces = &r;
        put_frame(&env);
    }
    free(records);
    free(list);
}

static void send_dtypes(char *recipe)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportDtypes r = ZT__REPORT_DTYPES__INIT;
    Zt__DtypesReport d = ZT__DTYPES_REPORT__INIT;
    d.step = 1;
    d.recipe = recipe;
    r.run_id = (char *)(uintptr_t)"";
    r.report = &d;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_DTYPES;
    env.report_dtypes = &r;
    put_frame(&env);
}

static void send_event(char *text)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ReportEvent ev = ZT__REPORT_EVENT__INIT;
    ev.run_id = (char *)(uintptr_t)"";
    ev.kind = (char *)(uintptr_t)"PUPPET";
    ev.message = text;
    env.body_case = ZT__ENVELOPE__BODY_REPORT_EVENT;
    env.report_event = &ev;
    put_frame(&env);
}

static void send_failure(const char *args)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerFailure tf = ZT__TRAINER_FAILURE__INIT;
    Zt__ReportFailure f = ZT__REPORT_FAILURE__INIT;
    char *end;
    f.run_id = (char *)(uintptr_t)"";
    f.reason = (uint32_t)strtoul(args, &end, 10);
    f.message = end + 1;
    tf.failure = &f;
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_FAILURE;
    env.trainer_failure = &tf;
    put_frame(&env);
}

static void send_done(long steps)
{
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__TrainerDone d = ZT__TRAINER_DONE__INIT;
    d.steps = steps;
    d.parameter_hash = (char *)(uintptr_t)"00112233445566778899aabbccddeeff";
    env.body_case = ZT__ENVELOPE__BODY_TRAINER_DONE;
    env.trainer_done = &d;
    put_frame(&env);
}

/* ---------------------------------------------------------------------------------- checkpoints */

static void say_running(void)
{
    struct zt_progress *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED, 4, 0);
    if (p == MAP_FAILED) {
        exit(90);
    }
    atomic_store(&p->state, ZT_TRAINER_RUNNING);
}

static void check_answer(const char *kind, long step, long code)
{
    if (!got->reply || got->code != (Zt__Code)code) {
        exit(92);
    }
    if (code) {
        return;
    }
    if (!strcmp(kind, "shards")) {
        const Zt__Shards *s = got->shards;
        if (got->body_case != ZT__ENVELOPE__BODY_SHARDS || s->n_shards != 4 || s->shards[2]->rank != 2 ||
            s->shards[2]->bytes != 100 * step + 2) {
            exit(91);
        }
    }
    if (!strcmp(kind, "commit") && (got->body_case != ZT__ENVELOPE__BODY_CKPT_COMMITTED ||
                                    got->ckpt_committed->n_remove != 1 || got->ckpt_committed->remove[0] != step - 1)) {
        exit(91);
    }
}

/* Run and generation are left wrong: the supervisor knows them better. */
static void ask(const char *kind, long step, long code)
{
    static uint64_t number = 100;
    Zt__Envelope env = ZT__ENVELOPE__INIT;
    Zt__ShardDone shard = ZT__SHARD_DONE__INIT;
    Zt__GetShards shards = ZT__GET_SHARDS__INIT;
    Zt__CkptCommit commit = ZT__CKPT_COMMIT__INIT;
    Zt__CkptRemoved removed = ZT__CKPT_REMOVED__INIT;
    Zt__CkptFailed failed = ZT__CKPT_FAILED__INIT;
    Zt__RankLoaded loaded = ZT__RANK_LOADED__INIT;
    uint8_t bytes[32];
    char *run = (char *)(uintptr_t)"";
    memset(bytes, 0x17, sizeof(bytes));
    shard.run_id = shards.run_id = commit.run_id = removed.run_id = failed.run_id = loaded.run_id = run;
    shard.step = shards.step = commit.step = removed.step = failed.step = loaded.step = step;
    shard.bytes = commit.bytes = 100 * step;
    shard.index_sha256 = commit.manifest_sha256 = (ProtobufCBinaryData){32, bytes};
    shard.parameter_hash = shard.state_hash = (ProtobufCBinaryData){16, bytes};
    failed.message = (char *)(uintptr_t)"no room";
    if (!strcmp(kind, "shard")) {
        env.body_case = ZT__ENVELOPE__BODY_SHARD_DONE;
        env.shard_done = &shard;
    } else if (!strcmp(kind, "shards")) {
        env.body_case = ZT__ENVELOPE__BODY_GET_SHARDS;
        env.get_shards = &shards;
    } else if (!strcmp(kind, "commit")) {
        env.body_case = ZT__ENVELOPE__BODY_CKPT_COMMIT;
        env.ckpt_commit = &commit;
    } else if (!strcmp(kind, "removed")) {
        env.body_case = ZT__ENVELOPE__BODY_CKPT_REMOVED;
        env.ckpt_removed = &removed;
    } else if (!strcmp(kind, "failed")) {
        env.body_case = ZT__ENVELOPE__BODY_CKPT_FAILED;
        env.ckpt_failed = &failed;
    } else {
        env.body_case = ZT__ENVELOPE__BODY_RANK_LOADED;
        env.rank_loaded = &loaded;
    }
    env.request_id = ++number;
    put_frame(&env);
    do {
        next_frame();
    } while (got->request_id != number);
    check_answer(kind, step, code);
}

static void until_stop(void)
{
    do {
        next_frame();
    } while (got->body_case != ZT__ENVELOPE__BODY_TRAINER_STOP);
}

static void append_pid(const char *path)
{
    int f = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (f < 0 || dprintf(f, "%d\n", (int)getpid()) < 0) {
        exit(95);
    }
    close(f);
}

static void hang(void)
{
    signal(SIGTERM, SIG_IGN);
    for (;;) {
        pause();
    }
}

static void obey(char *line)
{
    char *arg = strchr(line, ' ');
    char none[1] = "";
    if (arg) {
        *arg++ = '\0';
    } else {
        arg = none;
    }
    long n = strtol(arg, NULL, 10);
    if (!strcmp(line, "pid")) {
        append_pid(arg);
    } else if (!strcmp(line, "state")) {
        send_state((int)n);
    } else if (!strcmp(line, "put") || !strcmp(line, "get")) {
        comm_id(line[0] == 'p');
    } else if (!strcmp(line, "steps")) {
        send_steps(n, strtol(strchr(arg, ' '), NULL, 10));
    } else if (!strcmp(line, "dtypes")) {
        send_dtypes(arg);
    } else if (!strcmp(line, "traces")) {
        char *second = strchr(arg, ' '), *third = strchr(second + 1, ' ');
        send_traces(n, strtol(second, NULL, 10), strtol(third, NULL, 10));
    } else if (!strcmp(line, "log")) {
        for (long i = 0; i < n; i++) {
            printf("line %ld of the puppet's long and winding log\n", i);
        }
        fflush(stdout);
    } else if (!strcmp(line, "err")) {
        fprintf(stderr, "%s\n", arg);
    } else if (!strcmp(line, "part")) {
        printf("%s", arg);
        fflush(stdout);
    } else if (!strcmp(line, "event")) {
        send_event(arg);
    } else if (!strcmp(line, "fail")) {
        send_failure(arg);
    } else if (!strcmp(line, "done")) {
        send_done(n);
    } else if (!strcmp(line, "exit")) {
        _exit((int)n);
    } else if (!strcmp(line, "signal")) {
        signal((int)n, SIG_DFL);
        raise((int)n);
    } else if (!strcmp(line, "hang")) {
        hang();
    } else if (!strcmp(line, "garbage")) {
        (void)!write(fd, "\xff\xff\xff\xffgarbage", 11);
        hang();
    } else if (!strcmp(line, "wait")) {
        while (access(arg, F_OK)) {
            nap();
        }
    } else if (!strcmp(line, "touch")) {
        close(open(arg, O_WRONLY | O_CREAT, 0600));
    } else if (!strcmp(line, "running")) {
        say_running();
    } else if (!strcmp(line, "until_stop")) {
        until_stop();
    } else if (!strcmp(line, "ask")) {
        char *second = strchr(arg, ' '), *third;
        *second++ = '\0';
        n = strtol(second, &third, 10);
        ask(arg, n, strtol(third, NULL, 10));
    } else {
        exit(94);
    }
}

int main(void)
{
    /* the channel may have a low limit: a puppet that blocks there is what the tests want to see */
    zt_decoder_init(&decoder, ZT_FRAME_MAX);
    next_frame();
    if (got->body_case != ZT__ENVELOPE__BODY_TRAINER_START) {
        return 93;
    }
    const ProtobufCBinaryData *y = &got->trainer_start->assignment->run_yaml;
    char *script = strndup((const char *)y->data, y->len), *save = NULL;
    for (char *line = strtok_r(script, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        obey(line);
    }
    free(script);
    return 0;
}
