/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_sweep.c: `--sweep KEY=A,B,C`: the plan for each value of a key, or each combination. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/json.h"
#include "clients/zctl/planning.h"

struct axis { char key[96]; char *text; char *value[ZT_SWEEP_ROWS]; int n; };

/* Cuts at commas outside of brackets: training.trainable=[a,b],[c] has two values. */
static int cut(const char *sweep, struct axis *a, struct zt_error *err) {
    size_t n = strcspn(sweep, "=");
    int depth = 0;
    if (n >= sizeof a->key)
        return zt_fail(err, ZT_EINVAL, "--sweep %.60s: no key of a run file is that long", sweep);
    memcpy(a->key, sweep, n);
    a->text = strdup(sweep + n + 1);
    if (!a->text)
        return zt_fail(err, ZT_ENOMEM, "no memory for --sweep");
    for (char *p = a->text, *from = p;; p++) {
        depth += (*p == '[' || *p == '{') - (*p == ']' || *p == '}');
        if (*p && (*p != ',' || depth > 0))
            continue;
        bool end = *p == '\0';
        if (a->n == ZT_SWEEP_ROWS)
            return zt_fail(err, ZT_EINVAL, "--sweep %s: more than %d values", a->key, ZT_SWEEP_ROWS);
        *p = '\0';
        if (!from[0])
            return zt_fail(err, ZT_EINVAL, "--sweep %s: a value is empty", a->key);
        a->value[a->n++] = from;
        from = p + 1;
        if (end)
            return 0;
    }
}

static json_t *row_of(const struct axis *a, const int *at, int n, const struct zt_plan *p, const char *why) {
    json_t *row = json_object(), *set = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(set, a[i].key, zt_json_text(a[i].value[at[i]]));
    json_object_set_new(row, "set", set);
    json_object_set_new(row, "fits", p ? json_boolean(p->fits) : json_null());
    json_object_set_new(row, "peak_allocated_bytes", zt_json_int(p, p ? p->peak_allocated_bytes : 0));
    json_object_set_new(row, "headroom_bytes", zt_json_int(p, p ? p->capacity_bytes - p->peak_reserved_bytes : 0));
    json_object_set_new(row, "step_seconds_estimate", zt_json_real(p, p ? p->step_seconds : 0));
    json_object_set_new(row, "exposed_comm_seconds_estimate", zt_json_real(p, p ? p->exposed.exposed_comm_seconds : 0));
    json_object_set_new(row, "exposed_share_estimate", zt_json_real(p, p ? zt_plan_exposed_share(p) : 0));
    json_object_set_new(row, "tokens_per_second_estimate", zt_json_real(p, p ? p->tokens_per_second : 0));
    json_object_set_new(row, "why", zt_json_text(why));
    return row;
}

static const char *first_line(char *message) {
    message[strcspn(message, "\n")] = '\0';
    return message;
}

static int plan_row(struct zt_planning *p, const struct axis *a, const int *at, int n, struct zt_error *err) {
    const struct zt_run_file *f = p->file;
    const char *sets[ZT_MAX_SETS + 4 + ZT_MAX_SWEEPS];
    char text[ZT_MAX_SWEEPS][512];
    int n_sets = 0;
    struct zt_error why = {0};
    struct zt_plan *plan = NULL;
    struct zt_plan_config c;
    for (int i = 0; i < f->n_set; i++)
        sets[n_sets++] = f->set[i];
    for (int i = 0; i < n; i++) {
        snprintf(text[i], sizeof text[i], "%s=%s", a[i].key, a[i].value[at[i]]);
        sets[n_sets++] = text[i];
    }
    struct zt_spec *s = calloc(1, sizeof *s);
    if (!s)
        return zt_fail(err, ZT_ENOMEM, "no memory for --sweep");
    int rc = zt_spec_parse(f->text, f->bytes, f->file, sets, n_sets, s, &why);
    char *verbatim = rc ? NULL : s->verbatim;
    s->verbatim = NULL;
    rc = rc ? rc : zt_planning_settle(p, s, &c, &why);
    rc = rc ? rc : zt_plan_make(&c, &plan, &why);
    if (rc == ZT_ENOMEM)
        zt_fail(err, rc, "%s", why.msg);
    else
        json_array_append_new(p->sweep, row_of(a, at, n, plan, rc ? first_line(why.msg) : NULL));
    zt_plan_free(plan);
    free(verbatim);
    free(s);
    return rc == ZT_ENOMEM ? rc : 0;
}

int zt_planning_sweep(struct zt_planning *p, struct zt_error *err) {
    struct axis *a = calloc(ZT_MAX_SWEEPS, sizeof *a);
    int n = p->o->n_sweep, at[ZT_MAX_SWEEPS] = {0}, rc = a ? 0 : zt_fail(err, ZT_ENOMEM, "no memory for --sweep");
    int64_t rows = 1;
    json_t *keep = p->assumed; /* what is assumed of a row is not said */
    const int per_host = p->ranks_per_host, hosts = p->hosts;
    p->assumed = json_array();
    p->sweep = json_array();
    for (int i = 0; i < n && rc == 0; i++) {
        rc = cut(p->o->sweep[i], &a[i], err);
        rows *= a[i].n;
        if (rc == 0 && rows > ZT_SWEEP_ROWS)
            rc = zt_fail(err, ZT_EINVAL, "--sweep: %lld combinations; at most %d", (long long)rows, ZT_SWEEP_ROWS);
    }
    for (int64_t r = 0; r < rows && rc == 0; r++) {
        int64_t rest = r;
        for (int i = n - 1; i >= 0; i--) { /* the last key changes fastest */
            at[i] = (int)(rest % a[i].n);
            rest /= a[i].n;
        }
        rc = plan_row(p, a, at, n, err);
    }
    for (int i = 0; a && i < n; i++)
        free(a[i].text);
    free(a);
    json_decref(p->assumed);
    p->assumed = keep;
    p->ranks_per_host = per_host;
    p->hosts = hosts;
    return rc;
}
