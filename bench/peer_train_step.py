#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One training step of a GPT-2 in PyTorch, fp32: learned positions, pre-LayerNorm, fused QKV, causal
attention, GELU (tanh), tied head, AdamW, clipping at 1; DDP over gloo when there are several ranks.
The same arguments as bench-train-step; --batch is per rank.
  peer_train_step.py [--layers 4] [--dim 256] [--heads 4] [--seq 256] [--vocab 256] [--batch 8]
                     [--steps 12] [--warmup 3] [--threads 2] [--world 1]      -> one JSON line"""
import argparse
import math
import resource
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
for name, default in (("layers", 4), ("dim", 256), ("heads", 4), ("seq", 256), ("vocab", 256), ("batch", 8), ("steps", 12),
                      ("warmup", 3), ("threads", 2), ("world", 1)):
    p.add_argument("--" + name, type=int, default=default)
A = p.parse_args()
peer_common.settle(A.threads)


def work(rank):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(A.threads)
    torch.manual_seed(1)
    fused = getattr(F, "scaled_dot_product_attention", None)  # newer releases
    hidden = torch.triu(torch.ones(A.seq, A.seq, dtype=torch.bool), 1)
    places = torch.arange(A.seq)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(A.dim), nn.LayerNorm(A.dim)
            self.c_attn, self.attn_proj = nn.Linear(A.dim, 3 * A.dim), nn.Linear(A.dim, A.dim)
            self.c_fc, self.mlp_proj = nn.Linear(A.dim, 4 * A.dim), nn.Linear(4 * A.dim, A.dim)

        def attend(self, x):
            n, t, c = x.shape
            q, k, v = self.c_attn(x).view(n, t, 3, A.heads, c // A.heads).permute(2, 0, 3, 1, 4)
            if fused:
                y = fused(q, k, v, is_causal=True)
            else:
                score = (q @ k.transpose(2, 3)) / math.sqrt(c // A.heads)
                y = score.masked_fill(hidden, -math.inf).softmax(3) @ v
            return self.attn_proj(y.transpose(1, 2).reshape(n, t, c))

        def forward(self, x):
            x = x + self.attend(self.ln_1(x))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(A.vocab, A.dim), nn.Embedding(A.seq, A.dim)
            self.h = nn.Sequential(*[Block() for _ in range(A.layers)])
            self.ln_f = nn.LayerNorm(A.dim)
            for q in self.parameters():
                if q.dim() > 1:
                    nn.init.normal_(q, std=0.02)

        def forward(self, tokens, targets):
            x = self.ln_f(self.h(self.wte(tokens) + self.wpe(places)))
            return F.cross_entropy(F.linear(x, self.wte.weight).view(-1, A.vocab), targets.view(-1))

    plain = model = Model()
    if A.world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=A.world)
        model = nn.parallel.DistributedDataParallel(plain, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(plain.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    g = torch.Generator().manual_seed(rank)
    times, losses = [], []
    for i in range(A.warmup + A.steps):
        t = time.perf_counter()
        tokens = torch.randint(0, A.vocab, (A.batch, A.seq + 1), generator=g)
        loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        losses.append(float(loss))
        if i >= A.warmup:
            times.append(time.perf_counter() - t)
    ms = statistics.median(times) * 1e3
    if rank == 0:
        peer_common.say(bench="train_step", impl="pytorch-" + torch.__version__, layers=A.layers, dim=A.dim, heads=A.heads,
                        seq=A.seq, vocab=A.vocab, batch=A.batch, world=A.world, threads=A.threads,
                        parameters=sum(q.numel() for q in plain.parameters()), ms=round(ms, 3), min_ms=round(min(times) * 1e3, 3),
                        tokens_per_second=round(A.world * A.batch * A.seq / ms * 1e3, 1), loss_first=round(losses[0], 4),
                        loss_last=round(losses[-1], 4), peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    if A.world > 1:
        dist.barrier()
        dist.destroy_process_group()


peer_common.on_ranks(A.world, work)
