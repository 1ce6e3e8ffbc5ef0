#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes schedule.txt for tests/core/test_schedule.c: warm-up, stable, decay as torchtitan defines
it, driven through torch.optim.lr_scheduler.LambdaLR.
Lines: total warmup decay ratio min factors...   Run: ./gen_schedule.py > schedule.txt
"""
import math
import torch


def factor(i, warmup, stable, decay, kind, low):
    if i < warmup:
        return (i + 1) / warmup
    if i < warmup + stable:
        return 1.0
    p = (i + 1 - (warmup + stable)) / decay
    f = {"linear": 1 - p, "sqrt": 1 - math.sqrt(p), "cosine": 0.5 * (1 + math.cos(math.pi * p))}[kind]
    return low + (1 - low) * f


def main():
    print("# made by gen_schedule.py with torch", torch.__version__)
    for total, warmup in ((10, 2), (10, 0), (7, 7), (25, 5), (1, 0), (33, 4)):
        for kind in ("linear", "cosine", "sqrt"):
            for ratio in (-1, 0.0, 0.1, 0.3, 0.5, 1.0):
                for low in (0.0, 0.1):
                    decay = total - warmup if ratio < 0 else min(round(total * ratio), total - warmup)
                    stable = total + 1 - warmup - decay
                    w = torch.nn.Parameter(torch.zeros(1))
                    opt = torch.optim.SGD([w], lr=1.0)
                    sch = torch.optim.lr_scheduler.LambdaLR(
                        opt, lambda i: factor(i, warmup, stable, decay, kind, low) if i < total else 0.0)
                    out = []
                    for _ in range(total):
                        out.append(opt.param_groups[0]["lr"])
                        opt.step()
                        sch.step()
                    print(total, warmup, kind, ratio, low, *[x.hex() for x in out])


main()
