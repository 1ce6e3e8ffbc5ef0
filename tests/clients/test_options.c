/* SPDX-License-Identifier: Apache-2.0 */
/* The option table: every row parses in all its spellings for the commands it names and is refused for
 * the others; help mentions all of it; mistakes get the nearest word. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/options.h"

static struct zt_options o;
static struct zt_error err;

static int parse(int n, const char *const *words) {
    char *argv[20] = {(char *)(uintptr_t)"zctl"};
    for (int i = 0; i < n; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    memset(&err, 0, sizeof err);
    return zt_options_parse(n + 1, argv, &o, &err);
}
#define PARSE(...)                                                                                 \
    parse((int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)), (const char *const[]){__VA_ARGS__})

static const char *sample(const char *arg) {
    static const struct { const char *arg, *value; } row[] = {
        {"PRESET", "gpt2-124m"}, {"MODE", "full"}, {"PROGRAM", "deepspeed"}, {"TYPE", "fp32"}, {"B", "25e9"}, {"KIND", "all_reduce"},
        {"N", "3"}, {"S", "1.5"}, {"X", "0.5"}, {"G", "2"}, {"KEY=VALUE", "training.steps=5"},
        {"NAME", "n"}, {"all|R,R", "0,3"}, {"A:B", "2:9"}, {"HOST:PORT", "127.0.0.1:1"},
        {"FILE", "/f"}, {"DIR", "/d"}, {"FORMAT", "jsonl"}, {"WHEN", "never"}, {"M", "8"},
        {"F", "1.5"}, {"FOLDER", "/d"}, {"TEXT", "a"}, {"T", "0.8"}, {"K", "4"}, {"RUN[@STEP]", "r@5"}, {"KEY=A,B,C", "training.steps=1,2"}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (strcmp(row[i].arg, arg) == 0)
            return row[i].value;
    cr_assert_fail("no sample for %s", arg);
    return NULL;
}

Test(options, every_row_parses_where_it_belongs) {
    for (int i = 0; zt_option_row(i); i++) {
        const struct zt_option *r = zt_option_row(i);
        for (int c = 0; c < ZT_CMD_COUNT; c++) {
            const char *name = zt_command_name((enum zt_command)c);
            char joined[128], letter[64];
            const char *value = r->arg ? sample(r->arg) : NULL;
            bool belongs = r->commands & (1u << c);
            int want = belongs ? 0 : ZT_EINVAL;
            bool subject = c != ZT_CMD_LIST && c != ZT_CMD_WORKERS && c != ZT_CMD_CALIBRATE && c != ZT_CMD_VERSION;
            const char *words[7] = {name};
            int n = 1;
            if (c == ZT_CMD_CHECKPOINT)
                words[n++] = "gc";
            subject = subject && c != ZT_CMD_ESTIMATE;
            if (subject)
                words[n++] = "x";
            if (c == ZT_CMD_EXPORT)
                words[n++] = "y";
            words[n] = r->name;
            words[n + 1] = value;
            cr_assert_eq(parse(n + (value ? 2 : 1), words), want, "%s %s: %s", name, r->name, err.msg);
            /* --name=value, and the option before the command */
            if (value) {
                snprintf(joined, sizeof joined, "%s=%s", r->name, value);
                words[n] = joined;
                cr_assert_eq(parse(n + 1, words), want, "%s %s", name, joined);
            }
            const char *first[5] = {value ? joined : r->name, name, c == ZT_CMD_CHECKPOINT ? "gc" : "x", "x"};
            cr_assert_eq(parse(c == ZT_CMD_CHECKPOINT || c == ZT_CMD_EXPORT ? 4 : subject ? 3 : 2, first), want, "%s %s", first[0], name);
            if (r->letter) {
                snprintf(letter, sizeof letter, "-%c%s", r->letter, value ? value : "");
                words[n] = letter;
                cr_assert_eq(parse(n + 1, words), want, "%s %s", name, letter);
            }
        }
    }
}

