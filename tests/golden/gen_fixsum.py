#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes fixsum.txt for tests/core/test_fixsum.c: floats over the whole range of exponents and the
exact sums, by rational arithmetic: every addend rounded to a multiple of 2^-104 (ties to even),
the total rounded once to double.  Lines: F <hex float>, then SQUARES <hex double>, FLOATS <hex double>,
per group.  Run: ./gen_fixsum.py > fixsum.txt
"""
import random
import struct
from fractions import Fraction


def to_float32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def on_grid(x):
    return round(x * 2**104)  # of a Fraction: exact, ties to even


def total(values):
    return float(Fraction(sum(on_grid(v) for v in values), 2**104))


def group(rng, n, low, high):
    out = []
    for _ in range(n):
        kind = rng.random()
        if kind < 0.03:
            x = rng.choice([0.0, -0.0])
        else:
            x = rng.choice([-1, 1]) * rng.uniform(1, 2) * 2.0 ** rng.randint(low, high)
        out.append(to_float32(x))
    return out


def main():
    rng = random.Random(20240229)
    print("# made by gen_fixsum.py")
    for n, low, high in [(1, -3, 3), (7, -60, 5), (40, -149, 17), (300, -70, -40), (500, -20, 4),
                         (333, -149, 12), (64, 10, 18), (100, -149, -100)]:
        v = group(rng, n, low, high)
        for x in v:
            print("F", x.hex())
        exact = [Fraction(x) for x in v]
        print("SQUARES", total([x * x for x in exact]).hex())
        print("FLOATS", total(exact).hex())


main()
