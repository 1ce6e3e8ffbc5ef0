/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint.c: `zctl checkpoint ls|verify|pin|unpin`, and what the other actions share: names and questions
 * to the coordinator. */
#include "clients/zctl/checkpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"
#include "engine/checkpoint/write.h"

/* ---------------------------------------------------------------------------------- names */

static int need_step(const char *action, const char *text, struct zt_run_at *at, struct zt_error *err) {
    int rc = zt_run_at_parse(text, at, err);
    if (rc)
        return rc;
    if (at->folder)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint %s: \"%.200s\" is a folder; the coordinator keeps the list, so name it "
                       "RUN@STEP", action, text);
    if (at->step < 0)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint %s: say which one: %.80s@STEP; zctl checkpoint ls %.80s lists them", action,
                       text, text);
    return 0;
}

/* ---------------------------------------------------------------------------------- questions */

static void add_checkpoints(json_t *o, const Zt__CheckpointList *l, json_t *rows) {
    if (json_object_size(o) == 0) {
        json_object_set_new(o, "run", zt_json_text(l->run_id));
        json_object_set_new(o, "name", zt_json_text(l->name));
        json_object_set_new(o, "state", zt_json_text(l->state));
        json_object_set_new(o, "folder", zt_json_text(l->folder));
        json_object_set_new(o, "interval", zt_json_int(l->has_interval, l->interval));
        json_object_set_new(o, "keep_latest_k", zt_json_int(l->has_keep_latest_k, l->keep_latest_k));
        json_object_set_new(o, "keep_every", zt_json_int(l->has_keep_every, l->keep_every));
        json_object_set_new(o, "checkpoints", rows);
    }
    for (size_t i = 0; i < l->n_checkpoints; i++)
        json_array_append_new(rows, zt_json_checkpoint(l->checkpoints[i]));
}

int zt_fetch_checkpoints(struct zt_source *s, const char *run, json_t **list, struct zt_error *err) {
    Zt__ListCheckpoints get = ZT__LIST_CHECKPOINTS__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    json_t *o = json_object(), *rows = json_array();
    bool more = true;
    int rc = 0;
    get.run = (char *)(uintptr_t)run;
    req.body_case = ZT__ENVELOPE__BODY_LIST_CHECKPOINTS;
    req.list_checkpoints = &get;
    while (more && rc == 0) {
        struct zt_answer a;
        rc = zt_source_ask_surely(s, &req, &a, err);
        if (rc)
            break;
        if (a.env->body_case != ZT__ENVELOPE__BODY_CHECKPOINT_LIST) {
            rc = zt_fail(err, ZT_EPROTO, "the coordinator answered list_checkpoints with something else");
        } else {
            const Zt__CheckpointList *l = a.env->checkpoint_list;
            add_checkpoints(o, l, rows);
            more = l->has_more && l->more && l->n_checkpoints > 0;
            get.has_before_step = more;
            get.before_step = more ? l->checkpoints[l->n_checkpoints - 1]->step : 0;
        }
        zt_answer_free(&a);
    }
    if (rc) {
        if (json_object_size(o) == 0)
            json_decref(rows);
        json_decref(o);
        return rc;
    }
    *list = o;
    return 0;
}

int zt_checkpoint_row(const json_t *list, int64_t step, const json_t **row, struct zt_error *err) {
    const json_t *rows = json_object_get(list, "checkpoints"), *r;
    const char *name = zt_row_text(list, "name");
    char there[200] = "";
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, r) {
        bool committed = strcmp(zt_row_text(r, "state"), "COMMITTED") == 0;
        if (step >= 0 ? zt_row_int(r, "step") == step : committed) {
            *row = r;
            return 0;
        }
        size_t n = strlen(there);
        if (n + 40 < sizeof there)
            snprintf(there + n, sizeof there - n, "%s%lld%s%s%s", n ? ", " : "", (long long)zt_row_int(r, "step"), committed ? "" : " (",
                     committed ? "" : zt_row_text(r, "state"), committed ? "" : ")");
    }
    if (json_array_size(rows) == 0)
        return zt_fail(err, ZT_ENOTFOUND, "run \"%s\" has no checkpoint; a section checkpoint in its run file makes it save", name);
    if (step < 0)
        return zt_fail(err, ZT_ENOTFOUND, "run \"%s\" has no committed checkpoint; there are: %s", name, there);
    return zt_fail(err, ZT_ENOTFOUND, "run \"%s\" has no checkpoint of step %lld; there are: %s", name, (long long)step, there);
}

