// A Redis client of one connection: requests in order, answers as Buffers, numbers, arrays and null.

import net from "node:net";

export class Redis {
  #socket;
  #waiting = [];
  #data = Buffer.alloc(0);

  static async connect(url) {
    const at = new URL(url);
    const made = new Redis();
    const where = url.startsWith("unix:") ? { path: at.pathname } : { host: at.hostname, port: Number(at.port || 6379) };
    made.#socket = net.createConnection(where);
    made.#socket.on("data", (data) => made.#heard(data));
    made.#socket.on("close", () => made.#waiting.splice(0).forEach(({ reject }) => reject(new Error("the connection is closed"))));
    await new Promise((resolve, reject) => made.#socket.once("connect", resolve).once("error", reject));
    if (at.password) await made.ask("AUTH", ...(at.username ? [at.username] : []), decodeURIComponent(at.password));
    return made;
  }

  ask(...words) {
    const parts = [`*${words.length}\r\n`];
    for (const word of words) {
      const bytes = Buffer.isBuffer(word) ? word : Buffer.from(String(word));
      parts.push(`$${bytes.length}\r\n`, bytes, "\r\n");
    }
    this.#socket.write(Buffer.concat(parts.map((each) => Buffer.from(each))));
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  close() {
    this.#socket.destroy();
  }

  #heard(data) {
    this.#data = Buffer.concat([this.#data, data]);
    for (;;) {
      const reader = { at: 0 };
      const found = this.#value(reader);
      if (found === undefined) return;
      this.#data = this.#data.subarray(reader.at);
      const { resolve, reject } = this.#waiting.shift();
      if (found instanceof Error) reject(found);
      else resolve(found);
    }
  }

  #value(reader) {
    const end = this.#data.indexOf("\r\n", reader.at);
    if (end < 0) return undefined;
    const kind = String.fromCharCode(this.#data[reader.at]);
    const line = this.#data.subarray(reader.at + 1, end).toString();
    reader.at = end + 2;
    if (kind === "+") return Buffer.from(line);
    if (kind === "-") return new Error(line);
    if (kind === ":") return Number(line);
    const length = Number(line);
    if (length < 0) return null;
    if (kind === "$") {
      if (this.#data.length < reader.at + length + 2) return undefined;
      reader.at += length + 2;
      return Buffer.from(this.#data.subarray(reader.at - length - 2, reader.at - 2));
    }
    const found = [];
    for (let number = 0; number < length; number++) {
      const each = this.#value(reader);
      if (each === undefined) return undefined;
      found.push(each);
    }
    return found;
  }
}
