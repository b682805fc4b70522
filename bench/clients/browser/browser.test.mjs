// A browser's own WebSocket against a running server, whose address is in
// KRATER_URL. The page's origin, http://127.0.0.1:KRATER_PAGE_PORT (18100), must
// be among the server's --origins.
import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test, { after, before } from "node:test";
import { chromium } from "playwright-core";

const url = process.env.KRATER_URL;
assert.ok(url, "KRATER_URL is not set");
const port = Number(process.env.KRATER_PAGE_PORT ?? 18100);
const pictures = join(import.meta.dirname, "../../../build");
const options = { timeout: 120_000 };
const servers = [];
let profile, browser;

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
  await mkdir(pictures, { recursive: true });
  await page.screenshot({ path: join(pictures, "browser-websocket.png") });
  await page.close();
});

test("a page of a foreign origin is refused", options, async () => {
  const page = await open(servers[1].address().port);
  assert.equal(await page.evaluate(() => document.body.dataset.end), "closed 1006");
  assert.deepEqual(await page.evaluate(() => window.events), []);
  await page.close();
});

/** Opens the page and waits for its end. */
async function open(p) {
  const page = await browser.newPage();
  await page.goto(`http://127.0.0.1:${p}/?server=${encodeURIComponent(url)}`);
  await page.waitForFunction(() => document.body.dataset.end, null, { timeout: 60_000 });
  return page;
}
