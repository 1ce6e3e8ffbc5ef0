#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One training step in PyTorch, fp32: causal attention, AdamW, clipping at 1; DDP over gloo when there are several ranks.
gpt2: learned positions, pre-LayerNorm, fused QKV, GELU (tanh), tied head; llama: rotary positions, RMSNorm, grouped
queries, SwiGLU, a head of its own. The same arguments as bench-train-step; --batch is per rank.
  peer_train_step.py [--family gpt2] [--layers 4] [--dim 256] [--heads 4] [--kv-heads 0] [--ffn 0] [--seq 256] [--vocab 256]
                     [--batch 8] [--steps 12] [--warmup 3] [--threads 2] [--world 1]      -> one JSON line"""
import argparse
import math
import resource
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
p.add_argument("--family", choices=("gpt2", "llama"), default="gpt2")
for name, default in (("layers", 4), ("dim", 256), ("heads", 4), ("kv-heads", 0), ("ffn", 0), ("seq", 256), ("vocab", 256),
                      ("batch", 8), ("steps", 12), ("warmup", 3), ("threads", 2), ("world", 1)):
    p.add_argument("--" + name, type=int, default=default)
A = p.parse_args()
A.kv_heads = A.kv_heads or A.heads
A.ffn = A.ffn or 4 * A.dim
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
    size = A.dim // A.heads
    angle = places[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    cosine, sine = (torch.cat([f(angle)] * 2, 1) for f in (torch.cos, torch.sin))

    def attention(q, k, v):
        """[batch, heads, seq, size] each -> [batch, seq, dim]"""
        if fused:
            y = fused(q, k, v, is_causal=True)
        else:
            score = (q @ k.transpose(2, 3)) / math.sqrt(size)
            y = score.masked_fill(hidden, -math.inf).softmax(3) @ v
        return y.transpose(1, 2).reshape(q.shape[0], A.seq, A.dim)

    class GPT2Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(A.dim), nn.LayerNorm(A.dim)
            self.c_attn, self.attn_proj = nn.Linear(A.dim, 3 * A.dim), nn.Linear(A.dim, A.dim)
            self.c_fc, self.mlp_proj = nn.Linear(A.dim, A.ffn), nn.Linear(A.ffn, A.dim)

        def forward(self, x):
            q, k, v = self.c_attn(self.ln_1(x)).view(-1, A.seq, 3, A.heads, size).permute(2, 0, 3, 1, 4)
            x = x + self.attn_proj(attention(q, k, v))
            return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(A.vocab, A.dim), nn.Embedding(A.seq, A.dim)
            self.h = nn.Sequential(*[GPT2Block() for _ in range(A.layers)])
            self.ln_f = nn.LayerNorm(A.dim)

        def forward(self, tokens):
            return F.linear(self.ln_f(self.h(self.wte(tokens) + self.wpe(places))), self.wte.weight)

    class RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(A.dim))

        def forward(self, x):
            if hasattr(F, "rms_norm"):
                return F.rms_norm(x, (A.dim,), self.weight, 1e-5)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def turn(x):
        a, b = x.chunk(2, 3)
        return x * cosine + torch.cat([-b, a], 3) * sine

    class LlamaBlock(nn.Module):
        def __init__(self):
            super().__init__()
            linear = lambda n, m: nn.Linear(n, m, bias=False)
            self.norm_1, self.norm_2 = RMSNorm(), RMSNorm()
            self.q, self.o = linear(A.dim, A.dim), linear(A.dim, A.dim)
            self.k, self.v = linear(A.dim, A.kv_heads * size), linear(A.dim, A.kv_heads * size)
            self.gate, self.up, self.down = linear(A.dim, A.ffn), linear(A.dim, A.ffn), linear(A.ffn, A.dim)

        def forward(self, x):
            n = self.norm_1(x)
            q, k, v = (f(n).view(x.shape[0], A.seq, -1, size).transpose(1, 2) for f in (self.q, self.k, self.v))
            q, k = turn(q), turn(k)
            if A.kv_heads < A.heads:
                k, v = (z.repeat_interleave(A.heads // A.kv_heads, 1) for z in (k, v))
            x = x + self.o(attention(q, k, v))
            n = self.norm_2(x)
            return x + self.down(F.silu(self.gate(n)) * self.up(n))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(A.vocab, A.dim)
            self.layers = nn.Sequential(*[LlamaBlock() for _ in range(A.layers)])
            self.norm, self.head = RMSNorm(), nn.Linear(A.dim, A.vocab, bias=False)

        def forward(self, tokens):
            return self.head(self.norm(self.layers(self.embed(tokens))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Llama() if A.family == "llama" else GPT2()
            for q in self.parameters():
                if q.dim() > 1:
                    nn.init.normal_(q, std=0.02)

        def forward(self, tokens, targets):
            return F.cross_entropy(self.body(tokens).view(-1, A.vocab), targets.view(-1))

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
        peer_common.say(bench="train_step", impl="pytorch-" + torch.__version__, family=A.family, layers=A.layers, dim=A.dim,
                        heads=A.heads, kv_heads=A.kv_heads, ffn=A.ffn, seq=A.seq, vocab=A.vocab, batch=A.batch, world=A.world,
                        threads=A.threads, parameters=sum(q.numel() for q in plain.parameters()), ms=round(ms, 3),
                        min_ms=round(min(times) * 1e3, 3), tokens_per_second=round(A.world * A.batch * A.seq / ms * 1e3, 1),
                        loss_first=round(losses[0], 4), loss_last=round(losses[-1], 4),
                        peak_rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    if A.world > 1:
        dist.barrier()
        dist.destroy_process_group()


peer_common.on_ranks(A.world, work)
