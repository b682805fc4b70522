// The chat box: the Responses interface over its WebSocket.
import { address, protocols } from "./channel.js";
import { element, number, seconds } from "./format.js";

const $ = (id) => document.getElementById(id);

export class Chat {
  constructor() {
    $("ask").addEventListener("submit", (e) => {
      e.preventDefault();
      const question = $("question").value.trim() || $("question").placeholder;
      if (this.busy) return;
      $("question").value = "";
      this.ask(question);
    });
    $("stop").addEventListener("click", () => this.send({ type: "response.cancel", response_id: this.id }));
  }

  ask(question) {
    this.answer = element("p", { class: "a" });
    $("talk").append(element("p", { class: "q" }, question), this.answer);
    this.toEnd();
    this.set(true);
    this.begun = performance.now();
    this.first = this.count = 0;
    const request = { type: "response.create", input: question, max_output_tokens: 400 };
    if (this.previous) request.previous_response_id = this.previous;
    if (this.ws?.readyState === WebSocket.OPEN) return this.send(request);
    delete request.previous_response_id; // of a connection that is gone
    this.ws = new WebSocket(address("/v1/responses"), protocols("realtime"));
    this.ws.onopen = () => this.send(request);
    this.ws.onmessage = ({ data }) => this.take(JSON.parse(data));
    this.ws.onclose = () => {
      this.previous = undefined;
      if (this.busy) this.fail("The connection was lost.");
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
      case "response.output_text.delta":
        this.first ||= performance.now();
        this.count++;
        this.answer.append(event.delta);
        this.toEnd();
        this.tell(this.count);
        break;
      case "response.completed":
      case "response.incomplete":
        this.previous = this.id;
        this.tell(event.response.usage?.output_tokens ?? this.count);
        this.set(false);
        this.onAnswer?.(this.id);
        break;
      case "response.failed":
        this.fail(event.response.error?.message ?? "The answer failed.");
        break;
      case "error":
        this.fail(event.error.message);
        break;
    }
  }

  tell(tokens) {
    if (!this.first) return;
    const took = (performance.now() - this.first) / 1000;
    const rate = took > 0.005 ? `, ${number(Math.max(0, tokens - 1) / took)} a second` : "";
    $("speed").textContent = `${tokens} tokens; the first after ${seconds((this.first - this.begun) / 1000)}${rate}`;
  }

  fail(message) {
    this.answer.replaceWith(element("p", { class: "e" }, message));
    this.previous = undefined;
    this.set(false);
  }

  set(busy) {
    this.busy = busy;
    $("send").disabled = busy;
    $("stop").hidden = !busy;
  }

  toEnd() {
    $("talk").scrollTop = $("talk").scrollHeight;
  }
}
