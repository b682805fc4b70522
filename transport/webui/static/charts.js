// Throughput and latency of the last two minutes.
import { element, number, onFrame, palette, seconds, sharpen } from "./format.js";

const SPAN = 120; // seconds
const EVERY = 500; // ms between two points

export class Charts {
  constructor(host) {
    this.points = [];
    this.redraw = onFrame(host, () => this.draw());
    this.plots = [
      plot(host, "tokens a second", [["generated", "accent", (p) => p.flow.tokens], ["prompt", "warm", (p) => p.flow.prompt]], number),
      plot(host, "requests", [["running", "accent", (p) => p.flow.running], ["waiting", "hot", (p) => p.flow.waiting]], number),
      plot(host, "first token within", [["half", "accent", (p) => p.latency?.ttft?.p50], ["95 %", "warm", (p) => p.latency?.ttft?.p95]], seconds),
      plot(host, "between tokens, within", [["half", "accent", (p) => p.latency?.itl?.p50], ["95 %", "warm", (p) => p.latency?.itl?.p95]], seconds),
    ];
  }

  add(flow, latency) {
    const at = performance.now();
    const last = this.points.at(-1);
    if (last && at - last.at < EVERY) return;
    this.points.push({ at, flow, latency });
    while (this.points[0].at < at - 1000 * SPAN) this.points.shift();
    this.redraw();
  }

  draw() {
    const c = palette();
    for (const p of this.plots) p(this.points, c);
  }
}

/** A chart of a few lines; gives the function that draws it. */
function plot(host, name, lines, write) {
  const caption = element("figcaption");
  const canvas = element("canvas", { role: "img", "aria-label": name });
  host.append(element("figure", {}, caption, canvas));
  return (points, c) => {
    const { g, width, height } = sharpen(canvas);
    const now = points.at(-1)?.at ?? 0;
    const top = Math.max(1e-9, ...points.flatMap((p) => lines.map(([, , value]) => value(p) ?? 0))) * 1.08;
    g.strokeStyle = c.line;
    g.strokeRect(0.5, 0.5, width - 1, height - 1);
    g.fillStyle = c.soft;
    g.font = "10px system-ui, sans-serif";
    g.textBaseline = "top";
    g.fillText(top > 1e-8 ? write(top / 1.08) : "", 4, 3);
    for (const [, shade, value] of lines) {
      g.strokeStyle = c[shade];
      g.lineWidth = 1.8;
      g.beginPath();
      let down = false;
      for (const p of points) {
        const v = value(p);
        if (v === undefined || v === null) { down = false; continue; }
        const x = width - (now - p.at) / (1000 * SPAN) * width, y = height - 1.5 - (height - 3) * v / top;
        if (down) g.lineTo(x, y); else g.moveTo(x, y);
        down = true;
      }
      g.stroke();
    }
    const last = points.at(-1);
    const words = lines.map(([label, shade, value]) => {
      const b = element("b", {}, last ? write(value(last) ?? 0) : "–");
      const dot = element("span", {}, "● ");
      dot.style.color = c[shade];
      return element("span", {}, dot, `${label} `, b);
    });
    caption.replaceChildren(element("span", {}, name), ...words);
  };
}
