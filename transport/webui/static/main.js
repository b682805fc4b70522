// What the server pushes goes to the parts of the page that show it.
import { Channel, ask } from "./channel.js";
import { bytes, element, fewRows, number, percent, seconds } from "./format.js";
import { Chat } from "./chat.js";
import { Charts } from "./charts.js";
import { Heat } from "./heat.js";
import { Memory } from "./memory.js";
import { Requests } from "./requests.js";
import { TimeLine } from "./timeline.js";
import { Topology } from "./topology.js";

const $ = (id) => document.getElementById(id);

let topology = { nodes: [], edges: [] };
let state = {};

const picture = new Topology($("topology"), $("actor"));
const heat = new Heat($("heat"), $("expert"), $("hot"), $("shades"));
const memory = new Memory($("blocks"), $("kv"));
const charts = new Charts($("plots"));
const chat = new Chat();
const line = new TimeLine($("lanes"), (m) => channel.send(m));
const requests = new Requests($("rows"), $("none"), { show: (id) => line.show(id), follow: (id) => line.follow(id), cancel });
chat.onAnswer = (name) => requests.expect(name);

const channel = new Channel({
  link(text, on) {
    $("link").textContent = text;
    $("link").classList.toggle("on", on);
  },
  locked() { $("verdict").textContent = "This server asks for an API key"; },
  snapshot(m) {
    topology = m.topology;
    state = {};
    $("model").textContent = m.model + (m.context ? `, context of ${number(m.context)} tokens` : "");
    picture.draw(topology);
    line.nodes = topology.nodes;
    apply(m.state);
    line.ask();
  },
  delta: (m) => apply(m.state),
  events: (m) => line.take(m),
  error: (m) => { $("subject").textContent = m.message; },
});

/** Takes the parts of a state that changed. */
function apply(change) {
  const nodes = { ...state.nodes, ...change.nodes };
  state = { ...state, ...change, nodes };
  if (state.verdict) $("verdict").textContent = state.verdict.text;
  picture.update(nodes, state.verdict?.node);
  if (change.heat) heat.update(change.heat);
  if (change.flow) memory.update(change.flow);
  if (change.experts) caches(change.experts);
  if (change.requests) requests.update(change.requests);
  if (state.flow) {
    charts.add(state.flow, state.latency);
    figures(state.flow, state.latency);
  }
  const hot = state.heat?.hot ?? [];
  $("hottest").textContent = hot.length && hot[0].share > 0
    ? `Hot experts${fewRows(state.heat.rows)}: ` + hot.slice(0, 3).map((h) => `layer ${h.layer} expert ${h.expert} (${percent(h.share)} of rows)`).join(", ") + "."
    : "";
}

function figures(flow, latency) {
  // A rate follows what happens over a second: what is left of it when nothing runs is no speed.
  const rate = (v) => number(flow.running + flow.waiting ? v : 0);
  const list = [
    ["tokens /s", rate(flow.tokens)],
    ["prompt tokens /s", rate(flow.prompt)],
    ["running, waiting", `${flow.running}, ${flow.waiting}`],
    ["steps /s", rate(flow.steps)],
    ["first token, median", seconds(latency?.ttft?.p50)],
    ["token to token, median", seconds(latency?.itl?.p50)],
    ["KV cache used", flow.kv[2] ? percent(flow.kv[0] / flow.kv[2]) : "–"],
  ];
  const dl = $("figures");
  if (!dl.children.length) dl.append(...list.map(([name]) => element("div", {}, element("dt", {}, name), element("dd", {}, ""))));
  list.forEach(([, value], i) => {
    const dd = dl.children[i].lastChild;
    if (dd.textContent !== value) dd.textContent = value;
  });
}

function caches(experts) {
  const pairs = [];
  for (const [device, rate] of Object.entries(experts.computed).sort()) pairs.push([`computed on ${device}`, `${number(rate)} /s`]);
  for (const c of experts.caches) {
    pairs.push([`${c.strategy}: at hand on ${c.rank}`, c.rate < 0 ? "–" : percent(c.rate)]);
    pairs.push([`${c.strategy}: hits, misses`, `${number(c.hits)}, ${number(c.misses)} /s`]);
    pairs.push([`${c.strategy}: copied`, `${bytes(c.bytes)}/s`]);
  }
  $("caches").replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

async function cancel(id) {
  const answer = await ask(`/trace/requests/${id}/cancel`, { method: "POST" });
  if (!answer.ok && answer.status !== 404) $("none").textContent = `The request could not be cancelled: ${answer.status}`;
}

$("save").addEventListener("click", async () => {
  const answer = await ask(line.request ? `/trace/export?request=${line.request}` : "/trace/export?steps=500");
  if (!answer.ok) return;
  const url = URL.createObjectURL(await answer.blob());
  element("a", { href: url, download: "krater-trace.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  line.redraw();
  heat.redraw();
  charts.redraw();
});
new ResizeObserver(() => {
  picture.layout();
  line.redraw();
  heat.redraw();
  charts.redraw();
}).observe(document.querySelector("main"));
