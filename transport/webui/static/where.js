// Where the time of steps went, in words and as a bar. The server found it: see shares.go.
import { colour, element, nanos, palette, percent, svg, swatch } from "./format.js";
import { laneTitle } from "./lanes.js";

const WAITS = { message: "waiting", copy: "waiting for copies" };
const KINDS = { pool: "experts" }; // actors whose kind of event has another name

/** What a part is called. */
function name(part, nodes) {
  if (part.wait === "hop") return `hop to rank ${nodes.find((n) => n.name === part.lane)?.rank ?? 0}`;
  return WAITS[part.wait] ?? laneTitle(part.lane, nodes);
}

function shade(part, nodes) {
  if (part.wait === "hop") return colour("hop");
  if (part.wait) return part.wait === "copy" ? colour("copy wait") : palette().line;
  const kind = nodes.find((n) => n.name === part.lane)?.kind ?? part.lane;
  return colour(KINDS[kind] ?? kind);
}

const steps = (n) => `${n.toLocaleString("en")} step${n === 1 ? "" : "s"}`;

/** How many steps a share is of, and how long they took. */
export function subject(where) {
  if (!where) return "";
  const { id, all, steps: n, each } = where;
  if (where.of === "steps") return `${steps(n)}, ${nanos(each)} each`;
  return `Request ${id}: ${steps(all)}, ${n < all ? `the last ${n} of them ` : ""}${nanos(each)} each`;
}

/** The line below the sentence at the top. */
export function sentence(where, nodes) {
  if (!where) return "";
  const { id, all, steps: n, each } = where;
  const most = where.parts.filter((p) => p.share >= 0.05).slice(0, 3).map((p) => `${name(p, nodes)} ${percent(p.share)}`).join(", ");
  if (where.of === "request") {
    return n < all ? `Request ${id} took ${steps(all)}; each of the last ${n} took ${nanos(each)}: ${most}.` : `Request ${id} took ${steps(n)} of ${nanos(each)}: ${most}.`;
  }
  return n === 1 ? `The last step took ${nanos(each)}: ${most}.` : `Each of the last ${n} steps took ${nanos(each)}: ${most}.`;
}

/** A bar with its words; longest is the longest wait in words, if it matters. */
export function bar(host, where, nodes, longest) {
  if (!where) return host.replaceChildren();
  const total = where.parts.reduce((sum, p) => sum + p.share, 0);
  const picture = svg("svg", { viewBox: "0 0 1000 14", preserveAspectRatio: "none", "aria-hidden": "true" });
  let x = 0;
  for (const p of where.parts) {
    const width = 1000 * p.share / total;
    picture.append(svg("rect", { x, width, height: 14, fill: shade(p, nodes) }));
    x += width;
  }
  const words = where.parts.filter((p) => p.share >= 0.005).slice(0, 6).map((p) => element("span", {}, swatch(shade(p, nodes)), element("b", {}, percent(p.share)), ` ${name(p, nodes)}`));
  if (longest) words.push(element("span", { class: "detail" }, longest));
  host.replaceChildren(picture, ...words);
}
