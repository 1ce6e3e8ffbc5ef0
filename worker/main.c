/* SPDX-License-Identifier: Apache-2.0 */
/* worker/main.c: zworker: options, then supervisor or trainer child. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/units.h"
#include "engine/comm/comm.h"
#include "worker/calibrate.h"
#include "worker/supervisor.h"
#include "worker/trainer.h"

static const char usage[] =
    "usage: zworker [--coord HOST:PORT] [options]\n"
    "\n"
    "Trains what the coordinator assigns, one rank at a time, until it is stopped (SIGTERM drains).\n"
    "\n"
    "  --coord HOST:PORT   coordinator (default: ZCTL_COORD, else 127.0.0.1:7000)\n"
    "  --device cpu        what to train on\n"
    "  --memory-gib X      device memory (default: half of what is available, shared with the other\n"
    "                      workers of this host)\n"
    "  --threads N         compute threads (default: this host's cores, shared likewise)\n"
    "  --name NAME         name of this worker (default: cpu-K, the lowest K that is free)\n"
    "  --host NAME         host it counts as: ranks of one host share memory, others talk over TCP\n"
    "                      (default: host name and boot id)\n"
    "  --address ADDRESS   where ranks of other hosts reach its ranks, a loopback address (default: this\n"
    "                      end of the connection to the coordinator)\n"
    "  --token-file FILE   the coordinator's token (default: ZTRAIN_TOKEN_FILE, else its state folder)\n"
    "  --state DIR         folder for reports that do not fit into memory\n"
    "                      (default: ~/.local/state/ztrain/worker)\n"
    "  --isa NAME          sse2, avx2 or avx512 (default: the best there is)\n"
    "  --gemm NAME         onednn or openblas (default: onednn)\n"
    "  --version, --help (-h)\n"
    "\n"
    "Exit codes: 0 stopped, 2 bad option, 4 not authenticated, 5 name taken, 8 version mismatch.\n";

enum { O_COORD = 256, O_DEVICE, O_MEMORY, O_THREADS, O_NAME, O_HOST, O_ADDRESS, O_TOKEN, O_STATE, O_ISA, O_GEMM,
       O_TRAINER_FD, O_PROGRESS_FD, O_PARENT, O_TRAINER_COMMAND, O_CALIBRATE, O_RANKS, O_COMM, O_VERSION, O_HELP };

static const struct option options[] = {
    {"coord", required_argument, NULL, O_COORD}, {"device", required_argument, NULL, O_DEVICE},
    {"memory-gib", required_argument, NULL, O_MEMORY}, {"threads", required_argument, NULL, O_THREADS},
    {"name", required_argument, NULL, O_NAME}, {"host", required_argument, NULL, O_HOST},
    {"address", required_argument, NULL, O_ADDRESS}, {"token-file", required_argument, NULL, O_TOKEN},
    {"state", required_argument, NULL, O_STATE}, {"isa", required_argument, NULL, O_ISA},
    {"gemm", required_argument, NULL, O_GEMM},
    /* between a supervisor and its child, and for tests: not in the usage text */
    {"trainer-fd", required_argument, NULL, O_TRAINER_FD}, {"progress-fd", required_argument, NULL, O_PROGRESS_FD},
    {"parent", required_argument, NULL, O_PARENT}, {"trainer-command", required_argument, NULL, O_TRAINER_COMMAND},
    /* started by zctl calibrate: SECONDS, processes at once, collectives too */
    {"calibrate", required_argument, NULL, O_CALIBRATE}, {"ranks", required_argument, NULL, O_RANKS},
    {"comm", no_argument, NULL, O_COMM},
    {"version", no_argument, NULL, O_VERSION}, {"help", no_argument, NULL, O_HELP}, {NULL, 0, NULL, 0}};

static int bad(const char *message, const char *value)
{
    fprintf(stderr, "zworker: %s%s%s (zworker --help lists the options)\n", message, value ? ": " : "",
            value ? value : "");
    return 2;
}

static int whole_number(const char *s, long low, long high, long *out)
{
    char *end;
    *out = strtol(s, &end, 10);
    return s[0] && !*end && *out >= low && *out <= high ? 0 : -1;
}

struct child_args { long trainer_fd, progress_fd, parent; };

