#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's AdamW and gradient norm on n fp32 parameters cut as a GPT of width 768 cuts them.
The faster of the loop and the foreach form counts.
  peer_adamw.py [--n 30000000] [--threads 2] [--repeat 9]          -> one JSON line"""
import argparse
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
for name, default in (("n", 30000000), ("threads", 2), ("repeat", 9)):
    p.add_argument("--" + name, type=int, default=default)
A = p.parse_args()
peer_common.settle(A.threads)
import torch  # noqa: E402  (after the settings)

torch.set_num_threads(A.threads)


def tensors(n, width=768):
    shapes = [3 * width * width, width * width, 4 * width * width, 4 * width * width]
    out = []
    while n > 0:
        size = min(shapes[len(out) % 4], n)
        q = torch.ones(size, requires_grad=True)
        q.grad = torch.full_like(q, 0.25)
        out.append(q)
        n -= size
    return out


def measured(f):
    times, cpu = [], []
    for i in range(A.repeat + 2):
        t, s = time.perf_counter(), time.process_time()
        f()
        if i >= 2:
            times.append(time.perf_counter() - t)
            cpu.append(time.process_time() - s)
    return statistics.median(times) * 1e3, min(times) * 1e3, statistics.median(cpu) * 1e3


best = None
params = tensors(A.n)
for foreach in (False, True):
    opt = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, foreach=foreach)
    ms = measured(opt.step)
    best = ms if best is None or ms < best else best
norm = measured(lambda: torch.nn.utils.clip_grad_norm_(params, 1e30))
peer_common.say(bench="adamw", impl="pytorch-" + torch.__version__, n=A.n, threads=A.threads, ms=round(best[0], 4),
                min_ms=round(best[1], 4), cpu_ms=round(best[2], 4), norm_ms=round(norm[0], 4), gb_per_s=round(28e-6 * A.n / best[0], 1))
