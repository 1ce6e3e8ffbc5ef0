#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/gpt2.bin: a tiny GPT-2 in fp64 PyTorch (python3-torch of Debian 12 is enough).

Run: /usr/bin/python3 tests/golden/gen_gpt2.py tests/golden/gpt2.bin
Format: "ZTGOLD1\\n", then per tensor: name length u32, name, dtype char ('f' fp32, 'd' fp64, 'i' int32),
number of dimensions u32, dimensions i64 each, data; little endian, until the end of the file.
Weights are rounded to fp32 before anything is computed, so both sides start from the same numbers.

Losses and clipped AdamW steps are fp64. For 16-bit computation ("bf16:", "fp16:") weights are rounded to that
type too, then
  loss, g:NAME   the fp64 loss and gradients of those weights,
  e:loss, e:NAME how far off they are, relative (absolute for the loss), when every tensor between two operators
                 and its gradient is rounded to 16 bits and all else is fp64: the error to expect,
  t:loss, t:NAME the same of PyTorch's own bf16 module (PyTorch 1.13 has no fp16 linear on CPU).
"""
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

V, S, T, L, C, H, B = 61, 24, 19, 2, 24, 3, 3
FF = 4 * C
LR, BETAS, EPS, WD, MAX_NORM, STEPS = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 20


def table():
    rows = [("wte.weight", (V, C)), ("wpe.weight", (S, C)), ("ln_f.weight", (C,)), ("ln_f.bias", (C,))]
    for i in range(L):
        p = f"h.{i}."
        rows += [(p + "ln_1.weight", (C,)), (p + "ln_1.bias", (C,)),
                 (p + "attn.c_attn.weight", (3 * C, C)), (p + "attn.c_attn.bias", (3 * C,)),
                 (p + "attn.c_proj.weight", (C, C)), (p + "attn.c_proj.bias", (C,)),
                 (p + "ln_2.weight", (C,)), (p + "ln_2.bias", (C,)),
                 (p + "mlp.c_fc.weight", (FF, C)), (p + "mlp.c_fc.bias", (FF,)),
                 (p + "mlp.c_proj.weight", (C, FF)), (p + "mlp.c_proj.bias", (C,))]
    return rows


def draw(rng):
    w = {}
    for name, shape in table():
        if name.endswith("ln_1.weight") or name.endswith("ln_2.weight") or name == "ln_f.weight":
            a = 1 + 0.1 * rng.standard_normal(shape)
        else:
            a = 0.08 * rng.standard_normal(shape)   # biases too: a zero bias hides a lost one
        w[name] = torch.tensor(a.astype(np.float32).astype(np.float64), requires_grad=True)
    return w


class Round(torch.autograd.Function):
    """To 16 bits and back, the value and its gradient."""
    @staticmethod
    def forward(ctx, x, dtype):
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g.to(ctx.dtype).to(g.dtype), None


def forward(w, tokens, r=lambda x: x):
    """r is applied to each tensor that a GPT-2 of separate operators writes to memory."""
    b, t = tokens.shape
    x = r(w["wte.weight"][tokens] + w["wpe.weight"][:t])
    for i in range(L):
        p = f"h.{i}."
        n = r(F.layer_norm(x, (C,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], 1e-5))
        qkv = r(F.linear(n, w[p + "attn.c_attn.weight"], w[p + "attn.c_attn.bias"]))
        q, k, v = [z.view(b, t, H, C // H).transpose(1, 2) for z in qkv.split(C, dim=2)]
        att = (q @ k.transpose(-2, -1)) / (C // H) ** 0.5
        att = att.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float("-inf"))
        y = r((att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, C))
        x = r(x + r(F.linear(y, w[p + "attn.c_proj.weight"], w[p + "attn.c_proj.bias"])))
        n = r(F.layer_norm(x, (C,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], 1e-5))
        h = r(F.linear(n, w[p + "mlp.c_fc.weight"], w[p + "mlp.c_fc.bias"]))
        a = r(F.gelu(h, approximate="tanh"))
        x = r(x + r(F.linear(a, w[p + "mlp.c_proj.weight"], w[p + "mlp.c_proj.bias"])))
    x = r(F.layer_norm(x, (C,), w["ln_f.weight"], w["ln_f.bias"], 1e-5))
    return r(x @ w["wte.weight"].t())


def mean_loss(w, tok, tgt, **how):
    """Cross-entropy in fp32 at least, over the targets that count."""
    logits = forward(w, tok, **how)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(wide.reshape(-1, V), tgt.reshape(-1), ignore_index=-1, reduction="sum")
    return logits, loss / (tgt != -1).sum()


def gradients(w, tok, tgt, **how):
    w = {n: a.detach().clone().requires_grad_() for n, a in w.items()}
    _, loss = mean_loss(w, tok, tgt, **how)
    loss.backward()
    return loss.item(), {n: a.grad.double() for n, a in w.items()}


def write_16(f, name, dtype, w, tok, tgt):
    w16 = {n: a.detach().to(dtype) for n, a in w.items()}
    exact = {n: a.double() for n, a in w16.items()}
    loss, g = gradients(exact, tok, tgt)
    put(f, name + ":loss", np.array([loss]))
    for n, _ in table():
        put(f, f"{name}:g:{n}", g[n].numpy().astype(np.float32))

    def put_errors(kind, loss16, g16):
        put(f, f"{name}:{kind}:loss", np.array([abs(loss16 - loss)]))
        for n, _ in table():
            put(f, f"{name}:{kind}:{n}", np.array([((g16[n] - g[n]).norm() / g[n].norm()).item()]))

    put_errors("e", *gradients(exact, tok, tgt, r=lambda x: Round.apply(x, dtype)))
    if dtype == torch.bfloat16:
        put_errors("t", *gradients(w16, tok, tgt))


def put(f, name, a):
    a = np.ascontiguousarray(a)
    code = {"float32": b"f", "float64": b"d", "int32": b"i"}[a.dtype.name]
    f.write(struct.pack("<I", len(name)) + name.encode() + code + struct.pack("<I", a.ndim))
    f.write(struct.pack(f"<{a.ndim}q", *a.shape) + a.tobytes())


def main(path):
    torch.set_num_threads(1)
    rng = np.random.default_rng(20260101)
    w = draw(rng)
    tokens = rng.integers(0, V, (B, T))
    targets = rng.integers(0, V, (B, T))
    targets[0, :7] = -1                      # rows that do not count
    targets[2, T - 1] = -1
    tok, tgt = torch.tensor(tokens), torch.tensor(targets)
    with open(path, "wb") as f:
        f.write(b"ZTGOLD1\n")
        put(f, "shape", np.array([V, S, T, L, C, H, B], np.int32))
        put(f, "tokens", tokens.astype(np.int32))
        put(f, "targets", targets.astype(np.int32))
        for name, _ in table():
            put(f, "w:" + name, w[name].detach().numpy().astype(np.float32))
        write_16(f, "bf16", torch.bfloat16, w, tok, tgt)
        write_16(f, "fp16", torch.float16, w, tok, tgt)
        opt = torch.optim.AdamW([{"params": [w[n] for n, s in table() if len(s) > 1], "weight_decay": WD},
                                 {"params": [w[n] for n, s in table() if len(s) == 1], "weight_decay": 0.0}],
                                lr=LR, betas=BETAS, eps=EPS)
        losses, norms = [], []
        for step in range(STEPS + 1):
            opt.zero_grad()
            logits, loss = mean_loss(w, tok, tgt)
            losses.append(loss.item())
            if step == STEPS:
                break
            loss.backward()
            if step == 0:
                put(f, "logits", logits.detach().numpy())
                for name, _ in table():
                    put(f, "g:" + name, w[name].grad.numpy().astype(np.float64))
            norms.append(torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM).item())
            opt.step()
        put(f, "losses", np.array(losses))
        put(f, "norms", np.array(norms))


if __name__ == "__main__":
    main(sys.argv[1])
