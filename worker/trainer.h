/* SPDX-License-Identifier: Apache-2.0 */
/* worker/trainer.h: the trainer child: zworker --trainer-fd N --progress-fd M --parent PID. */
#ifndef ZT_WORKER_TRAINER_H
#define ZT_WORKER_TRAINER_H
#include <sys/types.h>
#include "engine/report.h"
#include "proto/ztrain.pb-c.h"

int zw_trainer_main(int channel_fd, int progress_fd, pid_t parent); /* the exit code */

/* A step report as the wire has it; pointers go into *box and into r. Missing values are left out. */
struct zw_report_box {
    Zt__StepReport report;
    Zt__TagBytes at_peak, category_max, persistent;
    Zt__WindowPeak init, eval, save, load;
    Zt__TagBytes init_at, init_persistent, eval_at, eval_persistent, save_at, save_persistent, load_at, load_persistent;
    Zt__ExposedBy by[ZT_EXPOSED_BY_MAX], *by_list[ZT_EXPOSED_BY_MAX];
};
void zw_report_fill(struct zw_report_box *box, const struct zt_step_report *r);
struct zw_dtypes_box { Zt__DtypesReport report; Zt__DtypeRow row[ZT_ROW_COUNT], *rows[ZT_ROW_COUNT]; };
void zw_dtypes_fill(struct zw_dtypes_box *box, const struct zt_dtypes_report *d);

#endif
