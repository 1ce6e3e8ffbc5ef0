/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/sim.h: what a simulated rank runs on, and the seams between device/sim (addresses,
 * virtual clocks), kernels/sim (costs of operators) and comm/sim (costs of collectives).
 *
 * Memory is addresses alone: nobody may read or write it. A stream is a clock; what is submitted to it
 * runs at once, on the calling thread, with that clock as the device's time. An event is an instant.
 * On a device that computes itself (cpu) the compute stream's clock is the host's; where kernels are
 * queued (GPU) the host has its own, behind which the others start. One thread; nothing is random. */
#ifndef ZT_ENGINE_SIM_H
#define ZT_ENGINE_SIM_H
#include "core/cost.h"
#include "engine/device/device.h"

/* Read only while a run lasts; the caller's. */
struct zt_sim {
    const struct zt_cost_device *device;
    int ranks_per_host;            /* neighbours in rank order share a host; 0 = all ranks on one */
    double slowdown;               /* >= 1: this rank computes so many times slower; 0 = 1 */
    int64_t valid_samples;         /* of the validation set; -1: not known: one full batch a rank */
    int64_t total_steps;           /* of the simulated run */
    enum { ZT_SIM_FRESH = 0, ZT_SIM_WEIGHTS, ZT_SIM_RESUMED } from; /* what is loaded before step 1 */
    /* Where others are slower: starts[id] = the instant at which the slowest rank begins collective id
     * (zt_coll_record.id); a collective waits for it. NULL: all ranks are alike. */
    const int64_t *starts;
    int64_t n_starts;
    /* Told when this rank begins a collective; NULL = nobody. */
    void (*begins)(void *arg, int64_t id, int64_t at_ns);
    void *begins_arg;
    /* Set when a clock has come to 146 years, where all of them stand still; NULL = nobody asks. */
    bool *overrun;
    /* Memory for the event log where a step has more collectives than the usual 4096; NULL = usual. */
    void *log;
    size_t log_bytes;
};

/* The sim device's description; NULL for every other device. */
const struct zt_sim *zt_device_sim(const struct zt_device *d);
/* Advances the clock of the stream that runs now (compute outside of submit) by ns of work. */
void zt_sim_work(struct zt_device *d, int64_t ns);
/* The running stream stands still until that instant, at least. */
void zt_sim_until(struct zt_device *d, int64_t instant_ns);

#endif
