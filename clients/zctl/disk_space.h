/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/disk_space.h: what the checkpoints of a run take on disk, before it runs. Pure but for the look at the
 * folder's file system, which is this machine's: on workers elsewhere it may be another one. */
#ifndef ZT_ZCTL_DISK_SPACE_H
#define ZT_ZCTL_DISK_SPACE_H
#include "core/spec.h"

struct zt_disk_space {
    int64_t each;    /* bytes of the values of one; its files have a few KiB more a rank */
    int64_t most;    /* there at one time: those that are kept, and the one in progress; 0: not known (keep all, by epochs) */
    int64_t all;     /* each x most */
    int64_t free;    /* < 0: not known */
    char folder[ZT_PATH_MAX]; /* the one that was looked at: the nearest there is */
};
/* false: it saves nothing. s: parsed; total_steps: 0 = as the file says. */
bool zt_disk_space(const struct zt_spec *s, int64_t total_steps, struct zt_disk_space *d);
/* "checkpoints: 12.34 MiB each, at most 4 at a time (49.36 MiB); /data has 1.20 GiB free"; bytes of `buf`. */
const char *zt_disk_space_text(const struct zt_disk_space *d, char *buf, size_t n);
/* They do not fit as far as can be seen from here. */
bool zt_disk_space_short(const struct zt_disk_space *d);

#endif
