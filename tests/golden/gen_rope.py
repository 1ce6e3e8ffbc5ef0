#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes rope.txt for tests/core/test_rope.c: angles of rotary positions in fp64, the frequencies by
wavelengths as Meta published llama3's stretching.  Lines: theta factor low high original_max (factor 0:
no stretching) head_dim position pair cos sin.  Run: ./gen_rope.py > rope.txt
"""
import math


def frequency(theta, head_dim, pair, scaling):
    f = 1.0 / theta ** (2 * pair / head_dim)
    if not scaling:
        return f
    factor, low, high, original = scaling
    wavelength = 2 * math.pi / f
    if wavelength > original / low:
        return f / factor
    if wavelength < original / high:
        return f
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * f / factor + smooth * f


def main():
    print("# made by gen_rope.py")
    cases = ((10000.0, None), (500000.0, None), (500000.0, (8.0, 1.0, 4.0, 8192)),
             (500000.0, (32.0, 1.0, 4.0, 8192)), (10000.0, (4.0, 2.0, 3.0, 64)))
    for theta, scaling in cases:
        for head_dim in (2, 6, 64, 128):
            for pair in sorted({0, 1, head_dim // 8, head_dim // 4, head_dim // 3, head_dim // 2 - 1}):
                if pair >= head_dim // 2:
                    continue
                f = frequency(theta, head_dim, pair, scaling)
                for position in (0, 1, 7, 1023):
                    a = position * f
                    print(theta, *(scaling or (0, 0, 0, 0)), head_dim, position, pair,
                          math.cos(a).hex(), math.sin(a).hex())


main()
