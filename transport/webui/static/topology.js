// The pipeline as a picture: actors as boxes, filled by their share of a step's time.
import { about, bytes, number, percent, seconds, svg, title } from "./format.js";
import { laneTitle } from "./lanes.js";
import { edge } from "./edges.js";

export const W = 118, H = 52;
const GAP = 22, ROW = 84;
// The fields of a load, as the server sends it.
const QUEUE = 0, RATE = 1, BUSY = 2, WAIT = 3, BYTES = 4;

/** The group that a split or a merge serves. */
const groupOf = (n) => n.name.replace(/(split|merge)(?=\d+$)/, "group");

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
    this.update(this.loads, this.where, this.live);
  }

  of(...kinds) {
    return this.topology.nodes.filter((n) => kinds.includes(n.kind));
  }

  /** What is beside the way of a batch; copies are for the first group. */
  beside() {
    return [...this.of("copies"), ...this.of("pool", "device")];
  }

  /** Wide: requests at the top, the way of a batch below, experts at the bottom. */
  rows() {
    const places = new Map();
    const way = this.of("embed", "group", "link", "head", "sample");
    const step = W + GAP;
    way.forEach((n, i) => places.set(n.name, [i * step, ROW, W, H]));
    const last = Math.max(way.length - 1, 2) * step;
    this.of("gateway").forEach((n) => places.set(n.name, [0, 0, W, H]));
    this.of("schedule").forEach((n) => places.set(n.name, [Math.max(step, last / 2), 0, W, H]));
    this.of("stream").forEach((n) => places.set(n.name, [last, 0, W, H]));
    // Split and merge share the place below their group.
    for (const n of this.of("split", "merge")) {
      const [x] = places.get(groupOf(n));
      places.set(n.name, [x + (n.kind === "split" ? -4 : W / 2 + 4), 2 * ROW, W / 2, H]);
    }
    const pools = this.beside();
    const room = last + W, wide = Math.min(W, (room - (pools.length - 1) * 8) / pools.length);
    const across = Math.max(1, Math.floor((room + 8) / (Math.max(wide, 84) + 8)));
    pools.forEach((n, i) => {
      const inRow = Math.min(across, pools.length - across * Math.floor(i / across));
      const w = Math.min(W, (room - (inRow - 1) * 8) / inRow);
      const start = (room - inRow * w - (inRow - 1) * 12) / 2;
      places.set(n.name, [Math.max(0, start) + (i % across) * (w + 12), (3 + Math.floor(i / across)) * ROW, w, H]);
    });
    return places;
  }

  /** Narrow: the way of a batch from top to bottom, experts beside it. */
  column() {
    const places = new Map();
    const w = 96, across = w + 20, down = this.several() ? 76 : 66; // ranks have names above them
    ["gateway", "schedule"].forEach((kind, i) => this.of(kind).forEach((n) => places.set(n.name, [i * across, 0, w, H])));
    const way = this.of("embed", "group", "link", "head", "sample");
    way.forEach((n, i) => places.set(n.name, [0, (i + 1) * down, w, H]));
    this.of("stream").forEach((n) => places.set(n.name, [across, way.length * down, w, H]));
    for (const n of this.of("split", "merge")) {
      const [, y] = places.get(groupOf(n));
      places.set(n.name, [across, y + (n.kind === "split" ? -2 : 29), w - 14, 25]);
    }
    this.beside().forEach((n, i) => places.set(n.name, [2 * across, (i + 2) * down, w, H]));
    return places;
  }

  render(places) {
    let right = 0, bottom = 0;
    for (const [x, y, w, h] of places.values()) {
      right = Math.max(right, x + w);
      bottom = Math.max(bottom, y + h);
    }
    const root = svg("svg", { viewBox: `-14 -16 ${right + 28} ${bottom + 30}`, role: "group", "aria-label": "Actors of the pipeline" },
      svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" },
        svg("path", { class: "arrow", d: "M0 0L10 5L0 10Z" }))));
    if (!this.narrow) root.style.maxWidth = `${Math.max(right + 28, 480) * 1.3}px`;
    this.edges = [];
    const nodes = new Map(this.topology.nodes.map((n) => [n.name, n]));
    this.hops = [];
    for (let [from, to] of this.topology.edges) {
      // A hop is an edge to who gets the batch from the actor that takes it in.
      const hop = nodes.get(to).kind === "hop" ? to : undefined;
      if (hop) to = this.topology.edges.find(([a]) => a === hop)?.[1];
      const a = places.get(from), b = places.get(to);
      if (!a || !b) continue;
      const path = svg("path", { class: hop ? "edge hop" : "edge", "data-from": from, "data-to": to, "marker-end": "url(#arrow)", d: edge(nodes.get(from).kind, a, nodes.get(to).kind, b, this.narrow) });
      this.edges.push([from, path]);
      root.append(path);
      if (!hop) continue;
      const [x, y] = this.narrow ? [a[0] + a[2] + 4, (a[1] + a[3] + b[1]) / 2 + 3] : [(a[0] + a[2] + b[0]) / 2, a[1] + a[3] + 11];
      const words = [0, 11].map((dy) => svg("text", { class: "hopcost", x, y: y + (this.narrow ? 0 : dy), "text-anchor": this.narrow ? "start" : "middle" }));
      this.hops.push([hop, words]);
      root.append(...words);
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

  /** Whether there is more than one rank. */
  several() {
    return new Set(this.of("group").map((n) => n.rank)).size > 1;
  }

  /** A dashed frame around the groups of a rank, where there is more than one rank. */
  ranks(root, places) {
    const groups = this.of("group");
    if (!this.several()) return;
    for (const rank of new Set(groups.map((n) => n.rank))) {
      const mine = groups.filter((n) => n.rank === rank).map((n) => places.get(n.name));
      const x = Math.min(...mine.map((p) => p[0])), y = Math.min(...mine.map((p) => p[1]));
      const x2 = Math.max(...mine.map((p) => p[0] + p[2])), y2 = Math.max(...mine.map((p) => p[1] + H));
      const { machine } = groups.find((n) => n.rank === rank);
      root.append(svg("rect", { class: "rank", x: x - 7, y: y - 7, width: x2 - x + 14, height: y2 - y + 14, rx: 9 }),
        svg("text", { class: "rankname", x: x - 4, y: y - 10 }, machine ? `rank ${rank}: ${machine}` : `rank ${rank}`));
    }
  }

  box(n, [x, y, w, h]) {
    const small = h < 40 || w < 80;
    const label = small ? n.kind : this.narrow && n.kind === "pool" ? `pool ${n.index}` : this.narrow && n.kind === "copies" ? "copies" : title(n);
    const fill = svg("rect", { x: 1, y: 1, width: 0, height: h - 2, rx: 6 });
    const share = svg("text", { class: "share", x: w - 7, y: small ? h - 6 : h - 9 });
    const queue = svg("g", { class: "queue", visibility: "hidden" }, svg("circle", { cx: w - 2, cy: 2, r: 9.5 }), svg("text", { x: w - 2, y: 6 }));
    const g = svg("g", { class: h < 40 ? "node pill" : "node", tabindex: 0, role: "button", transform: `translate(${x} ${y})`, "aria-label": label },
      svg("title", {}, `${label}: ${about[n.kind]}`), svg("rect", { class: "box", width: w, height: h, rx: 7 }), fill,
      svg("text", { class: "name", x: 8, y: small && h < 40 ? 17 : 20 }, label), share, queue);
    if (!small) g.insertBefore(svg("text", { class: "sub", x: 8, y: h - 9 }, n.kind === "device" ? (this.narrow ? "" : "its own clock") : n.kind === "pool" && n.machine ? `rank ${n.rank}` : n.device ?? ""), share);
    const tell = () => {
      this.chosen = n;
      for (const b of this.boxes.values()) b.g.classList.toggle("chosen", b.node === n);
      this.tell();
    };
    g.addEventListener("click", tell);
    g.addEventListener("focus", tell);
    g.classList.toggle("chosen", this.chosen?.name === n.name);
    return { g, fill, share, queue, node: n, w, label };
  }

  /** Shows where the time of steps goes, or went; loads are of now. */
  update(loads, where, live) {
    Object.assign(this, { loads: loads ?? {}, where, live });
    this.shares = new Map(where?.parts.map((p) => [p.lane, p.share]));
    for (const [name, b] of this.boxes) {
      const load = this.loads[name] ?? [0, 0, 0, 0, 0];
      const part = this.shares.get(name) ?? 0;
      const width = Math.round(Math.max(0, (b.w - 2) * part));
      if (b.width !== width) {
        b.width = width;
        b.fill.setAttribute("width", width);
        b.fill.style.fill = `color-mix(in oklab, var(--hot) ${Math.round(100 * Math.max(0, part - 0.3) / 0.7)}%, var(--warm))`;
        b.fill.style.opacity = 0.75;
      }
      const text = b.node.kind === "copies" ? `${bytes(load[BYTES])}/s` : percent(part);
      if (b.share.textContent !== text) {
        b.share.textContent = text;
        b.g.setAttribute("aria-label", `${b.label}: ${text} of the time, ${load[QUEUE]} waiting`);
      }
      const waiting = String(load[QUEUE]);
      if (b.waiting !== waiting) {
        b.waiting = waiting;
        b.queue.lastChild.textContent = waiting;
        b.queue.setAttribute("visibility", load[QUEUE] > 0 ? "visible" : "hidden");
      }
      b.g.classList.toggle("limits", part >= 0.6 && live);
    }
    for (const [from, path] of this.edges ?? []) {
      const rate = this.loads[from]?.[RATE] ?? 0;
      path.style.strokeWidth = rate > 0 ? Math.min(3, 1.2 + 0.4 * Math.log10(1 + rate)) : 1.1;
      path.style.opacity = rate > 0 ? 1 : 0.6;
    }
    for (const [hop, words] of this.hops ?? []) {
      const load = this.loads[hop] ?? [0, 0, 0, 0, 0];
      words[0].textContent = load[WAIT] > 0 ? seconds(load[WAIT]) : "";
      words[1].textContent = load[BYTES] > 0 && !this.narrow ? `${bytes(load[BYTES])}/s` : "";
    }
    this.tell();
  }

  /** What there is to say about the chosen actor. */
  tell() {
    const n = this.chosen;
    if (!n) return;
    const load = this.loads[n.name] ?? [0, 0, 0, 0, 0];
    const of = this.where?.of === "request" ? "of the last request's time" : "of a step's time";
    const parts = [`In the last second it was busy ${percent(load[BUSY])} of the time, including waits for other actors`, `${number(load[RATE])} messages a second`, `${load[QUEUE]} waiting`];
    if (load[WAIT] > 0) parts.push(`a message waits ${seconds(load[WAIT])}`);
    if (load[BYTES] > 0) parts.push(`${bytes(load[BYTES])}/s`);
    if (n.machine) parts.push(`worker ${n.machine}`);
    if (n.device) parts.push(`on ${n.device}` + (n.kind === "pool" && n.memory >= 0 ? `, NUMA node ${n.memory}` : ""));
    if (n.last > n.first) parts.push(`rank ${n.rank}`);
    const text = `${laneTitle(n.name, this.topology.nodes)}: ${percent(this.shares.get(n.name) ?? 0)} ${of}. It ${about[n.kind]}. ${parts.join("; ")}.`;
    if (this.detail.textContent !== text) this.detail.textContent = text;
  }
}
