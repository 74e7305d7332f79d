// BullMQ: a hundred jobs at a time, added in bulk, removed when done; results by queue events when calling.
// A dispatch is `add`: its script, which keeps the job in a hash, adds its id to a list and tells it to two streams.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const require = createRequire(`${process.env.PEER}/package.json`);
const { Queue, QueueEvents, Worker } = require("bullmq");
const Redis = require("ioredis").default ?? require("ioredis");

const TEXT = "x".repeat(60);
const BULK = 1000;
const WARM = 2_000; // calls before the clock starts: Node compiles what runs often
const WARM_SENDS = 10_000;

const say = (fields) => process.stdout.write(JSON.stringify(fields) + "\n");
const cpu = () => { const used = process.cpuUsage(); return (used.user + used.system) / 1e6; };
const job = (number) => ({ entity: `e${number % 1000}`, number, text: TEXT });
const options = { removeOnComplete: true, removeOnFail: true };
const kept = { removeOnComplete: { age: 60 }, removeOnFail: true }; // a job that is gone has no result

let lines;
function ready() {
  lines ??= createInterface({ input: process.stdin }).on("close", () => process.exit(1));
  const begin = new Promise((resolve) => lines.once("line", resolve));
  say({ ready: true });
  return begin;
}

function resident() {
  const found = /VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "ascii"));
  return found ? Number(found[1]) * 1024 : 0;
}

async function stretch(count, work) {
  const times = [];
  const began = performance.now(), spent = cpu();
  await work(times);
  const row = { count, seconds: (performance.now() - began) / 1000, cpu: cpu() - spent };
  times.sort((a, b) => a - b);
  const at = (share) => times[Math.max(Math.ceil(share * times.length), 1) - 1];
  say(times.length ? { ...row, p50_ms: at(0.5), p99_ms: at(0.99) } : row);
}

async function fill({ connection, count }) {
  const queue = new Queue("bench", { connection, defaultJobOptions: options });
  await queue.waitUntilReady();
  const jobs = Array.from({ length: count }, (_, number) => ({ name: "noop", data: job(number) }));
  await ready();
  await stretch(count, async () => {
    for (let start = 0; start < count; start += BULK) await queue.addBulk(jobs.slice(start, start + BULK));
  });
}

async function send({ connection, count, flight }) {
  const queue = new Queue("bench", { connection, defaultJobOptions: options });
  await queue.waitUntilReady();
  const together = (start, end) => Promise.all(Array.from({ length: end - start }, (_, each) => queue.add("noop", job(start + each))));
  for (let start = 0; start < WARM_SENDS; start += flight) await together(start, start + flight);
  await ready();
  await stretch(count, async (times) => {
    for (let start = 0; start < count; start += flight) {
      const began = performance.now();
      await together(start, Math.min(start + flight, count));
      if (flight === 1) times.push(performance.now() - began);
    }
  });
}

async function work({ connection, count }) {
  let number = 0, first = 0, spent = 0;
  await ready();
  new Worker("bench", async (each) => {
    number += 1;
    if (number === 1) { first = performance.now(); spent = cpu(); }
    if (number === count) {
      const last = performance.now();
      say({ count, first: first / 1000, last: last / 1000, seconds: (last - first) / 1000, cpu: cpu() - spent, rss: resident() });
    }
    return each.data.number;
  }, { connection, concurrency: 100 });
  await new Promise(() => {});
}

async function call({ connection, count, flight }) {
  const queue = new Queue("bench", { connection, defaultJobOptions: kept });
  // From the first event: by default it misses what happens between its connection and its first read, and a call waits for ever.
  const events = new QueueEvents("bench", { connection: connection.duplicate(), lastEventId: "0-0" });
  events.setMaxListeners(0);
  await Promise.all([queue.waitUntilReady(), events.waitUntilReady()]);
  const one = async (number) => (await queue.add("noop", job(number))).waitUntilFinished(events, 60000);
  for (let number = 0; number < WARM; number += 1) await one(number);
  await ready();
  await stretch(count, async (times) => {
    let next = 0;
    const lane = async () => {
      while (next < count) {
        const began = performance.now();
        await one(next++);
        times.push(performance.now() - began);
      }
    };
    await Promise.all(Array.from({ length: flight }, lane));
  });
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { url: { type: "string" }, count: { type: "string" }, flight: { type: "string", default: "1" } },
});
const roles = { fill, send, work, call };
const connection = new Redis(values.url, { maxRetriesPerRequest: null });
await roles[positionals[0]]({ connection, count: Number(values.count), flight: Number(values.flight) });
process.exit(0);
