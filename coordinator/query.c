/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/query_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "coordinator/migrate.h"

/* ------------------------------------------------------------------------------ opening */
static int open_at(const char *uri, sqlite3 **db)
{
    int rc = sqlite3_open_v2(uri, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI, NULL);
    if (rc == SQLITE_OK) {
        sqlite3_busy_timeout(*db, 5000);
        rc = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL);
    }
    return rc;
}

/* Percent-encodes what has a meaning in an SQLite URI. */
static bool to_uri(const char *path, const char *query, char *out, size_t n)
{
    size_t k = (size_t)snprintf(out, n, "file:");
    for (const char *p = path; *p; p++) {
        if (k + 4 >= n)
            return false;
        if (*p == '%' || *p == '?' || *p == '#')
            k += (size_t)snprintf(out + k, n - k, "%%%02X", (unsigned)(unsigned char)*p);
        else
            out[k++] = *p;
    }
    return (size_t)snprintf(out + k, n - k, "%s", query) < n - k;
}

int zt_query_open(const char *state_dir, sqlite3 **db, struct zt_error *err)
{
    char path[1100], uri[3400];
    struct stat st;
    *db = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", state_dir, ZT_DB_NAME) >= sizeof path ||
        !to_uri(path, "", uri, sizeof uri))
        return zt_fail(err, ZT_EINVAL, "%s: the path of the state folder is too long", state_dir);
    if (stat(path, &st))
        return zt_fail(err, ZT_ENOTFOUND, "no database in %s: no coordinator has used this state folder yet", state_dir);
    int rc = open_at(uri, db);
    if ((rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_READONLY) {
        /* A folder we may not write cannot hold the shared index of the WAL: read the file as it lies. */
        sqlite3_close(*db);
        to_uri(path, "?immutable=1", uri, sizeof uri);
        rc = open_at(uri, db);
    }
    sqlite3_int64 version = 0, id = 0;
    if (rc != SQLITE_OK || zt_db_int(*db, "PRAGMA user_version", 0, &version, err) ||
        zt_db_int(*db, "PRAGMA application_id", 0, &id, err)) {
        zt_fail(err, ZT_EIO, "cannot read %s: %s", path, *db ? sqlite3_errmsg(*db) : "out of memory");
    } else if (id != ZT_DB_APPLICATION_ID) {
        zt_fail(err, ZT_ECONFLICT, "%s is not a ztrain database", path);
    } else if (version != zt_n_migrations) {
        zt_fail(err, ZT_EVERSION, "%s has schema %d, this program (%s) reads %d: %s", path, (int)version, ZT_VERSION,
                zt_n_migrations, version > zt_n_migrations ? "use the newer program" : "run `zcoord migrate` first");
    } else {
        return 0;
    }
    sqlite3_close(*db);
    *db = NULL;
    return err->code;
}

/* ------------------------------------------------------------------------------ building replies */
void q_open(struct query *q, sqlite3 *db, const char *sql, struct zt_error *err)
{
    *q = (struct query){ .db = db, .err = err };
    if (sqlite3_prepare_v2(db, sql, -1, &q->s, NULL))
        q->code = zt_db_fail(err, db, "query");
}

void q_text(struct query *q, int i, const char *v)
{
    if (!q->code)
        sqlite3_bind_text(q->s, i, v, -1, SQLITE_TRANSIENT);
}

void q_int(struct query *q, int i, int64_t v)
{
    if (!q->code)
        sqlite3_bind_int64(q->s, i, v);
}

bool q_row(struct query *q)
{
    if (q->code || q->oom)
        return false;
    int rc = sqlite3_step(q->s);
    if (rc == SQLITE_ROW)
        return true;
    if (rc != SQLITE_DONE)
        q->code = zt_db_fail(q->err, q->db, "query");
    return false;
}

int q_close(struct query *q)
{
    sqlite3_finalize(q->s);
    q->s = NULL;
    if (!q->code && q->oom)
        q->code = zt_fail(q->err, ZT_ENOMEM, "out of memory for a reply");
    return q->code;
}

void *q_new(struct query *q, const ProtobufCMessageDescriptor *type)
{
    void *p = calloc(1, type->sizeof_message);
    if (p)
        protobuf_c_message_init(type, p);
    else
        q->oom = true;
    return p;
}

