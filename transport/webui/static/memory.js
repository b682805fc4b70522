// KV blocks and what of prompts was found in them.
import { element, number, percent, svg, swatch } from "./format.js";

export class Memory {
  constructor(bars, pairs) {
    Object.assign(this, { bars, pairs });
  }

  update(flow) {
    const [used, kept, all] = flow.kv;
    const bar = (parts, total, label) => {
      let x = 0;
      const picture = svg("svg", { viewBox: "0 0 1000 22", preserveAspectRatio: "none", role: "img", "aria-label": label },
        svg("rect", { width: 1000, height: 22, fill: "var(--cold)" }));
      for (const [n, fill] of parts) {
        const w = total ? 1000 * n / total : 0;
        picture.append(svg("rect", { x, width: w, height: 22, fill }));
        x += w;
      }
      return picture;
    };
    const legend = element("div", { class: "legend" }, element("span", {}, swatch("var(--accent)"), "in use"), element("span", {}, swatch("var(--kept)"), "kept for prefixes"), element("span", {}, swatch("var(--cold)"), "free"));
    const parts = [bar([[used, "var(--accent)"], [kept, "var(--kept)"]], all, `${used} of ${all} blocks in use, ${kept} kept`)];
    const [hostUsed, hostAll] = flow.host_kv;
    if (hostAll) parts.push(element("p", { class: "hint" }, "host memory"), bar([[hostUsed, "var(--kept)"]], hostAll, `${hostUsed} of ${hostAll} blocks of host memory in use`));
    this.bars.replaceChildren(...parts, legend);
    const [asked, found] = flow.prefix;
    const pairs = [
      ["blocks in use", `${number(used)} of ${number(all)}`],
      ["kept for prefixes", number(kept)],
      ["prompt tokens found in the cache", asked ? `${percent(found / asked)} (${number(found)} of ${number(asked)})` : "–"],
      ["preempted requests", number(flow.preempted)],
      ["rows of a step, on average", number(flow.rows)],
    ];
    if (hostAll) pairs.splice(2, 0, ["in host memory", `${number(hostUsed)} of ${number(hostAll)}`]);
    this.pairs.replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
  }
}
