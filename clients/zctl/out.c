/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/out.c: tables by libsmartcols, JSON by jansson, CSV by hand. */
#include "clients/zctl/out.h"
#include <libsmartcols.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "core/units.h"

/* ---------------------------------------------------------------------------------- escaping */

/* Bytes of the UTF-8 character at s, 0 when it is not one; *code gets its number. */
static size_t utf8_at(const unsigned char *s, size_t n, uint32_t *code) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (len == 0 || len > n)
        return 0;
    uint32_t c = len == 1 ? s[0] : s[0] & (0xFFu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    *code = c;
    return c < least[len] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF) ? 0 : len;
}

/* Characters that a terminal acts on instead of showing them. */
static bool is_active(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200E && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

char *zt_escape(const char *text, size_t n, bool keep_tabs) {
    char *out = malloc(n * 6 + 1), *p = out;
    const unsigned char *s = (const unsigned char *)text;
    if (!out)
        return NULL;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        size_t len = utf8_at(s + i, n - i, &c);
        if (len == 0) {
            p += sprintf(p, "\\%03o", s[i]);
            i++;
            continue;
        }
        if (!is_active(c) || (keep_tabs && c == '\t')) {
            memcpy(p, s + i, len);
            p += len;
        } else if (c < 0x100) {
            p += sprintf(p, "\\%03o", c);
        } else {
            p += sprintf(p, "\\u%04x", c);
        }
        i += len;
    }
    *p = '\0';
    return out;
}

/* ---------------------------------------------------------------------------------- cells */

const json_t *zt_json_at(const json_t *row, const char *path) {
    while (row && *path) {
        size_t n = strcspn(path, ".");
        row = json_object_getn(row, path, n);
        path += n + (path[n] == '.');
    }
    return row && !json_is_null(row) ? row : NULL;
}

const char *zt_row_text(const json_t *row, const char *path) {
    const char *s = json_string_value(zt_json_at(row, path));
    return s ? s : "";
}

int64_t zt_row_int(const json_t *row, const char *path) { return (int64_t)json_integer_value(zt_json_at(row, path)); }

static const char *age(const json_t *v, char *buf, size_t n) {
    struct tm tm = {0};
    char *end = json_is_string(v) ? strptime(json_string_value(v), "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!end) {
        snprintf(buf, n, "-");
        return buf;
    }
    double s = difftime(time(NULL), timegm(&tm));
    if (s < 60)
        snprintf(buf, n, "%.0f s", s < 0 ? 0 : s);
    else
        zt_format_seconds(s, buf, n);
    return buf;
}

static const char *exposed(const json_t *v, char *buf, size_t n) {
    size_t i, used = 0;
    const json_t *e;
    snprintf(buf, n, "-");
    json_array_foreach((json_t *)(uintptr_t)v, i, e) {
        char s[32];
        const char *group = json_string_value(json_object_get(e, "group"));
        const char *kind = json_string_value(json_object_get(e, "kind"));
        double secs = json_number_value(json_object_get(e, "seconds"));
        if (i >= 3 || used >= n)
            break;
        used += (size_t)snprintf(buf + used, n - used, "%s%s/%s %s", i ? ", " : "", group ? group : "?",
                                 kind ? kind : "?", zt_format_seconds(secs, s, sizeof s));
    }
    return buf;
}

const char *zt_cell_text(const json_t *row, const struct zt_column *c, char *buf, size_t n) {
    const json_t *v = zt_json_at(row, c->path);
    double d = json_number_value(v);
    snprintf(buf, n, "-");
    if (!v)
        return buf;
    switch (c->cell) {
    case ZT_CELL_TEXT:
        if (json_is_string(v)) {
            char *e = zt_escape(json_string_value(v), json_string_length(v), false);
            if (e && e[0])
                snprintf(buf, n, "%s", e);
            free(e);
        } else if (json_is_integer(v))
            snprintf(buf, n, "%lld", (long long)json_integer_value(v));
        else if (json_is_boolean(v))
            snprintf(buf, n, "%s", json_is_true(v) ? "yes" : "no");
        break;
    case ZT_CELL_NUMBER: /* or a word in its place, e.g. infinite */
        if (json_is_string(v))
            snprintf(buf, n, "%s", json_string_value(v));
        else
            snprintf(buf, n, "%.*g", c->digits, d);
        break;
    case ZT_CELL_FIXED: snprintf(buf, n, "%.*f", c->digits, d); break;
    case ZT_CELL_COUNT: zt_format_count((int64_t)llround(d), buf, n); break;
    case ZT_CELL_BYTES: zt_format_bytes(d, buf, n); break;
    case ZT_CELL_SECONDS: zt_format_seconds(d, buf, n); break;
    case ZT_CELL_SHARE: snprintf(buf, n, "%.1f %%", 100 * d); break;
    case ZT_CELL_AGE: age(v, buf, n); break;
    case ZT_CELL_EXPOSED: exposed(v, buf, n); break;
    }
    return buf;
}

