// The time line: a lane an actor, a bar a message, with the critical path of each step and
// what actors waited for.
import { bytes, colour, element, kinds, nanos, number, onFrame, palette, sharpen, swatch } from "./format.js";
import { PHASES_SHOWN, explained, laneTitle, named, ofPhases, process, sortLanes } from "./lanes.js";
import { bar, subject } from "./where.js";

// The fields of an event, as the server sends it.
const LANE = 0, KIND = 1, BATCH = 2, REQUEST = 3, SENT = 4, FROM = 5, TO = 6, ROWS = 7, LAYER = 8, PARTS = 9, BYTES = 10, MICRO = 11, DEVICE = 12, OTHERS = 13;
const TOP = 20, BAR = 15, LANEHEIGHT = 24;
const LIVE = 1000; // ms between two looks

const $ = (id) => document.getElementById(id);

export class TimeLine {
  constructor(canvas, send) {
    this.canvas = canvas;
    this.send = send;
    this.nodes = [];
    this.data = null;
    this.request = 0; // followed; 0: the last steps
    this.view = null; // [from, to] in ns
    this.hint = $("event").textContent; // while nothing is chosen
    this.redraw = onFrame(canvas, () => this.draw());
    this.listen();
    this.legend();
    setInterval(() => { if ($("live").checked && !document.hidden) this.ask(); }, LIVE);
  }

  ask() {
    this.send(this.request ? { type: "request", id: this.request } : { type: "steps", n: Number($("steps").value) });
  }

  /** Shows one request from its arrival to its last token, and nothing else of the page moves. */
  show(id) {
    this.request = id;
    this.view = null;
    this.unchoose();
    $("live").checked = false;
    this.ask();
  }

  /** Shows one request and goes there. */
  follow(id) {
    this.show(id);
    $("time").scrollIntoView({ block: "start" });
    this.canvas.focus({ preventScroll: true });
  }

  take(m) {
    if ((m.for === "request") !== (this.request > 0) || (m.for === "request" && m.id !== this.request)) return;
    this.data = m;
    m.events.forEach((e, i) => { e.index = i; });
    this.arrange();
    if (!m.events.length) {
      $("subject").textContent = this.request ? `The trace no longer has request ${this.request}.` : "No step yet: ask the model something.";
      this.whole = null;
    } else {
      const from = Math.min(...m.events.map((e) => e[FROM])), to = Math.max(...m.events.map((e) => e[TO]));
      const pad = Math.max(1, (to - from) * 0.01);
      this.whole = [from - pad, to + pad];
    }
    if (!this.view || $("live").checked) {
      this.view = this.whole && [...this.whole];
      this.unchoose();
    }
    this.explain();
    this.legend();
    this.redraw();
  }

  /** Gives every lane its row; a followed request has one of its own. */
  arrange() {
    const used = new Set(this.data.events.filter((e) => e[KIND] !== "request" && e[KIND] !== "prefill").map((e) => e[LANE]));
    this.lanes = sortLanes([...used].map((lane) => ({ lane, name: this.data.lanes[lane] })), this.nodes);
    this.fold();
    this.requests = this.data.events.filter((e) => e[KIND] === "request" || e[KIND] === "prefill");
    this.row = new Map();
    const extra = this.requests.length || (this.request && this.lanes.length) ? 1 : 0;
    this.extra = extra;
    this.lanes.forEach((l, i) => this.row.set(l.lane, i + extra));
    this.height = TOP + (this.lanes.length + extra) * LANEHEIGHT + 6;
    this.visible = this.data.events.map((e) => (e[KIND] === "request" || e[KIND] === "prefill" ? 0 : this.row.get(e[LANE])));
    // A whole request lies behind its prompt, which is a part of it.
    const behind = (i) => this.data.events[i][KIND] !== "request";
    this.order = this.data.events.map((_, i) => i).sort((a, b) => behind(a) - behind(b));
    this.onPath = new Set(this.data.paths.filter((p) => !p[5]).map((p) => p[2]));
  }

  /** Leaves lanes of phases out where they are many, until the viewer asks for them. */
  fold() {
    const phases = this.lanes.filter((l) => ofPhases(l.name)).length;
    $("folded").hidden = !phases;
    if (!this.asked) $("phases").checked = phases <= PHASES_SHOWN;
    if (!$("phases").checked) this.lanes = this.lanes.filter((l) => !ofPhases(l.name));
  }

