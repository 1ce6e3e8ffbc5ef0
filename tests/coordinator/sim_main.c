/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim_main.c: runs seeds of the simulated cluster.
 *   sim [--seeds N] [--first SEED]     every seed twice, the event logs must be equal
 *   sim --trace SEED                   one seed, every event printed
 *   sim --plants [--seeds N]           (built with ZT_MACHINE_PLANTS) every planted bug must be
 * found A failing seed prints itself, the event, the broken invariant and the last 50 events; exit
 * code 1. */
#include "coordinator/machine_internal.h"
#include "tests/coordinator/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool run_seed(uint64_t seed, uint64_t *totals) {
    struct sim_result a, b;
    sim_run(seed, SIM_QUIET, &a);
    if (a.broken[0]) {
        printf("seed %" PRIu64 ", event %" PRIu64 ", %.3f s: %s\n", seed, a.event, a.seconds,
               a.broken);
        sim_run(seed, SIM_LAST_50, &a);
        return false;
    }
    sim_run(seed, SIM_QUIET, &b);
    if (a.hash != b.hash || a.event != b.event) {
        printf("seed %" PRIu64 ": two runs differ (%" PRIu64 " and %" PRIu64
               " events): the machine is not a function of its events\n",
               seed, a.event, b.event);
        return false;
    }
    for (int i = 0; i < SIM_COUNTERS; i++) totals[i] += a.counters[i];
    totals[SIM_COUNTERS] += a.event;
    return true;
}
static int run_seeds(uint64_t first, uint64_t n) {
    uint64_t totals[SIM_COUNTERS + 1] = {0};
    int failed = 0;
    for (uint64_t seed = first; seed < first + n && failed < 3; seed++)
        failed += !run_seed(seed, totals);
    printf("%" PRIu64 " seeds, %" PRIu64 " events:", n, totals[SIM_COUNTERS]);
    for (int i = 0; i < SIM_COUNTERS; i++) printf(" %s %" PRIu64, sim_counter_names[i], totals[i]);
    printf("\n");
    for (int i = 0; i < SIM_COUNTERS && n >= 1000;
         i++) { /* a simulation in which a thing never happens says nothing about it */
        if (totals[i]) continue;
        printf("%s never happened\n", sim_counter_names[i]);
        failed++;
    }
    return failed ? 1 : 0;
}
#ifdef ZT_MACHINE_PLANTS
static int run_plants(uint64_t n) {
    static const char *const names[MC_PLANT_COUNT] = {
        "none",
        "acknowledge before the commit",
        "no generation check",
        "a generation used again",
        "START before the commit",
        "workers freed before their trainers are gone",
        "SUCCEEDED before the rows are durable",
        "communicator id overwritten",
        "request keys forgotten",
        "lost workers not noticed",
        "a checkpoint committed before all parts are in",
        "a generation that goes on from a failed save",
        "retention that keeps the newest alone",
        "parts forgotten by a restart",
        "a fresh start when every checkpoint is damaged",
        "a checkpoint committed before its step rows are in"};
    int missed = 0;
    for (int plant = 1; plant < MC_PLANT_COUNT; plant++) {
        zt_machine_plant = plant;
        struct sim_result r = {.broken = ""};
        uint64_t seed = 1;
        for (; seed <= n && !r.broken[0]; seed++) sim_run(seed, SIM_QUIET, &r);
        printf("plant %d, %s: %s%s (seed %" PRIu64 ")\n", plant, names[plant],
               r.broken[0] ? "found: " : "NOT FOUND", r.broken, seed - 1);
        missed += !r.broken[0];
    }
    zt_machine_plant = MC_PLANT_NONE;
    return missed ? 1 : 0;
}
#endif
int main(int argc, char **argv) {
    uint64_t n = 2000, first = 1;
    bool plants = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
            n = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--first") && i + 1 < argc)
            first = strtoull(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--plants"))
            plants = true;
        else if (!strcmp(argv[i], "--trace") && i + 1 < argc) {
            struct sim_result r;
            sim_run(strtoull(argv[++i], NULL, 10), SIM_TRACE, &r);
            printf("%s\n", r.broken[0] ? r.broken : "every invariant held");
            return r.broken[0] ? 1 : 0;
        } else {
            fprintf(stderr, "usage: sim [--seeds N] [--first SEED] [--trace SEED] [--plants]\n");
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef ZT_MACHINE_PLANTS
    if (plants) return run_plants(n);
#endif
    if (plants) {
        fprintf(stderr, "sim: planted bugs need the build with ZT_MACHINE_PLANTS\n");
        return 2;
    }
    return run_seeds(first, n);
}
