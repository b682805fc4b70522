"""The official Anthropic client for Python against a server that plays the texts of KRATER_ANSWERS.

KRATER_URL is the server's address. bench/clients/run.sh runs it.
"""
import json
import os
import unittest

import anthropic

URL = os.environ["KRATER_URL"]
ANSWERS = [json.loads(line) for line in open(os.environ["KRATER_ANSWERS"], encoding="utf-8")]
CHAT_TOOLS = json.load(open(os.path.join(os.path.dirname(os.environ["KRATER_ANSWERS"]), "tools.json"), encoding="utf-8"))
TOOLS = [{"name": t["function"]["name"], "description": t["function"].get("description", ""), "input_schema": t["function"].get("parameters", {"type": "object"})} for t in CHAT_TOOLS]
client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


def ask(name, **more):
    return dict(model="test-model", max_tokens=4096, messages=[{"role": "user", "content": name}], **more)


def wanted(answer):
    calls = [(c["name"], json.loads(c["arguments"])) for c in answer.get("calls", [])]
    return answer.get("reasoning", ""), answer.get("answer", ""), calls


def parts(message):
    reasoning, text, calls = "", "", []
    for block in message.content:
        if block.type == "thinking":
            reasoning += block.thinking
            assert block.signature
        elif block.type == "text":
            text += block.text
        else:
            calls.append((block.name, block.input))
    return reasoning, text, calls


class Messages(unittest.TestCase):
    def test_whole(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                m = client.messages.create(**ask(a["name"], **({} if a.get("no_tools") else {"tools": TOOLS})))
                self.assertEqual(parts(m), wanted(a))
                self.assertEqual(m.stop_reason, "tool_use" if wanted(a)[2] else "end_turn")
                self.assertGreater(m.usage.input_tokens, 0)
                self.assertGreater(m.usage.output_tokens, 0)

    def test_stream(self):
        for a in ANSWERS:
            with self.subTest(a["name"]):
                deltas = {}
                with client.messages.stream(**ask(a["name"], **({} if a.get("no_tools") else {"tools": TOOLS}))) as stream:
                    for event in stream:
                        if event.type == "content_block_delta" and event.delta.type != "signature_delta":
                            d = event.delta
                            piece = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}[d.type]
                            deltas[event.index] = deltas.get(event.index, "") + getattr(d, piece)
                    m = stream.get_final_message()
                self.assertEqual(parts(m), wanted(a))
                for i, block in enumerate(m.content):
                    if block.type == "tool_use":
                        self.assertEqual(json.loads(deltas.get(i) or "{}"), block.input)
                    else:
                        self.assertEqual(deltas.get(i, ""), block.text if block.type == "text" else block.thinking)

    def test_turns(self):
        messages = [{"role": "user", "content": "hermes"}]
        with client.messages.stream(model="test-model", max_tokens=99, messages=messages, tools=TOOLS) as stream:
            m = stream.get_final_message()
        messages.append({"role": "assistant", "content": m.content})
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": "sunny"}]} for b in m.content if b.type == "tool_use"]
        self.assertEqual(len(results), 2)
        messages.append({"role": "user", "content": results})
        m = client.messages.create(model="test-model", max_tokens=99, messages=messages, tools=TOOLS)
        self.assertEqual(m.content[0].text, "Done: sunny")

    def test_one_call(self):
        m = client.messages.create(**ask("hermes", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
        self.assertEqual(len([b for b in m.content if b.type == "tool_use"]), 1)
        m = client.messages.create(**ask("hermes", tools=TOOLS, tool_choice={"type": "none"}))
        self.assertEqual([b.type for b in m.content if b.type == "tool_use"], [])

    def test_like_claude_code(self):
        """A request with the fields that Claude Code sends."""
        cache = {"type": "ephemeral"}
        with client.beta.messages.stream(
            model="test-model", max_tokens=32000, metadata={"user_id": "user_x_account__session_y"},
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14"],
            system=[{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1;"}, {"type": "text", "text": "You are a coder." * 100, "cache_control": cache}],
            messages=[{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"}]}, {"role": "user", "content": [{"type": "text", "text": "plain", "cache_control": cache}]}],
            tools=[{**TOOLS[0], "name": f"mcp__server__{'x' * 60}_{i}", "cache_control": cache} for i in range(200)],
            thinking={"type": "enabled", "budget_tokens": 31999}, context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        ) as stream:
            m = stream.get_final_message()
        self.assertEqual(m.type, "message")
        self.assertGreater(client.messages.count_tokens(model="test-model", messages=[{"role": "user", "content": "a"}], tools=TOOLS).input_tokens, 0)

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as refused:
            client.messages.create(model="no-such-model", max_tokens=1, messages=[{"role": "user", "content": "a"}])
        self.assertEqual(refused.exception.type, "not_found_error")
        self.assertIn("test-model", refused.exception.message)
        self.assertTrue(refused.exception.request_id.startswith("req_"))
        with self.assertRaises(anthropic.BadRequestError) as refused:
            client.messages.create(**ask([{"type": "image", "source": {"type": "url", "url": "http://x"}}]))
        self.assertIn("image", refused.exception.message)

    def test_models(self):
        models = list(client.models.list())
        self.assertEqual([m.id for m in models], ["test-model"])
        self.assertEqual(client.models.retrieve("test-model").type, "model")


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_cancel(self):
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as own:
            async with own.messages.stream(**ask("hermes")) as stream:
                async for _ in stream:
                    break


if __name__ == "__main__":
    unittest.main()
