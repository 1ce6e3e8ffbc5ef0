/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/run_file.c: run files as they are handed on. Paths of data and of checkpoints are made absolute against the
 * file's folder before they leave this process: workers know nothing of where the file was. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "core/spec_schema.h"

int zt_read_text(const char *path, size_t most, char **text, size_t *bytes, struct zt_error *err) {
    int fd = strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    size_t cap = most + 4096, n = 0;
    char *buf = malloc(cap);
    ssize_t got = 1;
    if (fd < 0 || !buf) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        free(buf);
        return zt_fail(err, ZT_EINVAL, "%s: cannot be read: %s", path, strerror(e));
    }
    while (got != 0 && n < cap) {
        got = read(fd, buf + n, cap - n);
        if (got < 0 && errno != EINTR) {
            int e = errno;
            close(fd);
            free(buf);
            return zt_fail(err, ZT_EINVAL, "%s: cannot be read: %s", path, strerror(e));
        }
        n += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    *text = buf;
    *bytes = n;
    return 0;
}

static int find_folder(struct zt_run_file *f, struct zt_error *err) {
    char copy[ZT_PATH_MAX], full[4096];
    const char *slash = strrchr(f->file, '/');
    snprintf(copy, sizeof copy, "%s", f->file);
    if (!slash || strcmp(f->file, "-") == 0)
        snprintf(copy, sizeof copy, ".");
    else
        copy[slash == f->file ? 1 : slash - f->file] = '\0';
    if (!realpath(copy, full) || strlen(full) >= sizeof f->folder)
        return zt_fail(err, ZT_EINVAL, "%s: cannot find its folder: %s", f->file, strerror(errno));
    memcpy(f->folder, full, strlen(full) + 1);
    return 0;
}

/* One more override of our own. */
static int add_set(struct zt_run_file *f, const char *key, const char *folder, const char *value, struct zt_error *err) {
    ZT_ASSERT((size_t)f->n_added < ZT_RUN_FILE_ADDED);
    char *to = f->added[f->n_added];
    size_t size = sizeof f->added[0];
    int n = folder ? snprintf(to, size, "%s=%s%s%s", key, folder, strcmp(folder, "/") ? "/" : "", value)
                   : snprintf(to, size, "%s=%s", key, value);
    if (n < 0 || (size_t)n >= size || (size_t)n - strlen(key) - 1 >= ZT_PATH_MAX)
        return zt_fail(err, ZT_EINVAL, "%s: the absolute path of %s is longer than %d bytes", f->file, key,
                       ZT_PATH_MAX - 1);
    f->set[f->n_set++] = to;
    f->n_added++;
    return 0;
}

int zt_run_file_set(struct zt_run_file *f, const char *key, const char *value, struct zt_error *err) {
    return add_set(f, key, NULL, value, err);
}

int zt_run_file_parse(struct zt_run_file *f, struct zt_error *err) {
    zt_spec_free(&f->spec);
    return zt_spec_parse(f->text, f->bytes, f->file, f->set, f->n_set, &f->spec, err);
}

/* Those of the command line, and the name. */
int zt_run_file_sets(const struct zt_options *o, struct zt_run_file *f, struct zt_error *err) {
    int rc = 0;
    for (int i = 0; i < o->n_set; i++)
        f->set[f->n_set++] = o->set[i];
    if (o->name)
        rc = add_set(f, "name", NULL, o->name, err);
    return rc ? rc : zt_run_file_parse(f, err);
}

/* Data, checkpoints, and a folder with weights ("fresh" and "run:..." are none). */
static int make_absolute(struct zt_run_file *f, struct zt_error *err) {
    const struct zt_spec *s = &f->spec;
    bool weights = strcmp(s->init_from, "fresh") != 0 && strncmp(s->init_from, "run:", 4) != 0;
    const struct { const char *key, *path; bool is; } paths[] = {
        {"dataset.path", s->dataset.path, true},
        {"validation.path", s->validation.path, true},
        {"checkpoint.folder", s->checkpoint.folder, s->checkpoint.enabled},
        {"model.init_from", s->init_from, weights},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0] && rc == 0; i++)
        if (paths[i].is && paths[i].path[0] && paths[i].path[0] != '/')
            rc = add_set(f, paths[i].key, f->folder, paths[i].path, err);
    return rc;
}

