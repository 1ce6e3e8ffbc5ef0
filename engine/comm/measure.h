/* SPDX-License-Identifier: Apache-2.0 */
/* engine/comm/measure.h: times of the collectives of a group: all-reduce, all-gather and
 * reduce-scatter of 4 KiB, 16 KiB, ... up to what buffers and time allow. For `zctl calibrate
 * --comm` and comm.measure_seconds.
 *
 * The buffers are device memory of the caller; a sum of ones is checked first. Whatever time is
 * left, at least three sizes are measured, three times each. Thread rule: comm.h. */
#ifndef ZT_ENGINE_MEASURE_H
#define ZT_ENGINE_MEASURE_H
#include "engine/comm/comm.h"

#define ZT_MEASURE_LEAST_BYTES 4096
#define ZT_MEASURE_MOST_BYTES (INT64_C(1) << 30)

/* Floats of the two buffers, for messages up to `most` bytes in a group of `size`. */
int64_t zt_measure_full(int64_t most, int size);
int64_t zt_measure_part(int64_t most, int size);

/* One kind on one size. Seconds: the median of rounds, on this rank. */
struct zt_measured {
    enum zt_coll kind;
    int64_t bytes; /* of the full buffer */
    int ranks;
    double seconds;
};

struct zt_measure {
    struct zt_comm *comm; /* the group measured; NULL or of one rank: this rank only keeps step */
    struct zt_comm *control; /* of all ranks that measure at the same time, in whatever groups */
    struct zt_device *device;
    struct zt_stream *stream;
    float *full, *part;
    int64_t most;   /* bytes of the largest message, the same on every rank of control */
    double seconds; /* about so long */
    /* What came of it, on every rank of a group of two and more. */
    void *arg;
    void (*row)(void *arg, const struct zt_measured *m);
};

/* largest: bytes of the largest message that was measured. */
int zt_comm_measure(const struct zt_measure *m, int64_t *largest, struct zt_error *err);

/* {"collective": ..., "link": "within" or "across", ...}: a line of what zctl calibrate reads.
 * per_host: ranks of the group on one host. Returns snprintf's. */
int zt_measured_json(const struct zt_measured *m, bool across, int per_host, char *text, size_t n);

#endif
