"""Writes tiktoken.jsonl: what OpenAI's tiktoken makes of texts with Kimi K2's pattern.

The ranks come from gpt-oss's vocabulary, which `make vectors` fetches: no package brings
Kimi's own. tiktoken 0.14.0.

    python3 ranks.py > tiktoken.jsonl
"""

import base64
import json
import pathlib
import random

import tiktoken

here = pathlib.Path(__file__).parent
root = here / ".." / ".." / ".." / ".."

PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

ATOMS = [
    " ", "  ", "\n", "\r\n", "\t", "\u3000", "'s", "'LL", "'\u017f", "a", "B", "the", " The", "HTTPServer", "iPhone", "\u01c5", "\u02b0",
    "1", "23", "4567", "\u00bd", "\u2167", "\u3007", "\u3021", "\u3038\u3039", ".", "!!", "//\n", "_", "\u3002", "\uff0c", "\u300c",
    "\u4e2d", "\u6587", "\u6f22\u5b57", "\U00020000", "\U00030000", "\u3005", "\u303b", "\u2e80", "\u2f00", "\U00016fe2", "\U00016ff0", "\uf900",
    "\u306e", "\u30ab\u30fc", "\u30fb", "\ud55c\uad6d", "\u00e9", "e\u0301", "\u0301", "\U0001f600", "\u200d",
    "<|im_end|>", "[BOS]", "<|reserved_token_200007|>", "<|im_middle|", "<think>",
]


def ranks():
    """The bytes of gpt-oss's tokens by id, as a list."""
    path = root / ".vectors" / "node_modules" / "@lenml" / "tokenizer-gptoss" / "models" / "tokenizer.json"
    spelled = list(range(ord("!"), ord("~") + 1)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    chars, extra = {chr(b): b for b in spelled}, 0
    for b in range(256):
        if b not in spelled:
            chars[chr(256 + extra)] = b
            extra += 1
    vocab = json.loads(path.read_text())["model"]["vocab"]
    return [bytes(chars[c] for c in text) for text in sorted(vocab, key=vocab.get)]


def main():
    tokens = ranks()
    first = len(tokens)
    config = json.loads((here / "tiktoken_config.json").read_text())
    names = {int(i): t["content"] for i, t in config["added_tokens_decoder"].items()}
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(first, first + 256)}
    encoding = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens=special)
    with open(root / "testdata" / "vectors" / "tokenizer_vectors_public.jsonl") as f:
        lines = [json.loads(line) for line in f]
    texts = [base64.b64decode(v["text"]) for v in lines if v["tokenizer"] == "gpt_oss"]
    r = random.Random(1)
    texts += ["".join(r.choice(ATOMS) for _ in range(r.randint(1, 40))).encode() for _ in range(200)]
    for raw in texts:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            continue
        ids = encoding.encode(text, allowed_special="all")
        assert encoding.decode(ids) == text
        print(json.dumps({"text": base64.b64encode(raw).decode(), "ids": ids}, separators=(",", ":")))


main()
