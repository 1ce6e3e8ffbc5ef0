#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's matrix product in the three forms of a linear layer, result written in place.
  peer_gemm.py [--op fwd|dx|dw] [--rows 2048] [--in 768] [--out 3072] [--threads 2] [--repeat 15] [--type fp32|bf16]"""
import argparse
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
p.add_argument("--op", choices=("fwd", "dx", "dw"), default="fwd")
for name, default in (("rows", 2048), ("in", 768), ("out", 3072), ("threads", 2), ("repeat", 15)):
    p.add_argument("--" + name, type=int, default=default, dest=name + "_")
p.add_argument("--type", choices=("fp32", "bf16"), default="fp32")
A = p.parse_args()
peer_common.settle(A.threads_)
import torch  # noqa: E402

torch.set_num_threads(A.threads_)
torch.manual_seed(1)
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[A.type]
x, w, dy = ((torch.rand(s) * 2 - 1).to(dtype) for s in ((A.rows_, A.in_), (A.out_, A.in_), (A.rows_, A.out_)))
a, b = {"fwd": (x, w.t()), "dx": (dy, w), "dw": (dy.t(), x)}[A.op]
c = torch.empty(a.shape[0], b.shape[1], dtype=dtype)
times, cpu = [], []
for i in range(A.repeat_ + 2):
    t, s = time.perf_counter(), time.process_time()
    torch.mm(a, b, out=c)
    if i >= 2:
        times.append(time.perf_counter() - t)
        cpu.append(time.process_time() - s)
ms = statistics.median(times) * 1e3
peer_common.say(bench="gemm", impl="pytorch-" + torch.__version__, op=A.op, rows=A.rows_, **{"in": A.in_}, out=A.out_,
                type=A.type, threads=A.threads_, ms=round(ms, 4), min_ms=round(min(times) * 1e3, 4),
                cpu_ms=round(statistics.median(cpu) * 1e3, 4),
                gflops=round(2e-6 * A.rows_ * A.in_ * A.out_ / ms, 1))
