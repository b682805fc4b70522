import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { ann, cancelled, model, person, plainText, run, url } from "./cells.mjs";

const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = {
  "AI SDK, openai": ["@ai-sdk/openai", openai(model)],
  "AI SDK, openai.chat": ["@ai-sdk/openai", openai.chat(model)],
  "AI SDK, openai-compatible": ["@ai-sdk/openai-compatible", createOpenAICompatible({ name: "krater", baseURL, supportsStructuredOutputs: true })(model)],
  "AI SDK, anthropic": ["@ai-sdk/anthropic", createAnthropic({ baseURL, apiKey: "none" })(model)],
};
const tools = {
  get_weather: tool({ description: "Tells the weather.", inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } }), execute: async () => "sunny" }),
  now: tool({ description: "Tells the time.", inputSchema: jsonSchema({ type: "object", properties: {} }), execute: async () => "sunny" }),
};
const same = (got) => assert.match(got, /^Done: "?sunny/);

for (const [name, [packet, m]] of Object.entries(models)) {
  const ask = (prompt, more = {}) => generateText({ model: m, prompt, maxRetries: 0, ...more });
  const cells = {
    plain: async () => assert.equal((await ask("plain")).text, plainText),
    stream: async () => {
      let text = "";
      for await (const piece of streamText({ model: m, prompt: "plain", maxRetries: 0 }).textStream) text += piece;
      assert.equal(text, plainText);
    },
    "multi-turn": async () => {
      const messages = [{ role: "user", content: "plain" }, { role: "assistant", content: "a" }, { role: "user", content: "reasoning" }];
      assert.equal((await generateText({ model: m, messages, maxRetries: 0 })).text, "Yes.");
    },
    tools: async () => same((await ask("glm 4.7", { tools, stopWhen: stepCountIs(3) })).text),
    "parallel tools": async () => {
      const r = await ask("deepseek v3.1", { tools, stopWhen: stepCountIs(3) });
      assert.deepEqual(r.steps[0].toolCalls.map((c) => c.toolName), ["get_weather", "now"]);
      same(r.text);
    },
    "JSON schema": async () => {
      const r = await ask(`Repeat: ${ann}`, { output: Output.object({ schema: jsonSchema(person) }) });
      assert.deepEqual(r.output, JSON.parse(ann));
    },
    reasoning: async () => assert.equal((await ask("reasoning")).reasoningText, "Is it 2 < 3?"),
    cancel: async () => {
      const stop = new AbortController();
      for await (const _ of streamText({ model: m, prompt: "forever", abortSignal: stop.signal, maxRetries: 0 }).textStream) {
        stop.abort();
        break;
      }
      await cancelled();
    },
    usage: async () => assert.ok((await ask("plain")).usage.outputTokens > 0),
  };
  if (packet === "@ai-sdk/openai") delete cells.reasoning; // this provider reads summaries only
  await run(name, packet, cells);
}
