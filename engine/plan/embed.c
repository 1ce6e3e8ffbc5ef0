/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/embed.c: build tool: `embed OUT.c IN NAME` writes a text file as the C string NAME,
 * so that programs carry it and need no path at run time. */
#include <stdio.h>

int main(int argc, char **argv) {
    FILE *in = argc == 4 ? fopen(argv[2], "rb") : NULL;
    FILE *out = in ? fopen(argv[1], "w") : NULL;
    if (!out) {
        fprintf(stderr, "usage: embed OUT.c IN NAME (and the files must open)\n");
        return 2;
    }
    fprintf(out, "extern const char %s[];\nconst char %s[] = {", argv[3], argv[3]);
    int n = 0;
    for (int c; (c = fgetc(in)) != EOF; n++) {
        if (c == 0) {
            fprintf(stderr, "embed: %s: a NUL byte in a text\n", argv[2]);
            return 1;
        }
        fprintf(out, "%s%d,", n % 24 == 0 ? "\n" : "", c > 127 ? c - 256 : c);
    }
    fprintf(out, "\n0};\n");
    return fclose(in) != 0 || fclose(out) != 0;
}
