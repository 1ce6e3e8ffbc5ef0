#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/half.bin: single layers of PyTorch 1.13 in bf16 on CPU, beside the same in fp64.

Run: /usr/bin/python3 tests/golden/gen_half.py tests/golden/half.bin
Format: as gen_gpt2.py ("ZTGOLD1"). Inputs are bf16 numbers written as fp32. For each layer "NAME" is PyTorch's bf16
result (as fp32) and "NAME:64" what fp64 gives for the same inputs.

PyTorch's matrix products round once, so ours must agree with them; its GELU, LayerNorm and cross-entropy of that version
round between their steps, so ours must be at least as close to fp64.
"""
import struct
import sys

import torch
import torch.nn.functional as F

N, IN, OUT, V = 40, 65, 48, 37
bf16 = torch.bfloat16


def layers(x, w, b, dy, weight, bias, dz, logits, target):
    """Every result by name, in the type of the inputs."""
    x, w, b, weight, bias, logits = (t.clone().requires_grad_() for t in (x, w, b, weight, bias, logits))
    out = {"linear": F.linear(x, w, b)}
    out["linear dx"], out["linear dw"], out["linear db"] = torch.autograd.grad(out["linear"], (x, w, b), dy)
    out["gelu"] = F.gelu(x, approximate="tanh")
    (out["gelu dx"],) = torch.autograd.grad(out["gelu"], x, dz)
    out["norm"] = F.layer_norm(x, (IN,), weight, bias, 1e-5)
    out["norm dx"], out["norm dw"], out["norm db"] = torch.autograd.grad(out["norm"], (x, weight, bias), dz)
    loss = F.cross_entropy(logits, target, reduction="none")
    out["loss"] = loss
    (out["dlogits"],) = torch.autograd.grad(loss.sum(), logits)
    return {k: v.detach() for k, v in out.items()}


def main(path):
    torch.manual_seed(20)
    torch.set_num_threads(1)
    shapes = {"x": (N, IN), "w": (OUT, IN), "b": (OUT,), "dy": (N, OUT), "weight": (IN,), "bias": (IN,), "dz": (N, IN),
              "logits": (N, V)}
    inputs = {k: (torch.randn(s) * (3 if k == "logits" else 1)).to(bf16) for k, s in shapes.items()}
    target = torch.randint(0, V, (N,))
    arrays = {"target": target.int()}
    arrays.update({k: v.float() for k, v in inputs.items()})
    arrays.update({k: v.float() for k, v in layers(*inputs.values(), target).items()})
    arrays.update({k + ":64": v for k, v in layers(*(t.double() for t in inputs.values()), target).items()})
    with open(path, "wb") as f:
        f.write(b"ZTGOLD1\n")
        for name, t in arrays.items():
            a = t.numpy()
            f.write(struct.pack("<I", len(name)) + name.encode() + {"float32": b"f", "float64": b"d", "int32": b"i"}[str(a.dtype)])
            f.write(struct.pack("<I", a.ndim) + struct.pack(f"<{a.ndim}q", *a.shape) + a.tobytes())


main(sys.argv[1])
