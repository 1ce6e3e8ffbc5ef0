/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator/serve.h: runs the coordinator until it is told to stop. Returns the exit code of the process:
 * 0 stopped; 2 bad arguments; 5 port, folder or database belongs to another; 8 newer database; 10 other. */
#ifndef ZT_COORDINATOR_SERVE_H
#define ZT_COORDINATOR_SERVE_H
#include <stddef.h>
#include "core/error.h"

struct zt_serve_config { const char *host; int port; const char *state; /* flag of --state, NULL = default */ };
int zt_serve(const struct zt_serve_config *c);
/* Creates the state folder (0700) and checks that it is ours and nobody else can write it. */
int zt_state_prepare(const char *flag, char *out, size_t n, struct zt_error *err);
int zt_exit_code(int zt_code);

#endif
