/* SPDX-License-Identifier: Apache-2.0 */
/* The store's threads under load: the loop submits while the writer commits and readers query. A plain main, so
 * that ThreadSanitizer can watch it. Exits 0 when every row that was acknowledged is there. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/query_internal.h"
#include "coordinator/store.h"

#define BATCHES 400
#define MUST(e)                                                                                             \
    do {                                                                                                    \
        if (!(e)) {                                                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #e);                                         \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

static char dir[] = "/tmp/zt-threads-XXXXXX";
static atomic_bool over;
static int acked, answered;

static void on_commit(void *arg, const struct zt_commit *c)
{
    (void)arg;
    acked += c->code == 0;
    answered++;
}

static void *reader(void *arg)
{
    struct zt_error err;
    sqlite3 *db = NULL;
    int *reads = arg;
    MUST(zt_query_open(dir, &db, &err) == 0);
    while (!atomic_load(&over)) {
        Zt__Envelope req = ZT__ENVELOPE__INIT, *reply = NULL;
        Zt__GetEvents get = ZT__GET_EVENTS__INIT;
        req.body_case = ZT__ENVELOPE__BODY_GET_EVENTS;
        req.get_events = &get;
        MUST(zt_query(db, &req, &reply, &err) == 0);
        zt_query_free(reply);
        ++*reads;
    }
    sqlite3_close(db);
    return NULL;
}

static void tick(uv_timer_t *t) { (void)t; }

int main(void)
{
    uv_loop_t loop;
    uv_timer_t guard;
    struct zt_store *s;
    struct zt_error err;
    pthread_t thread[2];
    int reads[2] = { 0, 0 }, submitted = 0;
    MUST(mkdtemp(dir) != NULL);
    uv_loop_init(&loop);
    uv_timer_init(&loop, &guard);
    uv_timer_start(&guard, tick, 1, 1);
    MUST(zt_store_open(&(struct zt_store_config){ .state_dir = dir, .loop = &loop, .commit_ms = 2 }, &s, &err) == 0);
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&thread[i], NULL, reader, &reads[i]) == 0);
    for (int turn = 0; turn < 100000 && answered < BATCHES; turn++) {
        for (int i = 0; i < 5 && submitted < BATCHES; i++, submitted++) {
            struct zt_batch *b = zt_batch_new();
            struct zt_row_event e = { .kind = "T", .rank = submitted };
            zt_batch_event(b, &e, -1);
            MUST(zt_store_submit(s, b, submitted % 7 ? ZT_HURRY_NO : ZT_HURRY_YES, submitted % 3 == 0, on_commit, NULL, &err) == 0);
        }
        uv_run(&loop, UV_RUN_ONCE);
    }
    MUST(acked == BATCHES && answered == BATCHES);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    MUST(reads[0] > 0 && reads[1] > 0);
    uv_close((uv_handle_t *)&guard, NULL);
    zt_store_close(s, 1, NULL, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    MUST(uv_loop_close(&loop) == 0);
    sqlite3 *db;
    sqlite3_int64 n = 0;
    MUST(zt_query_open(dir, &db, &err) == 0 && zt_db_int(db, "SELECT count(DISTINCT rank) FROM events", 0, &n, &err) == 0);
    MUST(n == BATCHES);
    sqlite3_close(db);
    char path[64];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "lock" : ZT_DB_NAME);
        remove(path);
    }
    remove(dir);
    printf("%d batches acknowledged, %d and %d reads meanwhile\n", acked, reads[0], reads[1]);
    return 0;
}
