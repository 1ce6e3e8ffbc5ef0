/* SPDX-License-Identifier: Apache-2.0 */
/* tests/coordinator/fault_vfs.h: an SQLite VFS over the real one that can refuse the Nth operation, end the
 * process in the middle of it, or lose power: then every sector written since its file's last sync is, by
 * chance, new, old or half of each. Syncs are simulated, nothing waits for a disk. Any thread. */
#ifndef ZT_TESTS_FAULT_VFS_H
#define ZT_TESTS_FAULT_VFS_H
#include <stdbool.h>
#include <stdint.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_ONCE,  /* operation `at` fails with `code`, the next ones work */
    FAULT_FROM,  /* operation `at` and all after it fail with `code`, until fault_set(FAULT_NONE) */
    FAULT_EXIT,  /* half of operation `at` is written, then the process ends with status 137 */
    FAULT_POWER, /* from operation `at` on nothing reaches the disk any more; fault_lose_power decides what had */
};
void fault_install(void);           /* becomes the default VFS, once */
void fault_set(enum fault_kind kind, int64_t at, int code);
int64_t fault_operations(void);     /* writes, syncs, truncations and deletions since fault_set */
void fault_lose_power(uint64_t seed); /* all files must be closed */
bool fault_fired(void);

#endif
