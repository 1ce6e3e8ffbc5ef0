/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/disk_space.c: see disk_space.h. */
#include "clients/zctl/disk_space.h"
#include <string.h>
#include "core/units.h"
#include "engine/checkpoint/write.h"

/* Parameters as they are stored; of what trains also the master, where the recipe has one, and two moments. */
static int64_t bytes_of_one(const struct zt_spec *s) {
    const struct zt_recipe *r = zt_recipe_find(s->precision.recipe);
    struct zt_model_table t;
    struct zt_error err;
    int64_t n = 0;
    if (!r || zt_spec_table(s, &t, &err))
        return 0;
    for (int i = 0; i < t.n_tensors; i++) {
        const struct zt_tensor_def *d = &t.tensors[i];
        int64_t each = (int64_t)zt_dtype_size(zt_recipe_stored(r, !d->frozen));
        each += d->frozen ? 0 : (int64_t)zt_recipe_optimizer_bytes(r);
        n += d->whole[0] * d->whole[1] * each;
    }
    zt_model_table_free(&t);
    return n;
}

static int64_t at_one_time(const struct zt_spec *s, int64_t steps) {
    const int64_t k = s->checkpoint.keep_latest_k, every = s->checkpoint.keep_every;
    if (steps <= 0)
        return k > 0 && every == 0 ? k + 1 : 0;
    const int64_t saves = zt_ceil_div(steps, s->checkpoint.interval);
    const int64_t kept = k == 0 ? saves : k + (every > 0 ? steps / every : 0);
    return kept + 1 < saves ? kept + 1 : saves; /* one goes only when the next is whole */
}

/* The folder, or the nearest above it that is there already. */
static void look(const char *folder, struct zt_disk_space *d) {
    snprintf(d->folder, sizeof d->folder, "%s", folder);
    d->free = -1;
    while (d->folder[0] == '/' && (d->free = zt_ckpt_free_bytes(&zt_sys_posix, d->folder)) < 0) {
        char *slash = strrchr(d->folder, '/');
        if (slash == d->folder && slash[1] == '\0')
            return;
        slash[slash == d->folder] = '\0';
    }
}

bool zt_disk_space(const struct zt_spec *s, int64_t total_steps, struct zt_disk_space *d) {
    memset(d, 0, sizeof *d);
    if (!s->checkpoint.enabled)
        return false;
    d->each = bytes_of_one(s);
    d->most = at_one_time(s, s->training.steps > 0 ? s->training.steps : total_steps);
    d->all = d->each * d->most;
    look(s->checkpoint.folder, d);
    return d->each > 0;
}

const char *zt_disk_space_text(const struct zt_disk_space *d, char *buf, size_t n) {
    char each[32], all[32], left[32];
    int m = snprintf(buf, n, "checkpoints: %s each", zt_format_bytes((double)d->each, each, sizeof each));
    if (d->most > 0 && m > 0 && (size_t)m < n)
        m += snprintf(buf + m, n - (size_t)m, ", at most %lld at a time (%s)", (long long)d->most,
                      zt_format_bytes((double)d->all, all, sizeof all));
    if (d->free >= 0 && m > 0 && (size_t)m < n)
        snprintf(buf + m, n - (size_t)m, "; %s has %s free%s", d->folder, zt_format_bytes((double)d->free, left, sizeof left),
                 zt_disk_space_short(d) ? ": that is not enough" : "");
    return buf;
}

bool zt_disk_space_short(const struct zt_disk_space *d) { return d->free >= 0 && d->all > d->free; }
