/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_attention.h: attention's units of work, included by vec_body.h.
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
 * weights are exactly 0. */

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
        const float *row;
        int64_t stride, left;
    } range[8];
    int count;
    int64_t D;
};

static void ahead_add(struct ahead *q, const float *row, int64_t stride, int64_t rows) {
    if (!row || q->count == 8) return;
    q->range[q->count].row = row;
    q->range[q->count].stride = stride;
    q->range[q->count++].left = rows;
}

INLINE void ahead_step(struct ahead *q) {
    for (int i = 0; i < AHEAD_ROWS && q->count > 0; i++) {
        const int last = q->count - 1;
        const float *row = q->range[last].row;
        for (int64_t d = 0; d < q->D; d += 16) _mm_prefetch((const char *)(row + d), _MM_HINT_T1);
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
    float *qt, *dot;         /* [D][64]: scaled queries, output gradients, transposed */
    float *acct;             /* [D][64]: output or dQ, transposed */
    float *plain;            /* [64][D]: the keys or values of a tile, gathered */
    float *q, *dout;         /* [64][padded]: scaled queries, output gradients */
    float *top, *sum, *keep; /* [64]: running maximum, sum, factor on what was summed before */
    float *dk, *dv;          /* [T to 64][padded]: sums of the head */
    struct ahead ahead;
};

static struct tiles tiles_in(float *scratch, int64_t T, int64_t D) {
    struct tiles t = {.D = D, .padded = (D + 15) / 16 * 16, .ahead.D = D};
    const int64_t rows = (T + BLOCK - 1) / BLOCK * BLOCK;
    float *at = scratch;
#define TAKE(field, count)                                                                         \
    t.field = at;                                                                                  \
    at += (count)
    TAKE(score, BLOCK * BLOCK);
    TAKE(dscore, BLOCK * BLOCK);
    TAKE(qt, D * BLOCK);
    TAKE(dot, D * BLOCK);
    TAKE(acct, D * BLOCK);
    TAKE(plain, D * BLOCK);
    TAKE(q, t.padded * BLOCK);
    TAKE(dout, t.padded * BLOCK);
    TAKE(top, BLOCK);
    TAKE(sum, BLOCK);
    TAKE(keep, BLOCK);
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

/* out[row][0..D) = in[row][0..D), then zeros up to `padded`. */
static void gather_rows(float *out, int64_t ostride, const float *in, int64_t stride, int64_t n,
                        int64_t D, int64_t padded) {
    for (int64_t r = 0; r < n; r++) {
        float *o = out + r * ostride;
        for (int64_t d = 0; d < D; d += 16)
            row_store(o, d, D, row_load(in + r * stride, d, D, 0.0f));
        for (int64_t d = D; d < padded; d++) o[d] = 0.0f;
    }
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

INLINE v16 lane_numbers(void) {
    static const float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return v_load(numbers);
}

/* score -> 2^(score - new maximum), 0 where masked; updates top, sum and keep. */
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
        for (int64_t k = 0; k < keys; k++) top = v_max(v_load(column + k * BLOCK), top);
        const v16 keep = v_exp2_fma(v_sub(old, top));
        v16 sum = v_mul(v_load(t->sum + 16 * v), keep);
        for (int64_t k = 0; k < keys; k++) {
            const v16 e = v_exp2_fma(v_sub(v_load(column + k * BLOCK), top));
            v_store(column + k * BLOCK, e);
            sum = v_add(sum, e);
        }
        v_store(t->top + 16 * v, top);
        v_store(t->sum + 16 * v, sum);
        v_store(t->keep + 16 * v, keep);
    }
}

/* in[rows][64] becomes rows of out: out[query][d] = in[d][query] for n queries. */
static void store_transposed(float *out, int64_t stride, const float *in, int64_t n, int64_t D) {
    transpose(out, stride, in, BLOCK, D, n);
}

/* Queues the keys and values of the tile after this one or, at the last tile of a block, what the
 * next block or unit starts with. */
static void look_ahead(const struct zt_vec_attention *a, const struct tile *s, struct tiles *t,
                       bool last) {
    t->ahead.count = 0;
    if (!last) {
        const int64_t left = a->T - s->key - BLOCK, rows = left < BLOCK ? left : BLOCK;
        ahead_add(&t->ahead, a->v + (s->key + BLOCK) * a->stride, a->stride, rows);
        ahead_add(&t->ahead, a->k + (s->key + BLOCK) * a->stride, a->stride, rows);
    }
}

/* The queries of a block, scaled, in both orders. */
static void load_queries(const struct zt_vec_attention *a, const struct tile *s, struct tiles *t) {
    gather_rows(t->q, t->padded, a->q + s->query * a->stride, a->stride, s->queries, a->D,
                t->padded);
    vec_scale(t->q, a->scale * LOG2_E, (size_t)(s->queries * t->padded));
    transpose_queries(t->qt, t->q, t->padded, s->queries, a->D);
}

static void vec_attention_forward(const struct zt_vec_attention *a, int64_t query_block) {
    struct tiles t = tiles_in(a->scratch, a->T, a->D);
    struct tile s = tile_at(query_block, 0, a->T);
    load_queries(a, &s, &t);
    for (int i = 0; i < BLOCK; i++) {
        t.top[i] = -__builtin_inff();
        t.sum[i] = 0.0f;
    }
    for (int64_t key_block = 0; key_block <= query_block; key_block++) {
        s = tile_at(query_block, key_block, a->T);
        const float *k = a->k + s.key * a->stride, *v = a->v + s.key * a->stride;
        look_ahead(a, &s, &t, s.diagonal);
        if (s.diagonal) {
            ahead_add(&t.ahead, a->next_v, a->stride, BLOCK < a->T ? BLOCK : a->T);
            ahead_add(&t.ahead, a->next_k, a->stride, BLOCK < a->T ? BLOCK : a->T);
            ahead_add(&t.ahead, a->o + s.query * a->ostride, a->ostride, s.queries);
        }
        tile_product(&s,
                     (struct product){.ahead = &t.ahead,
                                      .c = t.score,
                                      .ldc = BLOCK,
                                      .a = k,
                                      .a_row = a->stride,
                                      .a_step = 1,
                                      .b = t.qt,
                                      .ldb = BLOCK,
                                      .n = a->D},
                     ROWS_ARE_KEYS, s.keys, s.vectors);
        softmax_tile(&s, &t);
        gather_rows(t.plain, a->D, v, a->stride, s.keys, a->D, a->D);
        tile_product(&s,
                     (struct product){.ahead = &t.ahead,
                                      .c = t.acct,
                                      .ldc = BLOCK,
                                      .a = t.plain,
                                      .a_row = 1,
                                      .a_step = a->D,
                                      .b = t.score,
                                      .ldb = BLOCK,
                                      .n = s.keys,
                                      .accumulate = key_block > 0,
                                      .first = key_block > 0 ? t.keep : NULL},
                     SUM_OVER_KEYS, a->D, s.vectors);
    }
    float logs[BLOCK], inverse[BLOCK];
    vec_log(logs, t.sum, BLOCK);
    for (int i = 0; i < BLOCK; i++) inverse[i] = 1.0f / t.sum[i];
    for (int64_t d = 0; d < a->D; d++)
        for (int64_t v = 0; v < s.vectors; v++) {
            float *x = t.acct + d * BLOCK + 16 * v;
            v_store(x, v_mul(v_load(x), v_load(inverse + 16 * v)));
        }
    store_transposed(a->o + s.query * a->ostride, a->ostride, t.acct, s.queries, a->D);
    for (int64_t i = 0; i < s.queries; i++) a->lse[s.query + i] = t.top[i] * LN_2 + logs[i];
}

/* score and dscore (= dP) become P and dS = P (dP - delta), 0 where masked. */
static void softmax_gradient_tile(const struct tile *s, struct tiles *t) {
    const v16 lanes = lane_numbers();
    for (int64_t v = 0; v < s->vectors; v++) {
        const int64_t keys = visible_keys(s, v), mask_from = s->diagonal ? 16 * v : keys;
        const v16 lse = v_load(t->top + 16 * v), delta = v_load(t->sum + 16 * v);
        for (int64_t k = 0; k < keys; k++) {
            float *p = t->score + k * BLOCK + 16 * v, *d = t->dscore + k * BLOCK + 16 * v;
            v16 e = v_exp2_fma(v_sub(v_load(p), lse)); /* <= 1 but for rounding */
            v16 g = v_mul(e, v_sub(v_load(d), delta));
            if (k >= mask_from) {
                const m16 masked = v_lt(lanes, v_set1((float)(k - 16 * v)));
                e = v_select(masked, v_zero(), e);
                g = v_select(masked, v_zero(), g);
            }
            v_store(p, e);
            v_store(d, g);
        }
    }
}

/* top = the saved log-sum-exp in powers of two, sum = delta = sum_d(dout out), of the block's
 * queries. */
static void load_statistics(const struct zt_vec_attention *a, const struct tile *s,
                            struct tiles *t) {
    for (int64_t i = 0; i < BLOCK; i++) {
        t->top[i] = i < s->queries ? a->lse[s->query + i] * LOG2_E : 0.0f;
        v16 total = v_zero();
        for (int64_t d = 0; i < s->queries && d < a->D; d += 16)
            total =
                v_add(total, v_mul(row_load(t->dout + i * t->padded, d, a->D, 0.0f),
                                   row_load(a->out + (s->query + i) * a->ostride, d, a->D, 0.0f)));
        t->sum[i] = v_sum(total);
    }
}

static void backward_tile(const struct zt_vec_attention *a, const struct tile *s, struct tiles *t) {
    const int64_t D = a->D, padded = t->padded, lanes = padded / 16;
    const float *v = a->v + s->key * a->stride;
    gather_rows(t->plain, D, a->k + s->key * a->stride, a->stride, s->keys, D, D);
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->score,
                                  .ldc = BLOCK,
                                  .a = t->plain,
                                  .a_row = D,
                                  .a_step = 1,
                                  .b = t->qt,
                                  .ldb = BLOCK,
                                  .n = D},
                 ROWS_ARE_KEYS, s->keys, s->vectors);
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->dscore,
                                  .ldc = BLOCK,
                                  .a = v,
                                  .a_row = a->stride,
                                  .a_step = 1,
                                  .b = t->dot,
                                  .ldb = BLOCK,
                                  .n = D},
                 ROWS_ARE_KEYS, s->keys, s->vectors);
    softmax_gradient_tile(s, t);
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
    tile_product(s,
                 (struct product){.ahead = &t->ahead,
                                  .c = t->acct,
                                  .ldc = BLOCK,
                                  .a = t->plain,
                                  .a_row = 1,
                                  .a_step = D,
                                  .b = t->dscore,
                                  .ldb = BLOCK,
                                  .n = s->keys,
                                  .accumulate = s->key > 0},
                 SUM_OVER_KEYS, D, s->vectors);
}

