/* SPDX-License-Identifier: Apache-2.0 */
/* worker/neighbour.h: a second copy in memory of what a rank has saved, on another host (checkpoint.memory_copies: 2).
 * Rank r copies the files of rank (r + world / 2) % world, from the checkpoint's folder once it has been
 * published, to its own host's memory, when that rank is on another host; so they are also read and verified from
 * there. A thread of its own; the newest checkpoint counts, the step loop and the writer never wait for it. */
#ifndef ZT_WORKER_NEIGHBOUR_H
#define ZT_WORKER_NEIGHBOUR_H
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"

struct zw_neighbour_config {
    const char *folder;         /* of the run's checkpoints; this and the next are borrowed */
    const char *memory;         /* of this host */
    int rank, world;
    uint32_t generation;
    void *arg;
    /* on the thread: what the run should hear of. kind as struct zt_train_hooks' */
    void (*warn)(void *arg, const char *kind, const char *message);
};
struct zw_neighbour;
/* Every rank opens one before the ranks meet: by that it says in its host's folder that it is there. */
int zw_neighbour_open(const struct zw_neighbour_config *c, struct zw_neighbour **out, struct zt_error *err);
void zw_neighbour_saved(struct zw_neighbour *n, int64_t step); /* this rank's part is durable; any thread */
void zw_neighbour_close(struct zw_neighbour *n); /* gives up what is under way; n may be NULL */

#endif
