// The official Node client against a running server, whose address is in
// KRATER_URL.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI, { toFile } from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const url = process.env.KRATER_URL;
assert.ok(url, "KRATER_URL is not set");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const question = "What is a lighthouse?";
const limits = { temperature: 0, max_output_tokens: 24 };
const options = { timeout: 60_000 };

test("chat stream", options, async () => {
  const ask = { model, temperature: 0, max_completion_tokens: 24, messages: [{ role: "user", content: question }] };
  const stream = await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } });
  let text = "";
  const reasons = [];
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    if (chunk.choices[0] && chunk.choices[0].finish_reason !== null) reasons.push(chunk.choices[0].finish_reason);
    if (chunk.usage) usage = chunk.usage;
  }
  assert.ok(text);
  assert.equal(reasons.length, 1);
  assert.match(reasons[0], /^(stop|length)$/);
  assert.ok(usage.completion_tokens > 0);
  const helper = client.chat.completions.stream(ask);
  assert.equal(await helper.finalContent(), text);
});

test("responses stream", options, async () => {
  const stream = client.responses.stream({ model, input: question, ...limits });
  let text = "";
  let last = -1;
  for await (const event of stream) {
    assert.ok(event.sequence_number > last, `event ${event.sequence_number} after ${last}`);
    last = event.sequence_number;
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  const end = await stream.finalResponse();
  checkEnd(end, text);
  assert.equal((await client.responses.retrieve(end.id)).output_text, text);
  const replay = await client.responses.retrieve(end.id, { stream: true, starting_after: last - 1 });
  const events = [];
  for await (const event of replay) events.push(event);
  assert.deepEqual(events.map((e) => e.sequence_number), [last]);
  const next = await client.responses.create({ model, input: "And who keeps it?", previous_response_id: end.id, ...limits });
  assert.ok(next.output_text);
  assert.ok(next.usage.input_tokens > end.usage.input_tokens);
  await client.responses.delete(end.id);
  await assert.rejects(client.responses.retrieve(end.id), { status: 404, code: "response_not_found" });
});

test("responses in the background", options, async () => {
  const begun = await client.responses.create({ model, input: question, background: true, ...limits });
  assert.match(begun.status, /^(queued|in_progress)$/);
  let r = begun;
  while (r.status === "queued" || r.status === "in_progress") r = await client.responses.retrieve(begun.id);
  assert.match(r.status, /^(completed|incomplete)$/);
  assert.ok(r.output_text);
  assert.equal((await client.responses.cancel(begun.id)).status, r.status);
});

test("refusals name the field", options, async () => {
  await assert.rejects(client.responses.create({ model: "no-such-model", input: "x" }), { status: 404, code: "model_not_found", param: "model" });
  await assert.rejects(client.responses.create({ model, input: "x", truncation: "some" }), { status: 400, param: "truncation" });
  await assert.rejects(client.responses.create({ model, input: "x".repeat(200_000) }), { status: 400, code: "context_length_exceeded" });
});

test("websocket", options, async () => {
  const ws = new ResponsesWS(client);
  const alone = await client.responses.create({ model, input: question, ...limits });
  try {
    const first = await turn(ws, { input: question, store: false });
    checkEnd(first.response, first.text);
    assert.equal(first.text, alone.output_text);
    const second = await turn(ws, { input: "And who keeps it?", store: false, previous_response_id: first.response.id });
    assert.ok(second.response.usage.input_tokens > first.response.usage.input_tokens);
    const warm = await turn(ws, { input: question, generate: false, store: false });
    assert.equal(warm.response.status, "completed");
    assert.deepEqual(warm.response.output, []);
    const after = await turn(ws, { input: [], previous_response_id: warm.response.id });
    assert.ok(after.text);
    await assert.rejects(turn(ws, { input: "x", previous_response_id: "resp_none" }), (e) => e.error.error.code === "previous_response_not_found");
    const again = await turn(ws, { input: question });
    assert.equal(again.text, alone.output_text);
  } finally {
    ws.close({ code: 1000, reason: "done" });
  }
});

test("websocket with several answers at once", options, async () => {
  const ws = new ResponsesWS(client);
  try {
    const alone = await client.responses.create({ model, input: question, ...limits });
    const names = ["a", "b", "c", "d"];
    const texts = new Map(names.map((name) => [name, ""]));
    const events = ws.stream();
    for (const name of names) ws.send({ type: "response.create", stream_id: name, model, input: question, ...limits });
    let open = names.length;
    for await (const event of events) {
      if (event.type === "error") throw event.error;
      if (event.type !== "message") continue;
      const m = event.message;
      if (m.type === "response.output_text.delta") texts.set(m.stream_id, texts.get(m.stream_id) + m.delta);
      if (["response.completed", "response.incomplete", "response.failed"].includes(m.type) && --open === 0) break;
    }
    for (const name of names) assert.equal(texts.get(name), alone.output_text);
  } finally {
    ws.close({ code: 1000, reason: "done" });
  }
});

/** One answer over the socket: its events' text and the final response. */
function turn(ws, request) {
  return new Promise((resolve, reject) => {
    let text = "";
    const done = (settle, value) => {
      ws.off("event", onEvent);
      ws.off("error", onError);
      settle(value);
    };
    const onError = (error) => done(reject, error);
    const onEvent = (event) => {
      if (event.type === "response.output_text.delta") text += event.delta;
      if (event.type === "response.failed") done(reject, new Error(event.response.error.message));
      if (event.type === "response.completed" || event.type === "response.incomplete") done(resolve, { text, response: event.response });
    };
    ws.on("event", onEvent);
    ws.on("error", onError);
    ws.send({ type: "response.create", model, ...limits, ...request });
  });
}

function checkEnd(response, text) {
  assert.ok(text);
  assert.equal(response.output[0].content[0].text, text);
  assert.match(response.status, /^(completed|incomplete)$/);
  assert.ok(response.usage.output_tokens > 0);
  assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
}

test("batch", options, async () => {
  const lines = ["one", "two", "three"].map((id) => ({
    custom_id: id,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model, temperature: 0, max_completion_tokens: 8, messages: [{ role: "user", content: question }] },
  }));
  lines.push({ ...lines[0], custom_id: "wrong", body: { ...lines[0].body, temperature: 7 } });
  const text = lines.map((l) => JSON.stringify(l)).join("\n");
  const file = await client.files.create({ file: await toFile(Buffer.from(text), "lines.jsonl"), purpose: "batch" });
  assert.equal(file.bytes, Buffer.byteLength(text));
  assert.equal((await client.files.retrieve(file.id)).filename, "lines.jsonl");
  assert.equal(await (await client.files.content(file.id)).text(), text);
  let batch = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h", metadata: { made: "here" } });
  assert.equal(batch.status, "validating");
  const begun = batch.id;
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((r) => setTimeout(r, 50));
    batch = await client.batches.retrieve(begun);
  }
  assert.equal(batch.status, "completed");
  assert.deepEqual(batch.request_counts, { total: 4, completed: 3, failed: 1 });
  assert.deepEqual(batch.metadata, { made: "here" });
  const whole = await client.chat.completions.create(lines[0].body);
  const output = (await (await client.files.content(batch.output_file_id)).text()).trim().split("\n").map((l) => JSON.parse(l));
  assert.deepEqual(output.map((o) => o.custom_id), ["one", "two", "three"]);
  for (const o of output) {
    assert.equal(o.response.status_code, 200);
    assert.equal(o.response.body.choices[0].message.content, whole.choices[0].message.content);
  }
  const wrong = JSON.parse(await (await client.files.content(batch.error_file_id)).text());
  assert.equal(wrong.response.body.error.param, "temperature");
  const ids = [];
  for await (const b of client.batches.list({ limit: 1 })) ids.push(b.id);
  assert.ok(ids.includes(begun));
  const names = [];
  for await (const f of client.files.list({ purpose: "batch_output" })) names.push(f.id);
  assert.ok(names.includes(batch.output_file_id));
  await assert.rejects(client.batches.cancel(begun), { status: 409 });
  assert.equal((await client.files.delete(file.id)).deleted, true);
  await assert.rejects(client.files.retrieve(file.id), { status: 404 });
  await assert.rejects(client.batches.create({ input_file_id: "file-none", endpoint: "/v1/chat/completions", completion_window: "24h" }), { status: 404 });
});
