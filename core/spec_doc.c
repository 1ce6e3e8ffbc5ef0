/* SPDX-License-Identifier: Apache-2.0 */
/* core/spec_doc.c: prints docs/run-yaml.md, the reference page of run.yaml. */
#include <stdio.h>
#include "core/spec.h"

int main(void) {
    zt_spec_reference(stdout);
    return ferror(stdout) || fflush(stdout) ? 1 : 0;
}
