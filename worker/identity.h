/* SPDX-License-Identifier: Apache-2.0 */
/* worker/identity.h: who this worker is (decisions D21, D22). A name is held by a lock on a file in the
 * runtime folder for as long as the process lives; the kernel gives it back however the process ends. */
#ifndef ZT_WORKER_IDENTITY_H
#define ZT_WORKER_IDENTITY_H
#include <stdint.h>
#include "core/error.h"

struct zw_identity {
    char host[128];       /* --host, else host name and first 8 digits of the boot id */
    char name[64];        /* --name, else cpu-K with the lowest free K */
    char worker_id[192];  /* host/name */
    uint8_t incarnation[16];
    char runtime[512];    /* folder of the locks */
    int lock_fd;
};
/* host and name may be NULL. ZT_ECONFLICT when the name is held by another process. */
int zw_identity_take(const char *host, const char *name, struct zw_identity *id, struct zt_error *err);
/* Workers of this host that live now, this one included. */
int zw_identity_live(const struct zw_identity *id);
void zw_identity_release(struct zw_identity *id);

#endif
