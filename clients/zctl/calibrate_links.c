/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/calibrate_links.c: collectives between connected workers: a run of one step with
 * comm.measure_seconds, whose ranks report what they measured as events. See calibrate.h. */
#include <string.h>
#include "clients/zctl/calibrate.h"
#include "clients/zctl/cmd.h"

#define KIND "COMM_MEASURED"

/* A tiny model on a file that every Linux machine has: the program that trains. */
static int run_file(struct zt_run_file *f, double seconds, struct zt_error *err) {
    char text[512];
    int n = snprintf(text, sizeof text,
                     "version: 1\nname: calibrate\nmodel: {preset: gpt2-nano}\n"
                     "dataset: {path: /proc/self/exe, tokenizer: bytes}\n"
                     "training: {steps: 1, seq_len: 16, local_batch_size: 1}\nparallelism: {mode: ddp}\n"
                     "comm: {measure_seconds: %.17g}\n",
                     seconds);
    f->text = strdup(text);
    f->bytes = (size_t)n;
    snprintf(f->file, sizeof f->file, "calibrate");
    return f->text ? zt_run_file_parse(f, err) : zt_fail(err, ZT_ENOMEM, "no memory");
}

static int take_events(struct zt_source *s, char *run, struct zt_measurements *m, struct zt_error *err) {
    uint64_t after = 0;
    bool more = true;
    int rc = 0;
    while (rc == 0 && more) {
        struct zt_answer a;
        Zt__GetEvents get = ZT__GET_EVENTS__INIT;
        Zt__Envelope req = ZT__ENVELOPE__INIT;
        uint64_t before = after;
        get.run = run;
        get.has_after = true;
        get.after = after;
        req.body_case = ZT__ENVELOPE__BODY_GET_EVENTS;
        req.get_events = &get;
        if ((rc = zt_source_ask(s, &req, &a, err)))
            return rc;
        const Zt__Events *l = a.env->events;
        for (size_t i = 0; rc == 0 && i < l->n_events; i++) {
            after = l->events[i]->id > after ? l->events[i]->id : after;
            if (strcmp(l->events[i]->kind, KIND) == 0 && l->events[i]->message)
                rc = zt_measurements_add(m, l->events[i]->message, err);
        }
        more = l->has_more && l->more && after > before;
        zt_answer_free(&a);
    }
    return rc;
}

/* How the run ended; then what it said. */
static int take_run(struct zt_source *s, const Zt__RunDetail *d, char *run, struct zt_measurements *m,
                    struct zt_error *err) {
    char line[1024];
    if (zt_exit_of_state(d->summary->state) != ZT_EXIT_OK)
        return zt_fail(err, ZT_EIO, "the measuring run %s: %s", d->summary->run_id, zt_state_line(d, line, sizeof line));
    int rc = take_events(s, run, m, err);
    if (rc == 0 && json_array_size(m->collectives) == 0)
        rc = zt_fail(err, ZT_EINVAL, "one worker has nobody to send to: connect a second one, or give --workers 2");
    if (rc == 0)
        snprintf(m->links, sizeof m->links, "%u connected workers of %.100s:%d", d->replicate * d->shard * d->tensor, s->host,
                 s->port);
    m->done = true;
    return rc;
}

int zt_calibrate_links(const struct zt_options *o, double seconds, struct zt_measurements *m, struct zt_error *err) {
    static struct zt_run_file f;
    struct zt_options far = *o;
    struct zt_source s;
    struct zt_answer a;
    char run[64];
    bool late = false;
    far.state = NULL; /* of a folder nothing can be asked to run */
    far.timeout = 0;  /* of the run, not of a request */
    far.force = true; /* a message takes what there is */
    int rc = run_file(&f, seconds, err);
    if (rc) {
        zt_run_file_free(&f);
        return rc;
    }
    zt_watch_interrupts();
    rc = zt_source_open(&far, &s, err);
    if (rc == 0)
        rc = zt_submit_planned(&far, &f, &s, &a, err);
    if (rc == 0) {
        snprintf(run, sizeof run, "%s", a.env->submit_reply->run_id);
        fprintf(stderr, "run %s on the workers of %s:%d\n", run, s.host, s.port);
        zt_answer_free(&a);
        rc = zt_await_run(o, &s, run, &a, &late, err);
    }
    if (rc == 0) {
        rc = take_run(&s, a.env->run_detail, run, m, err);
        zt_answer_free(&a);
    }
    zt_source_close(&s);
    zt_run_file_free(&f);
    return rc;
}
