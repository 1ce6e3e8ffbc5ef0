/* SPDX-License-Identifier: Apache-2.0 */
/* engine/plan/advise_moves.c: what may be changed in a run file to need less memory or less time,
 * as keys and values that --set takes. A changed spec is read again from its text, so that what the
 * rules of a run file refuse is never advised. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/spec_schema.h"
#include "engine/plan/advise_int.h"

#define LL(v) ((long long)(v))
#define P "parallelism."
#define REPLICATE P "data_parallel_replicate_degree"
#define SHARD P "data_parallel_shard_degree"
#define LOCAL "training.local_batch_size"
#define GLOBAL "training.global_batch_size"
#define EVERY "activation_checkpoint.every"
#define CHUNK "loss.chunk_tokens"
#define SEQUENCE P "sequence_parallel"

/* ---- values as text ---- */

static void reshard_text(const struct zt_spec *s, char *buf, size_t n) {
    static const char *const names[] = {"default", "true", "false"};
    if (s->parallelism.reshard == ZT_RESHARD_INT)
        snprintf(buf, n, "%d", s->parallelism.reshard_int);
    else
        snprintf(buf, n, "%s", names[s->parallelism.reshard]);
}

static void wrap_text(const struct zt_spec *s, char *buf, size_t n) {
    if (s->parallelism.wrap == ZT_WRAP_N)
        snprintf(buf, n, "%d", s->parallelism.wrap_n);
    else
        snprintf(buf, n, "%s", s->parallelism.wrap == ZT_WRAP_PART ? "part" : "block");
}

static const char *recompute_name(enum zt_recompute r) {
    static const char *const names[] = {"none", "selective", "full"};
    return names[r];
}

static const char *truth(bool b) { return b ? "true" : "false"; }

static void value_text(const struct zt_spec *s, const char *key, char *buf, size_t n) {
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"workers", s->workers},
        {REPLICATE, s->parallelism.replicate},
        {SHARD, s->parallelism.shard},
        {ADVISE_TENSOR, s->parallelism.tensor},
        {P "prefetch", s->parallelism.prefetch},
        {P "max_inflight_reduces", s->parallelism.max_inflight_reduces},
        {P "persistence_threshold", s->parallelism.persistence_threshold},
        {LOCAL, s->training.local_batch_size},
        {GLOBAL, s->training.global_batch_size},
        {"training.seq_len", s->training.seq_len},
        {CHUNK, s->loss.chunk_tokens},
        {EVERY, s->activation_checkpoint.every},
    };
    const struct {
        const char *key, *value;
    } words[] = {
        {P "mode", zt_mode_name(s->parallelism.mode)},
        {P "overlap", truth(s->parallelism.overlap)},
        {P "no_sync", truth(s->parallelism.no_sync)},
        {"precision.recipe", s->precision.recipe},
        {"precision.reduce_dtype", zt_dtype_name(s->precision.reduce_dtype)},
        {SEQUENCE, truth(s->parallelism.sequence_parallel)},
        {ADVISE_RECOMPUTE, recompute_name(s->activation_checkpoint.mode)},
    };
    buf[0] = '\0';
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(numbers[i].key, key) == 0) snprintf(buf, n, "%lld", LL(numbers[i].value));
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i].key, key) == 0) snprintf(buf, n, "%s", words[i].value);
    if (strcmp(key, P "bucket_mib") == 0) snprintf(buf, n, "%g", s->parallelism.bucket_mib);
    if (strcmp(key, P "reshard_after_forward") == 0) reshard_text(s, buf, n);
    if (strcmp(key, P "wrap") == 0) wrap_text(s, buf, n);
}

/* ---- lists of moves ---- */

struct moves {
    const struct zt_spec *s;
    struct given g;
    int per_host, n;
    struct move *at;
};

