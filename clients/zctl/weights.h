/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/weights.h: the weights that a word of the command line names. One thread. */
#ifndef ZT_ZCTL_WEIGHTS_H
#define ZT_ZCTL_WEIGHTS_H
#include "clients/zctl/options.h"
#include "engine/checkpoint/weights.h"

/* A Hugging Face folder, a checkpoint's, or what names a checkpoint (clients/zctl/checkpoint.h); its manifest
 * is the one that the coordinator knows. */
int zt_find_weights(const struct zt_options *o, const char *text, struct zt_weights *w, struct zt_error *err);

#endif
