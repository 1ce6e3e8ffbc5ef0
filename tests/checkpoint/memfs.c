/* SPDX-License-Identifier: Apache-2.0 */
/* tests/checkpoint/memfs.c: see memfs.h. */
#include "tests/checkpoint/memfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

enum { SECTOR = 512, NODES = 4096, FDS = 64, NAME = 96, ENTRIES = 64, CHANGES = 512 };

struct bytes { unsigned char *at; int64_t n; };
struct entry { char name[NAME]; int node; };
struct entries { struct entry v[ENTRIES]; int n; };
struct change { char name[NAME]; int node, group; }; /* node -1: gone */
struct node {
    bool folder, used;
    struct bytes now, durable;
    unsigned char *dirty; /* per sector, as long as the longer of the two */
    struct entries *live, *kept;
    struct change *pending;
    int n_pending;
};
struct memfs {
    struct node *nodes; /* 0 is the root */
    int n_nodes, group;
    struct { int node; bool open; } fds[FDS];
    int64_t calls, off_at, room, clock;
    char path[512];
};

/* ---- nodes ---- */

static int new_node(struct memfs *fs, bool folder) {
    ZT_ASSERT(fs->n_nodes < NODES);
    struct node *n = &fs->nodes[fs->n_nodes];
    *n = (struct node){.folder = folder, .used = true};
    if (folder) {
        n->live = calloc(1, sizeof *n->live);
        n->kept = calloc(1, sizeof *n->kept);
        n->pending = calloc(CHANGES, sizeof *n->pending);
    }
    return fs->n_nodes++;
}

struct memfs *memfs_new(void) {
    struct memfs *fs = calloc(1, sizeof *fs);
    fs->nodes = calloc(NODES, sizeof *fs->nodes);
    fs->room = -1;
    new_node(fs, true);
    return fs;
}

void memfs_free(struct memfs *fs) {
    for (int i = 0; i < fs->n_nodes; i++) {
        struct node *n = &fs->nodes[i];
        free(n->now.at);
        free(n->durable.at);
        free(n->dirty);
        free(n->live);
        free(n->kept);
        free(n->pending);
    }
    free(fs->nodes);
    free(fs);
}

static int find(const struct entries *e, const char *name) {
    for (int i = 0; i < e->n; i++)
        if (strcmp(e->v[i].name, name) == 0) return i;
    return -1;
}

static void set_entry(struct entries *e, const char *name, int node) {
    const int i = find(e, name);
    if (node < 0) {
        if (i >= 0) e->v[i] = e->v[--e->n];
        return;
    }
    ZT_ASSERT(strlen(name) < NAME && (i >= 0 || e->n < ENTRIES));
    if (i < 0) strcpy(e->v[e->n].name, name);
    e->v[i < 0 ? e->n++ : i].node = node;
}

static void change(struct memfs *fs, int folder, const char *name, int node, int group) {
    struct node *f = &fs->nodes[folder];
    ZT_ASSERT(f->n_pending < CHANGES);
    struct change *c = &f->pending[f->n_pending++];
    *c = (struct change){.node = node, .group = group};
    strcpy(c->name, name);
    set_entry(f->live, name, node);
}

/* The folder of a path and the last name in it; the node, -ENOENT, or -ENOTDIR. */
static int walk(struct memfs *fs, const char *path, int *folder, char name[NAME]) {
    int node = 0;
    *folder = -1;
    name[0] = '\0';
    while (*path) {
        while (*path == '/') path++;
        if (!*path) break;
        const size_t n = strcspn(path, "/");
        ZT_ASSERT(n < NAME);
        if (node < 0) return -ENOENT;
        if (!fs->nodes[node].folder) return -ENOTDIR;
        *folder = node;
        memcpy(name, path, n);
        name[n] = '\0';
        const int i = find(fs->nodes[node].live, name);
        node = i < 0 ? -ENOENT : fs->nodes[node].live->v[i].node;
        path += n;
        if (node < 0 && *path) *folder = -1;
    }
    return node;
}

/* ---- calls ---- */

static bool off(struct memfs *fs) {
    fs->calls++;
    return fs->off_at > 0 && fs->calls >= fs->off_at;
}

