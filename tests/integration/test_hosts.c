/* SPDX-License-Identifier: Apache-2.0 */
/* Workers of two hosts: host-a at 127.0.0.2 and host-b at 127.0.0.3, two of each, real daemons. What they
 * train has the same bits as on one host; a worker that dies on the other host is replaced like any. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "tests/integration/harness.h"

#define WORLD 4

static const char *const where[WORLD] = {"--host host-a --address 127.0.0.2", "--host host-b --address 127.0.0.3",
                                         "--host host-a --address 127.0.0.2", "--host host-b --address 127.0.0.3"};

static bool all_idle(void *arg) {
    struct cluster *c = arg;
    json_t *j = zctl_json(c, "workers"), *w;
    size_t i;
    int idle = 0;
    json_array_foreach(json_object_get(j, "workers"), i, w)
        idle += strcmp(json_string_value(json_object_get(w, "state")), "IDLE") == 0;
    json_decref(j);
    return idle == WORLD;
}

static void start(struct cluster *c, bool two_hosts) {
    cluster_init(c);
    cluster_start_coord(c);
    for (int i = 0; i < WORLD; i++) cluster_start_worker(c, i, two_hosts ? where[i] : NULL);
    wait_for(all_idle, c, 60, "idle workers");
}

static void submit(struct cluster *c, const char *name, int steps, const char *set) {
    char file[512];
    snprintf(file, sizeof file, "%s", cluster_run_file(c, name, steps, WORLD, ""));
    struct output o = zctl(c, 30, "submit %s%s%s", file, set[0] ? " " : "", set);
    cr_assert_eq(o.code, 0, "%s", o.err);
    output_free(&o);
}

static int64_t outcome(struct cluster *c, const char *name, char hash[40]) {
    wait_run(c, name, "SUCCEEDED", 180);
    json_t *s = zctl_json(c, "status %s", name);
    const char *h = json_string_value(json_object_get(s, "parameter_hash"));
    cr_assert(h && strlen(h) == 32);
    snprintf(hash, 40, "%s", h);
    int64_t generation = json_integer_value(json_object_get(s, "generation"));
    json_decref(s);
    return generation;
}

/* Connections between 127.0.0.2 and 127.0.0.3, as the kernel lists them (bytes of an address reversed). */
static int links(void) {
    char line[512], local[16], remote[16];
    unsigned state;
    int n = 0;
    FILE *f = fopen("/proc/net/tcp", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, " %*d: %8[0-9A-F]:%*x %8[0-9A-F]:%*x %x", local, remote, &state) == 3)
            n += state == 1 && !strcmp(local, "0200007F") && !strcmp(remote, "0300007F");
    if (f) fclose(f);
    return n;
}

struct variant { const char *name, *set; };
static const struct variant variants[] = {
    {"ddp", ""},
    {"fsdp", "--set parallelism.mode=fsdp --set parallelism.data_parallel_shard_degree=4"},
    {"hsdp", "--set parallelism.mode=zero3 --set parallelism.data_parallel_shard_degree=2 "
             "--set parallelism.data_parallel_replicate_degree=2"}, /* a shard group is on one host */
};
enum { VARIANTS = sizeof variants / sizeof *variants };
static char hash_of[VARIANTS][40];

static void check_workers(struct cluster *c) {
    json_t *j = zctl_json(c, "workers"), *list = json_object_get(j, "workers"), *w;
    size_t i;
    int b = 0;
    cr_assert_eq(json_array_size(list), WORLD);
    json_array_foreach(list, i, w) {
        bool is_b = strcmp(json_string_value(json_object_get(w, "host")), "host-b") == 0;
        cr_expect_str_eq(json_string_value(json_object_get(w, "address")), is_b ? "127.0.0.3" : "127.0.0.2");
        b += is_b;
    }
    cr_expect_eq(b, 2);
    json_decref(j);
}

static void kill_trainer(struct cluster *c) {
    pid_t child = trainer_of(c->worker[1]);
    if (child > 0) kill(child, SIGKILL);
}

static void kill_worker(struct cluster *c) {
    kill(c->worker[3], SIGKILL);
    cluster_start_worker(c, 3, where[3]);
}

/* A run is hurt after its first step and comes to the same bits in its second generation. On a busy machine a run
 * can be over before it is hurt: then another one is. */
static void hurt(struct cluster *c, const char *what, void (*how)(struct cluster *c), char name[32]) {
    char hash[40];
    int64_t generation = 1;
    for (int i = 0; i < 10 && generation == 1; i++) {
        snprintf(name, 32, "%s%d", what, i);
        submit(c, name, 60, variants[0].set);
        wait_step(c, name, 1, 60);
        how(c);
        generation = outcome(c, name, hash);
        cr_expect_str_eq(hash, hash_of[0], "%s", name);
        wait_for(all_idle, c, 30, "idle workers");
    }
    cr_assert_eq(generation, 2, "%s", name);
}

Test(hosts, same_bits_and_recovery) {
    struct cluster c;
    char hash[40];
    start(&c, false);
    for (int v = 0; v < VARIANTS; v++) {
        submit(&c, variants[v].name, 60, variants[v].set);
        cr_assert_eq(outcome(&c, variants[v].name, hash_of[v]), 1);
        wait_for(all_idle, &c, 30, "idle workers");
    }
    json_t *j = zctl_json(&c, "workers");
    cr_expect_str_eq(json_string_value(json_object_get(json_array_get(json_object_get(j, "workers"), 0), "address")),
                     "127.0.0.1", "by default this end of the connection to the coordinator");
    json_decref(j);
    cluster_stop(&c);

    start(&c, true);
    check_workers(&c);
    for (int v = 0; v < VARIANTS; v++) {
        submit(&c, variants[v].name, 60, variants[v].set);
        wait_step(&c, variants[v].name, 1, 60);
        cr_expect_geq(links(), 4, "%d connections", links()); /* of 2 x 2 pairs */
        cr_assert_eq(outcome(&c, variants[v].name, hash), 1);
        cr_expect_str_eq(hash, hash_of[v], "%s", variants[v].name);
        wait_for(all_idle, &c, 30, "idle workers");
    }
    /* a trainer of the other host is killed, then a whole worker, which comes back */
    char name[32];
    hurt(&c, "trainer", kill_trainer, name);
    hurt(&c, "worker", kill_worker, name);
    json_t *s = zctl_json(&c, "status %s", name);
    json_t *a = json_array_get(json_object_get(s, "attempts"), 0);
    cr_expect_str_eq(json_string_value(json_object_get(a, "reason")), "WORKER_LOST");
    json_decref(s);
    cluster_stop(&c);
}
