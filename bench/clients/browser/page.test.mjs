// The page /trace in a headless browser: against a running server, whose address is in
// KRATER_URL, and beside 100 streams of a fake pipeline. Pictures are left in
// KRATER_PICTURES (build/page), to be looked at.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import test, { after, before } from "node:test";
import { chromium } from "playwright-core";

const url = process.env.KRATER_URL;
assert.ok(url, "KRATER_URL is not set");
const root = join(import.meta.dirname, "../../..");
const pictures = process.env.KRATER_PICTURES ?? join(root, "build/page");
const options = { timeout: 180_000 };
const fakes = [];
let browser;

before(async () => {
  await mkdir(pictures, { recursive: true });
  execFileSync("go", ["test", "-c", "-o", join(root, "build/webui.test"), "./transport/webui"], { cwd: root });
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
async function fake(key = "") {
  const f = spawn(join(root, "build/webui.test"), { env: { ...process.env, WEBUI_FAKE: "127.0.0.1:0", WEBUI_FAKE_KEY: key }, stdio: ["ignore", "pipe", "inherit"] });
  fakes.push(f);
  for await (const line of createInterface({ input: f.stdout })) return line;
  throw new Error("the fake pipeline did not start");
}

/** Starts krater beside a simulated device that experts are copied to; gives its address. */
async function copying() {
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

/** Opens the page of a server; whatever it complains of on its console fails the test. */
async function open(base, { width = 1280, height = 900, scheme = "light", touch = false } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, hasTouch: touch, acceptDownloads: true });
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (m) => { if (["error", "warning"].includes(m.type())) page.complaints.push(m.text()); });
  page.on("pageerror", (e) => page.complaints.push(e.message));
  await page.goto(`${base}/trace`);
  return page;
}

async function close(page) {
  assert.deepEqual(page.complaints, []);
  await page.context().close();
}

const connected = (page) => page.waitForSelector("#topology .node");
const text = (page, id) => page.locator(`#${id}`).textContent();
const picture = (page, id) => page.evaluate((id) => document.getElementById(id).toDataURL(), id);

/** Asks with the keyboard and waits for the whole answer. */
async function ask(page, question) {
  await page.focus("#question");
  await page.keyboard.type(question);
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => !document.getElementById("send").disabled, null, { timeout: 60_000 });
}

/** Has a few long answers written for as long as f takes. */
async function busy(base, n, f) {
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

for (const [width, height] of [[1280, 900], [390, 844]]) {
  for (const scheme of ["light", "dark"]) {
    test(`${width} pixels, ${scheme}: a question shows up in every part of the page`, options, async () => {
      const page = await open(url, { width, height, scheme });
      await connected(page);
      const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(dark.match(/\d+/g).map(Number)[0] < 80, scheme === "dark", dark);
      await ask(page, "What is a lighthouse?");
      assert.ok((await page.locator("#talk .a").last().textContent()).length > 5);
      assert.match(await text(page, "speed"), /\d+ tokens; the first after .*s/);
      // The request is shown by itself when it has ended; who asked stays where the answer is.
      await page.waitForFunction(() => /^Request \d+: \d+ steps/.test(document.getElementById("subject").textContent));
      await page.waitForFunction(() => /^Idle/.test(document.getElementById("verdict").textContent));
      assert.match(await text(page, "figures"), /^tokens \/s0prompt tokens \/s0running, waiting0, 0steps \/s0/); // what was is no speed of now
      assert.match(await text(page, "where"), /\d+ %/);
      assert.match(await text(page, "last"), /^Request \d+ took \d+ steps of .+s: .*layers 0–\d+ \d+ %/);
      assert.equal(await page.evaluate(() => document.activeElement.id), "question");
      assert.ok(await page.locator("#talk .a").last().isVisible());
      assert.equal(await page.evaluate(() => document.querySelector("#question").getBoundingClientRect().top < innerHeight), true, "the question's box went out of sight");
      await page.waitForFunction(() => /Hot(, of \d+ rows? counted yet)?: layer \d+ expert \d+/.test(document.getElementById("hot").textContent));
      assert.match(await text(page, "kv"), /blocks in use\d/);
      // What is out of sight is not drawn before it comes into sight.
      for (const id of ["experts", "charts", "requests", "time", "summary"]) {
        await page.locator(`#${id}`).scrollIntoViewIfNeeded();
        await page.waitForTimeout(100);
      }
      await page.waitForSelector("#rows tr", { state: "attached" });
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide <= room, `the page is ${wide} wide in ${room}`);
      await page.screenshot({ path: join(pictures, `page-${width}-${scheme}.png`), fullPage: true });
      await close(page);
    });
  }
}