static void resize(struct node *f, int64_t n) {
    const int64_t had = (f->now.n > f->durable.n ? f->now.n : f->durable.n) / SECTOR + 1, has = (n > f->durable.n ? n : f->durable.n) / SECTOR + 1;
    f->now.at = realloc(f->now.at, (size_t)n + 1);
    if (n > f->now.n) memset(f->now.at + f->now.n, 0, (size_t)(n - f->now.n));
    f->dirty = realloc(f->dirty, (size_t)(has > had ? has : had));
    if (!f->now.n && !f->durable.n) f->dirty[0] = 0;
    if (has > had) memset(f->dirty + had, 0, (size_t)(has - had));
    f->now.n = n;
}

static int m_open(void *arg, const char *path, int flags, mode_t mode) {
    struct memfs *fs = arg;
    int folder, fd = 3;
    char name[NAME];
    (void)mode;
    if (off(fs)) return -EIO;
    int node = walk(fs, path, &folder, name);
    if (node == -ENOENT && (flags & O_CREAT) && folder >= 0) {
        node = new_node(fs, false);
        resize(&fs->nodes[node], 0);
        change(fs, folder, name, node, fs->group++);
    }
    if (node < 0) return node;
    if (fs->nodes[node].folder && (flags & O_ACCMODE) != O_RDONLY) return -EISDIR;
    if (!fs->nodes[node].folder && (flags & O_DIRECTORY)) return -ENOTDIR;
    if (flags & O_TRUNC) resize(&fs->nodes[node], 0);
    while (fs->fds[fd].open) fd++;
    ZT_ASSERT(fd < FDS);
    fs->fds[fd].open = true;
    fs->fds[fd].node = node;
    return fd;
}

static ssize_t m_pread(void *arg, int fd, void *buf, size_t n, off_t at) {
    struct memfs *fs = arg;
    if (off(fs)) return -EIO;
    const struct node *f = &fs->nodes[fs->fds[fd].node];
    if (f->folder) return -EISDIR;
    const int64_t left = at < f->now.n ? f->now.n - at : 0;
    if ((int64_t)n > left) n = (size_t)left;
    if (n > 0) memcpy(buf, f->now.at + at, n);
    return (ssize_t)n;
}

static ssize_t m_pwrite(void *arg, int fd, const void *buf, size_t n, off_t at) {
    struct memfs *fs = arg;
    if (off(fs)) return -EIO;
    struct node *f = &fs->nodes[fs->fds[fd].node];
    if (n > 3000) n = 3000; /* short writes */
    if (fs->room >= 0 && (int64_t)n > fs->room) n = (size_t)fs->room;
    if (n == 0) return -ENOSPC;
    if (fs->room >= 0) fs->room -= (int64_t)n;
    if (at + (int64_t)n > f->now.n) resize(f, at + (int64_t)n);
    memcpy(f->now.at + at, buf, n);
    for (int64_t s = at / SECTOR; s <= (at + (int64_t)n - 1) / SECTOR; s++) f->dirty[s] = 1;
    return (ssize_t)n;
}

static void make_durable(struct node *f) {
    if (f->folder) {
        memcpy(f->kept, f->live, sizeof *f->kept);
        f->n_pending = 0;
        return;
    }
    f->durable.at = realloc(f->durable.at, (size_t)f->now.n + 1);
    if (f->now.n) memcpy(f->durable.at, f->now.at, (size_t)f->now.n);
    f->durable.n = f->now.n;
    memset(f->dirty, 0, (size_t)(f->now.n / SECTOR + 1));
}

static int m_fsync(void *arg, int fd) {
    struct memfs *fs = arg;
    if (off(fs)) return -EIO;
    make_durable(&fs->nodes[fs->fds[fd].node]);
    return 0;
}

static int m_close(void *arg, int fd) {
    struct memfs *fs = arg;
    ZT_ASSERT(fd >= 3 && fd < FDS && fs->fds[fd].open);
    fs->fds[fd].open = false;
    return off(fs) ? -EIO : 0;
}

