#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/hf/: small synthetic folders as transformers' save_pretrained makes them, one a family, and
hf/expected.bin, what PyTorch in fp64 computes with them (python3-torch of Debian 12 is enough).

Run: /usr/bin/python3 tests/golden/gen_hf.py tests/golden/hf
  gpt2        names without "transformer.", the mask buffers of old files, head absent, fp32; Conv1D weights [in, out]
  gpt2-long   the same model: names with the prefix, a head that is the embedding once more
  llama       llama3 rope scaling, untied head, bf16, two files and an index
  qwen2       biases on q, k and v, tied head that is there, fp16
  qwen3       norms on q and k, heads wider than dim / heads, fp32, rope_parameters instead of rope_theta
expected.bin ("ZTGOLD1", as gen_gpt2.py): FOLDER:tokens, FOLDER:logits (fp64), FOLDER:prompt, FOLDER:greedy (what follows
the prompt, the largest logit each time; no two largest are closer than 1e-3).
The files are written here by the published format, without a library.
"""
import json
import struct
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import gen_llama
from gen_gpt2 import put

C, H, L, V, S, T, B, GREEDY = 32, 4, 2, 61, 24, 19, 2, 12
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def safetensors(path, tensors, metadata={"format": "pt"}):
    head, data = {"__metadata__": metadata}, b""
    for name, a in tensors.items():
        raw = a.contiguous().view(torch.int16).numpy().tobytes() if a.element_size() == 2 else a.contiguous().numpy().tobytes()
        head[name] = {"dtype": NAMES.get(a.dtype, "U8"), "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(folder, config, files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if len(files) == 1:
        safetensors(folder / "model.safetensors", files[0])
        return
    names = [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    for name, tensors in zip(names, files):
        safetensors(folder / name, tensors)
    total = sum(a.numel() * a.element_size() for f in files for a in f.values())
    index = {"metadata": {"total_size": total}, "weight_map": {t: n for n, f in zip(names, files) for t in f}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


# ---- gpt2: y = x W + b with W [in, out], as Conv1D computes ----

def gpt2_weights(rng):
    rows = {"wte.weight": (V, C), "wpe.weight": (S, C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for i in range(L):
        p = f"h.{i}."
        rows |= {p + "ln_1.weight": (C,), p + "ln_1.bias": (C,), p + "attn.c_attn.weight": (C, 3 * C),
                 p + "attn.c_attn.bias": (3 * C,), p + "attn.c_proj.weight": (C, C), p + "attn.c_proj.bias": (C,),
                 p + "ln_2.weight": (C,), p + "ln_2.bias": (C,), p + "mlp.c_fc.weight": (C, 4 * C),
                 p + "mlp.c_fc.bias": (4 * C,), p + "mlp.c_proj.weight": (4 * C, C), p + "mlp.c_proj.bias": (C,)}
    return {n: torch.tensor(((1 if ".ln_" in "." + n and n.endswith("weight") else 0) + 0.15 * rng.standard_normal(s))
                            .astype(np.float32)) for n, s in rows.items()}


def gpt2(w, tokens):
    w = {n: a.double() for n, a in w.items()}
    b, t = tokens.shape
    conv = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    norm = lambda x, name: F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], 1e-5)
    x = w["wte.weight"][tokens] + w["wpe.weight"][:t]
    for i in range(L):
        p = f"h.{i}."
        q, k, v = (z.view(b, t, H, C // H).transpose(1, 2) for z in conv(norm(x, p + "ln_1"), p + "attn.c_attn").split(C, 2))
        y = gen_llama.attention(q, k, v, gen_llama.allowed(None, t)).transpose(1, 2).reshape(b, t, C)
        x = x + conv(y, p + "attn.c_proj")
        x = x + conv(F.gelu(conv(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh"), p + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].t()


def write_gpt2(out, rng):
    w = gpt2_weights(rng)
    config = {"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 60,
              "embd_pdrop": 0.1, "eos_token_id": 60, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
              "model_type": "gpt2", "n_ctx": S, "n_embd": C, "n_head": H, "n_layer": L, "n_positions": S, "resid_pdrop": 0.1,
              "summary_type": "cls_index", "vocab_size": V}
    masks = {f"h.{i}.attn.bias": torch.ones(S, S).tril().view(1, 1, S, S) for i in range(L)}
    write(out / "gpt2", config, [w | masks])
    long = {"transformer." + n: a for n, a in w.items()} | {"lm_head.weight": w["wte.weight"]}
    write(out / "gpt2-long", config | {"torch_dtype": "float32", "tie_word_embeddings": True, "n_inner": None}, [long])
    return lambda tokens: gpt2(w, tokens)


# ---- llama and its kin ----

def write_llama(out, name, m, dtype, config, rng, split=False, head=False):
    w = {n: a.to(dtype) for n, a in gen_llama.draw(gen_llama.table(m), rng).items()}
    stored = {(n if n.startswith("lm_head") else "model." + n): a for n, a in w.items()}
    if head:
        stored["lm_head.weight"] = w["embed_tokens.weight"]
    config = {"hidden_act": "silu", "hidden_size": m.C, "initializer_range": 0.02, "intermediate_size": m.F,
              "max_position_embeddings": gen_llama.S, "num_attention_heads": m.H, "num_hidden_layers": m.L,
              "num_key_value_heads": m.KV, "rms_norm_eps": m.eps, "vocab_size": gen_llama.V, "use_cache": True,
              "tie_word_embeddings": m.tied, "attention_dropout": 0.0} | config
    names = sorted(stored)
    files = [stored] if not split else [{n: stored[n] for n in names[i::2]} for i in range(2)]
    write(out / name, config, files)
    exact = {n: a.double() for n, a in w.items()}
    return lambda tokens: gen_llama.forward(m, exact, tokens)


def families(out, rng):
    M = gen_llama.MODELS
    yield "gpt2", V, write_gpt2(out, rng)
    s = M["scaled"]
    scaling = dict(zip(("factor", "low_freq_factor", "high_freq_factor"), s.scaling))
    yield "llama", gen_llama.V, write_llama(out, "llama", s, torch.bfloat16, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
        "head_dim": s.D, "rope_theta": s.theta, "pretraining_tp": 1, "torch_dtype": "bfloat16", "eos_token_id": [1, 2],
        "rope_scaling": scaling | {"original_max_position_embeddings": int(s.scaling[3]), "rope_type": "llama3"}}, rng, split=True)
    q = M["qwen2"]
    yield "qwen2", gen_llama.V, write_llama(out, "qwen2", q, torch.float16, {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": q.theta, "sliding_window": 4096,
        "use_sliding_window": False, "max_window_layers": 2, "torch_dtype": "bfloat16", "eos_token_id": 3}, rng, head=True)
    q = M["qwen3"]
    yield "qwen3", gen_llama.V, write_llama(out, "qwen3", q, torch.float32, {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": q.D, "attention_bias": False,
        "rope_parameters": {"rope_theta": q.theta, "rope_type": "default"}, "dtype": "float32",
        "layer_types": ["full_attention"] * q.L, "sliding_window": None}, rng)


def greedy(model, prompt):
    tokens = list(prompt)
    for _ in range(GREEDY):
        logits = model(torch.tensor([tokens]))[0, -1]
        two = logits.topk(2).values
        assert two[0] - two[1] > 1e-3, "two tokens are nearly equal: draw other weights"
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt):]


def main(path):
    torch.set_num_threads(1)
    out = Path(path)
    rng = np.random.default_rng(20260301)
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "expected.bin", "wb") as f:
        f.write(b"ZTGOLD1\n")
        for name, vocabulary, model in families(out, rng):
            tokens = rng.integers(0, vocabulary, (B, T))
            prompt = tokens[0, :5]
            put(f, name + ":tokens", tokens.astype(np.int32))
            put(f, name + ":logits", model(torch.tensor(tokens)).numpy())
            put(f, name + ":prompt", prompt.astype(np.int32))
            put(f, name + ":greedy", np.array(greedy(model, prompt), np.int32))


if __name__ == "__main__":
    main(sys.argv[1])
