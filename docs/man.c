/* SPDX-License-Identifier: Apache-2.0 */
/* docs/man.c: prints zctl.1 from zctl's own tables: the commands with their help text and the rows
 * of options, so that the page cannot say anything that the program does not. Owns nothing; one
 * thread. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/options.h"

/* Text as roff wants it: no line begins with a control character, dashes stay dashes. */
static void roff(FILE *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((i == 0 || text[i - 1] == '\n') && (text[i] == '.' || text[i] == '\''))
            fputs("\\&", out);
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void roff_text(FILE *out, const char *text) { roff(out, text, strlen(text)); }

/* What `zctl help COMMAND` prints; the caller frees it. */
static char *help_text(enum zt_command c) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    zt_help_command(f, c);
    return fclose(f) == 0 ? text : NULL;
}

static void option(FILE *out, const struct zt_option *r) {
    fputs(".TP\n.B ", out);
    if (r->letter) fprintf(out, "\\-%c, ", r->letter);
    roff_text(out, r->name);
    if (r->arg) {
        fputs(" \\fI", out);
        roff_text(out, r->arg);
        fputs("\\fR", out);
    }
    fputc('\n', out);
    roff_text(out, r->help);
    fputc('\n', out);
}

/* The first line of the help is "usage: zctl NAME [SUBJECT] [OPTIONS]", the text follows an empty
 * line and ends with another, then comes "example: ...". */
static int command(FILE *out, enum zt_command c) {
    static const char usage[] = "usage: zctl ", example[] = "example: ";
    char *text = help_text(c);
    char *first = text ? strchr(text, '\n') : NULL, *body = first ? strstr(first, "\n\n") : NULL;
    char *end = body ? strstr(body + 2, "\n\n") : NULL,
         *example_at = end ? strstr(end, example) : NULL;
    if (!example_at || strncmp(text, usage, sizeof usage - 1) != 0) {
        free(text);
        return -1;
    }
    fputs(".SS ", out);
    roff(out, text + sizeof usage - 1, (size_t)(first - text) - (sizeof usage - 1));
    fputc('\n', out);
    roff(out, body + 2, (size_t)(end - body - 2));
    fputs("\n.PP\nExample:\n.B ", out);
    roff(out, example_at + sizeof example - 1, strcspn(example_at + sizeof example - 1, "\n"));
    fputc('\n', out);
    free(text);
    for (int i = 0; zt_option_row(i); i++)
        if (zt_option_row(i)->commands & (1u << c) && !zt_option_common(zt_option_row(i)))
            option(out, zt_option_row(i));
    return 0;
}

static void head(FILE *out) {
    fprintf(out,
            ".\\\" SPDX-License-Identifier: Apache-2.0\n.\\\" Printed by docs/man.c from zctl's "
            "tables.\n"
            ".TH ZCTL 1 \"\" \"ztrain %s\" \"ztrain\"\n",
            ZT_VERSION);
    fputs(".SH NAME\nzctl \\- train transformers on the workers of a ztrain coordinator\n"
          ".SH SYNOPSIS\n.B zctl\n.I COMMAND\n[\\fIWORDS\\fR] [\\fIOPTIONS\\fR]\n"
          ".SH DESCRIPTION\n"
          "Hands runs to a coordinator (see\n.BR zcoord (1)),\n"
          "shows where they are, what they cost in memory and which communication was not hidden, "
          "and ends them.\n"
          "\\fBzctl run\\fR needs no coordinator: it starts one of its own.\n"
          ".PP\n\\fIRUN\\fR is the id of a run, the start of one, a name (the newest run that has "
          "it) or \\fB@latest\\fR.\n",
          out);
}

static void tail(FILE *out) {
    static const struct {
        int code;
        const char *text;
    } codes[] = {{ZT_EXIT_OK, "done"},
                 {ZT_EXIT_FAILED, "the run failed"},
                 {ZT_EXIT_USAGE, "wrong use or run file"},
                 {ZT_EXIT_NOTFOUND, "not found"},
                 {ZT_EXIT_AUTH, "not allowed"},
                 {ZT_EXIT_CONFLICT, "conflict"},
                 {ZT_EXIT_UNREACHABLE, "no coordinator"},
                 {ZT_EXIT_NOPLACE, "kept for plans that do not fit; not returned by this version"},
                 {ZT_EXIT_VERSION, "versions do not fit"},
                 {ZT_EXIT_CANCELLED, "the run was cancelled"},
                 {ZT_EXIT_OTHER, "other"},
                 {ZT_EXIT_TIMEOUT, "time was up"},
                 {ZT_EXIT_INTERRUPT, "Ctrl\\-C"}};
    fputs(".SH OPTIONS OF EVERY COMMAND\n", out);
    for (int i = 0; zt_option_row(i); i++)
        if (zt_option_common(zt_option_row(i))) option(out, zt_option_row(i));
    fputs(".SH EXIT STATUS\n", out);
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        fprintf(out, ".TP\n.B %d\n%s\n", codes[i].code, codes[i].text);
    fputs(".SH ENVIRONMENT\n.TP\n.B ZCTL_COORD\nThe coordinator, where \\fB\\-\\-coord\\fR is not "
          "given.\n"
          ".TP\n.B ZTRAIN_TOKEN_FILE\nThe token file, where \\fB\\-\\-token\\-file\\fR is not "
          "given.\n"
          ".TP\n.B ZTRAIN_STATE\nThe coordinator's state folder, where the token is looked for "
          "else.\n"
          ".TP\n.B ZCTL_OUTPUT\nDefault of \\fB\\-\\-output\\fR.\n"
          ".TP\n.B NO_COLOR\nNo colours.\n"
          ".TP\n.B XDG_STATE_HOME\nWhere state folders are, and the devices that \\fBcalibrate\\fR "
          "measured; default \\fI~/.local/state\\fR.\n"
          ".TP\n.B XDG_CONFIG_HOME\nWhere your own devices are, \\fIztrain/devices.json\\fR; default "
          "\\fI~/.config\\fR.\n"
          ".SH SEE ALSO\n.BR zcoord (1),\n.BR zworker (1)\n",
          out);
}

int main(void) {
    head(stdout);
    fputs(".SH COMMANDS\n", stdout);
    for (int c = 0; c < ZT_CMD_COUNT; c++)
        if (command(stdout, (enum zt_command)c)) {
            fprintf(stderr, "man: the help of zctl %s has another shape than expected\n",
                    zt_command_name((enum zt_command)c));
            return 1;
        }
    tail(stdout);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
