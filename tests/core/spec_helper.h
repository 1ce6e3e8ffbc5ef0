/* SPDX-License-Identifier: Apache-2.0 */
/* tests/core/spec_helper.h: a good run file to start from, and parsing with one override or one line
 * replaced. Each test is its own process; the statics are not shared. */
#ifndef ZT_TESTS_SPEC_HELPER_H
#define ZT_TESTS_SPEC_HELPER_H
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "core/spec.h"

#define GOOD                                                                                       \
    "version: 1\n"                                                                                 \
    "name: good\n"                                                                                 \
    "model: {preset: gpt2-nano}\n"                                                                 \
    "dataset: {path: /data/text}\n"                                                                \
    "training:\n"                                                                                  \
    "  steps: 200\n"                                                                               \
    "  seq_len: 128\n"                                                                             \
    "  local_batch_size: 8\n"                                                                      \
    "parallelism: {mode: ddp}\n"

static struct zt_spec spec;
static struct zt_error err;

/* Parses text with the given overrides (NULL-terminated); 0 or the code. */
__attribute__((unused)) static int parse_with(const char *text, const char *const *set) {
    int n = 0;
    while (set && set[n])
        n++;
    zt_spec_free(&spec);
    memset(&err, 0, sizeof err);
    return zt_spec_parse(text, strlen(text), "run.yaml", set, n, &spec, &err);
}
__attribute__((unused)) static int parse(const char *text) { return parse_with(text, NULL); }
__attribute__((unused)) static int parse_set(const char *set) {
    const char *const list[] = {set, NULL};
    return parse_with(GOOD, list);
}
#endif
