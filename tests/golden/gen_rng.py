#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rng.txt for tests/core/test_rng.c: Philox4x32-10 written again from the paper, and normals
by Box-Muller.  Lines: seed purpose step tensor index w0 w1 w2 w3 normal.  Run: ./gen_rng.py > rng.txt
"""
import math

MASK = 0xFFFFFFFF


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        hi0, lo0 = divmod(0xD2511F53 * c[0], 2**32)
        hi1, lo1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def main():
    # the authors' known answers (Random123 kat_vectors)
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    print("# made by gen_rng.py")
    for seed in (0, 42, 2**40 + 7, 2**64 - 1):
        for purpose, step, tensor in ((1, 0, 0), (2, 17, 3), (3, 2**32 - 1, 2**24 - 1)):
            for index in (0, 1, 2**32 - 1, 2**32, 2**40 + 12345):
                w = philox([index & MASK, index >> 32, step, purpose << 24 | tensor],
                           [seed & MASK, seed >> 32])
                u1, u2 = (w[0] + 0.5) / 2**32, w[1] / 2**32
                z = math.sqrt(-2 * math.log(u1)) * math.cos(2 * math.pi * u2)
                print(seed, purpose, step, tensor, index, *w, z.hex())


main()
