/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/read.h: one of our checkpoints, opened and verified while it is read. */
#ifndef ZT_ENGINE_CHECKPOINT_READ_H
#define ZT_ENGINE_CHECKPOINT_READ_H
#include "core/sys.h"
#include "engine/checkpoint/source.h"

struct zt_ckpt_open {
    const struct zt_sys *sys;     /* NULL = the real one */
    const char *folder;           /* of the step: .../step-00001000 */
    const struct zt_sha256 *manifest; /* what the database says; NULL: not known */
    const char *memory;           /* folder with copies of rank files in this host's memory; NULL = none. A copy is
                                   * used when its hashes are the manifest's, else passed over */
};
struct zt_ckpt;
/* ZT_ENOTFOUND: no such folder; ZT_ECORRUPT: not what was written; ZT_EVERSION: a newer format. */
int zt_ckpt_open(const struct zt_ckpt_open *o, struct zt_ckpt **out, struct zt_error *err);
const struct zt_manifest *zt_ckpt_manifest(const struct zt_ckpt *c);
struct zt_tensor_source zt_ckpt_source(struct zt_ckpt *c); /* its close closes c */
/* Reads everything: every hash, every size, no element missing or twice; the parameter and state hash
 * computed again. progress may be NULL. The first fault is the message. */
int zt_ckpt_verify(struct zt_ckpt *c, void (*progress)(void *arg, int64_t bytes), void *arg, struct zt_error *err);
void zt_ckpt_close(struct zt_ckpt *c);
#endif
