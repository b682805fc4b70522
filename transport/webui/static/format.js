// How figures and names are written, and what things are called.

/** A number with about three digits: 1234 is "1,230", 0.0123 is "0.0123". */
export function number(v) {
  if (!Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size >= 1000) return Math.round(v).toLocaleString("en");
  if (size >= 100 || Number.isInteger(v)) return String(Math.round(v));
  if (size >= 10) return v.toFixed(1);
  return size === 0 ? "0" : v.toFixed(2);
}

/** Seconds in the unit that fits. */
export function seconds(s) {
  if (!(s > 0)) return "–";
  if (s < 1e-3) return `${number(s * 1e6)} µs`;
  if (s < 1) return `${number(s * 1e3)} ms`;
  if (s < 120) return `${number(s)} s`;
  return `${number(s / 60)} min`;
}

export const nanos = (ns) => (ns === 0 ? "0" : seconds(ns / 1e9));

export function bytes(n) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
    if (n >= size) return `${number(n / size)} ${unit}`;
  }
  return `${number(n)} B`;
}

export const percent = (share) => `${Math.round(100 * share)} %`;

/** The colour of a kind of event, the same in light and dark. */
export const kinds = {
  gateway: ["gateway", "#8a8f98"], schedule: ["scheduler", "#6c7a96"], embed: ["embedding", "#3f9c9c"],
  group: ["layers", "#3f7fcb"], attention: ["attention", "#3f7fcb"], split: ["split", "#8d6fd1"], experts: ["experts", "#d98b2b"],
  merge: ["merge", "#b565a7"], link: ["link", "#5d9a5b"], hop: ["hop", "#7fb06a"], head: ["head", "#c4565a"], sample: ["sampler", "#8aa032"],
  stream: ["text out", "#9a8c7a"], request: ["request", "#7d8fa8"], prefill: ["prompt", "#4d5f7a"],
  device: ["step on the device", "#2f9e8f"], "device embed": ["embedding", "#3f9c9c"], "device group": ["layers", "#3f7fcb"], "device head": ["head", "#c4565a"],
  "device experts": ["experts on the device", "#c9772f"], "copy wait": ["waiting for a copy", "#7a83c9"],
  "copy experts": ["experts copied", "#5f6ad4"], "copy kv": ["KV blocks copied", "#2f8fb5"], "save kv": ["KV blocks saved", "#5a8f9e"],
  rows: ["rows", "#4f9ab0"], "gate and up": ["gate and up", "#c98a3d"], down: ["down", "#a8683a"], sums: ["sums", "#b565a7"],
  failure: ["failure", "#e0201b"], control: ["control", "#9a9a9a"],
};

export const colour = (kind) => (kinds[kind] ?? kinds.control)[1];

/** What an actor is called in the picture. */
export function title(node) {
  switch (node.kind) {
    case "group": return `layers ${node.first}–${node.last - 1}`;
    case "pool": return `expert pool ${node.index}`;
    case "link": return node.name?.endsWith("out") ? "out" : "link";
    case "schedule": return "scheduler";
    case "embed": return "embedding";
    case "sample": return "sampler";
    case "stream": return "text out";
    case "copies": return "expert copies";
    case "device": return node.name;
    case "phases": return `phases of ${node.index}`;
    default: return node.kind;
  }
}

/** What actors do, by their kind. */
export const about = {
  gateway: "takes requests in and turns their text into tokens",
  schedule: "chooses the rows of each step and starts it when it has a credit",
  embed: "turns each token into a row",
  group: "computes attention and the shared networks of these layers",
  split: "sends each row to the pools that hold its experts",
  pool: "computes its experts for the rows that need them",
  merge: "adds the results of the pools to each row",
  link: "copies rows to the next group of layers",
  hop: "takes batches in that come from another machine",
  head: "computes a score for every token of the vocabulary",
  sample: "chooses the next tokens by their scores",
  stream: "turns tokens into text and sends it to the client",
  device: "runs whole steps by itself; its times are from its own clock",
  copies: "copies experts to the device",
};

/** An element with attributes and children. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") e.addEventListener("click", value);
    else if (value !== undefined) e.setAttribute(name, value);
  }
  e.append(...children);
  return e;
}

/** A small square of a colour, for legends. */
export function swatch(fillColour) {
  return svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, fill: fillColour }));
}

/** Makes a canvas as sharp as the screen; gives its context and its size in CSS pixels. */
export function sharpen(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (height) canvas.style.height = `${height}px`;
  const tall = height ?? canvas.clientHeight;
  const w = Math.round(width * ratio), h = Math.round(tall * ratio);
  if (canvas.width !== w) canvas.width = w;
  if (canvas.height !== h) canvas.height = h;
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, tall);
  return { g, width, height: tall };
}

/** The page's colours, as the stylesheet has them for light or dark. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["back", "panel", "line", "text", "soft", "accent", "cold", "warm", "hot", "good", "mark"].map((n) => [n, get(n)]));
}

const drawings = new Set();
const RARELY = 1000; // ms between two drawings of what is out of sight

/** Runs f once before the next frame, however often it is asked for. While host is out of sight
 * that is once a second, so that a print or a picture of the whole page shows all of it. */
export function onFrame(host, f) {
  let asked = false, seen = true, timer;
  const draw = () => {
    asked = false;
    clearTimeout(timer);
    timer = undefined;
    f();
  };
  const run = () => {
    if (asked) return;
    if (!seen) {
      timer ??= setTimeout(draw, RARELY);
      return;
    }
    asked = true;
    requestAnimationFrame(draw);
  };
  drawings.add(draw);
  new IntersectionObserver((entries) => {
    seen = entries.at(-1).isIntersecting;
    if (seen && timer) run();
  }, { rootMargin: "100px" }).observe(host);
  return run;
}

addEventListener("beforeprint", () => drawings.forEach((draw) => draw()));
