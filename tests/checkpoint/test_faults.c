/* SPDX-License-Identifier: Apache-2.0 */
/* A save over an older checkpoint, its publication and the older one's removal, on a file system in memory:
 * every call fails once, the disk is full at every byte, power goes at every call and keeps any subset of
 * what was pending. The checkpoint that the database would name opens and verifies each time, and a later
 * attempt succeeds. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/checkpoint/case.h"
#include "tests/checkpoint/memfs.h"

#define FOLDER "/data/runs/r-1"

/* What the database says: it is written when a publication has returned. */
struct row { int64_t step; struct zt_sha256 manifest; };

static struct ck_case step_case(const struct zt_sys *sys, int64_t step, uint32_t generation) {
    struct ck_case c = ck_make(sys, FOLDER, 2, CUT_FLAT, 1);
    c.step = step;
    c.generation = generation;
    c.salt = (int)step; /* step 20 holds other values than step 10 */
    return c;
}

/* Saves step 20, commits it, lets step 10 go. *row is what counts, whatever comes. */
static int save_and_remove(const struct zt_sys *sys, uint32_t generation, struct row *row, bool *disk_full, struct zt_error *err) {
    struct ck_case c = step_case(sys, 20, generation);
    struct zt_sha256 manifest;
    bool adopted;
    int rc = ck_save(&c, &manifest, &adopted, disk_full, err);
    ck_free(&c);
    if (rc) return rc;
    *row = (struct row){20, manifest};
    return zt_ckpt_remove(sys, FOLDER, 10, err);
}

static struct memfs *with_step_10(struct row *row) {
    struct memfs *fs = memfs_new();
    const struct zt_sys sys = memfs_sys(fs);
    struct ck_case c = step_case(&sys, 10, 1);
    struct zt_error err;
    bool adopted, full;
    cr_assert_eq(ck_save(&c, &row->manifest, &adopted, &full, &err), 0, "%s", err.msg);
    row->step = 10;
    ck_free(&c);
    return fs;
}

/* The row's checkpoint is whole; a folder that has step 20's final name is whole too. */
static void check_row(struct memfs *fs, const struct row *row, const char *when, int64_t n) {
    const struct zt_sys sys = memfs_sys(fs);
    struct zt_error err;
    memfs_power_off_at(fs, 0);
    memfs_room(fs, -1);
    struct ck_case c = step_case(&sys, row->step, 1);
    cr_assert_eq(ck_open_and_verify(&c, &row->manifest, &err), 0, "%s %lld: step %lld: %s", when, (long long)n, (long long)row->step, err.msg);
    ck_free(&c);
    struct ck_case d = step_case(&sys, 20, 1);
    const int rc = ck_open_and_verify(&d, NULL, &err);
    cr_assert(rc == 0 || rc == ZT_ENOTFOUND, "%s %lld: a final name without a whole checkpoint: %s", when, (long long)n, err.msg);
    ck_free(&d);
}

/* The next generation sweeps, saves the step again and removes the older one: nothing else is left. */
static void check_recovery(struct memfs *fs, struct row row, const char *when, int64_t n) {
    const struct zt_sys sys = memfs_sys(fs);
    struct zt_error err;
    int64_t *steps;
    int count;
    bool full;
    cr_assert(zt_ckpt_sweep(&sys, FOLDER, 2, &err) >= 0, "%s %lld: %s", when, (long long)n, err.msg);
    check_row(fs, &row, when, n);
    cr_assert_eq(save_and_remove(&sys, 2, &row, &full, &err), 0, "%s %lld: %s", when, (long long)n, err.msg);
    check_row(fs, &row, when, n);
    cr_assert_eq(zt_ckpt_sweep(&sys, FOLDER, 3, &err) >= 0, true);
    cr_assert_eq(zt_ckpt_list(&sys, FOLDER, &steps, &count, &err), 0);
    cr_assert(count == 1 && steps[0] == 20);
    free(steps);
    for (int i = 0; memfs_file_at(fs, i); i++)
        cr_assert_eq(strncmp(memfs_file_at(fs, i), FOLDER "/step-00000020/", strlen(FOLDER) + 15), 0, "%s %lld: %s is left", when, (long long)n, memfs_file_at(fs, i));
}

Test(ckpt_faults, every_file_call_fails_once, .timeout = 240) {
    static const int errors[] = {EIO, ENOSPC, EACCES};
    for (int e = 0; e < 3; e++)
        for (int64_t n = 1;; n++) {
            struct row row;
            struct zt_error err;
            bool full = false;
            struct memfs *fs = with_step_10(&row);
            const struct zt_sys real = memfs_sys(fs);
            struct zt_sys_nth nth = {.real = &real, .fail_at = n, .error = errors[e]};
            const struct zt_sys sys = zt_sys_fail_nth(&nth);
            const int rc = save_and_remove(&sys, 1, &row, &full, &err);
            if (nth.calls < n) {
                cr_assert_eq(rc, 0, "%s", err.msg);
                cr_assert(n > 100, "the sequence has only %lld calls", (long long)n);
                memfs_free(fs);
                break;
            }
            if (rc != 0 && row.step == 10) cr_assert(err.code == ZT_EIO || err.code == ZT_ECORRUPT, "%lld: %s", (long long)n, err.msg);
            check_row(fs, &row, "call", n);
            check_recovery(fs, row, "call", n);
            memfs_free(fs);
        }
}