/* ---------------------------------------------------------------------------------- tables */

#define SEPARATOR "  "
#define CELL_MAX 512
#define LEAST_ROOM 16 /* columns that a text is wrapped into, at least */

static bool is_right(const struct zt_column *c) { return c->cell != ZT_CELL_TEXT && c->cell != ZT_CELL_EXPOSED; }

static size_t width_of(const json_t *rows, const struct zt_column *c) {
    size_t i, most = strlen(c->header);
    const json_t *row;
    char text[CELL_MAX];
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        size_t n = strlen(zt_cell_text(row, c, text, sizeof text));
        most = n > most ? n : most;
    }
    return most;
}

/* What a terminal has left for the last column, a text; SIZE_MAX: as much as it needs. */
static size_t room_for_last(FILE *out, const json_t *rows, const struct zt_column *columns, int n) {
    struct winsize w = {0};
    size_t used = 0;
    if (n == 0 || is_right(&columns[n - 1]) || ioctl(fileno(out), TIOCGWINSZ, &w) != 0 || w.ws_col == 0)
        return SIZE_MAX;
    for (int c = 0; c + 1 < n; c++)
        used += width_of(rows, &columns[c]) + strlen(SEPARATOR);
    return used + LEAST_ROOM > w.ws_col ? SIZE_MAX : w.ws_col - used;
}

/* Bytes of text that go into a line of `room`: whole words, one at least. */
static size_t part_of(const char *text, size_t room) {
    size_t n = strlen(text), at = room;
    if (n <= room)
        return n;
    while (at > 0 && text[at] != ' ')
        at--;
    return at > 0 ? at : strcspn(text, " ");
}

/* A row, and lines with nothing but the rest of its last cell. */
static int add_row(struct libscols_table *t, const json_t *row, const struct zt_column *columns, int n, size_t room) {
    char text[CELL_MAX];
    struct libscols_line *line = scols_table_new_line(t, NULL);
    for (int c = 0; c + 1 < n; c++)
        if (!line || scols_line_set_data(line, (size_t)c, zt_cell_text(row, &columns[c], text, sizeof text)))
            return ZT_ENOMEM;
    char *rest = (char *)(uintptr_t)zt_cell_text(row, &columns[n - 1], text, sizeof text);
    for (;;) {
        size_t part = part_of(rest, room);
        bool more = rest[part] != '\0';
        rest[part] = '\0';
        if (!line || scols_line_set_data(line, (size_t)n - 1, rest))
            return ZT_ENOMEM;
        if (!more)
            return 0;
        rest += part + 1;
        line = scols_table_new_line(t, NULL);
    }
}

static int fill_table(FILE *out, struct libscols_table *t, const json_t *rows, const struct zt_column *columns) {
    size_t i;
    const json_t *row;
    int n = 0, rc = 0;
    for (; columns[n].header; n++)
        if (!scols_table_new_column(t, columns[n].header, 0, is_right(&columns[n]) ? SCOLS_FL_RIGHT : 0))
            return ZT_ENOMEM;
    const size_t room = room_for_last(out, rows, columns, n);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row)
        if (rc == 0)
            rc = add_row(t, row, columns, n, room);
    return rc;
}

int zt_print_table(FILE *out, const json_t *rows, const struct zt_column *columns, struct zt_error *err) {
    struct libscols_table *t = scols_new_table();
    int rc = t ? 0 : ZT_ENOMEM;
    if (rc == 0) {
        scols_table_set_stream(t, out);
        scols_table_enable_noencoding(t, 1); /* cells are escaped already */
        scols_table_set_column_separator(t, SEPARATOR);
        scols_table_set_termforce(t, SCOLS_TERMFORCE_NEVER); /* nothing is cut at a terminal's width */
        rc = fill_table(out, t, rows, columns);
    }
    if (rc == 0 && scols_print_table(t) < 0)
        rc = ZT_EIO;
    scols_unref_table(t);
    return rc ? zt_fail(err, rc, "cannot print the table") : 0;
}

