import json

import openai

from cells import ANN, MODEL, PERSON, PLAIN, TOOLS, URL, cancelled, cell, run, same

client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


def ask(text, **more):
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}], **more)


@cell("plain")
def plain():
    same(ask("plain").choices[0].message.content, PLAIN)
    same(client.responses.create(model=MODEL, input="plain").output_text, PLAIN)


@cell("stream")
def stream():
    same("".join(c.choices[0].delta.content or "" for c in ask("plain", stream=True)), PLAIN)
    with client.responses.stream(model=MODEL, input="plain") as s:
        same(s.get_final_response().output_text, PLAIN)


@cell("multi-turn")
def turns():
    first = client.responses.create(model=MODEL, input="plain")
    same(client.responses.create(model=MODEL, input="reasoning", previous_response_id=first.id).output_text, "Yes.")


@cell("tools")
def tools():
    messages = [{"role": "user", "content": "glm 4.7"}]
    m = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
    same([(c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls], [("get_weather", {"city": "Bonn"})])
    messages += [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "sunny"}]
    same(client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message.content, "Done: sunny")


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


@cell("cancel")
def cancel():
    with ask("forever", stream=True) as s:
        next(iter(s))
    cancelled()


@cell("usage")
def usage():
    chunks = list(ask("plain", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage.completion_tokens > 0 and ask("reasoning").usage.completion_tokens_details.reasoning_tokens > 0


run("openai-python", "openai")
