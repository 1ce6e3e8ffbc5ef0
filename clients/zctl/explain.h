/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/explain.h: what is said about the modes in words; the numbers are worked out where they
 * are printed. Constant data; one thread. */
#ifndef ZT_ZCTL_EXPLAIN_H
#define ZT_ZCTL_EXPLAIN_H
#include "core/modes.h"

/* Which part of zt_volume_formula a row of "sends" is. */
enum zt_send_part { ZT_SEND_FORWARD, ZT_SEND_BACKWARD, ZT_SEND_UPDATED, ZT_SEND_SCATTER, ZT_SEND_ALL_REDUCE };
struct zt_send_words { enum zt_send_part part; const char *when, *formula; };
struct zt_name_words { const char *fsdp2, *fsdp1, *deepspeed, *megatron; };

struct zt_mode_words {
    const char *name, *title;
    const char *parameters, *gradients, *optimizer; /* what is held, as formulas */
    const char *transient;                          /* beside it, while a step runs */
    struct zt_send_words sends[5];                  /* up to the first without `when` */
    const char *accumulation, *good_for;
    const char *options;                            /* keys of run.yaml that it reads */
    const char *differs;                            /* from its neighbour */
    struct zt_name_words names;
    const char *mistakes[4];
};
/* By zt_mode, then hsdp; NULL past the end. */
const struct zt_mode_words *zt_mode_words(int i);
#define ZT_HSDP_WORDS ((int)ZT_MODE_COUNT)

#endif
