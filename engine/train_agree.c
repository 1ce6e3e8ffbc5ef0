/* SPDX-License-Identifier: Apache-2.0 */
/* engine/train_agree.c: that all ranks train one model: where they start from, and that replicas hold
 * the same parameters, before step 1, every metrics.parameter_hash_every steps and after the last.
 *
 * Three kinds of copies are compared, by sums of hashes that one message carries:
 *   replicas       what ranks own alike: one shard in every replica; in ddp, everything
 *   tensor groups  what each of their ranks holds whole: norms, biases behind a row cut, positions
 *   stored whole   parameters of which a rank owns a part and stores all (zero1, zero2, persistent
 *                  ones); frozen ones are never sent again, so that an error would stay
 * Of three and more the majority says who is wrong; of two nobody knows.
 *
 * Memory and thread rules: train_int.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/train_int.h"

/* ---- copies of parameters ---- */

enum copy { COPY_OWN = 0, COPY_TENSOR, COPY_STORED, COPY_COUNT };

/* What a rank says of its parameters: sums over what it owns (without what a tensor group's first
 * rank speaks for), over what its tensor group holds whole, and over what it stores beyond its own. */
struct sums {
    struct zt_hash128 of[COPY_COUNT];
};

/* The sums of every tensor that those are made of. */
struct tensors {
    struct zt_hash128 *own, *stored;
};

/* Ranks that must say the same; n < 2: nobody to compare with. */
struct group {
    int n, ranks[ZT_RANKS_MAX];
};

static bool same(const struct zt_hash128 *a, const struct zt_hash128 *b) {
    return a->lo == b->lo && a->hi == b->hi;
}

/* Whether ranks at two places hold the same of a kind. */
static bool are_copies(const struct zt_trainer *t, enum copy kind, struct zt_coords a,
                       struct zt_coords b) {
    if (kind != COPY_TENSOR && a.tensor != b.tensor) return false;
    if (kind == COPY_STORED || !zt_policy(t->spec->parallelism.mode)->shard_optimizer) return true;
    return a.shard == b.shard;
}

/* The ranks whose copies are rank `first`'s, if it is the first of them. */
static void group_of(const struct zt_trainer *t, enum copy kind, int first, struct group *g) {
    const struct zt_coords at = zt_mesh_coords(t->mesh, first);
    g->n = 0;
    for (int i = 0; i < t->config->world; i++) {
        if (!are_copies(t, kind, at, zt_mesh_coords(t->mesh, i))) continue;
        if (i < first) {
            g->n = 0;
            return;
        }
        g->ranks[g->n++] = i;
    }
}

/* The rank that is wrong and one to compare it with; `agree`: ranks that say what `other` says.
 * known: they are more than half. */
struct verdict {
    enum copy kind;
    int wrong, other, agree, of;
    bool known;
};

static int votes(const struct sums *all, const struct group *g, enum copy kind, int rank) {
    int n = 0;
    for (int i = 0; i < g->n; i++) n += same(&all[g->ranks[i]].of[kind], &all[rank].of[kind]);
    return n;
}

/* True: they differ. Ranks that agree with most others are right; among as many, the first. */
static bool judge(const struct sums *all, const struct group *g, enum copy kind,
                  struct verdict *v) {
    int best = 0;
    for (int i = 1; i < g->n; i++)
        if (votes(all, g, kind, g->ranks[i]) > votes(all, g, kind, g->ranks[best])) best = i;
    *v = (struct verdict){.kind = kind, .wrong = -1, .of = g->n};
    if (g->n < 2) return false;
    v->other = g->ranks[best];
    v->agree = votes(all, g, kind, v->other);
    v->known = 2 * v->agree > g->n;
    for (int i = 0; i < g->n && v->wrong < 0; i++)
        if (!same(&all[g->ranks[i]].of[kind], &all[v->other].of[kind])) v->wrong = g->ranks[i];
    return v->wrong >= 0;
}

static bool is_of(const struct zt_trainer *t, enum copy kind, int tensor) {
    return kind != COPY_TENSOR || t->table.tensors[tensor].tp_dim < 0;
}

