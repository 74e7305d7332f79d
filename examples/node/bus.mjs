// A producer and a consumer of a namespace with one shard, after docs/wire-format.md. They need Node 18 and nothing else.

import { randomBytes } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { digest } from "./blake2b.mjs";
import { pack, unpack } from "./msgpack.mjs";

const SCRIPTS = new URL("../../command_bus/transport/redis/lua/", import.meta.url);
const GIVEN_ID = 1;
const NO_DIGEST = Buffer.alloc(8);
const [ANSWER_MS, DEDUP_MS, REPLY_MS] = [3_600_000, 600_000, 60_000];
const [MOST, ROOM] = [1_000_000, 10_000];

// The text of a script: first the shared parts that it uses, in their order, then its own, in one file or in the files of a folder.
export function script(name) {
  const own = name.endsWith("/")
    ? readdirSync(new URL(name, SCRIPTS)).sort().map((each) => readFileSync(new URL(name + each, SCRIPTS), "utf8")).join("")
    : readFileSync(new URL(`${name}.lua`, SCRIPTS), "utf8");
  const uses = [...own.matchAll(/-- uses: (.+)/g)].map((found) => found[1]).join(", ");
  const shared = uses.match(/\w+(?=[,)]|$)/g) ?? [];
  const text = shared.map((each) => readFileSync(new URL(`shared/${each}.lua`, SCRIPTS), "utf8")).join("") + own;
  // Letters have names in these files: put the letters in their places.
  const letters = [...readFileSync(new URL("letters.lua", SCRIPTS), "utf8").matchAll(/^(\S+) = ('\w')$/gm)];
  return letters.reduce((found, [, name, letter]) => found.replaceAll(new RegExp(`\\b${name}\\b`, "g"), letter), text);
}

export const mailboxOf = (type, id) => `${type}:${encoded(id)}`;
const encoded = (id) => [...Buffer.from(id)].map((byte) => {
  const letter = String.fromCharCode(byte);
  return /[A-Za-z0-9_.@-]/.test(letter) ? letter : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}).join("");

// The bytes of an envelope; trailing defaults are left out.
export function envelope({ id, name, type, entity, payload, flags = 0, ttl = null, inbox = null }) {
  const parts = [1, id, name, type, entity, payload, flags, ttl, inbox];
  while (parts.length > 6 && (parts.at(-1) === null || parts.at(-1) === 0)) parts.pop();
  return pack(parts);
}

// The digest of version 1 of a command's fields. Who settles it does not know which of them its sender left out: zeros.
export const digestOf = (name, type, entity, fields = null) => Buffer.concat([
  Buffer.from([0xd1, 1]), digest(pack([name, type, entity]), 2), fields === null ? Buffer.alloc(4) : digest(pack(inOrder(fields)), 4),
]);
const inOrder = (value) => {
  if (Array.isArray(value)) return value.map(inOrder);
  if (value === null || typeof value !== "object" || Buffer.isBuffer(value)) return value;
  return Object.fromEntries(Object.keys(value).sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b))).map((key) => [key, inOrder(value[key])]));
};

export class Producer {
  #process = randomBytes(8).toString("hex");
  #batch = 0;

  constructor(redis, namespace) {
    this.redis = redis;
    this.prefix = `{${namespace}:0}:`;
  }

  async agree(type) {
    const agreed = { protocol: "3", shards: "1", [`mailbox:${type}`]: "per_entity" };
    for (const [field, value] of Object.entries(agreed)) {
      await this.redis.ask("HSETNX", `${this.prefix}meta`, field, value);
      const found = await this.redis.ask("HGET", `${this.prefix}meta`, field);
      if (String(found) !== value) throw new Error(`the namespace has ${field} = ${found}`);
    }
  }

  // Dispatch a command under an id of one's own: "+" accepted, "=" it was before, "!" with another payload, else refused.
  async dispatch(type, entity, name, fields, id) {
    const mark = digestOf(name, type, entity, fields);
    return this.#enqueue({ id, name, type, entity, payload: pack(fields), flags: GIVEN_ID }, mark);
  }

