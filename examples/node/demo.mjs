// node demo.mjs send URL NAMESPACE      dispatches a deposit twice, calls another, prints what came of it as JSON
// node demo.mjs work URL NAMESPACE N    handles N deposits

import { Consumer, Producer } from "./bus.mjs";
import { unpack } from "./msgpack.mjs";
import { Redis } from "./redis.mjs";

const [role, url, namespace, count = "1"] = process.argv.slice(2);
const redis = await Redis.connect(url);
if (role === "send") {
  const producer = new Producer(redis, namespace);
  const deposit = { account_id: "a-17 é/1", amount: 5 };
  const first = await producer.dispatch("account", deposit.account_id, "Deposit", deposit, "node-1");
  const again = await producer.dispatch("account", deposit.account_id, "Deposit", deposit, "node-1");
  const other = await producer.dispatch("account", deposit.account_id, "Deposit", { ...deposit, amount: 6 }, "node-1");
  const reply = await producer.call("account", deposit.account_id, "Deposit", { ...deposit, amount: 7 }, 10);
  console.log(JSON.stringify({ first, again, other, kind: reply?.[2], reply: reply === null ? null : unpack(reply[3]) }));
} else {
  const balances = new Map();
  const handlers = {
    Deposit({ account_id, amount }) {
      balances.set(account_id, (balances.get(account_id) ?? 0) + amount);
      return balances.get(account_id);
    },
  };
  await new Consumer(redis, namespace, handlers).run(Number(count));
  console.log(JSON.stringify(Object.fromEntries(balances)));
}
redis.close();
