/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_weights.c: a run that begins from weights alone. */
#include "engine/train_int.h"

int zt_load_weights(struct zt_trainer *t, const char *folder, const struct zt_sha256 *manifest,
                    struct zt_error *err) {
    (void)t;
    (void)manifest;
    return zt_fail(err, ZT_EUNSUPPORTED, "%s: weights alone are not loaded in this version", folder);
}
