/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/out.h: what zctl prints. Rows are JSON objects; one list of rows is printed as a table,
 * JSON, JSON lines or CSV. Text from elsewhere (logs, names, messages) is escaped for terminals: no
 * byte of it can move a cursor or change a title. One thread. */
#ifndef ZT_ZCTL_OUT_H
#define ZT_ZCTL_OUT_H
#include <jansson.h>
#include "clients/zctl/options.h"

/* Control characters, broken UTF-8 and direction marks as \033 or \u202e; malloc'ed. keep_tabs: a tab
 * stays. n bytes may hold NUL. NULL: no memory. */
char *zt_escape(const char *text, size_t n, bool keep_tabs);

enum zt_cell {
    ZT_CELL_TEXT,     /* as it is */
    ZT_CELL_NUMBER,   /* %.*g, digits from `digits` */
    ZT_CELL_FIXED,    /* %.*f */
    ZT_CELL_COUNT,    /* 1,234,567 */
    ZT_CELL_BYTES,    /* 12.34 MiB */
    ZT_CELL_SECONDS,  /* 1.23 ms */
    ZT_CELL_SHARE,    /* 0.078 -> 7.8 % */
    ZT_CELL_AGE,      /* a time stamp's distance from now */
    ZT_CELL_EXPOSED,  /* exposed_by: the largest entries */
};
struct zt_column { const char *header, *path; enum zt_cell cell; int digits; };

/* A value by its dotted path; NULL or JSON null: not there. */
const json_t *zt_json_at(const json_t *row, const char *path);
/* A text or a whole number by its dotted path; "" and 0 when it is not there. */
const char *zt_row_text(const json_t *row, const char *path);
int64_t zt_row_int(const json_t *row, const char *path);
/* Text of one cell, "-" when there is no value. */
const char *zt_cell_text(const json_t *row, const struct zt_column *c, char *buf, size_t n);

/* Prints rows (a JSON array) in the format asked for. json: the object that is printed for -o json.
 * columns end with a NULL header. Borrows everything. */
int zt_print_rows(FILE *out, const struct zt_options *o, const json_t *json, const json_t *rows,
                  const struct zt_column *columns, struct zt_error *err);
int zt_print_table(FILE *out, const json_t *rows, const struct zt_column *columns, struct zt_error *err);
/* JSON in one line, or indented. A terminal gets \u escapes for all that is not ASCII, as the characters
 * it acts on are among them; files and pipes get the text as it is. The same holds for CSV. */
void zt_print_json_line(FILE *out, const json_t *row);
void zt_print_json(FILE *out, const json_t *o);
/* Nested objects become a.b columns; the header is that of the first row. */
void zt_print_csv(FILE *out, const json_t *rows);

bool zt_color_on(const struct zt_options *o, FILE *out);
/* Escape sequence for a run state or "" without colour. */
const char *zt_state_color(const char *state, bool on);
#define ZT_COLOR_RESET(on) ((on) ? "\033[0m" : "")

#endif
