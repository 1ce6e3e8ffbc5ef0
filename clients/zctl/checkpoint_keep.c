/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint_keep.c: `zctl checkpoint rm` and `gc`. The row goes first, the files after it, the row's end last:
 *
 *   DELETE (the coordinator refuses the last verified one, pinned ones, and the one that a run goes on from)
 *   -> the folder to trash/, then its files -> DELETED
 *
 * so that at any instant a row that counts has all its files. What was begun is finished by gc. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/json.h"
#include "clients/zctl/out.h"
#include "core/units.h"
#include "engine/checkpoint/write.h"

static bool is(const json_t *row, const char *key) { return json_is_true(json_object_get(row, key)); }

static bool in_state(const json_t *row, const char *state) { return strcmp(zt_row_text(row, "state"), state) == 0; }

/* ---------------------------------------------------------------------------------- the rule */

static void let_go(json_t *out, const json_t *row, const char *why) {
    json_t *o = json_object();
    json_object_set(o, "step", json_object_get(row, "step"));
    json_object_set_new(o, "why", json_string(why));
    json_object_set(o, "bytes", json_object_get(row, "bytes"));
    json_array_append_new(out, o);
}

json_t *zt_retention(const json_t *list) {
    const json_t *rows = json_object_get(list, "checkpoints"), *row;
    const json_t *latest = json_object_get(list, "keep_latest_k");
    int64_t k = zt_row_int(list, "keep_latest_k"), every = zt_row_int(list, "keep_every"), committed = 0;
    bool verified = false; /* the newest one was passed */
    json_t *out = json_array();
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        if (in_state(row, "DELETING"))
            let_go(out, row, "its removal was begun");
        if (!in_state(row, "COMMITTED"))
            continue;
        committed++;
        bool last_verified = is(row, "verified") && !verified;
        verified = verified || last_verified;
        bool kept = !json_is_integer(latest) || k == 0 || committed <= k || (every > 0 && zt_row_int(row, "step") % every == 0) ||
                    is(row, "pinned") || last_verified;
        if (!kept)
            let_go(out, row, "retention lets it go");
    }
    return out;
}

/* ---------------------------------------------------------------------------------- removing */

/* The run's folder is to be seen from here; else nothing may be called removed. */
static int see_folder(const char *folder, const char *what, struct zt_error *err) {
    struct stat st;
    if (folder[0] && stat(folder, &st) == 0 && S_ISDIR(st.st_mode))
        return 0;
    return zt_fail(err, ZT_ENOTFOUND, "the folder %s of %s is not to be seen from this machine (%s); run this where it is mounted",
                   folder, what, folder[0] ? strerror(errno) : "its name is not known");
}

/* Of one row, whatever was done already. */
static int remove_one(struct zt_source *s, const json_t *list, const json_t *row, struct zt_error *err) {
    const char *run = zt_row_text(list, "run"), *folder = zt_row_text(row, "folder")[0] ? zt_row_text(row, "folder") : zt_row_text(list, "folder");
    int64_t step = zt_row_int(row, "step");
    int rc = see_folder(folder, zt_row_text(list, "name"), err);
    if (rc == 0 && !in_state(row, "DELETING"))
        rc = zt_set_checkpoint(s, run, step, ZT__SET_CHECKPOINT__WHAT__DELETE, NULL, err);
    if (rc == 0)
        rc = zt_ckpt_remove(&zt_sys_posix, folder, step, err);
    return rc ? rc : zt_set_checkpoint(s, run, step, ZT__SET_CHECKPOINT__WHAT__DELETED, NULL, err);
}

static int open_list(const struct zt_options *o, const struct zt_run_at *at, struct zt_source *s, json_t **list,
                     struct zt_error *err) {
    if (at->folder)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint %s: \"%.200s\" is a folder; the coordinator keeps the list, so name the run",
                       o->action, o->subject);
    int rc = zt_source_open(o, s, err);
    return rc ? rc : zt_fetch_checkpoints(s, at->run, list, err);
}