Test(ckpt_faults, the_disk_is_full_at_every_write, .timeout = 240) {
    bool ended = false;
    for (int64_t room = 0; !ended; room += 700) {
        struct row row;
        struct zt_error err;
        bool full = false;
        struct memfs *fs = with_step_10(&row);
        const struct zt_sys sys = memfs_sys(fs);
        memfs_room(fs, room);
        cr_assert_eq(zt_ckpt_free_bytes(&sys, FOLDER), room);
        ended = save_and_remove(&sys, 1, &row, &full, &err) == 0;
        cr_assert_eq(full, !ended, "room %lld: %s", (long long)room, err.msg);
        if (!ended) cr_assert(strstr(err.msg, "No space left"), "%s", err.msg);
        cr_assert_eq(row.step, ended ? 20 : 10);
        check_row(fs, &row, "room", room);
        check_recovery(fs, row, "room", room);
        memfs_free(fs);
        cr_assert(room < 1 << 20);
    }
}

struct subset { uint64_t bits, seed; };
static int keep_item(void *arg, int item) {
    struct subset *s = arg;
    if (!s->seed) return (int)(s->bits >> item & 1);
    s->seed = s->seed * 6364136223846793005u + 1442695040888963407u;
    return (int)(s->seed >> 63);
}

static int knob(const char *name, int otherwise) {
    const char *v = getenv(name);
    return v ? atoi(v) : otherwise;
}

/* All subsets of what is pending where these are few, else all, none, and some by seed. */
Test(ckpt_faults, power_goes_at_every_call, .timeout = 500) {
    const int few = knob("ZT_POWER_FEW", 8), some = knob("ZT_POWER_SOME", 60);
    int most = 0;
    int64_t losses = 0;
    for (int64_t n = 1;; n++) {
        struct row row;
        struct zt_error err;
        bool full;
        struct memfs *fs = with_step_10(&row);
        const struct zt_sys sys = memfs_sys(fs);
        memfs_power_off_at(fs, n);
        save_and_remove(&sys, 1, &row, &full, &err);
        const bool ended = memfs_calls(fs) < n;
        const int pending = memfs_pending(fs);
        const int64_t subsets = pending <= few ? (int64_t)1 << pending : some;
        if (pending > most) most = pending;
        for (int64_t i = 0; i < subsets; i++) {
            struct subset s = {.bits = pending <= few ? (uint64_t)i : i ? UINT64_MAX : 0, .seed = pending <= few || i < 2 ? 0 : (uint64_t)(n * 1000 + i)};
            struct memfs *after = memfs_after_loss(fs, keep_item, &s);
            check_row(after, &row, "power off at", n);
            if (i % 4 == 0) check_recovery(after, row, "power off at", n);
            memfs_free(after);
            losses++;
        }
        memfs_free(fs);
        if (ended) break;
    }
    cr_log_info("%lld losses, at most %d things pending", (long long)losses, most);
    cr_assert(most > 5, "nothing was ever pending: the test sees nothing");
}

/* ---- damage ---- */

/* 0: the flipped bit in this file is not found. Files of values are looked at by verify, texts already by open. */
static bool found(const struct ck_case *c, struct zt_ckpt *opened, const char *path, const struct row *row, struct zt_error *err) {
    if (strstr(path, ".safetensors")) return zt_ckpt_verify(opened, NULL, NULL, err) == ZT_ECORRUPT;
    return ck_open_and_verify(c, &row->manifest, err) == ZT_ECORRUPT;
}

