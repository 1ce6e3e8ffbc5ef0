/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/convert.c: `zctl convert FILE`: a DeepSpeed configuration as a run file, to standard output
 * or a new file, and the report of every key on the other stream. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/deepspeed.h"
#include "clients/zctl/json.h"

/* A file that is there is never written over: it may have been filled in by hand. */
static int write_new(const char *path, const char *text, struct zt_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    size_t n = strlen(text), done = 0;
    if (fd < 0 && errno == EEXIST)
        return zt_fail(err, ZT_ECONFLICT, "%s: exists already; give another name, or remove it", path);
    if (fd < 0)
        return zt_fail(err, ZT_EINVAL, "%s: cannot be written: %s", path, strerror(errno));
    while (done < n) {
        ssize_t got = write(fd, text + done, n - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    int saved = errno, closed = close(fd);
    if (done == n && closed == 0)
        return 0;
    unlink(path);
    return zt_fail(err, ZT_EIO, "%s: cannot be written: %s", path, strerror(done == n ? errno : saved));
}

static void print_row(FILE *out, const char *file, const struct zt_ds_row *row) {
    char head[640];
    if (row->line)
        snprintf(head, sizeof head, "  %.300s:%u: %s: %s", file, row->line, row->key, row->value);
    else
        snprintf(head, sizeof head, "  %s", row->key);
    char *safe = zt_escape(head, strlen(head), false), *text = zt_escape(row->text, strlen(row->text), false);
    fprintf(out, "%s\n      ", safe ? safe : "");
    zt_wrap(out, 6, 6, text ? text : "");
    free(safe);
    free(text);
}

static void print_report(FILE *out, const char *file, const struct zt_ds_result *r) {
    const char *slash = strrchr(file, '/');
    fprintf(out, "what became of the DeepSpeed configuration (sizes there are numbers of elements)\n");
    for (int o = 0; o < ZT_DS_OUTCOMES; o++) {
        if (r->count[o] == 0)
            continue;
        fprintf(out, "\n%s (%d)\n", zt_ds_outcome_name((enum zt_ds_outcome)o), r->count[o]);
        for (int i = 0; i < r->n; i++)
            if (r->row[i].outcome == (enum zt_ds_outcome)o)
                print_row(out, slash ? slash + 1 : file, &r->row[i]);
    }
}

static json_t *report_json(const char *file, const struct zt_ds_result *r) {
    json_t *rows = json_array(), *j = json_object(), *counts = json_object();
    for (int i = 0; i < r->n; i++) {
        const struct zt_ds_row *row = &r->row[i];
        json_t *one = json_object();
        json_object_set_new(one, "key", zt_json_text(row->key));
        json_object_set_new(one, "line", zt_json_int(row->line > 0, row->line));
        json_object_set_new(one, "column", zt_json_int(row->line > 0, row->column));
        json_object_set_new(one, "value", zt_json_text(row->line ? row->value : NULL));
        json_object_set_new(one, "outcome", zt_json_text(zt_ds_outcome_name(row->outcome)));
        json_object_set_new(one, "text", zt_json_text(row->text));
        json_array_append_new(rows, one);
    }
    for (int o = 0; o < ZT_DS_OUTCOMES; o++)
        json_object_set_new(counts, zt_ds_outcome_name((enum zt_ds_outcome)o), json_integer(r->count[o]));
    json_object_set_new(j, "file", zt_json_text(file));
    json_object_set_new(j, "converted", json_boolean(r->yaml != NULL));
    json_object_set_new(j, "counts", counts);
    json_object_set_new(j, "keys", rows);
    json_object_set_new(j, "run_yaml", zt_json_text(r->yaml));
    return j;
}

/* The report goes where the run file does not. */
static void print_all(const struct zt_options *o, const struct zt_ds_result *r) {
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = report_json(o->subject, r);
        if (o->format == ZT_FORMAT_JSON)
            zt_print_json(stdout, j);
        else if (o->format == ZT_FORMAT_CSV)
            zt_print_csv(stdout, json_object_get(j, "keys"));
        else
            zt_print_json_line(stdout, j);
        json_decref(j);
        return;
    }
    if (!o->out_file && r->yaml)
        fputs(r->yaml, stdout);
    print_report(o->out_file ? stdout : stderr, o->subject, r);
}

int zt_cmd_convert(const struct zt_options *o) {
    struct zt_ds_result r = {0};
    struct zt_error err;
    char *text = NULL;
    size_t bytes = 0;
    int rc = zt_read_text(o->subject, ZT_DS_MAX_BYTES, &text, &bytes, &err);
    if (rc == 0)
        rc = zt_ds_convert(text, bytes, o->subject, o->workers, &r, &err);
    free(text);
    if (rc)
        return zt_report_bare(rc, &err);
    if (r.yaml && o->out_file)
        rc = write_new(o->out_file, r.yaml, &err);
    if (rc == 0)
        print_all(o, &r);
    if (rc == 0 && !r.yaml)
        rc = zt_fail(&err, ZT_EINVAL, "%.200s: nothing was written: %d refused; take %s out, or correct %s, and "
                     "convert again", o->subject, r.count[ZT_DS_REFUSED], r.count[ZT_DS_REFUSED] == 1 ? "it" : "them",
                     r.count[ZT_DS_REFUSED] == 1 ? "it" : "them");
    zt_ds_free(&r);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
