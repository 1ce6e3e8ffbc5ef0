/* SPDX-License-Identifier: Apache-2.0 */
/* tests/engine/data_refuse.h: data sets that must not open, and what is said of them. */
#ifndef ZT_TESTS_ENGINE_DATA_REFUSE_H
#define ZT_TESTS_ENGINE_DATA_REFUSE_H
#include <criterion/criterion.h>
#include <string.h>

#include "engine/data/data.h"

/* Opening must fail with a message that holds every given word. */
static inline void refused(struct zt_dataset_config c, int code, const char *const *words) {
    struct zt_dataset *d;
    struct zt_error err = {0};
    cr_assert_eq(zt_dataset_open(&c, &d, &err), code, "%s", err.msg);
    cr_assert_null(d);
    for (; *words; words++)
        cr_assert(strstr(err.msg, *words), "'%s' is not in: %s", *words, err.msg);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

#endif