  /** Where the time of the steps went, in one bar and in words. */
  explain() {
    const { where, paths, events, older } = this.data;
    let longest = [0, ""];
    for (const [, , , from, to, wait, why] of paths) {
      if (wait && to - from > longest[0]) longest = [to - from, why];
    }
    bar($("where"), where, this.nodes, longest[0] > 0.05 * where?.each ? `longest wait ${nanos(longest[0])}: ${named(longest[1], this.nodes)}` : "");
    if (!where) {
      if (events.length) $("subject").textContent = this.request ? `Request ${this.request}` : "";
      return;
    }
    const words = [`${subject(where)}.`, "The critical path is underlined."];
    const gone = where.all - new Set(events.map((e) => e[BATCH]).filter(Boolean)).size;
    if (older || gone > 0) words.push(`${older ? "What was before" : `The first ${number(gone)} steps`} is no longer kept.`.replace("steps is", "steps are"));
    $("subject").textContent = words.join(" ");
  }

  legend() {
    const shown = explained(new Set(this.data?.events.filter((e) => this.row.has(e[LANE])).map((e) => e[KIND])));
    const key = [...shown.map(([k]) => k), this.request > 0].join();
    if (key === this.explained) return;
    this.explained = key;
    $("kinds").replaceChildren(...shown.map(([k, name]) => element("span", {}, swatch(colour(k)), name)),
      element("span", {}, "thin line: the message waits"), element("span", {}, "grey: the actor waits"),
      ...(this.request ? [element("span", {}, "hatched: no longer kept")] : []),
      ...(shown.some(([k]) => k === "hop") ? [element("span", {}, "thin line before a hop: the batch is in flight")] : []),
      ...(shown.some(([k]) => k.startsWith("copy")) ? [element("span", {}, "pale: the device waits for a copy")] : []));
  }

  get margin() {
    const narrow = this.canvas.clientWidth < 600 ? 74 : 104;
    return this.lanes?.some((l) => process(l.name)[0]) ? 1.4 * narrow : narrow;
  }

  x(ns) {
    return this.margin + (ns - this.view[0]) / (this.view[1] - this.view[0]) * (this.width - this.margin);
  }

  ns(x) {
    return this.view[0] + (x - this.margin) / (this.width - this.margin) * (this.view[1] - this.view[0]);
  }

  draw() {
    const { g, width, height } = sharpen(this.canvas, this.height ?? 120);
    this.width = width;
    if (!this.data || !this.view) return;
    const c = palette();
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    this.axis(g, c, height);
    g.save();
    g.beginPath();
    g.rect(this.margin, 0, width - this.margin, height);
    g.clip();
    this.drawGaps(g, c);
    this.drawLost(g, c);
    this.drawEvents(g, c);
    this.drawPaths(g, c);
    g.restore();
    this.labels(g, c);
  }

  axis(g, c, height) {
    const span = this.view[1] - this.view[0];
    const room = (this.width - this.margin) / 90;
    const raw = span / Math.max(1, room);
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((m) => m * unit >= raw) * unit;
    const zero = this.whole[0];
    g.fillStyle = c.soft;
    g.strokeStyle = c.line;
    g.lineWidth = 1;
    for (let t = Math.ceil((this.view[0] - zero) / step) * step; t <= this.view[1] - zero; t += step) {
      const x = Math.round(this.x(zero + t)) + 0.5;
      if (x < this.margin) continue;
      g.beginPath();
      g.moveTo(x, TOP - 4);
      g.lineTo(x, height);
      g.stroke();
      g.fillText(nanos(Math.round(t)), x + 3, TOP / 2);
    }
  }

  labels(g, c) {
    g.fillStyle = c.text;
    const put = (text, row) => g.fillText(text, 2, TOP + row * LANEHEIGHT + LANEHEIGHT / 2, this.margin - 6);
    if (this.extra) put("request", 0);
    for (const l of this.lanes) put(laneTitle(l.name, this.nodes), this.row.get(l.lane));
  }

  drawGaps(g, c) {
    for (const [lane, from, to, cause, why] of this.data.gaps) {
      const row = this.row.get(lane);
      if (row === undefined || to < this.view[0] || from > this.view[1]) continue;
      const x = this.x(from), w = this.x(to) - x;
      if (w < 3) continue;
      const y = TOP + row * LANEHEIGHT + (LANEHEIGHT - BAR) / 2;
      g.fillStyle = cause === "copy" ? colour("copy wait") : c.cold;
      g.globalAlpha = cause === "idle" ? 0.5 : cause === "copy" ? 0.3 : 1;
      g.fillRect(x, y, w, BAR);
      g.globalAlpha = 1;
      const left = Math.max(x, this.margin), room = Math.min(x + w, this.width) - left;
      if (room > 90 && cause !== "idle") {
        g.fillStyle = cause === "copy" ? c.text : c.soft;
        const text = clip(g, named(why, this.nodes), room - 8);
        g.fillText(text, left + 4, y + BAR / 2 + 0.5);
      }
    }
  }

