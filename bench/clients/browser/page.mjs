// What the tests of the page /trace share: a browser, servers to look at, and what a user does.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before } from "node:test";
import { chromium } from "playwright-core";

export const url = process.env.KRATER_URL;
assert.ok(url, "KRATER_URL is not set");
const root = join(import.meta.dirname, "../../..");
export const pictures = process.env.KRATER_PICTURES ?? join(root, "build/page");
export const options = { timeout: 180_000 };
const fakes = [];
export let browser;
let built;

before(async () => {
  await mkdir(pictures, { recursive: true });
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}, options);

after(async () => {
  await browser?.close();
  for (const f of fakes) f.kill();
});

/** Starts a fake pipeline with 100 streams; gives its address. */
export async function fake(key = "") {
  built ??= execFileSync("go", ["test", "-c", "-o", join(root, "build/webui.test"), "./transport/webui"], { cwd: root });
  const f = spawn(join(root, "build/webui.test"), { env: { ...process.env, WEBUI_FAKE: "127.0.0.1:0", WEBUI_FAKE_KEY: key }, stdio: ["ignore", "pipe", "inherit"] });
  fakes.push(f);
  for await (const line of createInterface({ input: f.stdout })) return line;
  throw new Error("the fake pipeline did not start");
}

/** Starts krater beside a simulated device that experts are copied to; gives its address. */
export async function copying() {
  const dir = join(root, "build/clients/copying");
  const f = spawn(join(root, "build/krater"), ["serve", "--listen", "127.0.0.1:0", "--batch-dir", dir, "--device", "hostsim",
    "--prefill-strategy", "layer_grouped:6", "--decode-strategy", "lru", "--expert-vram", "8MiB", "--prefill-expert-vram", "6MiB", "--gpu-prefill-threshold", "4"], { stdio: ["ignore", "pipe", "ignore"] });
  fakes.push(f);
  for await (const line of createInterface({ input: f.stdout })) {
    const at = line.match(/http:\/\/[0-9.]+:[0-9]+/);
    if (at) return at[0];
  }
  throw new Error("krater did not start");
}

/** Starts a leader and two workers of krater, host-a and host-b; gives the leader's address. */
export async function cluster() {
  const krater = join(root, "build/krater"), certs = join(root, "build/clients/certs");
  execFileSync(krater, ["certs", certs]);
  const f = spawn(krater, ["serve", "--listen", "127.0.0.1:0", "--batch-dir", "off", "--threads", "1", "--ranks", "3", "--worker-listen", "127.0.0.1:0", "--worker-certs", certs, "--log-format", "json"],
    { stdio: ["ignore", "pipe", "pipe"] });
  fakes.push(f);
  f.stderr.setEncoding("utf8");
  f.stderr.on("data", (lines) => {
    for (const line of lines.split("\n").filter((l) => l.includes("waiting for workers"))) {
      for (const host of ["host-a", "host-b"]) {
        fakes.push(spawn(krater, ["worker", "--join", JSON.parse(line).listen, "--worker-certs", certs, "--worker-name", host, "--threads", "1"], { stdio: "ignore" }));
      }
    }
  });
  for await (const line of createInterface({ input: f.stdout })) {
    const at = line.match(/http:\/\/[0-9.]+:[0-9]+/);
    if (at) return at[0];
  }
  throw new Error("the leader did not start");
}

/** Opens the page of a server; whatever it complains of on its console fails the test. */
export async function open(base, { width = 1280, height = 900, scheme = "light", touch = false, before, permissions } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, hasTouch: touch, acceptDownloads: true, permissions });
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (m) => { if (["error", "warning"].includes(m.type())) page.complaints.push(m.text()); });
  page.on("pageerror", (e) => page.complaints.push(e.message));
  await before?.(page);
  await page.goto(`${base}/trace`);
  return page;
}

export async function close(page) {
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

export const connected = (page) => page.waitForSelector("#topology .node");
export const text = (page, id) => page.locator(`#${id}`).textContent();
export const picture = (page, id) => page.evaluate((id) => document.getElementById(id).toDataURL(), id);

/** Waits until the figures at the top belong to the request in the time line, and nothing runs. */
export const ownFigures = (page) => page.waitForFunction(() => {
  const id = document.getElementById("subject").textContent.match(/^Request (\d+): /)?.[1];
  return id && document.getElementById("scope").textContent === `Of the last request, number ${id}` && /^Idle/.test(document.getElementById("verdict").textContent);
});

/** How many points of a canvas are drawn. */
export function dots(canvas) {
  if (!canvas.width) return 0;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return copy.getImageData(0, 0, canvas.width, canvas.height).data.filter((v, i) => i % 4 === 3 && v).length;
}

/** Asks with the keyboard and waits for the whole answer. */
export async function ask(page, question) {
  await page.focus("#question");
  await page.keyboard.type(question);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.getElementById("send").disabled, null, { timeout: 60_000 });
}

