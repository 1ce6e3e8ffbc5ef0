/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a run file. The first byte says how much of the input's tail is an
 * override instead. What is accepted must normalise to a fixed point. */
#include <stdlib.h>
#include <string.h>
#include "core/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_fixed_point(struct zt_spec *spec) {
    static struct zt_spec again;
    struct zt_error err;
    char *text = zt_spec_normalise(spec);
    ZT_ASSERT(text);
    int rc = zt_spec_parse(text, strlen(text), "normalised", NULL, 0, &again, &err);
    ZT_ASSERT(rc == 0);
    ZT_ASSERT(strcmp(spec->normalised_hash, again.normalised_hash) == 0);
    zt_spec_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct zt_spec spec;
    struct zt_error err;
    char set[256];
    size_t cut = 0;
    const char *const overrides[] = {set};
    if (size > 0 && data[0] < 128 && size > data[0] + 1u) {
        cut = data[0];
        memcpy(set, data + size - cut, cut);
        set[cut] = '\0';
    }
    if (size > 0) {
        data++;
        size--;
    }
    if (zt_spec_parse((const char *)data, size - cut, "fuzz", overrides, cut ? 1 : 0, &spec, &err))
        return 0;
    check_fixed_point(&spec);
    for (int workers = 0; workers <= 6; workers += 2) {
        struct zt_spec *copy = malloc(sizeof *copy);
        *copy = spec;
        copy->verbatim = NULL;
        if (zt_spec_resolve(copy, workers, "fuzz", &err) == 0)
            ZT_ASSERT(zt_mesh_world(zt_spec_mesh(copy)) == copy->workers);
        free(copy);
    }
    zt_spec_free(&spec);
    return 0;
}
