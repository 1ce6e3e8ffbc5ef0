#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's causal attention alone (scaled_dot_product_attention; before 2.0 its private forerunner).
  peer_attention.py [--pass forward|backward] [--batch 1] [--seq 1024] [--heads 8] [--kv-heads 8] [--head-dim 64]
                    [--threads 2] [--repeat 5]
Tensors are [batch, heads, seq, head_dim], dense: its best case. Grouped queries: keys and values are repeated, as it
has no other way on a CPU before 2.5. backward: autograd of a forward that is not timed."""
import argparse
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
p.add_argument("--pass", choices=("forward", "backward"), default="forward", dest="pass_")
for name, default in (("batch", 1), ("seq", 1024), ("heads", 8), ("kv-heads", 8), ("head-dim", 64), ("threads", 2),
                      ("repeat", 5)):
    p.add_argument("--" + name, type=int, default=default)
A = p.parse_args()
peer_common.settle(A.threads)
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(A.threads)
torch.manual_seed(1)
backward = A.pass_ == "backward"
q, k, v, dout = ((torch.rand(A.batch, h, A.seq, A.head_dim) * 2 - 1).requires_grad_(backward and i < 3)
                 for i, h in enumerate((A.heads, A.kv_heads, A.kv_heads, A.heads)))


def attention():
    group = A.heads // A.kv_heads
    kk, vv = (k, v) if group == 1 else (t.repeat_interleave(group, dim=1) for t in (k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, kk, vv, is_causal=True)
    return F._scaled_dot_product_attention(q, kk, vv, is_causal=True)[0]


times, cpu = [], []
for i in range(A.repeat + 1):
    out = attention() if backward else None
    t, s = time.perf_counter(), time.process_time()
    if backward:
        torch.autograd.grad(out, (q, k, v), dout)
    else:
        with torch.no_grad():
            attention()
    if i >= 1:
        times.append(time.perf_counter() - t)
        cpu.append(time.process_time() - s)
ms = statistics.median(times) * 1e3
flop = (5 if backward else 2) * A.batch * A.heads * A.seq * (A.seq + 1) * A.head_dim
peer_common.say(bench="attention", impl="pytorch-" + torch.__version__, **{"pass": A.pass_}, batch=A.batch, seq=A.seq,
                heads=A.heads, kv_heads=A.kv_heads, head_dim=A.head_dim, threads=A.threads, ms=round(ms, 4),
                min_ms=round(min(times) * 1e3, 4), cpu_ms=round(statistics.median(cpu) * 1e3, 4),
                gflops=round(1e-6 * flop / ms, 1))
