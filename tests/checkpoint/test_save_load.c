/* SPDX-License-Identifier: Apache-2.0 */
/* What is written is what is read: every cut read in every other, hashes by formula, names, retention. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/checkpoint/case.h"

static char folder[64];

static void make_folder(void) {
    strcpy(folder, "/tmp/zt-test-ckpt-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_tree(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char inner[512];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (unlink(inner) != 0) remove_tree(inner);
    }
    if (d) closedir(d);
    rmdir(path);
}

static void remove_folder(void) { remove_tree(folder); }

static struct zt_ckpt *open_step(const struct ck_case *c, const struct zt_sha256 *manifest, const char *memory) {
    char path[256];
    struct zt_ckpt *k = NULL;
    struct zt_error err;
    snprintf(path, sizeof path, "%s/step-%08lld", c->folder, (long long)c->step);
    cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.folder = path, .manifest = manifest, .memory = memory}, &k, &err), 0, "%s", err.msg);
    return k;
}

Test(save_load, every_cut_is_read_in_every_other, .init = make_folder, .fini = remove_folder, .timeout = 120) {
    static const int worlds[] = {1, 2, 3, 8};
    for (int cut = 0; cut < CUT_COUNT; cut++)
        for (int w = 0; w < 4; w++) {
            struct ck_case c = ck_make(&zt_sys_posix, folder, worlds[w], (enum cut)cut, 1);
            struct zt_sha256 manifest;
            struct zt_hash128 p, s;
            struct zt_error err;
            bool adopted, full;
            c.step = 10 * cut + w + 1;
            cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
            cr_assert(!adopted && !full);
            struct zt_ckpt *k = open_step(&c, &manifest, NULL);
            ck_hashes(&c, &p, &s);
            const struct zt_manifest *m = zt_ckpt_manifest(k);
            cr_assert(m->parameter_hash.lo == p.lo && m->parameter_hash.hi == p.hi);
            cr_assert(m->state_hash.lo == s.lo && m->state_hash.hi == s.hi);
            cr_assert_eq(zt_ckpt_verify(k, NULL, NULL, &err), 0, "%s", err.msg);
            for (int ask = 0; ask < CUT_COUNT; ask++)
                for (int a = 0; a < 4; a++) {
                    const char *wrong = ck_check_values(&c, k, (enum cut)ask, worlds[a]);
                    cr_assert_str_eq(wrong, "", "cut %d of %d read as cut %d of %d: %s", cut, worlds[w], ask, worlds[a], wrong);
                }
            zt_ckpt_close(k);
            ck_free(&c);
        }
}

Test(save_load, the_position_comes_back, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 2, CUT_FLAT, 1);
    struct zt_sha256 manifest;
    struct zt_manifest want;
    struct zt_shard_written none[2] = {0};
    struct zt_error err;
    bool adopted, full;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    struct zt_ckpt *k = open_step(&c, &manifest, NULL);
    const struct zt_manifest *m = zt_ckpt_manifest(k);
    ck_manifest(&c, none, &want);
    const struct zt_position *a = &m->position, *b = &want.position;
    cr_assert(a->step == b->step && a->updates == b->updates && a->skipped == b->skipped && a->total_steps == b->total_steps);
    cr_assert(a->tokens == b->tokens && a->cursor.epoch == b->cursor.epoch && a->cursor.consumed == b->cursor.consumed);
    cr_assert(a->epoch_samples == b->epoch_samples && a->data_digest == b->data_digest && a->scaled);
    cr_assert(a->scale == b->scale && a->scale_good == 5 && a->scale_hysteresis_left == 2); /* to the bit: no third of 65536 is short */
    cr_assert_str_eq(m->spec, want.spec);
    cr_assert_str_eq(m->run_id, "r-1");
    cr_assert_eq(m->created_ms, want.created_ms);
    for (int t = 0; t < c.n_tensors; t++) cr_assert_eq(memcmp(m->tensors[t].shape, c.tensors[t].shape, sizeof c.tensors[t].shape), 0);
    free(want.ranks);
    zt_ckpt_close(k);
    ck_free(&c);
}