test("under load it says in words who limits, and which experts are hot", options, async () => {
  await busy(url, 6, async () => {
    const page = await open(url);
    await connected(page);
    await page.waitForFunction(() => /busy \d+ %/.test(document.getElementById("verdict").textContent), null, { timeout: 60_000 });
    await page.waitForFunction(() => /^Hot experts: layer \d+ expert \d+ \(\d+ % of rows\)/.test(document.getElementById("hottest").textContent));
    await page.waitForTimeout(4000);
    console.log(`# ${await text(page, "verdict")} ${await text(page, "hottest")}`);
    assert.match(await text(page, "figures"), /running, waiting[1-9]/);
    await page.screenshot({ path: join(pictures, "page-load.png") });
    await close(page);
  });
});

test("everything can be done with the keyboard", options, async () => {
  const page = await open(url);
  await connected(page);
  await ask(page, "What is a bakery?");
  await page.waitForFunction(() => /^Request/.test(document.getElementById("subject").textContent));
  await page.locator("#time").screenshot({ path: join(pictures, "timeline.png") });
  // Tab reaches actors, the conversation, the time line, the heat map and the table.
  await page.evaluate(() => document.activeElement.blur());
  const reached = new Set();
  for (let i = 0; i < 80; i++) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("class") || document.activeElement.tagName));
  }
  for (const want of ["node", "talk", "question", "live", "steps", "lanes", "heat", "scroll"]) assert.ok(reached.has(want), `Tab does not reach ${want}: ${[...reached]}`);
  await page.focus(".node:nth-of-type(3)");
  await page.waitForFunction(() => /: busy \d+ %; .* messages a second/.test(document.getElementById("actor").textContent));
  await page.focus("#lanes");
  let before = await picture(page, "lanes");
  for (const key of ["+", "+", "ArrowRight", "ArrowLeft", "ArrowLeft", "-", "Home"]) {
    await page.keyboard.press(key);
    await page.waitForFunction((old) => document.getElementById("lanes").toDataURL() !== old, before);
    before = await picture(page, "lanes");
  }
  const told = new Set();
  for (let i = 0; i < 6; i++) {
    await page.keyboard.press(".");
    told.add(await text(page, "event"));
  }
  assert.equal(told.size, 6, [...told].join("\n"));
  assert.ok([...told].some((t) => /step \d+; .*row/.test(t)), [...told].join("\n"));
  await page.keyboard.press("Escape");
  assert.match(await text(page, "event"), /^Click a bar/);
  await page.focus("#heat");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  assert.match(await text(page, "expert"), /^Layer \d+, expert 0: .* times an even share/);
  await page.keyboard.press("Escape");
  assert.equal(await text(page, "expert"), "");
  await close(page);
});

