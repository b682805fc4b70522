// Which lanes the time line has, in which order, and what they are called.
import { kinds, title } from "./format.js";

const ORDER = ["request", "schedule", "embed", "group", "split", "pool", "device", "merge", "link", "head", "sample", "stream", "gateway"];
const GROUPED = ["link", "group", "split", "merge"];

// How the names of lanes beside that of an actor or a device end.
const COPY = " copy", KV = " kv", PHASES = " phases";

/** More lanes of phases than that are folded until the viewer asks for them. */
export const PHASES_SHOWN = 2;

export const ofPhases = (name) => name.endsWith(PHASES);

const owner = (name) => [COPY, KV, PHASES].reduce((n, end) => (n.endsWith(end) ? n.slice(0, -end.length) : n), name);

const nodeOf = (name, nodes) => nodes?.find((n) => n.name === name);

/** What a lane is called, from its actor's name. */
export function laneTitle(name, nodes) {
  if (ofPhases(name)) return `${title({ kind: "phases", index: nodeOf(owner(name), nodes)?.index ?? "" })}`;
  const node = nodeOf(name, nodes);
  if (!node) return name;
  if (node.kind === "split" || node.kind === "merge") return `${node.kind} ${node.index}`;
  return title(node);
}

/** A text of the server's, with actors called what the picture calls them. */
export const named = (text, nodes) => text.replace(/[\w:]+/g, (word) => laneTitle(word, nodes));

/** Lanes in the order of a batch's way: groups with their splits and merges, then the pools;
 * copies below their device, phases below their pool. */
export function sortLanes(lanes, nodes) {
  const place = ({ name }) => {
    const own = owner(name);
    const kind = nodeOf(own, nodes)?.kind ?? own.replace(/\d+$/, "");
    const index = Number(own.match(/\d+$/)?.[0] ?? 0);
    const aside = own === name ? 0 : name.endsWith(KV) ? 2 : 1;
    return GROUPED.includes(kind) ? [ORDER.indexOf("group"), index, GROUPED.indexOf(kind)] : [ORDER.indexOf(kind), index, aside];
  };
  return lanes.sort((a, b) => place(a).map((v, i) => v - place(b)[i]).find((d) => d) ?? 0);
}

const USUAL = ["schedule", "embed", "group", "split", "experts", "merge", "link", "head", "sample", "stream"];
const MORE = ["device", "device experts", "copy experts", "copy kv", "save kv", "rows", "gate and up", "down", "sums"];

/** The kinds that a legend explains: the usual ones, and those of other lanes that are there. */
export const explained = (seen) => [...USUAL, ...MORE.filter((k) => seen.has(k))].map((k) => [k, kinds[k][0]]);