static const char *relation(const struct zt_trainer *t, const struct verdict *v) {
    const int wrong = zt_mesh_coords(t->mesh, v->wrong).tensor,
              other = zt_mesh_coords(t->mesh, v->other).tensor;
    if (v->kind == COPY_STORED) return "the copy of";
    /* tensor is innermost: members of one group are neighbours */
    return v->kind == COPY_TENSOR && v->wrong - wrong == v->other - other ? "its tensor group's"
                                                                          : "its replica";
}

static void describe(const struct zt_trainer *t, const struct verdict *v, int64_t tensor,
                     struct zt_error *err) {
    const struct zt_tensor_def *d = tensor < t->table.n_tensors ? &t->table.tensors[tensor] : NULL;
    const char *unit = d ? t->table.units[d->unit].name : "?", *name = d ? d->name : "?";
    char who[96], whom[120];
    snprintf(who, sizeof who,
             v->known ? "rank %d holds other parameters than" : "rank %d and", v->wrong);
    if (v->known)
        snprintf(whom, sizeof whom, "%s rank %d (%d of %d ranks agree)", relation(t, v), v->other,
                 v->agree, v->of);
    else
        snprintf(whom, sizeof whom, "%s rank %d hold different parameters", relation(t, v),
                 v->other);
    zt_fail(err, ZT_EDIVERGED,
            "step %lld: %s %s, first in unit %s, tensor %s; the run's numbers are not to be trusted: "
            "look for a faulty machine or memory %s",
            (long long)t->step, who, whom, unit, name,
            v->known ? "where that rank is" : "where one of the two is");
}

/* Every rank comes here with the same verdict: which tensor differs? `other` tells its sums, `wrong`
 * what differs from them. */
static int name_divergence(struct zt_trainer *t, const struct tensors *sums,
                           const struct verdict *v, struct zt_error *err) {
    struct zt_coll_why why = {"", "hash of every tensor", t->step, true};
    struct zt_stream *compute = zt_device_compute(t->device);
    const struct zt_hash128 *mine = v->kind == COPY_STORED ? sums->stored : sums->own;
    int64_t n = t->table.n_tensors, first = 0;
    struct zt_hash128 *theirs = calloc((size_t)n, sizeof *theirs);
    int rc = 0;
    if (!theirs) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    memcpy(theirs, mine, (size_t)n * sizeof *theirs);
    TRY(zt_broadcast(t->control, theirs, 2 * n, ZT_I64, v->other, ZT_ROOT_NONE, compute, &why, err));
    while (first < n && (same(&theirs[first], &mine[first]) || !is_of(t, v->kind, (int)first)))
        first++;
    TRY(zt_broadcast(t->control, &first, 1, ZT_I64, v->wrong, ZT_ROOT_NONE, compute, &why, err));
    t->diverged = v->known ? v->wrong : -1;
    describe(t, v, first, err);
    rc = ZT_EDIVERGED;
out:
    free(theirs);
    return rc;
}

static int own_sums(struct zt_trainer *t, const struct tensors *sums, struct sums *own,
                    struct zt_error *err) {
    int rc = 0;
    *own = (struct sums){0};
    TRY(zt_runtime_parameter_hash(t->runtime, &own->of[COPY_OWN], sums->own, err));
    TRY(zt_runtime_copy_hash(t->runtime, sums->stored, err));
    for (int i = 0; i < t->table.n_tensors; i++) {
        zt_hash128_add(&own->of[COPY_STORED], sums->stored[i]);
        if (is_of(t, COPY_TENSOR, i)) zt_hash128_add(&own->of[COPY_TENSOR], sums->own[i]);
    }
out:
    return rc;
}

static int compare(struct zt_trainer *t, const struct tensors *sums, const struct sums *all,
                   struct zt_error *err) {
    struct verdict v;
    struct group g;
    for (int kind = 0; kind < COPY_COUNT; kind++)
        for (int i = 0; i < t->config->world; i++) {
            group_of(t, (enum copy)kind, i, &g);
            if (judge(all, &g, (enum copy)kind, &v)) return name_divergence(t, sums, &v, err);
        }
    return 0;
}

/* The sum over the first of each set of replicas. */
static struct zt_hash128 whole_model(const struct zt_trainer *t, const struct sums *all) {
    struct zt_hash128 sum = {0, 0};
    struct group g;
    for (int i = 0; i < t->config->world; i++) {
        group_of(t, COPY_OWN, i, &g);
        if (g.n > 0) zt_hash128_add(&sum, all[i].of[COPY_OWN]);
    }
    return sum;
}

