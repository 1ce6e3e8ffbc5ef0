/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/test_equiv_memory.c: what sharding is for (B35): zero3 over 16 equal blocks holds
 * less on every rank the more ranks there are; at most prefetch + 1 units are whole at a time;
 * accumulation costs nothing but the gradients' shards, unless whole gradients are asked for. Every
 * figure is worked out here from the sizes of the tensors and must be met to the byte. */
#include <criterion/criterion.h>

#include "tests/engine/equiv.h"

#define LAYERS 16
/* A block: weights 3*16*16 + 16*16 + 2*50*16, biases 48 + 16 + 50 + 16, two norms of 2*16; the root:
 * 67*16 + 16*16 (positions) + 2*16, smaller than a block. Each tensor starts at a multiple of 16. */
#define MODEL "layers: 16, heads: 2, dim: 16, ffn_dim: 50, vocab_size: 67"
enum { BLOCK = 768 + 48 + 256 + 16 + 800 + 64 + 800 + 16 + 64, ROOT = 1072 + 256 + 32 };

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
/* Bytes of a group's 1 / `parts`, padded for S shards. */
static int64_t bytes(int64_t elements, int S, int parts) {
    return round_up(round_up(elements, 16 * S) / parts * 4, 512);
}

static struct eq_step *steady(struct eq_case c) {
    static struct eq_step s;
    c.shard = c.world;
    c.rows = c.world * c.micros; /* each rank one row a micro-step, whatever their number */
    c.mode = ZT_ZERO3;
    c.steps = 2;
    c.model = MODEL;
    struct eq_job *j = eq_run(&c);
    cr_assert(j);
    for (int r = 1; r < c.world; r++) {
        cr_assert_eq(j->step[2][r].peak_allocated, j->step[2][0].peak_allocated);
        cr_assert_eq(j->step[2][r].peak_gradients, j->step[2][0].peak_gradients);
    }
    s = j->step[2][0];
    eq_free(j);
    return &s;
}

Test(equiv_memory, peak_falls_with_every_rank, .timeout = 200) {
    for (int prefetch = 0; prefetch < 4; prefetch += prefetch ? prefetch : 1) {
        int64_t last = INT64_MAX;
        for (int world = 1; world <= 8; world *= 2) {
            struct eq_case c = {.world = world, .micros = 1, .prefetch = prefetch};
            struct eq_step *s = steady(c);
            int64_t stored = LAYERS * bytes(BLOCK, world, world) + bytes(ROOT, world, world),
                    whole = world == 1 ? 0 : (prefetch + 1) * bytes(BLOCK, world, 1);
            cr_assert_lt(s->peak_allocated, last, "world %d, prefetch %d", world, prefetch);
            cr_assert_eq(s->peak_parameters, stored + whole, "world %d, prefetch %d: %lld", world,
                         prefetch, (long long)(s->peak_parameters - stored));
            last = s->peak_allocated;
        }
    }
}

/* The last blocks' whole gradients on their way to shards, beside the root's, which stays open. */
Test(equiv_memory, whole_gradients_in_flight, .timeout = 200) {
    for (int world = 2; world <= 4; world *= 2)
        for (int k = 0; k < 3; k++) {
            struct eq_case c = {.world = world, .micros = 2, .prefetch = 1, .inflight = 2};
            int64_t shards = LAYERS * bytes(BLOCK, world, world) + bytes(ROOT, world, world);
            if (k < 2) c.inflight = 1;
            c.no_overlap = k == 0;
            cr_assert_eq(steady(c)->peak_gradients,
                         shards + bytes(ROOT, world, 1) + (k + 1) * bytes(BLOCK, world, 1),
                         "world %d, %d in flight", world, k);
        }
}

Test(equiv_memory, accumulation, .timeout = 200) {
    for (int world = 2; world <= 8; world *= 2) {
        int64_t block = bytes(BLOCK, world, 1), root = bytes(ROOT, world, 1),
                block_shard = bytes(BLOCK, world, world), root_shard = bytes(ROOT, world, world),
                whole = LAYERS * block + root, shards = LAYERS * block_shard + root_shard;
        struct eq_case c = {.world = world, .micros = 1, .prefetch = 1};
        struct eq_step one = *steady(c), two, eight, no_sync;
        c.micros = 2;
        two = *steady(c);
        c.micros = 8;
        eight = *steady(c);
        c.no_sync = true;
        no_sync = *steady(c);
        cr_assert_eq(eight.peak_allocated, two.peak_allocated, "not with every micro-step");
        cr_assert_leq(eight.peak_allocated - one.peak_allocated, shards, "shards stay, no more");
        cr_assert_eq(one.peak_gradients, shards + root + 2 * block - root_shard - block_shard);
        cr_assert_eq(eight.peak_gradients, shards + root + 2 * block);
        cr_assert_eq(no_sync.peak_gradients, whole + block_shard, "all whole, and the first shard");
        /* when activations are at their most: all whole gradients, or shards and the root's */
        cr_assert_eq(no_sync.peak_allocated - eight.peak_allocated, whole - shards - root);
    }
}
