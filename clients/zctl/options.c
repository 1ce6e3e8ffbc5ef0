/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options.c: the parser of the table in options_table.c; the help made from it is in options_help.c. */
#include "clients/zctl/options_int.h"
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/units.h"

int zt_exit_code(int code) {
    switch (code) {
    case ZT_OK: return ZT_EXIT_OK;
    case ZT_EINVAL:
    case ZT_EUNSUPPORTED: return ZT_EXIT_USAGE;
    case ZT_ENOTFOUND: return ZT_EXIT_NOTFOUND;
    case ZT_EAUTH: return ZT_EXIT_AUTH;
    case ZT_ECONFLICT: return ZT_EXIT_CONFLICT;
    case ZT_EUNREACHABLE: return ZT_EXIT_UNREACHABLE;
    case ZT_ENOPLACE: return ZT_EXIT_NOPLACE;
    case ZT_EVERSION: return ZT_EXIT_VERSION;
    case ZT_ECANCELLED: return ZT_EXIT_CANCELLED;
    case ZT_ETIMEOUT: return ZT_EXIT_TIMEOUT;
    default: return ZT_EXIT_OTHER;
    }
}

/* ---------------------------------------------------------------------------------- values */

static int bad_value(struct zt_error *err, const char *option, const char *value, const char *wanted) {
    return zt_fail(err, ZT_EINVAL, "%s %.60s: expected %s", option, value, wanted);
}

static int whole(const char *option, const char *value, int64_t min, int64_t max, int64_t *out,
                 struct zt_error *err) {
    char *end, wanted[80];
    errno = 0;
    long long v = strtoll(value, &end, 10);
    bool digits = value[0] >= '0' && value[0] <= '9' && *end == '\0';
    if (!digits || errno == ERANGE || v < min || v > max) {
        snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld", (long long)min,
                 (long long)max);
        return bad_value(err, option, value, wanted);
    }
    *out = v;
    return 0;
}

static int count(const char *option, const char *value, int max, int *out, struct zt_error *err) {
    int64_t v = 0;
    int rc = whole(option, value, 1, max, &v, err);
    *out = (int)v;
    return rc;
}

static int seconds(const char *option, const char *value, double max, double *out, struct zt_error *err) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(v) || v <= 0 || v > max)
        return bad_value(err, option, value, "a number above 0");
    *out = v;
    return 0;
}

static int temperature(const char *value, struct zt_options *o, struct zt_error *err) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end != '\0' || !(v >= 0 && v <= 1e6))
        return bad_value(err, "--temperature", value, "a number from 0 on");
    o->temperature = v;
    return 0;
}

static int seed(const char *value, struct zt_options *o, struct zt_error *err) {
    int64_t v = 0;
    int rc = whole("--seed", value, 0, INT64_MAX, &v, err);
    o->seed = (uint64_t)v;
    return rc;
}

static int word(const char *option, const char *value, const char *const *names, int n, int *out,
                struct zt_error *err) {
    char list[120] = "one of ";
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], value) == 0) {
            *out = i;
            return 0;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    return bad_value(err, option, value, list);
}

static int format(const char *option, const char *value, struct zt_options *o, struct zt_error *err) {
    static const char *const names[] = {"table", "json", "jsonl", "csv"};
    int v = 0, rc = word(option, value, names, 4, &v, err);
    if (rc == 0)
        o->format = (enum zt_format)v;
    return rc;
}

/* A word is a format, anything else a file, which only convert writes (check_used). */
static int output(const char *value, struct zt_options *o, struct zt_error *err) {
    if (format("--output", value, o, err) != 0)
        o->out_file = value;
    return 0;
}

static int color(const char *value, struct zt_options *o, struct zt_error *err) {
    static const char *const names[] = {"auto", "always", "never"};
    int v = 0, rc = word("--color", value, names, 3, &v, err);
    o->color = (enum zt_color)v;
    return rc;
}

