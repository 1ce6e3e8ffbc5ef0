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

/* ---- reading ---- */

static int64_t counted;
static ssize_t count_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    const ssize_t got = zt_sys_posix.pread(zt_sys_posix.arg, fd, buf, n, at);
    (void)arg;
    if (got > 0) counted += got;
    return got;
}

/* Who asks tensor by tensor, as each rank of another mesh does, gets every byte once, however short the runs
 * are; the buffers stay in their bound. */
Test(save_load, each_piece_is_read_once, .init = make_folder, .fini = remove_folder, .timeout = 240) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 4, CUT_COLUMNS, 14000); /* more than the buffers; runs of 2 elements in wte */
    struct zt_sys sys = zt_sys_posix;
    struct zt_sha256 manifest;
    struct zt_error err;
    struct zt_ckpt *k;
    char path[256];
    bool adopted, full;
    sys.pread = count_pread;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    snprintf(path, sizeof path, "%s/step-00000010", folder);
    for (int ask = 0; ask < CUT_COUNT; ask++) {
        int64_t whole = 0;
        cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.sys = &sys, .folder = path, .manifest = &manifest}, &k, &err), 0, "%s", err.msg);
        for (int r = 0; r < 4; r++) whole += zt_ckpt_manifest(k)->ranks[r].bytes;
        cr_assert(whole > 64 << 20, "%lld bytes fit in the buffers", (long long)whole);
        counted = 0;
        cr_assert_str_eq(ck_check_values(&c, k, (enum cut)ask, 1), "");
        struct zt_tensor_source s = zt_ckpt_source(k);
        cr_assert_leq(counted, whole, "%lld bytes read of %lld", (long long)counted, (long long)whole);
        cr_assert_eq(s.read_bytes(s.arg, false), counted);
        cr_assert_eq(s.read_bytes(s.arg, true), 0);
        cr_assert_leq(s.buffer_bytes(s.arg), 64 << 20);
        s.close(s.arg);
    }
    ck_free(&c);
}

static int read_at(struct zt_tensor_source *s, const char *name, enum zt_saved kind, int ndim, int64_t rows, int64_t columns, void *out, struct zt_error *err) {
    const int64_t shape[2] = {rows, columns};
    return s->read(s->arg, name, kind, ndim, shape, zt_span_plain(0, rows * columns), rows * columns, ZT_BF16, out, err);
}

Test(save_load, what_does_not_fit_is_refused_by_name, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 2, CUT_FLAT, 1);
    struct zt_sha256 manifest, other = {{1}};
    struct zt_error err;
    struct zt_ckpt *k;
    uint16_t out[1024];
    char path[256];
    bool adopted, full;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    struct zt_tensor_source s = zt_ckpt_source(open_step(&c, &manifest, NULL));
    cr_assert_eq(read_at(&s, "wte.weight", ZT_SAVED_MASTER, 2, 13, 8, out, &err), 0, "%s", err.msg);
    for (int i = 0; i < 13 * 8; i++) cr_assert_eq(out[i], zt_bf16_narrow(ck_value(&c, 0, ZT_SAVED_MASTER, i)));
    cr_assert_eq(read_at(&s, "wte.weight", ZT_SAVED_PARAMETER, 2, 14, 8, out, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "wte.weight") && strstr(err.msg, "[13, 8]") && strstr(err.msg, "[14, 8]"), "%s", err.msg);
    cr_assert_eq(read_at(&s, "wte.weight", ZT_SAVED_PARAMETER, 1, 104, 1, out, &err), ZT_EINVAL);
    cr_assert_eq(read_at(&s, "wpe.weight", ZT_SAVED_PARAMETER, 2, 13, 8, out, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "no tensor wpe.weight"), "%s", err.msg);
    cr_assert_eq(read_at(&s, "h.0.frozen.weight", ZT_SAVED_M, 2, 5, 9, out, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "h.0.frozen.weight.exp_avg"), "%s", err.msg);
    cr_assert_str_eq(s.name_at(s.arg, 0), "wte.weight");
    cr_assert_null(s.name_at(s.arg, c.n_tensors));
    s.close(s.arg);
    snprintf(path, sizeof path, "%s/step-00000010", folder);
    cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.folder = path, .manifest = &other}, &k, &err), ZT_ECORRUPT);
    cr_assert(strstr(err.msg, "is not what was committed"), "%s", err.msg);
    ck_free(&c);
}

/* A copy of rank files in memory is used where its hashes are right, piece by piece; a stale or damaged one is
 * passed over. */
