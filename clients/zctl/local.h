/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/local.h: a private coordinator and workers on this machine, in a state folder that nobody else uses at the
 * same time. zctl run, probe and drill have theirs. The struct owns its children, the lock and the pipe from the coordinator
 * until zt_local_stop. One thread, the one that forks (children.h). */
#ifndef ZT_ZCTL_LOCAL_H
#define ZT_ZCTL_LOCAL_H
#include "clients/zctl/children.h"

struct zt_local {
    int workers;
    double gib;                      /* of each worker; 0: they choose themselves */
    int threads;                     /* of each worker; 0: its share of the cores */
    void (*before_message)(void *arg); /* NULL, or called before something is said on stderr */
    void *arg;
    char dir[1024], token_path[1100], prefix[32]; /* prefix of the workers' names */
    int lock, port, coord_out;
    struct zt_child coord, *worker;
};

/* Where state is kept: ".../ztrain/local". */
int zt_local_base(char *out, size_t n, struct zt_error *err);
/* Each folder of the path that is missing, for this user alone. */
int zt_make_folders(const char *path, struct zt_error *err);
/* This machine's share of memory for each of so many workers, in GiB: of half of what is available. */
double zt_memory_share(int workers);

/* Zeroed but for what is above dir. Takes the folder `state`, or the first free one of the user's own (NULL), and finds the
 * programs. ZT_ECONFLICT: somebody else uses it. */
int zt_local_prepare(struct zt_local *l, const char *state, struct zt_error *err);
/* Returns when it listens; l->port. */
int zt_local_start_coord(struct zt_local *l, struct zt_error *err);
int zt_local_start_workers(struct zt_local *l, struct zt_error *err);
/* Starts again what has died; fails when it dies at once, again and again. one: worker i, -1 the coordinator. */
int zt_local_mind(struct zt_local *l, struct zt_error *err);
int zt_local_mind_one(struct zt_local *l, int i, struct zt_error *err);
/* Ends all of it and lets go of the folder. Safe after a failed prepare. */
void zt_local_stop(struct zt_local *l);

#endif
