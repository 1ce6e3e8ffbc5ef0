/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/stream.h: a file written from its beginning to its end, hashed on the way: XXH3-128 of
 * every 4 MiB, SHA-256 of all. What is put is not copied: it has to stay as it is until the piece is
 * full or the stream is ended. Inside this folder only; one thread. */
#ifndef ZT_ENGINE_CHECKPOINT_STREAM_H
#define ZT_ENGINE_CHECKPOINT_STREAM_H
#include "engine/checkpoint/files.h"

struct stream;
struct stream_watch {
    bool (*progress)(void *arg, int64_t bytes); /* may be NULL; false: stop, ZT_ECANCELLED */
    void *arg;
    bool *disk_full;
};
int stream_open(const struct zt_sys *sys, const char *path, int64_t bytes, struct stream_watch watch, struct stream **out, struct zt_error *err);
int stream_put(struct stream *s, const void *data, size_t n, struct zt_error *err);
/* Syncs and closes; *f gets bytes, hashes and pieces (malloc'ed). Frees s whatever comes; s may be NULL. */
int stream_end(struct stream *s, struct zt_index_file *f, struct zt_error *err);
void stream_abandon(struct stream *s);
/* Reads the file again, from the disk as far as the system lets, and compares; buffer: ZT_CKPT_PIECE bytes. */
int stream_read_back(const struct zt_sys *sys, const char *path, const struct zt_index_file *f, void *buffer, struct stream_watch watch,
                     struct zt_error *err);
#endif