static int ranks(const char *value, struct zt_options *o, struct zt_error *err) {
    if (strcmp(value, "all") == 0) {
        o->ranks_all = true;
        return 0;
    }
    for (const char *p = value;; p++) {
        char one[16];
        size_t n = strcspn(p, ",");
        int64_t r = 0;
        if (n >= sizeof one || o->n_rank == ZT_MAX_RANKS)
            return bad_value(err, "--rank", value, "all, or a list of at most 256 ranks such as 0,3");
        memcpy(one, p, n);
        one[n] = '\0';
        if (whole("--rank", one, 0, 65535, &r, err))
            return bad_value(err, "--rank", value, "all, or a list such as 0,3");
        o->rank[o->n_rank++] = (uint32_t)r;
        p += n;
        if (*p == '\0')
            return 0;
    }
}

static int steps(const char *value, struct zt_options *o, struct zt_error *err) {
    const char *colon = strchr(value, ':');
    char from[24];
    const char *wanted = "A:B, A: or :B, steps from 1";
    size_t n = colon ? (size_t)(colon - value) : strlen(value);
    if (n >= sizeof from || value[0] == '\0' || strcmp(value, ":") == 0)
        return bad_value(err, "--step", value, wanted);
    memcpy(from, value, n);
    from[n] = '\0';
    if (n > 0 && whole("--step", from, 1, INT64_MAX / 2, &o->step_from, err))
        return bad_value(err, "--step", value, wanted);
    if (!colon) {
        o->step_to = o->step_from;
        return 0;
    }
    if (colon[1] && whole("--step", colon + 1, 1, INT64_MAX / 2, &o->step_to, err))
        return bad_value(err, "--step", value, wanted);
    if (o->step_to && o->step_to < o->step_from)
        return bad_value(err, "--step", value, "the first step before the last");
    return 0;
}

static int add_set(const char *value, struct zt_options *o, struct zt_error *err) {
    if (o->n_set == ZT_MAX_SETS)
        return zt_fail(err, ZT_EINVAL, "--set: at most %d of them; put them into the run file",
                       ZT_MAX_SETS);
    o->set[o->n_set++] = value;
    return 0;
}

static int add_sweep(const char *value, struct zt_options *o, struct zt_error *err) {
    const char *is = strchr(value, '=');
    if (!is || is == value || !is[1])
        return bad_value(err, "--sweep", value, "KEY=A,B,C, e.g. training.local_batch_size=1,2,4");
    if (o->n_sweep == ZT_MAX_SWEEPS)
        return zt_fail(err, ZT_EINVAL, "--sweep: at most %d keys", ZT_MAX_SWEEPS);
    o->sweep[o->n_sweep++] = value;
    return 0;
}

static int slowdown(const char *option, const char *value, double *out, struct zt_error *err) {
    bool good = seconds(option, value, 1000, out, err) == 0 && *out > 1;
    return good ? 0 : bad_value(err, option, value, "a number above 1, at most 1000");
}

