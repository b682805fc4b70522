// The chat box: the Responses interface over its WebSocket.
import { address, protocols } from "./channel.js";
import { element, number, onFrame, seconds } from "./format.js";
import { markdown } from "./markdown.js";

const $ = (id) => document.getElementById(id);

const RETRY = 1000; // ms, while the server says that the model is loading

export class Chat {
  constructor() {
    this.turns = []; // what was said, as messages
    $("ask").addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.busy) return;
      const question = $("question").value.trim() || $("question").placeholder;
      $("question").value = "";
      this.ask(question);
    });
    $("question").addEventListener("keydown", (e) => {
      if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
      e.preventDefault();
      $("ask").requestSubmit();
    });
    $("stop").addEventListener("click", () => this.stop());
    $("fresh").addEventListener("click", () => this.fresh());
    $("limit").addEventListener("input", () => this.tellLimit());
    this.redraw = onFrame($("talk"), () => this.draw());
    this.tellLimit();
  }

  /** The most tokens of an answer. */
  get limit() {
    const n = Math.floor(Number($("limit").value));
    return n >= 1 ? n : Number($("limit").defaultValue);
  }

  tellLimit() {
    $("limit-now").textContent = `${number(this.limit)} tokens`;
  }

  /** Whether the model is there: a question waits for it. */
  setReady(yes) {
    this.loading = !yes;
    if (yes) this.begin();
  }

  ask(question) {
    this.question = { role: "user", content: question };
    this.open(element("p", { class: "q" }, question));
    this.pending = () => this.create(this.turns.concat(this.question), this.question.content);
    this.begin();
  }

  /** Goes on with an answer that ended at the limit. */
  carryOn() {
    this.question = undefined;
    this.below.replaceChildren();
    this.note.textContent = "";
    this.pending = () => this.create(this.turns, undefined, { continue_final_message: true, add_generation_prompt: false });
    this.set(true);
    this.begin();
  }

  /** Makes room for a question and its answer. */
  open(question) {
    this.last?.remove(); // what could be done with the answer before: to go on, to ask again
    this.text = "";
    this.answer = element("div", { class: "a" });
    this.note = element("p", { class: "note", role: "status" });
    this.below = element("div", { class: "tools" });
    $("talk").append(element("div", { class: "turn" }, question, this.answer, this.note, this.below));
    this.toEnd();
    this.set(true);
    $("speed").textContent = "";
  }

  /** Asks, once the model is there. */
  begin() {
    if (!this.pending) return;
    if (this.loading) {
      this.note.textContent = "The model is loading. Your question will be asked when it is loaded.";
      this.toEnd();
      return;
    }
    this.note.textContent = "";
    this.note.classList.remove("e");
    this.asked = this.pending;
    this.pending = undefined;
    this.asked();
  }

  /** Sends a request: the new question behind what the server remembers, or all that was said. */
  create(all, question, more = {}) {
    this.begun = performance.now();
    this.first = this.count = 0;
    this.id = undefined;
    const request = { type: "response.create", max_output_tokens: this.limit, ...more };
    const system = $("system").value.trim(), temperature = $("temperature").value;
    if (system) request.instructions = system;
    if (temperature !== "") request.temperature = Number(temperature);
    if (this.previous && question && this.ws?.readyState === WebSocket.OPEN) Object.assign(request, { previous_response_id: this.previous, input: question });
    else request.input = all;
    if (this.ws?.readyState === WebSocket.OPEN) return this.send(request);
    const ws = this.ws = new WebSocket(address("/v1/responses"), protocols("realtime"));
    ws.onopen = () => this.send(request);
    ws.onmessage = ({ data }) => { if (ws === this.ws) this.take(JSON.parse(data)); };
    ws.onclose = () => {
      if (ws !== this.ws) return;
      this.previous = undefined;
      if (this.busy && !this.pending) this.fail("The connection was lost.");
    };
  }

  send(message) {
    if (this.ws?.readyState === WebSocket.OPEN) this.ws.send(JSON.stringify(message));
  }

  take(event) {
    switch (event.type) {
      case "response.created":
        this.id = event.response.id;
        break;
      case "response.reasoning_text.delta":
        this.first ||= performance.now();
        this.note.textContent = "The model is thinking.";
        break;
      case "response.output_text.delta":
        if (!this.text) this.note.textContent = "";
        this.first ||= performance.now();
        this.text += event.delta;
        this.redraw();
        break;
      case "response.completed":
      case "response.incomplete":
        this.end(event.response);
        break;
      case "response.failed":
        this.fail(event.response.error?.message ?? "The answer failed.");
        break;
      case "error":
        this.refused(event.error);
        break;
    }
  }

  refused(error) {
    if (error.code === "previous_response_not_found" && this.previous) {
      this.previous = undefined; // the server has forgotten it: all is told again
      this.asked();
    } else if (error.code === "unavailable" && /loading/.test(error.message)) {
      this.loading = true;
      this.pending = this.asked;
      this.begin();
      setTimeout(() => this.setReady(true), RETRY);
    } else if (error.code !== "response_cancel_not_active") this.fail(error.message); // else it has ended meanwhile
  }

  end(response) {
    this.draw();
    if (this.question) this.turns.push(this.question);
    const whole = this.text;
    if (!this.question) this.turns.at(-1).content = whole;
    else if (whole) this.turns.push({ role: "assistant", content: whole });
    this.previous = response.id;
    this.count = response.usage?.output_tokens ?? this.count;
    const reason = response.incomplete_details?.reason;
    const full = reason === "max_output_tokens" && this.count < this.limit;
    this.note.textContent = reason === "cancelled" ? "Stopped." : full ? "The answer ends here: the model's context is full."
      : reason ? `The answer ends here: it has reached the limit of ${number(this.limit)} tokens.` : "";
    if (whole) this.below.append(copier(() => whole, "Copy answer"));
    if (reason === "max_output_tokens" && !full && whole) this.offer("Continue", () => this.carryOn());
    this.set(false);
    this.tell();
    this.onAnswer?.(this.id);
  }

  fail(message) {
    this.note.classList.add("e");
    this.note.textContent = message;
    this.previous = undefined; // the server drops what could not be continued
    const { question } = this;
    if (question) this.offer("Ask again", () => this.ask(question.content));
    else this.offer("Continue", () => this.carryOn());
    this.set(false);
  }

  /** A button below the newest answer. */
  offer(name, act) {
    this.last = element("button", { type: "button", onclick: () => { if (!this.busy) act(); } }, name);
    this.below.append(this.last);
    this.toEnd();
  }

  stop() {
    if (this.pending) { // it was never asked
      this.pending = undefined;
      this.note.textContent = "Not asked.";
      this.set(false);
    } else if (this.id) this.send({ type: "response.cancel", response_id: this.id });
    else this.send({ type: "response.cancel" });
  }

  /** Forgets what was said. */
  fresh() {
    if (this.busy) this.stop();
    this.ws?.close();
    this.ws = this.previous = this.pending = this.last = undefined;
    this.turns = [];
    $("talk").replaceChildren();
    $("speed").textContent = "";
    this.set(false);
    $("question").focus();
  }

  /** The requests as the server counts them. */
  update(list) {
    const r = this.id && list.find((q) => q.name === this.id);
    if (!r) return;
    this.row = r;
    if (this.busy) this.count = Math.max(this.count, r.generated);
    this.tell();
  }

  tell() {
    const row = this.row?.name === this.id ? this.row : undefined;
    if (!this.count) return;
    const first = row?.to_first || (this.first - this.begun) / 1000;
    const parts = [`${number(this.count)} token${this.count === 1 ? "" : "s"}${this.busy ? " so far" : ""}`];
    if (first > 0) parts.push(`the first after ${seconds(first)}`);
    if (row?.per_token > 0) parts.push(`${number(1 / row.per_token)} a second`);
    $("speed").textContent = parts.join("; ");
  }

  set(busy) {
    this.busy = busy;
    $("send").disabled = busy;
    $("stop").hidden = !busy;
    $("talk").setAttribute("aria-busy", String(busy));
  }

  draw() {
    if (!this.answer) return;
    const end = this.atEnd();
    this.answer.replaceChildren(markdown(this.text));
    for (const box of this.answer.querySelectorAll(".code")) box.prepend(element("div", { class: "bar" }, element("span", {}, box.dataset.language ?? ""), copier(() => box.querySelector("code").textContent, "Copy code")));
    if (end) this.toEnd();
  }

  /** Who has scrolled up to read stays there. */
  atEnd() {
    const t = $("talk");
    return t.scrollTop + t.clientHeight > t.scrollHeight - 40;
  }

  toEnd() {
    $("talk").scrollTop = $("talk").scrollHeight;
  }
}

/** A button that copies a text, and says so. */
function copier(text, label) {
  const b = element("button", { type: "button", class: "copy", "aria-label": label, title: label }, "Copy");
  b.addEventListener("click", async () => {
    b.textContent = await copy(text()) ? "Copied" : "Not copied";
    setTimeout(() => { b.textContent = "Copy"; }, 1500);
  });
  return b;
}

/** Only a page of this machine or over TLS has navigator.clipboard. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
