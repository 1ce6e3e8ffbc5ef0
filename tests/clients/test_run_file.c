/* SPDX-License-Identifier: Apache-2.0 */
/* Run files as zctl reads them: data paths are made absolute against the file's folder, overrides keep
 * their order, and the submit request carries it all. Children: started, restarted, stopped, seen. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clients/zctl/children.h"
#include "clients/zctl/cmd.h"

static char dir[256];
static struct zt_run_file f;
static struct zt_error err;

static void make_dir(void) {
    snprintf(dir, sizeof dir, "/tmp/zctl-test-XXXXXX");
    cr_assert(mkdtemp(dir));
}

static void remove_dir(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    cr_assert_eq(system(command), 0);
}

static const char *write_file(const char *name, const char *text) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *o = fopen(path, "w");
    cr_assert(o);
    fputs(text, o);
    fclose(o);
    return path;
}

#define TEXT(data)                                                                                 \
    "version: 1\nname: n\nmodel: {preset: gpt2-nano}\ndataset: {path: " data "}\n"                 \
    "validation: {path: val.bin}\ntraining: {steps: 5, seq_len: 8, local_batch_size: 1}\n"

Test(run_file, relative_paths_become_absolute) {
    make_dir();
    struct zt_options o = {.subject = write_file("run.yaml", TEXT("train-*.bin"))};
    char want[512];
    cr_assert_eq(zt_run_file_load(&o, &f, &err), 0, "%s", err.msg);
    snprintf(want, sizeof want, "%s/train-*.bin", dir);
    cr_assert_str_eq(f.spec.dataset.path, want);
    snprintf(want, sizeof want, "%s/val.bin", dir);
    cr_assert_str_eq(f.spec.validation.path, want);
    cr_assert_eq(f.n_set, 2);
    zt_run_file_free(&f);
    /* the folder is the file's, not the caller's, also through a symbolic link to the folder */
    cr_assert_eq(chdir(dir), 0);
    o.subject = "run.yaml";
    cr_assert_eq(zt_run_file_load(&o, &f, &err), 0, "%s", err.msg);
    cr_assert_str_eq(f.spec.validation.path, want);
    zt_run_file_free(&f);
    remove_dir();
}

Test(run_file, absolute_paths_and_overrides) {
    make_dir();
    struct zt_options o = {.subject = write_file("run.yaml", TEXT("/abs")), .name = "other", .n_set = 2,
                           .set = {"training.steps=9", "validation.path=/v"}};
    cr_assert_eq(zt_run_file_load(&o, &f, &err), 0, "%s", err.msg);
    cr_assert_str_eq(f.spec.dataset.path, "/abs");
    cr_assert_str_eq(f.spec.validation.path, "/v");
    cr_assert_str_eq(f.spec.name, "other");
    cr_assert_eq(f.spec.training.steps, 9);
    cr_assert_eq(f.n_set, 3);
    struct zt_submit_request r, again;
    cr_assert_eq(zt_submit_request_fill(&r, &f, 4, "{}", true, &err), 0);
    cr_assert_eq(r.submit.n_overrides, 3);
    cr_assert_str_eq(r.submit.overrides[0], "training.steps=9");
    cr_assert_eq(r.submit.run_yaml.len, f.bytes);
    cr_assert_eq(r.submit.workers, 4);
    cr_assert_eq(r.submit.request_key.len, 16);
    cr_assert_eq(zt_submit_request_fill(&again, &f, 0, NULL, false, &err), 0);
    cr_assert(r.submit.has_plan && r.submit.plan.len == 2 && r.submit.force);
    cr_assert(!again.submit.has_plan && !again.submit.force);
    cr_assert_neq(memcmp(r.key, again.key, 16), 0, "each request has its own key");
    cr_assert_not(again.submit.has_workers);
    zt_run_file_free(&f);
    remove_dir();
}

