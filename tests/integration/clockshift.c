/* SPDX-License-Identifier: Apache-2.0 */
/* tests/integration/clockshift.c: preloaded into a daemon, it moves that daemon's wall clock, and only the
 * wall clock, by as many seconds as the eight bytes of the file ZT_CLOCK_SHIFT say at that moment. Without
 * the variable, or when the file cannot be mapped, the process ends: a test must not pass for want of a shift.
 * Any thread. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *seconds;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("ZT_CLOCK_SHIFT");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *p = fd >= 0 ? mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) _exit(99);
    close(fd);
    seconds = p;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *t) {
    long rc = syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && seconds != NULL && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        t->tv_sec += *seconds;
    return (int)rc;
}

__attribute__((visibility("default"))) int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

__attribute__((visibility("default"))) time_t time(time_t *out) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (out != NULL) *out = now.tv_sec;
    return now.tv_sec;
}