Test(save_load, copies_in_memory, .init = make_folder, .fini = remove_folder, .timeout = 60) {
    char memory[80], from[512], to[512];
    struct zt_sha256 manifest;
    struct zt_error err;
    bool adopted, full;
    snprintf(memory, sizeof memory, "%s/memory", folder);
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, memory, 0700), 0);
    struct ck_case c = ck_make(&zt_sys_posix, folder, 2, CUT_FLAT, 1);
    c.memory = memory;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    /* the images, which the trainer keeps there itself */
    const char *const files[] = {"shard-%05d-model-00001-of-00002.safetensors", "shard-%05d-model-00002-of-00002.safetensors",
                                 "optim-%05d-00001-of-00002.safetensors", "optim-%05d-00002-of-00002.safetensors"};
    for (int damaged = 0; damaged < 3; damaged++) {
        for (int r = 0; r < 2; r++)
            for (int f = 0; f < 4; f++) {
                char name[96], *data;
                size_t n;
                snprintf(name, sizeof name, files[f], r + 1);
                snprintf(from, sizeof from, "%s/step-00000010/%s", folder, name);
                snprintf(to, sizeof to, "%s/%s", memory, name);
                if (zt_sys_read_file(&zt_sys_posix, from, 1 << 20, &data, &n) != 0) continue; /* not every rank has a second rectangle */
                if (damaged == 1 && r == 1) data[n - 1] ^= 1;
                cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, to, data, n, 0600), 0);
                free(data);
            }
        if (damaged == 2) { /* an older index: the whole rank is passed over */
            snprintf(to, sizeof to, "%s/rank-00001.json", memory);
            cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, to, "{}", 2, 0600), 0);
        }
        struct zt_ckpt *k = open_step(&c, &manifest, memory);
        struct zt_tensor_source s = zt_ckpt_source(k);
        cr_assert_str_eq(ck_check_values(&c, k, CUT_FLAT, 1), "");
        const int64_t disk = s.read_bytes(s.arg, false), mem = s.read_bytes(s.arg, true);
        if (damaged == 0) cr_assert(disk == 0 && mem > 0, "%lld from the disk", (long long)disk);
        if (damaged == 1) cr_assert(disk > 0 && mem > 0);
        if (damaged == 2) cr_assert(disk > 0 && mem > 0);
        s.close(s.arg);
    }
    ck_free(&c);
}

/* ---- writing ---- */

/* One value that is not finite, in every kind and type, anywhere: nothing is written that could be published. */
Test(save_load, what_is_not_finite_is_never_kept, .init = make_folder, .fini = remove_folder, .timeout = 60) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 1, CUT_FLAT, 40);
    struct ck_pieces p = ck_pieces(&c, 0);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < p.n; i++) {
        const int64_t n = p.v[i].rect.size[0] * p.v[i].rect.size[1], at = (n - 1) * (i % 3) / 2; /* first, middle, last */
        const int64_t size = (int64_t)zt_dtype_size(p.v[i].type);
        char *element = (char *)(uintptr_t)p.v[i].values + at * size, good[4], name[128], place[64];
        struct zt_shard_write w = {.sys = &zt_sys_posix, .folder = folder, .step = 10, .generation = 1, .tensors = c.tensors, .n_tensors = c.n_tensors,
                                   .pieces = p.v, .n_pieces = p.n};
        struct zt_shard_written out;
        struct zt_error err;
        bool full;
        memcpy(good, element, (size_t)size);
        zt_convert(element, p.v[i].type, &bad[i % 3], ZT_F32, 1);
        cr_assert_eq(zt_shard_write(&w, &out, &full, &err), ZT_ENAN, "piece %d", i);
        memcpy(element, good, (size_t)size);
        const struct zt_saved_tensor *t = &c.tensors[p.v[i].tensor];
        const int64_t row = p.v[i].rect.from[0] + at / p.v[i].rect.size[1], column = p.v[i].rect.from[1] + at % p.v[i].rect.size[1];
        snprintf(name, sizeof name, "%s%s[", t->name, zt_saved_suffix(p.v[i].kind));
        if (t->ndim == 2)
            snprintf(place, sizeof place, "[%lld, %lld]", (long long)row, (long long)column);
        else
            snprintf(place, sizeof place, "[%lld]", (long long)row);
        cr_assert(strstr(err.msg, name) && strstr(err.msg, place), "%s, not %s%s", err.msg, name, place);
        char temp[128];
        snprintf(temp, sizeof temp, "%s/step-00000010.tmp-g1", folder);
        DIR *d = opendir(temp);
        int entries = 0;
        for (struct dirent *e; d && (e = readdir(d));) entries += e->d_name[0] != '.';
        if (d) closedir(d);
        cr_assert_eq(entries, 0, "%d files are left", entries);
    }
    ck_pieces_free(&p);
    ck_free(&c);
}

