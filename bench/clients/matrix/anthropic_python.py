import json

import anthropic

from cells import ANN, MODEL, PERSON, PLAIN, TOOLS, URL, cancelled, cell, run, same

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
OWN = [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in TOOLS]


def ask(text, **more):
    return client.messages.create(model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": text}], **more)


@cell("plain")
def plain():
    same(ask("plain", system="Be short.").content[0].text, PLAIN)


@cell("stream")
def stream():
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": "plain"}]) as s:
        same("".join(s.text_stream), PLAIN)


@cell("multi-turn")
def turns():
    messages = [{"role": "user", "content": "plain"}]
    messages += [{"role": "assistant", "content": ask("plain").content}, {"role": "user", "content": "reasoning"}]
    same(client.messages.create(model=MODEL, max_tokens=9, messages=messages).content[1].text, "Yes.")


@cell("tools")
def tools():
    m = ask("glm 4.7", tools=OWN)
    call = m.content[-1]
    same((call.name, call.input, m.stop_reason), ("get_weather", {"city": "Bonn"}, "tool_use"))
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": m.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    same(client.messages.create(model=MODEL, max_tokens=9, messages=messages, tools=OWN).content[0].text, "Done: sunny")


@cell("parallel tools")
def parallel():
    same([b.name for b in ask("hermes", tools=OWN).content if b.type == "tool_use"], ["get_weather", "now"])


@cell("JSON schema")
def schema():
    m = ask("Repeat: " + ANN, output_config={"format": {"type": "json_schema", "schema": PERSON}})
    same(json.loads(m.content[0].text), {"name": "Ann", "age": 7})


@cell("reasoning")
def reasoning():
    m = ask("reasoning", thinking={"type": "enabled", "budget_tokens": 1024})
    same((m.content[0].thinking, m.content[1].text), ("Is it 2 < 3?", "Yes."))


@cell("cancel")
def cancel():
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=[{"role": "user", "content": "forever"}]) as s:
        next(iter(s.text_stream))
    cancelled()


@cell("usage")
def usage():
    u = ask("reasoning").usage
    assert u.input_tokens > 0 and u.output_tokens > 0 and u.output_tokens_details.thinking_tokens > 0
    assert client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "a"}]).input_tokens > 0


run("anthropic-python", "anthropic")
