// The connection to the server: one WebSocket that pushes states, and requests with the
// same key.

const keyName = "krater-key";

export const key = () => sessionStorage.getItem(keyName) ?? "";

/** The UTF-8 of a text, a character a byte: what headers and btoa take. */
const octets = (s) => String.fromCharCode(...new TextEncoder().encode(s));

/** The subprotocols that carry the key, since a page cannot set a header of a WebSocket. */
export function protocols(name) {
  const k = key();
  if (!k) return [name];
  const text = btoa(octets(k));
  return [name, `krater-key.${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`];
}

export function address(path) {
  const u = new URL(path, location.href);
  u.protocol = u.protocol === "https:" ? "wss:" : "ws:";
  return u.href;
}

/** fetch with the key. */
export function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${octets(key())}`;
  return fetch(path, { ...options, headers });
}

/** Connects, and connects again when the connection is lost. */
export class Channel {
  /** on has snapshot, delta, events, link(text, connected), and locked() for a server that wants a key. */
  constructor(on) {
    this.on = on;
    this.wait = 500;
    document.addEventListener("visibilitychange", () => this.show());
    this.connect();
  }

  connect() {
    const ws = new WebSocket(address("/trace/ws"), protocols("krater.trace"));
    this.ws = ws;
    let opened = false;
    ws.onopen = () => {
      opened = true;
      this.wait = 500;
      this.on.link("connected", true);
      this.show();
    };
    ws.onmessage = ({ data }) => {
      const m = JSON.parse(data);
      this.on[m.type]?.(m);
    };
    ws.onclose = async ({ reason }) => {
      this.on.link(reason || "no connection; trying again", false);
      if (!opened && await this.needsKey()) return this.askForKey();
      setTimeout(() => this.connect(), this.wait);
      this.wait = Math.min(8000, 2 * this.wait);
    };
  }

  /** A hidden tab is sent nothing. */
  show() {
    this.send({ type: "show", visible: !document.hidden });
  }

  send(message) {
    if (this.ws.readyState === WebSocket.OPEN) this.ws.send(JSON.stringify(message));
  }

  async needsKey() {
    try {
      return (await ask("/v1/models")).status === 401;
    } catch {
      return false; // the server is away
    }
  }

  askForKey() {
    const dialog = document.getElementById("keys");
    this.on.link("a key is needed", false);
    this.on.locked();
    document.getElementById("wrong").hidden = !key();
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(keyName, document.getElementById("key").value);
      this.connect();
    }, { once: true });
    dialog.showModal();
    document.getElementById("key").select(); // a wrong one is typed over
  }
}
