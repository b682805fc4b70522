#!/usr/bin/env python3
"""Makes the vectors of this folder, the reference for stages/weights/scaled.

    pip install numpy ml_dtypes
    generate.py            writes random.json again
    generate.py --check    fails if random.json would differ, or compressed.json has other values than its tensors

    pip install torch compressed-tensors
    generate.py --compressed            writes compressed.json again
    generate.py --compressed --check    fails if it would differ

random.json: for every format, the sha256 of random codes and scales and of what they stand for. The
bytes are not stored: splitmix64 makes them, here and in the tests. Numbers come from ml_dtypes, the
arithmetic is the definition of each format in numpy.

compressed.json: small matrices as the package compressed-tensors stores them, and the values that it
gives them in float32.
"""
import base64
import hashlib
import json
import pathlib
import sys

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).parent
FLOATS = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E8M0": ml_dtypes.float8_e8m0fnu, "BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": "<f4"}
INTEGERS = {"U8": np.uint8, "I8": np.int8, "I32": "<i4", "I64": "<i8"}
# Of each type, the upper byte, the bits of its exponent in it, and of them the lowest and the highest. Where
# all or none of the bits are set they are changed, so that scales are neither infinite nor tiny.
EXPONENT = {"F32": (3, 0x7F), "BF16": (1, 0x7F), "F16": (1, 0x7C)}


