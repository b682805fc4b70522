// The table of open requests, and of those that have ended lately.
import { element, number, onFrame, seconds } from "./format.js";

const phases = { waiting: "waiting", prefill: "reading the prompt", decode: "generating", ended: "ended" };

export class Requests {
  constructor(body, none, { show, follow, cancel }) {
    Object.assign(this, { body, none, show, follow, cancel });
    this.list = [];
    this.rows = new Map(); // by request
    this.redraw = onFrame(body.closest("section"), () => this.draw());
  }

  /** A request of this page, by its name, is shown in the time line when it has ended. */
  expect(name) {
    this.expected = name;
    this.look();
  }

  look() {
    const r = this.list.find((q) => q.name === this.expected && q.phase === "ended");
    if (!r) return;
    this.expected = undefined;
    this.show(r.id); // where who asked is reading the answer, and asks on
  }

  update(list) {
    this.list = list;
    this.redraw();
    this.look();
  }

  draw() {
    const list = this.list;
    list.sort((a, b) => (a.phase === "ended") - (b.phase === "ended") || (a.phase === "ended" ? b.id - a.id : a.id - b.id));
    this.none.hidden = list.length > 0;
    const seen = new Set();
    list.forEach((r, i) => {
      seen.add(r.id);
      let row = this.rows.get(r.id);
      if (!row) this.rows.set(r.id, row = this.make(r));
      this.set(row, r);
      if (this.body.children[i] !== row.tr) this.body.insertBefore(row.tr, this.body.children[i] ?? null);
    });
    for (const [id, row] of this.rows) {
      if (seen.has(id)) continue;
      row.tr.remove();
      this.rows.delete(id);
    }
  }

  make(r) {
    const cells = Array.from({ length: 8 }, () => element("td"));
    const follow = element("button", { type: "button", "aria-label": `Show request ${r.id} in the time line`, onclick: () => this.follow(r.id) }, "Follow");
    const cancel = element("button", { type: "button", "aria-label": `Cancel request ${r.id}`, onclick: () => this.cancel(r.id) }, "Cancel");
    return { tr: element("tr", {}, ...cells, element("td", {}, follow, cancel)), cells, cancel };
  }

  set(row, r) {
    const texts = [
      r.id, phases[r.phase], r.cached ? `${number(r.prompt)} (${number(r.cached)} cached)` : number(r.prompt),
      `${number(r.generated)} of ${number(r.most)}`, seconds(r.age), seconds(r.waited), seconds(r.to_first), seconds(r.per_token),
    ];
    texts.forEach((text, i) => {
      if (row.cells[i].textContent !== String(text)) row.cells[i].textContent = text;
    });
    row.tr.classList.toggle("ended", r.phase === "ended");
    row.cancel.hidden = !r.mine || r.phase === "ended";
    if (r.name) row.tr.title = r.name;
  }
}