  /** Where lanes have forgotten what was: hatched until the oldest event that is still there. */
  drawLost(g, c) {
    this.lost = null;
    if (!this.request) return;
    const lost = this.lanes.filter((l) => this.data.kept[l.lane] > this.whole[0]).map((l) => [this.row.get(l.lane), this.data.kept[l.lane]]);
    if (!this.requests.some((e) => e[KIND] === "request")) lost.push([0, this.whole[1]]);
    this.lost = lost;
    g.font = "11px system-ui, sans-serif";
    for (const [row, until] of lost) {
      const x = Math.max(this.margin, this.x(this.whole[0])), w = this.x(until) - x;
      if (w < 2) continue;
      const y = TOP + row * LANEHEIGHT + (LANEHEIGHT - BAR) / 2;
      g.strokeStyle = c.line;
      g.lineWidth = 1;
      g.beginPath();
      for (let at = x - BAR; at < x + w; at += 8) {
        g.moveTo(Math.max(at, x), y + BAR - Math.max(0, x - at));
        g.lineTo(Math.min(at + BAR, x + w), y + Math.max(0, at + BAR - x - w));
      }
      g.stroke();
      const text = clip(g, "no longer kept", w - 8);
      if (!text) continue;
      g.fillStyle = c.panel;
      g.fillRect(x + 3, y, g.measureText(text).width + 6, BAR);
      g.fillStyle = c.soft;
      g.fillText(text, x + 6, y + BAR / 2 + 0.5);
    }
  }

  drawEvents(g, c) {
    const list = this.data.events;
    for (const i of this.order) {
      const e = list[i], row = this.visible[i];
      if (row === undefined || e[TO] < this.view[0] || e[FROM] > this.view[1]) continue;
      const y = TOP + row * LANEHEIGHT + (LANEHEIGHT - BAR) / 2;
      const x = this.x(e[FROM]), w = Math.max(1, this.x(e[TO]) - x);
      const shade = colour(e[KIND]);
      const stands = e[KIND] === "copy wait"; // drawn among the gaps
      if (e[SENT] > 0 && e[SENT] < e[FROM] && x - this.x(e[SENT]) > 2) {
        g.fillStyle = shade;
        g.fillRect(this.x(e[SENT]), y + BAR / 2 - 1, x - this.x(e[SENT]), 2);
      }
      if (!stands) {
        g.fillStyle = shade;
        g.fillRect(x, y, w, BAR);
      }
      if (w > 34 && !stands) {
        const prompt = e[KIND] === "request" && this.requests.find((p) => p[KIND] === "prefill" && p[REQUEST] === e[REQUEST]);
        const left = Math.max(x, this.margin, prompt ? this.x(prompt[TO]) : 0);
        g.fillStyle = "#ffffff";
        g.fillText(clip(g, word(e), Math.min(x + w, this.width) - left - 6), left + 3, y + BAR / 2 + 0.5);
      }
      if (i === this.chosen) {
        g.strokeStyle = c.mark;
        g.lineWidth = 2;
        g.strokeRect(x - 1, y - 1, w + 2, BAR + 2);
      }
    }
  }

  drawPaths(g, c) {
    const shown = this.data.paths.filter((p) => p[4] >= this.view[0] && p[3] <= this.view[1] && this.row.has(p[1]));
    const under = new Path2D(), between = new Path2D();
    // From lane to lane, as long as that leaves something to see.
    const sparse = shown.length * 5 < this.width;
    let last = null;
    for (const [batch, lane, , from, to, wait] of shown) {
      const y = TOP + this.row.get(lane) * LANEHEIGHT + LANEHEIGHT - 2.5;
      const a = this.x(from), b = this.x(to);
      if (sparse && last?.batch === batch && last.y !== y) {
        between.moveTo(a, last.y);
        between.lineTo(a, y);
      }
      under.moveTo(a, y);
      under.lineTo(Math.max(b, a + (wait ? 0 : 1)), y);
      last = { batch, y };
    }
    g.strokeStyle = c.mark;
    g.lineWidth = 2;
    g.stroke(under);
    g.lineWidth = 1;
    g.globalAlpha = 0.45;
    g.stroke(between);
    g.globalAlpha = 1;
  }

