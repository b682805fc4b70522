import os
import subprocess
import sys
import tempfile

from cells import MODEL, URL, cell, run


def aider(text, *more):
    """Returns what aider shows for a message in ask mode."""
    command = [
        os.path.join(os.path.dirname(sys.executable), "aider"), "--model", "openai/" + MODEL, "--openai-api-base", URL + "/v1", "--openai-api-key", "none", "--chat-mode", "ask",
        "--message", text, "--no-git", "--yes-always", "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--no-pretty", "--no-fancy-input", *more,
    ]
    with tempfile.TemporaryDirectory() as folder:
        p = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, env={**os.environ, "HOME": folder})
    return p.stdout + p.stderr


def shows(text, want):
    assert want in text, text[-1500:]


@cell("plain")
def plain():
    shows(aider("Repeat: a lighthouse.", "--no-stream"), "a lighthouse.")


@cell("stream")
def stream():
    shows(aider("Repeat: a lighthouse.", "--stream"), "a lighthouse.")


run("aider", "aider-chat")
