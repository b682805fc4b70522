// Parts of the page /trace by themselves: edges, order, explanations, what has gone, print.
import assert from "node:assert/strict";
import { join } from "node:path";
import test from "node:test";
import { ask, busy, close, connected, dots, open, options, ownFigures, pictures, staged, text, url } from "./page.mjs";

for (const width of [1280, 390]) {
  test(`${width} pixels: edges have arrows and keep apart`, options, async () => {
    const { page } = await staged({ width, height: 900 });
    await connected(page);
    const edges = await page.locator("#topology .edge").evaluateAll((all) => all.map((e) => {
      const points = Array.from({ length: 81 }, (_, i) => e.getPointAtLength(e.getTotalLength() * i / 80)).map(({ x, y }) => [x, y]);
      return { way: `${e.dataset.from} ${e.dataset.to}`, arrow: getComputedStyle(e).markerEnd, points };
    }));
    assert.ok(edges.length > 8);
    for (const e of edges) assert.match(e.arrow, /url\(.*#arrow/, e.way);
    const ways = edges.map((e) => e.way);
    assert.ok(ways.includes("sample stream") && !ways.includes("schedule stream"), `text out is fed by ${ways}`);
    for (const [i, a] of edges.entries()) {
      for (const b of edges.slice(i + 1)) {
        const near = Math.min(...a.points.flatMap(([x, y]) => b.points.map(([u, v]) => Math.hypot(x - u, y - v))));
        assert.ok(near > 5, `${a.way} and ${b.way} come within ${near.toFixed(1)} of each other`);
      }
    }
    await page.locator("#pipeline").screenshot({ path: join(pictures, `pipeline-${width}.png`) });
    await close(page);
  });
}

test("the parts stand in order: on a phone the question first, and the field at the bottom of its card", options, async () => {
  for (const [width, order] of [[390, ["chat", "summary", "pipeline", "time"]], [1280, ["summary", "pipeline", "time", "experts"]]]) {
    const page = await open(url, { width, height: 900 });
    await connected(page);
    const tops = await page.evaluate((ids) => ids.map((id) => document.getElementById(id).getBoundingClientRect().top), order);
    assert.deepEqual(tops, [...tops].sort((a, b) => a - b), `${width}: ${order} at ${tops}`);
    const [card, form, last] = await page.evaluate(() => ["chat", "ask", "settings"].map((id) => document.getElementById(id).getBoundingClientRect().bottom));
    assert.ok(card - last < 20 && card - form < 60, `${width}: the box ends at ${card}, its field at ${form}`);
    if (width === 390) assert.ok(await page.evaluate(() => document.getElementById("question").getBoundingClientRect().bottom < innerHeight), "the question is not in sight");
    await close(page);
  }
});

test("boxes, tiles and words are explained by mouse, touch and keyboard", options, async () => {
  const page = await open(url, { touch: true });
  await connected(page);
  const titles = await page.locator(".node > title").allTextContents();
  assert.equal(titles.length, await page.locator(".node").count());
  for (const t of titles) assert.match(t, /^.+: \w+s .+/);
  const words = await page.locator("#words dt").allTextContents();
  for (const want of ["credit", "split", "merge", "head", "row"]) assert.ok(words.includes(want), want);
  await page.waitForSelector("#figures > div");
  for (const tile of await page.locator("#figures > div").all()) {
    const meaning = await tile.getAttribute("title");
    assert.ok(meaning.length > 20);
    await tile.focus();
    assert.ok((await text(page, "meaning")).endsWith(meaning));
  }
  await page.locator("#figures > div").first().tap();
  assert.match(await text(page, "meaning"), /^tokens \/s: /);
  // A chosen box has one frame.
  await page.locator(".node").nth(2).click();
  assert.match(await text(page, "actor"), /^embedding: \d+ % of .* It turns each token into a row\./);
  const frames = await page.locator(".node").nth(2).evaluate((g) => [getComputedStyle(g).outlineStyle, getComputedStyle(g.querySelector(".box")).strokeWidth, document.querySelectorAll(".node.chosen").length]);
  assert.deepEqual(frames, ["none", "3px", 1]);
  // The table says what its columns are.
  const heads = await page.locator("#requests th").allTextContents();
  assert.ok(heads.includes("Duration") && heads.includes("Time per token") && !heads.includes("Age"), `${heads}`);
  await close(page);
});

test("a colour means one thing", options, async () => {
  const page = await open(url);
  await connected(page);
  const [kinds, vars] = await page.evaluate(async () => {
    const { kinds } = await import("/trace/assets/format.js");
    const style = getComputedStyle(document.documentElement);
    return [kinds, Object.fromEntries(["warm", "hot", "accent", "kept", "bad"].map((n) => [n, style.getPropertyValue(`--${n}`).trim()]))];
  });
  assert.notEqual(kinds.prefill[1], kinds.experts[1]);
  assert.equal(new Set(Object.values(vars)).size, 5, JSON.stringify(vars));
  await close(page);
});

test("what is out of sight is drawn, for prints and pictures of the whole page; the charts begin before the viewer", options, async () => {
  await busy(url, 2, async () => {
    await new Promise((r) => setTimeout(r, 4000)); // the page is hidden
    let history;
    const page = await open(url, { width: 390, height: 500, before: (page) => page.on("websocket", (ws) => ws.on("framereceived", ({ payload }) => {
      const m = JSON.parse(payload);
      if (m.type === "snapshot") history ??= m.history;
    })) });
    await connected(page);
    assert.ok(history.length >= 3 && history.some((p) => p[1] > 0), JSON.stringify(history));
    await page.waitForSelector("#rows tr", { state: "attached" });
    for (const canvas of await page.locator("#charts canvas, #heat, #lanes").all()) {
      for (let i = 0; await canvas.evaluate(dots) < 400; i++) {
        assert.ok(i < 100, `${await canvas.evaluate((c) => c.id || c.ariaLabel)} is empty`);
        await page.waitForTimeout(50);
      }
    }
    // A print draws at once what is due.
    const chart = page.locator("#charts canvas").first();
    await chart.evaluate((c) => {
      c.getContext("2d").clearRect(0, 0, c.width, c.height);
      dispatchEvent(new Event("beforeprint"));
    });
    assert.ok(await chart.evaluate(dots) > 400, "a print has empty charts");
    await close(page);
  });
});

test("the last request's figures stay, and nothing moves", options, async () => {
  const page = await open(url);
  await connected(page);
  await ask(page, "What is a lighthouse?");
  await ownFigures(page);
  const shown = () => page.evaluate(() => [...document.querySelectorAll(".node .share"), document.getElementById("verdict"), document.getElementById("last")].map((e) => e.textContent));
  const before = await shown();
  assert.ok(before.some((t) => /^[1-9]\d? %$/.test(t)), `${before}`);
  await page.waitForTimeout(3000); // what was live would have faded
  assert.deepEqual(await shown(), before);
  // Who comes later sees them too.
  const late = await open(url);
  await connected(late);
  await late.waitForFunction((want) => document.getElementById("last").textContent === want, before.at(-1));
  assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
  await close(late);
  await close(page);
});

test("what has left the rings is shown as gone", options, async () => {
  const stage = await staged();
  const { page } = stage;
  // Steps 1837 to 1900 of request 7, of which the pool's ring has the last quarter.
  const events = [], paths = [];
  for (let i = 0; i < 64; i++) {
    const at = 1e6 + i * 1e6;
    events.push([0, "group", 1837 + i, 0, at, at, at + 6e5, 1, -1, 0, 0, 0, 0, 0]);
    if (i >= 48) events.push([1, "experts", 1837 + i, 0, at + 6e5, at + 6e5, at + 9e5, 1, 3, 0, 0, 0, 0, 0]);
    paths.push([1837 + i, 0, events.length - 1, at, at + 6e5, false, "", false]);
  }
  const where = { of: "request", id: 7, steps: 64, all: 1900, each: 1e6, parts: [{ lane: "group0", share: 0.6 }, { lane: "pool0", share: 0.3 }, { lane: "", wait: "message", share: 0.1 }] };
  stage.events = (m) => ({ type: "events", for: m.type, id: m.id, lanes: ["group0", "pool0"], devices: ["host"], events, paths, gaps: [], riders: [], kept: [0, 1e6 + 48e6], where });
  const row = { id: 7, name: "", phase: "ended", prompt: 3, cached: 0, generated: 1900, most: 2000, age: 2, waited: 0.1, to_first: 0.25, per_token: 0.001, mine: true };
  stage.state({ requests: [row], where, verdict: { text: "Idle: no request is running. The group of layers 0–5 took the largest part of the last request, 60 %." } });
  await page.locator("#requests").scrollIntoViewIfNeeded();
  await page.click("text=Follow");
  await page.waitForFunction(() => document.getElementById("subject").textContent === "Request 7: 1,900 steps, the last 64 of them 1 ms each. The critical path is underlined. The first 1,836 steps are no longer kept.");
  assert.equal(await text(page, "last"), "Request 7 took 1,900 steps; each of the last 64 took 1 ms: layers 0–5 60 %, expert pool 0 30 %, waiting 10 %.");
  assert.match(await text(page, "kinds"), /hatched: no longer kept/);
  const gone = /^The messages that were here are no longer kept/;
  const click = async (x, y) => {
    await page.keyboard.press("Escape");
    await page.click("#lanes", { position: { x, y } });
    return text(page, "event");
  };
  assert.match(await click(400, 20 + 12), gone); // the request's own bar
  assert.match(await click(400, 20 + 2 * 24 + 12), gone); // the pool
  assert.doesNotMatch(await click(400, 20 + 24 + 12), gone); // the group has all
  assert.doesNotMatch(await click(1150, 20 + 2 * 24 + 12), gone); // the pool, later
  await page.locator("#time").screenshot({ path: join(pictures, "no-longer-kept.png") });
  await close(page);
});
