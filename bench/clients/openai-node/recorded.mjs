// The official Node client against a server that plays the texts of
// KRATER_ANSWERS. KRATER_URL is its address.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import test from "node:test";
import OpenAI from "openai";

const { KRATER_URL: url, KRATER_ANSWERS: file } = process.env;
assert.ok(url && file, "KRATER_URL or KRATER_ANSWERS is not set");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const answers = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const tools = JSON.parse(readFileSync(join(dirname(file), "tools.json"), "utf8"));
const flat = tools.map((tool) => ({ type: "function", ...tool.function }));
const model = "test-model";
const wanted = (a) => [a.reasoning ?? "", a.answer ?? "", (a.calls ?? []).map((c) => [c.name, JSON.parse(c.arguments)])];

for (const a of answers) {
  const given = a.no_tools ? {} : { tools };
  const messages = [{ role: "user", content: a.name }];

  test(`chat: ${a.name}`, async () => {
    const stream = client.chat.completions.stream({ model, messages, ...given });
    let reasoning = "";
    stream.on("chunk", (chunk) => (reasoning += chunk.choices[0]?.delta.reasoning_content ?? ""));
    const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0];
    const calls = (message.tool_calls ?? []).map((c) => [c.function.name, JSON.parse(c.function.arguments)]);
    assert.deepEqual([reasoning, message.content ?? "", calls], wanted(a));
    assert.equal(finish_reason, calls.length > 0 ? "tool_calls" : "stop");
  });

  test(`responses: ${a.name}`, async () => {
    const stream = client.responses.stream({ model, input: a.name, ...(a.no_tools ? {} : { tools: flat }) });
    const got = ["", "", []];
    for (const item of (await stream.finalResponse()).output) {
      if (item.type === "function_call") got[2].push([item.name, JSON.parse(item.arguments)]);
      else got[item.type === "reasoning" ? 0 : 1] += item.content[0].text;
    }
    assert.deepEqual(got, wanted(a));
  });
}
