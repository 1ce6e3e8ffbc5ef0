/* SPDX-License-Identifier: Apache-2.0 */
/* core/error.h: how every fallible function of ztrain reports.
 *
 * A function that can fail returns 0 or a negative `enum zt_code` and, when it fails, fills the
 * caller's `struct zt_error` with a message that names what failed, where (file:line:col, rank,
 * host), the likely cause and the next step. The caller owns the struct; it holds no pointers.
 * Thread rule: none shared; any thread may fill its own struct. */
#ifndef ZT_CORE_ERROR_H
#define ZT_CORE_ERROR_H

enum zt_code {
    ZT_OK = 0,
    ZT_EINVAL = -1,       /* bad argument, bad configuration, bad input file */
    ZT_ENOMEM = -2,       /* host memory */
    ZT_EIO = -3,          /* a system call on a file or socket failed */
    ZT_ENOTFOUND = -4,    /* no such run, worker, file */
    ZT_EAUTH = -5,        /* not authenticated */
    ZT_ECONFLICT = -6,    /* name taken, wrong state, second daemon on one state folder */
    ZT_EUNREACHABLE = -7, /* no coordinator at that address */
    ZT_ENOPLACE = -8,     /* cannot be placed now */
    ZT_EVERSION = -9,     /* protocol or database version */
    ZT_ECANCELLED = -10,
    ZT_EOOM = -11,        /* device memory: the allocator's capacity */
    ZT_ECOMM = -12,       /* a collective failed on this rank */
    ZT_EPEER = -13,       /* a peer died: a consequence, never a cause */
    ZT_EMISMATCH = -14,   /* ranks called different collectives */
    ZT_ETIMEOUT = -15,
    ZT_EDATA = -16,       /* data set: missing, too short, bad ids */
    ZT_ENAN = -17,        /* non-finite loss or gradient norm */
    ZT_EDIVERGED = -18,   /* replicas hold different parameters */
    ZT_EUNSUPPORTED = -19,/* known, but not in this version */
    ZT_EPROTO = -20,      /* malformed frame or message */
    ZT_EBUSY = -21,       /* resource exhausted, try again */
    ZT_EINTERNAL = -22,   /* a broken invariant of ours */
    /* -23 to -25 are the wire's own (proto/ztrain.proto) */
    ZT_ECORRUPT = -26,    /* stored bytes are not those that were written */
};

struct zt_error {
    int code;        /* enum zt_code */
    char msg[2048];  /* UTF-8, no newline at the end */
};

/* Fills *err (may be NULL) and returns code, so that `return zt_fail(...)` reads well. */
int zt_fail(struct zt_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "prefix: " in front of err's message and returns err->code. */
int zt_fail_prefix(struct zt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* "ZT_EINVAL" -> "invalid", for logs. Never NULL. */
const char *zt_code_name(int code);

/* An assertion that stays on in release builds: a broken invariant is worse than a dead process. */
void zt_assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define ZT_ASSERT(e) ((e) ? (void)0 : zt_assert_failed(#e, __FILE__, __LINE__))

#endif
