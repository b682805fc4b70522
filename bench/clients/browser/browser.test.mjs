// A browser's own WebSocket against a running server, whose address is in
// KRATER_URL, and against one of its own that asks for keys. The page's origin, http://127.0.0.1:KRATER_PAGE_PORT (18100), must
// be among the server's --origins.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import test, { after, before } from "node:test";
import { chromium } from "playwright-core";

const url = process.env.KRATER_URL;
assert.ok(url, "KRATER_URL is not set");
const port = Number(process.env.KRATER_PAGE_PORT ?? 18100);
const build = join(import.meta.dirname, "../../../build");
const options = { timeout: 120_000 };
const servers = [];
let profile, browser, guarded;

/** Keys with what headers and addresses do not take as it is, and one with what subprotocols take. */
const odd = "a key, with ümlaut/=", plain = "sk-plain-0123456789";
const encoded = (key) => `krater-key.${Buffer.from(key).toString("base64url")}`;

before(async () => {
  const page = await readFile(join(import.meta.dirname, "page.html"));
  for (const p of [port, 0]) { // the second, any port, is a foreign origin
    const server = createServer((request, answer) => {
      answer.writeHead(200, { "Content-Type": "text/html; charset=utf-8" }).end(page);
    });
    await new Promise((resolve, reject) => server.once("error", reject).listen(p, "127.0.0.1", resolve));
    servers.push(server);
  }
  profile = await mkdtemp(join(tmpdir(), "krater-browser-"));
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    headless: true,
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
}, options);

after(async () => {
  await browser?.close();
  guarded?.stop();
  for (const server of servers) server.close();
  if (profile) await rm(profile, { recursive: true, force: true });
});

test("a page streams two answers over one socket", options, async () => {
  const page = await open(port);
  assert.equal(await page.evaluate(() => document.body.dataset.end), "closed 1000");
  const texts = await page.locator(".text").allTextContents();
  assert.equal(texts.length, 2);
  for (const text of texts) assert.ok(text);
  const events = await page.evaluate(() => window.events);
  for (const id of ["one", "two"]) {
    const own = events.filter((e) => e.stream_id === id);
    assert.equal(own[0].type, "response.created");
    assert.ok(own.every((e, i) => i === 0 || e.sequence_number > own[i - 1].sequence_number));
    const streamed = own.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta).join("");
    assert.equal(own.at(-1).response.output[0].content[0].text, streamed);
  }
  const { version } = JSON.parse(await readFile(join(import.meta.dirname, "node_modules/playwright-core/package.json")));
  console.log(`CELL ${JSON.stringify({ client: "a browser's page", version: `playwright-core ${version}`, feature: "stream", result: "ok" })}`);
  await mkdir(build, { recursive: true });
  await page.screenshot({ path: join(build, "browser-websocket.png") });
  await page.close();
});

test("a page of a foreign origin is refused", options, async () => {
  const page = await open(servers[1].address().port);
  assert.equal(await page.evaluate(() => document.body.dataset.end), "closed 1006");
  assert.deepEqual(await page.evaluate(() => window.events), []);
  await page.close();
});

for (const [form, protocol] of [["of Krater", encoded(odd)], ["of OpenAI", `openai-insecure-api-key.${plain}`]]) {
  test(`a page shows its key as a subprotocol in the form ${form}`, options, async () => {
    const server = await withKeys();
    const page = await open(port, server.url, protocol);
    assert.equal(await page.evaluate(() => document.body.dataset.end), "closed 1000");
    assert.equal(await page.evaluate(() => document.body.dataset.protocol), "realtime"); // the secret is not sent back
    for (const text of await page.locator(".text").allTextContents()) assert.ok(text);
    assert.equal(await page.evaluate(() => window.events.filter((e) => e.type === "response.completed" || e.type === "response.incomplete").length), 2);
    await page.close();
  });
}

test("a page without the right key is refused, and one of a foreign origin with it", options, async () => {
  const server = await withKeys();
  for (const [p, protocol] of [[port], [port, encoded("another key")], [port, "krater-key.!"], [servers[1].address().port, encoded(odd)]]) {
    const page = await open(p, server.url, protocol);
    assert.equal(await page.evaluate(() => document.body.dataset.end), "closed 1006", `${p} ${protocol}`);
    assert.deepEqual(await page.evaluate(() => window.events), []);
    await page.close();
  }
});

test("the pages of a server with keys", options, async () => {
  const server = await withKeys(), page = await browser.newPage(), addresses = [];
  page.on("request", (r) => addresses.push(r.url()));
  page.on("websocket", (ws) => addresses.push(ws.url()));
  await page.goto(server.url);
  await page.click("a.button");
  await page.waitForSelector("#keys[open]");
  for (const key of ["another key", odd]) {
    await page.keyboard.type(key);
    await page.keyboard.press("Enter");
    await page.waitForSelector(key === odd ? "#topology .node" : "#wrong:not([hidden])");
    if (key !== odd) await page.waitForSelector("#keys[open]");
  }
  await page.reload(); // the tab remembers the key
  await page.waitForSelector("#topology .node");
  await page.focus("#question");
  await page.keyboard.type("What is a lighthouse?");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.getElementById("send").disabled, null, { timeout: 60_000 });
  assert.ok((await page.locator("#talk .a").last().textContent()).length > 5);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  assert.ok(JSON.parse(await readFile(await download.path(), "utf8")).traceEvents.length > 0);
  const other = await browser.newPage();
  await other.goto(`${server.url}/trace`);
  await other.waitForSelector("#keys[open]"); // another tab does not
  await other.close();
  await page.close();
  assert.ok(addresses.length > 5);
  for (const text of [...addresses, server.log()]) for (const key of [odd, encodeURIComponent(odd), encoded(odd)]) assert.ok(!text.includes(key), text);
});

/** The server that asks for keys, which all tests share. */
async function withKeys() {
  if (guarded) return guarded;
  const keys = join(profile, "keys"), log = [];
  await writeFile(keys, `${odd}\n${plain}\n`, { mode: 0o600 });
  const server = spawn(join(build, "krater"), ["serve", "--listen", "127.0.0.1:0", "--batch-dir", join(profile, "batches"), "--api-keys", keys,
    "--origins", `http://127.0.0.1:${port}`], { stdio: ["ignore", "pipe", "pipe"] });
  guarded = { stop: () => server.kill(), log: () => log.join("") };
  server.stderr.on("data", (data) => log.push(data));
  for await (const line of createInterface({ input: server.stdout })) {
    guarded.url = line.match(/http:\/\/[0-9.]+:[0-9]+/)?.[0];
    if (guarded.url) return guarded;
  }
  throw new Error(`krater did not start: ${guarded.log()}`);
}

/** Opens the page of a port for a server, with a subprotocol that shows a key, and waits for its end. */
async function open(p, server = url, protocol = undefined) {
  const page = await browser.newPage();
  const query = new URLSearchParams({ server, ...(protocol && { protocol }) });
  await page.goto(`http://127.0.0.1:${p}/?${query}`);
  await page.waitForFunction(() => document.body.dataset.end, null, { timeout: 60_000 });
  return page;
}