/* ---------------------------------------------------------------------------------- JSON, CSV */

static bool is_terminal(FILE *out) { return isatty(fileno(out)) == 1; }

static void print_json(FILE *out, const json_t *o, size_t flags) {
    json_dumpf(o, out, flags | (is_terminal(out) ? JSON_ENSURE_ASCII : 0));
    fputc('\n', out);
}

void zt_print_json_line(FILE *out, const json_t *row) { print_json(out, row, JSON_COMPACT); }

void zt_print_json(FILE *out, const json_t *o) { print_json(out, o, JSON_INDENT(2)); }

static void csv_text(FILE *out, const char *s) {
    if (!s[strcspn(s, ",\"\r\n")]) {
        fputs(s, out);
        return;
    }
    fputc('"', out);
    for (; *s; s++) {
        if (*s == '"')
            fputc('"', out);
        fputc(*s, out);
    }
    fputc('"', out);
}

static void csv_field(FILE *out, const char *s) {
    char *safe = is_terminal(out) ? zt_escape(s, strlen(s), true) : NULL;
    csv_text(out, safe ? safe : s);
    free(safe);
}

static void csv_value(FILE *out, const json_t *v) {
    if (json_is_string(v))
        csv_field(out, json_string_value(v));
    else if (v && !json_is_null(v)) {
        char *s = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
        csv_field(out, s ? s : "");
        free(s);
    }
}

/* One line in the order of `shape` (the first row): its names, or the values of `row`. */
static void csv_line(FILE *out, const json_t *shape, const json_t *row, const char *prefix, bool names,
                     bool *first) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)shape, key, v) {
        char path[160];
        const json_t *mine = row ? json_object_get(row, key) : NULL;
        snprintf(path, sizeof path, "%s%s", prefix, key);
        if (json_is_object(v) && json_object_size(v) > 0) {
            strncat(path, ".", sizeof path - strlen(path) - 1);
            csv_line(out, v, mine, path, names, first);
            continue;
        }
        if (!*first)
            fputc(',', out);
        *first = false;
        if (names)
            csv_field(out, path);
        else
            csv_value(out, mine);
    }
}

void zt_print_csv(FILE *out, const json_t *rows) {
    const json_t *shape = json_array_get(rows, 0);
    size_t i;
    const json_t *row;
    bool first = true;
    if (!shape)
        return;
    csv_line(out, shape, NULL, "", true, &first);
    fputc('\n', out);
    json_array_foreach((json_t *)(uintptr_t)rows, i, row) {
        first = true;
        csv_line(out, shape, row, "", false, &first);
        fputc('\n', out);
    }
}

int zt_print_rows(FILE *out, const struct zt_options *o, const json_t *json, const json_t *rows,
                  const struct zt_column *columns, struct zt_error *err) {
    size_t i;
    const json_t *row;
    switch (o->format) {
    case ZT_FORMAT_TABLE: return zt_print_table(out, rows, columns, err);
    case ZT_FORMAT_JSON:
        zt_print_json(out, json);
        break;
    case ZT_FORMAT_JSONL:
        json_array_foreach((json_t *)(uintptr_t)rows, i, row) zt_print_json_line(out, row);
        break;
    case ZT_FORMAT_CSV: zt_print_csv(out, rows); break;
    }
    return ferror(out) ? zt_fail(err, ZT_EIO, "cannot write the output") : 0;
}

/* ---------------------------------------------------------------------------------- colour */

bool zt_color_on(const struct zt_options *o, FILE *out) {
    const char *no = getenv("NO_COLOR");
    if (o->color == ZT_COLOR_ALWAYS || o->color == ZT_COLOR_NEVER)
        return o->color == ZT_COLOR_ALWAYS;
    return isatty(fileno(out)) && !(no && no[0]);
}

const char *zt_state_color(const char *state, bool on) {
    if (!on)
        return "";
    if (strcmp(state, "SUCCEEDED") == 0 || strcmp(state, "RUNNING") == 0)
        return "\033[32m";
    if (strcmp(state, "FAILED") == 0)
        return "\033[31m";
    return "\033[33m";
}
