/* SPDX-License-Identifier: Apache-2.0 */
/* engine/device/device.c: finds the implementation of a device by its name and opens it. The table
 * below is the only place that knows where implementations live. The caller owns the device until
 * zt_device_close. Thread rule: one thread opens and closes a device. */
#include "engine/device/device.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "engine/device/backend.h"

struct place {
    const char *name;
    const struct zt_device_backend *built_in; /* NULL: in a library, or not in this version */
    const char *library;                      /* NULL: not in this version */
    bool numbered;                            /* takes ":N" */
};
static const struct place places[] = {
    {"cpu", &zt_cpu_backend, NULL, false},
    {"cuda", NULL, "libzt_cuda.so", true},
    {"sim", &zt_sim_backend, NULL, false},
};

/* Splits "cuda:3" and finds its row. */
static int find_place(const char *name, const struct place **out, int *ordinal,
                      struct zt_error *err) {
    const char *colon = strchr(name, ':');
    size_t len = colon ? (size_t)(colon - name) : strlen(name);
    *ordinal = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *p = &places[i];
        if (strlen(p->name) != len || memcmp(p->name, name, len) != 0) continue;
        if (colon) {
            char *end = NULL;
            errno = 0;
            long n = strtol(colon + 1, &end, 10);
            if (!p->numbered)
                return zt_fail(err, ZT_EINVAL, "device \"%s\": %s takes no number; write \"%s\"",
                               name, p->name, p->name);
            if (colon[1] < '0' || colon[1] > '9' || *end || errno || n > 1023)
                return zt_fail(err, ZT_EINVAL,
                               "device \"%s\": \"%s\" is not a device number of 0 to 1023; write "
                               "for example \"cuda:0\"",
                               name, colon + 1);
            *ordinal = (int)n;
        }
        *out = p;
        return 0;
    }
    return zt_fail(err, ZT_EINVAL,
                   "device \"%s\" is not known; the devices are cpu, cuda, cuda:N and sim", name);
}

static int load_backend(const struct place *p, const struct zt_device_backend **out,
                        struct zt_error *err) {
    if (p->built_in) {
        *out = p->built_in;
        return 0;
    }
    if (!p->library)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "device \"%s\" is not in this version (%s); use \"cpu\"", p->name,
                       ZT_VERSION);
    void *lib = dlopen(p->library, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return zt_fail(err, ZT_EUNSUPPORTED,
                       "device \"%s\" is not in this version (%s): its backend %s was not built or "
                       "cannot be loaded (%s); use \"cpu\"",
                       p->name, ZT_VERSION, p->library, dlerror());
    const struct zt_device_backend *b = dlsym(lib, ZT_BACKEND_SYMBOL);
    if (!b || b->abi != ZT_BACKEND_ABI || !b->name || strcmp(b->name, p->name) != 0) {
        int code = zt_fail(
            err, ZT_EVERSION,
            "device \"%s\": %s is not a backend of this version (%s): %s; install the "
            "library and the programs from one build",
            p->name, p->library, ZT_VERSION,
            b ? "its interface number or name differs" : "it has no symbol " ZT_BACKEND_SYMBOL);
        dlclose(lib);
        return code;
    }
    *out = b; /* stays loaded until the process ends: a driver does not like to be unloaded */
    return 0;
}

int zt_device_open(const struct zt_device_config *c, struct zt_device **out, struct zt_error *err) {
    const struct place *p = NULL;
    const struct zt_device_backend *b = NULL;
    int ordinal = 0;
    *out = NULL;
    if (!c->name) return zt_fail(err, ZT_EINVAL, "device: no name given; use \"cpu\"");
    int rc = find_place(c->name, &p, &ordinal, err);
    if (!rc) rc = load_backend(p, &b, err);
    if (rc) return rc;
    size_t capacity = c->capacity_bytes / ZT_SEGMENT_ALIGN * ZT_SEGMENT_ALIGN;
    if (!capacity)
        return zt_fail(err, ZT_EINVAL,
                       "device \"%s\": a capacity of %zu bytes is below one segment of 2 MiB; give "
                       "more with --memory-gib",
                       c->name, c->capacity_bytes);
    struct zt_device_config rounded = *c;
    rounded.capacity_bytes = capacity;
    return b->open(ordinal, &rounded, out, err);
}

void zt_device_close(struct zt_device *d) {
    if (d) d->close(d);
}
const struct zt_device_ops *zt_device_ops(const struct zt_device *d) { return d->ops; }
struct zt_stream *zt_device_compute(struct zt_device *d) {
    return d->compute;
}
size_t zt_device_capacity(const struct zt_device *d) { return d->capacity; }
bool zt_device_has_memory(const struct zt_device *d) { return !d->addresses_only; }