static void edit(struct move *m, const struct zt_spec *s, const char *key, bool implied,
                 const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void edit(struct move *m, const struct zt_spec *s, const char *key, bool implied,
                 const char *fmt, ...) {
    struct zt_advise_edit *e = &m->edit[m->n++];
    va_list ap;
    snprintf(e->key, sizeof e->key, "%s", key);
    value_text(s, key, e->from, sizeof e->from);
    va_start(ap, fmt);
    vsnprintf(e->to, sizeof e->to, fmt, ap);
    va_end(ap);
    e->implied = implied;
}

/* The next free one; what does not fit into the list is the last of the order and left out. */
static struct move *add(struct moves *l, const char *why) {
    struct move *m = &l->at[l->n < MOVES_MAX ? l->n++ : MOVES_MAX - 1];
    memset(m, 0, sizeof *m);
    m->why = why;
    return m;
}

static void one(struct moves *l, const char *key, const char *to, const char *why) {
    edit(add(l, why), l->s, key, false, "%s", to);
}

static bool gathers(enum zt_mode m) { return m == ZT_ZERO3 || m == ZT_FSDP; }

/* ---- modes and degrees ---- */

static int dp_of(const struct zt_spec *s) { return zt_mesh_dp(zt_spec_mesh(s)); }

static void mode_edits(struct move *m, const struct zt_spec *s, struct given g, enum zt_mode mode,
                       int replicate, int shard) {
    /* what the rules fill where a file leaves the degrees open */
    bool filled = !g.degrees && (mode == ZT_DDP ? shard == 1 : replicate == 1);
    if (mode != s->parallelism.mode) edit(m, s, P "mode", false, "%s", zt_mode_name(mode));
    if (replicate == s->parallelism.replicate && shard == s->parallelism.shard) return;
    edit(m, s, REPLICATE, filled, "%d", replicate);
    edit(m, s, SHARD, filled, "%d", shard);
}

/* A file whose degrees are open and whose mesh is not what is filled cannot be: resolve filled it.
 */
static void mode_move(struct moves *l, enum zt_mode mode, int replicate, int shard,
                      const char *why) {
    mode_edits(add(l, why), l->s, l->g, mode, replicate, shard);
}

static const char *cuts(enum zt_mode m) {
    switch (m) {
    case ZT_ZERO1:
        return "masters and moments are cut over the shard group; as many bytes are sent";
    case ZT_ZERO2:
        return "gradients are cut too, and reduced in every micro-step";
    case ZT_ZERO3:
        return "parameters are cut too: each unit is gathered before its use, forward and backward";
    case ZT_FSDP:
        return "parameters are cut too: each unit is gathered before its use; the root is kept for "
               "backward";
    default:
        return "everything is whole on every rank";
    }
}

static void cut_more(struct moves *l) {
    const struct zt_spec *s = l->s;
    static const enum zt_mode order[] = {ZT_ZERO1, ZT_ZERO2, ZT_FSDP, ZT_ZERO3};
    int dp = dp_of(s), r = s->parallelism.shard > 1 ? s->parallelism.replicate : 1;
    bool several = l->per_host > 0 && dp > l->per_host && dp % l->per_host == 0;
    if (dp < 2) return;
    for (int i = 0; i < 4; i++)
        if (order[i] > s->parallelism.mode &&
            (order[i] != ZT_ZERO3 || s->parallelism.mode != ZT_FSDP))
            mode_move(l, order[i], r, dp / r, cuts(order[i]));
    if (several && s->parallelism.mode == ZT_DDP)
        mode_move(l, ZT_FSDP, dp / l->per_host, l->per_host,
                  "everything is cut within a host and replicated over hosts: gathers stay inside");
    if (s->parallelism.shard < 2) return;
    for (int k = r - 1, n = 0; k >= 1; k--) {
        if (r % k != 0 || (n++ >= 2 && k > 1)) continue;
        mode_move(l, s->parallelism.mode, k, dp / k,
                  "fewer replicas, so that each shard is smaller");
    }
}

static void cut_less(struct moves *l) {
    const struct zt_spec *s = l->s;
    static const enum zt_mode order[] = {ZT_DDP, ZT_ZERO1, ZT_ZERO2, ZT_FSDP};
    int dp = dp_of(s), r = s->parallelism.shard > 1 ? s->parallelism.replicate : 1;
    bool several = l->per_host > 0 && dp > l->per_host && dp % l->per_host == 0;
    if (dp < 2) return;
    for (int i = 0; i < 4; i++)
        if (order[i] < s->parallelism.mode)
            mode_move(l, order[i], order[i] == ZT_DDP ? dp : r, order[i] == ZT_DDP ? 1 : dp / r,
                      order[i] == ZT_DDP ? cuts(ZT_DDP)
                      : order[i] == ZT_FSDP
                          ? "the root is kept from forward to backward"
                          : "parameters stay whole: none is gathered before its use");
    if (several && gathers(s->parallelism.mode) && s->parallelism.shard > l->per_host)
        mode_move(l, s->parallelism.mode, dp / l->per_host, l->per_host,
                  "cut within a host and replicated over hosts: gathers stay inside");
}

/* ---- how units are gathered and reduced ---- */

/* Bytes of the largest unit in the format of reductions. */
static double largest_unit(const struct zt_spec *s) {
    struct zt_model_table t = {0};
    double most = 0;
    if (zt_model_table_build(&s->model, s->parallelism.wrap, s->parallelism.wrap_n, &t, NULL))
        return 0;
    for (int u = 0; u < t.n_units; u++) {
        double bytes = 0;
        for (int i = 0; i < t.units[u].n_tensors; i++)
            bytes += (double)t.tensors[t.units[u].first_tensor + i].numel;
        most = fmax(most, bytes * (double)zt_dtype_size(s->precision.reduce_dtype));
    }
    zt_model_table_free(&t);
    return most;
}

static void smaller_buckets(struct moves *l) {
    static const char why[] = "smaller collectives, and more of them: less is staged at once";
    double now = l->s->parallelism.bucket_mib, unit = largest_unit(l->s) / 1048576.0;
    double top = now > 0 ? fmin(now, unit) / 2 : unit / 2;
    if (now > unit)
        one(l, P "bucket_mib", "0", "one collective a unit: units are no longer merged");
    for (int i = 0; i < 3 && top >= 1.0 / 64; i++, top /= 4)
        edit(add(l, why), l->s, P "bucket_mib", false, "%g", exp2(floor(log2(top))));
}

static void smaller_units(struct moves *l) {
    const struct zt_spec *s = l->s;
    if (s->parallelism.wrap == ZT_WRAP_N && s->parallelism.wrap_n > 3)
        edit(add(l, "fewer blocks are whole at a time"), s, P "wrap", false, "%d",
             s->parallelism.wrap_n / 2);
    if (s->parallelism.wrap == ZT_WRAP_N && s->parallelism.wrap_n > 1)
        one(l, P "wrap", "block", "one block is whole at a time");
    if (s->parallelism.wrap != ZT_WRAP_PART)
        one(l, P "wrap", "part",
            "attention and MLP are units of their own: half a block is whole at a time");
}

static void gather_less(struct moves *l) {
    const struct zt_spec *s = l->s;
    int m = l->per_host;
    if (!gathers(s->parallelism.mode) || s->parallelism.shard < 2) return;
    bool freed = s->parallelism.reshard == ZT_RESHARD_TRUE ||
                 (s->parallelism.mode == ZT_ZERO3 && s->parallelism.reshard == ZT_RESHARD_DEFAULT);
    if (s->parallelism.reshard == ZT_RESHARD_FALSE && m > 1 && m < s->parallelism.shard &&
        s->parallelism.shard % m == 0)
        edit(add(l, "a slice of each unit is kept for backward, which gathers within a host"), s,
             P "reshard_after_forward", false, "%d", m);
    if (s->parallelism.reshard == ZT_RESHARD_FALSE || s->parallelism.reshard == ZT_RESHARD_INT)
        one(l, P "reshard_after_forward", "default",
            "gathered parameters are freed after forward (but the root's) and gathered again");
    if (!freed)
        one(l, P "reshard_after_forward", "true",
            "all gathered parameters are freed after forward and gathered again");
    if (s->parallelism.prefetch > 1) one(l, P "prefetch", "1", "one unit is gathered ahead");
    if (s->parallelism.prefetch > 0)
        one(l, P "prefetch", "0", "no unit is gathered ahead: computation waits for each gather");
    if (s->parallelism.persistence_threshold > 0)
        one(l, P "persistence_threshold", "0", "small tensors are cut too");
    if (s->parallelism.no_sync)
        one(l, P "no_sync", "false",
            "gradients are cut in every micro-step instead of kept whole until the last");
}

static void gather_more(struct moves *l) {
    const struct zt_spec *s = l->s;
    if (!gathers(s->parallelism.mode) || s->parallelism.shard < 2) return;
    if (s->parallelism.reshard != ZT_RESHARD_FALSE)
        one(l, P "reshard_after_forward", "false", "gathered parameters are kept for backward");
    if (s->parallelism.prefetch < 4)
        edit(add(l, "one more unit is gathered ahead"), s, P "prefetch", false, "%d",
             s->parallelism.prefetch + 1);
    if (!s->parallelism.no_sync && zt_spec_accumulation(s) > 1)
        one(l, P "no_sync", "true", "gradients are reduced once for all micro-steps");
}

/* ---- what layers keep ---- */

static void recompute_more(struct moves *l) {
    static const char *const why[] = {
        [ZT_RECOMPUTE_SELECTIVE] = "norms and activation functions are computed again in backward",
        [ZT_RECOMPUTE_FULL] = "of a block its input alone is kept, all else is computed again"};
    const int now = (int)l->s->activation_checkpoint.mode;
    if (!advise_has(ADVISE_RECOMPUTE)) return;
    for (int r = now + 1; r <= ZT_RECOMPUTE_FULL; r++)
        one(l, ADVISE_RECOMPUTE, recompute_name((enum zt_recompute)r), why[r]);
    if (now != ZT_RECOMPUTE_NONE && l->s->activation_checkpoint.every > 1 && advise_has(EVERY))
        one(l, EVERY, "1", "every block is computed again");
}

static void recompute_less(struct moves *l) {
    const int now = (int)l->s->activation_checkpoint.mode;
    if (!advise_has(ADVISE_RECOMPUTE)) return;
    for (int r = now - 1; r >= ZT_RECOMPUTE_NONE; r--)
        one(l, ADVISE_RECOMPUTE, recompute_name((enum zt_recompute)r),
            "less is computed again in backward");
    if (now != ZT_RECOMPUTE_NONE && advise_has(EVERY) &&
        l->s->activation_checkpoint.every < l->s->model.layers)
        edit(add(l, "fewer blocks are computed again"), l->s, EVERY, false, "%lld",
             LL(l->s->activation_checkpoint.every + 1));
}

static void loss_in_chunks(struct moves *l) {
    static const int64_t sizes[] = {1024, 256};
    const int64_t now = l->s->loss.chunk_tokens;
    int64_t most = l->s->training.local_batch_size * l->s->training.seq_len;
    if (!advise_has(CHUNK)) return;
    if (now > 0 && now < most) most = now;
    for (int i = 0; i < 2; i++)
        if (sizes[i] < most)
            edit(add(l, "logits and their gradient are there a chunk at a time"), l->s, CHUNK,
                 false, "%lld", LL(sizes[i]));
}

/* ---- tensor parallelism ---- */

/* Ranks of one host that then share the data: as many fewer shards, or replicas, at the same
 * global batch. up: times as many; else a so-manieth. */
static void tensor_move(struct moves *l, int times, bool up, const char *why) {
    const struct zt_spec *s = l->s;
    const bool shards = s->parallelism.mode != ZT_DDP;
    const int now = shards ? s->parallelism.shard : s->parallelism.replicate;
    const int t = s->parallelism.tensor;
    if (up ? now % times : t % times) return;
    struct move *m = add(l, why);
    edit(m, s, ADVISE_TENSOR, false, "%d", up ? t * times : t / times);
    edit(m, s, shards ? SHARD : REPLICATE, !l->g.degrees, "%d", up ? now / times : now * times);
    edit(m, s, GLOBAL, l->g.global_batch, "%lld", LL(s->training.global_batch_size));
}

static void cut_layers(struct moves *l) {
    const struct zt_spec *s = l->s;
    if (!advise_has(ADVISE_TENSOR)) return;
    for (int times = 2; times <= 8 && (l->per_host <= 0 || times <= l->per_host); times *= 2)
        tensor_move(l, times, true,
                    "each layer's matrices and activations are cut over ranks that share the data");
    if (s->parallelism.tensor > 1 && !s->parallelism.sequence_parallel && advise_has(SEQUENCE))
        one(l, SEQUENCE, "true", "what norms and residuals keep is cut too");
}

/* ---- batches, formats ---- */

/* `accumulation` micro-steps of `local` sequences: the same global batch. */
static void batch_edits(struct move *m, const struct zt_spec *s, struct given g, int64_t local) {
    edit(m, s, LOCAL, false, "%lld", LL(local));
    edit(m, s, GLOBAL, g.global_batch, "%lld", LL(s->training.global_batch_size));
}

/* Divisors of `of`, each at least twice the one before; at most 10, the last being `of`. */
static int parts_of(int64_t of, int64_t parts[10]) {
    int n = 0;
    for (int64_t k = 2; k <= of && n < 10; k++) {
        if (of % k != 0 || (n > 0 && k < 2 * parts[n - 1] && k != of)) continue;
        parts[n] = n == 9 ? of : k;
        n++;
    }
    return n;
}

static void smaller_batches(struct moves *l) {
    int64_t b = l->s->training.local_batch_size, parts[10];
    int n = parts_of(b, parts);
    for (int i = 0; i < n; i++)
        batch_edits(add(l, "fewer activations at a time, more micro-steps"), l->s, l->g,
                    b / parts[i]);
}

static void larger_batches(struct moves *l) {
    int64_t parts[10];
    int n = parts_of(zt_spec_accumulation(l->s), parts);
    for (int i = 0; i < n; i++)
        batch_edits(add(l, "fewer micro-steps, more activations at a time"), l->s, l->g,
                    l->s->training.local_batch_size * parts[i]);
}

static void smaller_formats(struct moves *l) {
    static const char *const order[] = {"fsdp_mixed", "autocast", "mixed16", "mixed16_nomaster",
                                        "pure_bf16"};
    static const char *const why[] = {
        "fp32 is stored, bf16 gathered and computed in: half the activations and the gathers",
        "bf16 is computed in: half the activations",
        "bf16 parameters and gradients beside an fp32 master",
        "bf16 parameters without a master, updates rounded stochastically",
        "bf16 parameters and moments, updates rounded stochastically"};
    const struct zt_spec *s = l->s;
    const struct zt_recipe *r = zt_recipe_find(s->precision.recipe);
    int from = 0;
    if (r->compute != ZT_F32 && s->precision.reduce_dtype == ZT_F32)
        one(l, "precision.reduce_dtype", zt_dtype_name(r->compute),
            "gradients are added over the ranks in 16 bits");
    for (int i = 0; i < 5; i++)
        if (strcmp(order[i], s->precision.recipe) == 0) from = i + 1;
    if (strcmp(s->precision.recipe, "mixed16_g32") == 0) from = 2;
    if (strcmp(s->precision.recipe, "fp16") == 0) from = 3;
    for (int i = from; i < 5; i++) {
        struct move *m = add(l, why[i]);
        edit(m, s, "precision.recipe", false, "%s", order[i]);
        edit(m, s, "precision.reduce_dtype",
             l->g.reduce_dtype && s->precision.reduce_dtype == ZT_F32, "fp32");
    }
}

/* ---- all of them ---- */

int advise_moves(const struct zt_spec *s, struct given g, int ranks_per_host, enum direction d,
                 struct move *out) {
    const int t = s->parallelism.tensor; /* of one host's ranks so many share the data */
    struct moves l = {s, g, ranks_per_host > t ? ranks_per_host / t : ranks_per_host, 0, out};
    bool ranks = dp_of(s) > 1;
    if (d == MORE_SPEED) {
        cut_less(&l);
        cut_more(&l); /* fewer parameters to update */
        gather_more(&l);
        if (ranks && s->parallelism.max_inflight_reduces == 1 && s->parallelism.overlap)
            one(&l, P "max_inflight_reduces", "2", "two reductions may be under way");
        if (ranks && !s->parallelism.overlap)
            one(&l, P "overlap", "true", "collectives run beside computation");
        if (ranks && s->parallelism.bucket_mib > 0)
            one(&l, P "bucket_mib", "0", "one collective a unit");
        if (s->parallelism.wrap == ZT_WRAP_PART)
            one(&l, P "wrap", "block", "one collective a block");
        if (ranks && s->parallelism.wrap == ZT_WRAP_BLOCK && s->model.layers > 1)
            one(&l, P "wrap", "2", "one collective for two blocks");
        recompute_less(&l);
        if (s->loss.chunk_tokens > 0) one(&l, CHUNK, "0", "logits at once");
        if (t > 1) tensor_move(&l, 2, false, "layers are cut over fewer ranks");
        larger_batches(&l);
        return l.n;
    }
    cut_more(&l);
    gather_less(&l);
    if (ranks && s->parallelism.max_inflight_reduces > 1)
        one(&l, P "max_inflight_reduces", "1", "one reduction is under way at a time");
    if (ranks) smaller_buckets(&l);
    if (ranks) smaller_units(&l);
    if (ranks && s->parallelism.overlap)
        one(&l, P "overlap", "false",
            "each collective is waited for, so that none holds memory beside computation");
    recompute_more(&l);
    loss_in_chunks(&l);
    cut_layers(&l);
    smaller_batches(&l);
    smaller_formats(&l);
    return l.n;
}

static int64_t common(int64_t a, int64_t b) { return b ? common(b, a % b) : a; }

bool advise_more_workers(const struct zt_spec *s, struct given g, int times, struct move *out) {
    enum zt_mode mode = s->parallelism.mode == ZT_DDP ? ZT_FSDP : s->parallelism.mode;
    int r = s->parallelism.shard > 1 ? s->parallelism.replicate : 1;
    int64_t a = zt_spec_accumulation(s), b = s->training.local_batch_size;
    int64_t by_window = common(a, times), by_batch = common(b, times / by_window);
    int64_t rest = times / by_window / by_batch; /* the global batch grows by this */
    memset(out, 0, sizeof *out);
    out->why = "the state is cut over more ranks";
    edit(out, s, "workers", false, "%d", s->workers * times);
    mode_edits(out, s, g, mode, r, dp_of(s) / r * times);
    if (by_batch > 1) edit(out, s, LOCAL, false, "%lld", LL(b / by_batch));
    edit(out, s, GLOBAL, g.global_batch && rest == 1, "%lld",
         LL(s->training.global_batch_size * rest));
    return rest == 1;
}

void advise_shorter(const struct zt_spec *s, int64_t by, struct move *out) {
    memset(out, 0, sizeof *out);
    out->why = "shorter sequences: fewer activations, other samples";
    out->data = true;
    edit(out, s, "training.seq_len", false, "%lld", LL(s->training.seq_len / by));
}

bool advise_has(const char *key) {
    const struct zt_not_yet *no;
    for (int i = 0; (no = zt_schema_not_yet(i)) != NULL; i++)
        if (strcmp(no->path, key) == 0) return false;
    return true;
}

const char *advise_later(int i, const char **why) {
    static const struct {
        const char *key, *why;
    } later[] = {
        {ADVISE_RECOMPUTE,
         "keeps the inputs of blocks alone and computes the rest again in backward"},
        {CHUNK, "logits and their gradient a chunk at a time"},
        {ADVISE_TENSOR, "each layer's matrices are cut over ranks of one host"},
    };
    if (i < 0 || i >= (int)(sizeof later / sizeof later[0])) return NULL;
    *why = later[i].why;
    return later[i].key;
}

/* ---- a spec with edits ---- */

static bool is_given(const struct zt_spec *s, const char *key) {
    size_t n = strlen(key);
    const char *row;
    for (int i = 0; i < ZT_SPEC_MAX_KEYS && (row = zt_spec_key(i)); i++)
        if (strncmp(row, key, n) == 0 && row[n] == ':') return s->mark[i].line != 0;
    return false;
}

struct given advise_given(const struct zt_spec *s) {
    return (struct given){.degrees = is_given(s, REPLICATE) || is_given(s, SHARD),
                          .global_batch = is_given(s, GLOBAL),
                          .reduce_dtype = is_given(s, "precision.reduce_dtype")};
}

int advise_apply(const struct zt_spec *s, const struct zt_advise_edit *e, int n,
                 struct zt_spec **out, struct zt_error *err) {
    char text[ZT_ADVISE_EDITS][sizeof e->key + sizeof e->to + 2];
    const char *set[ZT_ADVISE_EDITS];
    char *yaml = zt_spec_normalise(s);
    struct zt_spec *t = calloc(1, sizeof *t);
    int rc = yaml && t ? 0 : zt_fail(err, ZT_ENOMEM, "advise: no host memory");
    for (int i = 0; i < n; i++) {
        snprintf(text[i], sizeof text[i], "%s=%s", e[i].key, e[i].to);
        set[i] = text[i];
    }
    if (!rc) rc = zt_spec_parse(yaml, strlen(yaml), s->name, set, n, t, err);
    if (!rc) rc = zt_spec_resolve_up_to(t, 0, ZT_PLAN_RANKS_MAX, s->name, err);
    free(yaml);
    if (rc) {
        advise_spec_free(t);
        t = NULL;
    }
    *out = t;
    return rc;
}

void advise_spec_free(struct zt_spec *s) {
    if (s) zt_spec_free(s);
    free(s);
}

/* ---- what it does to the result ---- */

/* Gradients are summed once over a window, or in every micro-step and then over it: two roundings.
 */
static bool reduces_once(const struct zt_spec *s) {
    return s->parallelism.mode == ZT_DDP || s->parallelism.mode == ZT_ZERO1 ||
           s->parallelism.no_sync;
}

/* Sums over ranks nest where there are replicas of shards. */
static int nests(const struct zt_spec *s) {
    return s->parallelism.replicate > 1 && s->parallelism.shard > 1 ? s->parallelism.shard : 0;
}

enum zt_advise_effect advise_effect(const struct zt_spec *a, const struct zt_spec *b) {
    if (a->training.seq_len != b->training.seq_len) return ZT_EFFECT_DATA;
    if (a->training.global_batch_size != b->training.global_batch_size) return ZT_EFFECT_BATCH;
    if (strcmp(a->precision.recipe, b->precision.recipe) != 0 ||
        a->precision.reduce_dtype != b->precision.reduce_dtype)
        return ZT_EFFECT_FORMAT;
    if (a->workers != b->workers) return ZT_EFFECT_WORKERS;
    if (a->training.local_batch_size != b->training.local_batch_size || nests(a) != nests(b))
        return ZT_EFFECT_ROUNDING;
    if (a->loss.chunk_tokens != b->loss.chunk_tokens ||
        a->parallelism.tensor != b->parallelism.tensor ||
        a->parallelism.sequence_parallel != b->parallelism.sequence_parallel)
        return ZT_EFFECT_ROUNDING;
    if (reduces_once(a) != reduces_once(b) && zt_spec_accumulation(a) > 1)
        return ZT_EFFECT_ROUNDING;
    return ZT_EFFECT_NONE;
}
