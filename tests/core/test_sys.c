/* SPDX-License-Identifier: Apache-2.0 */
/* The system table, whole-file helpers under every failing call. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/sys.h"

static char folder[64];
static char path[128];

static void make_folder(void) {
    strcpy(folder, "/tmp/zt-test-sys-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
}

static void remove_folder(void) {
    unlink(path);
    rmdir(folder);
}

static int entries(const char *of) {
    DIR *d = opendir(of);
    cr_assert_not_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static void expect_content(const char *want) {
    char *data;
    size_t n;
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, 1 << 20, &data, &n), 0);
    cr_assert_eq(n, strlen(want));
    cr_assert_str_eq(data, want);
    free(data);
}

Test(sys, write_then_read, .init = make_folder, .fini = remove_folder) {
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "one", 3, 0600), 0);
    expect_content("one");
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "second", 6, 0600), 0);
    expect_content("second");
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "", 0, 0600), 0);
    expect_content("");
    cr_assert_eq(entries(folder), 1);
}

Test(sys, read_limits, .init = make_folder, .fini = remove_folder) {
    enum { N = 100000 };
    char *big = malloc(N);
    for (int i = 0; i < N; i++) big[i] = (char)('a' + i % 26);
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, big, N, 0600), 0);
    char *data;
    size_t n;
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, N, &data, &n), 0);
    cr_assert_eq(n, N);
    cr_assert_arr_eq(data, big, N);
    free(data);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, N - 1, &data, &n), -EFBIG);
    cr_assert_null(data);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, 0, &data, &n), -EFBIG);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, SIZE_MAX, &data, &n), 0);
    free(data);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, folder, N, &data, &n), -EISDIR);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, "/nonexistent/file", N, &data, &n), -ENOENT);
    cr_assert_eq(zt_sys_read_file(&zt_sys_posix, "/proc/self/status", N, &data, &n), 0);
    cr_assert(n > 0); /* fstat says 0 bytes */
    free(data);
    free(big);
}

/* Whichever call fails: an error is reported, the file is the old or the new one in full, no temp
 * file and no descriptor is left. */
Test(sys, every_failing_call_of_an_atomic_write, .init = make_folder, .fini = remove_folder) {
    int open_before = entries("/proc/self/fd");
    bool passed = false;
    for (int64_t at = 1; at < 50 && !passed; at++) {
        cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "old", 3, 0600), 0);
        struct zt_sys_nth state = {.real = &zt_sys_posix, .fail_at = at, .error = ENOSPC};
        struct zt_sys sys = zt_sys_fail_nth(&state);
        int rc = zt_sys_write_atomic(&sys, path, "newer", 5, 0600);
        passed = state.calls < at;
        cr_assert_eq(rc, passed ? 0 : -ENOSPC, "call %d", (int)at);
        char *data;
        size_t n;
        cr_assert_eq(zt_sys_read_file(&zt_sys_posix, path, 100, &data, &n), 0);
        cr_assert(strcmp(data, "newer") == 0 || (!passed && strcmp(data, "old") == 0));
        free(data);
        cr_assert_eq(entries(folder), 1, "call %d left a file", (int)at);
        cr_assert_eq(entries("/proc/self/fd"), open_before, "call %d left a descriptor", (int)at);
        if (passed)
            cr_assert_geq(at,
                          8); /* open write fsync close rename, open fsync close of the folder */
    }
    cr_assert(passed);
}

Test(sys, every_failing_call_of_a_read, .init = make_folder, .fini = remove_folder) {
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "text", 4, 0600), 0);
    for (int64_t at = 1; at <= 3; at++) { /* open, read, read at the end */
        struct zt_sys_nth state = {.real = &zt_sys_posix, .fail_at = at, .error = EIO};
        struct zt_sys sys = zt_sys_fail_nth(&state);
        char *data;
        size_t n;
        cr_assert_eq(zt_sys_read_file(&sys, path, 100, &data, &n), -EIO, "call %d", (int)at);
        cr_assert_null(data);
    }
}

/* A table that writes and reads one byte at a time. */
static ssize_t one_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    (void)arg;
    return zt_sys_posix.pread(zt_sys_posix.arg, fd, buf, n < 1 ? n : 1, at);
}
static ssize_t one_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    (void)arg;
    return zt_sys_posix.pwrite(zt_sys_posix.arg, fd, buf, n < 1 ? n : 1, at);
}
static ssize_t no_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    (void)arg, (void)fd, (void)buf, (void)n, (void)at;
    return 0;
}

