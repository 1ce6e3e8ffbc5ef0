/* SPDX-License-Identifier: Apache-2.0 */
/* ZT_FAIL's actions, each in a child process (the variable is read once per process). Built with
 * failpoints whatever the build option says. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/sys.h"

/* Child: hits "a" up to 5 times and leaves with the number of hits that reported an error. */
static int child(const char *fail, int options) {
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        setenv("ZT_FAIL", fail, 1);
        fclose(stderr);
        int errors = 0;
        for (int i = 0; i < 5; i++) {
            errors += ZT_FAILPOINT("a") != 0;
            errors += 10 * (ZT_FAILPOINT("unnamed") != 0);
        }
        _exit(errors);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, options), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGCONT);
        int end;
        cr_assert_eq(waitpid(pid, &end, 0), pid);
        cr_assert(WIFEXITED(end) && WEXITSTATUS(end) == 0);
    }
    return status;
}

static void expect_exit(const char *fail, int code) {
    int st = child(fail, 0);
    cr_assert(WIFEXITED(st), "%s", fail);
    cr_assert_eq(WEXITSTATUS(st), code, "%s: %d", fail, WEXITSTATUS(st));
}

Test(failpoint, actions) {
    expect_exit("", 0);
    expect_exit("b:kill", 0);
    expect_exit("a:error", 5);
    expect_exit("a:nth=2:error", 1);
    expect_exit("a:nth=6:kill", 0);
    expect_exit("a:exit=7", 7);
    expect_exit("b:kill,a:nth=5:exit=9", 9);
    expect_exit("a:nth=1:error,a:nth=3:error", 2);
    expect_exit("a:sleep=1", 0);
    int st = child("a:nth=3:kill", 0);
    cr_assert(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
    st = child("a:nth=3:stop", WUNTRACED);
    cr_assert(WIFSTOPPED(st) && WSTOPSIG(st) == SIGSTOP);
}

Test(failpoint, once_among_processes) {
    char dir[] = "/tmp/zt-failpoint-XXXXXX", file[64];
    cr_assert(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/done", dir);
    setenv("ZT_FAIL_ONCE", file, 1);
    expect_exit("a:nth=3:error", 1);
    cr_expect_eq(access(file, F_OK), 0);
    expect_exit("a:nth=3:error", 0);
    expect_exit("a:exit=7", 0);
    unlink(file);
    expect_exit("a:exit=7", 7);
    unsetenv("ZT_FAIL_ONCE");
    unlink(file);
    rmdir(dir);
}

Test(failpoint, malformed_ends_the_process) {
    static const char *const bad[] = {
        "a",        "a:",           ":kill",   "a:explode",  "a:exit=",
        "a:exit=x", "a:nth=0:kill", "a:nth=2", "a:sleep=-1", "b:error,a:killl"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) expect_exit(bad[i], 2);
}