static int m_rename(void *arg, const char *from, const char *to) {
    struct memfs *fs = arg;
    int a, b;
    char name[NAME], other[NAME];
    if (off(fs)) return -EIO;
    const int node = walk(fs, from, &a, name), target = walk(fs, to, &b, other);
    if (node < 0) return node;
    if (b < 0) return -ENOENT;
    if (target >= 0 && fs->nodes[target].folder && fs->nodes[target].live->n > 0) return -ENOTEMPTY;
    change(fs, b, other, node, fs->group);
    change(fs, a, name, -1, a == b ? fs->group : fs->group + 1);
    fs->group += 2;
    return 0;
}

static int m_unlink(void *arg, const char *path) {
    struct memfs *fs = arg;
    int folder;
    char name[NAME];
    if (off(fs)) return -EIO;
    const int node = walk(fs, path, &folder, name);
    if (node < 0) return node;
    if (fs->nodes[node].folder) return -EISDIR;
    change(fs, folder, name, -1, fs->group++);
    return 0;
}

static int m_rmdir(void *arg, const char *path) {
    struct memfs *fs = arg;
    int folder;
    char name[NAME];
    if (off(fs)) return -EIO;
    const int node = walk(fs, path, &folder, name);
    if (node < 0) return node;
    if (!fs->nodes[node].folder) return -ENOTDIR;
    if (fs->nodes[node].live->n) return -ENOTEMPTY;
    change(fs, folder, name, -1, fs->group++);
    return 0;
}

static int m_mkdir(void *arg, const char *path, mode_t mode) {
    struct memfs *fs = arg;
    int folder;
    char name[NAME];
    (void)mode;
    if (off(fs)) return -EIO;
    const int node = walk(fs, path, &folder, name);
    if (node >= 0) return -EEXIST;
    if (folder < 0) return -ENOENT;
    change(fs, folder, name, new_node(fs, true), fs->group++);
    return 0;
}

static int m_fstat(void *arg, int fd, struct stat *st) {
    struct memfs *fs = arg;
    if (off(fs)) return -EIO;
    const struct node *f = &fs->nodes[fs->fds[fd].node];
    *st = (struct stat){.st_mode = f->folder ? S_IFDIR | 0755 : S_IFREG | 0644, .st_size = f->now.n};
    return 0;
}

static int m_fstatvfs(void *arg, int fd, struct statvfs *st) {
    struct memfs *fs = arg;
    (void)fd;
    if (off(fs)) return -EIO;
    *st = (struct statvfs){.f_frsize = 1, .f_bavail = fs->room < 0 ? 1 << 30 : (fsblkcnt_t)fs->room};
    return 0;
}

static int m_fadvise(void *arg, int fd, off_t at, off_t n, int advice) {
    (void)fd, (void)at, (void)n, (void)advice;
    return off(arg) ? -EIO : 0;
}

static int m_list(void *arg, const char *path, int (*entry)(void *ctx, const char *name), void *ctx) {
    struct memfs *fs = arg;
    int folder, rc = 0;
    char name[NAME];
    if (off(fs)) return -EIO;
    const int node = walk(fs, path, &folder, name);
    if (node < 0) return node;
    if (!fs->nodes[node].folder) return -ENOTDIR;
    const struct entries e = *fs->nodes[node].live;
    for (int i = 0; i < e.n && rc == 0; i++) rc = entry(ctx, e.v[i].name);
    return rc;
}

static int64_t m_clock(void *arg) { return ++((struct memfs *)arg)->clock; }

struct zt_sys memfs_sys(struct memfs *fs) {
    return (struct zt_sys){.arg = fs, .open = m_open, .pread = m_pread, .pwrite = m_pwrite, .fsync = m_fsync, .close = m_close, .rename = m_rename,
                           .unlink = m_unlink, .mkdir = m_mkdir, .fstat = m_fstat, .rmdir = m_rmdir, .fstatvfs = m_fstatvfs, .fadvise = m_fadvise,
                           .list = m_list, .monotonic_ns = m_clock, .wall_ns = m_clock};
}

void memfs_power_off_at(struct memfs *fs, int64_t n) {
    fs->calls = 0;
    fs->off_at = n;
}
int64_t memfs_calls(const struct memfs *fs) { return fs->calls; }
void memfs_room(struct memfs *fs, int64_t bytes) { fs->room = bytes; }

/* ---- losing power ---- */

