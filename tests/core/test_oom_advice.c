/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory ran out selects one line of the table. Expected lines are written out by hand from the
 * table in docs/memory.md ("Where it ran out"). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/oom_advice.h"

#define ACTIVE .parameters = 10, .optimizer = 20, .activations = 40
#define STATE .parameters = 10, .optimizer = 20, .activations = 5

static const struct { struct zt_oom_site site; const char *where, *helps; } cases[] = {
    {{.phase = "forward", .step = 1, ACTIVE}, "forward, activations most of it", "activation_checkpoint.mode: selective"},
    {{.phase = "backward", .step = 1, ACTIVE}, "backward, activations most of it", "loss.chunk_tokens"},
    {{.phase = "init", .step = 0, .parameters = 10}, "init", "data_parallel_shard_degree"},
    {{.phase = "init", .step = 1, .parameters = 10}, "init", "zero1"},
    {{.phase = "forward", .step = 1, ACTIVE}, "forward, activations most of it", "local_batch_size"},
    {{.phase = "forward", .step = 2, STATE}, "forward, state most of it", "zero3"},
    /* what was asked for counts too: 5 live, 26 more wanted, against 30 */
    {{.phase = "forward", .step = 1, .tag = "activations", .request = 26, STATE}, "forward, activations most of it", "seq_len"},
    {{.phase = "forward", .step = 1, .tag = "parameters", .request = 26, STATE}, "forward, state most of it", "reshard_after_forward"},
    {{.phase = "backward", .step = 1, ACTIVE, .gradients = 9}, "backward, activations most of it", "prefetch"},
    {{.phase = "backward", .step = 1, ACTIVE, .gradients = 11}, "backward, state and gradients most of it", "zero2"},
    {{.phase = "optimizer", .step = 1, STATE}, "optimizer", "state_init"},
    {{.phase = "eval", .step = 1, ACTIVE}, "eval", "local_batch_size"},
    {{.phase = "eval", .step = 40, ACTIVE}, "eval", "local_batch_size"}, /* the first evaluation may come late */
    {{.phase = "save", .step = 40, STATE}, "save", "shards"},
    {{.phase = "load", .step = 0, STATE}, "load", "shards"},
    {{.phase = "forward", .step = 3, ACTIVE}, "a step after others that fitted", "MEMORY_GROWTH"},
    {{.phase = "optimizer", .step = 9, ACTIVE}, "a step after others that fitted", "MEMORY_GROWTH"},
    {{.phase = "backward", .step = -1, ACTIVE}, "backward, activations most of it", "local_batch_size"},
    {{.phase = "backward", .step = 1, .one_rank = true, ACTIVE}, "one rank only", "--memory-gib"},
    {{.phase = "backward", .step = 1, .one_rank = true, .fragmentation = true, .reserved = 80, .allocated = 70, ACTIVE},
     "fragmentation", "max_split_size_mib"},
    /* what is allocated at the planned peak is more than there is: blocks without a gap would not fit either */
    {{.phase = "backward", .step = 1, .fragmentation = true, .reserved = 80, .allocated = 60, .capacity = 80, .needs = 81, ACTIVE},
     "backward, activations most of it", "local_batch_size"},
    {{.phase = "init", .fragmentation = true, .reserved = 80, .allocated = 60, .capacity = 80, .needs = 81, STATE}, "init", "zero1"},
    {{.phase = "backward", .step = 1, .fragmentation = true, .reserved = 80, .allocated = 60, .capacity = 80, .needs = 80, ACTIVE},
     "fragmentation", "max_split_size_mib"},
    {{.phase = "backward", .step = 1, .fragmentation = true, .reserved = 80, .allocated = 60, .needs = 81, ACTIVE},
     "fragmentation", "max_split_size_mib"}, /* no capacity told */
    /* less than an eighth of it: giving up those pieces would not carry far */
    {{.phase = "backward", .step = 1, .fragmentation = true, .reserved = 80, .allocated = 71, ACTIVE},
     "backward, activations most of it", "local_batch_size"},
    {{.phase = "backward", .step = 1, .reserved = 80, .allocated = 10, ACTIVE}, "backward, activations most of it", "prefetch"},
    {{.step = 1}, "forward, activations most of it", "local_batch_size"}, /* nothing was told */
};

Test(oom_advice, the_place_selects_the_line) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024], want[128];
        const struct zt_oom_line *l = zt_oom_line(zt_oom_place_of(&cases[i].site));
        cr_expect_str_eq(l->where, cases[i].where, "case %zu", i);
        cr_expect(strstr(l->change, cases[i].helps), "case %zu: %s", i, l->change);
        zt_oom_text(&cases[i].site, text, sizeof text);
        snprintf(want, sizeof want, "%s: ", cases[i].where);
        cr_expect_eq(strncmp(text, want, strlen(want)), 0, "%s", text);
        cr_expect(strstr(text, l->holds) && strstr(text, "; what helps: ") && strstr(text, l->change), "%s", text);
    }
}

/* Whoever stores or sends the text gives it this much room. */
Test(oom_advice, every_line_is_whole_and_bounded) {
    for (int p = 0; p < ZT_OOM_PLACE_COUNT; p++) {
        const struct zt_oom_line *l = zt_oom_line((enum zt_oom_place)p);
        cr_assert(l->where && l->holds && l->change, "place %d", p);
        cr_expect_leq(strlen(l->where) + strlen(l->holds) + strlen(l->change), 500, "place %d", p);
        for (int q = 0; q < p; q++) cr_expect_str_neq(l->where, zt_oom_line((enum zt_oom_place)q)->where);
    }
    cr_expect_not_null(zt_oom_line(ZT_OOM_PLACE_COUNT));
}
