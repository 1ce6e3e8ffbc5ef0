#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/llama.bin: tiny models of the Llama family in fp64 PyTorch, and what a training step can add to
either family (python3-torch of Debian 12 is enough).

Run: /usr/bin/python3 tests/golden/gen_llama.py tests/golden/llama.bin
Format: as gen_gpt2.py ("ZTGOLD1"); weights are fp32 numbers, what is computed from them is fp64, gradients are stored
in fp32. Every name begins with its model, every tensor has its Hugging Face name without "model." or "transformer.".

  tokens, targets          of all models; -1 does not count
  M:shape                  V S T L C H KV D F B tied qkv_bias qk_norm
  M:real                   theta, eps, then factor, low, high, original_max of the llama3 scaling (factor 0: none)
  M:w:NAME                 weights
  M:logits, M:losses, M:norms  logits; 20 clipped AdamW steps as in gpt2.bin
  M:g:NAME                 gradients of the mean over the targets that count
  llama:bf16:, llama:fp16: loss, g:NAME, e:loss, e:NAME as in gpt2.bin (gradients of 16-bit weights, the error to expect)

One step of a model with something added, M:CASE: loss, g:NAME (and logits where the forward pass differs):
  llama:docs      documents: a position attends to those of its own sequence from starts[b, t] on
  llama:sample    weights: the mean over the samples of each one's mean; a sample is a whole sequence
  llama:square    documents, and 1/sqrt(n) for each token of a document with n targets that count, over the sum of the weights
  llama:dropout   p, seed, step and first_sample in "dropout" (doubles)
  gpt2:all        gpt2.bin's model with documents, weights (as square) and dropout
  llama:lora      adapters on q_proj, v_proj and down_proj: y = W x + (alpha / r) B A x, the base frozen: w: and g: of the
                  adapters alone; "llama:lora:real": r, alpha
