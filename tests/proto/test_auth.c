/* SPDX-License-Identifier: Apache-2.0 */
/* Token file rules, HMACs against values from Python's hmac module, and the look-up of state folder,
 * token and address. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "proto/auth.h"

static char folder[256];

static void make_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/zt-auth-XXXXXX", tmp ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    umask(022);
}

static void drop_folder(void)
{
    char cmd[300];
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", folder);
    cr_assert_eq(system(cmd), 0);
}

static const char *in_folder(const char *name)
{
    static char path[400];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void put_file(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

#define HEX "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

TestSuite(token, .init = make_folder, .fini = drop_folder);

Test(token, created_private_and_kept)
{
    struct zt_token a, b;
    struct zt_error err;
    struct stat st;
    const char *path = in_folder("token");
    cr_assert_eq(zt_token_load(&zt_sys_posix, path, &a, &err), ZT_ENOTFOUND);
    cr_assert_eq(zt_token_create(&zt_sys_posix, path, &err), 0, "%s", err.msg);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600u);
    cr_assert_eq(st.st_size, 65);
    cr_assert_eq(zt_token_load(&zt_sys_posix, path, &a, &err), 0, "%s", err.msg);
    cr_assert_eq(zt_token_create(&zt_sys_posix, path, &err), 0);
    cr_assert_eq(zt_token_load(&zt_sys_posix, path, &b, &err), 0);
    cr_assert_eq(memcmp(&a, &b, sizeof(a)), 0, "an existing token is kept");
    cr_assert_eq(zt_token_create(&zt_sys_posix, in_folder("other"), &err), 0);
    cr_assert_eq(zt_token_load(&zt_sys_posix, in_folder("other"), &b, &err), 0);
    cr_assert_neq(memcmp(&a, &b, sizeof(a)), 0, "two tokens are alike");
}

Test(token, hex_is_read)
{
    struct zt_token t;
    struct zt_error err;
    put_file(in_folder("t"), HEX "\n", 0600);
    cr_assert_eq(zt_token_load(&zt_sys_posix, in_folder("t"), &t, &err), 0, "%s", err.msg);
    for (int i = 0; i < 32; i++) {
        cr_assert_eq(t.key[i], i);
    }
    put_file(in_folder("t"), HEX, 0400);
    cr_assert_eq(zt_token_load(&zt_sys_posix, in_folder("t"), &t, &err), 0, "%s", err.msg);
}

static void refused(const char *path, const char *word)
{
    struct zt_token t;
    struct zt_error err;
    cr_assert_eq(zt_token_load(&zt_sys_posix, path, &t, &err), ZT_EAUTH, "%s", word);
    cr_assert_not_null(strstr(err.msg, word), "\"%s\" is not in: %s", word, err.msg);
    cr_assert_not_null(strstr(err.msg, path), "the path is not in: %s", err.msg);
    cr_assert_null(strstr(err.msg, "0001020304"), "the token is in the message");
    /* and creating does not overwrite it */
    cr_assert_eq(zt_token_create(&zt_sys_posix, path, &err), ZT_EAUTH);
}

Test(token, wide_modes_are_refused_with_the_fix)
{
    static const mode_t modes[] = {0640, 0604, 0644, 0666, 0620, 0610, 0601};
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        put_file(in_folder("t"), HEX "\n", modes[i]);
        refused(in_folder("t"), "chmod 600");
    }
}

Test(token, links_folders_fifos_and_bad_content_are_refused)
{
    char target[400];
    put_file(in_folder("t"), HEX "\n", 0600);
    snprintf(target, sizeof(target), "%s", in_folder("t"));
    cr_assert_eq(symlink(target, in_folder("link")), 0);
    refused(in_folder("link"), "symbolic link");
    cr_assert_eq(mkdir(in_folder("d"), 0700), 0);
    refused(in_folder("d"), "regular file");
    cr_assert_eq(mkfifo(in_folder("f"), 0600), 0);
    refused(in_folder("f"), "regular file");
    put_file(in_folder("short"), "0001\n", 0600);
    refused(in_folder("short"), "hex digits");
    put_file(in_folder("empty"), "", 0600);
    refused(in_folder("empty"), "hex digits");
    put_file(in_folder("long"), HEX HEX "\n", 0600);
    refused(in_folder("long"), "hex digits");
    put_file(in_folder("bad"), "zz" HEX, 0600);
    refused(in_folder("bad"), "hex digits");
}

Test(token, another_owner_is_refused)
{
    if (geteuid() != 0) {
        cr_skip_test("needs root to make a file of another owner");
    }
    put_file(in_folder("t"), HEX "\n", 0600);
    cr_assert_eq(chown(in_folder("t"), 12345, 12345), 0);
    refused(in_folder("t"), "belongs to user 12345");
}

/* Every file call failed once: an error or a good token, never half a file. */
Test(token, every_file_call_failing_once)
{
    int failures = 0;
    for (int64_t at = 1; at < 40; at++) {
        struct zt_sys_nth nth = {.real = &zt_sys_posix, .fail_at = at, .error = 28 /* ENOSPC */};
        struct zt_sys sys = zt_sys_fail_nth(&nth);
        struct zt_error err;
        struct zt_token t;
        char name[32];
        snprintf(name, sizeof(name), "t%lld", (long long)at);
        int rc = zt_token_create(&sys, in_folder(name), &err);
        failures += rc != 0;
        int load = zt_token_load(&zt_sys_posix, in_folder(name), &t, &err);
        cr_assert(load == 0 || load == ZT_ENOTFOUND, "call %lld left: %s", (long long)at, err.msg);
        if (rc == 0) {
            cr_assert_eq(load, 0);
        }
        if (nth.calls < at) {
            break;
        }
    }
    cr_assert_geq(failures, 3);
}

