/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/sample.c: `zctl sample RUN@STEP --prompt TEXT`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "clients/zctl/cmd.h"
#include "clients/zctl/json.h"
#include "clients/zctl/weights.h"
#include "core/units.h"
#include "engine/generate.h"
#include "engine/train.h"

#define TOKENS_DEFAULT 64

#define TRY(call)                                                                                  \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != 0)                                                                               \
            goto out;                                                                              \
    } while (0)

struct sampling {
    const struct zt_options *o;
    struct zt_weights w;
    bool bytes;                    /* a token is a byte of text */
    int32_t *tokens;               /* the prompt's, then those that were made */
    int64_t n_prompt, n, most;     /* most: room */
    const char *stopped;           /* "tokens", "context", "end" */
};

/* ---------------------------------------------------------------------------------- prompt */

/* By the run's tokenizer. Weights from elsewhere do not say; there a vocabulary of bytes is taken for bytes. */
static bool by_bytes(const struct zt_weights *w) {
    bool own = w->spec && strcmp(w->spec->dataset.path, "imported") != 0;
    return own ? w->spec->dataset.tokenizer == ZT_TOKENIZER_BYTES : w->model.vocab_size == 256;
}

static int read_ids(struct sampling *s, struct zt_error *err) {
    const char *p = s->o->prompt;
    while (*p) {
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < 0 || v >= s->w.model.vocab_size || (*end && !strchr(" ,\t\n", *end)))
            return zt_fail(err, ZT_EINVAL, "--prompt \"%.40s\": expected token ids from 0 to %lld, e.g. --prompt \"1 2 3\": the "
                           "weights have no byte tokenizer", p, (long long)s->w.model.vocab_size - 1);
        if (s->n == s->most)
            return zt_fail(err, ZT_EINVAL, "--prompt: more than %lld tokens", (long long)s->most);
        s->tokens[s->n++] = (int32_t)v;
        p = end + strspn(end, " ,\t\n");
    }
    return 0;
}

static int read_prompt(struct sampling *s, struct zt_error *err) {
    const int64_t longest = s->w.model.seq_len_max, more = s->o->tokens ? s->o->tokens : TOKENS_DEFAULT;
    const size_t bytes = s->o->prompt ? strlen(s->o->prompt) : 0;
    if (bytes == 0)
        return zt_fail(err, ZT_EINVAL, "zctl sample needs a --prompt to go on from");
    s->bytes = by_bytes(&s->w);
    s->most = (int64_t)bytes + more;
    s->tokens = malloc((size_t)s->most * sizeof *s->tokens);
    if (!s->tokens)
        return zt_fail(err, ZT_ENOMEM, "no host memory for %lld tokens", (long long)s->most);
    int rc = 0;
    for (size_t i = 0; i < bytes && s->bytes; i++)
        s->tokens[s->n++] = (unsigned char)s->o->prompt[i];
    if (!s->bytes)
        rc = read_ids(s, err);
    s->n_prompt = s->n;
    s->most = s->n + more < longest ? s->n + more : longest;
    if (rc == 0 && s->n >= longest)
        rc = zt_fail(err, ZT_EINVAL, "--prompt: %lld tokens leave no room in the model's seq_len_max of %lld", (long long)s->n,
                     (long long)longest);
    return rc;
}

/* ---------------------------------------------------------------------------------- memory */

static int check_memory(const struct sampling *s, struct zt_error *err) {
    int64_t need = 0, limit = s->o->memory_gib > 0 ? (int64_t)(s->o->memory_gib * (double)ZT_GIB) : zt_default_capacity(1);
    char a[32], b[32];
    int rc = zt_generator_bytes(&s->w.table, s->w.lora_scale, s->most, &need, err);
    if (rc || need <= limit)
        return rc;
    return zt_fail(err, ZT_ENOPLACE, "sampling up to %lld tokens needs %s, and there %s %s%s; fewer --tokens need less",
                   (long long)s->most, zt_format_bytes((double)need, a, sizeof a), s->o->memory_gib > 0 ? "may be taken" : "is",
                   zt_format_bytes((double)limit, b, sizeof b),
                   s->o->memory_gib > 0 ? " (--memory-gib)" : ", half of what is free (--memory-gib sets another limit)");
}

/* ---------------------------------------------------------------------------------- making and telling */

