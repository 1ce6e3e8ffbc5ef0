/* SPDX-License-Identifier: Apache-2.0 */
/* tests/checkpoint/case.h: a small state with every kind and format, cut over ranks in several ways, written
 * and published through any table of system calls. What a value is and what the hashes are is said here,
 * by formula, apart from the code under test. */
#ifndef ZT_TEST_CHECKPOINT_CASE_H
#define ZT_TEST_CHECKPOINT_CASE_H
#include "core/convert.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/write.h"

enum cut { CUT_FLAT = 0, CUT_COLUMNS, CUT_WHOLE, CUT_COUNT };
struct ck_case {
    const struct zt_sys *sys;
    const char *folder;
    struct zt_saved_tensor *tensors;
    int n_tensors, world;
    enum cut cut;
    int64_t step;
    uint32_t generation;
    int salt; /* other values */
    const char *memory;
};
/* vocabulary, tied weights, a fused matrix with its bias, a frozen one, one wide and one tall. scale >= 1. */
struct ck_case ck_make(const struct zt_sys *sys, const char *folder, int world, enum cut cut, int scale);
void ck_free(struct ck_case *c);
float ck_value(const struct ck_case *c, int tensor, enum zt_saved kind, int64_t index); /* as stored, widened */
void ck_hashes(const struct ck_case *c, struct zt_hash128 *parameters, struct zt_hash128 *state);

/* The pieces of a rank, their values in one buffer. */
struct ck_pieces { struct zt_saved_piece *v; int n; char *values; };
struct ck_pieces ck_pieces(const struct ck_case *c, int rank);
void ck_pieces_free(struct ck_pieces *p);

int ck_write_rank(const struct ck_case *c, int rank, struct zt_shard_written *out, bool *disk_full, struct zt_error *err);
/* Every rank's part and the publication; what comes first wrong is returned. */
int ck_save(const struct ck_case *c, struct zt_sha256 *manifest, bool *adopted, bool *disk_full, struct zt_error *err);
void ck_manifest(const struct ck_case *c, const struct zt_shard_written *parts, struct zt_manifest *m); /* parts: world; m->ranks is malloc'ed */
/* Opens what was saved, compares every element of every kind, as fp32, asked for in `ask` cuts. "" or what is
 * wrong, in a static buffer. */
const char *ck_check_values(const struct ck_case *c, struct zt_ckpt *k, enum cut ask, int ask_world);
/* open + verify; 0 or the code */
int ck_open_and_verify(const struct ck_case *c, const struct zt_sha256 *manifest, struct zt_error *err);
#endif
