/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/import.c: `zctl import DIR [--out FOLDER]`. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "core/units.h"
#include "engine/checkpoint/hf_import.h"
#include "engine/checkpoint/weights.h"

/* "models/Qwen2.5-0.5B/" -> "Qwen2.5-0.5B-ztrain" */
static int default_folder(const char *from, char *to, size_t n, struct zt_error *err) {
    size_t end = strlen(from), begin;
    while (end > 1 && from[end - 1] == '/')
        end--;
    for (begin = end; begin > 0 && from[begin - 1] != '/';)
        begin--;
    if (end - begin + 8 > n || from[begin] == '.' || begin == end)
        return zt_fail(err, ZT_EINVAL, "zctl import %.200s: give the folder to make: --out FOLDER", from);
    snprintf(to, n, "%.*s-ztrain", (int)(end - begin), from + begin);
    return 0;
}

/* For a run file that may lie anywhere. */
static int absolute(const char *folder, char *to, size_t n, struct zt_error *err) {
    char here[ZT_PATH_MAX] = "";
    if (folder[0] != '/' && !getcwd(here, sizeof here))
        return zt_fail(err, ZT_EIO, "the current folder is not known");
    if (snprintf(to, n, "%s%s%s", here, here[0] ? "/" : "", folder) >= (int)n)
        return zt_fail(err, ZT_EINVAL, "%.200s...: the path is too long", folder);
    return 0;
}

static void tell(const struct zt_options *o, const struct zt_hf *h, const char *folder, const char *section,
                 const struct zt_hf_imported *done) {
    const struct zt_hf_config *c = zt_hf_config(h);
    char hash[33], bytes[32], count[32];
    snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)done->parameter_hash.hi,
             (unsigned long long)done->parameter_hash.lo);
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = json_object();
        json_object_set_new(j, "folder", zt_json_text(folder));
        json_object_set_new(j, "model_type", zt_json_text(c->type));
        json_object_set_new(j, "parameters", json_integer(zt_hf_table(h)->parameters));
        json_object_set_new(j, "dtype", zt_json_text(zt_dtype_name(zt_hf_type(h, 0))));
        json_object_set_new(j, "bytes", json_integer(done->bytes));
        json_object_set_new(j, "parameter_hash", zt_json_text(hash));
        json_object_set_new(j, "model", zt_json_text(section));
        json_object_set_new(j, "note", zt_json_text(c->note));
        if (o->format == ZT_FORMAT_JSON)
            zt_print_json(stdout, j);
        else
            zt_print_json_line(stdout, j);
        json_decref(j);
        return;
    }
    char *safe = zt_escape(folder, strlen(folder), false), *note = zt_escape(c->note, strlen(c->note), false);
    fprintf(stderr, "%s: %s, %s parameters, %s in %s/step-00000000, parameter hash %s\n", safe ? safe : "", c->type,
            zt_format_count(zt_hf_table(h)->parameters, count, sizeof count),
            zt_format_bytes((double)done->bytes, bytes, sizeof bytes), safe ? safe : "", hash);
    if (c->note[0])
        fprintf(stderr, "note: %s\n", note ? note : "");
    fprintf(stderr, "weights are stored as the files have them (%s first); precision.recipe alone decides what a run trains in\n"
                    "the section of a run file that begins from them:\n", zt_dtype_name(zt_hf_type(h, 0)));
    fputs(section, stdout);
    free(safe);
    free(note);
}

int zt_cmd_import(const struct zt_options *o) {
    struct zt_hf *h = NULL;
    struct zt_hf_imported done;
    struct zt_error err;
    char folder[ZT_PATH_MAX], place[ZT_PATH_MAX];
    char *section = NULL;
    int rc = o->out_folder ? absolute(o->out_folder, place, sizeof place, &err)
                           : default_folder(o->subject, folder, sizeof folder, &err);
    if (rc == 0 && !o->out_folder)
        rc = absolute(folder, place, sizeof place, &err);
    if (rc == 0)
        rc = zt_hf_open(NULL, o->subject, &h, &err);
    if (rc == 0) {
        struct zt_hf_import x = {.from = h, .folder = place, .version = ZT_VERSION};
        rc = zt_hf_import(&x, &done, &err);
    }
    if (rc == 0 && !(section = zt_model_section(&zt_hf_config(h)->model, place)))
        rc = zt_fail(&err, ZT_ENOMEM, "no host memory");
    if (rc == 0)
        tell(o, h, place, section, &done);
    free(section);
    zt_hf_close(h);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