  /** The event at a point of the picture: -1 for none, or a gap. */
  at(x, y) {
    const row = Math.floor((y - TOP) / LANEHEIGHT);
    let best = -1, near = 4;
    this.data?.events.forEach((e, i) => {
      if (this.visible[i] !== row) return;
      const a = this.x(e[FROM]), b = Math.max(a + 1, this.x(e[TO]));
      const d = x < a ? a - x : x > b ? x - b : 0;
      if (d < near || (d === 0 && near === 0 && b - a < this.x(this.data.events[best][TO]) - this.x(this.data.events[best][FROM]))) {
        best = i;
        near = d;
      }
    });
    if (best >= 0) return { event: best };
    const lost = this.lost?.find(([r, until]) => r === row && x >= this.x(this.whole[0]) && x < this.x(until));
    if (lost) return { lost };
    const gap = this.data?.gaps.find((p) => this.row.get(p[0]) === row && x >= this.x(p[1]) && x <= this.x(p[2]));
    return gap ? { gap } : {};
  }

  choose(hit) {
    this.chosen = hit.event ?? -1;
    if (hit.event >= 0 || hit.gap) $("live").checked = false; // what is read about stays
    if (hit.event >= 0) $("event").textContent = this.describe(this.data.events[hit.event]);
    else if (hit.lost) $("event").textContent = "The messages that were here are no longer kept: each actor keeps only its newest ones.";
    else if (hit.gap) $("event").textContent = `${laneTitle(this.data.lanes[hit.gap[0]], this.nodes)}, ${nanos(hit.gap[2] - hit.gap[1])}: ${named(hit.gap[4], this.nodes)}.`;
    this.redraw();
  }

  unchoose() {
    this.chosen = -1;
    $("event").textContent = this.hint;
    this.redraw();
  }

  describe(e) {
    if (e[KIND] === "request" || e[KIND] === "prefill") {
      return e[KIND] === "prefill"
        ? `Request ${e[REQUEST]}: ${e[ROWS]} tokens of its prompt computed; queued ${nanos(e[FROM] - e[SENT])}, then ${nanos(e[TO] - e[FROM])} to the first token.`
        : `Request ${e[REQUEST]}: ${e[ROWS]} tokens; queued ${nanos(e[FROM] - e[SENT])}, then ${nanos(e[TO] - e[FROM])} to its end.`;
    }
    const riders = this.data.riders.filter((r) => r[0] === e[BATCH]);
    const prompts = riders.filter((r) => !r[3]);
    const copied = e[KIND].startsWith("copy") || e[KIND] === "save kv";
    const parts = [
      `${laneTitle(this.data.lanes[e[LANE]], this.nodes)}: ${kinds[e[KIND]]?.[0] ?? e[KIND]} for ${nanos(e[TO] - e[FROM])}`,
      e[BATCH] ? `step ${e[BATCH]}` : "", e[LAYER] >= 0 ? `layer ${e[LAYER]}` : "",
      copied ? "" : `${e[ROWS]} row${e[ROWS] === 1 ? "" : "s"}`,
      e[SENT] ? `${e[KIND] === "hop" ? "in flight for" : "waited"} ${nanos(e[FROM] - e[SENT])}` : "", e[PARTS] ? `${e[PARTS]} parts` : "",
      e[BYTES] ? `${bytes(e[BYTES])} (${bytes(e[BYTES] / Math.max(1, e[TO] - e[FROM]) * 1e9)}/s)` : "",
      e[MICRO] ? `micro-batch ${e[MICRO]}` : "", e[DEVICE] ? `on ${this.data.devices[e[DEVICE]]}` : "",
      e[OTHERS] ? `stands for ${e[OTHERS] + 1} like it` : "",
      riders.length ? `${riders.length} request${riders.length === 1 ? "" : "s"}` + (prompts.length ? `, ${prompts.length} with prompt rows` : "") : "",
      this.onPath.has(e.index) ? "on the critical path" : "",
    ];
    return parts.filter(Boolean).join("; ") + ".";
  }

  zoom(factor, x = this.margin + (this.width - this.margin) / 2) {
    if (!this.view) return;
    const at = this.ns(x);
    const span = Math.max(200, Math.min((this.view[1] - this.view[0]) * factor, 4 * (this.whole[1] - this.whole[0])));
    const share = (at - this.view[0]) / (this.view[1] - this.view[0]);
    this.moveTo(at - share * span, span);
  }

  pan(share) {
    if (!this.view) return;
    const span = this.view[1] - this.view[0];
    this.moveTo(this.view[0] + share * span, span);
  }

