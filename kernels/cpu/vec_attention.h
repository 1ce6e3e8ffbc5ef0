/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_attention.h: attention's tiles, included by vec_body.h. They hold fp32 whatever
 * the tensors do; vec_attention_typed.h loads and stores them.
 *
 * Tiles of 64 queries x 64 keys are held transposed: a row is a key, the 64 columns are queries, in
 * vectors of 16. So the softmax over keys runs down the rows with no horizontal step, each lane is
 * one query, and every product has the form  C[r][lanes] += sum_i a(r, i) b[i][lanes]  with a read
 * one scalar at a time from wherever it lies:
 *   S^T  = K Q^T     (rows keys, lanes queries, sum over the head's width)
 *   O^T += V^T P^T   (rows width, lanes queries, sum over keys)
 *   dP^T = V dO^T    as S^T;  dQ^T += K^T dS^T  as O^T
 *   dV  += P^T dO, dK += dS^T Q   (rows keys, lanes width, sum over queries)
 * The sum over i always ascends, one fma a step, whatever the blocking: the bits do not depend on
 * the register block, so AVX2 and AVX-512 agree (SSE2 has no fma).
 *
 * Tiles above the diagonal are never visited. On the diagonal, tiles are cut into groups of 16 keys
 * and the query vectors that lie wholly before a group are skipped; inside the 16 x 16 rest masked
 * weights are exactly 0. Tiles before the starts of all their queries are not visited either; in
 * those that some start cuts, what is masked is computed and its weights made 0. */

#define BLOCK ZT_ATTENTION_BLOCK
/* Scores are kept in powers of two: the queries are scaled by log2(e) besides, and 2^x is cheaper
 * than e^x. */
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f
#define VECTORS (BLOCK / 16)

#if PARTS == 1
#define MAX_ROWS 6
#define MAX_VECTORS 4
#elif PARTS == 2
#define MAX_ROWS 6
#define MAX_VECTORS 1
#else
#define MAX_ROWS 3
#define MAX_VECTORS 1
#endif

/* Rows that will be needed soon. They lie a page apart, where no hardware prefetcher follows, and a
 * burst would fill the miss buffers: each product block asks for a few. Only a hint. */
#define AHEAD_ROWS 6
struct ahead {
    struct {
        const char *row;
        int64_t stride, left; /* bytes, rows */
    } range[8];
    int count;
    int64_t width; /* bytes of a row */
};

static void ahead_add(struct ahead *q, const void *row, int64_t stride, int64_t rows) {
    if (!row || q->count == 8) return;
    q->range[q->count].row = row;
    q->range[q->count].stride = stride;
    q->range[q->count++].left = rows;
}

INLINE void ahead_step(struct ahead *q) {
    for (int i = 0; i < AHEAD_ROWS && q->count > 0; i++) {
        const int last = q->count - 1;
        const char *row = q->range[last].row;
        for (int64_t d = 0; d < q->width; d += 64) _mm_prefetch(row + d, _MM_HINT_T1);
        q->range[last].row = row + q->range[last].stride;
        if (--q->range[last].left <= 0) q->count = last;
    }
}

struct product {
    struct ahead *ahead;
    float *c;
    int64_t ldc;
    const float *a;
    int64_t a_row, a_step; /* a(r, i) = a[r a_row + i a_step] */
    const float *b;
    int64_t ldb;
    int64_t n;          /* length of the sum */
    bool accumulate;    /* else c is written */
    const float *first; /* accumulate: the old c is multiplied by first[lane] before; or NULL */
};

/* rows x vectors of C held in registers; both are constants where this is inlined. */
INLINE void product_block(const struct product *p, int64_t row, int64_t lane, const int rows,
                          const int vectors) {
    v16 acc[MAX_ROWS][MAX_VECTORS];
    float *c = p->c + row * p->ldc + lane;
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            acc[r][v] = p->accumulate ? v_load(c + r * p->ldc + 16 * v) : v_zero();
            if (p->first) acc[r][v] = v_mul(acc[r][v], v_load(p->first + lane + 16 * v));
        }
    }
    const float *a = p->a + row * p->a_row, *b = p->b + lane;
    const int64_t a_row = p->a_row, a_step = p->a_step, ldb = p->ldb;
    for (int64_t i = 0; i < p->n; i++, a += a_step, b += ldb) {
        v16 bv[MAX_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) bv[v] = v_load(b + 16 * v);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const v16 ar = v_set1(a[r * a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) acc[r][v] = v_fma(ar, bv[v], acc[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) v_store(c + r * p->ldc + 16 * v, acc[r][v]);
    }
}

#define PRODUCT_ROWS(vectors)                                                                      \
    static void product_rows_##vectors(const struct product *p, int64_t rows, int64_t lane) {      \
        int64_t r = 0;                                                                             \
        for (; r + MAX_ROWS <= rows; r += MAX_ROWS) {                                              \
            ahead_step(p->ahead);                                                                  \
            product_block(p, r, lane, MAX_ROWS, vectors);                                          \
        }                                                                                          \
        switch (rows - r) {                                                                        \
        case 5:                                                                                    \
            product_block(p, r, lane, MAX_ROWS < 5 ? 1 : 5, vectors);                              \
            break;                                                                                 \
        case 4:                                                                                    \
            product_block(p, r, lane, MAX_ROWS < 4 ? 1 : 4, vectors);                              \
            break;                                                                                 \
        case 3:                                                                                    \
            product_block(p, r, lane, 3, vectors);                                                 \
            break;                                                                                 \
        case 2:                                                                                    \
            product_block(p, r, lane, 2, vectors);                                                 \
            break;                                                                                 \
        case 1:                                                                                    \
            product_block(p, r, lane, 1, vectors);                                                 \
            break;                                                                                 \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
    }
PRODUCT_ROWS(1)
#if MAX_VECTORS == 4
PRODUCT_ROWS(2)
PRODUCT_ROWS(3)
PRODUCT_ROWS(4)
#endif

/* C of rows x (16 vectors). */
static void product(const struct product *p, int64_t rows, int64_t vectors) {
    int64_t v = 0;
#if MAX_VECTORS == 4
    for (; v + 4 <= vectors; v += 4) product_rows_4(p, rows, 16 * v);
    if (vectors - v == 3)
        product_rows_3(p, rows, 16 * v);
    else if (vectors - v == 2)
        product_rows_2(p, rows, 16 * v);
    else if (vectors - v == 1)
        product_rows_1(p, rows, 16 * v);
#else
    for (; v < vectors; v++) product_rows_1(p, rows, 16 * v);
#endif
}

/* What a thread's scratch holds; zt_vec_attention_scratch counts the same. */
struct tiles {
    int64_t D, padded;       /* head width, and to a multiple of 16 */
    float *score, *dscore;   /* [64 keys][64 queries] */
    float *factor;           /* the same: what dropout multiplies with; NULL: there is none */
    float *qt, *dot;         /* [D][64]: scaled queries, output gradients, transposed */
    float *acct;             /* [D][64]: output or dQ, transposed */
    float *plain, *values;   /* [64][D]: the keys or values of a tile, gathered */
    float *q, *dout;         /* [64][padded]: scaled queries, output gradients */
    float *top, *sum, *keep; /* [64]: running maximum, sum, factor on what was summed before */
    float *start;            /* [64]: the first position that each query attends to */
    int64_t least, most;     /* of them */
    float *dk, *dv;          /* [T to 64][padded]: sums of the head */
    struct ahead ahead;
};

static struct tiles tiles_in(float *scratch, int64_t T, int64_t D) {
    struct tiles t = {.D = D, .padded = (D + 15) / 16 * 16};
    const int64_t rows = (T + BLOCK - 1) / BLOCK * BLOCK;
    float *at = scratch;
#define TAKE(field, count)                                                                         \
    t.field = at;                                                                                  \
    at += (count)
    TAKE(score, BLOCK * BLOCK);
    TAKE(dscore, BLOCK * BLOCK);
    TAKE(factor, BLOCK * BLOCK);
    TAKE(qt, D * BLOCK);
    TAKE(dot, D * BLOCK);
    TAKE(acct, D * BLOCK);
    TAKE(plain, D * BLOCK);
    TAKE(values, D * BLOCK);
    TAKE(q, t.padded * BLOCK);
    TAKE(dout, t.padded * BLOCK);
    TAKE(top, BLOCK);
    TAKE(sum, BLOCK);
    TAKE(keep, BLOCK);
    TAKE(start, BLOCK);
    TAKE(dk, t.padded * rows);
    TAKE(dv, t.padded * rows);
#undef TAKE
    return t;
}

/* out[d][query] = in[query][d] for n queries; the columns beyond n are 0. */
static void transpose_queries(float *out, const float *in, int64_t stride, int64_t n, int64_t D) {
    if (n < BLOCK) memset(out, 0, (size_t)(D * BLOCK) * sizeof *out);
    transpose(out, BLOCK, in, stride, n, D);
}

/* One tile: which keys and queries, how many, and whether the diagonal crosses it. */
struct tile {
    int64_t key, keys, query, queries, vectors;
    bool diagonal;
};

static struct tile tile_at(int64_t query_block, int64_t key_block, int64_t T) {
    struct tile s = {.key = key_block * BLOCK, .query = query_block * BLOCK};
    s.keys = T - s.key < BLOCK ? T - s.key : BLOCK;
    s.queries = T - s.query < BLOCK ? T - s.query : BLOCK;
    s.vectors = (s.queries + 15) / 16;
    s.diagonal = query_block == key_block;
    return s;
}

/* Runs the product for the part of the tile that is not masked. The three shapes of a product
 * differ in what a group of 16 keys means to it. */
enum shape { ROWS_ARE_KEYS, SUM_OVER_KEYS, ROWS_ARE_KEYS_SUM_QUERIES };

static void tile_product(const struct tile *s, struct product p, enum shape shape, int64_t rows,
                         int64_t vectors) {
    if (!s->diagonal) {
        product(&p, rows, vectors);
        return;
    }
    for (int64_t g = 0; 16 * g < s->keys; g++) {
        const int64_t first = 16 * g, keys = s->keys - first < 16 ? s->keys - first : 16;
        struct product part = p;
        if (shape == ROWS_ARE_KEYS) { /* queries from this group on */
            part.c += first * p.ldc + first;
            part.a += first * p.a_row;
            part.b += first;
            product(&part, keys, vectors - g);
        } else if (shape == SUM_OVER_KEYS) {
            part.c += first;
            part.a += first * p.a_step;
            part.b += first * p.ldb + first;
            part.n = keys;
            part.accumulate = p.accumulate || g > 0;
            part.first = g == 0 ? p.first : NULL;
            product(&part, rows, vectors - g);
        } else {
            part.c += first * p.ldc;
            part.a += first * p.a_row + first;
            part.b += first * p.ldb;
            part.n = p.n - first;
            product(&part, keys, vectors);
        }
    }
}

/* Keys of vector v that any of its queries may see, and from which key on a mask is needed. */
INLINE int64_t visible_keys(const struct tile *s, int64_t v) {
    return s->diagonal && 16 * (v + 1) < s->keys ? 16 * (v + 1) : s->keys;
}

/* The starts of a block's queries and their range. */
static void load_starts(const int32_t *starts, const struct tile *s, struct tiles *t) {
    t->least = t->most = starts ? starts[s->query] : 0;
    if (starts) memset(t->start, 0, BLOCK * sizeof *t->start);
    for (int64_t i = 0; starts && i < s->queries; i++) {
        const int64_t start = starts[s->query + i];
        if (start < t->least) t->least = start;
        if (start > t->most) t->most = start;
        t->start[i] = (float)start;
    }
}

/* The keys of a tile before `most`, which some query may not see; queries whose start is beyond a
 * key are masked there. */
INLINE int64_t cut_keys(const struct tile *s, const struct tiles *t, int64_t keys) {
    const int64_t n = t->most - s->key;
    return n < 0 ? 0 : n < keys ? n : keys;
}

INLINE m16 before_start(const struct tile *s, const struct tiles *t, int64_t v, int64_t k) {
    return v_lt(v_set1((float)(s->key + k)), v_load(t->start + 16 * v));
}

/* The factors of dropout for a tile, 0 or that of what is kept. A lane is a query, so its draws are
 * `quads` apart, and each serves four keys. */
static void dropout_tile(const struct zt_vec_dropout *d, const struct tile *s, struct tiles *t) {
    uint32_t lanes[16];
    for (uint32_t i = 0; i < 16; i++) lanes[i] = i * (uint32_t)d->quads;
    const i16v offset = i_load(lanes), threshold = i_set1((int32_t)d->threshold);
    const v16 kept = v_set1(d->factor);
    for (int64_t v = 0; v < s->vectors; v++) {
        const int64_t keys = visible_keys(s, v);
        const uint64_t row = d->first + (uint64_t)((s->query + 16 * v) * d->quads + s->key / 4);
        for (int64_t k = 0; k < keys; k += 4 * RANDOM_GROUPS) {
            i16v c[2 * RANDOM_GROUPS][4];
            for (int g = 0; g < RANDOM_GROUPS; g++)
                counters(c[2 * g], c[2 * g + 1], row + (uint64_t)(k / 4 + g), offset, d->step,
                         d->stream);
            philox_groups(c, d->seed);
            for (int i = 0; i < 4 * RANDOM_GROUPS; i++) {
                const i16v word = i_join(c[i / 4 * 2][i % 4], c[i / 4 * 2 + 1][i % 4]);
                v_store(t->factor + (k + i) * BLOCK + 16 * v,
                        v_select(i_above(threshold, word), v_zero(), kept));
            }
        }
    }
}

/* score -> 2^(score - new maximum), 0 where masked, times the factor of dropout; updates top, sum
 * and keep, which know nothing of dropout. */
static void softmax_tile(const struct tile *s, struct tiles *t) {
    const v16 lanes = lane_numbers(), ninf = v_set1(-__builtin_inff());
    for (int64_t v = 0; v < s->vectors; v++) {
        const int64_t keys = visible_keys(s, v), mask_from = s->diagonal ? 16 * v : keys;
        float *column = t->score + 16 * v;
        const v16 old = v_load(t->top + 16 * v);
        v16 top = old;
        for (int64_t k = mask_from; k < keys; k++) {
            float *x = column + k * BLOCK;
            v_store(x, v_select(v_lt(lanes, v_set1((float)(k - 16 * v))), ninf, v_load(x)));
        }
        const int64_t cut = cut_keys(s, t, keys);
        for (int64_t k = 0; k < cut; k++) {
            float *x = column + k * BLOCK;
            v_store(x, v_select(before_start(s, t, v, k), ninf, v_load(x)));
        }
        for (int64_t k = 0; k < keys; k++) top = v_max(v_load(column + k * BLOCK), top);
        v_store(t->top + 16 * v, top);
        /* Queries that have seen no key yet: any finite maximum gives weights of 0. */
        if (cut > 0) top = v_select(v_lt(ninf, top), top, v_zero());
        const v16 keep = v_exp2_fma(v_sub(old, top));
        v16 sum = v_mul(v_load(t->sum + 16 * v), keep);
        for (int64_t k = 0; k < keys; k++) {
            const v16 e = v_exp2_fma(v_sub(v_load(column + k * BLOCK), top));
            sum = v_add(sum, e);
            v_store(column + k * BLOCK,
                    t->factor ? v_mul(e, v_load(t->factor + k * BLOCK + 16 * v)) : e);
        }
        v_store(t->sum + 16 * v, sum);
        v_store(t->keep + 16 * v, keep);
    }
}

/* score and dscore (= dP) become P and dS = P (dP - delta), 0 where masked; with dropout's factors
 * F the gradient of the weights is F dP, and F P is what the values were weighted with. */
static void softmax_gradient_tile(const struct tile *s, struct tiles *t) {
    const v16 lanes = lane_numbers();
    for (int64_t v = 0; v < s->vectors; v++) {
        const int64_t keys = visible_keys(s, v), mask_from = s->diagonal ? 16 * v : keys;
        const int64_t cut = cut_keys(s, t, keys);
        const v16 lse = v_load(t->top + 16 * v), delta = v_load(t->sum + 16 * v);
        for (int64_t k = 0; k < keys; k++) {
            float *p = t->score + k * BLOCK + 16 * v, *d = t->dscore + k * BLOCK + 16 * v;
            v16 e = v_exp2_fma(v_sub(v_load(p), lse)); /* <= 1 but for rounding */
            v16 f = v_load(d);
            if (t->factor) f = v_mul(f, v_load(t->factor + k * BLOCK + 16 * v));
            v16 g = v_mul(e, v_sub(f, delta));
            if (t->factor) e = v_mul(e, v_load(t->factor + k * BLOCK + 16 * v));
            if (k >= mask_from) {
                const m16 masked = v_lt(lanes, v_set1((float)(k - 16 * v)));
                e = v_select(masked, v_zero(), e);
                g = v_select(masked, v_zero(), g);
            }
            if (k < cut) {
                const m16 masked = before_start(s, t, v, k);
                e = v_select(masked, v_zero(), e);
                g = v_select(masked, v_zero(), g);
            }
            v_store(p, e);
            v_store(d, g);
        }
    }
}

/* dv += P^T dout, dk += dS^T q */
static void keys_tile(const struct tile *s, struct tiles *t) {
    const int64_t padded = t->padded, lanes = padded / 16;
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->dv + s->key * padded,
                                  .ldc = padded,
                                  .a = t->score,
                                  .a_row = BLOCK,
                                  .a_step = 1,
                                  .b = t->dout,
                                  .ldb = padded,
                                  .n = s->queries,
                                  .accumulate = true},
                 ROWS_ARE_KEYS_SUM_QUERIES, s->keys, lanes);
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->dk + s->key * padded,
                                  .ldc = padded,
                                  .a = t->dscore,
                                  .a_row = BLOCK,
                                  .a_step = 1,
                                  .b = t->q,
                                  .ldb = padded,
                                  .n = s->queries,
                                  .accumulate = true},
                 ROWS_ARE_KEYS_SUM_QUERIES, s->keys, lanes);
}

/* dq = or += dS k */
static void queries_tile(const struct tile *s, struct tiles *t) {
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->acct,
                                  .ldc = BLOCK,
                                  .a = t->plain,
                                  .a_row = 1,
                                  .a_step = t->D,
                                  .b = t->dscore,
                                  .ldb = BLOCK,
                                  .n = s->keys,
                                  .accumulate = s->key / BLOCK > t->least / BLOCK},
                 SUM_OVER_KEYS, t->D, s->vectors);
}
