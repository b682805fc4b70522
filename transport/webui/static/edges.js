// How the edges of the pipeline run. Those that meet at a box do so at places of their own.

// Where an edge leaves a box above or below, and where it comes in, as a share of its width.
const LEAVES = { "schedule embed": 0.25, "sample schedule": 0.25, "sample stream": 0.75, "pool merge": 0.66, "group device": 0.4 };
const COMES = { "schedule embed": 0.5, "sample schedule": 0.75, "sample stream": 0.75, "split pool": 0.34, "copies group": 0.6 };

const AROUND = 8; // px beside the boxes, for the way back

/** The path from box a to box b, each [x, y, width, height]. */
export function edge(from, a, to, b, narrow) {
  const pair = `${from} ${to}`;
  if (narrow) {
    if (pair === "sample schedule") return back(a, b);
    if (b[0] !== a[0] && pair !== "schedule embed") return beside(a, b, pair);
  } else if (a[1] === b[1]) return beside(a, b, pair);
  const down = b[1] > a[1];
  let x1 = a[0] + a[2] * (LEAVES[pair] ?? 0.5), x2 = b[0] + b[2] * (COMES[pair] ?? 0.5);
  // Split and merge lie below a part of their group: straight down and up.
  if (pair === "group split") x1 = x2;
  if (pair === "merge group") x2 = x1;
  const y1 = down ? a[1] + a[3] : a[1], y2 = down ? b[1] : b[1] + b[3];
  const middle = (y1 + y2) / 2;
  return x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
}

/** Between boxes that lie beside each other. */
function beside(a, b, pair) {
  const right = b[0] > a[0];
  const x1 = right ? a[0] + a[2] : a[0], x2 = right ? b[0] : b[0] + b[2];
  let y1 = a[1] + a[3] / 2, y2 = b[1] + b[3] / 2;
  if (a[3] > b[3]) y1 = Math.max(a[1] + 6, Math.min(y2, a[1] + a[3] - 6));
  if (b[3] > a[3]) y2 = Math.max(b[1] + 6, Math.min(y1, b[1] + b[3] - 6));
  if (pair === "split pool") y2 = b[1] + b[3] * 0.33;
  if (pair === "pool merge") y1 = a[1] + a[3] * 0.66;
  if (y1 === y2) return `M${x1} ${y1}H${x2}`;
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}

/** From the bottom of a column around it to the top of the first row. */
function back(a, b) {
  const x = a[0] - AROUND, y = b[1] - AROUND;
  return `M${a[0]} ${a[1] + a[3] / 2}H${x}V${y}H${b[0] + b[2] / 2}V${b[1]}`;
}
