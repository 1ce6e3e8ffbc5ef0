/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/loader.c: one rank's micro-batches in order, read ahead by one thread.
 *
 * Three slots go round: one is in the caller's hands, up to two are ready or being filled. The
 * reader owns the plan (epoch, place in it, window) and fills slot `filled % SLOTS` while filled -
 * given < 2; the caller takes slot `given % SLOTS`, which stays its own until its next call. Only
 * the two counters, `stop` and a slot's hand-over are shared, all under `lock`.
 *
 * In an epoch the ranks stride over the list from the cursor: rank r's i-th sample is list place
 * cursor + i * dp_size + r, so a cursor is good for any number of ranks. Counted epochs end short of a
 * full micro-batch with drop_last, else the last one has fewer rows. Endless ones follow one another
 * without a seam: a micro-batch may begin in one and end in the next, so that the samples of a window
 * depend on the global batch alone, never on how many ranks or micro-batches share it. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/data/internal.h"

#define SLOTS 3

struct slot {
    struct zt_micro_batch batch;
    struct zt_cursor after; /* where a new loader would go on */
    int rc;                 /* 0; ZT_ENOTFOUND: the end; else *err */
    struct zt_error err;
};

struct zt_loader {
    struct zt_loader_config c;
    int64_t samples;
    struct zt_sampler sampler; /* reader thread only, once it runs */
    /* the plan: reader thread only */
    int64_t epoch, consumed; /* global, in this epoch */
    int64_t epoch_rows;      /* samples this rank still has in this epoch */
    int64_t micros_left;     /* micro-batches still to come in this epoch */
    int64_t window_at, window_micros;
    /* shared */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t filled, given; /* slots ever filled, slots ever handed out */
    bool stop;
    struct slot slot[SLOTS];
    /* caller's thread only */
    struct zt_cursor cursor;
    pthread_t thread;
    bool started;
};

/* ---- the plan ---- */

/* Samples per rank, and micro-batches, from global place `consumed` of an epoch to its end. */
static int64_t rows_left(const struct zt_loader_config *c, int64_t samples, int64_t consumed) {
    int64_t left = samples - consumed;
    if (left <= 0) return 0;
    return c->drop_last ? left / c->dp_size : zt_ceil_div(left, c->dp_size);
}

static int64_t micros_of(const struct zt_loader_config *c, int64_t rows) {
    int64_t micros = c->drop_last ? rows / c->local_batch : zt_ceil_div(rows, c->local_batch);
    if (c->epochs > 0 && c->tail == ZT_TAIL_DROP) micros -= micros % c->accumulation;
    return micros;
}

static int enter_epoch(struct zt_loader *l, int64_t epoch, int64_t consumed, struct zt_error *err) {
    l->epoch = epoch;
    l->consumed = consumed;
    l->epoch_rows = rows_left(&l->c, l->samples, consumed);
    l->micros_left = micros_of(&l->c, l->epoch_rows);
    return zt_sampler_set_epoch(&l->sampler, epoch, err);
}

/* Goes to the next counted epoch that has something; ZT_ENOTFOUND after the last one. */
static int find_micro(struct zt_loader *l, struct zt_error *err) {
    while (l->epoch < l->c.epochs && l->micros_left == 0) {
        if (l->epoch + 1 == l->c.epochs) return ZT_ENOTFOUND;
        int rc = enter_epoch(l, l->epoch + 1, 0, err);
        if (rc != ZT_OK) return rc;
    }
    return l->epoch < l->c.epochs ? ZT_OK : ZT_ENOTFOUND;
}

/* A place past the end of an endless epoch is one of the next; of a counted one, without drop_last, it
 * repeats the list from the front. A rank's places ascend, so the order is made once an epoch. */
static int read_row(struct zt_loader *l, struct zt_micro_batch *b, int64_t row,
                    struct zt_error *err) {
    const struct zt_loader_config *c = &l->c;
    int64_t place = l->consumed + row * c->dp_size + c->dp_index;
    int64_t epoch = c->epochs > 0 ? l->epoch : l->epoch + place / l->samples;
    int rc = zt_sampler_set_epoch(&l->sampler, epoch, err);
    if (rc != ZT_OK) return rc;
    int64_t id = l->sampler.perm[place % l->samples];
    struct zt_row one = zt_row_at(&b->all, row * c->seq_len);
    rc = zt_dataset_read(c->dataset, id, &one, err);
    b->all.padding += one.padding;
    b->sample_ids[row] = id;
    return rc;
}

