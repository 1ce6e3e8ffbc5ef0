/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of ranks' files in memory: read instead of the disk's, never where they differ from what was committed; the
 * thread that makes them of a rank on another host. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/checkpoint/copy.h"
#include "tests/checkpoint/case.h"
#include "worker/neighbour.h"

static char base[64], folder[128], memory[128], step[200];
static struct ck_case c;
static struct zt_sha256 manifest;

static void save(int world) {
    struct zt_error err;
    bool adopted, full;
    strcpy(base, "/tmp/zt-test-copy-XXXXXX");
    cr_assert_not_null(mkdtemp(base));
    snprintf(folder, sizeof folder, "%s/run", base);
    snprintf(memory, sizeof memory, "%s/memory", base);
    cr_assert_eq(mkdir(folder, 0700), 0);
    cr_assert_eq(mkdir(memory, 0700), 0);
    c = ck_make(&zt_sys_posix, folder, world, CUT_FLAT, 1);
    c.step = 7;
    cr_assert_eq(ck_save(&c, &manifest, &adopted, &full, &err), 0, "%s", err.msg);
    snprintf(step, sizeof step, "%s/step-%08d", folder, 7);
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

static void end(void) {
    ck_free(&c);
    remove_tree(base);
}

/* Calls fn for every file of the folder whose name contains `part`; how many. */
static int each(const char *in, const char *part, void (*fn)(const char *path)) {
    DIR *d = opendir(in);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[512];
        if (e->d_name[0] == '.' || !strstr(e->d_name, part)) continue;
        snprintf(path, sizeof path, "%s/%s", in, e->d_name);
        if (fn) fn(path);
        n++;
    }
    if (d) closedir(d);
    return n;
}
/* The tensors' files of a rank (its number in the name: from 1). */
static int each_of(const char *in, int rank, void (*fn)(const char *path)) {
    char a[32], b[32];
    snprintf(a, sizeof a, "shard-%05d-", rank + 1);
    snprintf(b, sizeof b, "optim-%05d-", rank + 1);
    return each(in, a, fn) + each(in, b, fn);
}
static void drop(const char *path) { cr_assert_eq(unlink(path), 0); }
static void flip(const char *path) { /* the last byte: a value */
    char b;
    const int fd = open(path, O_RDWR);
    const off_t at = lseek(fd, 0, SEEK_END) - 1;
    cr_assert(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= 1;
    cr_assert_eq(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

static void expect_right(bool from_files, bool from_memory) {
    struct zt_ckpt *k = NULL;
    struct zt_error err;
    cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.folder = step, .manifest = &manifest, .memory = memory}, &k, &err), 0, "%s", err.msg);
    const char *wrong = ck_check_values(&c, k, CUT_WHOLE, 1);
    cr_assert_str_empty(wrong, "%s", wrong);
    struct zt_tensor_source s = zt_ckpt_source(k);
    cr_assert_eq(s.read_bytes(s.arg, false) > 0, from_files);
    cr_assert_eq(s.read_bytes(s.arg, true) > 0, from_memory);
    s.close(s.arg);
}

Test(copy, is_read_when_the_disk_has_nothing_more, .timeout = 60) {
    struct zt_error err;
    int64_t bytes, all = 0;
    save(3);
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(zt_ckpt_copy_rank(NULL, step, r, memory, NULL, &bytes, &err), 0, "%s", err.msg);
        all += bytes;
    }
    struct zt_ckpt *k = NULL;
    cr_assert_eq(zt_ckpt_open(&(struct zt_ckpt_open){.folder = step}, &k, &err), 0);
    int64_t stored = 0;
    for (int r = 0; r < 3; r++) stored += zt_ckpt_manifest(k)->ranks[r].bytes;
    zt_ckpt_close(k);
    cr_assert_eq(all, stored);
    cr_assert_gt(each(step, ".safetensors", drop), 0);
    cr_assert_eq(each(step, "rank-", drop), 3);
    expect_right(false, true);
    end();
}

Test(copy, of_one_rank_beside_the_disks_others, .timeout = 60) {
    struct zt_error err;
    int64_t bytes;
    save(3);
    cr_assert_eq(zt_ckpt_copy_rank(NULL, step, 1, memory, NULL, &bytes, &err), 0, "%s", err.msg);
    cr_assert_gt(each_of(step, 1, drop), 0);
    expect_right(true, true);
    cr_assert_eq(zt_ckpt_copy_rank(NULL, step, 3, memory, NULL, &bytes, &err), ZT_ENOTFOUND, "%s", err.msg);
    end();
}

Test(copy, that_was_damaged_is_passed_over, .timeout = 60) {
    struct zt_error err;
    int64_t bytes;
    save(2);
    for (int r = 0; r < 2; r++) cr_assert_eq(zt_ckpt_copy_rank(NULL, step, r, memory, NULL, &bytes, &err), 0);
    cr_assert_gt(each_of(memory, 0, flip), 0);
    expect_right(true, true);
    cr_assert_eq(each(memory, "rank-", flip), 2); /* then nothing there is what the manifest names */
    expect_right(true, false);
    end();
}

Test(copy, of_a_damaged_file_is_not_made, .timeout = 60) {
    struct zt_error err;
    int64_t bytes;
    save(2);
    cr_assert_eq(zt_ckpt_copy_rank(NULL, step, 0, memory, NULL, &bytes, &err), 0);
    cr_assert_gt(each(step, "optim-00001-", flip), 0);
    cr_assert_eq(zt_ckpt_copy_rank(NULL, step, 0, memory, NULL, &bytes, &err), ZT_ECORRUPT);
    cr_assert_not_null(strstr(err.msg, "optim-00001-"), "%s", err.msg);
    cr_assert_eq(each(memory, "rank-", NULL), 0, "an index of what is not all there");
    end();
}

