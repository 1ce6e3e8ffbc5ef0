/* SPDX-License-Identifier: Apache-2.0 */
/* worker/steps.c: see steps.h. The file holds u32 little-endian length + packed report, one after the
 * other; it is read from the front and cut to nothing when it is empty. It serves this process only, so
 * it is not synced: with the supervisor its generation is gone. */
#include "worker/steps.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

void zw_steps_init(struct zw_steps *s, const struct zt_sys *sys, const char *spill_path)
{
    *s = (struct zw_steps){.sys = sys, .spill_fd = -1, .full_max = ZW_STEPS_FULL};
    if (spill_path && strlen(spill_path) < sizeof(s->spill_path)) {
        memcpy(s->spill_path, spill_path, strlen(spill_path) + 1);
    }
}

static void spill_close(struct zw_steps *s)
{
    if (s->spill_fd >= 0) {
        s->sys->close(s->sys->arg, s->spill_fd);
        s->sys->unlink(s->sys->arg, s->spill_path);
    }
    s->spill_fd = -1;
    s->spill_read = s->spill_end = 0;
    s->spilled = 0;
}

void zw_steps_clear(struct zw_steps *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->ring[(s->head + i) % s->cap].bytes);
    }
    s->head = s->n = s->thin = 0;
    spill_close(s);
}

void zw_steps_free(struct zw_steps *s)
{
    zw_steps_clear(s);
    free(s->ring);
    s->ring = NULL;
    s->cap = 0;
}

size_t zw_steps_count(const struct zw_steps *s)
{
    return s->n + s->spilled;
}

static struct zw_report *at(struct zw_steps *s, size_t i)
{
    return &s->ring[(s->head + i) % s->cap];
}

/* ------------------------------------------------------------------------------------ thinning */

/* Keeps what the roll-up over ranks needs: sums of tokens, the losses, times and peaks. */
static int thin_report(struct zw_report *r)
{
    Zt__StepReport *full = zt__step_report__unpack(NULL, r->n, r->bytes);
    if (!full) {
        return ZT_ENOMEM;
    }
    Zt__StepReport small = *full; /* shares the strings of `full` until packed */
    small.n_exposed_by = 0;
    small.exposed_by = NULL;
    small.at_peak = small.category_max = small.persistent = NULL;
    small.init_peak = small.eval_peak = NULL;
    small.has_data_seconds = small.has_forward_seconds = small.has_backward_seconds = 0;
    small.has_optimizer_seconds = small.has_compute_seconds = small.has_overlapped_seconds = 0;
    small.has_reserved_at_peak_bytes = small.has_max_unused_reserved_bytes = 0;
    small.has_end_of_step_allocated_bytes = small.has_outside_allocator_bytes = 0;
    small.has_thinned = small.thinned = 1;
    size_t n = zt__step_report__get_packed_size(&small);
    uint8_t *bytes = malloc(n);
    if (bytes) {
        zt__step_report__pack(&small, bytes);
        free(r->bytes);
        r->bytes = bytes;
        r->n = (uint32_t)n;
        r->thin = true;
    }
    zt__step_report__free_unpacked(full, NULL);
    return bytes ? 0 : ZT_ENOMEM;
}

static bool spill_write(struct zw_steps *s, const struct zw_report *r)
{
    uint8_t head[4];
    if (s->spill_broken || !s->spill_path[0]) {
        return false;
    }
    if (s->spill_fd < 0) {
        s->spill_fd = s->sys->open(s->sys->arg, s->spill_path,
                                   O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->spill_fd < 0) {
            s->spill_fd = -1;
            s->spill_broken = true;
            return false;
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        head[i] = (uint8_t)(r->n >> (8 * i));
    }
    /* a short write is cut off by not moving the end */
    if (s->sys->pwrite(s->sys->arg, s->spill_fd, head, 4, s->spill_end) != 4 ||
        s->sys->pwrite(s->sys->arg, s->spill_fd, r->bytes, r->n, s->spill_end + 4) != (ssize_t)r->n) {
        s->spill_broken = true; /* what is in it is still read */
        return false;
    }
    s->spill_end += 4 + (off_t)r->n;
    s->spilled++;
    return true;
}

static void drop_head(struct zw_steps *s)
{
    struct zw_report *r = at(s, 0);
    s->thin -= r->thin;
    free(r->bytes);
    r->bytes = NULL;
    s->head = (s->head + 1) % s->cap;
    s->n--;
}

/* One whole report too many: the oldest one is thinned, and written out if it can be. */
static void shed(struct zw_steps *s)
{
    struct zw_report *r = at(s, s->thin);
    if (thin_report(r)) {
        return; /* no memory for a copy: it stays whole for now */
    }
    s->thin++;
    s->thinned_ever++;
    while (s->thin > 0 && spill_write(s, at(s, 0))) {
        drop_head(s);
    }
}

int zw_steps_push(struct zw_steps *s, const Zt__StepReport *r, struct zt_error *err)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct zw_report *ring = malloc(cap * sizeof(*ring));
        if (!ring) {
            return zt_fail(err, ZT_ENOMEM, "no memory for step reports");
        }
        for (size_t i = 0; i < s->n; i++) {
            ring[i] = *at(s, i);
        }
        free(s->ring);
        s->ring = ring;
        s->head = 0;
        s->cap = cap;
    }
    size_t n = zt__step_report__get_packed_size(r);
    uint8_t *bytes = malloc(n);
    if (!bytes) {
        return zt_fail(err, ZT_ENOMEM, "no memory for a step report");
    }
    zt__step_report__pack(r, bytes);
    s->n++;
    *at(s, s->n - 1) = (struct zw_report){.bytes = bytes, .n = (uint32_t)n};
    if (s->n - s->thin > s->full_max) {
        shed(s);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------- taking */

static bool spill_read(struct zw_steps *s, struct zw_report *out)
{
    uint8_t head[4];
    if (s->sys->pread(s->sys->arg, s->spill_fd, head, 4, s->spill_read) != 4) {
        return false;
    }
    uint32_t n = (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 |
                 (uint32_t)head[3] << 24;
    if ((off_t)n > s->spill_end - s->spill_read - 4) {
        return false;
    }
    uint8_t *bytes = malloc(n ? n : 1);
    if (!bytes || s->sys->pread(s->sys->arg, s->spill_fd, bytes, n, s->spill_read + 4) != (ssize_t)n) {
        free(bytes);
        return false;
    }
    *out = (struct zw_report){.bytes = bytes, .n = n, .thin = true};
    s->spill_read += 4 + (off_t)n;
    return true;
}

void zw_steps_take(struct zw_steps *s, struct zw_batch *b)
{
    size_t bytes = 0;
    b->n = 0;
    while (s->spilled > 0 && b->n < ZW_BATCH_REPORTS && bytes < ZW_BATCH_BYTES) {
        if (!spill_read(s, &b->reports[b->n])) {
            s->lost += s->spilled; /* somebody damaged or removed our file */
            spill_close(s);
            break;
        }
        bytes += b->reports[b->n++].n;
        if (--s->spilled == 0) {
            spill_close(s);
        }
    }
    while (s->spilled == 0 && s->n > 0 && b->n < ZW_BATCH_REPORTS && bytes < ZW_BATCH_BYTES) {
        struct zw_report *r = at(s, 0);
        bytes += r->n;
        b->reports[b->n++] = *r;
        r->bytes = NULL;
        drop_head(s);
    }
}

void zw_batch_free(struct zw_batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->reports[i].bytes);
    }
    b->n = 0;
}
