/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/main.c: zctl. Parses the command line and hands over to the command. */
#include <locale.h>
#include <signal.h>
#include "clients/zctl/cmd.h"

static int help(const struct zt_options *o) {
    struct zt_error err;
    int c = o->help && o->command != ZT_CMD_HELP ? (int)o->command : -1;
    if (o->command == ZT_CMD_HELP && o->subject) {
        c = zt_command_find(o->subject);
        if (c < 0)
            return zt_report(zt_fail(&err, ZT_EINVAL, "no command \"%.60s\"; zctl help lists them", o->subject),
                             &err);
    }
    if (c >= 0)
        zt_help_command(stdout, (enum zt_command)c);
    else
        zt_help(stdout);
    return ZT_EXIT_OK;
}

static int dispatch(const struct zt_options *o) {
    if (o->help || o->command == ZT_CMD_HELP)
        return help(o);
    switch (o->command) {
    case ZT_CMD_RUN: return zt_cmd_run(o);
    case ZT_CMD_PROBE: return zt_cmd_probe(o);
    case ZT_CMD_SUBMIT: return zt_cmd_submit(o);
    case ZT_CMD_VALIDATE: return zt_cmd_validate(o);
    case ZT_CMD_PLAN: return zt_cmd_plan(o);
    case ZT_CMD_ADVISE: return zt_cmd_advise(o);
    case ZT_CMD_CONVERT: return zt_cmd_convert(o);
    case ZT_CMD_EXPLAIN: return zt_cmd_explain(o);
    case ZT_CMD_DTYPES: return zt_cmd_dtypes(o);
    case ZT_CMD_STATUS: return zt_cmd_status(o);
    case ZT_CMD_LIST: return zt_cmd_list(o);
    case ZT_CMD_WATCH: return zt_cmd_watch(o);
    case ZT_CMD_METRICS: return zt_cmd_metrics(o);
    case ZT_CMD_MEMORY: return zt_cmd_memory(o);
    case ZT_CMD_LOGS: return zt_cmd_logs(o);
    case ZT_CMD_EVENTS: return zt_cmd_events(o);
    case ZT_CMD_CANCEL: return zt_cmd_cancel(o);
    case ZT_CMD_WAIT: return zt_cmd_wait(o);
    case ZT_CMD_WORKERS: return zt_cmd_workers(o);
    case ZT_CMD_ESTIMATE: return zt_cmd_estimate(o);
    case ZT_CMD_CALIBRATE: return zt_cmd_calibrate(o);
    case ZT_CMD_CHECKPOINT: return zt_cmd_checkpoint(o);
    case ZT_CMD_DRILL: return zt_cmd_drill(o);
    case ZT_CMD_IMPORT: return zt_cmd_import(o);
    case ZT_CMD_EXPORT: return zt_cmd_export(o);
    case ZT_CMD_SAMPLE: return zt_cmd_sample(o);
    case ZT_CMD_VERSION: return zt_cmd_version(o);
    case ZT_CMD_HELP:
    case ZT_CMD_COUNT: break;
    }
    struct zt_error err;
    return zt_report(zt_fail(&err, ZT_EUNSUPPORTED, "zctl %s is not in this version", zt_command_name(o->command)), &err);
}

int main(int argc, char **argv) {
    struct zt_options o;
    struct zt_error err;
    setlocale(LC_CTYPE, ""); /* widths of characters in tables; numbers keep their point */
    int rc = zt_options_parse(argc, argv, &o, &err);
    if (rc)
        return zt_report(rc, &err);
    if (argc == 1) {
        zt_help(stderr);
        return ZT_EXIT_USAGE;
    }
    int code = dispatch(&o);
    /* Output that could not be written is a failure, e.g. a full disk behind > FILE. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("zctl: cannot write the output\n", stderr);
        code = code == ZT_EXIT_OK ? ZT_EXIT_OTHER : code;
    }
    return code;
}
