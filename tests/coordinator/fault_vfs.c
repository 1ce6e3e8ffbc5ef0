/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/coordinator/fault_vfs.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTOR 512
#define DISKS 16

/* One file as the disk knows it: old contents of every sector written since its last sync. */
struct sector { int64_t number; uint8_t old[SECTOR]; struct sector *next; };
struct disk { char path[1100]; int64_t synced_size; struct sector *dirty; };

struct file { sqlite3_file base; struct disk *disk; /* real file follows */ };

static sqlite3_vfs *real_vfs;
static sqlite3_vfs shim;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct disk disks[DISKS];
static int n_disks;
static enum fault_kind kind;
static int64_t at, count;
static int fail_code;
static bool fired;

static sqlite3_file *real(sqlite3_file *f) { return (sqlite3_file *)((char *)f + sizeof(struct file)); }

void fault_set(enum fault_kind k, int64_t n, int code)
{
    pthread_mutex_lock(&mu);
    kind = k;
    at = n;
    fail_code = code;
    count = 0;
    fired = false;
    pthread_mutex_unlock(&mu);
}

int64_t fault_operations(void)
{
    pthread_mutex_lock(&mu);
    int64_t n = count;
    pthread_mutex_unlock(&mu);
    return n;
}

bool fault_fired(void)
{
    pthread_mutex_lock(&mu);
    bool f = fired;
    pthread_mutex_unlock(&mu);
    return f;
}

/* Counts an operation; 0 = go on. Holds mu. */
static int verdict(bool *die)
{
    count++;
    *die = false;
    if (kind == FAULT_NONE || count < at || (count > at && (kind == FAULT_ONCE || kind == FAULT_EXIT)))
        return 0;
    fired = true;
    if (kind == FAULT_EXIT) {
        *die = true;
        return 0;
    }
    return kind == FAULT_POWER ? SQLITE_IOERR : fail_code;
}

static void remember(struct disk *d, sqlite3_file *f, int64_t from, int64_t n)
{
    for (int64_t s = from / SECTOR; s <= (from + n - 1) / SECTOR; s++) {
        struct sector *k = d->dirty;
        while (k && k->number != s)
            k = k->next;
        if (k)
            continue;
        k = calloc(1, sizeof *k);
        k->number = s;
        real(f)->pMethods->xRead(real(f), k->old, SECTOR, s * SECTOR); /* past the end it fills with zeros */
        k->next = d->dirty;
        d->dirty = k;
    }
}

static void forget(struct disk *d)
{
    for (struct sector *k = d->dirty, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    d->dirty = NULL;
}

static int f_write(sqlite3_file *f, const void *data, int n, sqlite3_int64 offset)
{
    bool die;
    pthread_mutex_lock(&mu);
    int rc = verdict(&die);
    struct disk *d = ((struct file *)f)->disk;
    if (!rc && d)
        remember(d, f, offset, n);
    if (die) {
        real(f)->pMethods->xWrite(real(f), data, n / 2, offset);
        _exit(137);
    }
    if (!rc)
        rc = real(f)->pMethods->xWrite(real(f), data, n, offset);
    else if (rc == SQLITE_IOERR)
        rc = SQLITE_IOERR_WRITE;
    pthread_mutex_unlock(&mu);
    return rc;
}

static int f_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    bool die;
    pthread_mutex_lock(&mu);
    int rc = verdict(&die);
    struct disk *d = ((struct file *)f)->disk;
    sqlite3_int64 now = 0;
    if (!rc && d && real(f)->pMethods->xFileSize(real(f), &now) == SQLITE_OK && now > size)
        remember(d, f, size, now - size);
    if (die)
        _exit(137);
    if (!rc)
        rc = real(f)->pMethods->xTruncate(real(f), size);
    else if (rc == SQLITE_IOERR)
        rc = SQLITE_IOERR_TRUNCATE;
    pthread_mutex_unlock(&mu);
    return rc;
}

