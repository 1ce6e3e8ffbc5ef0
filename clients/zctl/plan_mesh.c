/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/plan_mesh.c: which rank is where: hosts, workers, coordinates, groups. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/planning.h"

#define CELLS_MAX 32   /* ranks that are all shown */
#define LINE 96
#define LIST_MAX 16    /* members of a group that are all shown */

static const char *coords(struct zt_mesh m, int rank, char *buf, size_t n) {
    struct zt_coords c = zt_mesh_coords(m, rank);
    snprintf(buf, n, "%d (%d,%d,%d)", rank, c.replicate, c.shard, c.tensor);
    return buf;
}

/* Ranks of one host are neighbours. */
static int host_of(const struct zt_planning *p, int rank, const char **name) {
    const struct zt_plan_live *l = &p->live;
    if (l->n_order == 0 || l->n_order != p->spec.workers) {
        *name = NULL;
        return rank / p->ranks_per_host;
    }
    *name = l->worker[l->order[rank]].host;
    int host = 0;
    for (int i = 1; i <= rank; i++)
        host += strcmp(l->worker[l->order[i]].host, l->worker[l->order[i - 1]].host) != 0;
    return host;
}

static int host_label(FILE *out, const struct zt_planning *p, int rank) {
    const char *name;
    int host = host_of(p, rank, &name);
    return name ? fprintf(out, "          %.40s:  ", name) : fprintf(out, "          host %d:  ", host);
}

static void grid(FILE *out, const struct zt_planning *p, struct zt_mesh m) {
    const char *name;
    char text[64];
    int last = -1, column = 0, indent = 0, width = (int)strlen(coords(m, zt_mesh_world(m) - 1, text, sizeof text));
    for (int r = 0; r < zt_mesh_world(m); r++) {
        int host = host_of(p, r, &name), pad = column;
        if (host != last) {
            if (last >= 0)
                fputc('\n', out);
            pad = column = indent = host_label(out, p, r);
        } else if (column + width + 3 > LINE) {
            fprintf(out, "\n%*s", indent, "");
            pad = column = indent;
        } else
            pad = column + 3;
        last = host;
        /* cells begin where those of the line above do */
        fprintf(out, "%*s", pad - column, "");
        bool more = r + 1 < zt_mesh_world(m) && host_of(p, r + 1, &name) == host && pad + 2 * width + 3 <= LINE;
        column = pad + fprintf(out, more ? "%-*s" : "%.*s", width, coords(m, r, text, sizeof text));
    }
    fputc('\n', out);
}

/* The first hosts and the last. */
static void folded(FILE *out, const struct zt_planning *p, struct zt_mesh m) {
    int world = zt_mesh_world(m), per = p->ranks_per_host;
    char a[64], b[64];
    for (int first = 0, shown = 0; first < world; first += per, shown++) {
        int last = first + per - 1 < world ? first + per - 1 : world - 1;
        if (shown == 3 && last < world - 1) {
            fputs("          ...\n", out);
            first = (world - 1) / per * per;
            last = world - 1;
        }
        host_label(out, p, first);
        if (first == last)
            fprintf(out, "rank %s\n", coords(m, first, a, sizeof a));
        else
            fprintf(out, "ranks %s to %s\n", coords(m, first, a, sizeof a), coords(m, last, b, sizeof b));
    }
}

/* Of the first group along an axis: how many hosts it spans. */
static void say_group(FILE *out, const struct zt_planning *p, struct zt_mesh m, enum zt_axis axis,
                      const char *name) {
    int *ranks = calloc((size_t)zt_mesh_world(m), sizeof *ranks), hosts = 0, last = -1;
    const char *ignored;
    int n = ranks ? zt_mesh_group(m, axis, 0, ranks) : 0;
    for (int i = 0; i < n; i++) {
        int host = host_of(p, ranks[i], &ignored);
        hosts += host != last;
        last = host;
    }
    free(ranks);
    if (n > 1 && hosts > 1 && hosts < n)
        fprintf(out, "          %s: %d ranks in a group, over %d hosts\n", name, n, hosts);
    else if (n > 1)
        fprintf(out, "          %s: %d ranks in a group, %s\n", name, n, hosts == 1 ? "on one host" : "each on another host");
}

void zt_plan_print_mesh(FILE *out, const struct zt_planning *p) {
    struct zt_mesh m = zt_spec_mesh(&p->spec);
    int world = zt_mesh_world(m);
    fprintf(out, "mesh      replicate %d x shard %d x tensor %d = %d rank%s on %d host%s; rank (replicate,shard,tensor)\n",
            m.replicate, m.shard, m.tensor, world, world == 1 ? "" : "s", p->hosts, p->hosts == 1 ? "" : "s");
    if (world <= CELLS_MAX)
        grid(out, p, m);
    else
        folded(out, p, m);
    if (p->hosts > 1) {
        say_group(out, p, m, ZT_AXIS_SHARD, "dp_shard");
        say_group(out, p, m, ZT_AXIS_REPLICATE, "dp_replicate");
        say_group(out, p, m, ZT_AXIS_TENSOR, "tensor");
    }
}

/* ---------------------------------------------------------------------------------- --rank */

static void members(FILE *out, struct zt_mesh m, enum zt_axis axis, int rank, const char *name) {
    int *ranks = calloc((size_t)zt_mesh_world(m), sizeof *ranks);
    int n = ranks ? zt_mesh_group(m, axis, rank, ranks) : 0;
    if (n > 1) {
        fprintf(out, "          %s with", name);
        for (int i = 0; i < n && i < LIST_MAX; i++)
            fprintf(out, " %d", ranks[i]);
        fprintf(out, n > LIST_MAX ? " ... %d (%d ranks)\n" : "\n", ranks[n - 1], n);
    }
    free(ranks);
}

int zt_plan_print_ranks(FILE *out, const struct zt_planning *p, struct zt_error *err) {
    struct zt_mesh m = zt_spec_mesh(&p->spec);
    const struct zt_plan *plan = p->plan;
    char text[64];
    for (int i = 0; i < p->o->n_rank; i++)
        if (p->o->rank[i] >= (uint32_t)zt_mesh_world(m))
            return zt_fail(err, ZT_EINVAL, "--rank %u: the plan has ranks 0 to %d", p->o->rank[i], zt_mesh_world(m) - 1);
    for (int i = 0; i < p->o->n_rank; i++) {
        int rank = (int)p->o->rank[i], dp = zt_mesh_dp_index(m, rank), shape = 0;
        const char *host;
        for (int s = 0; s < plan->n_shapes; s++)
            if (dp >= plan->shape[s].dp_from && dp < plan->shape[s].dp_to)
                shape = s;
        int at = host_of(p, rank, &host);
        fprintf(out, "\nrank      %s", coords(m, rank, text, sizeof text));
        if (host)
            fprintf(out, " on worker %s", p->live.worker[p->live.order[rank]].id);
        else
            fprintf(out, " on host %d", at);
        fprintf(out, "; its memory is that of rank %d\n", plan->shape[shape].rank);
        members(out, m, ZT_AXIS_SHARD, rank, "dp_shard");
        members(out, m, ZT_AXIS_REPLICATE, rank, "dp_replicate");
        members(out, m, ZT_AXIS_TENSOR, rank, "tensor");
    }
    return 0;
}
