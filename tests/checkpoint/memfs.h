/* SPDX-License-Identifier: Apache-2.0 */
/* tests/checkpoint/memfs.h: a file system in memory that can lose power. What was written is there at once
 * for who reads, and durable only after fsync: of a file its bytes, in sectors of 512, and its length; of a
 * folder its entries. A loss keeps any subset of what is pending. A rename inside one folder is one thing,
 * over two folders it is two. */
#ifndef ZT_TEST_CHECKPOINT_MEMFS_H
#define ZT_TEST_CHECKPOINT_MEMFS_H
#include "core/sys.h"

struct memfs;
struct memfs *memfs_new(void);
void memfs_free(struct memfs *fs);
/* The table; valid as long as fs. */
struct zt_sys memfs_sys(struct memfs *fs);
/* From file call number n on (counted from the last call of this, from 1) every call answers -EIO and does
 * nothing: the machine is off. 0: never. memfs_calls: so far. */
void memfs_power_off_at(struct memfs *fs, int64_t n);
int64_t memfs_calls(const struct memfs *fs);
/* Bytes that can still be written before -ENOSPC, which may come after a part; < 0: any. */
void memfs_room(struct memfs *fs, int64_t bytes);
/* Things pending, and the file system after a loss that keeps those for which keep says so. */
int memfs_pending(const struct memfs *fs);
struct memfs *memfs_after_loss(const struct memfs *fs, int (*keep)(void *arg, int item), void *arg);
/* For tests that damage: the bytes of a file as they are, NULL: none such; the i-th file's path, NULL: past the last. */
unsigned char *memfs_bytes(struct memfs *fs, const char *path, int64_t *n);
const char *memfs_file_at(struct memfs *fs, int i);
void memfs_truncate(struct memfs *fs, const char *path, int64_t n);
/* Everything pending is durable. */
void memfs_settle(struct memfs *fs);
#endif
