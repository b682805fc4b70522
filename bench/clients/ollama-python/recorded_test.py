"""The official Ollama client for Python against a server that plays the texts of KRATER_ANSWERS.

KRATER_URL is the server's address. bench/clients/run.sh runs it.
"""
import json
import os
import unittest

import ollama

ANSWERS = [json.loads(line) for line in open(os.environ["KRATER_ANSWERS"], encoding="utf-8")]
TOOLS = json.load(open(os.path.join(os.path.dirname(os.environ["KRATER_ANSWERS"]), "tools.json"), encoding="utf-8"))
MODEL = "test-model"
client = ollama.Client(host=os.environ["KRATER_URL"])


def wanted(answer):
    calls = [(c["name"], json.loads(c["arguments"])) for c in answer.get("calls", [])]
    return answer.get("reasoning", ""), answer.get("answer", ""), calls


def calls_of(message):
    return [(c.function.name, dict(c.function.arguments)) for c in message.tool_calls or []]


class Chat(unittest.TestCase):
    def ask(self, answer, **more):
        tools = {} if answer.get("no_tools") else {"tools": TOOLS}
        return client.chat(model=MODEL, messages=[{"role": "user", "content": answer["name"]}], **tools, **more)

    def test_whole(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                r = self.ask(a)
                m = r.message
                self.assertEqual((m.thinking or "", m.content or "", calls_of(m)), wanted(a))
                self.assertTrue(r.done and r.done_reason == "stop" and r.eval_count > 0 and r.prompt_eval_count > 0)

    def test_stream(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                got = ["", "", []]
                for r in self.ask(a, stream=True):
                    got[0] += r.message.thinking or ""
                    got[1] += r.message.content or ""
                    got[2] += calls_of(r.message)
                self.assertEqual(tuple(got), wanted(a))
                self.assertTrue(r.done)

    def test_turns(self):
        messages = [{"role": "user", "content": "hermes"}]
        m = client.chat(model=MODEL, messages=messages, tools=TOOLS).message
        messages.append(m)
        for c in m.tool_calls:
            messages.append({"role": "tool", "tool_name": c.function.name, "content": "sunny"})
        self.assertEqual(client.chat(model=MODEL, messages=messages, tools=TOOLS).message.content, "Done: sunny")

    def test_generate(self):
        self.assertEqual(client.generate(model=MODEL, prompt="plain").response, ANSWERS[0]["answer"])
        text = "".join(r.response for r in client.generate(model=MODEL, prompt="plain", stream=True, options={"num_ctx": 512, "num_predict": 9}))
        self.assertEqual(text, ANSWERS[0]["answer"])

    def test_models(self):
        self.assertEqual([m.model for m in client.list().models], [MODEL])
        self.assertEqual([m.model for m in client.ps().models], [MODEL])
        shown = client.show(MODEL)
        self.assertIn("tools", shown.capabilities)
        self.assertGreater(shown.modelinfo["krater.context_length"], 0)

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as refused:
            client.chat(model="other", messages=[{"role": "user", "content": "a"}])
        self.assertEqual(refused.exception.status_code, 404)
        self.assertIn(MODEL, refused.exception.error)
        with self.assertRaises(ollama.ResponseError) as refused:
            client.embed(model=MODEL, input="a")
        self.assertEqual(refused.exception.status_code, 400)


if __name__ == "__main__":
    unittest.main()
