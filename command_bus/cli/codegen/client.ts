/** A command's name. */
export type CommandName = keyof Commands;
/** Those that are dispatched; a query is called. */
export type SendName = { [N in CommandName]: Commands[N]["kind"] extends "query" ? never : N }[CommandName];

/** The answer to a command that the server has. */
export interface Receipt {
  command_id: string;
  status: "accepted" | "duplicate" | "replaced";
  other: string | null;
}

/** Options of a command, as those of `dispatch`. */
export interface SendOptions {
  /** The command id: a repeat with the same key is not run twice. */
  key?: string;
  /** Seconds until it takes its place in its entity's line. */
  delay?: number;
  /** The moment when it does, instead of `delay`. */
  at?: Date;
  /** Seconds after which it is not started any more. */
  expires?: number;
  keepResult?: boolean;
  priority?: "high" | "normal" | "low";
  attemptTimeout?: number;
  /** Text that travels with it. */
  headers?: { [name: string]: string };
  signal?: AbortSignal;
}

/** Options of a call. */
export interface CallOptions {
  key?: string;
  /** Whole seconds to wait, by default 10. */
  wait?: number;
  priority?: "high" | "normal" | "low";
  attemptTimeout?: number;
  headers?: { [name: string]: string };
  signal?: AbortSignal;
}

/** A command of a batch. */
export type BatchItem = {
  [N in SendName]: { name: N; fields: Commands[N]["fields"] };
}[SendName] & {
  id?: string;
  delay?: number;
  expires?: number;
  keep_result?: boolean;
  priority?: "high" | "normal" | "low";
  headers?: { [name: string]: string };
};

export interface BatchOutcome {
  command_id: string | null;
  status: "accepted" | "duplicate" | "replaced" | "rejected";
  other: string | null;
  error?: { status: number; code: string; detail: string };
}

export interface BatchResult {
  accepted: number;
  duplicates: number;
  rejected: number;
  replaced: number;
  outcomes: Array<BatchOutcome>;
}

/** Where a command is; `reply` or `error` once it is settled. */
export interface Status<R = unknown> {
  command_id: string;
  state: string;
  name: string;
  entity: string;
  position: number | null;
  attempt: number;
  outcome: string;
  reply?: R;
  error?: { status: number; code: string; detail: string };
}

export interface Progress {
  share: number | null;
  note: string;
  at: string | null;
  outcome: string;
}

/** Something that happened; `id` is where to go on behind it. */
export interface BusEvent {
  id: string;
  /** `gap` if events are missing. */
  kind: string;
  at?: string;
  entity?: string;
  entity_type?: string | null;
  entity_id?: string | null;
  command_id?: string;
  name?: string;
  [more: string]: unknown;
}

/** An answer that says what went wrong; `code` is stable. */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  /** Seconds after which a new try is sensible. */
  readonly retryAfter: number | null;
  readonly body: { [name: string]: unknown };

  constructor(status: number, body: { [name: string]: unknown }, retryAfter: number | null) {
    super(String(body["detail"] ?? `status ${status}`));
    this.name = "Problem";
    this.status = status;
    this.code = String(body["code"] ?? "unknown");
    this.retryAfter = retryAfter;
    this.body = body;
  }
}

export interface ClientOptions {
  /** Where the gateway is, such as `https://bus.example`. */
  url: string;
  token: string;
  /** Instead of the global `fetch`. */
  fetch?: typeof fetch;
}

/**
 * Sends commands to the gateway. Every method throws `Problem`; with the code `unreachable` and the status 0 if there was no answer: with a `key`
 * it is safe to try again. What `signal` aborts throws as `fetch` does.
 */
