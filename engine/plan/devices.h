/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/devices.h: the table of devices that plans are made for. Three layers, later ones win by
 * name: the one built in (engine/plan/devices.json), what zctl calibrate measured
 * ($XDG_STATE_HOME/ztrain/devices.json), what the user wrote ($XDG_CONFIG_HOME/ztrain/devices.json).
 * All three have one format (docs/planner.md) and are read strictly: an unknown key, a figure that is
 * negative or not finite, or a group of figures without its source is refused with file and place.
 *
 * The caller owns a table until zt_devices_free; devices point into it. Any thread; one at a time. */
#ifndef ZT_ENGINE_DEVICES_H
#define ZT_ENGINE_DEVICES_H
#include "core/cost.h"

struct zt_devices;

/* The three layers. A file that is not there is no error. */
int zt_devices_load(struct zt_devices **out, struct zt_error *err);
/* The built-in layer alone. */
int zt_devices_builtin(struct zt_devices **out, struct zt_error *err);
void zt_devices_free(struct zt_devices *t); /* NULL is fine */
/* Adds the devices of a text or a file; `name` is what messages call the text. After a failure the
 * table is as it was. */
int zt_devices_add_text(struct zt_devices *t, const char *text, size_t bytes, const char *name,
                        struct zt_error *err);
int zt_devices_add_file(struct zt_devices *t, const char *path, struct zt_error *err);

int zt_devices_count(const struct zt_devices *t);
const struct zt_cost_device *zt_devices_at(const struct zt_devices *t, int i);
/* ZT_ENOTFOUND names the nearest and lists all. */
int zt_device_find(const struct zt_devices *t, const char *name, const struct zt_cost_device **out,
                   struct zt_error *err);

/* What a reader must know of times that were made with d for ranks_on_host ranks beside each other: a guess,
 * measured with another number of them, messages that nobody measured. One sentence a call. Messages are bytes
 * of the smallest and the largest collective, 0: there is none. */
void zt_device_caveats(const struct zt_cost_device *d, int ranks_on_host, int64_t least_message,
                       int64_t most_message, void (*say)(void *arg, const char *sentence), void *arg);

/* Lower-case letters, digits, '.', '_' and '-', at most 31. */
bool zt_device_name_valid(const char *name);

/* Where zctl calibrate writes, and where the user does. */
int zt_devices_state_path(char *path, size_t n, struct zt_error *err);
int zt_devices_config_path(char *path, size_t n, struct zt_error *err);
/* Puts one entry (the JSON object of a device) into a file, in place of one of that name; the folder is
 * made. The entry is checked first, and a file with errors is left alone. The file is replaced as a
 * whole: whoever reads sees the old or the new one. */
int zt_devices_write(const char *path, const char *entry, struct zt_error *err);

#endif