/* Stores one option; v is "" for those without an argument. */
static int store(const struct zt_option *r, const char *v, struct zt_options *o, struct zt_error *err) {
    switch (r->id) {
    case OPT_COORD: o->coord = v; return 0;
    case OPT_TOKEN: o->token_file = v; return 0;
    case OPT_STATE: o->state = v; return 0;
    case OPT_OUTPUT: return output(v, o, err);
    case OPT_COLOR: return color(v, o, err);
    case OPT_TIMEOUT: return seconds(r->name, v, 1e9, &o->timeout, err);
    case OPT_HELP: o->help = true; return 0;
    case OPT_SET: return add_set(v, o, err);
    case OPT_NAME: o->name = v; return 0;
    case OPT_WORKERS: return count(r->name, v, 65536, &o->workers, err);
    case OPT_FOLLOW: o->follow = true; return 0;
    case OPT_FORCE: o->force = true; return 0;
    case OPT_CURVE: o->curve = true; return 0;
    case OPT_SHOW: o->show = true; return 0;
    case OPT_STEPS: return whole(r->name, v, 1, 1000, &o->steps, err);
    case OPT_RESUME: o->resume = v; return 0;
    case OPT_ACCEPT_BATCH: o->accept_batch_change = true; return 0;
    case OPT_RESUME_WORKERS: return count(r->name, v, 65536, &o->resume_workers, err);
    case OPT_DRY_RUN: o->dry_run = true; return 0;
    case OPT_MEMORY: return seconds(r->name, v, 1e6, &o->memory_gib, err);
    case OPT_THREADS: return count(r->name, v, 1024, &o->threads, err);
    case OPT_RANK: return ranks(v, o, err);
    case OPT_STEP: return steps(v, o, err);
    case OPT_UNIT: o->unit = v; return 0;
    case OPT_CAPACITY: return seconds(r->name, v, 1e6, &o->capacity_gib, err);
    case OPT_NODES: return count(r->name, v, 65536, &o->nodes, err);
    case OPT_GPUS: return count(r->name, v, 65536, &o->gpus_per_node, err);
    case OPT_SWEEP: return add_sweep(v, o, err);
    case OPT_SCHEDULE: o->schedule = true; return 0;
    case OPT_UNITS: o->units = true; return 0;
    case OPT_TRACE: o->trace = v; return 0;
    case OPT_STRAGGLER: return slowdown(r->name, v, &o->straggler, err);
    case OPT_EVERY: return whole(r->name, v, 1, INT64_MAX / 2, &o->every, err);
    case OPT_ATTEMPT: return count(r->name, v, 1 << 30, &o->attempt, err);
    case OPT_TAIL: return count(r->name, v, 1 << 30, &o->tail, err);
    case OPT_LIMIT: return count(r->name, v, 1 << 20, &o->limit, err);
    case OPT_ACTIVE: o->active = true; return 0;
    case OPT_ALL: o->all = true; return 0;
    case OPT_SHARD: return count(r->name, v, 65536, &o->shard, err);
    case OPT_REPLICATE: return count(r->name, v, 65536, &o->replicate, err);
    case OPT_RECIPE: o->recipe = v; return 0;
    case OPT_SVG: o->svg = v; return 0;
    case OPT_FILE: o->file = v; return 0;
    case OPT_BUDGET: return seconds(r->name, v, 1e6, &o->budget_gib, err);
    case OPT_SELECT: o->select = true; return 0;
    case OPT_DEVICE: o->device = v; return 0;
    case OPT_COMM: o->comm = true; return 0;
    case OPT_OUT: o->out_folder = v; return 0;
    case OPT_DTYPE: o->dtype = v; return 0;
    case OPT_MERGE: o->merge_lora = true; return 0;
    case OPT_MAX_SHARD: return seconds(r->name, v, 1e6, &o->max_shard_gib, err);
    case OPT_PROMPT: o->prompt = v; return 0;
    case OPT_TOKENS: return whole(r->name, v, 1, 1 << 24, &o->tokens, err);
    case OPT_TEMPERATURE: return temperature(v, o, err);
    case OPT_TOP_K: return whole(r->name, v, 1, 1 << 24, &o->top_k, err);
    case OPT_SEED: return seed(v, o, err);
    case OPT_DURATION: return seconds(r->name, v, 3600, &o->seconds, err);
    case OPT_INTERVAL: return seconds(r->name, v, 86400, &o->interval, err);
    }
    return zt_fail(err, ZT_EINTERNAL, "option %s has no place", r->name);
}

/* ---------------------------------------------------------------------------------- parsing */

static const struct zt_option *find_option(const char *name, size_t n) {
    for (int i = 0; i < zt_n_own_options; i++)
        if (strlen(zt_own_options[i].name) == n && strncmp(zt_own_options[i].name, name, n) == 0)
            return &zt_own_options[i];
    return NULL;
}

static const struct zt_option *find_letter(char c) {
    for (int i = 0; i < zt_n_own_options; i++)
        if (zt_own_options[i].letter == c)
            return &zt_own_options[i];
    return NULL;
}

