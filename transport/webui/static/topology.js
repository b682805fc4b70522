// The pipeline as a picture: actors as boxes, filled by how busy they are.
import { bytes, number, percent, seconds, svg, title } from "./format.js";
import { laneTitle } from "./lanes.js";

const W = 118, H = 52, GAP = 22, ROW = 84;
// The fields of a load, as the server sends it.
const QUEUE = 0, RATE = 1, BUSY = 2, WAIT = 3, BYTES = 4;

export class Topology {
  constructor(host, detail) {
    this.host = host;
    this.detail = detail;
    this.boxes = new Map();
    this.loads = {};
  }

  draw(topology) {
    this.topology = topology;
    this.narrow = undefined;
    this.layout();
  }

  /** Lays the picture out anew when the page has become narrow or wide. */
  layout() {
    if (!this.topology) return;
    const narrow = this.host.clientWidth < 560;
    if (narrow === this.narrow) return;
    this.narrow = narrow;
    const places = narrow ? this.column() : this.rows();
    this.render(places);
    this.update(this.loads, this.limit);
  }

  of(...kinds) {
    return this.topology.nodes.filter((n) => kinds.includes(n.kind));
  }

  /** Wide: requests at the top, the way of a batch below, experts at the bottom. */
  rows() {
    const places = new Map();
    const way = this.of("embed", "group", "link", "head", "sample");
    const step = W + GAP;
    way.forEach((n, i) => places.set(n.name, [i * step, ROW]));
    const last = Math.max(way.length - 1, 2) * step;
    this.of("gateway").forEach((n) => places.set(n.name, [0, 0]));
    this.of("schedule").forEach((n) => places.set(n.name, [Math.max(step, last / 2), 0]));
    this.of("stream").forEach((n) => places.set(n.name, [last, 0]));
    // Split and merge share the place below their group.
    for (const n of this.of("split", "merge")) {
      const [x] = places.get(`group${n.index}`);
      places.set(n.name, [x + (n.kind === "split" ? -4 : W / 2 + 4), 2 * ROW, W / 2]);
    }
    const pools = this.of("pool", "device", "copies");
    const room = last + W, wide = Math.min(W, (room - (pools.length - 1) * 8) / pools.length);
    const across = Math.max(1, Math.floor((room + 8) / (Math.max(wide, 84) + 8)));
    pools.forEach((n, i) => {
      const inRow = Math.min(across, pools.length - across * Math.floor(i / across));
      const w = Math.min(W, (room - (inRow - 1) * 8) / inRow);
      const start = (room - inRow * w - (inRow - 1) * 12) / 2;
      places.set(n.name, [Math.max(0, start) + (i % across) * (w + 12), (3 + Math.floor(i / across)) * ROW, w]);
    });
    return places;
  }

  /** Narrow: the way of a batch from top to bottom, experts beside it. */
  column() {
    const places = new Map();
    const w = 96;
    [["gateway", 0], ["schedule", 1], ["stream", 2]].forEach(([kind, i]) => this.of(kind).forEach((n) => places.set(n.name, [i * (w + 20), 0, w])));
    const way = this.of("embed", "group", "link", "head", "sample");
    way.forEach((n, i) => places.set(n.name, [0, (i + 1) * 66, w]));
    for (const n of this.of("split", "merge")) {
      const [, y] = places.get(`group${n.index}`);
      places.set(n.name, [w + 20, y + (n.kind === "split" ? -2 : 28), w - 14, 25]);
    }
    this.of("pool", "device", "copies").forEach((n, i) => places.set(n.name, [2 * (w + 20), (i + 1.5) * 66, w]));
    return places;
  }

  render(places) {
    let right = 0, bottom = 0;
    for (const [x, y, w = W, h = H] of places.values()) {
      right = Math.max(right, x + w);
      bottom = Math.max(bottom, y + h);
    }
    const root = svg("svg", { viewBox: `-14 -14 ${right + 28} ${bottom + 28}`, role: "group", "aria-label": "Actors of the pipeline" });
    if (!this.narrow) root.style.maxWidth = `${Math.max(right + 28, 480) * 1.15}px`;
    this.edges = [];
    for (const [from, to] of this.topology.edges) {
      const a = places.get(from), b = places.get(to);
      if (!a || !b) continue;
      // Narrow, the way back from the sampler goes round the others.
      const round = this.narrow && b[1] === 0 && a[1] > H;
      const path = svg("path", { class: "edge", d: round ? `M${a[0]} ${a[1] + H / 2}H-8V${b[1] + H + 7}H${b[0] + b[2] / 3}V${b[1] + H}` : curve(a, b) });
      this.edges.push([from, path]);
      root.append(path);
    }
    this.ranks(root, places);
    this.boxes.clear();
    for (const n of this.topology.nodes) {
      const place = places.get(n.name);
      if (!place) continue;
      const box = this.box(n, place);
      this.boxes.set(n.name, box);
      root.append(box.g);
    }
    this.host.replaceChildren(root);
  }