Test(run_file, refusals) {
    make_dir();
    struct zt_options o = {.subject = "/nonexistent/run.yaml"};
    cr_assert_eq(zt_run_file_load(&o, &f, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "/nonexistent/run.yaml: cannot be read: No such file or directory");
    zt_run_file_free(&f);
    o.subject = dir;
    cr_assert_eq(zt_run_file_load(&o, &f, &err), ZT_EINVAL);
    cr_assert(strstr(err.msg, "Is a directory"), "%s", err.msg);
    zt_run_file_free(&f);
    o.subject = write_file("bad.yaml", "version: 1\nnmae: x\n");
    cr_assert_eq(zt_run_file_load(&o, &f, &err), ZT_EINVAL);
    char want[600];
    snprintf(want, sizeof want, "%s:2:1: nmae: unknown key (did you mean \"name\"?)", o.subject);
    cr_assert_eq(strncmp(err.msg, want, strlen(want)), 0, "%s", err.msg);
    zt_run_file_free(&f);
    remove_dir();
}

/* RUN, RUN@STEP and folders are told apart by their spelling alone. */
Test(run_file, names_of_checkpoints) {
    static const struct { const char *text, *run; int64_t step; bool folder; } good[] = {
        {"quickstart", "quickstart", -1, false}, {"quickstart@1000", "quickstart", 1000, false},
        {"01JABC@0", "01JABC", 0, false},        {"@latest", "@latest", -1, false},
        {"@latest@20", "@latest", 20, false},    {"./quickstart", "./quickstart", -1, true},
        {"/a/step-00000010", "/a/step-00000010", -1, true}, {"a@1/b@2", "a@1/b@2", -1, true}, {".", ".", -1, true},
    };
    static const char *const bad[] = {"", "r@", "r@x", "r@1x", "r@-1", "r@99999999999999999999"};
    struct zt_run_at at;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_expect_eq(zt_run_at_parse(good[i].text, &at, &err), 0, "%s: %s", good[i].text, err.msg);
        cr_expect_str_eq(at.run, good[i].run);
        cr_expect(at.step == good[i].step && at.folder == good[i].folder, "%s", good[i].text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(zt_run_at_parse(bad[i], &at, &err), ZT_EINVAL, "%s", bad[i]);
}

static struct zt_child child;

static void shell(const char *script) {
    make_dir();
    snprintf(child.program, sizeof child.program, "/bin/sh");
    snprintf(child.log, sizeof child.log, "%s/log", dir);
    zt_child_arg(&child, "sh");
    zt_child_arg(&child, "-c");
    zt_child_arg(&child, "%s", script);
}

static int wait_end(void) {
    int status = -1;
    for (int i = 0; i < 1000 && !zt_child_ended(&child, &status); i++)
        zt_pause(0.01);
    return status;
}

Test(children, output_log_and_exit_code) {
    int fd;
    char buf[64] = "", tail[256], how[32];
    shell("echo ready; echo trouble >&2; exit 3");
    cr_assert_eq(zt_child_start(&child, &fd, &err), 0, "%s", err.msg);
    ssize_t n = read(fd, buf, sizeof buf - 1);
    cr_assert_eq(n, 6);
    cr_assert_str_eq(buf, "ready\n");
    int status = wait_end();
    cr_assert_str_eq(zt_child_status(status, how, sizeof how), "exit 3");
    cr_assert_str_eq(zt_child_tail(&child, tail, sizeof tail), "trouble\n");
    cr_assert_eq(child.quick_deaths, 1);
    cr_assert_eq(child.pid, 0);
    close(fd);
    remove_dir();
}

Test(children, own_group_and_stop) {
    shell("trap '' TERM; echo up; while :; do sleep 1; done");
    int fd;
    char buf[8];
    cr_assert_eq(zt_child_start(&child, &fd, &err), 0);
    cr_assert_eq(read(fd, buf, sizeof buf), 3);
    pid_t pid = child.pid;
    cr_assert_eq(getpgid(pid), pid, "Ctrl-C at the terminal must not reach it");
    zt_child_stop(&child, 0.1); /* ignores SIGTERM: killed after the time */
    cr_assert_eq(child.pid, 0);
    cr_assert_eq(kill(pid, 0), -1);
    close(fd);
    remove_dir();
}

Test(children, dies_with_its_parent) {
    int p[2];
    cr_assert_eq(pipe(p), 0);
    pid_t parent = fork();
    if (parent == 0) {
        shell("exec sleep 1000");
        if (zt_child_start(&child, NULL, &err) != 0)
            _exit(1);
        ssize_t n = write(p[1], &child.pid, sizeof child.pid);
        (void)n;
        pause();
        _exit(0);
    }
    pid_t pid = 0;
    cr_assert_eq(read(p[0], &pid, sizeof pid), (ssize_t)sizeof pid);
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    int i = 0;
    char path[64], stat[256] = "";
    for (; i < 1000; i++) { /* gone, or a zombie that nobody has collected yet */
        snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
        FILE *s = fopen(path, "r");
        if (!s)
            break;
        char *got = fgets(stat, sizeof stat, s);
        fclose(s);
        if (got && strstr(stat, ") Z "))
            break;
        zt_pause(0.01);
    }
    cr_assert_lt(i, 1000, "the child outlived its parent: %s", stat);
    close(p[0]);
    close(p[1]);
}

Test(children, a_program_that_is_not_there) {
    char path[4096];
    cr_assert_eq(zt_child_program("no-such-program-here", "nowhere", path, sizeof path, &err), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "cannot find no-such-program-here: put it beside zctl or into PATH");
    cr_assert_eq(zt_child_program("sh", "nowhere", path, sizeof path, &err), 0);
}

Test(follow, exit_codes_of_states) {
    cr_assert_eq(zt_exit_of_state("SUCCEEDED"), 0);
    cr_assert_eq(zt_exit_of_state("FAILED"), 1);
    cr_assert_eq(zt_exit_of_state("CANCELLED"), 9);
    cr_assert_eq(zt_exit_of_state("RUNNING"), -1);
    cr_assert_eq(zt_exit_of_state("QUEUED"), -1);
}

Test(follow, state_line_escapes_foreign_text) {
    Zt__RunSummary s = ZT__RUN_SUMMARY__INIT;
    Zt__RunDetail d = ZT__RUN_DETAIL__INIT;
    char line[200];
    s.state = (char *)(uintptr_t)"FAILED";
    s.reason = (char *)(uintptr_t)"DATA_ERROR";
    s.detail = (char *)(uintptr_t)"rank 1: \033[31mno file";
    d.summary = &s;
    cr_assert_str_eq(zt_state_line(&d, line, sizeof line), "FAILED: DATA_ERROR: rank 1: \\033[31mno file");
    s.reason = (char *)(uintptr_t)"NONE";
    s.detail = NULL;
    cr_assert_str_eq(zt_state_line(&d, line, sizeof line), "FAILED");
}