/* What the next micro-batch is: its rows, and its place in a window, which is short at the end of
 * counted epochs. */
static int plan_micro(struct zt_loader *l, struct zt_micro_batch *b, struct zt_error *err) {
    const struct zt_loader_config *c = &l->c;
    int rc = c->epochs > 0 ? find_micro(l, err) : ZT_OK;
    if (rc != ZT_OK) return rc;
    if (l->window_at == l->window_micros) {
        l->window_at = 0;
        l->window_micros = c->accumulation;
        if (c->epochs > 0 && l->micros_left < l->window_micros) l->window_micros = l->micros_left;
    }
    b->rows = c->epochs > 0 && l->epoch_rows < c->local_batch ? l->epoch_rows : c->local_batch;
    b->micro = l->window_at;
    b->window_micros = l->window_micros;
    b->all.padding = 0;
    return ZT_OK;
}

/* Behind a micro-batch. */
static struct zt_cursor advance(struct zt_loader *l, int64_t rows) {
    l->window_at++;
    l->consumed += rows * l->c.dp_size;
    if (l->c.epochs > 0) {
        l->epoch_rows -= rows;
        if (--l->micros_left == 0) return (struct zt_cursor){l->epoch + 1, 0};
    } else {
        l->epoch += l->consumed / l->samples;
        l->consumed %= l->samples;
    }
    return (struct zt_cursor){l->epoch, l->consumed};
}

/* The next micro-batch of the plan, into s. */
static int fill(struct zt_loader *l, struct slot *s) {
    struct zt_micro_batch *b = &s->batch;
    int rc = plan_micro(l, b, &s->err);
    for (int64_t row = 0; rc == ZT_OK && row < b->rows; row++) rc = read_row(l, b, row, &s->err);
    if (rc == ZT_OK) s->after = advance(l, b->rows);
    return rc;
}

/* ---- the reader thread ---- */

