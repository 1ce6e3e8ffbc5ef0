/* SPDX-License-Identifier: Apache-2.0 */
/* kernels/cpu/vec_attention_typed.h: attention's units of work on tensors of one storage type,
 * included by vec_typed.h. Rows are widened once a tile, into the thread's scratch; results leave
 * it rounded once. fp32 rows that a product reads in order are read where they lie. */

/* out[row][0..D) = in[row][0..D), then zeros up to `padded`. */
static void TY(gather_rows)(float *out, int64_t ostride, const ELEM *in, int64_t stride, int64_t n,
                            int64_t D, int64_t padded) {
    for (int64_t r = 0; r < n; r++) {
        float *o = out + r * ostride;
        for (int64_t d = 0; d < D; d += 16)
            row_store_f32(o, d, D, TY(row_load)(in + r * stride, d, D, 0.0f));
        for (int64_t d = D; d < padded; d++) o[d] = 0.0f;
    }
}

static void TY(scatter_rows)(ELEM *out, int64_t ostride, const float *in, int64_t stride, int64_t n,
                             int64_t D) {
    for (int64_t r = 0; r < n; r++)
        for (int64_t d = 0; d < D; d += 16)
            TY(row_store)(out + r * ostride, d, D, row_load_f32(in + r * stride, d, D, 0.0f));
}

/* n rows of D as fp32: where they lie, or gathered in `room`. */
static const float *TY(fp32_rows)(float *room, const ELEM *in, int64_t *stride, int64_t n,
                                  int64_t D) {
#if IS_F32
    (void)room, (void)stride, (void)n, (void)D;
    return in;
#else
    TY(gather_rows)(room, D, in, *stride, n, D, D);
    *stride = D;
    return room;
#endif
}

/* out[query][d] = in[d][query] for n queries. */
static void TY(store_transposed)(ELEM *out, int64_t stride, const float *in, int64_t n, int64_t D,
                                 float *room) {
#if IS_F32
    (void)room;
    transpose(out, stride, in, BLOCK, D, n);
#else
    transpose(room, D, in, BLOCK, D, n);
    TY(scatter_rows)(out, stride, room, D, n, D);
#endif
}

static void TY(ahead)(struct tiles *t, const void *row, int64_t stride, int64_t rows) {
    ahead_add(&t->ahead, row, stride * (int64_t)sizeof(ELEM), rows);
}

static struct tiles TY(tiles)(const struct zt_vec_attention *a) {
    struct tiles t = tiles_in(a->scratch, a->T, a->D);
    if (!a->dropout.on) t.factor = NULL;
    t.ahead.width = a->D * (int64_t)sizeof(ELEM);
    return t;
}

/* Queues the keys and values of the tile after this one. */
static void TY(look_ahead)(const struct zt_vec_attention *a, const struct tile *s,
                           struct tiles *t) {
    const int64_t next = s->key + BLOCK, left = a->T - next, rows = left < BLOCK ? left : BLOCK;
    TY(ahead)(t, (const ELEM *)a->v + next * a->v_row, a->v_row, rows);
    TY(ahead)(t, (const ELEM *)a->k + next * a->k_row, a->k_row, rows);
}

/* The queries of a block, scaled, in both orders. */
static void TY(load_queries)(const struct zt_vec_attention *a, const struct tile *s,
                             struct tiles *t) {
    TY(gather_rows)
    (t->q, t->padded, (const ELEM *)a->q + s->query * a->q_row, a->q_row, s->queries, a->D,
     t->padded);
    scale_f32(t->q, a->scale * LOG2_E, (size_t)(s->queries * t->padded));
    transpose_queries(t->qt, t->q, t->padded, s->queries, a->D);
}