test("mouse, wheel and fingers zoom and move the time line", options, async () => {
  const page = await open(url, { touch: true });
  await connected(page);
  await ask(page, "What is a river?");
  await page.waitForFunction(() => /^Request/.test(document.getElementById("subject").textContent));
  await page.locator("#lanes").scrollIntoViewIfNeeded();
  await page.focus("#lanes"); // the wheel is the page's before
  const box = await page.locator("#lanes").boundingBox();
  let before = await picture(page, "lanes");
  const changed = async (what) => {
    await page.waitForFunction((old) => document.getElementById("lanes").toDataURL() !== old, before, { timeout: 10_000 }).catch(() => assert.fail(`${what} changes nothing`));
    before = await picture(page, "lanes");
  };
  await page.mouse.move(box.x + 400, box.y + 60);
  await page.mouse.wheel(0, -400);
  await changed("the wheel");
  await page.mouse.down();
  await page.mouse.move(box.x + 300, box.y + 60, { steps: 4 });
  await page.mouse.up();
  await changed("dragging");
  await page.evaluate(() => {
    const c = document.getElementById("lanes");
    c.setPointerCapture = () => {};
    const r = c.getBoundingClientRect();
    const at = (type, id, x) => c.dispatchEvent(new PointerEvent(type, { pointerId: id, pointerType: "touch", clientX: r.left + x, clientY: r.top + 60, bubbles: true }));
    at("pointerdown", 11, 300);
    at("pointerdown", 12, 400);
    for (let x = 410; x <= 520; x += 10) at("pointermove", 12, x);
    at("pointerup", 11, 300);
    at("pointerup", 12, 520);
  });
  await changed("pinching");
  await page.click("#fit");
  await changed("All");
  await page.click("#lanes", { position: { x: 700, y: 32 } });
  assert.match(await text(page, "event"), /^Request \d+: /);
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  const file = JSON.parse(await readFile(await download.path(), "utf8"));
  assert.ok(file.traceEvents.filter((e) => e.ph === "X").length > 20);
  await close(page);
});

test("a running request can be cancelled in the table", options, async () => {
  const page = await open(url);
  await connected(page);
  const body = JSON.stringify({ prompt: "Once", max_tokens: 1900, ignore_eos: true, stream: true });
  const running = Array.from({ length: 6 }, async () => {
    const answer = await fetch(`${url}/v1/completions`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    return (await answer.text()).match(/"finish_reason":"\w+"|"error"/g)?.at(-1);
  });
  await page.locator("#requests").scrollIntoViewIfNeeded();
  const cancel = page.locator("#rows button", { hasText: "Cancel" }).locator("visible=true").first();
  await cancel.click();
  const ends = await Promise.all(running);
  assert.ok(ends.some((e) => e !== '"finish_reason":"length"'), `all six ran on to ${ends[0]}`);
  await close(page);
});

test("copies have a lane of their own, and what waits for them says so", options, async () => {
  const base = await copying();
  const first = await open(base); // what a first prompt takes is no picture of what comes
  await connected(first);
  await ask(first, "What is a lighthouse?");
  await close(first);
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    for (const scheme of ["light", "dark"]) {
      const page = await open(base, { width, height, scheme });
      await connected(page);
      await ask(page, "What is a lighthouse? Tell me all about the sea, the ships and the rocks around it.");
      await page.waitForFunction(() => /^Request \d+: \d+ steps/.test(document.getElementById("subject").textContent));
      assert.match(await text(page, "where"), /waiting for copies/);
      assert.match(await text(page, "kinds"), /experts copied.*the device waits for a copy/);
      assert.equal(await page.locator("#folded").isVisible(), false); // the device computes all
      await page.locator("#lanes").focus();
      for (let i = 0; i < 4; i++) await page.keyboard.press("+");
      let seen = "";
      for (let i = 0; i < 60 && !/copy: experts copied .* layer 2; [\d.]+ [KM]B/.test(seen); i++) {
        await page.keyboard.press(".");
        seen = await text(page, "event");
      }
      assert.match(seen, /^hostsim copy: experts copied for .*; step \d+; layer 2; [\d.]+ [KM]B/);
      await page.locator("#time").scrollIntoViewIfNeeded();
      await page.waitForTimeout(200);
      const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(wide <= room, `the page is ${wide} wide in ${room}`);
      await page.locator("#time").screenshot({ path: join(pictures, `copies-${width}-${scheme}.png`) });
      await close(page);
    }
  }
});

