/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/live.c: fills into replies read from the database what changes too often to be stored: the age
 * of beats, the step and phase of each rank, the step of the living generation (shell.h). States stay those of the database: what is shown as a
 * state is durable. */
#include <stdlib.h>
#include <string.h>
#include "coordinator/shell.h"

static void put_text(char **field, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return; /* the stored value is old, not wrong */
    free(*field);
    *field = copy;
}

static void workers(struct zt_shell *sh, Zt__WorkerList *l)
{
    int64_t now = zt_shell_now_ns();
    int n = zt_machine_workers(sh->machine);
    for (int i = 0; i < n; i++) {
        struct zt_worker_view v;
        zt_machine_worker_at(sh->machine, i, now, &v);
        for (size_t k = 0; k < l->n_workers; k++) {
            Zt__WorkerInfo *w = l->workers[k];
            if (strcmp(w->worker_id, v.worker_id) != 0)
                continue;
            w->has_beat_age_seconds = 1;
            w->beat_age_seconds = v.beat_age_seconds;
            if (v.flags & ZT_WF_SUSPECT && !w->flags)
                w->flags = strdup("SUSPECT"); /* never stored */
            break;
        }
    }
}

static void ranks(struct zt_shell *sh, Zt__RunDetail *d)
{
    int64_t now = zt_shell_now_ns();
    int n = zt_machine_runs(sh->machine), run = 0;
    struct zt_run_view v;
    for (run = 0; run < n; run++) {
        zt_machine_run_at(sh->machine, run, &v);
        if (strcmp(v.run_id, d->summary->run_id) == 0)
            break;
    }
    if (run == n || !d->summary->has_generation || v.generation != d->summary->generation)
        return;
    for (size_t i = 0; i < d->n_attempts; i++) {
        Zt__Attempt *a = d->attempts[i];
        if (a->generation != v.generation || a->has_ended_ms || (a->has_last_step && a->last_step >= v.step))
            continue;
        a->has_last_step = 1;
        a->last_step = v.step;
    }
    for (size_t i = 0; i < d->n_ranks; i++) {
        struct zt_worker_view w;
        Zt__RankInfo *r = d->ranks[i];
        if (!zt_machine_rank_at(sh->machine, run, (int)r->rank, now, &w))
            continue;
        if (w.step >= 0 && (!r->has_step || w.step > r->step)) {
            r->has_step = 1;
            r->step = w.step;
        }
        if (r->state && strcmp(r->state, "DONE") != 0 && strcmp(r->state, "EXITED") != 0)
            put_text(&r->state, zt_worker_state_name(w.state));
    }
}

void zt_live_overlay(struct zt_shell *sh, Zt__Envelope *reply)
{
    if (reply->body_case == ZT__ENVELOPE__BODY_WORKER_LIST)
        workers(sh, reply->worker_list);
    else if (reply->body_case == ZT__ENVELOPE__BODY_RUN_DETAIL)
        ranks(sh, reply->run_detail);
}
