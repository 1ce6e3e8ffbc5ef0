#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/quickstart_losses.txt: a whole training run from end to end in PyTorch fp64,
sharing nothing with ztrain but the definitions: weights from Philox4x32-10 (Salmon et al., SC'11) by
Box-Muller, N(0, 0.02), residual outputs / sqrt(2 L); order of the samples from PyTorch's own
DistributedSampler; windows that end with the epoch; warm-up and cosine; clip_grad_norm_; AdamW with
decay on matrices only; loss per token over the whole window; evaluation on the held-out tail.

Run: /usr/bin/python3 tests/golden/gen_quickstart.py (python3-torch of Debian 12)
Lines: `train step sequences lr grad_norm loss`, `eval step rows tokens loss`, numbers as hex floats.
`--nano FILE SEQ BATCH STEPS` prints the losses of the gpt2-nano preset with default options instead.
"""
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DistributedSampler

HERE = os.path.dirname(os.path.abspath(__file__))


class Config:
    layers, heads, dim, vocab, positions = 2, 3, 48, 256, 40
    seq, local, glob, epochs, steps = 37, 3, 12, 2, 0
    fraction, every = 0.1, 10
    seed, data_seed = 8589934683, 7
    lr, betas, eps, decay, max_norm = 3e-3, (0.9, 0.95), 1e-8, 0.1, 0.5
    warmup, low, cosine = 4, 0.1, True


# ---- weights ----

def philox(index, tensor, seed, purpose=1, step=0):
    """Words 0 and 1 for an array of element indices."""
    mask = np.uint64(0xFFFFFFFF)
    c = [index & mask, index >> np.uint64(32), np.full_like(index, step),
         np.full_like(index, purpose << 24 | tensor)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0], c[1]


def normal(shape, tensor, seed, std):
    a, b = philox(np.arange(math.prod(shape), dtype=np.uint64), tensor, seed)
    u1, u2 = (a.astype(np.float64) + 0.5) / 2**32, b.astype(np.float64) / 2**32
    z = np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2) * std
    return z.astype(np.float32).astype(np.float64).reshape(shape)


def table(k):
    """(name, shape, std): std 0 = zeros, 1 = ones."""
    C, residual = k.dim, 0.02 / math.sqrt(2 * k.layers)
    rows = [("wte", (k.vocab, C), 0.02), ("wpe", (k.positions, C), 0.02), ("lnf.w", (C,), 1), ("lnf.b", (C,), 0)]
    for i in range(k.layers):
        rows += [(f"{i}.ln1.w", (C,), 1), (f"{i}.ln1.b", (C,), 0),
                 (f"{i}.qkv.w", (3 * C, C), 0.02), (f"{i}.qkv.b", (3 * C,), 0),
                 (f"{i}.proj.w", (C, C), residual), (f"{i}.proj.b", (C,), 0),
                 (f"{i}.ln2.w", (C,), 1), (f"{i}.ln2.b", (C,), 0),
                 (f"{i}.fc.w", (4 * C, C), 0.02), (f"{i}.fc.b", (4 * C,), 0),
                 (f"{i}.down.w", (C, 4 * C), residual), (f"{i}.down.b", (C,), 0)]
    return rows


def draw(k):
    w = {}
    for i, (name, shape, std) in enumerate(table(k)):
        a = np.full(shape, float(std)) if len(shape) == 1 else normal(shape, i, k.seed, std)
        w[name] = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    return w


def logits(w, k, tokens):
    b, t = tokens.shape
    C, H = k.dim, k.heads
    x = w["wte"][tokens] + w["wpe"][:t]
    causal = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
    for i in range(k.layers):
        n = F.layer_norm(x, (C,), w[f"{i}.ln1.w"], w[f"{i}.ln1.b"], 1e-5)
        q, v, z = None, None, F.linear(n, w[f"{i}.qkv.w"], w[f"{i}.qkv.b"]).split(C, dim=2)
        q, key, v = [a.view(b, t, H, C // H).transpose(1, 2) for a in z]
        s = (q @ key.transpose(-2, -1)) / math.sqrt(C // H)
        y = (s.masked_fill(causal, float("-inf")).softmax(-1) @ v).transpose(1, 2).reshape(b, t, C)
        x = x + F.linear(y, w[f"{i}.proj.w"], w[f"{i}.proj.b"])
        n = F.layer_norm(x, (C,), w[f"{i}.ln2.w"], w[f"{i}.ln2.b"], 1e-5)
        h = F.linear(n, w[f"{i}.fc.w"], w[f"{i}.fc.b"])
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
        x = x + F.linear(h, w[f"{i}.down.w"], w[f"{i}.down.b"])
    return F.layer_norm(x, (C,), w["lnf.w"], w["lnf.b"], 1e-5) @ w["wte"].t()


def loss_sum(w, k, rows):
    batch = torch.tensor(np.stack(rows).astype(np.int64))
    out = logits(w, k, batch[:, :-1])
    return F.cross_entropy(out.reshape(-1, k.vocab), batch[:, 1:].reshape(-1), reduction="sum")


# ---- the run ----

def samples_of(text, k):
    a = np.frombuffer(text, np.uint8)
    n = (len(a) - 1) // k.seq
    return [a[i * k.seq:i * k.seq + k.seq + 1] for i in range(n)]


def windows(k, n):
    """Sample ids of every optimizer step, all ranks together."""
    sampler = DistributedSampler(range(n), num_replicas=1, rank=0, shuffle=True, seed=k.data_seed, drop_last=True)
    epoch, left = 0, []
    while k.epochs == 0 or epoch < k.epochs:
        sampler.set_epoch(epoch)
        ids = list(sampler)
        ids = ids[:len(ids) // k.local * k.local]      # whole micro-batches
        left += ids
        while len(left) >= k.glob:
            yield left[:k.glob]
            left = left[k.glob:]
        if k.epochs and left:
            yield left                                  # the epoch's short tail
            left = []
        epoch += 1


def factor(k, i, total):
    if i < k.warmup:
        return (i + 1) / k.warmup
    if not k.cosine:
        return 1.0
    decay = total - k.warmup
    p = (i + 1 - (total + 1 - decay)) / decay if i >= total + 1 - decay else 0.0
    return k.low + (1 - k.low) * 0.5 * (1 + math.cos(math.pi * p))


def run(k, text, total, out):
    every = samples_of(text, k)
    held = math.floor(len(every) * k.fraction + 1e-9)
    train, tail = every[:len(every) - held], every[len(every) - held:]
    w = draw(k)
    names = [(n, s) for n, s, _ in table(k)]
    opt = torch.optim.AdamW([{"params": [w[n] for n, s in names if len(s) > 1], "weight_decay": k.decay},
                             {"params": [w[n] for n, s in names if len(s) == 1], "weight_decay": 0.0}],
                            lr=k.lr, betas=k.betas, eps=k.eps)
    plan = list(windows(k, len(train))) if k.epochs else None
    total = len(plan) if plan else total
    source = iter(plan) if plan else windows(k, len(train))
    for i in range(total):
        ids = next(source)
        opt.zero_grad()
        loss = loss_sum(w, k, [train[j] for j in ids]) / (len(ids) * k.seq)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(w.values()), k.max_norm).item()
        lr = k.lr * factor(k, i, total)
        for g in opt.param_groups:
            g["lr"] = lr
        opt.step()
        out(f"train {i + 1} {len(ids)} {lr.hex()} {norm.hex()} {loss.item().hex()}")
        if tail and ((i + 1) % k.every == 0 or i + 1 == total):
            with torch.no_grad():
                mean = loss_sum(w, k, tail).item() / (len(tail) * k.seq)
            out(f"eval {i + 1} {len(tail)} {len(tail) * k.seq} {mean.hex()}")


def main():
    torch.set_num_threads(1)
    k = Config()
    if len(sys.argv) > 1:
        _, _, path, seq, batch, steps = sys.argv
        k.layers, k.heads, k.dim, k.positions = 4, 4, 128, 256
        k.seq, k.local, k.glob, k.epochs = int(seq), int(batch), int(batch), 0
        k.fraction, k.seed, k.data_seed = 0.0, 0, 0
        k.lr, k.max_norm, k.warmup, k.cosine = 3e-4, 1.0, 0, False
        run(k, open(path, "rb").read(), int(steps), print)
        return
    text = open(os.path.join(HERE, "quickstart_text.txt"), "rb").read()
    with open(os.path.join(HERE, "quickstart_losses.txt"), "w") as f:
        print("# made by gen_quickstart.py with torch", torch.__version__, file=f)
        run(k, text, 0, lambda line: print(line, file=f))


main()