starts and the weights are arrays "docs:starts", "sample:weights", "square:weights" (each row's factor, they sum to 1).

Dropout is drawn by philox.py. Sites: 0 embeddings, then for layer l 1+3l attention probabilities, 2+3l attention output,
3+3l MLP output. Element of a row (b, t) of width C: ((first_sample + b) T + t) C + c; of a probability:
(((first_sample + b) H + h) T + query) T4 + key, T4 = T rounded up to a multiple of 4.
"""
import math
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import gen_gpt2
import philox
from gen_gpt2 import BETAS, EPS, LR, MAX_NORM, STEPS, WD, Round, put

V, S, T, B = 41, 24, 19, 3
RANK, ALPHA, TARGETS = 3, 6.0, ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
DOCS = ([0, 5, 6, 13], [0], [0, 10])      # where documents begin in each sequence


@dataclass
class Model:
    C: int = 24
    L: int = 2
    H: int = 4
    KV: int = 2
    D: int = 6
    F: int = 28
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    theta: float = 10000.0
    eps: float = 1e-5
    scaling: tuple = (0.0, 0.0, 0.0, 0.0)  # factor, low_freq_factor, high_freq_factor, original_max


MODELS = {
    "llama": Model(),
    "tied": Model(H=3, KV=3, D=8, tied=True),
    "qwen2": Model(qkv_bias=True, tied=True, theta=1e6, eps=1e-6),
    "qwen3": Model(D=8, qk_norm=True, eps=1e-6, theta=1e6),          # heads * D is 32, not C
    "scaled": Model(H=2, KV=1, D=16, theta=100.0, scaling=(8.0, 1.0, 4.0, 32.0)),  # all three bands, see check_rope
}


def table(m):
    rows = [("embed_tokens.weight", (V, m.C))]
    for i in range(m.L):
        p = f"layers.{i}."
        rows.append((p + "input_layernorm.weight", (m.C,)))
        for x, heads in (("q", m.H), ("k", m.KV), ("v", m.KV)):
            rows.append((p + f"self_attn.{x}_proj.weight", (heads * m.D, m.C)))
            if m.qkv_bias:
                rows.append((p + f"self_attn.{x}_proj.bias", (heads * m.D,)))
        if m.qk_norm:
            rows += [(p + "self_attn.q_norm.weight", (m.D,)), (p + "self_attn.k_norm.weight", (m.D,))]
        rows += [(p + "self_attn.o_proj.weight", (m.C, m.H * m.D)), (p + "post_attention_layernorm.weight", (m.C,)),
                 (p + "mlp.gate_proj.weight", (m.F, m.C)), (p + "mlp.up_proj.weight", (m.F, m.C)),
                 (p + "mlp.down_proj.weight", (m.C, m.F))]
    return rows + [("norm.weight", (m.C,))] + ([] if m.tied else [("lm_head.weight", (V, m.C))])


def draw(rows, rng):
    """Large enough that attention is not flat, biases and norms away from 0 and 1."""
    w = {}
    for name, shape in rows:
        a = (1 if "norm" in name else 0) + 0.15 * rng.standard_normal(shape)
        w[name] = torch.tensor(a.astype(np.float32).astype(np.float64))
    return w


# ---- the parts ----

def rms_norm(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def frequencies(m):
    """Angle per position of each pair; llama3: long wavelengths are divided, those between are blended."""
    f = m.theta ** (-torch.arange(0, m.D, 2, dtype=torch.float64) / m.D)
    factor, low, high, original = m.scaling
    if factor == 0:
        return f
    smooth = ((original * f / (2 * math.pi) - low) / (high - low)).clamp(0, 1)  # wavelength original/low -> 0, original/high -> 1
    return f / factor * (1 - smooth) + f * smooth


def rope(x, f):
    """x [B, heads, T, D]; pairs (i, i + D/2) are turned by position * f[i]."""
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * f
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def allowed(starts, t):
    """[B, 1, query, key]: from the query's document start to the query."""
    key, query = torch.arange(t)[None, None, None, :], torch.arange(t)[None, None, :, None]
    ok = key <= query
    return ok if starts is None else ok & (key >= starts[:, None, :, None])


def attention(q, k, v, mask, drop=lambda p: p):
    """q [B, H, T, D], k and v [B, KV, T, D]: query head h reads key head h // (H / KV)."""
    g = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(g, 1), v.repeat_interleave(g, 1)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return drop(scores.masked_fill(~mask, float("-inf")).softmax(-1)) @ v


class Dropout:
    """The masks of one step, by site."""

    def __init__(self, p, seed, step, first_sample):
        self.p, self.seed, self.step, self.first_sample = p, seed, step, first_sample

    def __call__(self, site):
        def apply(x):
            width = x.shape[-1]
            if x.ndim == 4:                  # a probability's row begins at a multiple of 4
                width = (width + 3) // 4 * 4
            each = x[0].numel() // x.shape[-1] * width
            keep = philox.keep(self.p, self.seed, self.step, site, self.first_sample * each, x.shape[0] * each)
            return x * torch.tensor(keep).view(*x.shape[:-1], width)[..., :x.shape[-1]] / (1 - self.p)
        return apply


def no_dropout(site):
    return lambda x: x


# ---- the models ----

def forward(m, w, tokens, starts=None, drop=no_dropout, r=lambda x: x, linear=None):
    """r is applied to each tensor that a model of separate operators writes to memory."""
    b, t = tokens.shape
    linear = linear or (lambda x, name: F.linear(x, w[name + ".weight"], w.get(name + ".bias")))
    f, mask = frequencies(m), allowed(starts, t)
    x = drop(0)(w["embed_tokens.weight"][tokens])
    for i in range(m.L):
        p = f"layers.{i}."
        n = r(rms_norm(x, w[p + "input_layernorm.weight"], m.eps))
        q, k, v = (r(linear(n, f"{p}self_attn.{y}_proj")).view(b, t, -1, m.D).transpose(1, 2) for y in "qkv")
        if m.qk_norm:
            q, k = (r(rms_norm(z, w[f"{p}self_attn.{y}_norm.weight"], m.eps)) for y, z in (("q", q), ("k", k)))
        y = attention(r(rope(q, f)), r(rope(k, f)), v, mask, drop(1 + 3 * i))
        y = r(y.transpose(1, 2).reshape(b, t, m.H * m.D))
        x = r(x + drop(2 + 3 * i)(r(linear(y, p + "self_attn.o_proj"))))
        n = r(rms_norm(x, w[p + "post_attention_layernorm.weight"], m.eps))
        gate, up = r(linear(n, p + "mlp.gate_proj")), r(linear(n, p + "mlp.up_proj"))
        x = r(x + drop(3 + 3 * i)(r(linear(r(gate * torch.sigmoid(gate) * up), p + "mlp.down_proj"))))
    x = r(rms_norm(x, w["norm.weight"], m.eps))
    return r(x @ w["embed_tokens.weight" if m.tied else "lm_head.weight"].t())


def gpt2_forward(w, tokens, starts, drop):
    """As gen_gpt2.forward, with documents and dropout."""
    (b, t), h, c = tokens.shape, gen_gpt2.H, gen_gpt2.C
    x = drop(0)(w["wte.weight"][tokens] + w["wpe.weight"][:t])
    for i in range(gen_gpt2.L):
        p = f"h.{i}."
        n = F.layer_norm(x, (c,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], 1e-5)
        qkv = F.linear(n, w[p + "attn.c_attn.weight"], w[p + "attn.c_attn.bias"])
        q, k, v = (z.view(b, t, h, c // h).transpose(1, 2) for z in qkv.split(c, 2))
        y = attention(q, k, v, allowed(starts, t), drop(1 + 3 * i)).transpose(1, 2).reshape(b, t, c)
        x = x + drop(2 + 3 * i)(F.linear(y, w[p + "attn.c_proj.weight"], w[p + "attn.c_proj.bias"]))
        n = F.layer_norm(x, (c,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], 1e-5)
        a = F.gelu(F.linear(n, w[p + "mlp.c_fc.weight"], w[p + "mlp.c_fc.bias"]), approximate="tanh")
        x = x + drop(3 + 3 * i)(F.linear(a, w[p + "mlp.c_proj.weight"], w[p + "mlp.c_proj.bias"]))
    return F.layer_norm(x, (c,), w["ln_f.weight"], w["ln_f.bias"], 1e-5) @ w["wte.weight"].t()


def step(model, w, targets, weights=None):
    """logits, loss and gradients of model(w); weights [B, T]: None = the mean over the targets that count."""
    w = {n: a.detach().clone().requires_grad_() for n, a in w.items()}
    logits = model(w)
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=-1, reduction="none")
    loss = losses.sum() / (targets != -1).sum() if weights is None else (losses * weights.reshape(-1)).sum()
    loss.backward()
    return logits.detach(), loss.item(), {n: a.grad for n, a in w.items()}


# ---- documents and weights ----

def starts_of(docs, t):
    a = np.zeros((len(docs), t), np.int64)
    for row, begins in zip(a, docs):
        for at in begins:
            row[at:] = at
    return torch.tensor(a)


def document_weights(targets, groups, power):
    """groups [B, T]: number of its document (or sample); n^-power a counted token, over the sum of all."""
    counted = targets != -1
    n = torch.zeros_like(targets, dtype=torch.float64)
    for g in groups.unique():
        n[groups == g] = (counted & (groups == g)).sum().double()
    w = torch.where(counted, n.clamp(min=1) ** -power, torch.zeros(()).double())
    return w / w.sum()


# ---- checks of the parts against PyTorch's own ----

def sdpa(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F._scaled_dot_product_attention(q, k, v, mask)[0]


def check_parts(rng):
    x = torch.tensor(rng.standard_normal((2, 4, T, 8)))
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    close(rms_norm(x, torch.ones(8).double(), 0.0), F.normalize(x, dim=-1) * math.sqrt(8))
    layer = F.layer_norm(torch.cat([x, -x], -1), (16,), eps=1e-5)[..., :8]    # no mean left to take away
    close(rms_norm(x, torch.ones(8).double(), 1e-5), layer)
    gate = x[0, 0]
    close(gate * torch.sigmoid(gate), F.silu(gate))
    k, v = (torch.tensor(rng.standard_normal((2, 2, T, 8))) for _ in range(2))
    same = lambda z: torch.stack([z[:, h // 2] for h in range(4)], 1)
    for starts in (None, starts_of(DOCS[:2], T)):
        mask = allowed(starts, T).expand(2, 4, T, T)
        close(attention(x, k, v, mask), sdpa(x, same(k), same(v), mask))
    # packed documents are the documents alone
    whole = attention(x, k, v, allowed(starts_of(DOCS[:1] * 2, T), T))
    for a, b in zip(DOCS[0], DOCS[0][1:] + [T]):
        close(whole[:, :, a:b], sdpa(x[:, :, a:b], same(k)[:, :, a:b], same(v)[:, :, a:b],
                                     allowed(None, b - a).expand(2, 4, b - a, b - a)))


def check_rope(rng):
    x = torch.tensor(rng.standard_normal((2, 3, T, 16)))
    m = MODELS["scaled"]
    f = frequencies(Model(D=16, theta=m.theta))
    turn = torch.polar(torch.ones(T, 8).double(), torch.arange(T).double()[:, None] * f)
    z = torch.complex(x[..., :8], x[..., 8:]) * turn
    torch.testing.assert_close(rope(x, f), torch.cat([z.real, z.imag], -1), rtol=1e-12, atol=1e-13)
    # each pair by the case distinction of the published code
    factor, low, high, original = m.scaling
    bands = []
    for plain, ours in zip(f.tolist(), frequencies(m).tolist()):
        wavelength = 2 * math.pi / plain
        if wavelength < original / high:
            want, band = plain, "kept"
        elif wavelength > original / low:
            want, band = plain / factor, "divided"
        else:
            s = (original / wavelength - low) / (high - low)
            want, band = (1 - s) * plain / factor + s * plain, "between"
        assert abs(want / ours - 1) < 1e-12, (band, want, ours)
        bands.append(band)
    assert set(bands) == {"kept", "between", "divided"}, bands


# ---- files ----

def read(path):
    data, at, out = Path(path).read_bytes(), 8, {}
    while at < len(data):
        n, = struct.unpack_from("<I", data, at)
        name, kind = data[at + 4:at + 4 + n].decode(), chr(data[at + 4 + n])
        ndim, = struct.unpack_from("<I", data, at + 5 + n)
        shape = struct.unpack_from(f"<{ndim}q", data, at + 9 + n)
        at += 9 + n + 8 * ndim
        dtype = {"f": np.float32, "d": np.float64, "i": np.int32}[kind]
        out[name] = np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape)
        at += out[name].nbytes
    return out


def put_step(f, prefix, result, logits=True):
    values, loss, g = result
    put(f, prefix + "loss", np.array([loss]))
    if logits:
        put(f, prefix + "logits", values.numpy().astype(np.float32))
    for name, a in g.items():
        put(f, f"{prefix}g:{name}", a.numpy().astype(np.float32))


def put_16(f, prefix, dtype, m, w, tok, tgt):
    exact = {n: a.to(dtype).double() for n, a in w.items()}
    _, loss, g = step(lambda w: forward(m, w, tok), exact, tgt)
    put_step(f, prefix, (None, loss, g), logits=False)
    _, loss16, g16 = step(lambda w: forward(m, w, tok, r=lambda x: Round.apply(x, dtype)), exact, tgt)
    put(f, prefix + "e:loss", np.array([abs(loss16 - loss)]))
    for n in g:
        put(f, f"{prefix}e:{n}", np.array([((g16[n] - g[n]).norm() / g[n].norm()).item()]))


def train(m, w, tok, tgt):
    w = {n: a.clone().requires_grad_() for n, a in w.items()}
    opt = torch.optim.AdamW([{"params": [a for a in w.values() if a.ndim > 1], "weight_decay": WD},
                             {"params": [a for a in w.values() if a.ndim == 1], "weight_decay": 0.0}],
                            lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for i in range(STEPS + 1):
        opt.zero_grad()
        loss = F.cross_entropy(forward(m, w, tok).reshape(-1, V), tgt.reshape(-1), ignore_index=-1)
        losses.append(loss.item())
        if i < STEPS:
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM).item())
            opt.step()
    return losses, norms


def write_model(f, name, m, w, tok, tgt):
    p = name + ":"
    put(f, p + "shape", np.array([V, S, T, m.L, m.C, m.H, m.KV, m.D, m.F, B, m.tied, m.qkv_bias, m.qk_norm], np.int32))
    put(f, p + "real", np.array([m.theta, m.eps, *m.scaling]))
    for n, a in w.items():
        put(f, p + "w:" + n, a.numpy().astype(np.float32))
    put_step(f, p, step(lambda w: forward(m, w, tok), w, tgt))
    losses, norms = train(m, w, tok, tgt)
    put(f, p + "losses", np.array(losses))
    put(f, p + "norms", np.array(norms))


def write_cases(f, m, w, tok, tgt):
    starts = starts_of(DOCS, T)
    put(f, "docs:starts", starts.numpy().astype(np.int32))
    put_step(f, "llama:docs:", step(lambda w: forward(m, w, tok, starts), w, tgt))
    document = starts + torch.arange(B)[:, None] * T
    sample = document_weights(tgt, torch.arange(B)[:, None].expand(B, T), 1.0)
    square = document_weights(tgt, document, 0.5)
    put(f, "sample:weights", sample.numpy().astype(np.float32))
    put(f, "square:weights", square.numpy().astype(np.float32))
    put_step(f, "llama:sample:", step(lambda w: forward(m, w, tok), w, tgt, sample), logits=False)
    put_step(f, "llama:square:", step(lambda w: forward(m, w, tok, starts), w, tgt, square), logits=False)
    how = (0.25, 0x123456789A, 7, 2)
    drop = Dropout(*how)
    put(f, "dropout", np.array(how, np.float64))
    put_step(f, "llama:dropout:", step(lambda w: forward(m, w, tok, drop=drop), w, tgt))
    return starts, square, drop


def write_lora(f, m, w, tok, tgt, rng):
    rows = []
    for name, (out, width) in ((n, s) for n, s in table(m) if n[:-7].endswith(TARGETS)):
        rows += [(name[:-7] + ".lora_A.weight", (RANK, width)), (name[:-7] + ".lora_B.weight", (out, RANK))]
    a = draw(rows, rng)

    def apart(a):
        def linear(x, name):
            y = F.linear(x, w[name + ".weight"])
            if not name.endswith(TARGETS):
                return y
            return y + ALPHA / RANK * F.linear(F.linear(x, a[name + ".lora_A.weight"]), a[name + ".lora_B.weight"])
        return forward(m, w, tok, linear=linear)

    result = step(apart, a, tgt)
    merged = {n: x + ALPHA / RANK * a[n[:-7] + ".lora_B.weight"] @ a[n[:-7] + ".lora_A.weight"]
              if n[:-7].endswith(TARGETS) else x for n, x in w.items()}
    torch.testing.assert_close(forward(m, merged, tok), result[0], rtol=1e-11, atol=1e-12)
    put(f, "llama:lora:real", np.array([RANK, ALPHA]))
    for n, x in a.items():
        put(f, "llama:lora:w:" + n, x.numpy().astype(np.float32))
    put_step(f, "llama:lora:", result)


def write_gpt2(f, starts, square, drop):
    gold = read(Path(__file__).with_name("gpt2.bin"))
    w = {n[2:]: torch.tensor(a.astype(np.float64)) for n, a in gold.items() if n.startswith("w:")}
    tok, tgt = (torch.tensor(gold[n].astype(np.int64)) for n in ("tokens", "targets"))
    plain = gpt2_forward(w, tok, None, no_dropout)
    torch.testing.assert_close(plain, torch.tensor(gold["logits"]), rtol=1e-11, atol=1e-12)
    assert (tgt.shape == square.shape) and bool(((tgt == -1) == (square == 0)).all())
    put_step(f, "gpt2:all:", step(lambda w: gpt2_forward(w, tok, starts, drop), w, tgt, square))


def main(path):
    torch.set_num_threads(1)
    rng = np.random.default_rng(20260102)
    check_parts(rng)
    check_rope(rng)
    tokens, targets = rng.integers(0, V, (B, T)), rng.integers(0, V, (B, T))
    targets[0, :7] = -1                      # rows that do not count: a whole document and a part of one
    targets[2, T - 1] = -1
    tok, tgt = torch.tensor(tokens), torch.tensor(targets)
    with open(path, "wb") as f:
        f.write(b"ZTGOLD1\n")
        put(f, "tokens", tokens.astype(np.int32))
        put(f, "targets", targets.astype(np.int32))
        weights = {name: draw(table(m), rng) for name, m in MODELS.items()}
        for name, m in MODELS.items():
            write_model(f, name, m, weights[name], tok, tgt)
        m, w = MODELS["llama"], weights["llama"]
        put_16(f, "llama:bf16:", torch.bfloat16, m, w, tok, tgt)
        put_16(f, "llama:fp16:", torch.float16, m, w, tok, tgt)
        added = write_cases(f, m, w, tok, tgt)
        write_lora(f, m, w, tok, tgt, rng)
        write_gpt2(f, *added)


if __name__ == "__main__":
    main(sys.argv[1])