Test(sys, short_transfers_are_finished, .init = make_folder, .fini = remove_folder) {
    struct zt_sys sys = zt_sys_posix;
    sys.pread = one_pread;
    sys.pwrite = one_pwrite;
    cr_assert_eq(zt_sys_write_atomic(&sys, path, "piecemeal", 9, 0600), 0);
    char *data;
    size_t n;
    cr_assert_eq(zt_sys_read_file(&sys, path, 100, &data, &n), 0);
    cr_assert_str_eq(data, "piecemeal");
    free(data);
    sys.pwrite = no_pwrite; /* a device that takes nothing is an error, not an endless loop */
    cr_assert_eq(zt_sys_write_atomic(&sys, path, "lost", 4, 0600), -EIO);
    expect_content("piecemeal");
}

Test(sys, posix_calls_report_errno) {
    const struct zt_sys *s = &zt_sys_posix;
    struct stat st;
    char b[4];
    cr_assert_eq(s->open(s->arg, "/nonexistent", O_RDONLY, 0), -ENOENT);
    cr_assert_eq(s->pread(s->arg, -1, b, 4, 0), -EBADF);
    cr_assert_eq(s->pwrite(s->arg, -1, b, 4, 0), -EBADF);
    cr_assert_eq(s->fsync(s->arg, -1), -EBADF);
    cr_assert_eq(s->close(s->arg, -1), -EBADF);
    cr_assert_eq(s->fstat(s->arg, -1, &st), -EBADF);
    cr_assert_eq(s->rename(s->arg, "/nonexistent/a", "/nonexistent/b"), -ENOENT);
    cr_assert_eq(s->unlink(s->arg, "/nonexistent/a"), -ENOENT);
    cr_assert_eq(s->mkdir(s->arg, "/nonexistent/a/b", 0700), -ENOENT);
    int fd = s->open(s->arg, "/", O_RDONLY, 0);
    cr_assert(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC));
    s->close(s->arg, fd);
}

Test(sys, clock_and_random) {
    const struct zt_sys *s = &zt_sys_posix;
    int64_t a = s->monotonic_ns(s->arg), b = s->monotonic_ns(s->arg);
    cr_assert(a > 0 && b >= a);
    cr_assert(s->wall_ns(s->arg) > INT64_C(1600000000000000000));
    unsigned char x[64] = {0}, y[64] = {0};
    cr_assert_eq(s->random(s->arg, x, sizeof x), 0);
    cr_assert_eq(s->random(s->arg, y, sizeof y), 0);
    cr_assert_neq(memcmp(x, y, sizeof x), 0);
    struct zt_sys_nth state = {.real = s, .fail_at = 1, .error = EIO};
    struct zt_sys n = zt_sys_fail_nth(&state); /* clock and random are not file calls */
    cr_assert(n.monotonic_ns(n.arg) >= b);
    cr_assert(n.wall_ns(n.arg) > 0);
    cr_assert_eq(n.random(n.arg, x, sizeof x), 0);
    cr_assert_eq(state.calls, 0);
}

static int open_under(const char *name) { return zt_sys_posix.open_beneath(NULL, folder, name, O_RDONLY); }

static void expect_opens(const char *name, const char *text) {
    char got[16] = "";
    int fd = open_under(name);
    cr_assert_geq(fd, 0, "%s: %s", name, strerror(-fd));
    cr_expect_eq(read(fd, got, sizeof got - 1), (ssize_t)strlen(text));
    cr_expect_str_eq(got, text);
    close(fd);
}

/* Names and links that stay inside are opened, the others are not. */
Test(sys, nothing_is_opened_outside_of_a_folder, .init = make_folder, .fini = remove_folder) {
    char link[160], target[160];
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "inside", 6, 0600), 0);
    expect_opens("file", "inside");
    cr_expect_eq(open_under("none"), -ENOENT);
    const char *const outside[] = {"/etc/hostname", "../../etc/hostname", "..", "./../../etc/hostname"};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        int rc = open_under(outside[i]);
        cr_expect(rc == -EXDEV || rc == -ELOOP, "%s: %d", outside[i], rc);
    }
    const char *const to[] = {"/etc/hostname", "../../etc/hostname", "/proc/self/exe"};
    snprintf(link, sizeof link, "%s/link", folder);
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        cr_assert_eq(symlink(to[i], link), 0);
        int rc = open_under("link");
        cr_expect(rc == -EXDEV || rc == -ELOOP, "a link to %s: %d", to[i], rc);
        unlink(link);
    }
    snprintf(target, sizeof target, "file");
    cr_assert_eq(symlink(target, link), 0);
    expect_opens("link", "inside");
    unlink(link);
}

