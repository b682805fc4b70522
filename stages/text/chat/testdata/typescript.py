"""Writes typescript.jsonl: tools as Kimi K2.5's code writes them in TypeScript.

The argument is the folder of an unpacked wheel of the Python package tinker-cookbook 0.6.1, which
has a copy of the release's tool_declaration_ts.py. `expected` is null where it raises.

    python3 typescript.py FOLDER > typescript.jsonl
"""

import importlib.util
import json
import pathlib
import random
import sys


def load(folder):
    path = pathlib.Path(folder) / "tinker_cookbook" / "renderers" / "kimi_k2_5_tool_declaration_ts.py"
    spec = importlib.util.spec_from_file_location("declaration", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["declaration"] = module
    spec.loader.exec_module(module)
    return module


def ordered(v):
    if isinstance(v, dict):
        return {k: ordered(v[k]) for k in sorted(v)}
    return [ordered(x) for x in v] if isinstance(v, list) else v


def random_schema(r, depth):
    kind = r.choice(["string", "integer", "number", "boolean", "null", "array", "object", "enum", "union", "anyOf", "ref", "self", "empty", "bool", "odd"])
    s = {}
    if r.random() < 0.5:
        s["description"] = r.choice(["one line", "two\nlines", "ends\n", "a\n\nb", "é 日本 \"q\"", ""])
    if r.random() < 0.3:
        s["default"] = r.choice([1, 2.5, 1e20, True, False, None, "x\"é", [1, "a"], {"b": 1, "a": None}, ""])
    for key in ("minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems"):
        if r.random() < 0.15:
            s[key] = r.choice([0, 1, 2.5, "^a+$", None, True])
    if kind in ("string", "integer", "number", "boolean", "null"):
        return {**s, "type": kind}
    if kind == "array":
        s["type"] = "array"
        if depth > 0 and r.random() < 0.9:
            s["items"] = random_schema(r, depth - 1)
        return s
    if kind == "object":
        return {**s, **random_object(r, depth - 1)}
    if kind == "enum":
        s["enum"] = r.choice([["a", "b\"c"], [1, 2], ["x", None], [1.5, True], []])
        if r.random() < 0.5:
            s["type"] = r.choice(["string", "integer", "number", "boolean", ["string", "null"], ["null", "integer"], ["string"], ["a", "b"]])
        return s
    if kind == "union":
        return {**s, "type": r.choice([["string", "null"], ["integer", "number"], ["object", "array", "boolean"], ["what"]])}
    if kind == "anyOf":
        s["anyOf"] = [random_schema(r, depth - 1) for _ in range(r.randint(0, 3))] if depth > 0 else []
        return s
    if kind == "ref":
        return {**s, "$ref": r.choice(["#/$defs/Node", "#/$defs/Node", "#/$defs/Leaf", "#/$defs/None", "#/other"])}
    if kind == "self":
        return {**s, "$ref": "#"}
    if kind == "bool":
        return r.random() < 0.5
    return {} if kind == "empty" else {"description": "no type"}


def random_object(r, depth):
    o = {"type": "object"}
    if r.random() < 0.9:
        o["properties"] = {}
        if depth > 0:
            for name in r.sample(["zeta", "alpha", "m", "B", "é", "x1"], r.randint(0, 4)):
                o["properties"][name] = random_schema(r, depth - 1)
        if r.random() < 0.6:
            o["required"] = [n for n in o["properties"] if r.random() < 0.5]
    if r.random() < 0.3:
        o["additionalProperties"] = r.choice([True, False, None, {"type": "string"}, {}, random_schema(r, 0)])
    return o


def main():
    encode = load(sys.argv[1]).encode_tools_to_typescript_style
    r = random.Random(5)
    defs = {"Node": {"type": "object", "description": "A node", "properties": {"next": {"$ref": "#/$defs/Node"}, "v": {"type": "integer"}}, "required": ["v"]},
            "Leaf": {"type": "string", "enum": ["a"]}}
    lines = 0
    while lines < 160:
        tools = []
        for _ in range(r.randint(1, 2)):
            fn = {"name": r.choice(["get_weather", "f", "a.b-c"])}
            if r.random() < 0.8:
                fn["description"] = r.choice(["What it does.", "Two\nlines", "\n", ""])
            if r.random() < 0.95:
                fn["parameters"] = random_object(r, 3)
                if r.random() < 0.5:
                    fn["parameters"]["$defs"] = defs
            tools.append({"type": "function", "function": fn})
        try:
            expected = encode(ordered(tools))
        except Exception:
            if r.random() < 0.7:
                continue
            expected = None
        print(json.dumps({"tools": tools, "expected": expected}, ensure_ascii=False))
        lines += 1


main()
