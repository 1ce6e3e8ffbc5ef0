# SPDX-License-Identifier: Apache-2.0
"""What the PyTorch peers share: the fastest fair settings of the distribution's PyTorch on a CPU, set
before the libraries load, and the start of several processes.

OpenMP build of OpenBLAS where it is installed (one pool of threads together with PyTorch's own), wide
vectors for PyTorch's kernels, and big buffers kept by malloc instead of mapped anew every step.
"""
import json
import os
import socket
import sys

OPENMP_BLAS = "/usr/lib/x86_64-linux-gnu/openblas-openmp"


def settle(threads):
    """Sets the environment and starts the program again once: libraries read it when they load."""
    if os.environ.get("ZT_PEER_SETTLED") == "1":
        return
    env = os.environ
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_NUM_THREADS"):
        env.pop(name, None)
    env["OMP_NUM_THREADS"] = env["OPENBLAS_NUM_THREADS"] = str(threads)
    env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 30)
    env["MALLOC_TRIM_THRESHOLD_"] = str(1 << 33)
    with open("/proc/cpuinfo") as f:
        if "avx512dq" in f.read():
            env["ATEN_CPU_CAPABILITY"] = "avx512"
    if os.path.isdir(OPENMP_BLAS):
        env["LD_LIBRARY_PATH"] = OPENMP_BLAS + ":" + env.get("LD_LIBRARY_PATH", "")
    env["ZT_PEER_SETTLED"] = "1"
    os.execv(sys.executable, [sys.executable] + sys.argv)


def on_ranks(world, work):
    """Runs work(rank) in `world` processes with a rendezvous of their own; ends the program."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(s.getsockname()[1])
    children = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(rank)
                sys.stdout.flush()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    sys.exit(1 if [p for p in children if os.waitpid(p, 0)[1] != 0] else 0)


def say(**row):
    print(json.dumps(row, separators=(",", ":")), flush=True)