static void TY(attention_forward)(const struct zt_vec_attention *a, int64_t query_block) {
    struct tiles t = TY(tiles)(a);
    struct tile s = tile_at(query_block, 0, a->T);
    const int64_t first_rows = BLOCK < a->T ? BLOCK : a->T;
    TY(load_queries)(a, &s, &t);
    load_starts(a->starts, &s, &t);
    const int64_t first = t.least / BLOCK;
    for (int i = 0; i < BLOCK; i++) {
        t.top[i] = -__builtin_inff();
        t.sum[i] = 0.0f;
    }
    for (int64_t key_block = first; key_block <= query_block; key_block++) {
        s = tile_at(query_block, key_block, a->T);
        const ELEM *v = (const ELEM *)a->v + s.key * a->v_row;
        t.ahead.count = 0;
        if (!s.diagonal) {
            TY(look_ahead)(a, &s, &t);
        } else { /* what the next unit starts with */
            TY(ahead)(&t, a->next_v, a->v_row, first_rows);
            TY(ahead)(&t, a->next_k, a->k_row, first_rows);
            TY(ahead)(&t, (ELEM *)a->o + s.query * a->out_row, a->out_row, s.queries);
        }
        int64_t k_row = a->k_row;
        const float *k =
            TY(fp32_rows)(t.plain, (const ELEM *)a->k + s.key * a->k_row, &k_row, s.keys, a->D);
        tile_product(&s,
                     (struct product){.ahead = &t.ahead,
                                      .c = t.score,
                                      .ldc = BLOCK,
                                      .a = k,
                                      .a_row = k_row,
                                      .a_step = 1,
                                      .b = t.qt,
                                      .ldb = BLOCK,
                                      .n = a->D},
                     ROWS_ARE_KEYS, s.keys, s.vectors);
        if (a->dropout.on) dropout_tile(&a->dropout, &s, &t);
        softmax_tile(&s, &t);
        TY(gather_rows)(t.plain, a->D, v, a->v_row, s.keys, a->D, a->D);
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
                                      .accumulate = key_block > first,
                                      .first = key_block > first ? t.keep : NULL},
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
    TY(store_transposed)
    ((ELEM *)a->o + s.query * a->out_row, a->out_row, t.acct, s.queries, a->D, t.plain);
    for (int64_t i = 0; i < s.queries; i++) a->lse[s.query + i] = t.top[i] * LN_2 + logs[i];
}

/* top = the saved log-sum-exp in powers of two, sum = delta = sum_d(dout out), of the block's
 * queries. */
static void TY(load_statistics)(const struct zt_vec_attention *a, const struct tile *s,
                                struct tiles *t) {
    for (int64_t i = 0; i < BLOCK; i++) {
        const ELEM *out = (const ELEM *)a->out + (s->query + i) * a->out_row;
        t->top[i] = i < s->queries ? a->lse[s->query + i] * LOG2_E : 0.0f;
        v16 total = v_zero();
        for (int64_t d = 0; i < s->queries && d < a->D; d += 16)
            total = v_add(total, v_mul(row_load_f32(t->dout + i * t->padded, d, a->D, 0.0f),
                                       TY(row_load)(out, d, a->D, 0.0f)));
        t->sum[i] = v_sum(total);
    }
}

/* The weights of a tile and their gradients. */
static void TY(weights_tile)(const struct zt_vec_attention *a, const struct tile *s,
                             struct tiles *t) {
    const int64_t D = a->D;
    int64_t v_row = a->v_row;
    TY(gather_rows)(t->plain, D, (const ELEM *)a->k + s->key * a->k_row, a->k_row, s->keys, D, D);
    const float *v =
        TY(fp32_rows)(t->values, (const ELEM *)a->v + s->key * a->v_row, &v_row, s->keys, D);
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
                                  .a_row = v_row,
                                  .a_step = 1,
                                  .b = t->dot,
                                  .ldb = BLOCK,
                                  .n = D},
                 ROWS_ARE_KEYS, s->keys, s->vectors);
    if (a->dropout.on) dropout_tile(&a->dropout, s, t);
    softmax_gradient_tile(s, t);
}

/* At the last tile of a block of queries: its dQ rows, and the rows of the block after it or of
 * what follows the last one. */
