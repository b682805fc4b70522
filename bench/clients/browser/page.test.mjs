// The page /trace in a headless browser: against a running server, whose address is in
// KRATER_URL, and beside 100 streams of a fake pipeline. Pictures are left in
// KRATER_PICTURES (build/page), to be looked at.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import test from "node:test";
import { ask, browser, busy, close, connected, copying, dots, fake, open, options, ownFigures, picture, pictures, text, url } from "./page.mjs";

/** The sentence, the line below it, the boxes and the bar have the same figures, those of the last request. */
async function sameFigures(page) {
  await ownFigures(page);
  const [, name, most] = (await text(page, "verdict")).match(/^Idle: no request is running. (.+) took the largest part of the last request, (\d+) %\.$/);
  const id = (await text(page, "subject")).match(/^Request (\d+): /)[1];
  const line = await text(page, "last");
  const [, own, first] = line.match(new RegExp(`^Request ${id} took \\d+ steps of .+s: (.+?) (\\d+) %[,.]`)) ?? assert.fail(line);
  assert.equal(first, most);
  assert.ok(name.toLowerCase().includes(own), `${name} in the sentence, ${own} in the line`);
  assert.ok((await text(page, "where")).startsWith(`${most} % ${own}`), await text(page, "where"));
  const boxes = await page.locator(".node").evaluateAll((all) => all.map((g) => Number(g.querySelector(".share").textContent.match(/^(\d+) %/)?.[1] ?? 0)));
  if (!own.startsWith("waiting")) assert.equal(Math.max(...boxes), Number(most));
  const sum = boxes.reduce((a, b) => a + b);
  assert.ok(sum > 0 && sum <= 103, `the boxes add up to ${sum} %`);
  assert.match(await text(page, "figures"), /^tokens \/s[1-9][\d,.]*prompt tokens \/s[1-9].*first token[\d.]+ .*running, waiting0, 0/);
}

/** Waits until all parts are drawn, also those that are out of sight. */
async function drawn(page) {
  await page.waitForSelector("#rows tr", { state: "attached" });
  for (const canvas of await page.locator("canvas").all()) {
    for (let i = 0; await canvas.evaluate(dots) < 400; i++) {
      assert.ok(i < 100, `${await canvas.evaluate((c) => c.id || c.ariaLabel)} is empty`);
      await page.waitForTimeout(50);
    }
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
      await sameFigures(page);
      assert.equal(await page.evaluate(() => document.activeElement.id), "question");
      assert.ok(await page.locator("#talk .a").last().isVisible());
      assert.equal(await page.evaluate(() => document.querySelector("#question").getBoundingClientRect().top < innerHeight), true, "the question's box went out of sight");
      await page.waitForFunction(() => /^(Hot: layer \d+ expert \d+|Too few rows|No row)/.test(document.getElementById("hot").textContent));
      assert.match(await text(page, "kv"), /blocks in use\d/);
      await drawn(page); // without being scrolled to
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
    await page.waitForFunction(() => /takes .*\d+ %/.test(document.getElementById("verdict").textContent), null, { timeout: 60_000 });
    await page.waitForFunction(() => /^Hot experts: layer \d+ expert \d+ \(\d+ % of its rows\)/.test(document.getElementById("hottest").textContent));
    await page.waitForTimeout(4000);
    console.log(`# ${await text(page, "verdict")} ${await text(page, "hottest")}`);
    assert.match(await text(page, "figures"), /running, waiting[1-9]/);
    assert.equal(await text(page, "scope"), "Now");
    assert.match(await text(page, "last"), /^(Each of the last \d+ steps|The last step) took/);
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
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.classList[0] || document.activeElement.tagName));
  }
  for (const want of ["node", "talk", "question", "live", "steps", "lanes", "heat", "scroll"]) assert.ok(reached.has(want), `Tab does not reach ${want}: ${[...reached]}`);
  await page.focus(".node:nth-of-type(3)");
  await page.waitForFunction(() => /: \d+ % of the last request's time\. It .* busy \d+ % .* messages a second/.test(document.getElementById("actor").textContent));
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
  await first.waitForFunction(() => /^Request/.test(document.getElementById("last").textContent));
  // Of so few rows nothing is said about experts.
  assert.equal(await text(first, "hottest"), "");
  assert.match(await text(first, "hot"), /^(Too few rows were counted to name hot experts: \d+ of 50|No row was counted yet)/);
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

test("phases of many pools are folded until the viewer asks for them", options, async () => {
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
  await page.waitForTimeout(1000); // frames in flight
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
    await page.screenshot({ path: join(pictures, `fake-${width}.png`), fullPage: true, clip: { x: 0, y: 0, width, height: width < 600 ? 1400 : height } });
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
