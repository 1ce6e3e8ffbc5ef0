/* SPDX-License-Identifier: Apache-2.0 */
/* engine/data/internal.h: what the files of this folder share. */
#ifndef ZT_ENGINE_DATA_INTERNAL_H
#define ZT_ENGINE_DATA_INTERNAL_H
#include "engine/data/data.h"

/* ---- list.c: from a path to file names ---- */
struct zt_file_list {
    char **names; /* malloc'ed, in byte order */
    size_t count;
    bool single;           /* the path itself is the file */
    int64_t links, others; /* entries passed over: symbolic links; folders and special files */
};
int zt_file_list_make(const char *path, struct zt_file_list *l, struct zt_error *err);
void zt_file_list_free(struct zt_file_list *l);

/* ---- jsonl.c: the lines of a file, and what one says ---- */
#define ZT_LINE_MAX (16 << 20) /* bytes of a line */
struct zt_lines {
    const struct zt_sys *sys;
    int fd;
    const char *path;
    char *buf; /* unread are buf[from, to) */
    size_t room, from, to;
    int64_t next; /* place in the file of buf[to] */
    int64_t line; /* number of the line given last */
    bool end;     /* of the file */
};
/* Begins at a line's first byte; `line` is the number of the one before it. */
void zt_lines_begin(struct zt_lines *l, const struct zt_sys *sys, int fd, const char *path,
                    int64_t byte, int64_t line);
/* The next line without its end (LF or CRLF), good until the next call, and where it begins;
 * ZT_ENOTFOUND (no message) behind the last. */
int zt_lines_next(struct zt_lines *l, const char **text, size_t *n, int64_t *byte,
                  struct zt_error *err);
void zt_lines_end(struct zt_lines *l);

struct zt_example {
    void *json;                   /* owns the bytes */
    const unsigned char *part[2]; /* prompt and completion, or nothing and the text */
    int64_t bytes[2];
    bool text;      /* {"text": ...} */
    bool more_keys; /* the line has keys that are not read */
};
/* Refuses with "path:line: cause". An example is freed with zt_example_free, also a zeroed one. */
int zt_example_parse(const char *path, int64_t line, const char *text, size_t n, int64_t vocab_size,
                     struct zt_example *e, struct zt_error *err);
void zt_example_free(struct zt_example *e);

/* ---- pack.c: rows made of lines ---- */
struct zt_row_start { int64_t byte, line, token; }; /* line: number of the one before */
struct zt_pack {
    const struct zt_sys *sys;
    int fd;
    const char *path;
    int64_t seq_len, vocab_size;
    enum zt_average average;
};
/* Something that was seen n times, and where first: "path:line". */
struct zt_sight { int64_t n; char where[ZT_PATH_MAX + 24]; };
struct zt_pack_count {
    int64_t examples, texts, supervised, padding;
    struct zt_sight cut, no_room, empty_lines, more_keys;
};
struct zt_row_index { struct zt_row_start *row; int64_t n, room; };
/* Where the rows of a file begin; adds to *count. The caller frees index->row, after an error too. */
int zt_pack_index(const struct zt_pack *p, struct zt_row_index *index, struct zt_pack_count *count,
                  struct zt_error *err);
/* The row that begins there. */
int zt_pack_row(const struct zt_pack *p, const struct zt_row_start *start, struct zt_row *row,
                struct zt_error *err);

/* ---- dataset.c ---- */
/* ZT_EDATA when the set has fewer than `need` samples, naming file, what it has and what it needs.
 */
int zt_dataset_need(const struct zt_dataset *d, int64_t need, const char *need_what,
                    struct zt_error *err);
int64_t zt_dataset_seq_len(const struct zt_dataset *d);
bool zt_dataset_has_starts(const struct zt_dataset *d);
bool zt_dataset_has_weights(const struct zt_dataset *d);
#endif
