#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/gpt2.bin: a tiny GPT-2 in fp64 PyTorch (python3-torch of Debian 12 is enough).

Run: /usr/bin/python3 tests/golden/gen_gpt2.py tests/golden/gpt2.bin
Format: "ZTGOLD1\\n", then per tensor: name length u32, name, dtype char ('f' fp32, 'd' fp64, 'i' int32),
number of dimensions u32, dimensions i64 each, data; little endian, until the end of the file.
Weights are rounded to fp32 before anything is computed, so both sides start from the same numbers.
"""
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

V, S, T, L, C, H, B = 61, 24, 19, 2, 24, 3, 3
FF = 4 * C
LR, BETAS, EPS, WD, MAX_NORM, STEPS = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 10


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


def forward(w, tokens):
    b, t = tokens.shape
    x = w["wte.weight"][tokens] + w["wpe.weight"][:t]
    for i in range(L):
        p = f"h.{i}."
        n = F.layer_norm(x, (C,), w[p + "ln_1.weight"], w[p + "ln_1.bias"], 1e-5)
        qkv = F.linear(n, w[p + "attn.c_attn.weight"], w[p + "attn.c_attn.bias"])
        q, k, v = [z.view(b, t, H, C // H).transpose(1, 2) for z in qkv.split(C, dim=2)]
        att = (q @ k.transpose(-2, -1)) / (C // H) ** 0.5
        att = att.masked_fill(torch.triu(torch.ones(t, t, dtype=torch.bool), 1), float("-inf"))
        y = (att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, C)
        x = x + F.linear(y, w[p + "attn.c_proj.weight"], w[p + "attn.c_proj.bias"])
        n = F.layer_norm(x, (C,), w[p + "ln_2.weight"], w[p + "ln_2.bias"], 1e-5)
        h = F.linear(n, w[p + "mlp.c_fc.weight"], w[p + "mlp.c_fc.bias"])
        a = 0.5 * h * (1 + torch.tanh((2 / np.pi) ** 0.5 * (h + 0.044715 * h ** 3)))
        x = x + F.linear(a, w[p + "mlp.c_proj.weight"], w[p + "mlp.c_proj.bias"])
    x = F.layer_norm(x, (C,), w["ln_f.weight"], w["ln_f.bias"], 1e-5)
    return x @ w["wte.weight"].t()


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
    valid = int((targets != -1).sum())
    with open(path, "wb") as f:
        f.write(b"ZTGOLD1\n")
        put(f, "shape", np.array([V, S, T, L, C, H, B], np.int32))
        put(f, "tokens", tokens.astype(np.int32))
        put(f, "targets", targets.astype(np.int32))
        for name, _ in table():
            put(f, "w:" + name, w[name].detach().numpy().astype(np.float32))
        opt = torch.optim.AdamW([{"params": [w[n] for n, s in table() if len(s) > 1], "weight_decay": WD},
                                 {"params": [w[n] for n, s in table() if len(s) == 1], "weight_decay": 0.0}],
                                lr=LR, betas=BETAS, eps=EPS)
        losses, norms = [], []
        for step in range(STEPS + 1):
            opt.zero_grad()
            logits = forward(w, tok)
            loss = F.cross_entropy(logits.reshape(-1, V), tgt.reshape(-1), ignore_index=-1, reduction="sum") / valid
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
