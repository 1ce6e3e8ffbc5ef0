/* SPDX-License-Identifier: Apache-2.0 */
/* The documents against the programs: every option of --help is in its man page and the other way
 * round, every command and option of zctl in zctl.1, every message with its number in protocol.md,
 * every JSON field, reason and exit code in manual.md. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "clients/zctl/json.h"
#include "clients/zctl/options.h"
#include "clients/zctl/plan_json.h"
#include "core/reason.h"
#include "coordinator/machine.h"

/* Everything in f, with roff's escapes taken out: "\-" is "-", "\fB" and "\e" are nothing to us. */
static char *read_all(FILE *f, bool roff) {
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    cr_assert(f && out);
    for (int c; (c = fgetc(f)) != EOF;) {
        if (roff && c == '\\') {
            c = fgetc(f);
            if (c == 'f') {
                fgetc(f);
                continue;
            }
        }
        fputc(c, out);
    }
    fclose(out);
    return text;
}

static char *page(const char *path, bool roff) {
    FILE *f = fopen(path, "re");
    cr_assert(f, "%s cannot be opened", path);
    char *text = read_all(f, roff);
    fclose(f);
    return text;
}

static char *help_of(const char *command) {
    FILE *f = popen(command, "re");
    char *text = read_all(f, false);
    int status = pclose(f);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s failed", command);
    return text;
}

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '-' || c == '_'; }

/* `word` with no letter, digit or dash on either side. */
static bool has_word(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p++)
        if ((p == text || !in_word(p[-1])) && !in_word(p[n])) return true;
    return false;
}

/* Every --word of `from` is in `to`; returns how many there were. */
static int options_of(const char *from, const char *to, const char *what) {
    int n = 0;
    for (const char *p = from; (p = strstr(p, "--"));) {
        char word[64];
        size_t len = 2;
        while (in_word(p[len])) len++;
        bool whole = (p == from || !in_word(p[-1])) && len > 2 && len < sizeof word;
        if (whole) {
            memcpy(word, p, len);
            word[len] = '\0';
            cr_expect(has_word(to, word), "%s: %s is missing", what, word);
            n++;
        }
        p += len;
    }
    return n;
}

static void both_ways(const char *help_command, const char *path, int at_least) {
    char *help = help_of(help_command), *man = page(path, true);
    int n = options_of(help, man, path);
    cr_assert(n >= at_least, "%s names only %d options", help_command, n);
    options_of(man, help, help_command);
    free(help);
    free(man);
}

Test(man, zcoord_has_the_options_of_its_help) { both_ways(ZCOORD " --help", DOCS "/zcoord.1", 2); }

Test(man, zworker_has_the_options_of_its_help) {
    both_ways(ZWORKER " --help", DOCS "/zworker.1", 12);
}

Test(man, short_help_is_the_long_one) {
    char *want = help_of(ZWORKER " --help"), *got = help_of(ZWORKER " -h");
    cr_expect_str_eq(got, want);
    free(want);
    free(got);
    want = help_of(ZCOORD " --help");
    got = help_of(ZCOORD " -h");
    cr_expect_str_eq(got, want);
    free(want);
    free(got);
}

Test(man, by_hand_pages_are_of_this_version) {
    const char *const names[] = {DOCS "/zcoord.1", DOCS "/zworker.1"};
    for (int i = 0; i < 2; i++) {
        char *man = page(names[i], true);
        cr_expect(strstr(man, "\"ztrain " ZT_VERSION "\""), "%s is of another version", names[i]);
        free(man);
    }
}

Test(man, zctl_has_every_command_and_option) {
    char *man = page(ZCTL_PAGE, true), word[80];
    for (int c = 0; c < ZT_CMD_COUNT; c++) {
        snprintf(word, sizeof word, ".SS %s", zt_command_name((enum zt_command)c));
        cr_expect(strstr(man, word), "%s", word);
    }
    int n = 0;
    for (; zt_option_row(n); n++)
        cr_expect(has_word(man, zt_option_row(n)->name), "%s", zt_option_row(n)->name);
    cr_assert(n > 20);
    free(man);
}

Test(protocol, names_every_message_with_its_number) {
    char *text = page(DOCS "/protocol.md", false), row[96];
    int bodies = 0;
    for (unsigned i = 0; i < zt__envelope__descriptor.n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &zt__envelope__descriptor.fields[i];
        if (f->id < 10) /* the envelope's own */
            continue;
        snprintf(row, sizeof row, "\n| %u | `%s` |", f->id, f->name);
        cr_expect(strstr(text, row), "no row %s", row + 1);
        bodies++;
    }
    cr_assert(bodies > 40);
    for (unsigned i = 0; i < zt__code__descriptor.n_values; i++) {
        snprintf(row, sizeof row, "`%s` %d", zt__code__descriptor.values[i].name,
                 zt__code__descriptor.values[i].value);
        cr_expect(strstr(text, row), "no code %s", row);
    }
    free(text);
}

static void fields_in(const json_t *j, const char *manual) {
    const char *key;
    json_t *value;
    size_t i;
    char word[80];
    if (json_is_array(j))
        json_array_foreach(j, i, value) fields_in(value, manual);
    else if (json_is_object(j))
        json_object_foreach((json_t *)(uintptr_t)j, key, value) {
            snprintf(word, sizeof word, "`%s`", key);
            cr_expect(strstr(manual, word), "the manual does not name the JSON field %s", word);
            fields_in(value, manual);
        }
}

static void check_fields(json_t *j, const char *manual) {
    cr_assert(json_is_object(j));
    fields_in(j, manual);
    json_decref(j);
}

