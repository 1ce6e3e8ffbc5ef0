/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/sim.h: a whole cluster in one thread around the real coordinator/machine.c: virtual clock,
 * a network that loses, delays, doubles and reorders, a disk that commits late or not at all, model workers and clients,
 * and seeded faults. After every event the invariants of machine.c are asserted against what really happened.
 * Same seed, same event log. One thread; sim_run owns and frees all its memory. */
#ifndef ZT_TESTS_COORDINATOR_SIM_H
#define ZT_TESTS_COORDINATOR_SIM_H
#include <stdbool.h>
#include <stdint.h>

enum sim_count {
    SIM_SUCCEEDED, SIM_FAILED, SIM_CANCELLED, SIM_GENERATIONS, SIM_HANGS, SIM_WORKERS_LOST, SIM_REATTACHED, SIM_REFORMED,
    SIM_QUARANTINED, SIM_DRAINED, SIM_GAPS, SIM_STALE, SIM_SUPERSEDED, SIM_CRASHES, SIM_PAUSES, SIM_DISK_FULL, SIM_KILLS,
    SIM_STOPS, SIM_CUTS, SIM_REPEATED_SUBMITS, SIM_GAVE_UP, SIM_KEPT_GENERATION,
    SIM_SAVES, SIM_COMMITS, SIM_SAVES_FAILED, SIM_RESUMED, SIM_REMOVED, SIM_DAMAGED, SIM_CORRUPT, SIM_STOPPED_SAVED, SIM_SETS, SIM_FROM_OTHERS,
    SIM_NO_PROGRESS, SIM_RESIZED, SIM_COUNTERS
};
extern const char *const sim_counter_names[SIM_COUNTERS];

struct sim_result {
    char broken[256];      /* "" = every invariant held */
    uint64_t event;        /* number of the event after which it broke, or the last one */
    uint64_t hash;         /* of the event log */
    double seconds;        /* virtual */
    uint64_t counters[SIM_COUNTERS];
};
enum sim_talk { SIM_QUIET, SIM_LAST_50 /* printed when something broke */, SIM_TRACE /* every line */ };
void sim_run(uint64_t seed, enum sim_talk talk, struct sim_result *out);

#endif