/* Whatever call fails, with whatever error: what memory says is what was committed, or it says nothing. */
Test(copy, when_any_call_fails, .timeout = 120) {
    static const int errors[] = {EIO, ENOSPC, ENOMEM};
    struct zt_error err;
    int64_t bytes;
    int failures = 0, full = 0;
    save(2);
    for (int e = 0; e < 3; e++)
        for (int64_t at = 1;; at++) {
            struct zt_sys_nth nth = {.real = &zt_sys_posix, .fail_at = at, .error = errors[e]};
            struct zt_sys sys = zt_sys_fail_nth(&nth);
            const int rc = zt_ckpt_copy_rank(&sys, step, 0, memory, NULL, &bytes, &err);
            const bool there = each(memory, "rank-00001.json", NULL) == 1;
            cr_assert(rc == 0 || !there, "%s: and an index is there", err.msg);
            cr_assert(rc != 0 || there);
            expect_right(true, there);
            if (nth.calls < at) break;
            failures += rc != 0;
            full += rc == ZT_EBUSY;
        }
    cr_assert_gt(failures, 30);
    cr_assert_gt(full, 4, "a full memory is told apart");
    end();
}

Test(copy, stops_when_asked, .timeout = 60) {
    struct zt_error err;
    int64_t bytes;
    _Atomic bool stop = true;
    save(2);
    cr_assert_eq(zt_ckpt_copy_rank(NULL, step, 0, memory, &stop, &bytes, &err), ZT_ECANCELLED);
    cr_assert_eq(each(memory, "rank-", NULL), 0);
    cr_assert_eq(each(memory, ".safetensors", NULL), 0, "what is not whole is given back");
    end();
}

/* ---------------------------------------------------------------------------- the other host's part */

static _Atomic int warnings;
static char kind[64];
static void warn(void *arg, const char *k, const char *message) {
    (void)arg, (void)message;
    snprintf(kind, sizeof kind, "%s", k);
    atomic_fetch_add(&warnings, 1);
}

static struct zw_neighbour *at(const char *where, int rank, int world) {
    struct zw_neighbour *n = NULL;
    struct zt_error err;
    const struct zw_neighbour_config k = {.folder = folder, .memory = where, .rank = rank, .world = world, .generation = 4, .warn = warn};
    cr_assert_eq(zw_neighbour_open(&k, &n, &err), 0, "%s", err.msg);
    return n;
}

static void until(const char *where, const char *name) { /* the test's own limit ends this */
    while (each(where, name, NULL) == 0) usleep(2000);
}

Test(neighbour, copies_what_is_on_another_host, .timeout = 60) {
    char other[160];
    save(2);
    snprintf(other, sizeof other, "%s/other", base);
    cr_assert_eq(mkdir(other, 0700), 0);
    struct zw_neighbour *a = at(memory, 0, 2), *b = at(other, 1, 2);
    char hidden[220];
    snprintf(hidden, sizeof hidden, "%s.hidden", step);
    cr_assert_eq(rename(step, hidden), 0); /* not published yet: it waits */
    zw_neighbour_saved(a, 7);
    zw_neighbour_saved(b, 7);
    usleep(20000);
    cr_assert_eq(each(memory, ".safetensors", NULL), 0);
    cr_assert_eq(rename(hidden, step), 0);
    until(memory, "rank-00002.json");
    until(other, "rank-00001.json");
    zw_neighbour_close(a);
    zw_neighbour_close(b);
    cr_assert_eq(each_of(memory, 0, NULL), 0, "its own is the writer's");
    cr_assert_eq(atomic_load(&warnings), 0);
    end();
}

Test(neighbour, leaves_alone_what_is_on_its_own_host, .timeout = 60) {
    char other[160];
    save(4);
    snprintf(other, sizeof other, "%s/other", base);
    cr_assert_eq(mkdir(other, 0700), 0);
    /* ranks 0, 2 | 1, 3: each has the rank two further on its own host */
    struct zw_neighbour *n[4];
    for (int r = 0; r < 4; r++) n[r] = at(r % 2 ? other : memory, r, 4);
    for (int r = 0; r < 4; r++) zw_neighbour_saved(n[r], 7);
    /* a fifth, of whose host nobody else is, shows that the folder is there to be copied */
    char third[160];
    snprintf(third, sizeof third, "%s/third", base);
    cr_assert_eq(mkdir(third, 0700), 0);
    struct zw_neighbour *x = at(third, 1, 4);
    zw_neighbour_saved(x, 7);
    until(third, "rank-00004.json");
    for (int r = 0; r < 4; r++) zw_neighbour_close(n[r]);
    zw_neighbour_close(x);
    cr_assert_eq(each(memory, ".safetensors", NULL) + each(other, ".safetensors", NULL), 0);
    end();
}

Test(neighbour, tells_of_what_it_finds_damaged, .timeout = 60) {
    save(2);
    cr_assert_gt(each_of(step, 1, flip), 0);
    struct zw_neighbour *a = at(memory, 0, 2);
    zw_neighbour_saved(a, 7);
    while (atomic_load(&warnings) == 0) usleep(2000);
    zw_neighbour_close(a);
    cr_assert_str_eq(kind, "CHECKPOINT_CORRUPT");
    cr_assert_eq(each(memory, "rank-", NULL), 0);
    end();
}
