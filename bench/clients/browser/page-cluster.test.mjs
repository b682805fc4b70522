// The page of a cluster: the actors of all machines on one clock.
import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { busy, close, cluster, connected, open, options, pictures, text } from "./page.mjs";

test("a leader shows its workers: their layers, hops with waits and bytes, and their lanes", options, async () => {
  const base = await cluster();
  for (const [width, height] of [[1280, 900], [390, 844]]) {
    const page = await open(base, { width, height });
    await connected(page);
    const names = await page.locator(".rankname").allTextContents();
    assert.deepEqual(names, ["rank 0", "rank 1: host-a", "rank 2: host-b"]);
    assert.equal(await page.locator(".edge.hop").count(), 3);
    await busy(base, 4, async () => {
      await page.waitForFunction(() => [...document.querySelectorAll(".hopcost")].filter((e) => /^[\d.,]+ (µs|ms)$/.test(e.textContent)).length === 3);
      await page.waitForFunction(() => /^3 steps/.test(document.getElementById("subject").textContent) && /rank 2 layers/.test(document.getElementById("where").textContent));
      assert.match(await text(page, "kinds"), /hop.*the batch is in flight/);
      await page.uncheck("#live");
      await page.locator("#lanes").focus();
      const seen = new Set();
      for (let i = 0; i < 400 && seen.size < 3; i++) {
        await page.keyboard.press(".");
        const said = (await text(page, "event")).match(/^((?:rank \d )?hop): hop for .* step \d+; .*in flight for [\d.,]+ (?:µs|ms); [\d.,]+ [KM]?B /);
        if (said) seen.add(said[1]);
      }
      assert.deepEqual([...seen].sort(), ["hop", "rank 1 hop", "rank 2 hop"]);
      await page.screenshot({ path: join(pictures, `cluster-${width}.png`), fullPage: true });
    });
    const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide <= room, `the page is ${wide} wide in ${room}`);
    await close(page);
  }
});
