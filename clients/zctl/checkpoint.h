/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/checkpoint.h: what `zctl checkpoint` is made of: naming one and asking the coordinator of it
 * (checkpoint.c), what is on disk (checkpoint_disk.c, checkpoint_show.c), removing (checkpoint_keep.c), comparing two
 * (checkpoint_diff.c). A checkpoint is named
 *
 *   RUN@STEP   RUN, its newest committed one   a folder: with a "/" in it, or beginning with "."
 *
 * JSON objects belong to the caller. One thread. */
#ifndef ZT_ZCTL_CHECKPOINT_H
#define ZT_ZCTL_CHECKPOINT_H
#include "clients/zctl/cmd.h"
#include "engine/checkpoint/read.h"

/* ---- checkpoint.c ---- */
/* All that the coordinator (or a state folder) knows of a run's checkpoints: {run, name, state, folder, interval,
 * keep_latest_k, keep_every, checkpoints[], the newest first}. */
int zt_fetch_checkpoints(struct zt_source *s, const char *run, json_t **list, struct zt_error *err);
/* Of such a list the one of that step, -1: the newest committed one; borrowed. ZT_ENOTFOUND says which there are. */
int zt_checkpoint_row(const json_t *list, int64_t step, const json_t **row, struct zt_error *err);
int zt_set_checkpoint(struct zt_source *s, const char *run, int64_t step, Zt__SetCheckpoint__What what, const char *message,
                      struct zt_error *err);

/* A checkpoint that was found. */
struct zt_found_checkpoint {
    char folder[ZT_PATH_MAX];      /* .../step-00001000 */
    char run_id[64];               /* "": named by its folder */
    char label[ZT_PATH_MAX];       /* for messages: "quickstart@1000" or the folder */
    int64_t step;                  /* -1: not known before it is opened */
    bool known;                    /* the coordinator says what its manifest hashes to */
    struct zt_sha256 manifest;
};
/* s: opened when text names a run, else left alone (zeroed). */
int zt_find_checkpoint(const struct zt_options *o, const char *text, struct zt_source *s, struct zt_found_checkpoint *f,
                       struct zt_error *err);
/* Opens what was found; its manifest is checked against what is known. */
int zt_open_checkpoint(const struct zt_found_checkpoint *f, struct zt_ckpt **c, struct zt_error *err);

/* ---- checkpoint_disk.c ---- */
/* A folder that is one checkpoint, or the newest in a run's folder. */
int zt_find_on_disk(const char *folder, struct zt_found_checkpoint *f, struct zt_error *err);
/* A run's folder as it lies there, without a coordinator; the same fields as zt_fetch_checkpoints where they are known,
 * state "ON_DISK" or "UNFINISHED", and in `left` {name, bytes, why} of what nobody needs: temporary folders of
 * generations before `generation`, and what trash holds. */
int zt_list_on_disk(const char *folder, uint32_t generation, json_t **list, struct zt_error *err);
/* What a manifest says: {run, name, step, generation, version, mesh, mode, recipe, position{}, bytes{}, writers[],
 * tensors[], parameter_hash, state_hash, previous, created, configuration}. */
json_t *zt_json_manifest(const struct zt_manifest *m);

/* ---- checkpoint_show.c ---- */
int zt_checkpoint_show(const struct zt_options *o);

/* ---- checkpoint_keep.c ---- */
/* Steps that retention lets go, by the rule of docs/checkpoints.md: of the committed ones all but the newest
 * keep_latest_k, multiples of keep_every, pinned ones and the newest verified one; and those whose removal was
 * begun. list: of zt_fetch_checkpoints. Array of {step, why, bytes}. */
json_t *zt_retention(const json_t *list);
int zt_checkpoint_rm(const struct zt_options *o);
int zt_checkpoint_gc(const struct zt_options *o);

/* ---- checkpoint_diff.c ---- */
/* {a, b, equal, position[{field, a, b}], tensors[{tensor, kind, elements, different, first, a, b, max_abs, max_rel, why}]};
 * streaming: two buffers of 4 MiB. progress may be NULL. */
int zt_diff_checkpoints(struct zt_ckpt *a, struct zt_ckpt *b, json_t **out, void (*progress)(void *arg, int64_t bytes),
                        void *arg, struct zt_error *err);
int zt_checkpoint_diff(const struct zt_options *o);

#endif