Test(options, values_of_import_export_and_sample) {
    cr_assert_eq(PARSE("import", "dir", "--out", "to"), 0, "%s", err.msg);
    cr_assert_str_eq(o.out_folder, "to");
    cr_assert_eq(PARSE("export", "r@5", "to", "--dtype", "bf16", "--merge-lora", "--max-shard-gib", "0.5"), 0, "%s", err.msg);
    cr_assert_str_eq(o.subject, "r@5");
    cr_assert_str_eq(o.other, "to");
    cr_assert_str_eq(o.dtype, "bf16");
    cr_assert(o.merge_lora && o.max_shard_gib == 0.5);
    cr_assert_eq(PARSE("export", "r@5"), ZT_EINVAL);
    cr_assert_not_null(strstr(err.msg, "needs a folder"));
    cr_assert_eq(PARSE("export", "r@5", "a", "b"), ZT_EINVAL);
    cr_assert_eq(PARSE("sample", "r", "--prompt", "a b", "--tokens", "7", "--temperature", "0.5", "--top-k", "3", "--seed", "9"), 0,
                 "%s", err.msg);
    cr_assert_str_eq(o.prompt, "a b");
    cr_assert(o.tokens == 7 && o.temperature == 0.5 && o.top_k == 3 && o.seed == 9);
    cr_assert_eq(PARSE("sample", "r", "--temperature", "0"), 0);
    cr_assert_eq(PARSE("sample", "r", "--temperature", "-1"), ZT_EINVAL);
    cr_assert_eq(PARSE("sample", "r", "--temperature", "nan"), ZT_EINVAL);
    cr_assert_eq(PARSE("sample", "r", "--tokens", "0"), ZT_EINVAL);
}

/* What the manual documents, word by word. */
Test(options, values_arrive) {
    cr_assert_eq(PARSE("run", "f.yaml", "--workers", "4", "--set", "a=1", "--set", "b=2", "--name", "n",
                       "--threads", "2", "--memory-gib", "0.25"),
                 0, "%s", err.msg);
    cr_assert_eq(o.command, ZT_CMD_RUN);
    cr_assert_str_eq(o.subject, "f.yaml");
    cr_assert_eq(o.workers, 4);
    cr_assert_eq(o.n_set, 2);
    cr_assert_str_eq(o.set[1], "b=2");
    cr_assert_str_eq(o.name, "n");
    cr_assert_eq(o.threads, 2);
    cr_assert_eq(o.memory_gib, 0.25);
    cr_assert_eq(PARSE("submit", "-f", "f.yaml"), 0);
    cr_assert(o.follow);
    cr_assert_eq(PARSE("events", "r", "--all"), 0);
    cr_assert(o.all);
    cr_assert_eq(PARSE("events", "r"), 0);
    cr_assert_not(o.all);
    cr_assert_eq(PARSE("metrics", "r", "--rank", "all", "--step", "5:", "--every", "10", "-o", "csv"), 0);
    cr_assert(o.ranks_all);
    cr_assert_eq(o.step_from, 5);
    cr_assert_eq(o.step_to, 0);
    cr_assert_eq(o.every, 10);
    cr_assert_eq(o.format, ZT_FORMAT_CSV);
    cr_assert_eq(PARSE("metrics", "r", "--step", ":9"), 0);
    cr_assert_eq(o.step_to, 9);
    cr_assert_eq(PARSE("metrics", "r", "--step", "9"), 0);
    cr_assert(o.step_from == 9 && o.step_to == 9);
    cr_assert_eq(PARSE("logs", "r", "--rank", "0,3", "--attempt", "2", "--tail", "100", "-f"), 0);
    cr_assert_eq(o.n_rank, 2);
    cr_assert(o.rank[0] == 0 && o.rank[1] == 3);
    cr_assert_eq(o.attempt, 2);
    cr_assert_eq(o.tail, 100);
    cr_assert_eq(PARSE("--state", "/s", "list", "--active", "--limit", "3"), 0);
    cr_assert_str_eq(o.state, "/s");
    cr_assert(o.active);
    cr_assert_eq(o.limit, 3);
    cr_assert_eq(PARSE("cancel", "r", "--coord", "h:1", "--token-file", "/t", "--timeout", "3"), 0);
    cr_assert_str_eq(o.coord, "h:1");
    cr_assert_str_eq(o.token_file, "/t");
    cr_assert_eq(o.timeout, 3);
    cr_assert_eq(PARSE("watch", "--interval", "0.5", "--color", "always"), 0);
    cr_assert_eq(o.interval, 0.5);
    cr_assert_eq(o.color, ZT_COLOR_ALWAYS);
    cr_assert_eq(PARSE("validate", "--", "-odd-name"), 0);
    cr_assert_str_eq(o.subject, "-odd-name");
    cr_assert_eq(PARSE("submit", "-"), 0);
    cr_assert_str_eq(o.subject, "-");
    cr_assert_eq(PARSE("checkpoint", "verify", "r@1000"), 0, "%s", err.msg);
    cr_assert_str_eq(o.action, "verify");
    cr_assert_str_eq(o.subject, "r@1000");
    cr_assert_null(o.other);
    cr_assert_eq(PARSE("checkpoint", "--state", "/s", "diff", "r@1000", "./folder"), 0, "%s", err.msg);
    cr_assert_str_eq(o.subject, "r@1000");
    cr_assert_str_eq(o.other, "./folder");
    cr_assert_eq(PARSE("checkpoint", "gc", "r", "--dry-run"), 0);
    cr_assert(o.dry_run);
    cr_assert_eq(PARSE("checkpoint", "--help"), 0);
    cr_assert_eq(PARSE("submit", "--resume", "r@500", "--accept-batch-change"), 0, "the run file is the run's own: %s", err.msg);
    cr_assert_str_eq(o.resume, "r@500");
    cr_assert(o.accept_batch_change && !o.subject);
    cr_assert_eq(PARSE("run", "f.yaml", "--resume", "@latest"), 0);
    cr_assert_str_eq(o.subject, "f.yaml");
    cr_assert_eq(PARSE("drill", "f.yaml", "--steps", "10", "--workers", "2", "--resume-workers", "4"), 0);
    cr_assert(o.steps == 10 && o.workers == 2 && o.resume_workers == 4);
    cr_assert_eq(PARSE("--version"), 0);
    cr_assert_eq(o.command, ZT_CMD_VERSION);
    cr_assert_eq(PARSE("run", "--help"), 0);
    cr_assert(o.help);
}

