/* SPDX-License-Identifier: Apache-2.0 */
/* proto/auth.c: the token file, the two HMACs of the hello, and where token and coordinator are found.
 * Tokens are never put into messages or logs. Pure apart from the file calls through zt_sys. */
#include "proto/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOKEN_HEX 64

static void token_write_hex(const uint8_t *key, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 32; i++) {
        out[2 * i] = digits[key[i] >> 4];
        out[2 * i + 1] = digits[key[i] & 15];
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool token_read_hex(const char *s, size_t n, uint8_t *key)
{
    if (n == TOKEN_HEX + 1 && s[TOKEN_HEX] == '\n') {
        n = TOKEN_HEX;
    }
    if (n != TOKEN_HEX) {
        return false;
    }
    for (size_t i = 0; i < 32; i++) {
        int hi = hex_digit(s[2 * i]), lo = hex_digit(s[2 * i + 1]);
        if (hi < 0 || lo < 0) {
            return false;
        }
        key[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

int zt_token_create(const struct zt_sys *sys, const char *path, struct zt_error *err)
{
    struct zt_token t;
    int rc = zt_token_load(sys, path, &t, err);
    OPENSSL_cleanse(&t, sizeof(t));
    if (rc != ZT_ENOTFOUND) {
        return rc; /* there is a good one, or one that its owner must look at */
    }
    char text[TOKEN_HEX + 1];
    rc = sys->random(sys->arg, t.key, sizeof(t.key));
    if (rc < 0) {
        return zt_fail(err, ZT_EIO, "no random bytes for a token: %s", strerror(-rc));
    }
    token_write_hex(t.key, text);
    text[TOKEN_HEX] = '\n';
    rc = zt_sys_write_atomic(sys, path, text, sizeof(text), 0600);
    OPENSSL_cleanse(&t, sizeof(t));
    OPENSSL_cleanse(text, sizeof(text));
    if (rc < 0) {
        return zt_fail(err, ZT_EIO, "cannot write the token file %s: %s", path, strerror(-rc));
    }
    return 0;
}

static int token_check_file(const struct stat *st, const char *path, struct zt_error *err)
{
    if (!S_ISREG(st->st_mode)) {
        return zt_fail(err, ZT_EAUTH, "token file %s is not a regular file", path);
    }
    if (st->st_uid != geteuid()) {
        return zt_fail(err, ZT_EAUTH,
                       "token file %s belongs to user %u, but this process runs as user %u; use your "
                       "own token file",
                       path, (unsigned)st->st_uid, (unsigned)geteuid());
    }
    if (st->st_mode & 077) {
        return zt_fail(err, ZT_EAUTH,
                       "token file %s is open to others (mode %04o); run: chmod 600 %s, and replace "
                       "the token if somebody may have read it",
                       path, (unsigned)(st->st_mode & 07777), path);
    }
    if (st->st_size != TOKEN_HEX && st->st_size != TOKEN_HEX + 1) {
        return zt_fail(err, ZT_EAUTH,
                       "token file %s has %lld bytes, not %d hex digits; remove it and restart zcoord",
                       path, (long long)st->st_size, TOKEN_HEX);
    }
    return 0;
}

int zt_token_load(const struct zt_sys *sys, const char *path, struct zt_token *t, struct zt_error *err)
{
    char text[TOKEN_HEX + 1];
    struct stat st;
    memset(t, 0, sizeof(*t));
    /* O_NONBLOCK: opening a FIFO put in its place must not hang */
    int fd = sys->open(sys->arg, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd == -ENOENT || fd == -ENOTDIR) {
        return zt_fail(err, ZT_ENOTFOUND,
                       "no token file %s: zcoord makes one when it first starts; name it with "
                       "--token-file or ZTRAIN_TOKEN_FILE",
                       path);
    }
    if (fd == -ELOOP) {
        return zt_fail(err, ZT_EAUTH, "token file %s is a symbolic link: name the file itself", path);
    }
    if (fd < 0) {
        return zt_fail(err, ZT_EAUTH, "cannot open the token file %s: %s", path, strerror(-fd));
    }
    int rc = sys->fstat(sys->arg, fd, &st);
    if (rc < 0) {
        rc = zt_fail(err, ZT_EIO, "cannot look at the token file %s: %s", path, strerror(-rc));
        goto out;
    }
    rc = token_check_file(&st, path, err);
    if (rc) {
        goto out;
    }
    ssize_t n = sys->pread(sys->arg, fd, text, sizeof(text), 0);
    if (n < 0) {
        rc = zt_fail(err, ZT_EIO, "cannot read the token file %s: %s", path, strerror((int)-n));
    } else if (!token_read_hex(text, (size_t)n, t->key)) {
        rc = zt_fail(err, ZT_EAUTH,
                     "token file %s does not hold %d hex digits; remove it and restart zcoord", path,
                     TOKEN_HEX);
    }
    OPENSSL_cleanse(text, sizeof(text));
out:
    sys->close(sys->arg, fd);
    return rc;
}

static void mac_parts(const struct zt_token *t, const char *label, const uint8_t a[32],
                      const uint8_t b[32], const uint8_t *role, uint8_t mac[32])
{
    uint8_t text[16 + 32 + 32 + 1];
    size_t n = strlen(label);
    memcpy(text, label, n);
    memcpy(text + n, a, 32);
    memcpy(text + n + 32, b, 32);
    n += 64;
    if (role) {
        text[n++] = *role;
    }
    unsigned len = 32;
    unsigned char *ok = HMAC(EVP_sha256(), t->key, (int)sizeof(t->key), text, n, mac, &len);
    ZT_ASSERT(ok && len == 32);
}

void zt_hello_mac(const struct zt_token *t, const uint8_t server_nonce[32],
                  const uint8_t client_nonce[32], uint8_t role, uint8_t mac[32])
{
    mac_parts(t, "zt-hello", server_nonce, client_nonce, &role, mac);
}

void zt_server_mac(const struct zt_token *t, const uint8_t client_nonce[32],
                   const uint8_t server_nonce[32], uint8_t mac[32])
{
    mac_parts(t, "zt-server", client_nonce, server_nonce, NULL, mac);
}

bool zt_mac_equal(const uint8_t a[32], const uint8_t b[32])
{
    return CRYPTO_memcmp(a, b, 32) == 0;
}

/* --------------------------------------------------------------------------------- locations */

static int put_path(char *out, size_t n, struct zt_error *err, const char *a, const char *b)
{
    int len = snprintf(out, n, "%s%s", a, b);
    if (len < 0 || (size_t)len >= n) {
        return zt_fail(err, ZT_EINVAL, "the path %.60s...%s is longer than %zu bytes", a, b, n - 1);
    }
    return 0;
}

static const char *env_set(const char *name)
{
    const char *v = getenv(name);
    return v && v[0] ? v : NULL;
}

int zt_state_folder(const char *flag, char *out, size_t n, struct zt_error *err)
{
    const char *v;
    if (flag) {
        if (!flag[0]) {
            return zt_fail(err, ZT_EINVAL, "--state is empty: give a folder");
        }
        return put_path(out, n, err, flag, "");
    }
    v = env_set("ZTRAIN_STATE");
    if (v) {
        return put_path(out, n, err, v, "");
    }
    v = env_set("XDG_STATE_HOME");
    if (v && v[0] == '/') { /* the XDG rules: a relative one is ignored */
        return put_path(out, n, err, v, "/ztrain/coord");
    }
    v = env_set("HOME");
    if (v) {
        return put_path(out, n, err, v, "/.local/state/ztrain/coord");
    }
    return zt_fail(err, ZT_EINVAL, "no state folder: HOME is not set; give --state or ZTRAIN_STATE");
}

int zt_token_path(const char *flag, char *out, size_t n, struct zt_error *err)
{
    const char *v = flag ? flag : env_set("ZTRAIN_TOKEN_FILE");
    if (flag && !flag[0]) {
        return zt_fail(err, ZT_EINVAL, "--token-file is empty: give a file");
    }
    if (v) {
        return put_path(out, n, err, v, "");
    }
    char state[4096];
    int rc = zt_state_folder(NULL, state, sizeof(state), err);
    return rc ? rc : put_path(out, n, err, state, "/token");
}

static bool parse_port(const char *s, int *port)
{
    char *end;
    if (s[0] < '0' || s[0] > '9' || strlen(s) > 5) {
        return false;
    }
    long v = strtol(s, &end, 10);
    if (*end || v < 0 || v > 65535) {
        return false;
    }
    *port = (int)v;
    return true;
}

int zt_coord_address(const char *flag, char *host, size_t n, int *port, struct zt_error *err)
{
    const char *env = env_set("ZCTL_COORD");
    const char *text = flag ? flag : env ? env : "127.0.0.1:7000";
    const char *from = flag ? "address" : "ZCTL_COORD";
    const char *name = text, *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    *port = 7000;
    if (text[0] == '[') {
        const char *close = strchr(text, ']');
        if (!close || (close[1] != '\0' && close[1] != ':')) {
            return zt_fail(err, ZT_EINVAL, "%s \"%.80s\": write [IPv6 address]:port", from, text);
        }
        name = text + 1;
        len = (size_t)(close - name);
        colon = close[1] ? close + 1 : NULL;
    } else if (colon && memchr(text, ':', len)) {
        return zt_fail(err, ZT_EINVAL, "%s \"%.80s\": put an IPv6 address into brackets, [::1]:7000",
                       from, text);
    }
    if (colon && !parse_port(colon + 1, port)) {
        return zt_fail(err, ZT_EINVAL, "%s \"%.80s\": the port must be a number from 0 to 65535", from,
                       text);
    }
    if (len == 0 || len >= n || len > 255) {
        return zt_fail(err, ZT_EINVAL, "%s \"%.80s\": write host:port, for example 127.0.0.1:7000",
                       from, text);
    }
    memcpy(host, name, len);
    host[len] = '\0';
    return 0;
}
