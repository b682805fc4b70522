import json

import ollama

from cells import ANN, MODEL, PERSON, PLAIN, TOOLS, URL, cancelled, cell, run, same

client = ollama.Client(host=URL)


def ask(text, **more):
    return client.chat(model=MODEL, messages=[{"role": "user", "content": text}], **more)


@cell("plain")
def plain():
    same(ask("plain").message.content, PLAIN)
    same(client.generate(model=MODEL, prompt="plain").response, PLAIN)


@cell("stream")
def stream():
    same("".join(r.message.content or "" for r in ask("plain", stream=True)), PLAIN)


@cell("multi-turn")
def turns():
    messages = [{"role": "user", "content": "plain"}, ask("plain").message, {"role": "user", "content": "reasoning"}]
    same(client.chat(model=MODEL, messages=messages).message.content, "Yes.")


@cell("tools")
def tools():
    m = ask("glm 4.7", tools=TOOLS).message
    same([(c.function.name, dict(c.function.arguments)) for c in m.tool_calls], [("get_weather", {"city": "Bonn"})])
    messages = [{"role": "user", "content": "x"}, m, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    same(client.chat(model=MODEL, messages=messages, tools=TOOLS).message.content, "Done: sunny")


@cell("parallel tools")
def parallel():
    same([c.function.name for c in ask("hermes", tools=TOOLS).message.tool_calls], ["get_weather", "now"])


@cell("JSON schema")
def schema():
    same(json.loads(ask("Repeat: " + ANN, format=PERSON).message.content), {"name": "Ann", "age": 7})


@cell("reasoning")
def reasoning():
    same(ask("reasoning", think=True).message.thinking, "Is it 2 < 3?")


@cell("cancel")
def cancel():
    s = ask("forever", stream=True)
    next(s)
    s.close()
    cancelled()


@cell("usage")
def usage():
    r = ask("plain")
    assert r.eval_count > 0 and r.prompt_eval_count > 0 and r.total_duration > 0


run("ollama-python", "ollama")
