/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/deepspeed_int.h: shared by deepspeed.c (leaves, rows, the run file), deepspeed_train.c and
 * deepspeed_keys.c (what the keys mean). Everything lives in struct ds, on the caller's stack and heap. */
#ifndef ZT_ZCTL_DEEPSPEED_INT_H
#define ZT_ZCTL_DEEPSPEED_INT_H
#include <jansson.h>
#include <stdbool.h>
#include "clients/zctl/deepspeed.h"

/* A key whose value is no mapping (or an empty one). */
struct leaf {
    char path[128];
    const json_t *value;
    uint32_t line, column;
    bool told;
};

/* Keys of the run file, in its order. */
enum item {
    I_WORKERS, I_PRESET, I_DATA, I_DROP_LAST, I_STEPS, I_SEQ_LEN, I_LOCAL, I_GLOBAL, I_LR, I_BETA1, I_BETA2,
    I_EPS, I_DECAY, I_DECAY_1D, I_MAX_NORM, I_WARMUP, I_SHAPE, I_MIN_LR, I_RECIPE, I_REDUCE, I_SCALER, I_MODE,
    I_SHARD, I_TENSOR, I_RESHARD, I_PREFETCH, I_BUCKET, I_OVERLAP, I_PERSISTENCE, I_LOG_FREQ, I_COUNT
};
struct value { char text[48], comment[200]; };

struct ds {
    const char *file;
    int workers, shard; /* shard: MiCS's group; 0 = all */
    int stage;
    int tensor;         /* tensor-parallel degree, 1 = none */
    json_t *root;
    struct leaf *leaf;
    int n, size;
    bool failed;        /* no memory */
    struct zt_ds_result *out;
    int rows_size;
    struct value item[I_COUNT]; /* text "": not in the run file */
};

struct leaf *ds_find(struct ds *d, const char *path);
/* The row of a leaf; only the first one counts. */
void ds_say(struct ds *d, struct leaf *l, enum zt_ds_outcome o, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* A row of something that is not in the file. */
void ds_say_absent(struct ds *d, const char *key, enum zt_ds_outcome o, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Into the run file; comment NULL: none. */
void ds_set(struct ds *d, enum item i, const char *comment, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* FILL_IN, with why. */
void ds_open(struct ds *d, enum item i, const char *why);
const char *ds_item_path(enum item i);

/* deepspeed_train.c: keys that become something of the run file, or need more than a glance. */
void ds_train(struct ds *d);
/* deepspeed_keys.c: all other keys that there are; what is left over then is unknown. */
void ds_rest(struct ds *d);
/* Whether a mapping has "enabled": true; without such a key, whether it is there at all. */
bool ds_enabled(struct ds *d, const char *section);
/* The nearest known key of DeepSpeed's; NULL. */
const char *ds_nearest(const char *path);

#endif