static struct zw_calibration calibration = {.ranks = 1};

static int set_number(struct zw_options *o, struct child_args *c, int opt, const char *arg)
{
    long n;
    char *end;
    switch (opt) {
    case O_CALIBRATE:
        calibration.seconds = strtod(arg, &end);
        if (!arg[0] || *end || !(calibration.seconds > 0 && calibration.seconds <= 3600)) {
            return bad("--calibrate must be a number of seconds above 0", arg);
        }
        return 0;
    case O_RANKS:
        if (whole_number(arg, 1, 64, &n)) {
            return bad("--ranks must be a whole number from 1 to 64", arg);
        }
        calibration.ranks = (int)n;
        return 0;
    case O_COMM:
        calibration.comm = true;
        return 0;
    case O_MEMORY: {
        double gib = strtod(arg, &end);
        if (!arg[0] || *end || !isfinite(gib) || gib <= 0 || gib > 1e6) {
            return bad("--memory-gib must be a number above 0", arg);
        }
        o->memory_bytes = (int64_t)(gib * (double)ZT_GIB);
        return 0;
    }
    case O_THREADS:
        if (whole_number(arg, 1, 1024, &n)) {
            return bad("--threads must be a whole number from 1 to 1024", arg);
        }
        o->threads = (int)n;
        return 0;
    case O_TRAINER_FD:
        return whole_number(arg, 0, 1 << 20, &c->trainer_fd) ? bad("--trainer-fd", arg) : 0;
    case O_PROGRESS_FD:
        return whole_number(arg, 0, 1 << 20, &c->progress_fd) ? bad("--progress-fd", arg) : 0;
    default:
        return whole_number(arg, 1, INT32_MAX, &c->parent) ? bad("--parent", arg) : 0;
    }
}

static int set_option(struct zw_options *o, struct child_args *c, const char **coord, int opt, const char *arg)
{
    const char **text = NULL;
    switch (opt) {
    case O_COORD: text = coord; break;
    case O_DEVICE: text = &o->device; break;
    case O_NAME: text = &o->name; break;
    case O_HOST: text = &o->host_name; break;
    case O_ADDRESS: text = &o->address; break;
    case O_TOKEN: text = &o->token_file; break;
    case O_STATE: text = &o->state; break;
    case O_ISA: text = &o->isa; break;
    case O_GEMM: text = &o->gemm; break;
    case O_TRAINER_COMMAND: text = &o->trainer_command; break;
    default: return set_number(o, c, opt, arg);
    }
    if (!arg || !arg[0]) {
        return bad("an option has an empty value", NULL);
    }
    *text = arg;
    return 0;
}

int main(int argc, char **argv)
{
    struct zw_options o = {.device = "cpu"};
    struct child_args c = {.trainer_fd = -1, .progress_fd = -1};
    const char *coord = NULL;
    struct zt_error err;
    int opt;
    while ((opt = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (opt == O_HELP || opt == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (opt == O_VERSION) {
            printf("zworker %s (protocol %d.%d)\n", ZT_VERSION, ZT_PROTOCOL_MAJOR, ZT_PROTOCOL_MINOR);
            return 0;
        }
        int rc = opt == '?' ? bad("bad option", NULL) : set_option(&o, &c, &coord, opt, optarg);
        if (rc) {
            return rc;
        }
    }
    if (optind < argc) {
        return bad("unexpected argument", argv[optind]);
    }
    if (c.trainer_fd >= 0) {
        return zw_trainer_main((int)c.trainer_fd, (int)c.progress_fd, (pid_t)c.parent);
    }
    if (calibration.seconds > 0) {
        calibration.threads = o.threads;
        calibration.isa = o.isa;
        calibration.gemm = o.gemm;
        return zw_calibrate(&calibration);
    }
    if (strcmp(o.device, "cpu") != 0) {
        return bad("--device: this version trains on cpu only, not on", o.device);
    }
    if (o.address && !zt_comm_address_allowed(o.address)) {
        return bad("--address must be a numeric loopback address: what ranks send each other is not encrypted, so "
                   "others are refused until TLS exists",
                   o.address);
    }
    if (zt_coord_address(coord, o.host, sizeof(o.host), &o.port, &err)) {
        return bad(err.msg, NULL);
    }
    return zw_supervise(&o);
}