/* Every bit of a checkpoint of 64 KiB. */
Test(ckpt_faults, every_flipped_bit_is_found, .timeout = 1700) {
    struct memfs *fs = memfs_new();
    const struct zt_sys sys = memfs_sys(fs);
    struct ck_case c = ck_make(&sys, FOLDER, 2, CUT_FLAT, 10);
    const int every = knob("ZT_TEST_EVERY", 1);
    struct row row = {10, {{0}}};
    struct zt_ckpt *opened;
    struct zt_error err;
    int64_t bits = 0, n;
    char path[512];
    bool adopted, full;
    cr_assert_eq(ck_save(&c, &row.manifest, &adopted, &full, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.sys = &sys, .folder = FOLDER "/step-00000010", .manifest = &row.manifest}, &opened, &err), 0);
    cr_assert_eq(zt_ckpt_verify(opened, NULL, NULL, &err), 0, "%s", err.msg);
    for (int f = 0; memfs_file_at(fs, f); f++) {
        strcpy(path, memfs_file_at(fs, f));
        unsigned char *at = memfs_bytes(fs, path, &n);
        for (int64_t bit = 0; bit < 8 * n; bit++) {
            if (bits++ % every) continue;
            at[bit / 8] ^= (unsigned char)(1 << bit % 8);
            if (!found(&c, opened, path, &row, &err)) cr_assert_fail("bit %lld of %s is not found", (long long)bit, path);
            if (bit % 997 == 0) cr_assert(strstr(err.msg, FOLDER "/step-00000010"), "%s", err.msg);
            at[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
    }
    cr_assert_eq(zt_ckpt_verify(opened, NULL, NULL, &err), 0, "%s", err.msg);
    cr_log_info("%lld bits", (long long)bits);
    cr_assert(bits >= 8 * 65536, "%lld bits are less than 64 KiB", (long long)bits);
    zt_ckpt_close(opened);
    ck_free(&c);
    memfs_free(fs);
}

Test(ckpt_faults, every_truncation_and_missing_file_is_found, .timeout = 240) {
    struct row row;
    struct memfs *fs = with_step_10(&row);
    struct zt_sys sys = memfs_sys(fs);
    struct zt_error err;
    char path[512];
    for (int f = 0; memfs_file_at(fs, f); f++) {
        int64_t n;
        strcpy(path, memfs_file_at(fs, f));
        unsigned char *at = memfs_bytes(fs, path, &n), *copy = malloc((size_t)n);
        struct ck_case c = step_case(&sys, 10, 1);
        memcpy(copy, at, (size_t)n);
        for (int64_t cut = 0; cut < n; cut += 1 + n / 97) {
            memfs_truncate(fs, path, cut);
            cr_assert_eq(ck_open_and_verify(&c, &row.manifest, &err), ZT_ECORRUPT, "%s cut to %lld", path, (long long)cut);
        }
        memfs_truncate(fs, path, n + 1);
        at = memfs_bytes(fs, path, &n);
        memcpy(at, copy, (size_t)n - 1);
        cr_assert_eq(ck_open_and_verify(&c, &row.manifest, &err), ZT_ECORRUPT, "%s with a byte more", path);
        memfs_truncate(fs, path, n - 1);
        memfs_settle(fs);
        check_row(fs, &row, "restored", f);
        cr_assert_eq(sys.unlink(sys.arg, path), 0);
        cr_assert_eq(ck_open_and_verify(&c, &row.manifest, &err), ZT_ECORRUPT, "%s missing: %s", path, err.msg);
        memfs_free(fs);
        fs = with_step_10(&row);
        sys = memfs_sys(fs);
        ck_free(&c);
        free(copy);
    }
    struct ck_case c = step_case(&sys, 30, 1);
    cr_assert_eq(ck_open_and_verify(&c, NULL, &err), ZT_ENOTFOUND, "%s", err.msg);
    ck_free(&c);
    memfs_free(fs);
}

/* Opening, verifying and reading with every call failing once: said, or all the same right. */
Test(ckpt_faults, every_call_of_a_reader_fails_once, .timeout = 240) {
    struct row row;
    struct memfs *fs = with_step_10(&row);
    const struct zt_sys real = memfs_sys(fs);
    int64_t failed = 0, n = 1;
    for (bool ended = false; !ended; n++) {
        struct zt_sys_nth nth = {.real = &real, .fail_at = n, .error = EIO};
        const struct zt_sys sys = zt_sys_fail_nth(&nth);
        struct ck_case c = step_case(&sys, 10, 1);
        struct zt_ckpt *k = NULL;
        struct zt_error err;
        int rc = zt_ckpt_open(&(struct zt_ckpt_open){.sys = &sys, .folder = FOLDER "/step-00000010", .manifest = &row.manifest}, &k, &err);
        if (!rc) {
            const char *wrong = ck_check_values(&c, k, CUT_COLUMNS, 3);
            rc = zt_ckpt_verify(k, NULL, NULL, &err);
            if (wrong[0]) { /* what failed is said; never another value */
                cr_assert(strstr(wrong, "Input/output error"), "call %lld: %s", (long long)n, wrong);
                failed++;
            }
        }
        if (rc) cr_assert(rc == ZT_EIO || rc == ZT_ECORRUPT, "call %lld: %d: %s", (long long)n, rc, err.msg);
        failed += rc != 0;
        ended = nth.calls < n;
        if (ended) cr_assert_eq(rc, 0);
        zt_ckpt_close(k);
        ck_free(&c);
    }
    cr_assert(failed > n / 2, "%lld of %lld calls were missed", (long long)failed, (long long)n);
    memfs_free(fs);
}
