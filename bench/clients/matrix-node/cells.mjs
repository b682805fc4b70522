// Runs the features of one client, and prints a line of JSON for each: what
// docs/clients.md is made of. See ../matrix/cells.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const url = process.env.KRATER_URL;
export const model = "test-model";
export const plainText = "Two <b>bold</b> words <tool\n ";
export const ann = '{"name": "Ann", "age": 7}';
export const person = { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"], additionalProperties: false };
export const tools = [
  { type: "function", function: { name: "get_weather", description: "Tells the weather.", parameters: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } } } },
  { type: "function", function: { name: "now", description: "Tells the time.", parameters: { type: "object", properties: {} } } },
];

// cancelled waits until the server makes no more answers.
export async function cancelled() {
  for (let i = 0; i < 100; i++) {
    if ((await (await fetch(`${url}/test/open`)).text()) === "0") return;
    await sleep(50);
  }
  assert.fail("the server goes on after the client has left");
}

function refused(error) {
  for (let e = error; e; e = e.cause ?? e.lastError) {
    const text = `${e.message} ${e.responseBody ?? ""} ${e.status ?? e.statusCode ?? ""}`;
    if (/(is|are) not supported/.test(text) && text.includes("400")) return true;
  }
  return false;
}

export async function run(client, name, cells) {
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  for (const [feature, cell] of Object.entries(cells)) {
    const line = { client, version, feature, result: "ok" };
    try {
      await cell();
    } catch (error) {
      line.result = refused(error) ? "refused" : "failed";
      line.note = String(error.message).slice(0, 300);
      if (line.result === "failed") console.error(client, feature, error);
    }
    console.log(`CELL ${JSON.stringify(line)}`);
  }
}