  /** A dashed frame around the groups of a rank, where there is more than one rank. */
  ranks(root, places) {
    const groups = this.of("group");
    const ranks = [...new Set(groups.map((n) => n.rank))];
    if (ranks.length < 2) return;
    for (const rank of ranks) {
      const mine = groups.filter((n) => n.rank === rank).map((n) => places.get(n.name));
      const x = Math.min(...mine.map((p) => p[0])), y = Math.min(...mine.map((p) => p[1]));
      const x2 = Math.max(...mine.map((p) => p[0] + (p[2] ?? W))), y2 = Math.max(...mine.map((p) => p[1] + H));
      root.append(svg("rect", { class: "rank", x: x - 7, y: y - 7, width: x2 - x + 14, height: y2 - y + 14, rx: 9 }),
        svg("text", { class: "rankname", x: x - 4, y: y - 10 }, `rank ${rank}`));
    }
  }

  box(n, [x, y, w = W, h = H]) {
    const small = h < 40 || w < 80;
    const label = small ? n.kind : this.narrow && n.kind === "pool" ? `pool ${n.index}` : title(n);
    const fill = svg("rect", { x: 1, y: 1, width: 0, height: h - 2, rx: 6 });
    const share = svg("text", { class: "share", x: w - 7, y: small ? h - 6 : h - 9 });
    const queue = svg("g", { class: "queue", visibility: "hidden" }, svg("circle", { cx: w - 2, cy: 2, r: 9.5 }), svg("text", { x: w - 2, y: 6 }));
    const g = svg("g", { class: h < 40 ? "node pill" : "node", tabindex: 0, role: "button", transform: `translate(${x} ${y})`, "aria-label": label },
      svg("rect", { class: "box", width: w, height: h, rx: 7 }), fill,
      svg("text", { class: "name", x: 8, y: small && h < 40 ? 17 : 20 }, label), share, queue);
    if (!small) g.insertBefore(svg("text", { class: "sub", x: 8, y: h - 9 }, n.kind === "device" ? "its own clock" : n.device ?? ""), share);
    if (small && h >= 40) g.insertBefore(svg("text", { class: "sub", x: 8, y: 34 }, ""), share);
    const tell = () => { this.chosen = n; this.tell(); };
    g.addEventListener("click", tell);
    g.addEventListener("focus", tell);
    return { g, fill, share, queue, node: n, w, label };
  }

  update(loads, limit) {
    this.loads = loads ?? {};
    this.limit = limit;
    for (const [name, b] of this.boxes) {
      const load = this.loads[name];
      if (!load) continue;
      const busy = load[BUSY];
      const width = Math.round(Math.max(0, (b.w - 2) * busy));
      if (b.width !== width) {
        b.width = width;
        b.fill.setAttribute("width", width);
        b.fill.style.fill = `color-mix(in oklab, var(--hot) ${Math.round(100 * Math.max(0, busy - 0.3) / 0.7)}%, var(--warm))`;
        b.fill.style.opacity = 0.75;
      }
      const text = b.node.kind === "copies" ? `${bytes(load[BYTES])}/s` : percent(busy);
      if (b.share.textContent !== text) {
        b.share.textContent = text;
        b.g.setAttribute("aria-label", `${b.label}: busy ${text}, ${load[QUEUE]} waiting`);
      }
      const waiting = String(load[QUEUE]);
      if (b.waiting !== waiting) {
        b.waiting = waiting;
        b.queue.lastChild.textContent = waiting;
        b.queue.setAttribute("visibility", load[QUEUE] > 0 ? "visible" : "hidden");
      }
      b.g.classList.toggle("limits", name === limit && busy >= 0.6);
    }
    for (const [from, path] of this.edges ?? []) {
      const rate = this.loads[from]?.[RATE] ?? 0;
      path.style.strokeWidth = rate > 0 ? Math.min(4, 1.2 + 0.5 * Math.log10(1 + rate)) : 1;
      path.style.opacity = rate > 0 ? 0.9 : 0.35;
    }
    this.tell();
  }

  /** What there is to say about the chosen actor. */
  tell() {
    const n = this.chosen;
    if (!n) return;
    const load = this.loads[n.name] ?? [0, 0, 0, 0, 0];
    const parts = [`${laneTitle(n.name, this.topology.nodes)}: busy ${percent(load[BUSY])}`, `${number(load[RATE])} messages a second`, `${load[QUEUE]} waiting`];
    if (load[WAIT] > 0) parts.push(`a message waits ${seconds(load[WAIT])}`);
    if (load[BYTES] > 0) parts.push(`${bytes(load[BYTES])}/s`);
    if (n.device) parts.push(`on ${n.device}` + (n.kind === "pool" && n.memory >= 0 ? `, memory node ${n.memory}` : ""));
    if (n.last > n.first) parts.push(`rank ${n.rank}`);
    const text = parts.join("; ");
    if (this.detail.textContent !== text) this.detail.textContent = text;
  }
}

/** An edge from one box to another: straight beside each other, else a curve. */
function curve([ax, ay, aw = W, ah = H], [bx, by, bw = W, bh = H]) {
  if (ay === by) {
    const y = ay + ah / 2;
    return ax < bx ? `M${ax + aw} ${y}H${bx}` : `M${ax} ${y}H${bx + bw}`;
  }
  const x1 = ax + aw / 2, x2 = bx + bw / 2;
  const down = by > ay;
  const y1 = down ? ay + ah : ay, y2 = down ? by : by + bh;
  if (Math.abs(y2 - y1) < 2 || (down && y2 < y1) || (!down && y2 > y1)) { // beside each other
    const right = bx > ax;
    return `M${right ? ax + aw : ax} ${ay + ah / 2}L${right ? bx : bx + bw} ${by + bh / 2}`;
  }
  const middle = (y1 + y2) / 2;
  return `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}
