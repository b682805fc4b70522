import assert from "node:assert/strict";
import OpenAI from "openai";
import { ann, cancelled, model, person, plainText, run, tools, url } from "./cells.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const ask = (content, more = {}) => client.chat.completions.create({ model, messages: [{ role: "user", content }], ...more });

await run("openai-node", "openai", {
  plain: async () => {
    assert.equal((await ask("plain")).choices[0].message.content, plainText);
    assert.equal((await client.responses.create({ model, input: "plain" })).output_text, plainText);
  },
  stream: async () => {
    let text = "";
    for await (const c of await ask("plain", { stream: true })) text += c.choices[0]?.delta.content ?? "";
    assert.equal(text, plainText);
    assert.equal((await client.responses.stream({ model, input: "plain" }).finalResponse()).output_text, plainText);
  },
  "multi-turn": async () => {
    const first = await client.responses.create({ model, input: "plain" });
    assert.equal((await client.responses.create({ model, input: "reasoning", previous_response_id: first.id })).output_text, "Yes.");
  },
  tools: async () => {
    const { message } = (await ask("glm 4.7", { tools })).choices[0];
    assert.deepEqual(message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]), [["get_weather", { city: "Bonn" }]]);
    const messages = [{ role: "user", content: "x" }, message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" }];
    assert.equal((await client.chat.completions.create({ model, messages, tools })).choices[0].message.content, "Done: sunny");
  },
  "parallel tools": async () => {
    const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "hermes" }], tools });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    assert.deepEqual(message.tool_calls.map((c) => c.function.name), ["get_weather", "now"]);
  },
  "JSON schema": async () => {
    const response_format = { type: "json_schema", json_schema: { name: "person", schema: person, strict: true } };
    assert.deepEqual(JSON.parse((await ask(`Repeat: ${ann}`, { response_format })).choices[0].message.content), JSON.parse(ann));
  },
  reasoning: async () => assert.equal((await ask("reasoning")).choices[0].message.reasoning_content, "Is it 2 < 3?"),
  cancel: async () => {
    const stream = await ask("forever", { stream: true });
    for await (const _ of stream) break;
    await cancelled();
  },
  usage: async () => assert.ok((await ask("reasoning")).usage.completion_tokens_details.reasoning_tokens > 0),
});
