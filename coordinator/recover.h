/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/recover.h: reads back what the machine needs after a start. The caller owns *out
 * (zt_recovered_free). One thread per handle. */
#ifndef ZT_COORDINATOR_RECOVER_H
#define ZT_COORDINATOR_RECOVER_H
#include <sqlite3.h>
#include "coordinator/machine.h"

/* What an assignment needs beside the machine's part. All malloc'ed. */
struct zt_run_text { char run_id[ZT_RUN_ID_MAX + 1], name[ZT_RUN_NAME_MAX + 1]; uint8_t *yaml; size_t yaml_bytes; char *overrides; /* JSON */
                     char *folder, *source_folder; bool accept_batch_change; /* of checkpoints; "" = none */ };

struct zt_recovered {
    struct zt_recovery recovery; /* points into the arrays below */
    struct zt_row_run *runs; int64_t *run_age_ms, *run_started_age_ms;
    struct zt_run_text *texts;   /* beside runs */
    struct zt_row_attempt *attempts;
    struct zt_row_rank *ranks; int64_t *rank_step;
    struct zt_row_worker *workers;
    struct zt_row_ckpt *ckpts; struct zt_row_part *parts;
    struct zt_row_key *keys; int64_t *key_age_ms;
};
void zt_run_text_free(struct zt_run_text *t); /* what it points to */
int zt_recover(sqlite3 *db, uint64_t epoch, int64_t wall_ms, struct zt_recovered *out, struct zt_error *err);
void zt_recovered_free(struct zt_recovered *r);

#endif