int zt_set_checkpoint(struct zt_source *s, const char *run, int64_t step, Zt__SetCheckpoint__What what, const char *message,
                      struct zt_error *err) {
    Zt__SetCheckpoint set = ZT__SET_CHECKPOINT__INIT;
    Zt__Envelope req = ZT__ENVELOPE__INIT;
    struct zt_answer a;
    uint8_t key[16];
    if (zt_sys_posix.random(zt_sys_posix.arg, key, sizeof key) < 0)
        return zt_fail(err, ZT_EIO, "no random bytes from the kernel");
    set.request_key.data = key;
    set.request_key.len = sizeof key;
    set.run = (char *)(uintptr_t)run;
    set.step = step;
    set.what = what;
    set.message = (char *)(uintptr_t)message;
    req.body_case = ZT__ENVELOPE__BODY_SET_CHECKPOINT;
    req.set_checkpoint = &set;
    int rc = zt_source_ask_surely(s, &req, &a, err);
    if (rc == 0)
        zt_answer_free(&a);
    return rc;
}

/* ---------------------------------------------------------------------------------- finding one */

/* Of a run: the coordinator's row says where it is and what its manifest must hash to. */
static int find_in_run(struct zt_source *s, const struct zt_run_at *at, struct zt_found_checkpoint *f, struct zt_error *err) {
    json_t *list = NULL;
    const json_t *row;
    char step[32];
    int rc = zt_fetch_checkpoints(s, at->run, &list, err);
    if (rc == 0)
        rc = zt_checkpoint_row(list, at->step, &row, err);
    if (rc == 0) {
        const char *folder = zt_row_text(row, "folder")[0] ? zt_row_text(row, "folder") : zt_row_text(list, "folder"), *state = zt_row_text(row, "state");
        f->step = zt_row_int(row, "step");
        zt_ckpt_step_name(f->step, step);
        snprintf(f->run_id, sizeof f->run_id, "%s", zt_row_text(list, "run"));
        snprintf(f->label, sizeof f->label, "%s@%lld", zt_row_text(list, "name"), (long long)f->step);
        f->known = zt_sha256_parse(zt_row_text(row, "manifest_sha256"), &f->manifest);
        int n = snprintf(f->folder, sizeof f->folder, "%s/%s", folder, step);
        if (strcmp(state, "COMMITTED") != 0 && strcmp(state, "CORRUPT") != 0)
            rc = zt_fail(err, ZT_ECONFLICT, "%s is %s, not committed: there is nothing whole to read", f->label, state);
        else if (!folder[0] || n < 0 || (size_t)n >= sizeof f->folder)
            rc = zt_fail(err, ZT_EPROTO, "the coordinator does not say in which folder %s is", f->label);
    }
    json_decref(list);
    return rc;
}

int zt_find_checkpoint(const struct zt_options *o, const char *text, struct zt_source *s, struct zt_found_checkpoint *f,
                       struct zt_error *err) {
    struct zt_run_at at;
    memset(f, 0, sizeof *f);
    memset(s, 0, sizeof *s);
    f->step = -1;
    int rc = zt_run_at_parse(text, &at, err);
    if (rc == 0 && at.folder)
        return zt_find_on_disk(at.run, f, err);
    if (rc == 0)
        rc = zt_source_open(o, s, err);
    return rc ? rc : find_in_run(s, &at, f, err);
}

int zt_open_checkpoint(const struct zt_found_checkpoint *f, struct zt_ckpt **c, struct zt_error *err) {
    const struct zt_ckpt_open open = {.folder = f->folder, .manifest = f->known ? &f->manifest : NULL};
    char run[ZT_PATH_MAX];
    struct stat st;
    int rc = zt_ckpt_open(&open, c, err);
    if (rc != ZT_ENOTFOUND || !f->run_id[0])
        return rc;
    /* The run's folder without it: somebody took it away. Without that folder too, this machine does not see it. */
    snprintf(run, sizeof run, "%.*s", (int)(strrchr(f->folder, '/') - f->folder), f->folder);
    if (stat(run, &st) == 0)
        return zt_fail(err, ZT_ECORRUPT, "%s is gone, though %s is there", f->folder, run);
    return zt_fail(err, rc, "%s is committed, but its folder %s is not to be seen from this machine; run this where the "
                       "workers' folder is mounted", f->label, f->folder);
}

/* ---------------------------------------------------------------------------------- ls */

static const struct zt_column ls_columns[] = {
    {"STEP", "step", ZT_CELL_COUNT, 0},
    {"GEN", "generation", ZT_CELL_COUNT, 0},
    {"STATE", "state", ZT_CELL_TEXT, 0},
    {"SIZE", "bytes", ZT_CELL_BYTES, 0},
    {"SHARDS", "shards", ZT_CELL_COUNT, 0},
    {"VERIFIED", "verified", ZT_CELL_TEXT, 0},
    {"PINNED", "pinned", ZT_CELL_TEXT, 0},
    {"STALL", "stall_seconds", ZT_CELL_SECONDS, 0},
    {"WRITE", "write_seconds", ZT_CELL_SECONDS, 0},
    {"AGE", "created", ZT_CELL_AGE, 0},
    {"MESSAGE", "message", ZT_CELL_TEXT, 0},
    {NULL, NULL, ZT_CELL_TEXT, 0},
};