Test(options, output_from_the_environment) {
    setenv("ZCTL_OUTPUT", "jsonl", 1);
    cr_assert_eq(PARSE("list"), 0);
    cr_assert_eq(o.format, ZT_FORMAT_JSONL);
    cr_assert_eq(PARSE("list", "-o", "table"), 0);
    cr_assert_eq(o.format, ZT_FORMAT_TABLE);
    setenv("ZCTL_OUTPUT", "xml", 1);
    cr_assert_eq(PARSE("list"), ZT_EINVAL);
    cr_assert_str_eq(err.msg, "ZCTL_OUTPUT xml: expected one of table, json, jsonl, csv");
}

Test(options, refusals) {
    static const struct { const char *words[5]; const char *message; } row[] = {
        {{"frobnicate"}, "unknown command \"frobnicate\"; zctl help lists them"},
        {{"stauts"}, "unknown command \"stauts\" (did you mean \"status\"?)"},
        {{"submit"}, "zctl submit needs a FILE, e.g.: zctl submit run.yaml --set training.steps=100 -f"},
        {{"submit", ""}, "zctl submit: FILE is empty"},
        {{"status", "a", "b"}, "zctl status: \"b\" is too much; see zctl help status"},
        {{"list", "a"}, "zctl list: \"a\" is too much; see zctl help list"},
        {{"run", "f", "--worker", "3"}, "unknown option --worker (did you mean --workers?)"},
        {{"run", "f", "--zzzzzz"}, "unknown option --zzzzzz; see zctl help"},
        {{"run", "f", "-q"}, "unknown option -q; see zctl help"},
        {{"run", "f", "--workers"}, "option --workers needs a value: --workers N"},
        {{"run", "f", "--workers", "0"}, "--workers 0: expected a whole number from 1 to 65536"},
        {{"run", "f", "--workers", "-3"}, "--workers -3: expected a whole number from 1 to 65536"},
        {{"run", "f", "--workers", "4x"}, "--workers 4x: expected a whole number from 1 to 65536"},
        {{"run", "f", "--workers", "99999999999999999999"},
         "--workers 99999999999999999999: expected a whole number from 1 to 65536"},
        {{"run", "f", "--follow"}, "zctl run has no option --follow; see zctl help run"},
        {{"list", "--active=1"}, "option --active takes no value"},
        {{"cancel", "r", "--now"}, "unknown option --now; see zctl help"},
        {{"submit", "f", "--violently"}, "unknown option --violently; see zctl help"},
        {{"logs", "r", "--all"}, "zctl logs has no option --all; see zctl help logs"},
        {{"checkpoint"}, "zctl checkpoint: give one of ls, show, verify, pin, unpin, rm, gc, diff; see zctl help checkpoint"},
        {{"checkpoint", "ls"}, "zctl checkpoint needs a RUN, e.g.: zctl checkpoint verify quickstart@1000"},
        {{"checkpoint", "lst", "r"}, "zctl checkpoint: no action \"lst\" (did you mean \"ls\"?)"},
        {{"checkpoint", "everything", "r"},
         "zctl checkpoint: give one of ls, show, verify, pin, unpin, rm, gc, diff; see zctl help checkpoint"},
        {{"checkpoint", "show", "a", "b"}, "zctl checkpoint: \"b\" is too much; see zctl help checkpoint"},
        {{"checkpoint", "diff", "a"}, "zctl checkpoint diff needs two checkpoints, e.g.: zctl checkpoint diff quickstart@500 "
                                      "quickstart@1000"},
        {{"checkpoint", "diff", "a", "b", "c"}, "zctl checkpoint: \"c\" is too much; see zctl help checkpoint"},
        {{"drill", "f", "--coord", "h:1"}, "zctl drill takes no --coord: it starts a coordinator of its own"},
        {{"run", "f", "--coord", "h:1"},
         "zctl run takes no --coord: it starts a coordinator of its own; zctl submit hands the file to one "
         "that runs"},
        {{"run", "--token-file=/t", "f"},
         "zctl run takes no --token-file: it starts a coordinator of its own; zctl submit hands the file to one "
         "that runs"},
        {{"list", "-o", "yaml"}, "--output yaml: expected one of table, json, jsonl, csv"},
        {{"list", "--color", "blue"}, "--color blue: expected one of auto, always, never"},
        {{"list", "--timeout", "0"}, "--timeout 0: expected a number above 0"},
        {{"list", "--timeout", "nan"}, "--timeout nan: expected a number above 0"},
        {{"logs", "r", "--rank", "0,x"}, "--rank 0,x: expected all, or a list such as 0,3"},
        {{"logs", "r", "--rank", ""}, "--rank : expected all, or a list such as 0,3"},
        {{"metrics", "r", "--step", ":"}, "--step :: expected A:B, A: or :B, steps from 1"},
        {{"metrics", "r", "--step", "9:3"}, "--step 9:3: expected the first step before the last"},
    };
    unsetenv("ZCTL_OUTPUT");
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        int n = 0;
        while (n < 5 && row[i].words[n])
            n++;
        cr_assert_eq(parse(n, row[i].words), ZT_EINVAL, "%s", row[i].message);
        cr_assert_str_eq(err.msg, row[i].message);
    }
}

