/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/export.c: `zctl export RUN@STEP DIR`, and how export and sample find weights. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/checkpoint.h"
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/weights.h"
#include "core/units.h"
#include "engine/checkpoint/hf_export.h"

static bool is_folder(const char *folder, const char *file) {
    char path[ZT_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "re");
    if (f)
        fclose(f);
    return f != NULL;
}

int zt_find_weights(const struct zt_options *o, const char *text, struct zt_weights *w, struct zt_error *err) {
    struct zt_source s = {0};
    struct zt_found_checkpoint f;
    if (is_folder(text, "config.json") || is_folder(text, "manifest.json"))
        return zt_weights_open(NULL, text, NULL, w, err);
    int rc = zt_find_checkpoint(o, text, &s, &f, err);
    zt_source_close(&s);
    return rc ? rc : zt_weights_open(NULL, f.folder, f.known ? &f.manifest : NULL, w, err);
}

/* Unless told otherwise, as what is written is stored: of adapters beside a bf16 model, theirs. */
static int format_of(const struct zt_options *o, const struct zt_weights *w, enum zt_dtype *t, struct zt_error *err) {
    if (!o->dtype)
        *t = zt_weights_type(w, zt_weights_adapted(w) && !o->merge_lora) == ZT_BF16 ? ZT_BF16 : ZT_F32;
    else if (strcmp(o->dtype, "bf16") == 0)
        *t = ZT_BF16;
    else if (strcmp(o->dtype, "fp32") == 0)
        *t = ZT_F32;
    else
        return zt_fail(err, ZT_EINVAL, "--dtype %.60s: expected bf16 or fp32", o->dtype);
    return 0;
}

static void tell(const struct zt_options *o, const struct zt_weights *w, const struct zt_hf_export *x,
                 const struct zt_hf_exported *done) {
    char bytes[32];
    if (o->format != ZT_FORMAT_TABLE) {
        json_t *j = json_object();
        json_object_set_new(j, "folder", zt_json_text(x->folder));
        json_object_set_new(j, "from", zt_json_text(w->folder));
        json_object_set_new(j, "dtype", zt_json_text(zt_dtype_name(x->type)));
        json_object_set_new(j, "tensors", json_integer(done->tensors));
        json_object_set_new(j, "files", json_integer(done->files));
        json_object_set_new(j, "bytes", json_integer(done->bytes));
        json_object_set_new(j, "adapters_only", json_boolean(done->adapters));
        if (o->format == ZT_FORMAT_JSON)
            zt_print_json(stdout, j);
        else
            zt_print_json_line(stdout, j);
        json_decref(j);
        return;
    }
    char *folder = zt_escape(x->folder, strlen(x->folder), false), *from = zt_escape(w->folder, strlen(w->folder), false);
    printf("%s: %d tensors, %s in %s, %d file%s, from %s\n", folder ? folder : "", done->tensors,
           zt_format_bytes((double)done->bytes, bytes, sizeof bytes), zt_dtype_name(x->type), done->files,
           done->files == 1 ? "" : "s", from ? from : "");
    if (done->adapters)
        printf("the adapters alone, in PEFT's format; --merge-lora writes the whole model with them merged\n");
    free(folder);
    free(from);
}

int zt_cmd_export(const struct zt_options *o) {
    struct zt_weights w = {0};
    struct zt_hf_exported done;
    struct zt_error err;
    char folder[ZT_PATH_MAX];
    struct zt_hf_export x = {.from = &w, .folder = folder, .merge = o->merge_lora,
                             .file_bytes = (int64_t)(o->max_shard_gib * (double)ZT_GIB)};
    int rc = 0, n = snprintf(folder, sizeof folder, "%s", o->other);
    if (n >= (int)sizeof folder)
        rc = zt_fail(&err, ZT_EINVAL, "%.200s...: the path is too long", o->other);
    while (n > 1 && n < (int)sizeof folder && folder[n - 1] == '/')
        folder[--n] = '\0';
    if (rc == 0)
        rc = zt_find_weights(o, o->subject, &w, &err);
    if (rc == 0 && w.hugging_face)
        rc = zt_fail(&err, ZT_EINVAL, "%.200s: is a Hugging Face folder already", w.folder);
    if (rc == 0)
        rc = format_of(o, &w, &x.type, &err);
    if (rc == 0) {
        const char *from = w.spec->init_from;
        x.base = strcmp(from, "fresh") != 0 && strncmp(from, "run:", 4) != 0 ? from : NULL;
        rc = zt_hf_export(&x, &done, &err);
    }
    if (rc == 0)
        tell(o, &w, &x, &done);
    zt_weights_close(&w);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
