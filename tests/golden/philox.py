# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 (Salmon et al., SC'11) on numpy arrays, and the dropout masks drawn with it: for the gen_*.py beside it.

Element e of a stream (seed, step, site) is word e % 4 of the block with counter (e / 4 lo, e / 4 hi, step, purpose << 24 |
site); it is dropped when that word is below p 2^32.
"""
import numpy as np

DROPOUT = 2  # purpose, core/rng.h
LOW, S32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter, key):
    """Four uint64 arrays of 32-bit values each way; key: two integers."""
    c = [np.asarray(x, np.uint64) for x in counter]
    k = [np.uint64(x) for x in key]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> S32) ^ c[1] ^ k[0], p1 & LOW, (p0 >> S32) ^ c[3] ^ k[1], p0 & LOW]
        k = [(k[0] + np.uint64(0x9E3779B9)) & LOW, (k[1] + np.uint64(0xBB67AE85)) & LOW]
    return c


def keep(p, seed, step, site, first, n):
    """Which of the elements [first, first + n) stay, as booleans."""
    e = np.uint64(first) + np.arange(n, dtype=np.uint64)
    block = e >> np.uint64(2)
    like = np.zeros_like(block)
    words = philox([block & LOW, block >> S32, like + np.uint64(step), like + np.uint64(DROPOUT << 24 | site)],
                   [seed & 0xFFFFFFFF, seed >> 32])
    return np.choose((e & np.uint64(3)).astype(np.int64), words) >= np.uint64(int(p * 2**32))


def check():
    """The authors' known answers (Random123 kat_vectors)."""
    for value, want in ((0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"), (0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd")):
        got = philox([np.full(1, value, np.uint64)] * 4, [value] * 2)
        assert " ".join(f"{int(w[0]):08x}" for w in got) == want, got


check()
