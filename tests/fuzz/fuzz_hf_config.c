/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as config.json. What is taken is a model that a table can be built of, and that
 * is written and read again to the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "engine/checkpoint/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct zt_hf_config c, again;
    struct zt_error err;
    char *text = NULL, *second = NULL;
    if (zt_hf_config_read((const char *)data, size, "fuzz", &c, &err)) {
        ZT_ASSERT(err.msg[0]);
        return 0;
    }
    ZT_ASSERT(zt_model_config_check(&c.model, &err) == 0);
    ZT_ASSERT(zt_hf_config_write(&c.model, c.dtype, c.end_token, &text, &err) == 0);
    ZT_ASSERT(zt_hf_config_read(text, strlen(text), "again", &again, &err) == 0);
    ZT_ASSERT(zt_hf_config_write(&again.model, again.dtype, again.end_token, &second, &err) == 0);
    ZT_ASSERT(strcmp(text, second) == 0);
    free(text);
    free(second);
    return 0;
}
