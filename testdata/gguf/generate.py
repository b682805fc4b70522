#!/usr/bin/env python3
"""Makes the vectors of this folder with the Python package gguf, the reference for stages/weights/gguf.

    pip install gguf numpy
    generate.py            writes them again
    generate.py --check    fails if what it would write differs from what is here

blocks.json: for every tensor type, the sha256 of random blocks and of what they decode to.
The blocks are not stored: splitmix64 makes them, here and in the tests.

NAME.head, NAME.json: the golden folder NAME as a GGUF file; see models.py.
"""
import hashlib
import json
import os
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

import models

HERE = pathlib.Path(__file__).parent
GOLDENS = pathlib.Path(os.environ.get("GOLDENS", HERE.parent / "goldens"))
MODELS = ("llama3", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "olmoe", "deepseek_v2", "deepseek_v2_lite",
          "deepseek_v3", "glm4_moe", "minimax_m2", "gpt_oss")
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
    for kind in (T.F16, T.BF16, T.Q4_0, T.Q8_0):
        out.append({"type": kind.name, "blocks": sha(quantize(x.reshape(-1, 256), kind))})
    return out


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
    for folder in sorted(GOLDENS.iterdir()):
        if folder.is_dir() and folder.name in MODELS:
            head, description = models.make(folder)
            write(folder.name + ".head", head)
            dump(folder.name + ".json", description)