static void *reader(void *arg) {
    struct zt_loader *l = arg;
    bool more = true;
    pthread_mutex_lock(&l->lock);
    while (more) {
        while (!l->stop && l->filled - l->given >= SLOTS - 1)
            pthread_cond_wait(&l->changed, &l->lock);
        if (l->stop) break;
        struct slot *s = &l->slot[l->filled % SLOTS];
        pthread_mutex_unlock(&l->lock);
        s->rc = fill(l, s);
        more = s->rc == ZT_OK;
        pthread_mutex_lock(&l->lock);
        l->filled++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* The thread takes no signals: they belong to the trainer's own threads. */
static int start_reader(struct zt_loader *l, struct zt_error *err) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&l->thread, NULL, reader, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return zt_fail(err, ZT_EBUSY, "the data reader's thread could not be started: %s",
                       strerror(rc));
    pthread_setname_np(l->thread, "zt-data");
    l->started = true;
    return ZT_OK;
}

/* ---- the caller's side ---- */

static int check(const struct zt_loader_config *c, struct zt_error *err) {
    if (c->dp_size < 1 || c->dp_index < 0 || c->dp_index >= c->dp_size)
        return zt_fail(err, ZT_EINVAL, "data-parallel rank %d of %d does not exist", c->dp_index,
                       c->dp_size);
    if (c->seq_len != zt_dataset_seq_len(c->dataset))
        return zt_fail(err, ZT_EINVAL,
                       "the data set was opened for sequences of %" PRId64 " tokens, the "
                       "loader wants %" PRId64,
                       zt_dataset_seq_len(c->dataset), c->seq_len);
    if (c->local_batch < 1 || c->local_batch > INT32_MAX || c->accumulation < 1 ||
        c->accumulation > INT32_MAX / c->local_batch / c->dp_size || c->epochs < 0 ||
        c->start.epoch < 0 || c->start.consumed < 0)
        return zt_fail(err, ZT_EINVAL,
                       "a loader cannot have local batch %" PRId64 ", accumulation %" PRId64
                       ", epochs %" PRId64 ", cursor (%" PRId64 ", %" PRId64 ")",
                       c->local_batch, c->accumulation, c->epochs, c->start.epoch,
                       c->start.consumed);
    return zt_dataset_need(c->dataset, c->local_batch * c->accumulation * c->dp_size,
                           "one global batch", err);
}

static int make_slots(struct zt_loader *l, struct zt_error *err) {
    const struct zt_dataset *d = l->c.dataset;
    bool ok = true;
    for (int i = 0; ok && i < SLOTS; i++) {
        struct zt_micro_batch *b = &l->slot[i].batch;
        b->sample_ids = malloc((size_t)l->c.local_batch * sizeof(int64_t));
        ok = b->sample_ids && zt_row_alloc(&b->all, l->c.local_batch, l->c.seq_len,
                                           zt_dataset_has_starts(d), zt_dataset_has_weights(d));
    }
    return ok ? ZT_OK
              : zt_fail(err, ZT_ENOMEM,
                        "no memory for %d micro-batches of %" PRId64 " x %" PRId64 " tokens", SLOTS,
                        l->c.local_batch, l->c.seq_len);
}

int zt_loader_create(const struct zt_loader_config *c, struct zt_loader **out,
                     struct zt_error *err) {
    *out = NULL;
    int rc = check(c, err);
    if (rc != ZT_OK) return rc;
    struct zt_loader *l = calloc(1, sizeof *l);
    if (!l) return zt_fail(err, ZT_ENOMEM, "no memory for a data loader");
    l->c = *c;
    l->samples = zt_dataset_samples(c->dataset);
    l->cursor = c->start;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    rc = zt_sampler_init(&l->sampler, l->samples, c->dp_size, c->shuffle, c->drop_last, c->seed,
                         err);
    if (rc == ZT_OK) rc = enter_epoch(l, c->start.epoch, c->start.consumed, err);
    if (rc == ZT_OK) rc = make_slots(l, err);
    if (rc == ZT_OK) rc = start_reader(l, err);
    if (rc != ZT_OK) {
        zt_loader_destroy(l);
        return rc;
    }
    *out = l;
    return ZT_OK;
}

int zt_loader_next(struct zt_loader *l, struct zt_micro_batch *b, struct zt_error *err) {
    pthread_mutex_lock(&l->lock);
    while (l->filled == l->given) pthread_cond_wait(&l->changed, &l->lock);
    struct slot *s = &l->slot[l->given % SLOTS];
    int rc = s->rc;
    if (rc == ZT_OK) { /* an end or an error stays where it is, for every later call */
        l->given++;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    if (rc == ZT_OK) {
        *b = s->batch;
        l->cursor = s->after;
    } else if (rc == ZT_ENOTFOUND) {
        zt_fail(err, rc, "all %" PRId64 " epochs of the data set are done", l->c.epochs);
    } else if (err) {
        *err = s->err;
    }
    return rc;
}

static int64_t windows_from(const struct zt_loader_config *c, int64_t samples, int64_t consumed) {
    int64_t micros = micros_of(c, rows_left(c, samples, consumed));
    return zt_window_count(micros, c->accumulation, c->tail == ZT_TAIL_DROP);
}

int64_t zt_windows_of(const struct zt_loader_config *c, int64_t samples) {
    return c->epochs == 0 ? -1 : c->epochs * windows_from(c, samples, 0);
}

int64_t zt_loader_windows_left(const struct zt_loader *l) {
    const struct zt_cursor at = l->c.start;
    if (l->c.epochs == 0) return -1;
    if (at.epoch >= l->c.epochs) return 0;
    return windows_from(&l->c, l->samples, at.consumed) +
           (l->c.epochs - at.epoch - 1) * windows_from(&l->c, l->samples, 0);
}

int64_t zt_loader_windows(const struct zt_loader *l) { return zt_windows_of(&l->c, l->samples); }

struct zt_cursor zt_loader_cursor(const struct zt_loader *l) {
    return l->cursor;
}

void zt_loader_destroy(struct zt_loader *l) {
    if (!l) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    for (int i = 0; i < SLOTS; i++) {
        zt_row_free(&l->slot[i].batch.all);
        free(l->slot[i].batch.sample_ids);
    }
    zt_sampler_free(&l->sampler);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
