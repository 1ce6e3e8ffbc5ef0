/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/schedule.c: which idle worker becomes which rank. Pure; owns nothing; any thread.
 *
 * Rank order is tensor innermost, then shard, then replicate, so a tensor group is T neighbours and
 * a shard group S x T neighbours. Placement is three rounds over the hosts in natural order: whole
 * shard groups, then whole tensor groups, then single workers; each round takes what fits on a host
 * and leaves the rest to the next one. */
#include "coordinator/machine.h"

#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

int zt_natural_compare(const char *a, const char *b) {
    const char *x = a, *y = b;
    while (*x && *y) {
        if (is_digit(*x) && is_digit(*y)) {
            while (*x == '0') x++;
            while (*y == '0') y++;
            size_t nx = 0, ny = 0;
            while (is_digit(x[nx])) nx++;
            while (is_digit(y[ny])) ny++;
            if (nx != ny) return nx < ny ? -1 : 1;
            int c = memcmp(x, y, nx);
            if (c) return c < 0 ? -1 : 1;
            x += nx;
            y += ny;
        } else if (*x != *y) {
            return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        } else {
            x++;
            y++;
        }
    }
    if (*x || *y) return *x ? 1 : -1;
    int c = strcmp(a, b); /* "w1" and "w01" are different names and need one order */
    return c < 0 ? -1 : c > 0;
}

static int by_place(const void *pa, const void *pb, void *ctx) {
    const struct zt_slot *s = ctx;
    const struct zt_slot *a = &s[*(const int *)pa], *b = &s[*(const int *)pb];
    int c = zt_natural_compare(a->host, b->host);
    return c ? c : zt_natural_compare(a->worker_id, b->worker_id);
}

struct hosts {
    int n;
    int *start; /* first slot of host h in the sorted list; start[n] would be the number of slots */
    int *size;  /* workers of host h */
    int *used;  /* of them, given out */
};

/* Takes `want` groups of `size` workers: from the smallest host that holds all of them, else as
 * many as the roomiest host holds, and so on. Writes the members in host order to out; returns
 * groups not placed. */
static int spread(struct hosts *h, const int *sorted, int size, int want, int *out, int *n_out) {
    int *taken = h->start + 3 * h->n; /* the fourth part of scratch */
    for (int i = 0; i < h->n; i++) taken[i] = 0;
    while (want > 0) {
        int best = -1;
        bool best_all = false;
        for (int i = 0; i < h->n; i++) {
            int room = h->size[i] - h->used[i] - taken[i] * size;
            if (room < size) continue;
            bool all = room / size >= want;
            int best_room = best < 0 ? 0 : h->size[best] - h->used[best] - taken[best] * size;
            bool better =
                best < 0 || (all && !best_all) ||
                (all == best_all && (all ? room < best_room : room / size > best_room / size));
            if (!better) continue;
            best = i;
            best_all = all;
        }
        if (best < 0) break;
        int room = h->size[best] - h->used[best] - taken[best] * size;
        int k = best_all ? want : room / size;
        taken[best] += k;
        want -= k;
    }
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < taken[i] * size; k++)
            out[(*n_out)++] = sorted[h->start[i] + h->used[i]++];
    return want;
}

int zt_schedule_place(const struct zt_slot *slots, int n, struct zt_mesh mesh, int *order,
                      int *scratch) {
    int world = zt_mesh_world(mesh);
    if (world < 1 || n < world) return ZT_ENOPLACE;
    int *sorted = malloc(sizeof(int) * (size_t)n);
    if (!sorted) return ZT_ENOMEM;
    for (int i = 0; i < n; i++) sorted[i] = i;
    qsort_r(sorted, (size_t)n, sizeof(int), by_place, (void *)(uintptr_t)slots);
    int n_hosts = 0;
    for (int i = 0; i < n; i++)
        if (i == 0 || strcmp(slots[sorted[i]].host, slots[sorted[i - 1]].host)) n_hosts++;
    struct hosts h = {
        .n = n_hosts, .start = scratch, .size = scratch + n_hosts, .used = scratch + 2 * n_hosts};
    for (int i = 0, k = -1; i < n; i++) {
        if (i == 0 || strcmp(slots[sorted[i]].host, slots[sorted[i - 1]].host)) {
            h.start[++k] = i;
            h.size[k] = 0;
            h.used[k] = 0;
        }
        h.size[k]++;
    }
    int placed = 0;
    int left = spread(&h, sorted, mesh.shard * mesh.tensor, mesh.replicate, order, &placed);
    if (left) left = spread(&h, sorted, mesh.tensor, left * mesh.shard, order, &placed);
    if (left) left = spread(&h, sorted, 1, left * mesh.tensor, order, &placed);
    ZT_ASSERT(left == 0 && placed == world);
    free(sorted);
    return 0;
}
