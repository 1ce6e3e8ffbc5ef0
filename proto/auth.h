/* SPDX-License-Identifier: Apache-2.0 */
/* proto/auth.h: the token file and the HMAC of the hello (decision D20). The token is 32 random bytes
 * in hex in a 0600 file owned by this user; anything wider, a symlink or another owner is refused. */
#ifndef ZT_PROTO_AUTH_H
#define ZT_PROTO_AUTH_H
#include <stdbool.h>
#include "core/error.h"
#include "core/sys.h"

struct zt_token { uint8_t key[32]; };
int zt_token_create(const struct zt_sys *sys, const char *path, struct zt_error *err); /* keeps an existing one */
int zt_token_load(const struct zt_sys *sys, const char *path, struct zt_token *t, struct zt_error *err);
void zt_hello_mac(const struct zt_token *t, const uint8_t server_nonce[32], const uint8_t client_nonce[32],
                  uint8_t role, uint8_t mac[32]);
void zt_server_mac(const struct zt_token *t, const uint8_t client_nonce[32], const uint8_t server_nonce[32],
                   uint8_t mac[32]);
bool zt_mac_equal(const uint8_t a[32], const uint8_t b[32]); /* constant time */

/* State folder of zcoord: --state, else $ZTRAIN_STATE, else $XDG_STATE_HOME/ztrain/coord, else
 * ~/.local/state/ztrain/coord. The token file in it is "token". */
int zt_state_folder(const char *flag, char *out, size_t n, struct zt_error *err);
/* Token path for clients and workers: --token-file, else $ZTRAIN_TOKEN_FILE, else STATE/token. */
int zt_token_path(const char *flag, char *out, size_t n, struct zt_error *err);
/* Coordinator address: flag, else $ZCTL_COORD, else 127.0.0.1:7000. */
int zt_coord_address(const char *flag, char *host, size_t n, int *port, struct zt_error *err);

#endif