int zt_trainer_check_hash(struct zt_trainer *t, struct zt_hash128 *global, struct zt_error *err) {
    struct zt_coll_why why = {"", "parameter hash", t->step, true};
    const size_t n = (size_t)t->table.n_tensors;
    struct tensors sums = {calloc(n, sizeof *sums.own), calloc(n, sizeof *sums.stored)};
    struct sums own, *all = calloc((size_t)t->config->world, sizeof *all);
    int rc = 0;
    if (!sums.own || !sums.stored || !all)
        TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    t->diverged = -1;
    *global = (struct zt_hash128){0, 0};
    TRY(own_sums(t, &sums, &own, err));
    TRY(zt_all_gather(t->control, &own, all, sizeof own / sizeof(int64_t), ZT_I64,
                      zt_device_compute(t->device), &why, err));
    if (zt_trainer_sim(t)) goto out; /* nobody holds anything */
    TRY(compare(t, &sums, all, err));
    *global = whole_model(t, all);
out:
    free(sums.own);
    free(sums.stored);
    free(all);
    return rc;
}

/* ---- the start ---- */

enum agreed { A_SPEC = 0, A_TRAIN, A_TRAIN_SAMPLES, A_VALID, A_VALID_SAMPLES, A_COUNT };

/* What this rank starts from: specification and model table, and which samples there are. */
static void own_start(const struct zt_trainer *t, int64_t own[A_COUNT]) {
    const char *text = t->spec->normalised_hash;
    uint64_t h = XXH3_64bits(text, strlen(text));
    for (int i = 0; i < t->table.n_tensors; i++) {
        const struct zt_tensor_def *d = &t->table.tensors[i];
        h = XXH3_64bits_withSeed(d->name, strlen(d->name), h ^ (uint64_t)d->numel);
    }
    own[A_SPEC] = (int64_t)h;
    own[A_TRAIN] = t->train_set ? (int64_t)zt_dataset_digest(t->train_set) : 0;
    own[A_TRAIN_SAMPLES] = t->train_set ? zt_dataset_samples(t->train_set) : 0;
    own[A_VALID] = t->valid_set ? (int64_t)zt_dataset_digest(t->valid_set) : 0;
    own[A_VALID_SAMPLES] = t->valid_set ? zt_dataset_samples(t->valid_set) : 0;
}

static int same_data(const char *key, int rank, const int64_t *zero, const int64_t *other,
                     struct zt_error *err) {
    if (!memcmp(zero, other, 2 * sizeof *zero)) return 0;
    return zt_fail(err, ZT_EDATA,
                   "%s: rank %d finds other files than rank 0: %lld samples, rank 0 has %lld; the "
                   "names and lengths of the files must be the same on every host",
                   key, rank, (long long)other[1], (long long)zero[1]);
}

/* Before step 1: the same specification and model table everywhere, the same samples (ranks that
 * deal different decks repeat and miss samples, or end their epochs apart), the same weights. */
int zt_trainer_agree(struct zt_trainer *t, struct zt_error *err) {
    struct zt_coll_why why = {"", "specification and data", 0, true};
    struct zt_hash128 ignored;
    int64_t own[A_COUNT], *all = calloc((size_t)t->config->world * A_COUNT, sizeof *all);
    int rc = 0;
    if (!all) TRY(zt_fail(err, ZT_ENOMEM, "trainer: no host memory"));
    own_start(t, own);
    TRY(zt_all_gather(t->control, own, all, A_COUNT, ZT_I64, zt_device_compute(t->device), &why,
                      err));
    for (int i = 1; i < t->config->world; i++) {
        const int64_t *other = all + (size_t)i * A_COUNT;
        if (other[A_SPEC] != all[A_SPEC])
            TRY(zt_fail(err, ZT_EVERSION,
                        "rank %d runs another specification or model than rank 0; "
                        "all workers of a run must be given the same run.yaml and version",
                        i));
        TRY(same_data("dataset.path", i, all + A_TRAIN, other + A_TRAIN, err));
        TRY(same_data("validation", i, all + A_VALID, other + A_VALID, err));
    }
    TRY(zt_trainer_check_hash(t, &ignored, err));
out:
    free(all);
    return rc;
}