/* ---- folders and whole stretches ---- */

static void remove_chain(void) {
    char p[256];
    for (const char *tail = "/a/b/c\0/a/b\0/a\0"; *tail; tail += strlen(tail) + 1) {
        snprintf(p, sizeof p, "%s%s", folder, tail);
        rmdir(p);
    }
    remove_folder();
}

Test(sys, folders_are_made_whatever_is_missing, .init = make_folder, .fini = remove_chain) {
    char p[256];
    struct stat st;
    snprintf(p, sizeof p, "%s//a/b/c/", folder);
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, p, 0700), 0);
    cr_assert(stat(p, &st) == 0 && S_ISDIR(st.st_mode));
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, p, 0700), 0, "a second time");
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, "/", 0700), 0);
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, "", 0700), -ENAMETOOLONG);
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "x", 1, 0600), 0);
    snprintf(p, sizeof p, "%s/inside", path);
    cr_assert_eq(zt_sys_make_folders(&zt_sys_posix, p, 0700), -ENOTDIR);
}

Test(sys, folders_under_every_failing_call, .init = make_folder, .fini = remove_chain) {
    char p[256];
    struct stat st;
    snprintf(p, sizeof p, "%s/a/b/c", folder);
    for (int64_t n = 1;; n++) {
        struct zt_sys_nth state = {.real = &zt_sys_posix, .fail_at = n, .error = EIO};
        struct zt_sys sys = zt_sys_fail_nth(&state);
        const int rc = zt_sys_make_folders(&sys, p, 0700);
        if (state.calls < n) {
            cr_assert_eq(rc, 0);
            cr_assert(stat(p, &st) == 0);
            cr_assert(n > 10, "few calls: %lld", (long long)n);
            break;
        }
        cr_assert_eq(rc, -EIO, "call %lld", (long long)n);
        for (const char *tail = "/a/b/c\0/a/b\0/a\0"; *tail; tail += strlen(tail) + 1) {
            char q[256];
            snprintf(q, sizeof q, "%s%s", folder, tail);
            rmdir(q);
        }
    }
}

static int name_seen(void *ctx, const char *name) {
    int *seen = ctx;
    if (strcmp(name, "stop") == 0) return 7;
    *seen += strcmp(name, "file") == 0 ? 1 : 100;
    return 0;
}

Test(sys, listing_a_folder, .init = make_folder, .fini = remove_folder) {
    int seen = 0;
    char p[128];
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, path, "x", 1, 0600), 0);
    cr_assert_eq(zt_sys_posix.list(NULL, folder, name_seen, &seen), 0);
    cr_assert_eq(seen, 1);
    cr_assert_eq(zt_sys_posix.list(NULL, "/nonexistent", name_seen, &seen), -ENOENT);
    cr_assert_eq(zt_sys_posix.list(NULL, path, name_seen, &seen), -ENOTDIR);
    snprintf(p, sizeof p, "%s/stop", folder);
    cr_assert_eq(zt_sys_write_atomic(&zt_sys_posix, p, "", 0, 0600), 0);
    cr_assert_eq(zt_sys_posix.list(NULL, folder, name_seen, &seen), 7);
    cr_assert_eq(zt_sys_posix.unlink(NULL, p), 0);
}

/* A new member that the failing table forgets would crash whoever calls it under test. */
Test(sys, the_failing_table_has_every_call) {
    struct zt_sys_nth state = {.real = &zt_sys_posix};
    const struct zt_sys n = zt_sys_fail_nth(&state);
    void *const *member = (void *const *)(const void *)&n, *const *real = (void *const *)(const void *)&zt_sys_posix;
    for (size_t i = 1; i < sizeof n / sizeof *member; i++) {
        cr_assert_not_null(member[i], "member %zu", i);
        cr_assert_not_null(real[i], "member %zu", i);
    }
}