static int f_sync(sqlite3_file *f, int flags)
{
    (void)flags;
    bool die;
    pthread_mutex_lock(&mu);
    int rc = verdict(&die);
    struct disk *d = ((struct file *)f)->disk;
    if (die)
        _exit(137);
    if (!rc && d) {
        sqlite3_int64 size = 0;
        real(f)->pMethods->xFileSize(real(f), &size);
        d->synced_size = size;
        forget(d);
    } else if (rc == SQLITE_IOERR) {
        rc = SQLITE_IOERR_FSYNC;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

static int f_close(sqlite3_file *f) { return real(f)->pMethods ? real(f)->pMethods->xClose(real(f)) : SQLITE_OK; }
static int f_read(sqlite3_file *f, void *b, int n, sqlite3_int64 o) { return real(f)->pMethods->xRead(real(f), b, n, o); }
static int f_size(sqlite3_file *f, sqlite3_int64 *n) { return real(f)->pMethods->xFileSize(real(f), n); }
static int f_lock(sqlite3_file *f, int l) { return real(f)->pMethods->xLock(real(f), l); }
static int f_unlock(sqlite3_file *f, int l) { return real(f)->pMethods->xUnlock(real(f), l); }
static int f_reserved(sqlite3_file *f, int *r) { return real(f)->pMethods->xCheckReservedLock(real(f), r); }
static int f_control(sqlite3_file *f, int op, void *a) { return real(f)->pMethods->xFileControl(real(f), op, a); }
static int f_sector(sqlite3_file *f) { (void)f; return SECTOR; }
static int f_traits(sqlite3_file *f) { (void)f; return 0; /* no promises: not atomic, not safe to append */ }
static int f_shm_map(sqlite3_file *f, int i, int n, int x, void volatile **p) { return real(f)->pMethods->xShmMap(real(f), i, n, x, p); }
static int f_shm_lock(sqlite3_file *f, int o, int n, int l) { return real(f)->pMethods->xShmLock(real(f), o, n, l); }
static void f_shm_barrier(sqlite3_file *f) { real(f)->pMethods->xShmBarrier(real(f)); }
static int f_shm_unmap(sqlite3_file *f, int d) { return real(f)->pMethods->xShmUnmap(real(f), d); }

static const sqlite3_io_methods methods = { 2, f_close, f_read, f_write, f_truncate, f_sync, f_size, f_lock, f_unlock, f_reserved,
                                            f_control, f_sector, f_traits, f_shm_map, f_shm_lock, f_shm_barrier, f_shm_unmap, NULL, NULL };

static struct disk *disk_of(const char *path)
{
    for (int i = 0; i < n_disks; i++)
        if (strcmp(disks[i].path, path) == 0)
            return &disks[i];
    if (n_disks == DISKS)
        return NULL;
    struct disk *d = &disks[n_disks++];
    memset(d, 0, sizeof *d);
    snprintf(d->path, sizeof d->path, "%s", path);
    struct stat st;
    d->synced_size = stat(path, &st) == 0 ? st.st_size : 0;
    return d;
}

static int v_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)v;
    memset(f, 0, sizeof(struct file));
    real(f)->pMethods = NULL;
    int rc = real_vfs->xOpen(real_vfs, name, real(f), flags, out);
    if (rc == SQLITE_OK) {
        f->pMethods = &methods;
        pthread_mutex_lock(&mu);
        ((struct file *)f)->disk = name ? disk_of(name) : NULL;
        pthread_mutex_unlock(&mu);
    }
    return rc;
}

static int v_delete(sqlite3_vfs *v, const char *name, int sync)
{
    (void)v, (void)sync;
    bool die;
    pthread_mutex_lock(&mu);
    int rc = verdict(&die);
    if (die)
        _exit(137);
    if (!rc) {
        rc = real_vfs->xDelete(real_vfs, name, 0); /* durability is ours to simulate */
        struct disk *d = disk_of(name);
        if (d) {
            forget(d);
            d->synced_size = 0;
        }
    } else if (rc == SQLITE_IOERR) {
        rc = SQLITE_IOERR_DELETE;
    }
    pthread_mutex_unlock(&mu);
    return rc;
}

void fault_install(void)
{
    if (real_vfs)
        return;
    real_vfs = sqlite3_vfs_find(NULL);
    shim = *real_vfs;
    shim.zName = "ztfault";
    shim.szOsFile = real_vfs->szOsFile + (int)sizeof(struct file);
    shim.xOpen = v_open;
    shim.xDelete = v_delete;
    sqlite3_vfs_register(&shim, 1);
}

static uint64_t next(uint64_t *s)
{
    uint64_t z = (*s += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

void fault_lose_power(uint64_t seed)
{
    for (int i = 0; i < n_disks; i++) {
        struct disk *d = &disks[i];
        int fd = open(d->path, O_RDWR);
        char shm[sizeof d->path + 8];
        snprintf(shm, sizeof shm, "%.1090s-shm", d->path);
        unlink(shm);
        if (fd < 0) {
            forget(d);
            continue;
        }
        for (struct sector *k = d->dirty; k; k = k->next) {
            uint64_t r = next(&seed) % 4;
            if (r == 0)
                continue; /* it had reached the disk */
            size_t n = r == 3 ? SECTOR / 2 : SECTOR; /* torn: the first half is old */
            if (pwrite(fd, k->old, n, k->number * SECTOR) < 0)
                perror("pwrite");
        }
        struct stat st;
        if (d->dirty && next(&seed) % 2 == 0 && fstat(fd, &st) == 0 && st.st_size > d->synced_size)
            if (ftruncate(fd, d->synced_size) < 0)
                perror("ftruncate");
        close(fd);
        forget(d);
    }
    n_disks = 0;
}