static bool stop_at_once(void *arg, int64_t bytes) {
    (void)bytes;
    return --*(int *)arg > 0;
}

Test(save_load, a_write_can_be_stopped, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 1, CUT_FLAT, 1);
    struct ck_pieces p = ck_pieces(&c, 0);
    int left = 2;
    struct zt_shard_write w = {.sys = &zt_sys_posix, .folder = folder, .step = 10, .generation = 1, .tensors = c.tensors, .n_tensors = c.n_tensors,
                               .pieces = p.v, .n_pieces = p.n, .progress = stop_at_once, .arg = &left};
    struct zt_shard_written out;
    struct zt_error err;
    bool full;
    cr_assert_eq(zt_shard_write(&w, &out, &full, &err), ZT_ECANCELLED);
    cr_assert(!full);
    cr_assert_eq(zt_ckpt_discard(&zt_sys_posix, folder, 10, 1, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_ckpt_discard(&zt_sys_posix, folder, 10, 1, &err), 0, "a second time: %s", err.msg);
    char temp[128];
    snprintf(temp, sizeof temp, "%s/step-00000010.tmp-g1", folder);
    cr_assert_neq(access(temp, F_OK), 0);
    ck_pieces_free(&p);
    ck_free(&c);
}

/* A folder that is not shared is found when it is published: rank 1 wrote elsewhere. */
Test(save_load, a_folder_that_is_not_shared, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 2, CUT_FLAT, 1), there = c;
    struct zt_shard_written parts[2];
    struct zt_manifest m;
    struct zt_sha256 manifest;
    struct zt_error err;
    char elsewhere[80], path[256];
    bool adopted, full;
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    there.folder = elsewhere;
    cr_assert_eq(ck_write_rank(&c, 0, &parts[0], &full, &err), 0);
    cr_assert_eq(ck_write_rank(&there, 1, &parts[1], &full, &err), 0);
    ck_manifest(&c, parts, &m);
    cr_assert_eq(zt_ckpt_publish(&zt_sys_posix, folder, &m, &manifest, &adopted, &full, &err), ZT_EIO);
    cr_assert(strstr(err.msg, "rank 1") && strstr(err.msg, folder) && strstr(err.msg, "host"), "%s", err.msg);
    snprintf(path, sizeof path, "%s/step-00000010", folder);
    cr_assert_neq(access(path, F_OK), 0);
    free(m.ranks);
    ck_free(&c);
}

static void save(struct ck_case *c, struct zt_sha256 *manifest, bool *adopted) {
    struct zt_error err;
    bool full;
    cr_assert_eq(ck_save(c, manifest, adopted, &full, &err), 0, "%s", err.msg);
}

/* A final folder without a row: the same values are adopted under the manifest that is there, others, and a
 * damaged one, are moved out of the way. */
Test(save_load, a_folder_that_was_never_committed, .init = make_folder, .fini = remove_folder, .timeout = 60) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 2, CUT_FLAT, 1);
    struct zt_sha256 first, second;
    struct zt_error err;
    bool adopted;
    save(&c, &first, &adopted);
    cr_assert(!adopted);
    c.generation = 2;
    c.cut = CUT_COLUMNS; /* another mesh, the same values */
    save(&c, &second, &adopted);
    cr_assert(adopted);
    cr_assert(zt_sha256_same(&first, &second));
    cr_assert_eq(ck_open_and_verify(&c, &first, &err), 0, "%s", err.msg);
    c.generation = 3;
    c.salt = 5; /* other values */
    save(&c, &second, &adopted);
    cr_assert(!adopted);
    cr_assert(!zt_sha256_same(&first, &second));
    cr_assert_eq(ck_open_and_verify(&c, &second, &err), 0, "%s", err.msg);
    char path[256];
    snprintf(path, sizeof path, "%s/step-00000010/shard-00001-model-00001-of-00003.safetensors", folder);
    int fd = open(path, O_RDWR);
    if (fd < 0) {
        snprintf(path, sizeof path, "%s/step-00000010/shard-00001-model-00001-of-00001.safetensors", folder);
        fd = open(path, O_RDWR);
    }
    cr_assert(fd >= 0, "%s", path);
    cr_assert_eq(pwrite(fd, "x", 1, 700), 1);
    close(fd);
    c.generation = 4; /* the same values, but the folder is damaged */
    save(&c, &second, &adopted);
    cr_assert(!adopted);
    cr_assert_eq(ck_open_and_verify(&c, &second, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_ckpt_sweep(&zt_sys_posix, folder, 5, &err), 2, "what was moved away");
    ck_free(&c);
}

