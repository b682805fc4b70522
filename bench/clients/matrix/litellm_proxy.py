import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

from cells import ANN, MODEL, PERSON, PLAIN, TOOLS, URL, cell, run, same

KEY = "sk-of-this-test"
with socket.create_server(("127.0.0.1", 0)) as s:
    PORT = s.getsockname()[1]
folder = tempfile.TemporaryDirectory()
config = os.path.join(folder.name, "config.yaml")
with open(config, "w", encoding="utf-8") as f:
    json.dump({"model_list": [
        {"model_name": MODEL, "litellm_params": {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": "none"}},
        {"model_name": "messages", "litellm_params": {"model": "anthropic/" + MODEL, "api_base": URL, "api_key": "none"}},
    ]}, f)
log = open(os.path.join(folder.name, "log"), "w+", encoding="utf-8")
proxy = subprocess.Popen([os.path.join(os.path.dirname(sys.executable), "litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(PORT)], stdout=log, stderr=log, env={**os.environ, "LITELLM_MASTER_KEY": KEY})
client = openai.OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key=KEY, max_retries=0)


def ask(text, model=MODEL, **more):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


@cell("plain")
def plain():
    for model in (MODEL, "messages"):
        same(ask("plain", model).choices[0].message.content.rstrip(), PLAIN.rstrip())


@cell("stream")
def stream():
    for model in (MODEL, "messages"):
        same("".join(c.choices[0].delta.content or "" for c in ask("plain", model, stream=True) if c.choices).rstrip(), PLAIN.rstrip())


@cell("multi-turn")
def turns():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "plain"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "reasoning"}]
    same(client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content, "Yes.")


@cell("tools")
def tools():
    for model in (MODEL, "messages"):
        m = ask("glm 4.7", model, tools=TOOLS).choices[0].message
        same([(c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls], [("get_weather", {"city": "Bonn"})])


@cell("parallel tools")
def parallel():
    same([c.function.name for c in ask("hermes", tools=TOOLS).choices[0].message.tool_calls], ["get_weather", "now"])


@cell("JSON schema")
def schema():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    same(json.loads(ask("Repeat: " + ANN, response_format=form).choices[0].message.content), {"name": "Ann", "age": 7})


@cell("reasoning")
def reasoning():
    same(ask("reasoning").choices[0].message.reasoning_content, "Is it 2 < 3?")


@cell("usage")
def usage():
    assert ask("plain").usage.completion_tokens > 0


try:
    for _ in range(600):
        if proxy.poll() is not None:
            log.seek(0)
            sys.exit(log.read()[-2000:])
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/liveliness", timeout=1)
            break
        except OSError:
            time.sleep(0.2)
    run("LiteLLM proxy", "litellm")
finally:
    proxy.terminate()
    proxy.wait()
