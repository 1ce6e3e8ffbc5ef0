/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/options_help.c: what `zctl help` prints, made from the tables of options.c. */
#include <string.h>
#include "clients/zctl/options.h"

/* Words wrapped at column 96, following lines indented. */
void zt_wrap(FILE *out, int column, int indent, const char *text) {
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (column > indent && column + 1 + n > 96) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (p != text) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, p);
        column += n;
        p += n;
        while (*p == ' ')
            p++;
    }
    fputc('\n', out);
}

static void help_option(FILE *out, const struct zt_option *r) {
    char left[64], letter[8] = "    ";
    if (r->letter)
        snprintf(letter, sizeof letter, "-%c, ", r->letter);
    snprintf(left, sizeof left, "  %s%s%s%s", letter, r->name, r->arg ? " " : "", r->arg ? r->arg : "");
    fprintf(out, "%-30s", left);
    zt_wrap(out, 30, 30, r->help);
}

static void help_options(FILE *out, uint32_t mask, bool everywhere) {
    const struct zt_option *r;
    for (int i = 0; (r = zt_option_row(i)) != NULL; i++)
        if ((r->commands & mask) && zt_option_common(r) == everywhere)
            help_option(out, r);
}

void zt_help(FILE *out) {
    fputs("zctl: train transformers on the workers of a ztrain coordinator\n\n"
          "usage: zctl COMMAND [WORDS] [OPTIONS]\n\n",
          out);
    for (int i = 0; i < ZT_CMD_COUNT; i++) {
        const struct zt_command_row *r = zt_command_row((enum zt_command)i);
        const char *s = r->subject;
        char left[64];
        snprintf(left, sizeof left, "  %s%s%s%s%s", r->name, s ? " " : "", s && !r->needed ? "[" : "", s ? s : "",
                 s && !r->needed ? "]" : "");
        fprintf(out, "%-25s", left);
        zt_wrap(out, 25, 25, r->help);
    }
    fputs("\noptions of every command:\n", out);
    help_options(out, UINT32_MAX, true);
    fputs("\nRUN is a run's id, the start of one, its name (the newest of that name) or @latest.\n"
          "exit codes: 0 done, 1 the run failed, 2 wrong use or run file, 3 not found, 4 not allowed,\n"
          "5 conflict, 6 no coordinator, 8 versions, 9 cancelled, 10 other, 124 timeout, 130 Ctrl-C\n"
          "(7: the plan does not fit; advise: nothing does)\n",
          out);
}

void zt_help_command(FILE *out, enum zt_command c) {
    const struct zt_command_row *r = zt_command_row(c);
    const char *s = r->subject;
    bool opt = s && !r->needed;
    fprintf(out, "usage: zctl %s%s%s%s%s [OPTIONS]\n\n", r->name, s ? " " : "", opt ? "[" : "",
            s ? s : "", opt ? "]" : "");
    zt_wrap(out, 0, 0, r->help);
    fprintf(out, "\nexample: %s\n\noptions:\n", r->example);
    help_options(out, 1u << c, false);
    help_options(out, 1u << c, true);
}