/* Steps are numbers, whatever their digits (a sort by name would put 100000000 before 99999999). */
Test(save_load, steps_are_listed_as_numbers, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    static const int64_t made[] = {8, 9, 10, 11, 12, 99999999, 100000000, 1099511627776};
    static const char *const others[] = {"step-00000007.tmp-g1", "step-00000006.tmp-g2", "trash", "step-13", "notes"};
    int64_t *steps;
    int n;
    char path[256];
    struct zt_error err;
    for (size_t i = 8; i-- > 0;) {
        char name[32];
        zt_ckpt_step_name(made[i], name);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        cr_assert_eq(zt_sys_posix.mkdir(NULL, path, 0755), 0);
    }
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        cr_assert_eq(zt_sys_posix.mkdir(NULL, path, 0755), 0);
    }
    cr_assert_eq(zt_ckpt_list(&zt_sys_posix, folder, &steps, &n, &err), 0);
    cr_assert_eq(n, 8);
    for (int i = 0; i < 8; i++) cr_assert_eq(steps[i], made[i]);
    free(steps);
    /* only temporary folders of generations before this one are swept */
    cr_assert_eq(zt_ckpt_sweep(&zt_sys_posix, folder, 2, &err), 1);
    snprintf(path, sizeof path, "%s/step-00000006.tmp-g2", folder);
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(zt_ckpt_remove(&zt_sys_posix, folder, 9, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_ckpt_remove(&zt_sys_posix, folder, 9, &err), 0, "a second time: %s", err.msg);
    cr_assert_eq(zt_ckpt_list(&zt_sys_posix, folder, &steps, &n, &err), 0);
    cr_assert(n == 7 && steps[1] == 10);
    free(steps);
    snprintf(path, sizeof path, "%s/none", folder);
    cr_assert_eq(zt_ckpt_list(&zt_sys_posix, path, &steps, &n, &err), 0);
    cr_assert_eq(n, 0);
    free(steps);
    cr_assert_eq(zt_ckpt_sweep(&zt_sys_posix, path, 2, &err), 0);
    cr_assert_eq(zt_ckpt_remove(&zt_sys_posix, path, 9, &err), 0, "%s", err.msg);
    cr_assert_neq(access(path, F_OK), 0, "removing what is not there makes folders");
    cr_assert(zt_ckpt_free_bytes(&zt_sys_posix, path) > 0);
}

/* The layout does not depend on step, generation or values, and is that of the file. */
Test(save_load, the_layout_is_that_of_the_files, .init = make_folder, .fini = remove_folder, .timeout = 30) {
    struct ck_case c = ck_make(&zt_sys_posix, folder, 3, CUT_FLAT, 3);
    struct zt_sha256 manifest;
    bool adopted;
    save(&c, &manifest, &adopted);
    for (int r = 0; r < 3; r++) {
        struct ck_pieces p = ck_pieces(&c, r);
        struct zt_shard_write w = {.step = 123456789012, .generation = 77, .rank = r, .tensors = c.tensors, .n_tensors = c.n_tensors, .pieces = p.v, .n_pieces = p.n};
        struct zt_shard_layout l;
        struct zt_error err;
        int64_t bytes = 0;
        cr_assert_eq(zt_shard_layout_build(&w, &l, &err), 0, "%s", err.msg);
        for (int f = 0; f < l.n_files; f++) {
            char path[256], *data, *head = malloc((size_t)l.files[f].head_bytes);
            size_t n;
            snprintf(path, sizeof path, "%s/step-00000010/%s", folder, l.files[f].name);
            cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, 1 << 20, &data, &n), 0, "%s", path);
            cr_assert_eq((int64_t)n, l.files[f].bytes);
            zt_shard_head(&l, f, head);
            cr_assert_arr_eq(data, head, (size_t)l.files[f].head_bytes);
            for (int i = 0; i < p.n; i++) {
                const int64_t size = (int64_t)zt_dtype_size(p.v[i].type);
                if (l.file_of[i] != f) continue;
                cr_assert_eq(l.at[i] % size, 0);
                cr_assert_arr_eq(data + l.at[i], p.v[i].values, (size_t)(size * p.v[i].rect.size[0] * p.v[i].rect.size[1]));
            }
            bytes += l.files[f].bytes;
            free(head);
            free(data);
        }
        cr_assert_eq(bytes, l.bytes);
        zt_shard_layout_free(&l);
        ck_pieces_free(&p);
    }
    ck_free(&c);
}