test("phases of many pools are folded until somebody asks for them", options, async () => {
  const page = await open(await fake());
  await connected(page);
  await page.waitForFunction(() => /3 steps/.test(document.getElementById("subject").textContent));
  const tall = () => page.evaluate(() => document.getElementById("lanes").clientHeight);
  assert.equal(await page.locator("#phases").isChecked(), false);
  assert.doesNotMatch(await text(page, "kinds"), /gate and up/);
  const folded = await tall();
  await page.locator("#phases").focus();
  await page.keyboard.press("Space");
  await page.waitForFunction((folded) => document.getElementById("lanes").clientHeight > folded, folded);
  assert.match(await text(page, "kinds"), /gate and up.*down/);
  await page.locator("#time").screenshot({ path: join(pictures, "phases.png") });
  await close(page);
});

test("a hidden tab is sent nothing", options, async () => {
  const base = await fake();
  const context = await browser.newContext();
  const page = await context.newPage();
  let frames = 0;
  page.on("websocket", (ws) => ws.on("framereceived", () => frames++));
  await page.goto(`${base}/trace`);
  await connected(page);
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await page.waitForTimeout(1000); // what was on its way
  frames = 0;
  await page.waitForTimeout(3000);
  assert.equal(frames, 0);
  await hide(false);
  await page.waitForTimeout(2000);
  assert.ok(frames >= 4, `${frames} frames after it was shown again`);
  await context.close();
});

test("30 frames a second beside 100 streams", options, async () => {
  const base = await fake();
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    const page = await open(base, { width, height });
    await connected(page);
    await page.selectOption("#steps", "10");
    await page.waitForFunction(() => /10 steps/.test(document.getElementById("subject").textContent));
    await page.waitForTimeout(1000);
    const times = await page.evaluate(() => new Promise((done) => {
      const at = [];
      const frame = (t) => {
        at.push(t);
        if (t - at[0] < 5000) requestAnimationFrame(frame); else done(at);
      };
      requestAnimationFrame(frame);
    }));
    const gaps = times.slice(1).map((t, i) => t - times[i]).sort((a, b) => a - b);
    const rate = 1000 * gaps.length / (times.at(-1) - times[0]);
    console.log(`# ${width} pixels: ${rate.toFixed(1)} frames a second, the longest ${gaps.at(-1).toFixed(0)} ms, 95 % within ${gaps[Math.floor(0.95 * gaps.length)].toFixed(0)} ms`);
    assert.ok(rate >= 30, `${rate} frames a second`);
    assert.match(await text(page, "verdict"), /Expert pool 1/);
    await page.screenshot({ path: join(pictures, `fake-${width}.png`) });
    await page.locator("#lanes").scrollIntoViewIfNeeded();
    await page.focus("#lanes");
    await page.locator("#lanes").click({ position: { x: width / 2, y: 80 } });
    const told = await text(page, "event");
    assert.doesNotMatch(told, /^Click a bar/);
    await page.waitForTimeout(2500); // the live view would have gone on twice
    assert.equal(await text(page, "event"), told);
    await close(page);
  }
});

test("a server with keys: the page asks for one, and uses it for all it does", options, async () => {
  const base = await fake("a key with ümlaut");
  const page = await open(base);
  await page.waitForSelector("#keys[open]");
  assert.ok(await page.locator("#wrong").isHidden());
  assert.equal(await text(page, "verdict"), "This server asks for an API key");
  await page.keyboard.type("another key");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#wrong:not([hidden])");
  await page.waitForSelector("#keys[open]"); // what is typed now takes the wrong one's place
  await page.keyboard.type("a key with ümlaut");
  await page.keyboard.press("Enter");
  await connected(page);
  await ask(page, "hello");
  assert.equal(await page.locator("#talk .a").last().textContent(), "A fake engine has no opinion.");
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save")]);
  assert.ok(JSON.parse(await readFile(await download.path(), "utf8")).traceEvents.length > 0);
  // The browser itself notes the refusals before the key.
  page.complaints = page.complaints.filter((c) => !/401/.test(c) && !/WebSocket connection/.test(c));
  await close(page);
});

test("the entry page leads inside", options, async () => {
  const page = await open(url);
  await page.goto(url);
  await page.click("a.button");
  await connected(page);
  await close(page);
});