  /** Shows a span from a moment on; who looks closely does not want it to move. */
  moveTo(from, span) {
    const [a, b] = this.whole;
    from = Math.max(a - span / 2, Math.min(from, b - span / 2));
    this.view = [from, from + span];
    $("live").checked = false;
    this.redraw();
  }

  fit() {
    this.view = this.whole && [...this.whole];
    this.redraw();
  }

  /** The next message in time, or the one before. */
  step(by) {
    if (!this.data?.events.length) return;
    const order = this.data.events.map((_, i) => i).filter((i) => this.visible[i] !== undefined).sort((a, b) => this.data.events[a][FROM] - this.data.events[b][FROM]);
    const at = order.indexOf(this.chosen);
    const next = at < 0 ? (by > 0 ? 0 : order.length - 1) : Math.max(0, Math.min(order.length - 1, at + by));
    const e = this.data.events[order[next]];
    $("live").checked = false;
    const span = this.view[1] - this.view[0];
    if (e[FROM] < this.view[0] || e[TO] > this.view[1]) this.moveTo(e[FROM] - span / 4, span);
    this.choose({ event: order[next] });
  }

  listen() {
    const c = this.canvas;
    $("in").addEventListener("click", () => this.zoom(0.5));
    $("out").addEventListener("click", () => this.zoom(2));
    $("fit").addEventListener("click", () => this.fit());
    $("steps").addEventListener("change", () => this.recent());
    $("phases").addEventListener("change", () => {
      this.asked = true;
      if (!this.data) return;
      this.arrange();
      this.legend();
      this.redraw();
    });
    $("live").addEventListener("change", () => { if ($("live").checked) this.recent(); });
    c.addEventListener("keydown", (e) => {
      const act = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
        Home: () => this.fit(), ".": () => this.step(1), ",": () => this.step(-1), Escape: () => this.unchoose(),
      }[e.key];
      if (!act || e.ctrlKey || e.metaKey) return;
      e.preventDefault();
      act();
    });
    // The wheel zooms once the picture has been chosen; else the page scrolls.
    c.addEventListener("wheel", (e) => {
      if (!this.view) return;
      if (e.ctrlKey || document.activeElement === c) {
        e.preventDefault();
        if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) this.pan((e.deltaX || e.deltaY) / 1000);
        else this.zoom(Math.exp(e.deltaY / 400), e.offsetX);
      }
    }, { passive: false });
    this.pointers = new Map();
    c.addEventListener("pointerdown", (e) => {
      c.setPointerCapture(e.pointerId);
      this.pointers.set(e.pointerId, e.offsetX);
      this.moved = 0;
    });
    c.addEventListener("pointermove", (e) => this.drag(e));
    const up = (e) => {
      if (this.pointers.delete(e.pointerId) && this.moved < 4 && e.type === "pointerup") this.choose(this.at(e.offsetX, e.offsetY));
    };
    c.addEventListener("pointerup", up);
    c.addEventListener("pointercancel", up);
  }

  recent() {
    this.request = 0;
    this.view = null;
    this.ask();
  }

  /** One finger or the mouse moves, two fingers zoom. */
  drag(e) {
    const before = this.pointers.get(e.pointerId);
    if (before === undefined || !this.view) return;
    const others = [...this.pointers].filter(([id]) => id !== e.pointerId);
    this.pointers.set(e.pointerId, e.offsetX);
    this.moved += Math.abs(e.offsetX - before);
    if (this.moved < 4) return;
    if (others.length) {
      const other = others[0][1];
      const [d0, d1] = [Math.max(8, Math.abs(before - other)), Math.max(8, Math.abs(e.offsetX - other))];
      this.zoom(d0 / d1, other);
    } else {
      this.pan((before - e.offsetX) / (this.width - this.margin));
    }
  }
}

/** What stands in a bar. */
function word(e) {
  if (e[KIND] === "request") return `answer: ${e[ROWS]} tokens`;
  if (e[KIND] === "prefill") return `prompt: ${e[ROWS]} tokens`;
  if (e[KIND].endsWith(" kv")) return bytes(e[BYTES]);
  if (e[KIND] === "copy experts") return `layer ${e[LAYER]}: ${bytes(e[BYTES])}`;
  if (e[LAYER] >= 0) return `layer ${e[LAYER]}`;
  return e[BATCH] ? `step ${e[BATCH]}` : kinds[e[KIND]]?.[0] ?? e[KIND];
}

/** Text cut to a width; nothing where not even a few letters fit. */
function clip(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let n = Math.floor(text.length * width / g.measureText(text).width);
  if (n < 3) return "";
  return `${text.slice(0, n - 1)}…`;
}
