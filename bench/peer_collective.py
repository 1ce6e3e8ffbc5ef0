#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One collective of torch.distributed over gloo, K processes of this host. Where gloo has no
reduce_scatter, the row says so.
  peer_collective.py [--op all_reduce|all_gather|reduce_scatter|broadcast|barrier] [--world 2]
                     [--bytes 4194304] [--repeat 9]                -> one JSON line"""
import argparse
import statistics
import time

import peer_common

p = argparse.ArgumentParser()
p.add_argument("--op", choices=("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"), default="all_reduce")
for name, default in (("world", 2), ("bytes", 4 << 20), ("repeat", 9)):
    p.add_argument("--" + name, type=int, default=default)
A = p.parse_args()
peer_common.settle(1)


def work(rank):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=A.world)
    share = -(-max(A.bytes // 4, 1) // A.world)
    full = torch.zeros(share * A.world)
    parts, part = list(full.chunk(A.world)), torch.zeros(share)
    call = {
        "all_reduce": lambda: dist.all_reduce(full),
        "all_gather": lambda: dist.all_gather(parts, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "broadcast": lambda: dist.broadcast(full, 0),
        "barrier": dist.barrier,
    }[A.op]
    row = dict(bench="collective", impl="gloo-" + torch.__version__, op=A.op, world=A.world, bytes=full.numel() * 4)
    try:
        call()
    except Exception as e:  # an operation that the backend does not have
        if rank == 0:
            peer_common.say(**row, us=None, error=str(e).splitlines()[0][:120])
        return
    inner = 20 if A.bytes <= 1 << 20 else 6 if A.bytes <= 16 << 20 else 3
    times = []
    for i in range(A.repeat + 1):
        dist.barrier()
        t = time.perf_counter()
        for _ in range(inner):
            call()
        if i >= 1:
            times.append((time.perf_counter() - t) / inner)
    us = statistics.median(times) * 1e6
    moved = {"barrier": 0, "all_reduce": 2}.get(A.op, 1)
    if rank == 0:
        peer_common.say(**row, us=round(us, 2), min_us=round(min(times) * 1e6, 2),
                        bus_gb_per_s=round(moved * (A.world - 1) / A.world * full.numel() * 4 / us * 1e-3, 3))
    dist.barrier()
    dist.destroy_process_group()


peer_common.on_ranks(A.world, work)