static void TY(look_ahead_of_block)(const struct zt_vec_attention *a, const struct tile *s,
                                    bool last, struct tiles *t) {
    const int64_t next = s->query + BLOCK, left = a->T - next, rows = left < BLOCK ? left : BLOCK;
    const int64_t first_rows = BLOCK < a->T ? BLOCK : a->T;
    if (!last) {
        TY(ahead)(t, (const ELEM *)a->out + next * a->out_row, a->out_row, rows);
        TY(ahead)(t, (const ELEM *)a->dout + next * a->out_row, a->out_row, rows);
        TY(ahead)(t, (const ELEM *)a->q + next * a->q_row, a->q_row, rows);
    } else {
        TY(ahead)(t, a->next_v, a->v_row, first_rows);
        TY(ahead)(t, a->next_k, a->k_row, first_rows);
        TY(ahead)(t, a->dv, a->v_row, first_rows);
        TY(ahead)(t, a->dk, a->k_row, first_rows);
    }
    TY(ahead)(t, (ELEM *)a->dq + s->query * a->q_row, a->q_row, s->queries);
}

/* The queries of a block and what backward needs of them. */
static void TY(load_gradients)(const struct zt_vec_attention *a, const struct tile *s,
                               struct tiles *t) {
    TY(load_queries)(a, s, t);
    TY(gather_rows)
    (t->dout, t->padded, (const ELEM *)a->dout + s->query * a->out_row, a->out_row, s->queries,
     a->D, t->padded);
    transpose_queries(t->dot, t->dout, t->padded, s->queries, a->D);
    TY(load_statistics)(a, s, t);
}

static void TY(store_keys)(const struct zt_vec_attention *a, int64_t row, int64_t rows,
                           struct tiles *t) {
    float *dk = t->dk + row * t->padded;
    scale_f32(dk, LN_2, (size_t)(rows * t->padded)); /* the queries carried log2(e) */
    TY(scatter_rows)
    ((ELEM *)a->dk + row * a->k_row, a->k_row, dk, t->padded, rows, a->D);
    TY(scatter_rows)
    ((ELEM *)a->dv + row * a->v_row, a->v_row, t->dv + row * t->padded, t->padded, rows, a->D);
}

static void TY(attention_backward)(const struct zt_vec_attention *a,
                                   const struct zt_vec_attention_part *p) {
    struct tiles t = TY(tiles)(a);
    const int64_t row = p->key * BLOCK, end = row + p->keys * BLOCK;
    const int64_t rows = (end < a->T ? end : a->T) - row;
    if (p->to_keys && p->first) {
        memset(t.dk + row * t.padded, 0, (size_t)(rows * t.padded) * sizeof *t.dk);
        memset(t.dv + row * t.padded, 0, (size_t)(rows * t.padded) * sizeof *t.dv);
    }
    for (int64_t query_block = p->query; query_block < p->query + p->queries; query_block++) {
        struct tile s = tile_at(query_block, 0, a->T);
        load_starts(a->starts, &s, &t);
        int64_t key_block = t.least / BLOCK;
        if (key_block < p->key) key_block = p->key;
        if (key_block >= p->key + p->keys) continue;
        TY(load_gradients)(a, &s, &t);
        for (; key_block <= query_block && key_block < p->key + p->keys; key_block++) {
            s = tile_at(query_block, key_block, a->T);
            t.ahead.count = 0;
            if (!s.diagonal && key_block + 1 < p->key + p->keys)
                TY(look_ahead)(a, &s, &t);
            else
                TY(look_ahead_of_block)
            (a, &s, query_block + 1 == p->query + p->queries, &t);
            TY(weights_tile)(a, &s, &t);
            if (p->to_keys) keys_tile(&s, &t);
            if (p->to_queries) queries_tile(&s, &t);
        }
        if (!p->to_queries) continue;
        scale_f32(t.acct, a->scale, (size_t)(a->D * BLOCK));
        TY(store_transposed)
        ((ELEM *)a->dq + s.query * a->q_row, a->q_row, t.acct, s.queries, a->D, t.plain);
    }
    if (p->to_keys && p->last) TY(store_keys)(a, row, rows, &t);
}