static void say_list(const json_t *list) {
    const json_t *k = json_object_get(list, "keep_latest_k"), *every = json_object_get(list, "keep_every"), *left;
    char n[32];
    size_t i;
    if (zt_row_text(list, "folder")[0])
        printf("folder   %s\n", zt_row_text(list, "folder"));
    if (json_is_integer(k)) {
        if (json_integer_value(k) > 0)
            printf("keeps    the newest %s", zt_format_count((int64_t)json_integer_value(k), n, sizeof n));
        else
            printf("keeps    all");
        if (json_integer_value(every) > 0)
            printf(", and every multiple of %s steps", zt_format_count((int64_t)json_integer_value(every), n, sizeof n));
        puts("; pinned ones always");
    }
    json_array_foreach(json_object_get(list, "left"), i, left)
        printf("left     %s: %s\n", zt_row_text(left, "name"), zt_row_text(left, "why"));
}

static int print_list(const struct zt_options *o, const json_t *list, struct zt_error *err) {
    const json_t *rows = json_object_get(list, "checkpoints");
    if (o->format != ZT_FORMAT_TABLE)
        return zt_print_rows(stdout, o, list, rows, ls_columns, err);
    say_list(list);
    if (json_array_size(rows) == 0) {
        puts("no checkpoints");
        return 0;
    }
    putchar('\n');
    return zt_print_table(stdout, rows, ls_columns, err);
}

static int list(const struct zt_options *o) {
    struct zt_run_at at;
    struct zt_source s = {0};
    struct zt_error err;
    json_t *l = NULL;
    int rc = zt_run_at_parse(o->subject, &at, &err);
    if (rc == 0 && at.folder) {
        rc = zt_list_on_disk(at.run, UINT32_MAX, &l, &err);
    } else if (rc == 0) {
        rc = at.step < 0 ? zt_source_open(o, &s, &err)
                         : zt_fail(&err, ZT_EINVAL, "zctl checkpoint ls lists all of a run; zctl checkpoint show %s is about one",
                                   o->subject);
        if (rc == 0)
            rc = zt_fetch_checkpoints(&s, at.run, &l, &err);
    }
    if (rc == 0)
        rc = print_list(o, l, &err);
    json_decref(l);
    zt_source_close(&s);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}

/* ---------------------------------------------------------------------------------- verify */

struct reading { int64_t done, total; double begun, told; };

static void on_read(void *arg, int64_t bytes) {
    struct reading *r = arg;
    char a[32], b[32], rate[32];
    double now = zt_now();
    r->done += bytes;
    if (!isatty(STDERR_FILENO) || now < r->told + 0.2)
        return;
    r->told = now;
    fprintf(stderr, "\r\033[K%s of %s, %s/s", zt_format_bytes((double)r->done, a, sizeof a),
            zt_format_bytes((double)r->total, b, sizeof b),
            zt_format_bytes((double)r->done / (now > r->begun ? now - r->begun : 1), rate, sizeof rate));
    fflush(stderr);
}

/* What was found out, to the coordinator: it picks what a restart goes on from. */
static int tell_coordinator(struct zt_source *s, const struct zt_found_checkpoint *f, int verdict, const struct zt_error *why) {
    struct zt_error err;
    if (!f->run_id[0] || s->db)
        return ZT_EXIT_OK; /* named by its folder, or there is only a state folder: nobody to tell */
    int rc = zt_set_checkpoint(s, f->run_id, f->step,
                               verdict ? ZT__SET_CHECKPOINT__WHAT__CORRUPT_FOUND : ZT__SET_CHECKPOINT__WHAT__VERIFIED,
                               verdict ? why->msg : NULL, &err);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}

