// Throughput and latency of the last two minutes, as the server has noted them.
import { element, number, onFrame, palette, seconds, sharpen } from "./format.js";

const SPAN = 120; // seconds
const GAP = 5; // seconds without a point that are no line
// The fields of a point, as the server sends it.
const AT = 0, TOKENS = 1, PROMPT = 2, RUNNING = 3, WAITING = 4, FIRST = 5, FIRST95 = 6, NEXT = 7, NEXT95 = 8;

export class Charts {
  constructor(host) {
    this.points = [];
    this.redraw = onFrame(host, () => this.draw());
    this.plots = [
      plot(host, "tokens a second", [["generated", TOKENS], ["prompt", PROMPT]], number),
      plot(host, "requests", [["running", RUNNING], ["waiting", WAITING]], number),
      plot(host, "time to the first token", [["median", FIRST], ["95th percentile", FIRST95]], seconds),
      plot(host, "time from token to token", [["median", NEXT], ["95th percentile", NEXT95]], seconds),
    ];
  }

  /** Takes all points there are. */
  set(points) {
    this.points = points;
    this.redraw();
  }

  add(point) {
    if (point[AT] <= (this.points.at(-1)?.[AT] ?? -1)) return;
    this.points.push(point);
    while (this.points[0][AT] < point[AT] - SPAN) this.points.shift();
    this.redraw();
  }

  draw() {
    const c = palette();
    for (const p of this.plots) p(this.points, c);
  }
}

/** A chart of a line and a second, dashed one; gives the function that draws it. */
function plot(host, name, lines, write) {
  const caption = element("figcaption");
  const canvas = element("canvas", { role: "img", "aria-label": name });
  host.append(element("figure", {}, caption, canvas));
  return (points, c) => {
    const { g, width, height } = sharpen(canvas);
    const now = points.at(-1)?.[AT] ?? 0;
    const top = Math.max(1e-9, ...points.flatMap((p) => lines.map(([, field]) => p[field]))) * 1.08;
    g.strokeStyle = c.line;
    g.strokeRect(0.5, 0.5, width - 1, height - 1);
    g.fillStyle = c.soft;
    g.font = "10px system-ui, sans-serif";
    g.textBaseline = "top";
    g.fillText(top > 1e-8 ? write(top / 1.08) : "", 4, 3);
    lines.forEach(([, field], i) => {
      g.strokeStyle = i ? c.soft : c.accent;
      g.setLineDash(i ? [4, 3] : []);
      g.lineWidth = 1.6;
      g.beginPath();
      points.forEach((p, k) => {
        if (field >= FIRST && !p[field]) return; // there was no token
        const x = width - (now - p[AT]) / SPAN * width, y = height - 1.5 - (height - 3) * p[field] / top;
        const before = points[k - 1];
        if (before && p[AT] - before[AT] < GAP && (field < FIRST || before[field])) g.lineTo(x, y); else g.moveTo(x, y);
      });
      g.stroke();
      g.setLineDash([]);
    });
    const last = points.at(-1);
    const words = lines.map(([label, field], i) => {
      const b = element("b", {}, last ? write(last[field]) : "–");
      return element("span", {}, element("span", { class: i ? "line second" : "line", "aria-hidden": "true" }), `${label} `, b);
    });
    caption.replaceChildren(element("span", {}, name), ...words);
  };
}
