#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Exported folders against the programs that they are for: transformers, safetensors, and peft where there are adapters.
Not run by CI, which has none of them.

Run: check_hf.py tests/golden/hf/expected.bin NAME=FOLDER...     NAME: gpt2, llama, qwen2, qwen3
     check_hf.py --adapters BASE ADAPTER MERGED                  folders of `zctl export`
The folders are those of `zctl import tests/golden/hf/NAME --out X` and `zctl export ./X FOLDER --dtype fp32`.
"""
import sys

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from gen_llama import read


def load(folder):
    model, found = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, output_loading_info=True)
    assert not any(found.values()), found
    return model.double().eval()


def golden(path, names):
    expected = read(path)
    for name, folder in (n.split("=", 1) for n in names):
        with torch.no_grad():
            logits = load(folder)(torch.tensor(expected[name + ":tokens"].astype(np.int64))).logits.numpy()
        off = np.abs(logits - expected[name + ":logits"]).max()
        print(f"{name}: logits differ by {off:.1e} at most")
        assert off < 1e-5
        try:
            with safe_open(folder + "/model.safetensors", "pt") as f:
                print(f"{name}: {len(f.keys())} tensors, {f.metadata()}")
        except FileNotFoundError:
            pass                                     # several files and an index


def adapters(base, adapter, merged):
    from peft import PeftModel
    tokens = torch.arange(60).view(2, 30) % 40
    with torch.no_grad():
        plain = load(base)(tokens).logits
        both = PeftModel.from_pretrained(load(base), adapter).double().eval()(tokens).logits
        one = load(merged)(tokens).logits
    print(f"the adapters change logits by {(both - plain).abs().max():.1e}; merged differs by {(both - one).abs().max():.1e}")
    assert (both - plain).abs().max() > 1e-3 and (both - one).abs().max() < 1e-5


if __name__ == "__main__":
    adapters(*sys.argv[2:]) if sys.argv[1] == "--adapters" else golden(sys.argv[1], sys.argv[2:])