/* ----------------------------------------------------------------------------------- the HMACs */

static void hex(const uint8_t *p, char *out)
{
    for (int i = 0; i < 32; i++) {
        sprintf(out + 2 * i, "%02x", p[i]);
    }
}

Test(mac, equals_python)
{
    /* hmac.new(bytes(range(32)), b"zt-hello" + s + c + b"\x02", "sha256") and
     * hmac.new(bytes(range(32)), b"zt-server" + c + s, "sha256") */
    struct zt_token t;
    uint8_t s[32], c[32], mac[32];
    char text[65];
    for (int i = 0; i < 32; i++) {
        t.key[i] = (uint8_t)i;
        s[i] = (uint8_t)(0xa0 + i % 16);
        c[i] = (uint8_t)(0x10 + i);
    }
    zt_hello_mac(&t, s, c, 2, mac);
    hex(mac, text);
    cr_assert_str_eq(text, "71af197c628bc5680a6ebd91faa21bf8134e2aa952139d1505ef7b87032e19b7");
    zt_server_mac(&t, c, s, mac);
    hex(mac, text);
    cr_assert_str_eq(text, "a918b4e3b973d852d6dfc1f03602b4695d77f3cd58a04fe00db4f3cee0e8046f");
}

Test(mac, depends_on_everything)
{
    struct zt_token t = {{1}}, u = {{2}};
    uint8_t a[32] = {1}, b[32] = {2}, m1[32], m2[32];
    zt_hello_mac(&t, a, b, 1, m1);
    zt_hello_mac(&t, a, b, 2, m2);
    cr_assert_not(zt_mac_equal(m1, m2), "the role is not bound");
    zt_hello_mac(&t, b, a, 1, m2);
    cr_assert_not(zt_mac_equal(m1, m2), "the nonces can be swapped");
    zt_hello_mac(&u, a, b, 1, m2);
    cr_assert_not(zt_mac_equal(m1, m2), "the token does not matter");
    zt_hello_mac(&t, a, b, 1, m2);
    cr_assert(zt_mac_equal(m1, m2));
    zt_server_mac(&t, a, b, m2);
    cr_assert_not(zt_mac_equal(m1, m2), "a hello can be played back as the server's proof");
}

/* ------------------------------------------------------------------------------------- look-up */

static void clear_env(void)
{
    unsetenv("ZTRAIN_STATE");
    unsetenv("XDG_STATE_HOME");
    unsetenv("HOME");
    unsetenv("ZTRAIN_TOKEN_FILE");
    unsetenv("ZCTL_COORD");
}

TestSuite(where, .init = clear_env);

Test(where, state_folder_order)
{
    char out[256];
    struct zt_error err;
    cr_assert_eq(zt_state_folder(NULL, out, sizeof(out), &err), ZT_EINVAL);
    setenv("HOME", "/h", 1);
    cr_assert_eq(zt_state_folder(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/h/.local/state/ztrain/coord");
    setenv("XDG_STATE_HOME", "relative", 1);
    cr_assert_eq(zt_state_folder(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/h/.local/state/ztrain/coord");
    setenv("XDG_STATE_HOME", "/x", 1);
    cr_assert_eq(zt_state_folder(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/x/ztrain/coord");
    setenv("ZTRAIN_STATE", "/z", 1);
    cr_assert_eq(zt_state_folder(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/z");
    cr_assert_eq(zt_state_folder("/flag", out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/flag");
    cr_assert_eq(zt_state_folder("/flag", out, 5, &err), ZT_EINVAL);
    cr_assert_eq(zt_state_folder("/flag", out, 6, &err), 0);
}

Test(where, token_order)
{
    char out[256];
    struct zt_error err;
    setenv("ZTRAIN_STATE", "/z", 1);
    cr_assert_eq(zt_token_path(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/z/token");
    setenv("ZTRAIN_TOKEN_FILE", "/e", 1);
    cr_assert_eq(zt_token_path(NULL, out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/e");
    cr_assert_eq(zt_token_path("/f", out, sizeof(out), &err), 0);
    cr_assert_str_eq(out, "/f");
}

static void address(const char *flag, int rc, const char *host, int port)
{
    char out[256];
    int got;
    struct zt_error err;
    cr_assert_eq(zt_coord_address(flag, out, sizeof(out), &got, &err), rc, "%s", flag ? flag : "-");
    if (rc == 0) {
        cr_assert_str_eq(out, host);
        cr_assert_eq(got, port);
    }
}

Test(where, addresses)
{
    address(NULL, 0, "127.0.0.1", 7000);
    setenv("ZCTL_COORD", "box:81", 1);
    address(NULL, 0, "box", 81);
    address("a.b:1", 0, "a.b", 1);
    address("a.b", 0, "a.b", 7000);
    address("[::1]:9", 0, "::1", 9);
    address("[::1]", 0, "::1", 7000);
    address("h:65535", 0, "h", 65535);
    address("h:65536", ZT_EINVAL, "", 0);
    address("h:", ZT_EINVAL, "", 0);
    address("h:x", ZT_EINVAL, "", 0);
    address("h:-1", ZT_EINVAL, "", 0);
    address(":7000", ZT_EINVAL, "", 0);
    address("", ZT_EINVAL, "", 0);
    address("::1", ZT_EINVAL, "", 0);
    address("[::1]x", ZT_EINVAL, "", 0);
}