struct keeping {
    int (*keep)(void *arg, int item);
    void *arg;
    int items;
    int group; /* of the item counted last, in this folder */
};

static bool next_item(struct keeping *k) {
    const int item = k->items++;
    return k->keep && k->keep(k->arg, item);
}

static void lose_folder(const struct node *f, struct node *to, struct keeping *k) {
    bool kept = false;
    int group = -1;
    if (to) memcpy(to->kept, f->kept, sizeof *to->kept);
    for (int i = 0; i < f->n_pending; i++) { /* both halves of a rename follow one another */
        if (f->pending[i].group != group) kept = next_item(k);
        group = f->pending[i].group;
        if (to && kept) set_entry(to->kept, f->pending[i].name, f->pending[i].node);
    }
    if (to) memcpy(to->live, to->kept, sizeof *to->live);
}

static void lose_file(const struct node *f, struct node *to, struct keeping *k) {
    const int64_t most = f->now.n > f->durable.n ? f->now.n : f->durable.n;
    const bool longer = f->now.n != f->durable.n && next_item(k);
    const int64_t n = longer ? f->now.n : f->durable.n;
    unsigned char *at = calloc(1, (size_t)most + 1);
    if (f->durable.n) memcpy(at, f->durable.at, (size_t)(f->durable.n < n ? f->durable.n : n));
    for (int64_t s = 0; s * SECTOR < f->now.n; s++) {
        if (!f->dirty[s] || !next_item(k)) continue;
        const int64_t from = s * SECTOR, end = from + SECTOR < f->now.n ? from + SECTOR : f->now.n, to_n = end < n ? end - from : n - from;
        if (to_n > 0) memcpy(at + from, f->now.at + from, (size_t)to_n);
    }
    if (!to) {
        free(at);
        return;
    }
    resize(to, n);
    if (n) memcpy(to->now.at, at, (size_t)n);
    make_durable(to);
    free(at);
}

static void lose(const struct memfs *fs, struct memfs *to, struct keeping *k) {
    for (int i = 0; i < fs->n_nodes; i++) {
        const struct node *f = &fs->nodes[i];
        if (to && i > 0) new_node(to, f->folder);
        if (f->folder)
            lose_folder(f, to ? &to->nodes[i] : NULL, k);
        else
            lose_file(f, to ? &to->nodes[i] : NULL, k);
    }
}

int memfs_pending(const struct memfs *fs) {
    struct keeping k = {0};
    lose(fs, NULL, &k);
    return k.items;
}

struct memfs *memfs_after_loss(const struct memfs *fs, int (*keep)(void *arg, int item), void *arg) {
    struct memfs *to = memfs_new();
    struct keeping k = {.keep = keep, .arg = arg};
    lose(fs, to, &k);
    return to;
}

void memfs_settle(struct memfs *fs) {
    for (int i = 0; i < fs->n_nodes; i++) make_durable(&fs->nodes[i]);
}

/* ---- damage ---- */

unsigned char *memfs_bytes(struct memfs *fs, const char *path, int64_t *n) {
    int folder;
    char name[NAME];
    const int node = walk(fs, path, &folder, name);
    if (node < 0 || fs->nodes[node].folder) return NULL;
    *n = fs->nodes[node].now.n;
    return fs->nodes[node].now.at;
}

void memfs_truncate(struct memfs *fs, const char *path, int64_t n) {
    int folder;
    char name[NAME];
    const int node = walk(fs, path, &folder, name);
    ZT_ASSERT(node >= 0);
    resize(&fs->nodes[node], n);
}

static bool file_at(struct memfs *fs, int node, const char *prefix, int *i) {
    const struct entries *e = fs->nodes[node].live;
    for (int k = 0; k < e->n; k++) {
        char path[512];
        snprintf(path, sizeof path, "%.400s/%s", prefix, e->v[k].name);
        if (fs->nodes[e->v[k].node].folder) {
            if (file_at(fs, e->v[k].node, path, i)) return true;
        } else if ((*i)-- == 0) {
            strcpy(fs->path, path);
            return true;
        }
    }
    return false;
}

const char *memfs_file_at(struct memfs *fs, int i) { return file_at(fs, 0, "", &i) ? fs->path : NULL; }
