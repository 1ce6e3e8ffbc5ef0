#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeds of fuzz_trace: seed_trace.py DATABASE FOLDER. One file per step with the traces that the ranks of a
real run stored, each behind a byte that says its length in units of four (unknown fields pad it)."""
import sqlite3
import sys

PAD = {0: b"", 1: b"\x78\x01" + b"\x80\x01\x01", 2: b"\x78\x01", 3: b"\x80\x01\x01"}  # fields 15 and 16

db, folder = sys.argv[1:]
steps = {}
for step, trace in sqlite3.connect(db).execute("SELECT step, trace FROM step_trace ORDER BY step, rank, part"):
    trace += PAD[-len(trace) % 4]
    if len(trace) <= 4 * 255:
        steps.setdefault(step, []).append(bytes([len(trace) // 4]) + trace)
for step, traces in steps.items():
    with open(f"{folder}/step-{step}", "wb") as out:
        out.write(b"".join(traces))
