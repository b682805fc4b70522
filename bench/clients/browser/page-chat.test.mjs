// The chat of the page /trace: turns, Markdown, limits, and a model that is still loading.
import assert from "node:assert/strict";
import { join } from "node:path";
import test from "node:test";
import { ask, begun, close, connected, ended, open, options, piece, pictures, staged, text, url } from "./page.mjs";

const done = (page) => page.waitForFunction(() => !document.getElementById("send").disabled);
const says = (page, pattern) => page.waitForFunction((p) => new RegExp(p).test(document.getElementById("talk").innerText), pattern);

test("a conversation: several turns, a limit that is shown, going on, settings, a new one", options, async () => {
  const page = await open(url);
  const sent = [];
  page.on("websocket", (ws) => ws.on("framesent", ({ payload }) => {
    const m = JSON.parse(payload);
    if (m.type.startsWith("response.")) sent.push(m);
  }));
  await connected(page);
  assert.match(await text(page, "settings"), /Answers of at most 1,000 tokens/);
  await page.click("#settings summary");
  await page.fill("#limit", "6");
  assert.match(await text(page, "settings"), /Answers of at most 6 tokens/);
  await ask(page, "What is a lighthouse?");
  await says(page, "The answer ends here: it has reached the limit of 6 tokens");
  assert.match(await text(page, "speed"), /^6 tokens/);
  const begin = await page.locator("#talk .a").last().textContent();
  await page.click("#talk >> text=Continue");
  await done(page);
  const longer = await page.locator("#talk .a").last().textContent();
  assert.ok(longer.startsWith(begin) && longer.length > begin.length, `${begin} went on as ${longer}`);
  await page.fill("#limit", "40");
  await page.fill("#system", "You are short.");
  await page.fill("#temperature", "0");
  await ask(page, "And what is a bakery?");
  assert.equal(await page.locator("#talk .turn").count(), 2);
  await page.screenshot({ path: join(pictures, "chat.png") });
  assert.equal(sent[0].max_output_tokens, 6);
  assert.deepEqual([sent[1].continue_final_message, sent[1].input.at(-1)], [true, { role: "assistant", content: begin }]);
  assert.equal(typeof sent[2].previous_response_id, "string");
  assert.deepEqual([sent[2].input, sent[2].instructions, sent[2].temperature, sent[2].max_output_tokens], ["And what is a bakery?", "You are short.", 0, 40]);
  await page.click("#fresh");
  assert.equal(await page.locator("#talk .turn").count(), 0);
  await ask(page, "What is a river?");
  assert.equal(sent[3].previous_response_id, undefined);
  assert.deepEqual(sent[3].input, [{ role: "user", content: "What is a river?" }]);
  await close(page);
});

test("a question asked while the model loads waits for it", options, async () => {
  const stage = await staged({ loading: { verdict: { text: "The model is loading: reading weights, 45 %." }, loading: { phase: "reading weights", share: 0.45 }, flow: undefined } });
  const { page } = stage;
  assert.equal(await text(page, "verdict"), "The model is loading: reading weights, 45 %.");
  assert.equal(await page.locator("#progress").evaluate((p) => p.value), 0.45);
  assert.ok(await page.locator("#progress").isVisible());
  for (const id of ["pipeline", "time", "experts", "charts"]) assert.equal(await page.locator(`#${id}`).isVisible(), false, `${id} is empty and yet shown`);
  await page.fill("#question", "hello");
  await page.keyboard.press("Enter");
  await says(page, "The model is loading. Your question will be asked when it is loaded");
  await page.screenshot({ path: join(pictures, "loading.png") });
  assert.equal(stage.asked.length, 0);
  stage.push();
  assert.deepEqual((await stage.request(0)).input, [{ role: "user", content: "hello" }]);
  assert.equal(await page.locator("#progress").isVisible(), false);
  // The pipeline may be there before the model answers.
  stage.answer({ type: "error", status: 503, error: { code: "unavailable", message: "the model is loading" } });
  await stage.request(1);
  stage.answer(begun("r1"), piece("Hi."), ended("r1", 2));
  await done(page);
  assert.equal(await page.locator("#talk .a").textContent(), "Hi.");
  assert.equal(await page.locator("#talk .e").count(), 0);
  await close(page);
});