static int unknown_option(const char *text, int command, struct zt_error *err) {
    const char *names[128];
    int n = 0;
    char word_only[64];
    snprintf(word_only, sizeof word_only, "%.*s", (int)strcspn(text, "="), text);
    for (const struct zt_option *r; n < 128 && (r = zt_option_row(n)) != NULL;)
        names[n++] = r->name;
    const char *near = zt_nearest(word_only, names, n);
    const char *name = command >= 0 ? zt_command_name((enum zt_command)command) : "";
    if (near)
        return zt_fail(err, ZT_EINVAL, "unknown option %s (did you mean %s?)", word_only, near);
    return zt_fail(err, ZT_EINVAL, "unknown option %s; see zctl help%s%s", word_only, name[0] ? " " : "",
                   name);
}

static int unknown_command(const char *text, struct zt_error *err) {
    const char *names[ZT_CMD_COUNT];
    for (int i = 0; i < ZT_CMD_COUNT; i++)
        names[i] = zt_command_name((enum zt_command)i);
    const char *near = zt_nearest(text, names, ZT_CMD_COUNT);
    if (near)
        return zt_fail(err, ZT_EINVAL, "unknown command \"%.60s\" (did you mean \"%s\"?)", text, near);
    return zt_fail(err, ZT_EINVAL, "unknown command \"%.60s\"; zctl help lists them", text);
}

/* One option at argv[*i]; moves *i past its argument. */
static int parse_option(int argc, char *const *argv, int *i, struct zt_options *o, bool *used,
                        struct zt_error *err) {
    const char *text = argv[*i], *value = NULL;
    const struct zt_option *r = NULL;
    if (text[1] == '-') {
        size_t n = strcspn(text, "=");
        r = find_option(text, n);
        value = text[n] == '=' ? text + n + 1 : NULL;
    } else {
        r = find_letter(text[1]);
        value = text[2] ? text + 2 : NULL;
    }
    if (!r)
        return unknown_option(text, -1, err);
    if (!r->arg && value)
        return zt_fail(err, ZT_EINVAL, "option %s takes no value", r->name);
    if (r->arg && !value) {
        if (*i + 1 >= argc)
            return zt_fail(err, ZT_EINVAL, "option %s needs a value: %s %s", r->name, r->name, r->arg);
        value = argv[++*i];
    }
    used[r - zt_own_options] = true;
    return store(r, value ? value : "", o, err);
}

static int check_used(struct zt_options *o, const bool *used, struct zt_error *err) {
    if (o->out_file && o->command != ZT_CMD_CONVERT)
        return format("--output", o->out_file, o, err); /* says which formats there are */
    for (int i = 0; i < zt_n_own_options; i++)
        if (used[i] && !(zt_own_options[i].commands & (1u << o->command))) {
            if (zt_option_common(&zt_own_options[i]))
                return zt_fail(err, ZT_EINVAL,
                               "zctl %s takes no %s: it starts a coordinator of its own%s", zt_command_row(o->command)->name,
                               zt_own_options[i].name, o->command == ZT_CMD_RUN ? "; zctl submit hands the file to one that runs" : "");
            return zt_fail(err, ZT_EINVAL, "zctl %s has no option %s; see zctl help %s",
                           zt_command_row(o->command)->name, zt_own_options[i].name, zt_command_row(o->command)->name);
        }
    return 0;
}

static int too_much(const char *name, const char *word, struct zt_error *err) {
    return zt_fail(err, ZT_EINVAL, "zctl %s: \"%.60s\" is too much; see zctl help %s", name, word, name);
}

