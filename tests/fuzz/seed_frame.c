/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seeds of fuzz_frame: seed_frame FOLDER. One file per body of the envelope, as a worker
 * after the hello sends it, and one with all of them as an unauthenticated peer. */
#include <stdio.h>
#include <stdlib.h>
#include "tests/proto/minimal.h"

static int put(const char *folder, const char *name, uint8_t first, const uint8_t *p, size_t n)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fputc(first, f) == EOF || fwrite(p, 1, n, f) != n || fclose(f)) {
        perror(path);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static uint8_t all[65536];
    size_t at = 0;
    int rc = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: seed_frame FOLDER\n");
        return 2;
    }
    for (unsigned i = 0; i < zt__envelope__descriptor.n_fields && !rc; i++) {
        const ProtobufCFieldDescriptor *f = &zt__envelope__descriptor.fields[i];
        uint8_t frame[1024];
        if (is_body(f)) {
            size_t n = minimal_frame(f, frame);
            memcpy(all + at, frame, n);
            at += n;
            rc = put(argv[1], f->name, 2, frame, n);
        }
    }
    return rc || put(argv[1], "all", 5, all, at) || put(argv[1], "before-hello", 0, all, at);
}