  // Call: the reply record, or null if there is none in time.
  async call(type, entity, name, fields, seconds) {
    const [id, inbox] = [`${this.#process}-${this.#batch}`, this.#process];
    const answer = await this.#enqueue({ id, name, type, entity, payload: pack(fields), ttl: seconds * 1000, inbox });
    if (answer !== "+") throw new Error(`refused: ${answer}`);
    const popped = await this.redis.ask("BRPOP", `${this.prefix}in:${inbox}`, seconds);
    return popped === null ? null : unpack(popped[1]);
  }

  async #enqueue(command, mark = NO_DIGEST) {
    await this.agree(command.type);
    const box = mailboxOf(command.type, command.entity);
    const keys = ["ready", "active", "stats", "due", "delayed", "later", "paused", `p:${this.#process}`, "watched", "arrivals", "lone"];
    keys.push("flows", "turns", "line", `m:${box}`, `k:${command.id}`);
    const given = [++this.#batch, 0, ANSWER_MS, MOST, this.prefix.length + 2, `${ROOM}:1 `, Buffer.from([0, 1]), "m", envelope(command), mark];
    this.text ??= script("enqueue");
    const named = keys.map((each) => this.prefix + each);
    return String(await this.redis.ask("EVAL", this.text, named.length, ...named, ...given));
  }
}

// One command at a time. It does not renew its leases, so a handler has to end within the lease of the fleet (30 s).
export class Consumer {
  constructor(redis, namespace, handlers) {
    this.redis = redis;
    this.prefix = `{${namespace}:0}:`;
    this.handlers = handlers;
    this.name = `node-${randomBytes(4).toString("hex")}`;
    this.text = script("advance/");
  }

  async run(count) {
    await this.redis.ask("XGROUP", "CREATE", `${this.prefix}ready`, "workers", "0", "MKSTREAM").catch((error) => {
      if (!String(error.message).startsWith("BUSYGROUP")) throw error;
    });
    let handled = 0;
    while (handled < count) {
      const read = ["XREADGROUP", "GROUP", "workers", this.name, "COUNT", 1, "BLOCK", 1000, "STREAMS", `${this.prefix}ready`, ">"];
      const found = await this.redis.ask(...read);
      if (found === null) continue;
      const [activation, [, box]] = found[0][1][0];
      handled += await this.#entity(String(activation), String(box));
    }
  }

  // Run the commands of an entity until none is left, or the lease is gone.
  async #entity(activation, box) {
    let handled = 0;
    let [state, body] = await this.#advance(box, [], ["ts", activation, this.name, ""]);
    while (String(state).includes("|")) {
      const running = String(state).split("|").slice(0, 2).join("|");
      const [, id, name, type, entity, payload, flags = 0, , inbox = null] = unpack(Buffer.isBuffer(body) ? body : body[body.findIndex((each) => String(each) === "e") + 1]);
      const reply = pack([1, id, 0, pack(await this.handlers[name](unpack(payload)))]);
      const [keys, given] = [[], []];
      let flagged = "";
      if (flags & GIVEN_ID || inbox !== null) {
        const mark = flags & GIVEN_ID ? digestOf(name, type, entity) : NO_DIGEST;
        keys.push(`k:${id}`);
        given.push(flags & GIVEN_ID ? DEDUP_MS : REPLY_MS, Buffer.concat([Buffer.from("d"), mark, reply]));
        flagged += "m";
      }
      if (inbox !== null) {
        keys.push(`in:${inbox}`);
        given.push(reply);
        flagged += "i";
      }
      handled += 1;
      [state, body] = await this.#advance(box, keys, [`ds${flagged}`, activation, this.name, running, ...given]);
    }
    return handled;
  }

  async #advance(box, more, step) {
    const keys = ["ready", "active", "fence", "stats", "due", "paused", "parked", "dead", "watched", "events", "lone", "rules", `m:${box}`, ...more];
    const named = keys.map((each) => this.prefix + each);
    const given = ["workers", this.name, REPLY_MS, this.prefix.length + 2, 1, 1, ...step];
    const [, state, body] = await this.redis.ask("EVAL", this.text, named.length, ...named, ...given);
    if (String(state) === "error") throw new Error(String(body));
    return [state, body];
  }
}