int zt_checkpoint_rm(const struct zt_options *o) {
    struct zt_run_at at;
    struct zt_source s = {0};
    struct zt_error err;
    json_t *list = NULL;
    const json_t *row = NULL;
    char n[32];
    int rc = zt_run_at_parse(o->subject, &at, &err);
    if (rc == 0 && !at.folder && at.step < 0)
        rc = zt_fail(&err, ZT_EINVAL, "zctl checkpoint rm: say which one: %.80s@STEP; zctl checkpoint ls %.80s lists them", o->subject,
                     o->subject);
    if (rc == 0)
        rc = open_list(o, &at, &s, &list, &err);
    if (rc == 0)
        rc = zt_checkpoint_row(list, at.step, &row, &err);
    if (rc == 0 && in_state(row, "WRITING"))
        rc = zt_fail(&err, ZT_ECONFLICT, "%.80s is being written; a run that does not finish it removes it itself", o->subject);
    if (rc == 0)
        rc = remove_one(&s, list, row, &err);
    if (rc == 0 && o->format == ZT_FORMAT_TABLE) {
        printf("%s is removed: %s\n", o->subject, zt_format_bytes((double)zt_row_int(row, "bytes"), n, sizeof n));
    } else if (rc == 0) {
        json_t *j = json_object();
        json_object_set(j, "run", json_object_get(list, "run"));
        json_object_set_new(j, "step", json_integer(at.step));
        json_object_set(j, "bytes", json_object_get(row, "bytes"));
        zt_print_json_line(stdout, j);
        json_decref(j);
    }
    json_decref(list);
    zt_source_close(&s);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}

/* ---------------------------------------------------------------------------------- gc */

static bool ended(const json_t *list) { return zt_exit_of_state(zt_row_text(list, "state")) >= 0; }

/* The folder's leftovers. A live run sweeps its own when it starts; only those of an ended one are ours to remove. */
static int add_leftovers(const json_t *list, bool dry, json_t *out, int *swept, struct zt_error *err) {
    const char *folder = zt_row_text(list, "folder");
    json_t *disk = NULL;
    struct stat st;
    if (!folder[0] || (stat(folder, &st) != 0 && errno == ENOENT && json_array_size(json_object_get(list, "checkpoints")) == 0))
        return 0; /* it never saved anything */
    int rc = see_folder(folder, zt_row_text(list, "name"), err);
    if (rc == 0 && ended(list))
        rc = zt_list_on_disk(folder, UINT32_MAX, &disk, err);
    if (rc == 0 && disk)
        json_array_extend(out, json_object_get(disk, "left"));
    json_decref(disk);
    if (rc || dry || !ended(list))
        return rc;
    *swept = zt_ckpt_sweep(&zt_sys_posix, folder, UINT32_MAX, err);
    return *swept < 0 ? *swept : 0;
}

static void say_gc(const struct zt_options *o, const json_t *j) {
    const json_t *row;
    size_t i;
    char n[32];
    bool dry = is(j, "dry_run");
    if (o->format != ZT_FORMAT_TABLE) {
        zt_print_json_line(stdout, j);
        return;
    }
    json_array_foreach(json_object_get(j, "removed"), i, row) {
        if (json_is_integer(json_object_get(row, "step")))
            printf("%s step %lld", dry ? "would remove" : "removed", (long long)zt_row_int(row, "step"));
        else
            printf("%s %s", dry ? "would remove" : "removed", zt_row_text(row, "name"));
        printf(" (%s): %s\n", zt_format_bytes((double)zt_row_int(row, "bytes"), n, sizeof n), zt_row_text(row, "why"));
    }
    printf("%s %s in all\n", dry ? "would free" : "freed", zt_format_bytes((double)zt_row_int(j, "bytes"), n, sizeof n));
}

int zt_checkpoint_gc(const struct zt_options *o) {
    struct zt_run_at at;
    struct zt_source s = {0};
    struct zt_error err;
    json_t *list = NULL, *go, *done = json_array(), *row;
    size_t i;
    int swept = 0, rc = zt_run_at_parse(o->subject, &at, &err);
    if (rc == 0 && at.step >= 0)
        rc = zt_fail(&err, ZT_EINVAL, "zctl checkpoint gc is about all of a run; zctl checkpoint rm %.80s removes one", o->subject);
    if (rc == 0)
        rc = open_list(o, &at, &s, &list, &err);
    go = rc == 0 ? zt_retention(list) : json_array();
    json_array_foreach(go, i, row) {
        const json_t *known = NULL;
        if (rc == 0 && !o->dry_run && (rc = zt_checkpoint_row(list, zt_row_int(row, "step"), &known, &err)) == 0)
            rc = remove_one(&s, list, known, &err);
        if (rc == 0)
            json_array_append(done, row);
    }
    if (rc == 0)
        rc = add_leftovers(list, o->dry_run, done, &swept, &err);
    int64_t bytes = 0;
    json_array_foreach(done, i, row)
        bytes += zt_row_int(row, "bytes");
    if (rc == 0 || json_array_size(done) > 0) { /* what was removed is told whatever came after it */
        json_t *j = json_object();
        json_object_set_new(j, "run", list ? json_incref(json_object_get(list, "run")) : json_null());
        json_object_set_new(j, "dry_run", json_boolean(o->dry_run));
        json_object_set(j, "removed", done);
        json_object_set_new(j, "bytes", json_integer(bytes));
        say_gc(o, j);
        json_decref(j);
    }
    json_decref(go);
    json_decref(done);
    json_decref(list);
    zt_source_close(&s);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
