// The official Anthropic client for Node against a server that plays the texts
// of KRATER_ANSWERS. KRATER_URL is its address.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const { KRATER_URL: url, KRATER_ANSWERS: file } = process.env;
assert.ok(url && file, "KRATER_URL or KRATER_ANSWERS is not set");
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const answers = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const tools = JSON.parse(readFileSync(join(dirname(file), "tools.json"), "utf8")).map(({ function: f }) => ({ name: f.name, input_schema: f.parameters ?? { type: "object" } }));
const model = "test-model";
const wanted = (a) => [a.reasoning ?? "", a.answer ?? "", (a.calls ?? []).map((c) => [c.name, JSON.parse(c.arguments)])];
const parts = (message) => {
  const got = ["", "", []];
  for (const block of message.content) {
    if (block.type === "thinking") got[0] += block.thinking;
    else if (block.type === "text") got[1] += block.text;
    else got[2].push([block.name, block.input]);
  }
  return got;
};

for (const a of answers) {
  const ask = { model, max_tokens: 4096, messages: [{ role: "user", content: a.name }], ...(a.no_tools ? {} : { tools }) };

  test(`messages: ${a.name}`, async () => {
    assert.deepEqual(parts(await client.messages.create(ask)), wanted(a));
    const stream = client.messages.stream(ask);
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const message = await stream.finalMessage();
    assert.deepEqual(parts(message), wanted(a));
    assert.equal(text, wanted(a)[1]);
    assert.equal(message.stop_reason, wanted(a)[2].length > 0 ? "tool_use" : "end_turn");
    assert.ok(message.usage.output_tokens > 0);
  });
}

test("turns", async () => {
  const messages = [{ role: "user", content: "hermes" }];
  const first = await client.messages.create({ model, max_tokens: 99, messages, tools });
  messages.push({ role: "assistant", content: first.content });
  messages.push({ role: "user", content: first.content.filter((b) => b.type === "tool_use").map((b) => ({ type: "tool_result", tool_use_id: b.id, content: "sunny" })) });
  const second = await client.messages.create({ model, max_tokens: 99, messages, tools });
  assert.equal(second.content[0].text, "Done: sunny");
});

test("count, models, errors", async () => {
  assert.ok((await client.messages.countTokens({ model, messages: [{ role: "user", content: "a" }] })).input_tokens > 0);
  assert.equal((await client.models.list()).data[0].id, model);
  await assert.rejects(client.messages.create({ model: "other", max_tokens: 1, messages: [{ role: "user", content: "a" }] }), (e) => e instanceof Anthropic.NotFoundError && e.message.includes(model));
});
