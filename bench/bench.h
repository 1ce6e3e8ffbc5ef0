/* SPDX-License-Identifier: Apache-2.0 */
/* bench/bench.h: what the benchmark programs share: arguments, clock, median, and how busy the rest
 * of the machine was. Each program prints one JSON line and checks its own result before it
 * believes its time. One thread. */
#ifndef ZT_BENCH_H
#define ZT_BENCH_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline double bench_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPU seconds of this process, all threads: hardly moved by what else runs on the machine. */
static inline double bench_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Value of "--name V", else the default. */
static inline const char *bench_text(int argc, char **argv, const char *name,
                                     const char *otherwise) {
    for (int i = 1; i + 1 < argc; i += 2)
        if (strncmp(argv[i], "--", 2) == 0 && strcmp(argv[i] + 2, name) == 0) return argv[i + 1];
    return otherwise;
}

static inline int64_t bench_int(int argc, char **argv, const char *name, int64_t otherwise) {
    const char *s = bench_text(argc, argv, name, NULL);
    char *end = NULL;
    int64_t v = s ? (int64_t)strtoll(s, &end, 10) : otherwise;
    if (s && (end == s || *end || v < 0)) {
        fprintf(stderr, "%s: --%s wants a whole number, not '%s'\n", argv[0], name, s);
        exit(2);
    }
    return v;
}

/* Every argument must be one of the names (space separated): a typing slip must not run the
 * default. */
static inline void bench_check_args(int argc, char **argv, const char *names) {
    for (int i = 1; i < argc; i += 2) {
        char word[64];
        snprintf(word, sizeof word, " %s ", strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "?");
        if (!strstr(names, word) || i + 1 >= argc) {
            fprintf(stderr, "usage: %s [--NAME VALUE]..., names:%s\n", argv[0], names);
            exit(2);
        }
    }
}

static inline int bench_by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts v; v[0] is the least afterwards. */
static inline double bench_median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, bench_by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/* CPU seconds that the whole machine has spent so far, and that this process and its ended children
 * have: the difference of differences is the others' load. */
struct bench_load {
    double at, machine, own;
};

static inline struct bench_load bench_load_now(void) {
    struct bench_load l = {.at = bench_now()};
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    l.own = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    FILE *f = fopen("/proc/stat", "r");
    if (f) {
        unsigned long long v[8] = {0};
        if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3],
                   &v[4], &v[5], &v[6], &v[7]) == 8)
            l.machine =
                (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
        fclose(f);
    }
    return l;
}

/* Cores that others kept busy since `from`. */
static inline double bench_other_load(struct bench_load from) {
    struct bench_load to = bench_load_now();
    double other = (to.machine - from.machine - (to.own - from.own)) / (to.at - from.at);
    return other > 0 ? other : 0;
}

__attribute__((noreturn)) static inline void bench_fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}
#endif
