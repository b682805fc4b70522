// The heat map: one row per layer, one column per expert.
import { element, onFrame, palette, percent, sharpen, svg, number } from "./format.js";

const EVEN = 32; // the level of an expert that gets its even share

export class Heat {
  constructor(canvas, detail, words, shades) {
    Object.assign(this, { canvas, detail, words, shades });
    this.at = null; // [layer index, expert]
    this.redraw = onFrame(canvas, () => this.draw());
    canvas.addEventListener("click", (e) => this.choose(Math.floor(e.offsetY / this.cell[1]), Math.floor((e.offsetX - this.left) / this.cell[0])));
    canvas.addEventListener("keydown", (e) => {
      if (e.key === "Escape") return this.unchoose();
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
      if (!move || !this.heat) return;
      e.preventDefault();
      const [l, x] = this.at ?? [0, -1];
      this.choose(l + move[0], x + move[1]);
    });
  }

  update(heat) {
    heat.levels = Uint8Array.from(atob(heat.levels ?? ""), (ch) => ch.charCodeAt(0));
    heat.resident = heat.resident ? Uint8Array.from(atob(heat.resident), (ch) => ch.charCodeAt(0)) : null;
    this.heat = heat;
    this.words.textContent = heat.hot.length
      ? `Hot: ${heat.hot.slice(0, 4).map((h) => `layer ${h.layer} expert ${h.expert}, ${percent(h.share)} of the layer's rows`).join("; ")}. An even router would give each ${percent(heat.top_k / heat.experts)}. One step in eight is counted, and newer rows count more.`
      : heat.rows ? `Too few rows were counted to name hot experts: ${heat.rows} of ${heat.least}. One step in eight is counted.` : "No row was counted yet.";
    this.tell();
    this.redraw();
  }

  choose(layer, expert) {
    if (!this.heat) return;
    const clamp = (v, n) => Math.max(0, Math.min(n - 1, v));
    this.at = [clamp(layer, this.heat.layers.length), clamp(expert, this.heat.experts)];
    this.tell();
    this.redraw();
  }

  unchoose() {
    this.at = null;
    this.detail.textContent = "";
    this.redraw();
  }

  tell() {
    if (!this.at || !this.heat) return;
    const [l, x] = this.at, h = this.heat, i = l * h.experts + x;
    const times = h.levels[i] / EVEN;
    const lies = h.resident ? (h.resident[i] ? ", on the rank" : ", in host memory") : "";
    this.detail.textContent = `Layer ${h.layers[l]}, expert ${x}: ${h.levels[i] === 255 ? "8 or more" : number(times)} times an even share${h.rows < h.least ? ` of ${h.rows} rows, too few to be meaningful` : `, ${percent(Math.min(1, times * h.top_k / h.experts))} of the layer's rows`}${lies}.`;
  }

  draw() {
    if (!this.heat) return;
    const h = this.heat, c = palette();
    const tall = Math.max(8, Math.min(20, 260 / h.layers.length));
    const { g, width } = sharpen(this.canvas, Math.ceil(tall * h.layers.length) + 2);
    this.left = tall >= 10 ? 26 : 0;
    this.cell = [(width - this.left) / h.experts, tall];
    const [w] = this.cell;
    const gapX = w > 6 ? 1 : 0, gapY = tall > 6 ? 1 : 0;
    g.font = "10px system-ui, sans-serif";
    g.textBaseline = "middle";
    const ramp = ramps(c);
    h.layers.forEach((layer, l) => {
      if (this.left) {
        g.fillStyle = c.soft;
        g.fillText(String(layer), 2, (l + 0.5) * tall);
      }
      for (let x = 0; x < h.experts; x++) {
        const i = l * h.experts + x;
        g.fillStyle = ramp[h.levels[i]];
        g.fillRect(this.left + x * w, l * tall, w - gapX, tall - gapY);
        if (h.resident?.[i] && w > 3) {
          g.fillStyle = c.good;
          g.fillRect(this.left + x * w, l * tall + tall - gapY - 2, w - gapX, 2);
        }
      }
    });
    if (this.at) {
      g.strokeStyle = c.mark;
      g.lineWidth = 2;
      g.strokeRect(this.left + this.at[1] * w - 0.5, this.at[0] * tall - 0.5, Math.max(3, w), tall);
    }
    this.legend(ramp, c, Boolean(h.resident));
  }

  legend(ramp, c, ranked) {
    const key = ramp.join() + ranked;
    if (this.legendKey === key) return;
    this.legendKey = key;
    const square = (fill) => svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { width: 10, height: 10, fill }));
    const steps = [[0, "never"], [EVEN, "even share"], [2 * EVEN, "2 times"], [4 * EVEN, "4"], [255, "8 or more"]];
    this.shades.replaceChildren(...steps.map(([level, text]) => element("span", {}, square(ramp[level]), text)));
    if (ranked) this.shades.append(element("span", {}, square(c.good), "underlined: on the rank"));
  }
}

/** The colour of each level, from cold over warm to hot by its logarithm. */
function ramps(c) {
  const key = c.cold + c.warm + c.hot;
  if (ramps.key === key) return ramps.list;
  const [cold, warm, hot] = [c.cold, c.warm, c.hot].map(rgb);
  const mix = (a, b, t) => `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join()})`;
  ramps.list = Array.from({ length: 256 }, (_, level) => {
    const t = Math.log2(1 + level / 8) / 5; // 0 at nothing, 0.46 at an even share, 1 at 8 times
    return t < 0.6 ? mix(cold, warm, t / 0.6) : mix(warm, hot, Math.min(1, (t - 0.6) / 0.4));
  });
  ramps.key = key;
  return ramps.list;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
