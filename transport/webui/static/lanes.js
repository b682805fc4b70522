// Which lanes the time line has, in which order, and what they are called.
import { kinds, title } from "./format.js";

const ORDER = ["request", "schedule", "embed", "hop", "group", "split", "pool", "device", "merge", "link", "head", "sample", "stream", "gateway"];
const GROUPED = ["link", "group", "split", "merge"];

// How the names of lanes beside that of an actor or a device end.
const COPY = " copy", KV = " kv", PHASES = " phases";

/** More lanes of phases than that are folded until the viewer asks for them. */
export const PHASES_SHOWN = 2;

export const ofPhases = (name) => name.endsWith(PHASES);

const owner = (name) => [COPY, KV, PHASES].reduce((n, end) => (n.endsWith(end) ? n.slice(0, -end.length) : n), name);

/** The process of a lane, "" for the server's own, and its name there. */
export function process(lane) {
  const at = lane.lastIndexOf("/");
  return [lane.slice(0, Math.max(0, at)), lane.slice(at + 1)];
}

const nodeOf = (name, nodes) => nodes?.find((n) => n.name === name);

/** What a lane is called, from its actor's name; of a worker with its rank. */
export function laneTitle(name, nodes) {
  const [from] = process(name);
  return from ? `${from.replace(/(\d+)$/, " $1")} ${titleThere(name, nodes)}` : titleThere(name, nodes);
}

function titleThere(name, nodes) {
  if (ofPhases(name)) return `${title({ kind: "phases", index: nodeOf(owner(name), nodes)?.index ?? "" })}`;
  const node = nodeOf(name, nodes);
  if (!node) return process(name)[1];
  if (node.kind === "split" || node.kind === "merge") return `${node.kind} ${node.index}`;
  return title(node);
}

/** A text of the server's, with actors called what the picture calls them; "in" is a word there. */
export const named = (text, nodes) => text.replace(/[\w:/]+/g, (word) => (word === "in" ? word : laneTitle(word, nodes)));

/** Lanes in the order of a batch's way: this process, then the workers; groups with their splits and merges, then the
 * pools; copies below their device, phases below their pool. */
export function sortLanes(lanes, nodes) {
  const place = ({ name }) => {
    const rank = Number(process(name)[0].match(/\d+$/)?.[0] ?? -1);
    return [rank, ...placeThere(name)];
  };
  const placeThere = (name) => {
    const own = owner(name);
    const kind = nodeOf(own, nodes)?.kind ?? process(own)[1].replace(/\d+$/, "");
    const index = nodeOf(own, nodes)?.index ?? Number(own.match(/\d+$/)?.[0] ?? 0);
    const aside = own === name ? 0 : name.endsWith(KV) ? 2 : 1;
    return GROUPED.includes(kind) ? [ORDER.indexOf("group"), index, GROUPED.indexOf(kind)] : [ORDER.indexOf(kind), index, aside];
  };
  return lanes.sort((a, b) => place(a).map((v, i) => v - place(b)[i]).find((d) => d) ?? 0);
}

const USUAL = ["schedule", "embed", "group", "split", "experts", "merge", "link", "head", "sample", "stream"];
const MORE = ["hop", "device", "device experts", "copy experts", "copy kv", "save kv", "rows", "gate and up", "down", "sums"];

/** The kinds that a legend explains: the usual ones, and those of other lanes that are there. */
export const explained = (seen) => [...USUAL, ...MORE.filter((k) => seen.has(k))].map((k) => [k, kinds[k][0]]);
