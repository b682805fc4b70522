import json
import os
import subprocess
import sys
import tempfile

from cells import cell, run

REAL = os.environ["KRATER_REAL_URL"]  # a server with a model: the load is real
TOKENIZER = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../models/krater-tiny"))


def load(format):
    """Returns the successful and the failed requests of a short run."""
    with tempfile.TemporaryDirectory() as folder:
        data, report = os.path.join(folder, "prompts.jsonl"), os.path.join(folder, "report.json")
        with open(data, "w", encoding="utf-8") as f:
            for word in ("lighthouse", "harbour", "whale", "ship"):
                f.write(json.dumps({"prompt": f"What is a {word}?", "output_tokens_count": 8}) + "\n")
        command = [
            os.path.join(os.path.dirname(sys.executable), "guidellm"), "run", "--disable-console-interactive",
            "--backend", f"kind=openai_http,target={REAL},request_format={format}", "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4",
            "--tokenizer", f"kind=hf_auto,model={TOKENIZER}", "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}",
        ]
        p = subprocess.run(command, capture_output=True, text=True, timeout=200, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        if not os.path.exists(report):
            raise AssertionError((p.stdout + p.stderr)[-1500:])
        with open(report, encoding="utf-8") as f:
            requests = json.load(f)["benchmarks"][0]["requests"]
        return len(requests["successful"]), len(requests["errored"])


@cell("stream")
def stream():
    for format in ("/v1/chat/completions", "/v1/completions"):
        good, bad = load(format)
        assert good > 0 and bad == 0, (format, good, bad)


run("guidellm", "guidellm")
