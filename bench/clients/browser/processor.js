// Perfetto's trace processor in its worker, spoken to as its own page does: messages of
// trace_processor.proto, in a stream of TraceProcessorRpcStream. What is needed of protobuf
// is written by hand.

const append = 1, finalize = 2, query = 3; // TraceProcessorMethod

export class Processor {
  #port;
  #rest = new Uint8Array(0);
  #waiting = []; // one for each method that is under way, in order
  #sequence = 0;

  /** @param {string} bundle address of engine_bundle.js */
  constructor(bundle) {
    const { port1, port2 } = new MessageChannel();
    this.#port = port2;
    port2.onmessage = ({ data }) => this.#take(data);
    const worker = new Worker(bundle);
    worker.onerror = (e) => this.#waiting.shift()?.reject(new Error(e.message));
    worker.postMessage(port1, [port1]);
  }

  /** Reads a whole trace; refuses what its importer refuses. */
  async load(bytes) {
    for (let at = 0; at < bytes.length; at += 1 << 20) {
      await this.#call(append, field(101, bytes.subarray(at, at + (1 << 20))));
    }
    await this.#call(finalize, new Uint8Array(0));
  }

  /** @returns {Promise<object[]>} rows by column name; numbers of 64 bits as numbers */
  async query(sql) {
    return this.#call(query, field(103, field(1, new TextEncoder().encode(sql))));
  }

  #call(method, args) {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ method, resolve, reject, columns: [], rows: [], cells: [] });
      this.#port.postMessage(field(1, join([number(1, this.#sequence++), number(2, method), args])));
    });
  }

  #take(data) {
    const bytes = join([this.#rest, data]);
    const reader = new Reader(bytes);
    for (let done = 0; ; done = reader.at) {
      const message = reader.whole();
      if (message === undefined) {
        this.#rest = bytes.slice(done);
        return;
      }
      this.#answer(message);
    }
  }

  #answer(message) {
    const call = this.#waiting[0];
    let over = true;
    for (const [id, value] of new Reader(message)) {
      switch (id) {
        case 5: // fatal_error
          this.#waiting.shift().reject(new Error(text(value)));
          return;
        case 201: // append_result
          for (const [inner, error] of new Reader(value)) {
            if (inner === 2 && error.length > 0) call.error = text(error);
          }
          break;
        case 203: // query_result
          over = result(call, value);
      }
    }
    if (!over) return;
    this.#waiting.shift();
    if (call.error) call.reject(new Error(call.error));
    else call.resolve(call.rows);
  }
}

/** Adds a piece of a QueryResult to a call; true: it was the last. */
function result(call, bytes) {
  let last = false;
  for (const [id, value] of new Reader(bytes)) {
    if (id === 1) call.columns.push(text(value));
    if (id === 2 && value.length > 0) {
      call.error = text(value);
      last = true;
    }
    if (id === 3 && batch(call, value)) last = true;
  }
  return last;
}

/** Adds a CellsBatch: types, and the cells of each type on their own. */
function batch(call, bytes) {
  let types = [], integers = [], doubles = [], strings = [], last = false;
  for (const [id, value] of new Reader(bytes)) {
    if (id === 1) types = [...new Reader(value).varints()];
    if (id === 2) integers = [...new Reader(value).varints()];
    if (id === 3) {
      const view = new DataView(value.buffer, value.byteOffset, value.length);
      doubles = Array.from({ length: value.length / 8 }, (_, i) => view.getFloat64(8 * i, true));
    }
    if (id === 5) strings = text(value).split("\0");
    if (id === 6) last = value === 1n;
  }
  let i = 0, d = 0, s = 0;
  for (const type of types) {
    call.cells.push(type === 2n ? Number(BigInt.asIntN(64, integers[i++])) : type === 3n ? doubles[d++] : type === 4n ? strings[s++] : null);
    if (call.cells.length === call.columns.length) {
      call.rows.push(Object.fromEntries(call.columns.map((name, k) => [name, call.cells[k]])));
      call.cells = [];
    }
  }
  return last;
}

const text = (bytes) => new TextDecoder().decode(bytes);

function join(parts) {
  const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
  let at = 0;
  for (const p of parts) {
    all.set(p, at);
    at += p.length;
  }
  return all;
}

function varint(n) {
  const bytes = [];
  for (; n > 127; n = Math.floor(n / 128)) bytes.push((n % 128) + 128);
  return Uint8Array.from([...bytes, n]);
}

const number = (id, value) => join([varint(8 * id), varint(value)]);
const field = (id, bytes) => join([varint(8 * id + 2), varint(bytes.length), bytes]);

/** Reads a protobuf message: as an iterable [field, value] of bytes and bigints. */
class Reader {
  at = 0;
  constructor(bytes) {
    this.bytes = bytes;
  }

  *[Symbol.iterator]() {
    while (this.at < this.bytes.length) {
      const tag = Number(this.varint());
      yield [tag >> 3, this.value(tag & 7)];
    }
  }

  value(wire) {
    if (wire === 0) return this.varint();
    const length = wire === 2 ? Number(this.varint()) : wire === 1 ? 8 : 4;
    this.at += length;
    return this.bytes.subarray(this.at - length, this.at);
  }

  /** The next field's bytes, or undefined where it is not there whole. */
  whole() {
    if (this.at === this.bytes.length) return undefined;
    this.varint();
    const length = this.varint();
    if (length === undefined || this.at + Number(length) > this.bytes.length) return undefined;
    this.at += Number(length);
    return this.bytes.subarray(this.at - Number(length), this.at);
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; this.at < this.bytes.length; shift += 7n) {
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    return undefined;
  }

  *varints() {
    while (this.at < this.bytes.length) yield this.varint();
  }
}