static int make(struct sampling *s, struct zt_error *err) {
    const struct zt_pick pick = {s->o->temperature, s->o->top_k, s->o->seed};
    const int64_t V = s->w.model.vocab_size;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double *scratch = malloc((size_t)V * sizeof *scratch);
    struct zt_generator *g = NULL;
    int rc = scratch ? 0 : zt_fail(err, ZT_ENOMEM, "no host memory for %lld numbers", (long long)V);
    if (rc == 0)
        rc = zt_generator_open(&s->w, &zt_kernels_cpu, s->o->threads ? s->o->threads : cores > 0 ? (int)cores : 1, s->most, &g,
                               err);
    s->stopped = s->most < s->n_prompt + (s->o->tokens ? s->o->tokens : TOKENS_DEFAULT) ? "context" : "tokens";
    while (rc == 0 && s->n < s->most) {
        const float *logits;
        rc = zt_generator_logits(g, s->tokens, s->n, &logits, err);
        if (rc)
            break;
        int32_t next = zt_pick_token(&pick, logits, V, s->n, scratch);
        if (next < 0)
            rc = zt_fail(err, ZT_ENAN, "a logit behind token %lld is not a finite number: these weights are broken",
                         (long long)s->n - 1);
        else if (next == s->w.end_token) {
            s->stopped = "end";
            break;
        } else
            s->tokens[s->n++] = next;
    }
    zt_generator_close(g);
    free(scratch);
    return rc;
}

/* The new tokens as bytes of text; malloc'ed. Ids past a byte do not occur where tokens are bytes and the
 * vocabulary is 256; where it is larger they are shown as the replacement character. */
static char *text_of(const struct sampling *s, size_t *n) {
    char *text = malloc((size_t)(s->n - s->n_prompt) * 3 + 1);
    *n = 0;
    for (int64_t i = s->n_prompt; i < s->n && text; i++)
        if (s->tokens[i] < 256)
            text[(*n)++] = (char)(unsigned char)s->tokens[i];
        else {
            memcpy(text + *n, "\xef\xbf\xbd", 3);
            *n += 3;
        }
    if (text)
        text[*n] = '\0';
    return text;
}

static void tell_json(const struct sampling *s, const char *text, size_t n) {
    json_t *j = json_object(), *ids = json_array();
    for (int64_t i = s->n_prompt; i < s->n; i++)
        json_array_append_new(ids, json_integer(s->tokens[i]));
    json_object_set_new(j, "from", zt_json_text(s->w.folder));
    json_object_set_new(j, "prompt", zt_json_text(s->o->prompt));
    json_t *whole = s->bytes ? json_stringn(text, n) : NULL; /* NULL: not UTF-8 */
    json_object_set_new(j, "text", whole ? whole : json_null());
    json_object_set_new(j, "tokens", ids);
    json_object_set_new(j, "stopped", zt_json_text(s->stopped));
    json_object_set_new(j, "temperature", json_real(s->o->temperature));
    json_object_set_new(j, "top_k", s->o->top_k ? json_integer(s->o->top_k) : json_null());
    json_object_set_new(j, "seed", json_integer((json_int_t)s->o->seed));
    if (s->o->format == ZT_FORMAT_JSON)
        zt_print_json(stdout, j);
    else
        zt_print_json_line(stdout, j);
    json_decref(j);
}

/* On a terminal no byte may move a cursor; lines stay lines. */
static void put_safely(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t line = end ? (size_t)(end - text) - at : n - at;
        char *safe = zt_escape(text + at, line, true);
        fputs(safe ? safe : "", stdout);
        free(safe);
        if (end)
            putchar('\n');
        at += line + (end ? 1 : 0);
    }
}

static void tell_text(const struct sampling *s, const char *text, size_t n) {
    fputs(s->o->prompt, stdout);
    if (!s->bytes)
        for (int64_t i = s->n_prompt; i < s->n; i++)
            printf(" %d", s->tokens[i]);
    else if (isatty(STDOUT_FILENO))
        put_safely(text, n);
    else
        fwrite(text, 1, n, stdout);
    putchar('\n');
    if (strcmp(s->stopped, "context") == 0)
        fprintf(stderr, "stopped at the model's seq_len_max of %lld tokens\n", (long long)s->w.model.seq_len_max);
    if (s->w.model.family == ZT_GPT2 && s->w.spec && strcmp(s->w.spec->dataset.path, "imported") != 0 &&
        s->n > s->w.spec->training.seq_len)
        fprintf(stderr, "note: positions past training.seq_len %lld were never trained\n", (long long)s->w.spec->training.seq_len);
}

int zt_cmd_sample(const struct zt_options *o) {
    struct sampling s = {.o = o};
    struct zt_error err;
    char *text = NULL;
    size_t n = 0;
    int rc = 0;
    if (o->top_k > 0 && o->temperature <= 0)
        TRY(zt_fail(&err, ZT_EINVAL, "--top-k has no effect without --temperature: the likeliest token is always taken"));
    TRY(zt_find_weights(o, o->subject, &s.w, &err));
    TRY(read_prompt(&s, &err));
    TRY(check_memory(&s, &err));
    TRY(make(&s, &err));
    text = text_of(&s, &n);
    if (!text)
        TRY(zt_fail(&err, ZT_ENOMEM, "no host memory for a text"));
    if (o->format == ZT_FORMAT_TABLE)
        tell_text(&s, text, n);
    else
        tell_json(&s, text, n);
out:
    free(text);
    free(s.tokens);
    zt_weights_close(&s.w);
    return rc ? zt_report(rc, &err) : ZT_EXIT_OK;
}
