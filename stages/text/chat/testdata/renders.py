"""Writes renders.jsonl: the SHA-256 of what Python's Jinja2 renders.

For the templates that testdata/vectors/chat_template_vectors.jsonl does not
cover. Python 3 with Jinja2 3.1.6, set up as transformers sets it up (the same
as template/testdata/probes.py). The argument is a folder with the templates,
one NAME.jinja each; `go test -run TestRenders -templates FOLDER` writes it.

    python3 renders.py FOLDER > renders.jsonl
"""

import datetime
import hashlib
import json
import pathlib
import sys

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here / ".." / "template" / "testdata"))
import probes  # noqa: E402


def main():
    vectors = here / ".." / ".." / ".." / ".." / "testdata" / "vectors"
    data = json.loads((vectors / "chat_template_scenarios.json").read_text())
    with open(vectors / "chat_template_vectors.jsonl", encoding="utf-8") as f:
        covered = {json.loads(line)["template"] for line in f}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        if path.stem in covered:
            continue
        source = path.read_bytes().decode()
        template = probes.environment().from_string(source)
        tokens = data["tokens"].get(path.stem, data["default_tokens"])
        for name, scenario in data["scenarios"].items():
            out = {"template": path.stem, "template_sha256": hashlib.sha256(source.encode()).hexdigest(), "scenario": name}
            try:
                text = template.render(**{**tokens, **json.loads(json.dumps(scenario))})
                out["sha256"] = hashlib.sha256(text.encode()).hexdigest()
            except Exception as error:
                out["error"] = f"{type(error).__name__}: {error}"
            print(json.dumps(out, ensure_ascii=False))


main()