export class Client {
  readonly #url: string;
  readonly #token: string;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    this.#url = options.url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
  }

  /** Dispatch a command: the server has it when this returns. */
  async send<N extends SendName>(name: N, fields: Commands[N]["fields"], options: SendOptions = {}): Promise<Receipt> {
    const query = new URLSearchParams();
    if (options.delay !== undefined) query.set("delay", String(options.delay));
    if (options.at !== undefined) query.set("at", options.at.toISOString());
    if (options.expires !== undefined) query.set("expires", String(options.expires));
    if (options.keepResult) query.set("keep_result", "true");
    return this.#post(name, fields, query, options, {});
  }

  /** Send a command or query, and wait for its reply. */
  async call<N extends CommandName>(
    name: N,
    fields: Commands[N]["fields"],
    options: CallOptions = {},
  ): Promise<Commands[N]["reply"]> {
    const prefer = { Prefer: `wait=${options.wait ?? 10}` };
    const answer = await this.#post<{ reply: Commands[N]["reply"] }>(name, fields, new URLSearchParams(), options, prefer);
    return answer.reply;
  }

  /** Dispatch many commands; those of one entity keep their order, and each has an outcome. */
  async batch(commands: Array<BatchItem>, signal?: AbortSignal): Promise<BatchResult> {
    const body = JSON.stringify({ commands });
    return this.#json("/commands", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal });
  }

  /** Return where a command is; wait so many seconds for its outcome. */
  async status<R = unknown>(commandId: string, wait = 0, signal?: AbortSignal): Promise<Status<R>> {
    return this.#json(`/commands/${encodeURIComponent(commandId)}${wait ? `?wait=${wait}` : ""}`, { signal });
  }

  /** Take a command out of line, with `running` also end one that has started. */
  async cancel(commandId: string, options: { running?: boolean; reason?: string; signal?: AbortSignal } = {}): Promise<void> {
    const query = new URLSearchParams({ running: String(options.running ?? false), reason: options.reason ?? "" });
    await this.#json(`/commands/${encodeURIComponent(commandId)}?${query}`, { method: "DELETE", signal: options.signal });
  }

  /** Yield how far a command is; the last one has its outcome. */
  async *progress(commandId: string, signal?: AbortSignal): AsyncGenerator<Progress, void> {
    for await (const message of this.#messages(`/commands/${encodeURIComponent(commandId)}/progress`, signal)) {
      yield JSON.parse(message.data) as Progress;
    }
  }

  /** Yield what happens to commands of watched types, behind `after` if it is given. Call again with the last `id` if it ends. */
  async *events(
    options: { types?: Array<string>; kinds?: Array<string>; after?: string; signal?: AbortSignal } = {},
  ): AsyncGenerator<BusEvent, void> {
    const query = new URLSearchParams();
    for (const type of options.types ?? []) query.append("type", type);
    for (const kind of options.kinds ?? []) query.append("kind", kind);
    if (options.after !== undefined) query.set("after", options.after);
    for await (const message of this.#messages(`/events?${query}`, options.signal)) {
      const facts = JSON.parse(message.data) as { [name: string]: unknown };
      yield { kind: message.event, ...facts, id: message.id };
    }
  }

  async #post<A>(
    name: string,
    fields: unknown,
    query: URLSearchParams,
    options: { key?: string; priority?: string; attemptTimeout?: number; headers?: { [name: string]: string }; signal?: AbortSignal },
    more: { [name: string]: string },
  ): Promise<A> {
    const headers: { [name: string]: string } = { "Content-Type": "application/json", ...more };
    if (options.key !== undefined) headers["Idempotency-Key"] = options.key;
    for (const [header, value] of Object.entries(options.headers ?? {})) headers[`X-Command-${header}`] = value;
    if (options.priority !== undefined) query.set("priority", options.priority);
    if (options.attemptTimeout !== undefined) query.set("attempt_timeout", String(options.attemptTimeout));
    const path = `/commands/${encodeURIComponent(name)}${query.toString() ? `?${query}` : ""}`;
    return this.#json(path, { method: "POST", body: JSON.stringify(fields), headers, signal: options.signal });
  }

  async #json<A>(path: string, init: { method?: string; body?: string; headers?: { [name: string]: string }; signal?: AbortSignal | undefined }): Promise<A> {
    const answer = await this.#answer(path, init);
    return (await answer.json()) as A;
  }

  async #answer(path: string, init: { method?: string; body?: string; headers?: { [name: string]: string }; signal?: AbortSignal | undefined }): Promise<Response> {
    const { signal, ...rest } = init;
    const headers = { ...init.headers, Authorization: `Bearer ${this.#token}` };
    const answer = await this.#fetch(this.#url + path, { ...rest, headers, ...(signal ? { signal } : {}) }).catch((error: unknown) => {
      if (signal?.aborted) throw error;
      throw new Problem(0, { code: "unreachable", detail: `${this.#url} cannot be reached: ${String(error)}` }, null);
    });
    if (answer.ok) return answer;
    const body = (await answer.json().catch(() => ({}))) as { [name: string]: unknown };
    const wait = answer.headers.get("Retry-After");
    throw new Problem(answer.status, body, wait === null ? null : Number(wait));
  }

  async *#messages(path: string, signal?: AbortSignal): AsyncGenerator<{ id: string; event: string; data: string }, void> {
    const answer = await this.#answer(path, { signal });
    if (answer.body === null) return;
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let text = "";
    let id = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        text += decoder.decode(value, { stream: true });
        const parts = text.split("\n\n");
        text = parts.pop() ?? "";
        for (const part of parts) {
          const found = { event: "", data: "" };
          for (const line of part.split("\n")) {
            const colon = line.indexOf(": ");
            const [field, value] = [line.slice(0, colon), line.slice(colon + 2)];
            if (field === "id") id = value;
            else if (field === "event" || field === "data") found[field] = value;
          }
          if (found.data) yield { id, ...found };
        }
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }
}
