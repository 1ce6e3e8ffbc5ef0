/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 layers beside PyTorch's on CPU (tests/golden/gen_half.py says which must agree, and which of
 * PyTorch's round in between, so that ours must be at least as close to fp64). */
#include "tests/golden/golden.h"
#include "tests/kernels/half.h"

enum { N = 40, IN = 65, OUT = 48, V = 37 };
static struct golden gold;

static struct golden_array array(const char *name, const char *suffix) {
    struct golden_array a;
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    cr_assert_eq(golden_find(&gold, full, &a), 0, "%s is not in the golden file", full);
    return a;
}

static uint16_t *input(const char *name) {
    const struct golden_array a = array(name, "");
    uint16_t *h = half_buffer(a.numel);
    for (int64_t i = 0; i < a.numel; i++) h[i] = encode16(golden_f64(&a, i), ZT_BF16);
    return h;
}

/* At most an ulp apart, and nearly always equal: fp32 sums of another order seldom round to
 * another neighbour. */
static void agrees(const uint16_t *got, const char *name) {
    const struct golden_array want = array(name, "");
    int64_t differ = 0;
    for (int64_t i = 0; i < want.numel; i++) {
        const double w = golden_f64(&want, i), g = value16(got[i], ZT_BF16);
        cr_assert(fabs(g - w) <= ulp16(w, ZT_BF16), "%s %lld: %g, PyTorch %g", name, (long long)i,
                  g, w);
        differ += g != w;
    }
    cr_assert(differ * 100 <= want.numel, "%s: %lld of %lld differ", name, (long long)differ,
              (long long)want.numel);
}

static double distance(const struct golden_array *a, const uint16_t *got,
                       const struct golden_array *ref) {
    double d = 0.0;
    for (int64_t i = 0; i < ref->numel; i++) {
        const double v = got ? value16(got[i], ZT_BF16) : golden_f64(a, i);
        d += (v - golden_f64(ref, i)) * (v - golden_f64(ref, i));
    }
    return sqrt(d);
}

static void as_close(const uint16_t *got, const char *name) {
    const struct golden_array torch = array(name, ""), ref = array(name, ":64");
    const double ours = distance(NULL, got, &ref), theirs = distance(&torch, NULL, &ref);
    cr_expect(ours <= theirs, "%s: %g from fp64, PyTorch %g", name, ours, theirs);
}

static void linear(struct zt_ops_ctx *x) {
    const struct zt_ops *o = zt_ops_cpu();
    uint16_t *in = input("x"), *w = input("w"), *b = input("b"), *dy = input("dy");
    uint16_t *out = half_buffer(N * OUT);
    float *work = buffer(128 * 128);
    OK(o->gemm(x, ZT_GEMM_FWD, N, OUT, IN, ZT_BF16, in, w, b, out, ZT_BF16, false, work, &err));
    agrees(out, "linear");
    OK(o->gemm(x, ZT_GEMM_DX, N, IN, OUT, ZT_BF16, dy, w, NULL, in, ZT_BF16, false, work, &err));
    agrees(in, "linear dx");
    in = input("x");
    OK(o->gemm(x, ZT_GEMM_DW, OUT, IN, N, ZT_BF16, dy, in, NULL, w, ZT_BF16, false, NULL, &err));
    agrees(w, "linear dw");
    OK(o->bias_backward(x, ZT_BF16, ZT_BF16, b, dy, N, OUT, false, work, &err));
    as_close(b, "linear db");
}

static void rows(struct zt_ops_ctx *x) {
    const struct zt_ops *o = zt_ops_cpu();
    uint16_t *in = input("x"), *w = input("weight"), *b = input("bias"), *dz = input("dz");
    uint16_t *out = half_buffer(N * IN), *dw = half_buffer(IN), *db = half_buffer(IN);
    float *stat = buffer(2 * N), *work = buffer(2 * 2 * IN);
    OK(o->gelu_forward(x, ZT_BF16, out, in, N * IN, &err));
    as_close(out, "gelu");
    OK(o->gelu_backward(x, ZT_BF16, out, in, dz, N * IN, &err));
    as_close(out, "gelu dx");
    OK(o->layernorm_forward(x, ZT_BF16, out, stat, stat + N, in, NULL, NULL, w, b, N, IN, 1e-5,
                            &err));
    as_close(out, "norm");
    OK(o->layernorm_backward(x, ZT_BF16, ZT_BF16, out, dw, db, dz, in, w, stat, stat + N, N, IN,
                             false, work, &err));
    as_close(out, "norm dx");
    as_close(dw, "norm dw");
    as_close(db, "norm db");
    const struct golden_array target = array("target", ""), loss64 = array("loss", ":64");
    uint16_t *logits = input("logits");
    OK(o->cross_entropy(x, ZT_BF16, logits, stat,
                        (const int32_t *)(const void *)memcpy(work, target.data, N * 4), NULL, N, V,
                        1.0f, true, &err));
    as_close(logits, "dlogits");
    for (int i = 0; i < N; i++) /* losses are fp32: exact logits, 37 terms, values below 20 */
        cr_expect(fabs(stat[i] - golden_f64(&loss64, i)) < 20.0 * gamma_n(V + 10));
}

Test(half_torch, layers) {
    cr_assert_eq(golden_open(ZT_GOLDEN_DIR "/half.bin", &gold), 0);
    for (int s = ISA_NAMES - 1; s >= 0; s--) { /* the best first: a narrower one limits oneDNN */
        if (!zt_vec_find(isa_names[s])) continue;
        struct zt_ops_ctx *x = context(2, isa_names[s], NULL);
        linear(x);
        rows(x);
        end_buffers();
        zt_ops_cpu_destroy(x);
    }
    golden_close(&gold);
}