Test(manual, names_every_json_field) {
    char *manual = page(DOCS "/manual.md", false), none[] = "";
    struct zt_mesh mesh = {1, 1, 1};
    Zt__TagBytes tags = ZT__TAG_BYTES__INIT;
    Zt__ExposedBy by = ZT__EXPOSED_BY__INIT, *by_list[1] = {&by};
    Zt__StepReport step = ZT__STEP_REPORT__INIT;
    Zt__StepRow row = ZT__STEP_ROW__INIT;
    Zt__RunSummary summary = ZT__RUN_SUMMARY__INIT, *runs[1] = {&summary};
    Zt__RankInfo rank = ZT__RANK_INFO__INIT, *ranks[1] = {&rank};
    Zt__OomDetail oom = ZT__OOM_DETAIL__INIT;
    Zt__Attempt attempt = ZT__ATTEMPT__INIT, *attempts[1] = {&attempt};
    Zt__RunDetail run = ZT__RUN_DETAIL__INIT;
    Zt__WindowPeak peak = ZT__WINDOW_PEAK__INIT;
    Zt__MemoryRow memory = ZT__MEMORY_ROW__INIT;
    Zt__WorkerInfo worker = ZT__WORKER_INFO__INIT;
    Zt__Event event = ZT__EVENT__INIT;
    Zt__ClusterStatus cluster = ZT__CLUSTER_STATUS__INIT;
    by.group = by.kind = none;
    step.n_exposed_by = 1;
    step.exposed_by = by_list;
    step.at_peak = step.category_max = step.persistent = &tags;
    row.max = &step;
    oom.by_tag = &tags;
    attempt.oom = &oom;
    Zt__Checkpoint checkpoint = ZT__CHECKPOINT__INIT;
    checkpoint.state = none;
    run.checkpoint = run.saving = &checkpoint;
    run.summary = &summary;
    run.n_ranks = run.n_attempts = 1;
    run.ranks = ranks;
    run.attempts = attempts;
    peak.at_peak = peak.persistent = &tags;
    memory.measured = &peak;
    cluster.n_runs = 1;
    cluster.runs = runs;
    check_fields(zt_json_step("r", &row), manual);
    check_fields(zt_json_rank("r", mesh, &step), manual);
    check_fields(zt_json_run(&run), manual);
    check_fields(zt_json_memory(&memory, NULL), manual);
    struct zt_plan plan = {.n_shapes = 1};
    struct zt_plan_point point = {.what = "x"};
    for (int w = 0; w < ZT_WINDOW_COUNT; w++) plan.shape[0].occurs[w] = true;
    plan.curve = &point;
    plan.n_curve = 1;
    check_fields(zt_plan_json(&plan, NULL), manual);
    json_t *list = zt_plan_json_curve(&plan);
    fields_in(list, manual);
    json_decref(list);
    check_fields(zt_json_worker(&worker), manual);
    check_fields(zt_json_event(&event), manual);
    check_fields(zt_json_cluster(&cluster), manual);
    free(manual);
}

Test(manual, has_every_reason_with_its_rule) {
    static const char *const rule[] = {
        [ZT_RETRY_NEVER] = "never", [ZT_RETRY_COUNTED] = "counted", [ZT_RETRY_FREE] = "free"};
    char *manual = page(DOCS "/manual.md", false), row[96];
    int n = 0;
    for (int r = 1; r < 100; r++) {
        const char *name = zt_reason_name((enum zt_reason)r);
        if (strncmp(name, "UNKNOWN", 7) == 0) continue;
        snprintf(row, sizeof row, "\n| `%s` | %s |", name,
                 rule[zt_reason_retry((enum zt_reason)r)]);
        cr_expect(strstr(manual, row), "no row %s", row + 1);
        n++;
    }
    cr_assert(n > 20);
    free(manual);
}

Test(manual, has_every_state) {
    char *manual = page(DOCS "/manual.md", false), word[48];
    for (int s = 0; s < 100; s++) {
        const char *name = zt_run_state_name((enum zt_run_state)s);
        /* SUBMITTED lasts no time, PAUSED is reserved: nobody sees them */
        if (strcmp(name, "UNKNOWN") == 0 || s == ZT_RUN_SUBMITTED || s == ZT_RUN_PAUSED) continue;
        snprintf(word, sizeof word, "`%s`", name);
        cr_expect(strstr(manual, word), "run state %s", word);
    }
    for (int s = 0; s <= ZT_WORKER_QUARANTINED; s++) {
        snprintf(word, sizeof word, "`%s`", zt_worker_state_name((enum zt_worker_state)s));
        cr_expect(strstr(manual, word), "worker state %s", word);
    }
    free(manual);
}

Test(manual, has_every_exit_code) {
    static const int codes[] = {ZT_EXIT_OK,          ZT_EXIT_FAILED,  ZT_EXIT_USAGE,
                                ZT_EXIT_NOTFOUND,    ZT_EXIT_AUTH,    ZT_EXIT_CONFLICT,
                                ZT_EXIT_UNREACHABLE, ZT_EXIT_NOPLACE, ZT_EXIT_VERSION,
                                ZT_EXIT_CANCELLED,   ZT_EXIT_OTHER,   ZT_EXIT_TIMEOUT,
                                ZT_EXIT_INTERRUPT};
    char *manual = page(DOCS "/manual.md", false), row[16];
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        snprintf(row, sizeof row, "\n| %d |", codes[i]);
        cr_expect(strstr(manual, row), "no row for exit code %d", codes[i]);
    }
    free(manual);
}
