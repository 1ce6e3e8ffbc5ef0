/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: the expected rank orders are written by hand from the rule (tensor group on one host,
 * then shard group within a host, few hosts, natural order). */
#include "coordinator/machine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void place(const char *const *names, int n, struct zt_mesh mesh, const char *want) {
    struct zt_slot slots[16];
    char hosts[16][16], got[256] = "";
    int order[16], scratch[64];
    for (int i = 0; i < n; i++) {
        snprintf(hosts[i], sizeof hosts[i], "%.*s", (int)(strchr(names[i], '/') - names[i]),
                 names[i]);
        slots[i] = (struct zt_slot){hosts[i], names[i], i};
    }
    cr_assert_eq(zt_schedule_place(slots, n, mesh, order, scratch), 0);
    for (int r = 0; r < zt_mesh_world(mesh); r++) {
        strcat(got, r ? " " : "");
        strcat(got, names[order[r]]);
    }
    cr_assert_str_eq(got, want);
}

Test(schedule, names_in_natural_order) {
    cr_assert_lt(zt_natural_compare("w2", "w10"), 0);
    cr_assert_gt(zt_natural_compare("w10", "w9"), 0);
    cr_assert_lt(zt_natural_compare("a/cpu-9", "a/cpu-10"), 0);
    cr_assert_lt(zt_natural_compare("node", "node1"), 0);
    cr_assert_eq(zt_natural_compare("n7", "n7"), 0);
    cr_assert_neq(zt_natural_compare("n7", "n07"), 0);
    cr_assert_eq(zt_natural_compare("n7", "n07"), -zt_natural_compare("n07", "n7"));
    cr_assert_lt(zt_natural_compare("n99999999999999999999", "n100000000000000000000"), 0);
}
Test(schedule, one_host_in_natural_order) {
    const char *names[] = {"a/10", "a/2", "a/1", "a/0"};
    place(names, 4, (struct zt_mesh){4, 1, 1}, "a/0 a/1 a/2 a/10");
}
Test(schedule, smallest_host_that_holds_all) {
    const char *names[] = {"a/0", "a/1", "a/2", "a/3", "b/0", "b/1", "c/0", "c/1", "c/2"};
    place(names, 9, (struct zt_mesh){2, 1, 1}, "b/0 b/1");
    place(names, 9, (struct zt_mesh){3, 1, 1}, "c/0 c/1 c/2");
    place(names, 9, (struct zt_mesh){6, 1, 1}, "a/0 a/1 a/2 a/3 b/0 b/1");
}
Test(schedule, tensor_group_on_one_host) {
    const char *names[] = {"a/0", "a/1", "a/2", "b/0", "b/1", "b/2"};
    /* two whole tensor pairs, though three workers of each host come first by name */
    place(names, 6, (struct zt_mesh){2, 1, 2}, "a/0 a/1 b/0 b/1");
    /* three pairs: two fit whole, the third has to span */
    place(names, 6, (struct zt_mesh){3, 1, 2}, "a/0 a/1 b/0 b/1 a/2 b/2");
}
Test(schedule, shard_group_within_a_host_where_it_fits) {
    const char *names[] = {"a/0", "b/0", "b/1", "b/2", "b/3", "c/0", "c/1", "c/2"};
    /* R=2, S=2, T=2: one shard group of 4 fits on b; the other is two tensor pairs, of which c
     * holds one */
    place(names, 8, (struct zt_mesh){2, 2, 2}, "b/0 b/1 b/2 b/3 c/0 c/1 a/0 c/2");
}
Test(schedule, hosts_in_natural_order) {
    const char *names[] = {"n10/0", "n10/1", "n9/0", "n9/1"};
    place(names, 4, (struct zt_mesh){2, 2, 1}, "n9/0 n9/1 n10/0 n10/1");
}
Test(schedule, too_few) {
    struct zt_slot slot = {"a", "a/0", 0};
    int order[2], scratch[4];
    cr_assert_eq(zt_schedule_place(&slot, 1, (struct zt_mesh){2, 1, 1}, order, scratch),
                 ZT_ENOPLACE);
}
