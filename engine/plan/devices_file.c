/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/devices_file.c: where the user's tables of devices are, and writing one: see
 * devices.h. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/plan/devices.h"

static int user_path(const char *variable, const char *otherwise, char *path, size_t n,
                     struct zt_error *err) {
    const char *xdg = getenv(variable), *home = getenv("HOME");
    int m = -1;
    if (xdg && xdg[0] == '/')
        m = snprintf(path, n, "%s/ztrain/devices.json", xdg);
    else if (home && home[0] == '/')
        m = snprintf(path, n, "%s/%s/ztrain/devices.json", home, otherwise);
    else
        return zt_fail(err, ZT_EINVAL, "no place for devices.json: HOME is not set");
    return m > 0 && (size_t)m < n ? ZT_OK
                                  : zt_fail(err, ZT_EINVAL, "the path of devices.json is too long");
}

int zt_devices_state_path(char *path, size_t n, struct zt_error *err) {
    return user_path("XDG_STATE_HOME", ".local/state", path, n, err);
}

int zt_devices_config_path(char *path, size_t n, struct zt_error *err) {
    return user_path("XDG_CONFIG_HOME", ".config", path, n, err);
}

static int make_folder_of(const char *path, struct zt_error *err) {
    char copy[4096];
    if ((size_t)snprintf(copy, sizeof copy, "%s", path) >= sizeof copy)
        return zt_fail(err, ZT_EINVAL, "%.60s...: the path is too long", path);
    for (char *p = strchr(copy + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(copy, 0700) < 0 && errno != EEXIST)
            return zt_fail(err, ZT_EIO, "cannot make the folder %s: %s", copy, strerror(errno));
        *p = '/';
    }
    return ZT_OK;
}

static int replace_file(const char *path, const char *text, struct zt_error *err) {
    char temporary[4200];
    snprintf(temporary, sizeof temporary, "%s.%d.tmp", path, (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return zt_fail(err, ZT_EIO, "cannot write %s: %s", temporary, strerror(errno));
    size_t n = strlen(text), done = 0;
    bool bad = false;
    while (!bad && done < n) {
        ssize_t k = write(fd, text + done, n - done);
        bad = k < 0 && errno != EINTR;
        done += k > 0 ? (size_t)k : 0;
    }
    bad = bad || fsync(fd) < 0;
    bad = close(fd) < 0 || bad;
    if (!bad && rename(temporary, path) == 0) return ZT_OK;
    int rc = zt_fail(err, ZT_EIO, "cannot write %s: %s", path, strerror(errno));
    unlink(temporary);
    return rc;
}

/* The file's list with `entry` in it; a new one where there is no file. */
static json_t *with_entry(const char *path, json_t *entry) {
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, NULL), *list, *o;
    const char *name = json_string_value(json_object_get(entry, "name"));
    size_t i;
    if (!root) root = json_pack("{s:i, s:[]}", "version", 1, "devices");
    list = json_object_get(root, "devices");
    json_array_foreach(list, i, o) {
        const char *other = json_string_value(json_object_get(o, "name"));
        if (other && strcmp(other, name) == 0) {
            json_array_set(list, i, entry);
            return root;
        }
    }
    json_array_append(list, entry);
    return root;
}

int zt_devices_write(const char *path, const char *entry, struct zt_error *err) {
    struct zt_devices *t = NULL;
    json_t *o = NULL, *one = NULL, *all = NULL;
    char *text = NULL;
    int rc = zt_devices_builtin(&t, err);
    if (rc == 0) {
        o = json_loads(entry, JSON_REJECT_DUPLICATES, NULL);
        one = o ? json_pack("{s:i, s:[O]}", "version", 1, "devices", o) : NULL;
        text = one ? json_dumps(one, JSON_COMPACT) : NULL;
        rc = text ? zt_devices_add_text(t, text, strlen(text), "the new entry", err)
                  : zt_fail(err, ZT_EINVAL, "the new entry is no JSON object");
        free(text);
        text = NULL;
    }
    if (rc == 0) {
        rc = zt_devices_add_file(t, path, err);
        if (rc == ZT_ENOTFOUND)
            rc = 0;
        else if (rc)
            zt_fail_prefix(err, "nothing was written");
    }
    if (rc == 0) rc = make_folder_of(path, err);
    if (rc == 0) {
        all = with_entry(path, o);
        text = all ? json_dumps(all, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
        rc = text ? replace_file(path, text, err) : zt_fail(err, ZT_ENOMEM, "no memory");
    }
    free(text);
    json_decref(all);
    json_decref(one);
    json_decref(o);
    zt_devices_free(t);
    return rc;
}
