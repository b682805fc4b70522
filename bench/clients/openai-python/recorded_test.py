"""The official Python client against a server that plays the texts of KRATER_ANSWERS.

KRATER_URL is the server's address. `python3 -m unittest` runs it; bench/clients/run.sh does.
"""
import json
import os
import unittest

import openai

URL = os.environ["KRATER_URL"]
ANSWERS = [json.loads(line) for line in open(os.environ["KRATER_ANSWERS"], encoding="utf-8")]
TOOLS = json.load(open(os.path.join(os.path.dirname(os.environ["KRATER_ANSWERS"]), "tools.json"), encoding="utf-8"))
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)


def wanted(answer):
    calls = [(c["name"], json.loads(c["arguments"])) for c in answer.get("calls", [])]
    return answer.get("reasoning", ""), answer.get("answer", ""), calls


class Chat(unittest.TestCase):
    def test_whole(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                extra = {} if a.get("no_tools") else {"tools": TOOLS}
                r = client.chat.completions.create(model="test-model", messages=[{"role": "user", "content": a["name"]}], **extra)
                m = r.choices[0].message
                calls = [(c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls or []]
                self.assertEqual((getattr(m, "reasoning_content", None) or "", m.content or "", calls), wanted(a))
                self.assertEqual(r.choices[0].finish_reason, "tool_calls" if calls else "stop")
                self.assertEqual(len({c.id for c in m.tool_calls or []}), len(calls))

    def test_stream(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                extra = {} if a.get("no_tools") else {"tools": TOOLS}
                reasoning = ""
                with client.chat.completions.stream(model="test-model", messages=[{"role": "user", "content": a["name"]}], **extra) as stream:
                    for event in stream:
                        if event.type == "chunk" and event.chunk.choices:
                            reasoning += getattr(event.chunk.choices[0].delta, "reasoning_content", None) or ""
                    m = stream.get_final_completion().choices[0].message
                calls = [(c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls or []]
                self.assertEqual((reasoning, m.content or "", calls), wanted(a))

    def test_turns(self):
        messages = [{"role": "user", "content": "hermes"}]
        r = client.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
        messages.append(r.choices[0].message)
        for c in r.choices[0].message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": c.id, "content": "sunny"})
        r = client.chat.completions.create(model="test-model", messages=messages, tools=TOOLS)
        self.assertEqual(r.choices[0].message.content, "Done: sunny")

    def test_one_call(self):
        ask = dict(model="test-model", messages=[{"role": "user", "content": "hermes"}], tools=TOOLS)
        r = client.chat.completions.create(parallel_tool_calls=False, **ask)
        self.assertEqual(len(r.choices[0].message.tool_calls), 1)
        r = client.chat.completions.create(tool_choice="none", **ask)
        self.assertIsNone(r.choices[0].message.tool_calls)
        for choice in ["required", {"type": "function", "function": {"name": "now"}}]:
            r = client.chat.completions.create(tool_choice=choice, **ask)
            self.assertTrue(r.choices[0].message.tool_calls)
        with self.assertRaises(openai.BadRequestError) as refused:
            client.chat.completions.create(tool_choice={"type": "function", "function": {"name": "nothing"}}, **ask)
        self.assertTrue(refused.exception.param.startswith("tool_choice"))


class Responses(unittest.TestCase):
    def parts(self, response):
        reasoning, text, calls = "", "", []
        for item in response.output:
            if item.type == "reasoning":
                reasoning += item.content[0].text
            elif item.type == "message":
                text += item.content[0].text
            else:
                calls.append((item.name, json.loads(item.arguments)))
        return reasoning, text, calls

    def test_whole(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                extra = {} if a.get("no_tools") else {"tools": FLAT}
                self.assertEqual(self.parts(client.responses.create(model="test-model", input=a["name"], **extra)), wanted(a))

    def test_stream(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                extra = {} if a.get("no_tools") else {"tools": FLAT}
                deltas = {}
                with client.responses.stream(model="test-model", input=a["name"], **extra) as stream:
                    for event in stream:
                        if event.type.endswith(".delta"):
                            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
                    final = stream.get_final_response()
                self.assertEqual(self.parts(final), wanted(a))
                for item in final.output:
                    whole = item.arguments if item.type == "function_call" else item.content[0].text
                    self.assertEqual(deltas.get(item.id, ""), whole)

    def test_turns(self):
        first = client.responses.create(model="test-model", input="deepseek v3.1", tools=FLAT)
        results = [{"type": "function_call_output", "call_id": i.call_id, "output": "sunny"} for i in first.output if i.type == "function_call"]
        self.assertEqual(len(results), 2)
        second = client.responses.create(model="test-model", previous_response_id=first.id, input=results, tools=FLAT)
        self.assertEqual(second.output_text, "Done: sunny")
        again = [{"role": "user", "content": "u"}] + [i.to_dict() for i in first.output] + results
        self.assertEqual(client.responses.create(model="test-model", input=again, tools=FLAT).output_text, "Done: sunny")

    def test_socket(self):
        with client.responses.connect() as socket:
            socket.response.create(model="test-model", input="kimi k2", tools=FLAT)
            for event in socket:
                if event.type == "response.completed":
                    break
        self.assertEqual([i.call_id for i in event.response.output if i.type == "function_call"], ["functions.get_weather:0", "functions.now:1"])


if __name__ == "__main__":
    unittest.main()
