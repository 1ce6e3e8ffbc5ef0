/* SPDX-License-Identifier: Apache-2.0 */
/* worker/saves.h: the trainer's half of saving and going on: what the assignment says about checkpoints as the
 * engine wants it, and the engine's hooks as questions to the coordinator, by way of the supervisor.
 * The hooks are called on the engine's writer thread and block until they are answered; ZT_ECONFLICT: this
 * generation is over. */
#ifndef ZT_WORKER_SAVES_H
#define ZT_WORKER_SAVES_H
#include "core/spec.h"
#include "engine/train.h"
#include "worker/link.h"
#include "worker/neighbour.h"

struct zw_saves {
    struct zw_link *link;
    const Zt__TrainerStart *start;  /* borrowed, as all that config points to */
    struct zt_sha256 manifest;      /* of the checkpoint to go on from */
    struct zt_checkpoint_config config;
    struct zw_neighbour *neighbour; /* NULL: no copies of another rank's part */
    void (*event)(void *arg, enum zt_event_level level, const char *kind, const char *message);
    void *event_arg;
};
/* s has event and event_arg: as in struct zt_train_hooks, but any thread. The configuration, inside s; NULL: this run
 * saves nothing and begins anew. ZT_EPROTO: the assignment is not whole. */
int zw_saves_init(struct zw_saves *s, struct zw_link *l, const Zt__TrainerStart *start, const struct zt_spec *spec,
                  const struct zt_checkpoint_config **out, struct zt_error *err);
void zw_saves_end(struct zw_saves *s); /* after zt_train */

#endif