/* At the last tile of a block of queries: its dQ rows, and the rows of the block after it. */
static void look_ahead_of_block(const struct zt_vec_attention *a, const struct tile *s,
                                struct tiles *t) {
    const int64_t next = s->query + BLOCK, left = a->T - next, rows = left < BLOCK ? left : BLOCK;
    if (left > 0) {
        ahead_add(&t->ahead, a->out + next * a->ostride, a->ostride, rows);
        ahead_add(&t->ahead, a->dout + next * a->ostride, a->ostride, rows);
        ahead_add(&t->ahead, a->q + next * a->stride, a->stride, rows);
    } else {
        ahead_add(&t->ahead, a->next_v, a->stride, BLOCK < a->T ? BLOCK : a->T);
        ahead_add(&t->ahead, a->next_k, a->stride, BLOCK < a->T ? BLOCK : a->T);
        ahead_add(&t->ahead, a->dv, a->stride, BLOCK < a->T ? BLOCK : a->T);
        ahead_add(&t->ahead, a->dk, a->stride, BLOCK < a->T ? BLOCK : a->T);
    }
    ahead_add(&t->ahead, a->dq + s->query * a->stride, a->stride, s->queries);
}

static void vec_attention_backward(const struct zt_vec_attention *a) {
    struct tiles t = tiles_in(a->scratch, a->T, a->D);
    const int64_t blocks = (a->T + BLOCK - 1) / BLOCK;
    memset(t.dk, 0, (size_t)(a->T * t.padded) * sizeof *t.dk);
    memset(t.dv, 0, (size_t)(a->T * t.padded) * sizeof *t.dv);
    for (int64_t query_block = 0; query_block < blocks; query_block++) {
        struct tile s = tile_at(query_block, 0, a->T);
        load_queries(a, &s, &t);
        gather_rows(t.dout, t.padded, a->dout + s.query * a->ostride, a->ostride, s.queries, a->D,
                    t.padded);
        transpose_queries(t.dot, t.dout, t.padded, s.queries, a->D);
        load_statistics(a, &s, &t);
        for (int64_t key_block = 0; key_block <= query_block; key_block++) {
            s = tile_at(query_block, key_block, a->T);
            look_ahead(a, &s, &t, s.diagonal);
            if (s.diagonal) look_ahead_of_block(a, &s, &t);
            backward_tile(a, &s, &t);
        }
        vec_scale(t.acct, a->scale, (size_t)(a->D * BLOCK));
        store_transposed(a->dq + s.query * a->stride, a->stride, t.acct, s.queries, a->D);
    }
    vec_scale(t.dk, LN_2, (size_t)(a->T * t.padded)); /* the queries carried log2(e) */
    gather_rows(a->dk, a->stride, t.dk, t.padded, a->T, a->D, a->D);
    gather_rows(a->dv, a->stride, t.dv, t.padded, a->T, a->D, a->D);
}

#undef BLOCK