/** Has a few long answers written for as long as f takes. */
export async function busy(base, n, f) {
  const stop = new AbortController();
  const one = async () => {
    while (!stop.signal.aborted) {
      const body = JSON.stringify({ prompt: `Once upon a time ${Math.random()}`, max_tokens: 400, ignore_eos: true });
      try {
        await (await fetch(`${base}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body, signal: stop.signal })).text();
      } catch { /* stopped */ }
    }
  };
  const all = Array.from({ length: n }, one);
  try {
    return await f();
  } finally {
    stop.abort();
    await Promise.all(all);
  }
}

const nodes = [["gateway", "gateway"], ["schedule", "schedule"], ["embed", "embed"], ["group0", "group", 0, 0, 6], ["split0", "split"], ["pool0", "pool"], ["merge0", "merge"], ["head", "head"], ["sample", "sample"], ["stream", "stream"]]
  .map(([name, kind, index = 0, first = 0, last = 0]) => ({ name, kind, index, first, last, rank: 0, memory: -1 }));
const edges = [["gateway", "schedule"], ["schedule", "embed"], ["embed", "group0"], ["group0", "split0"], ["split0", "pool0"], ["pool0", "merge0"], ["merge0", "group0"], ["group0", "head"], ["head", "sample"], ["sample", "schedule"], ["sample", "stream"]];
const flow = { tokens: 0, prompt: 0, steps: 0, rows: 0, running: 0, waiting: 0, kv: [0, 0, 100], host_kv: [0, 0], prefix: [0, 0], totals: [0, 0, 0], preempted: 0 };

/** A page whose two sockets are the test's own, for what a server seldom does. push sends a
 * snapshot with parts of a state, state a delta, answer an event of the Responses interface;
 * asked are the requests so far, events what the page is to be given of a request's trace. */
export async function staged(options = {}) {
  const stage = { asked: [], events: undefined };
  let trace, answers;
  const send = (ws, m) => ws.send(JSON.stringify(m));
  stage.push = (state = {}, topology = { nodes, edges }, history = []) => send(trace, { type: "snapshot", model: "staged", context: 2048, topology, history, state: { nodes: {}, flow, requests: [], verdict: { text: "Idle: no request is running." }, ...state } });
  stage.state = (state) => send(trace, { type: "delta", state });
  stage.answer = (...events) => events.forEach((e) => send(answers, e));
  stage.page = await open(url, { ...options, before: async (page) => {
    await page.routeWebSocket(/\/trace\/ws$/, (ws) => {
      trace = ws;
      ws.onMessage((data) => {
        const m = JSON.parse(data);
        if (m.type === "show") options.loading ? stage.push(options.loading, { nodes: [], edges: [] }) : stage.push();
        else send(ws, stage.events?.(m) ?? { type: "events", for: m.type, id: m.id, lanes: [], devices: ["host"], events: [], paths: [], gaps: [], riders: [], kept: [] });
      });
    });
    await page.routeWebSocket(/\/v1\/responses$/, (ws) => {
      answers = ws;
      ws.onMessage((data) => stage.asked.push(JSON.parse(data)));
    });
  } });
  await stage.page.waitForFunction(() => document.getElementById("model").textContent.startsWith("staged"));
  /** The request that comes next, after n. */
  stage.request = async (n) => {
    for (const end = Date.now() + 20_000; stage.asked.length <= n; await stage.page.waitForTimeout(10)) assert.ok(Date.now() < end, "nothing was asked");
    return stage.asked[n];
  };
  return stage;
}

/** The events of an answer in pieces. */
export const begun = (id) => ({ type: "response.created", response: { id } });
export const piece = (delta) => ({ type: "response.output_text.delta", delta });
export const ended = (id, tokens, reason) => ({
  type: reason ? "response.incomplete" : "response.completed",
  response: { id, usage: { output_tokens: tokens }, incomplete_details: reason ? { reason } : null },
});
