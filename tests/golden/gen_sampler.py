#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sampler.txt: PyTorch's randperm and DistributedSampler, for tests/core/test_sampler.c.

Lines: P n seed ids...              torch.randperm(n) after manual_seed(seed)
       S n world shuffle drop_last seed epoch rank ids...
Run with python3-torch (1.13 or later), CPU:  ./gen_sampler.py > sampler.txt
"""
import torch
from torch.utils.data.distributed import DistributedSampler


class Rows:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


def main():
    print("# made by gen_sampler.py with torch", torch.__version__)
    for n, seed in [(10, 0), (10, 1), (10, 42), (1, 5), (2, 5), (700, 123456789), (1300, 2**32 + 5)]:
        g = torch.Generator()
        g.manual_seed(seed)
        print("P", n, seed, *torch.randperm(n, generator=g).tolist())
    for n, world in [(10, 3), (5, 2), (2, 4), (1, 3), (12, 4), (13, 4), (14, 4), (15, 4), (101, 8)]:
        for shuffle in (False, True):
            for drop in (False, True):
                if drop and n < world:
                    continue
                for seed, epoch in ((0, 0), (0, 1), (1234, 7)):
                    for rank in range(world):
                        s = DistributedSampler(Rows(n), world, rank, shuffle, seed, drop)
                        s.set_epoch(epoch)
                        print("S", n, world, int(shuffle), int(drop), seed, epoch, rank, *list(s))


main()