def random_bytes(seed, n):
    """The bytes of splitmix64, each number with its lowest byte first."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n // 8 + 2, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.view(np.uint8)[:n].copy()


def random_tensor(seed, kind, shape):
    """Random bytes of a type. Bits are cleared so that there is no NaN and no infinity."""
    size = np.dtype({**FLOATS, **INTEGERS}[kind]).itemsize
    b = random_bytes(seed, int(np.prod(shape)) * size).reshape(-1, size)
    if kind == "F8_E4M3":
        b[(b & 0x7F) == 0x7F] ^= 1
    elif kind == "F8_E8M0":
        b[b == 0xFF] = 0xFE
    elif kind in EXPONENT:
        at, mask = EXPONENT[kind]
        top = b[:, at]
        top[(top & mask) == mask] &= 0xFF ^ (mask & -mask)
    return b.reshape(-1), view(b, kind, shape)


def view(data, kind, shape):
    return np.ascontiguousarray(data).reshape(-1).view({**FLOATS, **INTEGERS}[kind]).reshape(shape)


def nibbles(codes):
    """Two values a byte along the last axis, the first in the low half."""
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)


def e2m1(codes):
    return nibbles(codes).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def packed(words, bits, cols):
    """Integers of compressed-tensors: value j of a row is in bits bits * (j mod n) of word j / n, plus half the range."""
    per = 32 // bits
    u = (words.view(np.uint32)[..., None] >> (bits * np.arange(per, dtype=np.uint32))) & ((1 << bits) - 1)
    return (u.reshape(words.shape[0], -1)[:, :cols].astype(np.int32) - (1 << (bits - 1))).astype(np.float32)


def spread(scale, shape, block):
    """Each scale repeated over its block, in float32."""
    rows, cols = (b or n for b, n in zip(block, shape[-2:]))
    s = scale.astype(np.float32)
    if s.size == 1:
        return np.broadcast_to(s.reshape(()), shape)
    if s.ndim < len(shape):
        s = s.reshape(*s.shape, 1)
    return np.repeat(np.repeat(s, rows, -2), cols, -1)[..., :shape[-2], :shape[-1]]


def decode(t, block):
    """The values of a matrix in float32, from its tensors by the end of their names."""
    with np.errstate(over="ignore"):
        scale = next(t[k] for k in (".weight_scale", ".weight_scale_inv", "_scales") if k in t)
        if "_scales" in t or scale.dtype == np.uint8:
            scale = scale.view(ml_dtypes.float8_e8m0fnu)
        scale = scale.astype(np.float32)
        if ".weight_global_scale" in t:
            scale = scale / t[".weight_global_scale"].reshape(())
        if ".weight_scale_2" in t:
            scale = scale * t[".weight_scale_2"].reshape(())
        if "_blocks" in t:
            x = e2m1(t["_blocks"])
            x = x.reshape(*x.shape[:-2], -1)
        elif ".weight_shape" in t:
            rows, cols = (int(n) for n in t[".weight_shape"])
            words = t[".weight_packed"]
            x = packed(words, 4 if -(-cols // 8) == words.shape[1] else 8, cols)
        elif ".weight_packed" in t:
            x = e2m1(t[".weight_packed"])
        elif t[".weight"].dtype == np.uint8:
            x = e2m1(t[".weight"])
        else:
            x = t[".weight"].astype(np.float32)
        return (x * spread(scale, x.shape, block)).astype(np.float32)


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


FP8 = lambda *block, **more: {"quant_method": "fp8", "weight_block_size": list(block) or None, **more}


def group(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


FLOAT8 = dict(num_bits=8, type="float", symmetric=True)
# Encoding, quantization_config, block, tensors by the end of their names.
CASES = [
    ("f8_e4m3_128x128", FP8(128, 128), (128, 128), {".weight": ("F8_E4M3", (300, 200)), ".weight_scale_inv": ("F32", (3, 2))}),
    ("f8_e4m3_128x128", FP8(128, 128), (128, 128), {".weight": ("F8_E4M3", (128, 384)), ".weight_scale_inv": ("BF16", (1, 3))}),
    ("f8_e4m3_128x128", FP8(128, 128), (128, 128), {".weight": ("F8_E4M3", (1, 130)), ".weight_scale_inv": ("F8_E8M0", (1, 2))}),
    ("f8_e4m3_64x32", FP8(64, 32), (64, 32), {".weight": ("F8_E4M3", (3, 70, 33)), ".weight_scale_inv": ("F32", (3, 2, 2))}),
    ("f8_e4m3_tensor", FP8(), (0, 0), {".weight": ("F8_E4M3", (9, 20)), ".weight_scale": ("F32", ()), ".input_scale": ("F32", ())}),
    ("f8_e4m3_tensor", group("float-quantized", strategy="tensor", **FLOAT8), (0, 0), {".weight": ("F8_E4M3", (4, 36)), ".weight_scale": ("BF16", (1,))}),
    ("f8_e4m3_row", group("float-quantized", strategy="channel", **FLOAT8), (1, 0), {".weight": ("F8_E4M3", (40, 72)), ".weight_scale": ("F32", (40, 1))}),
    ("f8_e4m3_row", group("float-quantized", strategy="channel", **FLOAT8), (1, 0), {".weight": ("F8_E4M3", (40, 7)), ".weight_scale": ("BF16", (40,))}),
    ("f8_e4m3_g32", group("mxfp8-quantized", group_size=32, **FLOAT8), (1, 32), {".weight": ("F8_E4M3", (6, 96)), ".weight_scale": ("U8", (6, 3))}),
    ("int8_row", group("int-quantized", strategy="channel", num_bits=8, type="int"), (1, 0), {".weight": ("I8", (33, 50)), ".weight_scale": ("BF16", (33, 1))}),
    ("int8_g64", group("pack-quantized", group_size=64, num_bits=8, type="int"), (1, 64), {".weight_packed": ("I32", (5, 48)), ".weight_scale": ("F16", (5, 3)), ".weight_shape": [5, 190]}),
    ("int4_g32", group("pack-quantized", group_size=32, num_bits=4, type="int"), (1, 32), {".weight_packed": ("I32", (24, 16)), ".weight_scale": ("BF16", (24, 4)), ".weight_shape": [24, 128]}),
    ("int4_g128", group("pack-quantized", group_size=128, num_bits=4, type="int"), (1, 128), {".weight_packed": ("I32", (7, 40)), ".weight_scale": ("F16", (7, 3)), ".weight_shape": [7, 317]}),
    ("int4_g128", group("pack-quantized", group_size=128, num_bits=4, type="int"), (1, 128), {".weight_packed": ("I32", (3, 32)), ".weight_scale": ("F32", (3, 2)), ".weight_shape": [3, 256]}),
    ("int4_row", group("pack-quantized", strategy="channel", num_bits=4, type="int"), (1, 0), {".weight_packed": ("I32", (3, 9)), ".weight_scale": ("BF16", (3, 1)), ".weight_shape": [3, 71]}),
    ("nvfp4", group("nvfp4-pack-quantized", group_size=16, num_bits=4, type="float"), (1, 16), {".weight_packed": ("U8", (20, 40)), ".weight_scale": ("F8_E4M3", (20, 5)), ".weight_global_scale": ("F32", (1,))}),
    ("nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, (1, 16), {".weight": ("U8", (32, 24)), ".weight_scale": ("F8_E4M3", (32, 3)), ".weight_scale_2": ("F32", ()), ".input_scale": ("F32", ())}),
    ("mxfp4", {"quant_method": "mxfp4"}, (1, 32), {"_blocks": ("U8", (3, 10, 4, 16)), "_scales": ("F8_E8M0", (3, 10, 4))}),
    ("mxfp4", group("mxfp4-pack-quantized", group_size=32, num_bits=4, type="float"), (1, 32), {".weight_packed": ("U8", (10, 48)), ".weight_scale": ("F8_E8M0", (10, 3))}),
    ("f8_e4m3_row", group("float-quantized", strategy="channel", **FLOAT8), (1, 0), {".weight": ("F8_E4M3", (5, 160)), ".weight_scale": ("F16", (5, 1))}),
    ("f8_e4m3_tensor", FP8(), (0, 0), {".weight": ("F8_E4M3", (9, 96)), ".weight_scale": ("F16", ())}),
]


def make_random():
    out = []
    for seed, (encoding, config, block, spec) in enumerate(CASES):
        tensors, listed = {}, []
        for i, (end, x) in enumerate(spec.items()):
            if isinstance(x, list):
                tensors[end] = np.array(x, "<i8")
                listed.append({"end": end, "type": "I64", "shape": [2], "data": base64.b64encode(tensors[end].tobytes()).decode()})
                continue
            kind, shape = x
            number = 1000 * seed + i
            data, value = random_tensor(number, kind, shape)
            if end in (".weight_global_scale", ".weight_scale_2"):  # positive
                data[3] &= 0x7F
            elif kind == "U8" and end == ".weight_scale":
                data[data == 0xFF] = 0xFE
            if kind == "F8_E8M0" and end == "_scales":
                kind = "U8"  # its type in gpt-oss
            tensors[end] = view(data, kind, shape)
            listed.append({"end": end, "type": kind, "shape": list(shape), "seed": number, "sha256": sha(data)})
        values = decode(tensors, block)
        assert not np.isnan(values).any(), encoding
        out.append({"encoding": encoding, "config": config, "shape": list(values.shape), "tensors": listed, "values": sha(values.astype("<f4")),
                    "first": " ".join(f"{v:g}" for v in values.reshape(-1)[:4])})
    return out


def make_compressed():
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.mx_utils import decompress_mx_scale
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    torch.manual_seed(1)
    names = {torch.float8_e4m3fn: "F8_E4M3", torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.uint8: "U8", torch.int8: "I8", torch.int32: "I32", torch.int64: "I64"}
    out = []

    def case(encoding, format, shape, dtype, limit, **weights):
        args = QuantizationArgs(symmetric=True, **weights)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        w = (torch.randn(shape) * torch.exp(torch.randn(shape[0], 1))).to(torch.bfloat16).float()
        rows, cols = args.block_structure or {"tensor": shape, "channel": (1, shape[1])}.get(args.strategy, (1, args.group_size))
        grid = -(-shape[0] // rows), -(-shape[1] // cols)
        padded = torch.zeros(grid[0] * rows, grid[1] * cols)
        padded[:shape[0], :shape[1]] = w
        scale = padded.reshape(grid[0], rows, grid[1], cols).abs().amax((1, 3)) / limit
        state = {"weight": w}
        if encoding == "nvfp4":
            state["weight_global_scale"] = (448 / scale.max()).reshape(1)
            scale = (scale * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        if encoding == "mxfp4":
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
        if args.strategy == "tensor":
            scale = scale.reshape(1)
        state["weight_scale"] = scale.to(dtype)
        stored = BaseCompressor.get_value_from_registry(format).compress(state, scheme)
        scale, more = stored["weight_scale"].float(), {}
        if "weight_shape" in stored:
            q = unpack_from_int32(stored["weight_packed"], args.num_bits, torch.Size(stored["weight_shape"].tolist()))
        elif "weight_packed" in stored:
            q = unpack_fp4_from_uint8(stored["weight_packed"], *shape, dtype=torch.float32)
            more = {"global_scale": stored.get("weight_global_scale")}
            if encoding == "mxfp4":
                scale = decompress_mx_scale(stored["weight_scale"]).float()
        else:
            q = stored["weight"]
        values = dequantize(x_q=q, scale=scale, args=args, dtype=torch.float32, **more)
        encode = lambda t: base64.b64encode(t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).decode()
        weights = json.loads(args.model_dump_json(exclude_none=True))
        out.append({"encoding": encoding, "config": group(format, **weights), "shape": list(shape),
                    "tensors": [{"end": "." + k, "type": names[t.dtype], "shape": list(t.shape), "data": encode(t)} for k, t in stored.items()],
                    "data": encode(values), "relative": f"{float(((values - w).norm() / w.norm())):.3f}"})

    case("f8_e4m3_row", "float-quantized", (12, 40), torch.float32, 448, num_bits=8, type="float", strategy="channel")
    case("f8_e4m3_tensor", "float-quantized", (6, 20), torch.bfloat16, 448, num_bits=8, type="float", strategy="tensor")
    case("f8_e4m3_16x32", "float-quantized", (40, 72), torch.float32, 448, num_bits=8, type="float", strategy="block", block_structure=[16, 32])
    case("int8_row", "int-quantized", (6, 40), torch.bfloat16, 127, num_bits=8, type="int", strategy="channel")
    case("int4_g32", "pack-quantized", (6, 64), torch.bfloat16, 7.5, num_bits=4, type="int", strategy="group", group_size=32)
    case("int4_g128", "pack-quantized", (4, 256), torch.float16, 7.5, num_bits=4, type="int", strategy="group", group_size=128)
    case("int4_row", "pack-quantized", (4, 30), torch.float32, 7.5, num_bits=4, type="int", strategy="channel")
    case("nvfp4", "nvfp4-pack-quantized", (6, 64), torch.float32, 6, num_bits=4, type="float", strategy="tensor_group", group_size=16)
    case("mxfp4", "mxfp4-pack-quantized", (6, 64), torch.float32, 6, num_bits=4, type="float", strategy="group", group_size=32)
    return out


def check_compressed():
    """Decodes the package's matrices by the definitions in this file."""
    for c in json.loads((HERE / "compressed.json").read_text()):
        tensors = {t["end"]: view(np.frombuffer(base64.b64decode(t["data"]), np.uint8), t["type"], t["shape"]) for t in c["tensors"]}
        w = c["config"]["config_groups"]["group_0"]["weights"]
        block = w.get("block_structure") or {"tensor": (0, 0), "channel": (1, 0)}.get(w["strategy"], (1, w.get("group_size")))
        if decode(tensors, block).tobytes() != base64.b64decode(c["data"]):
            sys.exit(f"compressed.json: other values of {c['encoding']}")


def dump(name, rows):
    """JSON with one element of a list on a line."""
    text = "[\n  " + ",\n  ".join(json.dumps(e) for e in rows) + "\n]\n"
    if "--check" not in sys.argv:
        (HERE / name).write_text(text)
    elif (HERE / name).read_text() != text:
        sys.exit(f"{name} differs")


if __name__ == "__main__":
    if "--compressed" in sys.argv:
        dump("compressed.json", make_compressed())
    else:
        dump("random.json", make_random())
    check_compressed()
