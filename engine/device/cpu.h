/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/cpu.h: the seam between cpu.c (memory, the table) and cpu_stream.c (streams and
 * events of the cpu device). Private to this folder. Functions are those of struct zt_device_ops. */
#ifndef ZT_ENGINE_DEVICE_CPU_H
#define ZT_ENGINE_DEVICE_CPU_H
#include "engine/device/backend.h"

int64_t zt_cpu_now_ns(struct zt_device *d);
/* The stream of the calling thread: submit runs at once. */
int zt_cpu_compute_create(struct zt_device *d, struct zt_stream **out, struct zt_error *err);
int zt_cpu_stream_create(struct zt_device *d, enum zt_stream_kind kind, struct zt_stream **out,
                         struct zt_error *err);
void zt_cpu_stream_destroy(struct zt_stream *s);
int zt_cpu_submit(struct zt_stream *s, int (*fn)(void *arg, struct zt_error *err), void *arg,
                  struct zt_error *err);
int zt_cpu_stream_sync(struct zt_stream *s, struct zt_error *err);
int zt_cpu_event_create(struct zt_device *d, struct zt_event **out, struct zt_error *err);
void zt_cpu_event_destroy(struct zt_event *e);
int zt_cpu_event_record(struct zt_event *e, struct zt_stream *s, struct zt_error *err);
int zt_cpu_stream_wait_event(struct zt_stream *s, struct zt_event *e, int64_t *stalled_ns,
                             struct zt_error *err);
bool zt_cpu_event_done(struct zt_event *e);
int zt_cpu_stream_copy(struct zt_stream *s, void *dst, const void *src, size_t bytes,
                struct zt_error *err);

#endif
