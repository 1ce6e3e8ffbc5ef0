/* SPDX-License-Identifier: Apache-2.0 */
/* engine/checkpoint/safetensors.h: the safetensors format: u64 little-endian length of the header, the
 * header (JSON: name -> dtype, shape, data_offsets; "__metadata__" of strings), the values, row-major,
 * little-endian, without holes.
 *
 * The reader takes no number of the file on trust. It reads with pread, never maps, and refuses by name
 * (ZT_EINVAL): a header over 16 MiB or past the file's end, more than 65,536 tensors, more than 8 dimensions,
 * names over 512 bytes or twice, unknown dtypes, shapes whose product does not fit or is not what the
 * offsets say, offsets with a hole or an overlap, a file longer or shorter than its tensors, JSON deeper than
 * 3 levels or not UTF-8. Memory: at most twice the header. What it hands out are checked places; the values
 * themselves are the caller's to read.
 *
 * Owner: zt_safetensors_free. Immutable once open; any thread may look things up. */
#ifndef ZT_ENGINE_CHECKPOINT_SAFETENSORS_H
#define ZT_ENGINE_CHECKPOINT_SAFETENSORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/dtype.h"
#include "core/error.h"
#include "core/sys.h"

enum { ZT_ST_HEADER_MAX = 16 << 20, ZT_ST_TENSORS_MAX = 65536, ZT_ST_DIMS_MAX = 8, ZT_ST_NAME_MAX = 512 };

enum zt_st_type { ZT_ST_F64 = 0, ZT_ST_F32, ZT_ST_F16, ZT_ST_BF16, ZT_ST_I64, ZT_ST_I32, ZT_ST_I16, ZT_ST_I8, ZT_ST_U8, ZT_ST_BOOL, ZT_ST_COUNT };
const char *zt_st_type_name(enum zt_st_type t); /* as in the file: "F32" */
int64_t zt_st_type_size(enum zt_st_type t);
enum zt_st_type zt_st_type_of(enum zt_dtype t);
int zt_st_dtype(enum zt_st_type t);             /* enum zt_dtype; -1: we have none */

struct zt_safetensor {
    const char *name; /* UTF-8, at most 512 bytes, valid as long as the file's struct */
    enum zt_st_type type;
    int ndim;         /* 0: one element */
    int64_t shape[ZT_ST_DIMS_MAX];
    int64_t elements;
    int64_t at, bytes; /* in the file, from its beginning */
};

struct zt_safetensors;
/* fd stays the caller's and is not needed afterwards by this; `name` is for messages. ZT_EIO: a call failed. */
int zt_safetensors_open_fd(const struct zt_sys *sys, int fd, const char *name, struct zt_safetensors **out, struct zt_error *err);
int zt_safetensors_count(const struct zt_safetensors *s);
void zt_safetensors_get(const struct zt_safetensors *s, int i, struct zt_safetensor *t); /* by place in the file */
int zt_safetensors_find(const struct zt_safetensors *s, const char *name);              /* -1: none */
int64_t zt_safetensors_head_bytes(const struct zt_safetensors *s);                       /* where values begin */
void zt_safetensors_free(struct zt_safetensors *s);

/* The head of a file with these tensors, whose values follow in this order without holes: name, type, ndim and
 * shape are read, elements, at and bytes are set. `metadata`: text of the JSON object __metadata__, strings only;
 * NULL: none. Padded with spaces to a multiple of 64 bytes. *text is malloc'ed. Tensors with wider elements
 * have to come first, so that every value lies on a multiple of its size. ZT_EINVAL: past a limit of the reader. */
int zt_safetensors_head(struct zt_safetensor *tensors, int n, const char *metadata, char **text, int64_t *bytes, struct zt_error *err);
#endif