Test(options, help_names_everything) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    zt_help(f);
    for (int c = 0; c < ZT_CMD_COUNT; c++)
        zt_help_command(f, (enum zt_command)c);
    fclose(f);
    for (int c = 0; c < ZT_CMD_COUNT; c++)
        cr_assert(strstr(text, zt_command_name((enum zt_command)c)));
    for (int i = 0; zt_option_row(i); i++)
        cr_assert(strstr(text, zt_option_row(i)->name), "%s", zt_option_row(i)->name);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        cr_assert_leq(strlen(line), 100, "%s", line);
    free(text);
}

static char *help_of(enum zt_command c) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    zt_help_command(f, c);
    fclose(f);
    return text;
}

Test(options, help_of_run_names_no_coordinator) {
    char *run = help_of(ZT_CMD_RUN), *submit = help_of(ZT_CMD_SUBMIT);
    cr_assert_null(strstr(run, "--coord"), "%s", run);
    cr_assert_null(strstr(run, "--token-file"), "%s", run);
    cr_assert(strstr(run, "--state") && strstr(submit, "--coord") && strstr(submit, "--token-file"));
    free(run);
    free(submit);
}

/* The documented exit codes. */
Test(options, exit_codes) {
    static const struct { int code, exit; } row[] = {
        {ZT_OK, 0}, {ZT_EINVAL, 2}, {ZT_EUNSUPPORTED, 2}, {ZT_ENOTFOUND, 3}, {ZT_EAUTH, 4},
        {ZT_ECONFLICT, 5}, {ZT_EUNREACHABLE, 6}, {ZT_ENOPLACE, 7}, {ZT_EVERSION, 8},
        {ZT_ECANCELLED, 9}, {ZT_EINTERNAL, 10}, {ZT_EIO, 10}, {ZT_ETIMEOUT, 124}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        cr_assert_eq(zt_exit_code(row[i].code), row[i].exit, "%d", row[i].code);
}
