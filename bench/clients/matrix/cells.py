"""Runs the features of one client, and prints a line of JSON for each: what docs/clients.md is made of.

A program of this folder is named as its client. It decorates a function per feature and calls run.
The server of KRATER_URL plays answers by name (cmd/krater/recorded_test.go): "plain", "reasoning",
"hermes" with two calls, "glm 4.7" with one, "Repeat: ..." what follows, "forever" without end.
"""
import importlib.metadata
import json
import os
import time
import traceback
import urllib.request

URL = os.environ["KRATER_URL"]
MODEL = "test-model"
PLAIN = "Two <b>bold</b> words <tool\n "
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": False}
ANN = '{"name": "Ann", "age": 7}'
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells the weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "Tells the time.", "parameters": NOTHING}},
]
features = []


def cell(feature):
    """Registers a function that fails where the client or the server does."""
    def add(function):
        features.append((feature, function))
        return function
    return add


def same(got, want):
    if got != want:
        raise AssertionError(f"got {got!r}, want {want!r}")


def open_streams():
    """Returns how many answers the server is making."""
    with urllib.request.urlopen(URL + "/test/open") as r:
        return int(r.read())


def cancelled():
    """Waits until the server makes no more answers."""
    for _ in range(100):
        if open_streams() == 0:
            return
        time.sleep(0.05)
    raise AssertionError("the server goes on after the client has left")


def refused(error):
    """Returns the server's words if an error, or a cause of it, is a refusal by name."""
    while error is not None:
        text = f"{error} {getattr(error, 'body', '')} {getattr(error, 'message', '')}"
        for words in ("is not supported", "are not supported"):
            if words in text and "400" in text + str(getattr(error, "status_code", "")):
                return text
        error = error.__cause__ or error.__context__
    return None


def run(client, package):
    """Runs all features of a client."""
    for feature, function in features:
        line = {"client": client, "version": importlib.metadata.version(package), "feature": feature, "result": "ok"}
        try:
            function()
        except Exception as error:  # a cell that fails is a result
            line["result"], line["note"] = ("refused" if refused(error) else "failed"), str(error)[:300]
            if line["result"] == "failed":
                traceback.print_exc()
        print("CELL " + json.dumps(line), flush=True)
