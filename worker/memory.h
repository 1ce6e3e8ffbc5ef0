/* SPDX-License-Identifier: Apache-2.0 */
/* worker/memory.h: a folder in this host's shared memory where the trainers of a run keep the files of its last
 * checkpoint, so that a trainer that starts again reads them from there. Only a cache: whoever reads checks
 * them against the checkpoint's own hashes.
 *
 * The folder is /dev/shm/ztrain-UID-HOST-RUN (in XDG_RUNTIME_DIR when /dev/shm is no tmpfs and that is); all
 * workers of a host use one for a run. Each holds a shared lock in it, which the kernel takes back however
 * the process ends; whoever finds that nobody holds it removes the folder: the last one that lets go, or the
 * next worker that starts. One thread. */
#ifndef ZT_WORKER_MEMORY_H
#define ZT_WORKER_MEMORY_H
#include <stdbool.h>
#include "core/error.h"

struct zw_memory { char path[512]; int lock_fd; };
void zw_memory_init(struct zw_memory *m);
/* The folder of this run; one that is held for another run is let go first. base NULL: as above. Taken
 * already: 0. ZT_EUNSUPPORTED: no shared memory here; ZT_EIO. */
int zw_memory_take(struct zw_memory *m, const char *base, const char *host, const char *run_id, struct zt_error *err);
bool zw_memory_held(const struct zw_memory *m);
void zw_memory_release(struct zw_memory *m);
int zw_memory_sweep(const char *base); /* what dead owners left; how many folders */

#endif