static void say_verified(const struct zt_options *o, const struct zt_found_checkpoint *f, int rc, const struct reading *r,
                         const struct zt_error *why) {
    char a[32], b[32];
    double seconds = zt_now() - r->begun;
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = json_object();
        json_object_set_new(j, "run", zt_json_text(f->run_id));
        json_object_set_new(j, "step", zt_json_int(f->step >= 0, f->step));
        json_object_set_new(j, "folder", zt_json_text(f->folder));
        json_object_set_new(j, "verified", json_boolean(rc == 0));
        json_object_set_new(j, "bytes", json_integer(r->done));
        json_object_set_new(j, "seconds", zt_json_real(true, seconds));
        json_object_set_new(j, "message", zt_json_text(rc ? why->msg : NULL));
        zt_print_json_line(stdout, j);
        json_decref(j);
    } else if (rc == 0) {
        printf("%s verified: %s read in %s, every hash and element as written\n", f->label,
               zt_format_bytes((double)r->done, a, sizeof a), zt_format_seconds(seconds, b, sizeof b));
    } else {
        char *safe = zt_escape(why->msg, strlen(why->msg), false);
        printf("%s is CORRUPT: %s\n", f->label, safe ? safe : "");
        free(safe);
    }
}

static int verify(const struct zt_options *o) {
    struct zt_found_checkpoint f;
    struct zt_source s;
    struct zt_error err;
    struct zt_ckpt *c = NULL;
    struct reading r = {.begun = zt_now()};
    int rc = zt_find_checkpoint(o, o->subject, &s, &f, &err);
    if (rc) {
        zt_source_close(&s);
        return zt_report(rc, &err);
    }
    rc = zt_open_checkpoint(&f, &c, &err);
    if (rc == 0) {
        const struct zt_manifest *m = zt_ckpt_manifest(c);
        for (int i = 0; i < m->world; i++)
            r.total += m->ranks[i].bytes;
        f.step = m->position.step;
        rc = zt_ckpt_verify(c, on_read, &r, &err);
        zt_ckpt_close(c);
    }
    if (r.told > 0)
        fputs("\r\033[K", stderr);
    /* A file that is not there, of a checkpoint that is committed and whose folder is, is a fault of it too. */
    bool verdict = rc == 0 || rc == ZT_ECORRUPT;
    int code = verdict ? tell_coordinator(&s, &f, rc, &err) : zt_report(rc, &err);
    if (verdict)
        say_verified(o, &f, rc, &r, &err);
    zt_source_close(&s);
    return rc == ZT_ECORRUPT && code == ZT_EXIT_OK ? ZT_EXIT_FAILED : code;
}

/* ---------------------------------------------------------------------------------- pin, unpin */

static int pin(const struct zt_options *o, bool on) {
    struct zt_run_at at;
    struct zt_source s = {0};
    struct zt_error err;
    int rc = need_step(o->action, o->subject, &at, &err);
    if (rc == 0)
        rc = zt_source_open(o, &s, &err);
    if (rc == 0)
        rc = zt_set_checkpoint(&s, at.run, at.step, on ? ZT__SET_CHECKPOINT__WHAT__PIN : ZT__SET_CHECKPOINT__WHAT__UNPIN, NULL, &err);
    zt_source_close(&s);
    if (rc)
        return zt_report(rc, &err);
    if (o->format == ZT_FORMAT_TABLE) {
        printf("%s %s\n", o->subject, on ? "is pinned: retention leaves it alone" : "is not pinned any more");
    } else {
        json_t *j = json_object();
        json_object_set_new(j, "run", zt_json_text(at.run));
        json_object_set_new(j, "step", json_integer(at.step));
        json_object_set_new(j, "pinned", json_boolean(on));
        zt_print_json_line(stdout, j);
        json_decref(j);
    }
    return ZT_EXIT_OK;
}

/* ---------------------------------------------------------------------------------- command */

int zt_cmd_checkpoint(const struct zt_options *o) {
    struct zt_error err;
    int action = 0;
    while (strcmp(zt_checkpoint_actions[action], o->action) != 0)
        action++;
    if (o->n_rank + o->ranks_all > 0 && action != ZT_CHECKPOINT_SHOW)
        return zt_report(zt_fail(&err, ZT_EINVAL, "zctl checkpoint %s has no option --rank; show has", o->action), &err);
    if (o->dry_run && action != ZT_CHECKPOINT_GC)
        return zt_report(zt_fail(&err, ZT_EINVAL, "zctl checkpoint %s has no option --dry-run; gc has", o->action), &err);
    switch ((enum zt_checkpoint_action)action) {
    case ZT_CHECKPOINT_LS: return list(o);
    case ZT_CHECKPOINT_SHOW: return zt_checkpoint_show(o);
    case ZT_CHECKPOINT_VERIFY: return verify(o);
    case ZT_CHECKPOINT_PIN: return pin(o, true);
    case ZT_CHECKPOINT_UNPIN: return pin(o, false);
    case ZT_CHECKPOINT_RM: return zt_checkpoint_rm(o);
    case ZT_CHECKPOINT_GC: return zt_checkpoint_gc(o);
    case ZT_CHECKPOINT_DIFF: return zt_checkpoint_diff(o);
    }
    return ZT_EXIT_OTHER;
}
