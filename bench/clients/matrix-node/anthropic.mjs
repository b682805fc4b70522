import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ann, cancelled, model, person, plainText, run, tools, url } from "./cells.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const own = tools.map(({ function: f }) => ({ name: f.name, description: f.description, input_schema: f.parameters }));
const asks = (content, more = {}) => ({ model, max_tokens: 1000, messages: [{ role: "user", content }], ...more });
const ask = (content, more) => client.messages.create(asks(content, more));

await run("anthropic-node", "@anthropic-ai/sdk", {
  plain: async () => assert.equal((await ask("plain")).content[0].text, plainText),
  stream: async () => assert.equal(await client.messages.stream(asks("plain")).finalText(), plainText),
  "multi-turn": async () => {
    const messages = [{ role: "user", content: "plain" }, { role: "assistant", content: (await ask("plain")).content }, { role: "user", content: "reasoning" }];
    assert.equal((await client.messages.create({ model, max_tokens: 9, messages })).content[1].text, "Yes.");
  },
  tools: async () => {
    const m = await ask("glm 4.7", { tools: own });
    const call = m.content.at(-1);
    assert.deepEqual([call.name, call.input, m.stop_reason], ["get_weather", { city: "Bonn" }, "tool_use"]);
    const messages = [{ role: "user", content: "x" }, { role: "assistant", content: m.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "sunny" }] }];
    assert.equal((await client.messages.create({ model, max_tokens: 9, messages, tools: own })).content[0].text, "Done: sunny");
  },
  "parallel tools": async () => {
    const m = await client.messages.stream(asks("hermes", { tools: own })).finalMessage();
    assert.deepEqual(m.content.filter((b) => b.type === "tool_use").map((b) => b.name), ["get_weather", "now"]);
  },
  "JSON schema": async () => {
    const m = await ask(`Repeat: ${ann}`, { output_config: { format: { type: "json_schema", schema: person } } });
    assert.deepEqual(JSON.parse(m.content[0].text), JSON.parse(ann));
  },
  reasoning: async () => assert.equal((await ask("reasoning", { thinking: { type: "enabled", budget_tokens: 1024 } })).content[0].thinking, "Is it 2 < 3?"),
  cancel: async () => {
    for await (const _ of client.messages.stream(asks("forever"))) break;
    await cancelled();
  },
  usage: async () => {
    const { usage } = await ask("reasoning");
    assert.ok(usage.input_tokens > 0 && usage.output_tokens_details.thinking_tokens > 0);
  },
});
