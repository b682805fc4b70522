#!/usr/bin/env python3
"""Makes the vectors of this folder with the Python package gguf, the reference for stages/weights/gguf.

    pip install gguf numpy
    generate.py            writes them again
    generate.py --check    fails if what it would write differs from what is here

blocks.json: for every tensor type, the sha256 of random blocks and of what they decode to.
The blocks are not stored: splitmix64 makes them, here and in the tests.

tokenizer.json: the sha256 of a file with krater-tiny's tokenizer, as the package stores it.

NAME.head, NAME.json: the golden folder NAME as a GGUF file; see models.py.
"""
import hashlib
import json
import os
import pathlib
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

import models

HERE = pathlib.Path(__file__).parent
GOLDENS = pathlib.Path(os.environ.get("GOLDENS", HERE.parent / "goldens"))
MODELS = ("llama3", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "olmoe", "deepseek_v2", "deepseek_v2_lite",
          "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "minimax_m2", "gpt_oss")
VALUES = 1 << 16  # of a type

# Bytes that decide whether a scale is finite: where all bits of a mask are set, the lowest
# is cleared, so that no scale is infinite or NaN. All other bit patterns occur.
HALF = 0x7C  # exponent of a binary16, in its upper byte
FINITE = {
    T.F32: [[3, 0x7F]], T.F16: [[1, HALF]], T.BF16: [[1, 0x7F]], T.F64: [[7, 0x7F]],
    T.Q4_0: [[1, HALF]], T.Q4_1: [[1, HALF], [3, HALF]], T.Q5_0: [[1, HALF]], T.Q5_1: [[1, HALF], [3, HALF]], T.Q8_0: [[1, HALF]],
    T.Q2_K: [[81, HALF], [83, HALF]], T.Q3_K: [[109, HALF]], T.Q4_K: [[1, HALF], [3, HALF]], T.Q5_K: [[1, HALF], [3, HALF]],
    T.Q6_K: [[209, HALF]], T.Q8_K: [[3, 0x7F]], T.IQ1_S: [[1, HALF]], T.IQ1_M: [[55, 0x70]],
    T.IQ2_XXS: [[1, HALF]], T.IQ2_XS: [[1, HALF]], T.IQ2_S: [[1, HALF]], T.IQ3_XXS: [[1, HALF]], T.IQ3_S: [[1, HALF]],
    T.IQ4_NL: [[1, HALF]], T.IQ4_XS: [[1, HALF]], T.TQ1_0: [[53, HALF]], T.TQ2_0: [[65, HALF]],
    T.I8: [], T.I16: [], T.I32: [], T.I64: [], T.MXFP4: [], T.NVFP4: [],
}


def random_bytes(seed, n):
    """The bytes of splitmix64, each number with its lowest byte first."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n // 8 + 2, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.view(np.uint8)[:n].copy()


def decode(kind, blocks):
    plain = {T.F64: "<f8", T.I8: "<i1", T.I16: "<i2", T.I32: "<i4", T.I64: "<i8"}
    if kind in plain:
        with np.errstate(over="ignore"):
            return blocks.reshape(-1).view(plain[kind]).astype(np.float32)
    if kind == T.Q8_K:  # not in the package: a float32 scale, 256 signed bytes, sums that are not needed
        with np.errstate(over="ignore"):
            return blocks[:, :4].copy().view("<f4") * blocks[:, 4:260].copy().view(np.int8).astype(np.float32)
    return dequantize(blocks, kind)


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def make_blocks():
    out = []
    for kind, finite in sorted(FINITE.items()):
        elements, size = GGML_QUANT_SIZES[kind]
        blocks = random_bytes(kind.value, VALUES // elements * size).reshape(-1, size)
        for at, mask in finite:
            column = blocks[:, at]
            blocks[:, at] = np.where(column & mask == mask, column & ~np.uint8(mask & -mask), column)
        values = decode(kind, blocks).astype("<f4").reshape(-1)
        assert len(values) == VALUES and not np.isnan(values).any(), kind
        out.append({"type": kind.name, "number": kind.value, "elements": elements, "bytes": size, "finite": finite,
                    "blocks": sha(blocks), "values": sha(values), "first": " ".join(f"{v:g}" for v in values[:4])})
    return out


def make_encoded():
    """What the package makes of random normal-sized values, for the types that it encodes as ggml does."""
    bits = random_bytes(1000, 4 * VALUES).view("<u4")
    x = ((bits >> 8).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)) * np.float32(4)  # exact: 24 bits
    x[:64] = 0
    out = []
    for kind in (T.F16, T.BF16, T.Q4_0, T.Q8_0, T.MXFP4):
        out.append({"type": kind.name, "blocks": sha(quantize(x.reshape(-1, 256), kind))})
    return out


def make_tokenizer():
    """The metadata that conversions write for a byte-level tokenizer: TextModel._set_vocab_gpt2."""
    folder = HERE.parent.parent / "models" / "krater-tiny"
    t = json.loads((folder / "tokenizer.json").read_text())
    added = {a["content"]: a for a in t["added_tokens"]}
    by_id = {i: text for text, i in t["model"]["vocab"].items()} | {a["id"]: a["content"] for a in t["added_tokens"]}
    tokens, types = [], []
    for i in range(max(by_id) + 1):
        text = by_id.get(i, f"[PAD{i}]")
        tokens.append(text)
        if i not in by_id:
            types.append(gguf.TokenType.UNUSED)
        elif text in added:
            types.append(gguf.TokenType.CONTROL if added[text]["special"] else gguf.TokenType.USER_DEFINED)
        else:
            types.append(gguf.TokenType.NORMAL)
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "tokenizer.gguf"
        w = gguf.GGUFWriter(path, "deepseek2")
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("deepseek-coder")
        w.add_token_list(tokens)
        w.add_token_types(types)
        gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(w, quiet=True)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        data = path.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "keys": [f.name for f in gguf_fields(data)]}


def gguf_fields(data):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        f.write(data)
        f.flush()
        return [v for k, v in gguf.GGUFReader(f.name).fields.items() if not k.startswith("GGUF.")]


def dump(name, value):
    """JSON with one element of a list on a line."""
    rows = lambda v: "[\n  " + ",\n  ".join(json.dumps(e, ensure_ascii=False) for e in v) + "\n]"
    if isinstance(value, dict):
        text = "{" + ",\n ".join(f"{json.dumps(k)}: {rows(v) if isinstance(v, list) else json.dumps(v)}" for k, v in value.items()) + "}"
    else:
        text = rows(value)
    write(name, text + "\n")


def write(name, data):
    if isinstance(data, str):
        data = data.encode()
    path = HERE / name
    if "--check" not in sys.argv:
        path.write_bytes(data)
    elif path.read_bytes() != data:
        sys.exit(f"{name} differs from what the package gguf gives")


if __name__ == "__main__":
    dump("blocks.json", make_blocks())
    dump("encoded.json", make_encoded())
    dump("tokenizer.json", make_tokenizer())
    for folder in sorted(GOLDENS.iterdir()):
        if folder.is_dir() and folder.name in MODELS:
            head, description = models.make(folder)
            write(folder.name + ".head", head)
            dump(folder.name + ".json", description)