int zt_run_file_load(const struct zt_options *o, struct zt_run_file *f, struct zt_error *err) {
    memset(f, 0, sizeof *f);
    f->resume.step = -1;
    if (strlen(o->subject) >= sizeof f->file)
        return zt_fail(err, ZT_EINVAL, "the file name is longer than %d bytes", ZT_PATH_MAX - 1);
    snprintf(f->file, sizeof f->file, "%s", o->subject);
    int rc = zt_read_text(o->subject, ZT_SPEC_MAX_BYTES, &f->text, &f->bytes, err);
    if (rc == 0)
        rc = find_folder(f, err);
    if (rc)
        return rc;
    rc = zt_run_file_sets(o, f, err);
    int before = f->n_set;
    if (rc == 0)
        rc = make_absolute(f, err);
    if (rc == 0 && f->n_set > before)
        rc = zt_run_file_parse(f, err);
    return rc;
}

void zt_run_file_free(struct zt_run_file *f) {
    free(f->text);
    f->text = NULL;
    zt_spec_free(&f->spec);
}

/* ---------------------------------------------------------------------------------- shorter */

static int set_number(struct zt_run_file *f, const char *key, int64_t v, struct zt_error *err) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v);
    return zt_run_file_set(f, key, text, err);
}

/* A file with epochs cannot be given steps as well: its key becomes the other one, at its place in the text, or the
 * override goes. */
static int drop_epochs(struct zt_run_file *f, struct zt_error *err) {
    static const char key[] = "epochs", set[] = "training.epochs=";
    int row = 0, n = 0;
    while (strcmp(zt_schema_key(row)->path, "training.epochs") != 0)
        row++;
    uint32_t line = f->spec.mark[row].line, column = f->spec.mark[row].column;
    for (int i = 0; i < f->n_set; i++)
        if (strncmp(f->set[i], set, sizeof set - 1) != 0)
            f->set[n++] = f->set[i];
    f->n_set = n;
    size_t at = 0;
    for (uint32_t l = 1; column > 0 && l < line && at < f->bytes; at++)
        l += f->text[at] == '\n';
    at += column > 0 ? column - 1 : 0;
    if (column > 0 && (at + sizeof key - 1 > f->bytes || memcmp(f->text + at, key, sizeof key - 1) != 0))
        return zt_fail(err, ZT_EUNSUPPORTED, "%s:%u:%u: this counts steps, and does not find the key epochs here; write "
                       "training.steps", f->file, line, column);
    if (column > 0)
        memcpy(f->text + at, "steps ", sizeof key - 1);
    return f->spec.training.accumulation_tail == ZT_TAIL_SHORT
               ? 0 : zt_run_file_set(f, "training.accumulation_tail", "short", err);
}

int zt_run_file_shorten(struct zt_run_file *f, int64_t steps, struct zt_error *err) {
    const struct zt_spec *s = &f->spec;
    int64_t warmup = s->metrics.warmup_steps, most = steps > 3 ? steps - 2 : 1;
    bool evaluates = s->validation.enabled, lr = s->lr_scheduler.warmup_steps > steps;
    int rc = s->training.epochs > 0 ? drop_epochs(f, err) : 0;
    if (rc == 0 && lr)
        rc = zt_run_file_set(f, "lr_scheduler.warmup_steps", "0", err);
    if (rc == 0 && warmup > most)
        rc = set_number(f, "metrics.warmup_steps", most, err);
    if (rc == 0 && evaluates)
        rc = set_number(f, "validation.every_steps", steps, err);
    return rc ? rc : set_number(f, "training.steps", steps, err);
}

/* ---------------------------------------------------------------------------------- names of what is there */

int zt_run_at_parse(const char *text, struct zt_run_at *out, struct zt_error *err) {
    const char *at = strrchr(text, '@');
    memset(out, 0, sizeof *out);
    out->step = -1;
    out->folder = strchr(text, '/') != NULL || text[0] == '.';
    size_t n = strlen(text);
    if (!out->folder && at && at != text) { /* "@latest" has its own */
        char *end;
        size_t digits = strspn(at + 1, "0123456789");
        long long v = strtoll(at + 1, &end, 10);
        if (digits == 0 || digits > 15 || at[1 + digits] != '\0')
            return zt_fail(err, ZT_EINVAL, "\"%.80s\": expected RUN or RUN@STEP, e.g. quickstart@1000", text);
        out->step = v;
        n = (size_t)(at - text);
    }
    if (n == 0 || n >= sizeof out->run)
        return zt_fail(err, ZT_EINVAL, "\"%.80s\": expected RUN, RUN@STEP or a folder", text);
    memcpy(out->run, text, n);
    return 0;
}