char *q_copy(struct query *q, const char *text)
{
    char *p = strdup(text);
    if (!p)
        q->oom = true;
    return p;
}

char *q_string(struct query *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q->s, column);
    return q_copy(q, t ? t : "");
}

char *q_string_or_null(struct query *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q->s, column);
    return t && t[0] ? q_copy(q, t) : NULL;
}

ProtobufCBinaryData q_blob(struct query *q, int column)
{
    ProtobufCBinaryData d = { 0, NULL };
    const void *from = sqlite3_column_blob(q->s, column);
    size_t n = (size_t)sqlite3_column_bytes(q->s, column);
    d.data = malloc(n ? n : 1);
    if (!d.data) {
        q->oom = true;
        return d;
    }
    if (n)
        memcpy(d.data, from, n);
    d.len = n;
    return d;
}

bool q_has(struct query *q, int column) { return sqlite3_column_type(q->s, column) != SQLITE_NULL; }

bool q_push(struct query *q, void ***list, size_t *n, void *item)
{
    if (!item || q->oom)
        return false;
    if ((*n & (*n - 1)) == 0) { /* full at every power of two */
        void **more = realloc(*list, (*n ? *n * 2 : 1) * sizeof *more);
        if (!more) {
            q->oom = true;
            return false;
        }
        *list = more;
    }
    (*list)[(*n)++] = item;
    return true;
}

/* ------------------------------------------------------------------------------ which run */
static void read_ref(struct query *q, struct zt_run_ref *ref)
{
    snprintf(ref->run_id, sizeof ref->run_id, "%s", (const char *)sqlite3_column_text(q->s, 0));
    snprintf(ref->name, sizeof ref->name, "%s", (const char *)sqlite3_column_text(q->s, 1));
    ref->state = (enum zt_run_state)sqlite3_column_int(q->s, 2);
    ref->generation = (uint32_t)sqlite3_column_int64(q->s, 3);
    ref->replicate = sqlite3_column_int(q->s, 4);
    ref->shard = sqlite3_column_int(q->s, 5);
    ref->tensor = sqlite3_column_int(q->s, 6);
}

static int distance(const char *a, const char *b)
{
    int row[ZT_RUN_NAME_MAX + 2];
    int n = (int)strnlen(b, ZT_RUN_NAME_MAX);
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1] && i <= ZT_RUN_NAME_MAX; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = change < least ? change : least;
        }
    }
    return row[n];
}

/* "no run X", with the name that is nearest to it among the newest, so that a typing error explains itself. */
static int not_found(sqlite3 *db, const char *text, struct zt_error *err)
{
    struct query q;
    char best[ZT_RUN_NAME_MAX + 1] = "";
    int least = (int)strlen(text) / 2 + 1;
    q_open(&q, db, "SELECT name FROM runs GROUP BY name ORDER BY max(place) DESC LIMIT 500", err);
    while (q_row(&q)) {
        const char *name = (const char *)sqlite3_column_text(q.s, 0);
        int d = distance(text, name);
        if (d < least) {
            least = d;
            snprintf(best, sizeof best, "%s", name);
        }
    }
    if (q_close(&q))
        return q.code;
    if (best[0])
        return zt_fail(err, ZT_ENOTFOUND, "no run \"%.80s\"; did you mean \"%s\"? `zctl list` shows all", text, best);
    return zt_fail(err, ZT_ENOTFOUND, "no run \"%.80s\"; `zctl list` shows all", text);
}

static int by_prefix(sqlite3 *db, const char *text, struct zt_run_ref *ref, int *matches, struct zt_error *err)
{
    struct query q;
    struct zt_run_ref other;
    char low[ZT_RUN_ID_MAX + 1], high[ZT_RUN_ID_MAX + 2];
    *matches = 0;
    size_t n = strlen(text);
    if (n == 0 || n > ZT_RUN_ID_MAX)
        return 0;
    for (size_t i = 0; i <= n; i++)
        low[i] = text[i] >= 'a' && text[i] <= 'z' ? (char)(text[i] - 'a' + 'A') : text[i];
    snprintf(high, sizeof high, "%s~", low); /* after every letter and digit */
    q_open(&q, db, "SELECT run_id, name, state, generation, replicate, shard, tensor FROM runs"
                   " WHERE run_id >= ?1 AND run_id < ?2 LIMIT 2", err);
    q_text(&q, 1, low);
    q_text(&q, 2, high);
    while (q_row(&q)) {
        read_ref(&q, *matches ? &other : ref);
        ++*matches;
    }
    if (q_close(&q))
        return q.code;
    if (*matches > 1)
        return zt_fail(err, ZT_EINVAL, "\"%s\" is the beginning of more than one run (%s, %s, ...): give more of the id",
                       text, ref->run_id, other.run_id);
    return 0;
}

