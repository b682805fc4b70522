#!/usr/bin/env python3
"""Compares llama.cpp on golden folders, written as GGUF by models.py, with their vectors.

    bench/peers/llama.sh install DIR       fetches llama.cpp and builds DIR/peer/agree
    agree.py DIR/peer FOLDER...

It fails if llama.cpp refuses a file, or if logits differ by more than LIMIT.
llama.cpp rounds activations to the type of the weights, bfloat16 here: logits agree to about 1e-2
(relative L2), and greedy tokens until the two likeliest are closer than that. README.md says for which
folders it cannot agree.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np

import models

LIMIT = 3e-2  # relative L2 of logits



def read(path):
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:8 + n])
    return {k: np.frombuffer(data[8 + n + e["data_offsets"][0]:8 + n + e["data_offsets"][1]], {"F32": "<f4", "I32": "<i4"}[e["dtype"]]).reshape(e["shape"])
            for k, e in entries.items() if k != "__metadata__"}


def agree(peer, folder):
    """Reports whether llama.cpp gives the logits of a folder's vectors."""
    good = True
    vectors, config = read(folder / "goldens.safetensors"), json.loads((folder / "config.json").read_text())
    arch = models.LATER.get(config["model_type"], gguf.MODEL_ARCH_NAMES[models.ARCHES[config["model_type"]]])
    with tempfile.NamedTemporaryFile(suffix=".gguf") as f:
        models.make(folder, f.name)
        for prompt in ("p17", "p96"):
            ids, greedy = vectors[prompt + ".input_ids"], vectors[prompt + ".greedy_ids"]
            run = subprocess.run(["./agree", f.name, arch, str(config["vocab_size"]), str(len(greedy)), *map(str, ids)], cwd=peer, capture_output=True)
            if run.returncode != 0:
                why = [line for line in run.stderr.decode().splitlines() if "error" in line]
                print(f"{folder.name:18} {prompt} refused: {why[0] if why else run.returncode}")
                return False
            want = vectors[prompt + ".logits"] if prompt == "p17" else vectors[prompt + ".logits_last"][None]
            size = 4 * len(ids) * config["vocab_size"]
            got = np.frombuffer(run.stdout[:size], "<f4").reshape(len(ids), -1)[-len(want):]
            same = np.frombuffer(run.stdout[size:], "<i4") == greedy
            error = np.linalg.norm(got - want) / np.linalg.norm(want)
            print(f"{folder.name:18} {prompt} relative L2 {error:.1e}, greedy tokens equal: the first {len(same) if same.all() else same.argmin()} of {len(same)}")
            good = good and error < LIMIT
    return good


if not all([agree(sys.argv[1], pathlib.Path(name)) for name in sys.argv[2:]]):
    sys.exit("llama.cpp does not agree")
