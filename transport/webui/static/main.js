// What the server pushes goes to the parts of the page that show it.
import { Channel, ask } from "./channel.js";
import { bytes, element, number, percent, seconds } from "./format.js";
import { Chat } from "./chat.js";
import { Charts } from "./charts.js";
import { Heat } from "./heat.js";
import { Memory } from "./memory.js";
import { Requests } from "./requests.js";
import { TimeLine } from "./timeline.js";
import { Topology } from "./topology.js";
import { sentence } from "./where.js";

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
    const loading = topology.nodes.length === 0;
    document.body.classList.toggle("loading", loading);
    chat.setReady(!loading);
    charts.set(m.history ?? []);
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
  const live = state.where?.of !== "request";
  if (state.verdict && $("verdict").textContent !== state.verdict.text) $("verdict").textContent = state.verdict.text;
  $("last").textContent = sentence(state.where, topology.nodes);
  $("progress").hidden = !(state.loading?.share > 0);
  $("progress").value = state.loading?.share ?? 0;
  picture.update(nodes, state.where, live);
  $("of").textContent = live ? "share of a step's time that is spent in it" : `share of the last request's time that was spent in it`;
  if (change.heat) heat.update(change.heat);
  if (change.flow) memory.update(change.flow);
  if (change.experts) caches(change.experts);
  if (change.requests) {
    requests.update(change.requests);
    chat.update(change.requests);
  }
  if (change.point) charts.add(change.point);
  if (state.flow) figures(state.flow, state.latency, live ? undefined : state.requests?.find((r) => r.id === state.where.id));
  const hot = state.heat?.hot ?? [];
  $("hottest").textContent = hot.length
    ? "Hot experts: " + hot.slice(0, 3).map((h) => `layer ${h.layer} expert ${h.expert} (${percent(h.share)} of its rows)`).join(", ") + "."
    : "";
}

/** Each tile has its name, what it means, and its figure: of now, or of the last request. */
function figures(flow, latency, last) {
  const per = (n, s) => (n > 0 && s > 0 ? n / s : 0);
  const pick = (of, now) => (last ? of(last) : now);
  const list = [
    ["tokens /s", "Generated tokens per second.", number(pick((r) => per(1, r.per_token), flow.tokens))],
    ["prompt tokens /s", "Prompt tokens computed per second, without tokens found in the KV cache.", number(pick((r) => per(r.prompt - r.cached, r.to_first - r.waited), flow.prompt))],
    [last ? "steps" : "steps /s", "A step takes rows of many requests through all layers once. Each request that is being answered gets a token from it.", number(pick(() => state.where.all, flow.steps))],
    ["first token", "Time from a request's arrival to its first token; for several requests, the median of the last half minute.", seconds(pick((r) => r.to_first, latency?.ttft?.p50))],
    ["token to token", "Time from one token of an answer to the next; for several requests, the median of the last half minute.", seconds(pick((r) => r.per_token, latency?.itl?.p50))],
    ["running, waiting", "Requests that take part in steps, and requests that wait to.", `${flow.running}, ${flow.waiting}`],
    ["KV cache used", "Share of the KV cache's blocks that running requests hold. The cache keeps the keys and values of earlier tokens.", flow.kv[2] ? percent(flow.kv[0] / flow.kv[2]) : "–"],
  ];
  const dl = $("figures");
  if (!dl.children.length) dl.append(...list.map(([, meaning]) => tile(meaning)));
  const scope = last ? `Of the last request, number ${last.id}` : "Now";
  if ($("scope").textContent !== scope) $("scope").textContent = scope;
  list.forEach(([name, , value], i) => {
    const [dt, dd] = dl.children[i].children;
    if (dt.textContent !== name) dt.textContent = name;
    if (dd.textContent !== value) dd.textContent = value;
  });
}

/** A figure that says what it means to who points at it, touches it or goes there by keyboard. */
function tile(meaning) {
  const box = element("div", { tabindex: 0, title: meaning }, element("dt"), element("dd"));
  const tell = () => { $("meaning").textContent = `${box.firstChild.textContent}: ${meaning}`; };
  box.addEventListener("focus", tell);
  box.addEventListener("click", tell);
  return box;
}

function caches(experts) {
  const pairs = [];
  for (const [device, rate] of Object.entries(experts.computed).sort()) pairs.push([`computed on ${device}`, `${number(rate)} /s`]);
  for (const c of experts.caches) {
    pairs.push([`${c.strategy}: found on ${c.rank}`, c.rate < 0 ? "–" : `${percent(c.rate)}, ${number(c.hits)} /s`]);
    if (c.link >= 0) {
      pairs.push([`${c.strategy}: missing, computed by the CPU`, `${percent(1 - c.link)}, ${number(c.host)} /s`]);
      pairs.push([`${c.strategy}: missing, copied for the layer`, `${percent(c.link)}, ${number(c.misses)} /s`]);
    }
    pairs.push([`${c.strategy}: moved between steps`, `${number(c.moves)} /s`]);
    pairs.push([`${c.strategy}: bytes copied`, `${bytes(c.bytes)}/s`]);
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