int zt_query_resolve(sqlite3 *db, const char *text, struct zt_run_ref *ref, struct zt_error *err)
{
    struct query q;
    bool latest = strcmp(text, "@latest") == 0, found;
    q_open(&q, db, latest ? "SELECT run_id, name, state, generation, replicate, shard, tensor FROM runs"
                            " ORDER BY place DESC LIMIT 1"
                          : "SELECT run_id, name, state, generation, replicate, shard, tensor FROM runs"
                            " WHERE run_id = ?1 OR name = ?1 ORDER BY run_id = ?1 DESC, place DESC LIMIT 1", err);
    if (!latest)
        q_text(&q, 1, text);
    found = q_row(&q);
    if (found)
        read_ref(&q, ref);
    if (q_close(&q))
        return q.code;
    if (found)
        return 0;
    if (latest)
        return zt_fail(err, ZT_ENOTFOUND, "no run has been submitted yet");
    int matches = 0;
    if (by_prefix(db, text, ref, &matches, err))
        return err->code;
    return matches ? 0 : not_found(db, text, err);
}

/* ------------------------------------------------------------------------------ requests */
static int answer(sqlite3 *db, const Zt__Envelope *req, Zt__Envelope *reply, struct zt_error *err)
{
    switch (req->body_case) {
    case ZT__ENVELOPE__BODY_LIST_RUNS: return zt_query_list_runs(db, req->list_runs, reply, err);
    case ZT__ENVELOPE__BODY_GET_RUN: return zt_query_get_run(db, req->get_run, reply, err);
    case ZT__ENVELOPE__BODY_GET_METRICS: return zt_query_metrics(db, req->get_metrics, reply, err);
    case ZT__ENVELOPE__BODY_GET_MEMORY: return zt_query_memory(db, req->get_memory, reply, err);
    case ZT__ENVELOPE__BODY_GET_LOGS: return zt_query_logs(db, req->get_logs, reply, err);
    case ZT__ENVELOPE__BODY_GET_EVENTS: return zt_query_events(db, req->get_events, reply, err);
    case ZT__ENVELOPE__BODY_GET_DTYPES: return zt_query_dtypes(db, req->get_dtypes, reply, err);
    case ZT__ENVELOPE__BODY_LIST_CHECKPOINTS: return zt_query_checkpoints(db, req->list_checkpoints, reply, err);
    case ZT__ENVELOPE__BODY_GET_TRACE: return zt_query_trace(db, req->get_trace, reply, err);
    case ZT__ENVELOPE__BODY_LIST_WORKERS: return zt_query_workers(db, reply, err);
    case ZT__ENVELOPE__BODY_GET_STATUS: return zt_query_status(db, reply, err);
    default: return zt_fail(err, ZT_EUNSUPPORTED, "this request cannot be answered from the database alone: it needs a "
                            "running coordinator");
    }
}

int zt_query(sqlite3 *db, const Zt__Envelope *req, Zt__Envelope **reply, struct zt_error *err)
{
    Zt__Envelope *e = calloc(1, sizeof *e);
    *reply = NULL;
    if (!e)
        return zt_fail(err, ZT_ENOMEM, "out of memory");
    zt__envelope__init(e);
    e->has_reply = 1;
    e->reply = 1;
    /* one snapshot for all statements of a reply */
    int code = zt_db_exec(db, "BEGIN", err);
    if (!code) {
        code = answer(db, req, e, err);
        sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    }
    if (code) {
        zt_query_free(e);
        return code;
    }
    *reply = e;
    return 0;
}

void zt_query_free(Zt__Envelope *reply)
{
    if (reply)
        zt__envelope__free_unpacked(reply, NULL);
}
