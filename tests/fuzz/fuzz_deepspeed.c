/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a DeepSpeed configuration; the first byte is the number of workers. Every
 * row names a place or none, and a run file is made exactly when nothing is refused. */
#include <stdint.h>
#include <string.h>
#include "clients/zctl/deepspeed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct zt_ds_result r;
    struct zt_error err;
    int workers = size > 0 && data[0] != '{' ? data[0] : 0;
    if (workers) {
        data++;
        size--;
    }
    if (zt_ds_convert((const char *)data, size, "fuzz.json", workers, &r, &err)) {
        ZT_ASSERT(!r.row && !r.yaml && err.msg[0]);
        return 0;
    }
    for (int i = 0; i < r.n; i++)
        ZT_ASSERT((r.row[i].line == 0) == (r.row[i].column == 0) && r.row[i].text[0] != '\0');
    ZT_ASSERT((r.yaml != NULL) == (r.count[ZT_DS_REFUSED] == 0));
    zt_ds_free(&r);
    return 0;
}
