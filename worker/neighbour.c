/* SPDX-License-Identifier: Apache-2.0 */
/* worker/neighbour.c: see neighbour.h. */
#include "worker/neighbour.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/checkpoint/copy.h"

#define LOOK_MS 200 /* between two looks for the published folder */

struct zw_neighbour {
    struct zw_neighbour_config c;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t wanted;             /* newest step this rank has saved; 0: none */
    _Atomic bool stop;          /* a newer step, or the end */
    bool closing;
};

static int of_rank(const struct zw_neighbour *n)
{
    return (n->c.rank + n->c.world / 2) % n->c.world;
}

static bool marker(const struct zw_neighbour *n, int rank, char path[PATH_MAX])
{
    int k = snprintf(path, PATH_MAX, "%s/here-%05d-g%u", n->c.memory, rank + 1, n->c.generation);
    return k > 0 && k < PATH_MAX;
}

/* It keeps its own copy in this folder. */
static bool is_here(const struct zw_neighbour *n, int rank)
{
    char path[PATH_MAX];
    return marker(n, rank, path) && access(path, F_OK) == 0;
}

static void copy(struct zw_neighbour *n, const char *folder)
{
    struct zt_error err;
    int64_t bytes;
    int rc = zt_ckpt_copy_rank(NULL, folder, of_rank(n), n->c.memory, &n->stop, &bytes, &err);
    if (rc == ZT_ECORRUPT) {
        n->c.warn(n->c.arg, "CHECKPOINT_CORRUPT", err.msg);
    } else if (rc != 0 && rc != ZT_ECANCELLED && rc != ZT_ENOTFOUND) { /* not found: it was let go meanwhile */
        char text[768];
        snprintf(text, sizeof(text), "rank %d's part of a checkpoint is not copied into this host's memory: %.600s",
                 of_rank(n), err.msg);
        n->c.warn(n->c.arg, "MEMORY_COPY_SKIPPED", text);
    }
}

/* Under the lock: waits for something to do; the step, 0 at the end. */
static int64_t next_step(struct zw_neighbour *n, int64_t done)
{
    while (!n->closing && n->wanted <= done) {
        pthread_cond_wait(&n->changed, &n->lock);
    }
    atomic_store(&n->stop, n->closing);
    return n->closing ? 0 : n->wanted;
}

/* Under the lock: until the step is published; false: there is something newer to do. */
static bool until_published(struct zw_neighbour *n, int64_t step, const char *folder)
{
    while (access(folder, F_OK) != 0) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&n->changed, &n->lock, &until);
        if (n->closing || n->wanted != step) {
            return false;
        }
    }
    return true;
}

static void *copier_main(void *arg)
{
    struct zw_neighbour *n = arg;
    char folder[PATH_MAX], name[32];
    int64_t step = 0;
    pthread_mutex_lock(&n->lock);
    while ((step = next_step(n, step)) > 0) {
        zt_ckpt_step_name(step, name);
        int k = snprintf(folder, sizeof(folder), "%s/%s", n->c.folder, name);
        if (k < 0 || k >= PATH_MAX || is_here(n, of_rank(n)) || !until_published(n, step, folder)) {
            continue;
        }
        pthread_mutex_unlock(&n->lock);
        copy(n, folder);
        pthread_mutex_lock(&n->lock);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

static int say_here(const struct zw_neighbour *n, struct zt_error *err)
{
    char path[PATH_MAX];
    int fd = marker(n, n->c.rank, path) ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0) {
        return zt_fail(err, ZT_EIO, "checkpoints are not copied to another host: %s: %s", path, strerror(errno));
    }
    close(fd);
    return 0;
}

int zw_neighbour_open(const struct zw_neighbour_config *c, struct zw_neighbour **out, struct zt_error *err)
{
    pthread_condattr_t monotonic;
    struct zw_neighbour *n = calloc(1, sizeof(*n));
    *out = NULL;
    if (!n) {
        return zt_fail(err, ZT_ENOMEM, "no memory to copy checkpoints to another host");
    }
    n->c = *c;
    int rc = say_here(n, err);
    if (rc) {
        free(n);
        return rc;
    }
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&n->thread, NULL, copier_main, n)) {
        free(n);
        return zt_fail(err, ZT_ENOMEM, "checkpoints are not copied to another host: cannot start a thread");
    }
    *out = n;
    return 0;
}

void zw_neighbour_saved(struct zw_neighbour *n, int64_t step)
{
    pthread_mutex_lock(&n->lock);
    n->wanted = step;
    atomic_store(&n->stop, true); /* of what is under way */
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

void zw_neighbour_close(struct zw_neighbour *n)
{
    if (!n) {
        return;
    }
    pthread_mutex_lock(&n->lock);
    n->closing = true;
    atomic_store(&n->stop, true);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n);
}