/* The word after `checkpoint`, and what comes with it. */
static int check_action(const struct zt_options *o, struct zt_error *err) {
    int n = 0, at = -1;
    while (zt_checkpoint_actions[n]) {
        if (o->action && strcmp(zt_checkpoint_actions[n], o->action) == 0)
            at = n;
        n++;
    }
    const char *near = o->action && at < 0 ? zt_nearest(o->action, zt_checkpoint_actions, n) : NULL;
    if (o->help)
        return 0;
    if (near)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint: no action \"%.60s\" (did you mean \"%s\"?)", o->action, near);
    if (at < 0)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint: give one of ls, show, verify, pin, unpin, rm, gc, diff; see zctl help "
                                       "checkpoint");
    if (at == ZT_CHECKPOINT_DIFF && o->subject && !o->other)
        return zt_fail(err, ZT_EINVAL, "zctl checkpoint diff needs two checkpoints, e.g.: zctl checkpoint diff quickstart@500 "
                                       "quickstart@1000");
    if (at != ZT_CHECKPOINT_DIFF && o->other)
        return too_much(zt_command_row(o->command)->name, o->other, err);
    return 0;
}

static int check_subject(const struct zt_options *o, int extra, const char *extra_word,
                         struct zt_error *err) {
    const char *name = zt_command_row(o->command)->name, *subject = zt_command_row(o->command)->subject;
    bool stored = o->resume != NULL; /* the run file comes from there */
    if (zt_estimate_option_check(o, name, err))
        return err->code;
    if (extra > 0)
        return too_much(name, extra_word, err);
    if (o->command == ZT_CMD_CHECKPOINT && check_action(o, err))
        return err->code;
    if (zt_command_row(o->command)->needed && !o->subject && !o->help && !stored)
        return zt_fail(err, ZT_EINVAL, "zctl %s needs a %s, e.g.: %s", name, o->action ? "RUN" : subject,
                       zt_command_row(o->command)->example);
    if (o->subject && o->subject[0] == '\0')
        return zt_fail(err, ZT_EINVAL, "zctl %s: %s is empty", name, subject);
    if (o->command == ZT_CMD_EXPORT && !o->help && (!o->other || !o->other[0]))
        return zt_fail(err, ZT_EINVAL, "zctl export needs a folder to make, e.g.: %s", zt_command_row(o->command)->example);
    return 0;
}

/* Where the next word that is no option goes; NULL: there is no place for it. */
static const char **word_place(struct zt_options *o) {
    if (o->command == ZT_CMD_CHECKPOINT && !o->action)
        return &o->action;
    if (!o->subject && zt_command_row(o->command)->subject)
        return &o->subject;
    return !o->other && (o->command == ZT_CMD_CHECKPOINT || o->command == ZT_CMD_EXPORT) ? &o->other : NULL;
}

int zt_options_parse(int argc, char *const *argv, struct zt_options *o, struct zt_error *err) {
    _Static_assert(ZT_CMD_COUNT <= 32, "one bit a command");
    memset(o, 0, sizeof *o);
    o->interval = 2;
    const char *env = getenv("ZCTL_OUTPUT"), *extra_word = NULL, **place;
    bool have_command = false, options_end = false;
    bool used[ZT_OWN_OPTIONS_MAX] = {false};
    int rc = env && env[0] ? format("ZCTL_OUTPUT", env, o, err) : 0, extra = 0;
    o->command = ZT_CMD_HELP;
    for (int i = 1; i < argc && rc == 0; i++) {
        const char *a = argv[i];
        if (!options_end && strcmp(a, "--") == 0)
            options_end = true;
        else if (!options_end && zt_estimate_option_find(a))
            rc = zt_estimate_option_parse(argc, argv, &i, o, err);
        else if (!options_end && strcmp(a, "--version") == 0 && !have_command) {
            o->command = ZT_CMD_VERSION;
            have_command = true;
        } else if (!options_end && a[0] == '-' && a[1])
            rc = parse_option(argc, argv, &i, o, used, err);
        else if (!have_command) {
            int c = zt_command_find(a);
            if (c < 0)
                return unknown_command(a, err);
            o->command = (enum zt_command)c;
            have_command = true;
        } else if ((place = word_place(o)) != NULL)
            *place = a;
        else if (extra++ == 0)
            extra_word = a;
    }
    if (o->command == ZT_CMD_PLAN && !o->subject)
        o->help = true;
    if (rc == 0)
        rc = check_used(o, used, err);
    return rc ? rc : check_subject(o, extra, extra_word, err);
}