test("while an answer is written the server's tokens are counted, not the pieces", options, async () => {
  const stage = await staged();
  const { page } = stage;
  await page.fill("#question", "hello");
  await page.keyboard.press("Enter");
  await stage.request(0);
  stage.answer(begun("r1"), piece("a"), piece("b"));
  const row = { id: 5, name: "r1", phase: "decode", prompt: 3, cached: 0, generated: 29, most: 100, age: 1, waited: 0, to_first: 0.25, per_token: 0.02, mine: true };
  stage.state({ requests: [row] });
  await page.waitForFunction(() => document.getElementById("speed").textContent === "29 tokens so far; the first after 250 ms; 50 a second");
  // Stop ends it.
  await page.click("#stop");
  assert.deepEqual(await stage.request(1), { type: "response.cancel", response_id: "r1" });
  stage.answer(ended("r1", 31, "cancelled"));
  await done(page);
  await says(page, "Stopped\\.");
  assert.match(await text(page, "speed"), /^31 tokens; /);
  await close(page);
});

test("a lost connection and a forgotten answer lose nothing of the conversation", options, async () => {
  const stage = await staged();
  const { page } = stage;
  const say = async (question) => {
    await page.fill("#question", question);
    await page.keyboard.press("Enter");
  };
  await say("one");
  await stage.request(0);
  stage.answer(begun("r1"), piece("First."), ended("r1", 2));
  await done(page);
  await say("two");
  assert.deepEqual([(await stage.request(1)).previous_response_id, stage.asked[1].input], ["r1", "two"]);
  stage.answer({ type: "error", error: { code: "previous_response_not_found", message: "no such response" } });
  const all = [{ role: "user", content: "one" }, { role: "assistant", content: "First." }, { role: "user", content: "two" }];
  const again = await stage.request(2);
  assert.deepEqual([again.previous_response_id, again.input], [undefined, all]);
  stage.answer({ type: "error", error: { code: "overloaded", message: "too many requests" } });
  await says(page, "too many requests");
  await page.click("text=Ask again");
  assert.deepEqual((await stage.request(3)).input, all);
  stage.answer(begun("r2"), piece("Second."), ended("r2", 2));
  await done(page);
  await close(page);
});

test("answers are Markdown, with code to be copied", options, async () => {
  const stage = await staged({ permissions: ["clipboard-read", "clipboard-write"] });
  const { page } = stage;
  await page.fill("#question", "first line");
  await page.focus("#question");
  await page.keyboard.press("End");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("second line");
  await page.keyboard.press("Enter");
  assert.equal((await stage.request(0)).input[0].content, "first line\nsecond line");
  const source = "# Title\n\nSome **bold**, *soft* and `x < 1`.\n\n```go\nfunc main() {\n\tprintln(\"<b>\")\n}\n```\n\n1. one\n2. two\n   - inner\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\nSee [the site](https://example.org/a_(b)) or https://example.org/x.\n\n~~~\n" + "long ".repeat(60) + "\n~~~\n\n" + "w".repeat(300);
  stage.answer(begun("r1"), ...source.match(/[^]{1,7}/g).map(piece), ended("r1", 60));
  await done(page);
  const a = page.locator("#talk .a");
  assert.equal(await a.locator("h3").textContent(), "Title");
  assert.deepEqual([await a.locator("strong").textContent(), await a.locator("em").textContent(), await a.locator("p code").textContent()], ["bold", "soft", "x < 1"]);
  const code = "func main() {\n\tprintln(\"<b>\")\n}";
  assert.equal(await a.locator("pre code").first().textContent(), code);
  assert.equal(await a.locator("ol > li").count(), 2);
  assert.equal(await a.locator("ol ul li").textContent(), "inner");
  assert.deepEqual(await a.locator("td").allTextContents(), ["1", "2"]);
  assert.equal(await a.locator("blockquote").textContent(), "said");
  assert.deepEqual(await a.locator("a").evaluateAll((all) => all.map((x) => [x.getAttribute("href"), x.rel])), [["https://example.org/a_(b)", "noopener noreferrer nofollow"], ["https://example.org/x", "noopener noreferrer nofollow"]]);
  await page.screenshot({ path: join(pictures, "markdown.png") });
  await page.setViewportSize({ width: 390, height: 844 });
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "an answer makes the page wide");
  await page.screenshot({ path: join(pictures, "markdown-390.png") });
  await page.locator("[aria-label='Copy code']").first().click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), code);
  await page.click("[aria-label='Copy answer']");
  await page.waitForFunction(async (want) => await navigator.clipboard.readText() === want, source);
  await close(page);
});

test("an answer cannot put anything but text, code and links into the page", options, async () => {
  const stage = await staged();
  const { page } = stage;
  const found = await page.evaluate(async () => {
    const { markdown } = await import("/trace/assets/markdown.js");
    const render = (source) => {
      const host = document.createElement("div");
      host.append(markdown(source));
      return host;
    };
    const hostile = [
      "<img src=x onerror=alert(1)><script>alert(1)</script>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](data:text/html,hi)", "[x](\u0001javascript:alert(1))",
      "![x](https://example.org/pixel.png)", "[x](//example.org)", "[x](/trace)", "`<b>`", "```<b>\n<script>\n```", "[<b>x</b>](https://example.org \"<i>\")", "<a href=\"javascript:alert(1)\">x</a>",
      "[[[[".repeat(3000), "*".repeat(20000), "**a ".repeat(5000), "`".repeat(9999), "> ".repeat(5000), "- ".repeat(3000), "  ".repeat(9000) + "#", "|".repeat(9000) + "\n" + "|-".repeat(5000), "[](".repeat(3000), "_a_".repeat(3000),
    ];
    // And anything else: pieces of Markdown and HTML in any order.
    const parts = ["**", "*", "_", "`", "```\n", "~~~", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|-|\n", "[a](", ")", "https://example.org", "javascript:", "<b>", "&lt;", "\\", "  ", "x", "é", "😀"];
    let seed = 7;
    const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let i = 0; i < 1500; i++) hostile.push(Array.from({ length: random(40) }, () => parts[random(parts.length)]).join(""));
    const allowed = /^(P|BR|HR|H[3-6]|STRONG|EM|DEL|CODE|PRE|DIV|OL|UL|LI|BLOCKQUOTE|TABLE|THEAD|TBODY|TR|TH|TD|A|SPAN)$/;
    const attributes = /^(href|target|rel|class|start|tabindex|data-language)$/;
    const bad = [];
    let slowest = 0;
    for (const source of hostile) {
      const from = performance.now();
      const host = render(source);
      slowest = Math.max(slowest, performance.now() - from);
      for (const e of host.querySelectorAll("*")) {
        const names = [...e.attributes].map((x) => x.name);
        if (!allowed.test(e.tagName) || !names.every((n) => attributes.test(n))) bad.push(`${e.tagName} ${names} from ${source.slice(0, 60)}`);
        if (e.tagName === "A" && !/^(https?|mailto):/.test(e.href)) bad.push(`a link to ${e.href}`);
      }
    }
    return { bad, slowest, kept: render("<b>a</b> & \\*b\\* 2 * 3 snake_case_name").textContent };
  });
  assert.deepEqual(found.bad, []);
  assert.equal(found.kept, "<b>a</b> & *b* 2 * 3 snake_case_name");
  console.log(`# the slowest Markdown took ${found.slowest.toFixed(0)} ms`);
  await close(page);
});
