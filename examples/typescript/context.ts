// What a handler is given, how it says what should follow, and what becomes of that.

import { headers, type Msg } from "@nats-io/transport-node";
import type { Executor } from "./executor.ts";

const MAX_MESSAGE = 8 * 1024, MAX_OUTPUT = 64 * 1024; // bytes

/** No other attempt will do better. After any other error the job's `retry` decides. */
export class Fatal extends Error {}

/** The params are not what the handler takes; no other attempt is made. */
export class BadParams extends Error {}

/** One attempt of one shard of a run. */
export interface Dispatch {
  run: string;
  job: string;
  handler: string;
  params: unknown;
  shard: { index: number; total: number; param?: unknown };
  attempt: number;
  fire_time: string; // decides which day is settled; never the time now
  start_by: string;
  timeout_ms: number | null;
  lease_ms: number;
  max_deliveries: number;
  idempotency_key: string; // give it to whatever must happen only once
}

export type Why = "cancelled" | "drained" | "lease lost" | "timeout";

/** One delivery of it. */
export class Context {
  readonly executor: Executor;
  readonly msg: Msg;
  readonly dispatch: Dispatch;
  readonly delivery: number;
  readonly key: string;
  readonly lease: number;
  by = "";
  settled = false;
  startedAt?: string;
  /** The handler's end, once it was called. */
  returned?: Promise<unknown>;
  /** Why the handler has to stop, once it has to. */
  readonly stopped: Promise<Why>;
  #since = clocks();
  #abort = new AbortController();
  #stopped!: (why: Why) => void;

  constructor(executor: Executor, msg: Msg) {
    [this.executor, this.msg, this.dispatch] = [executor, msg, msg.json<Dispatch>()];
    const ack = msg.reply!.split("."); // $JS.ACK.[domain.account.]stream.consumer.delivered.…
    this.delivery = Number(ack[ack.length > 9 ? 6 : 4]);
    const { run, shard, attempt, lease_ms } = this.dispatch;
    this.key = [run, shard.index, attempt, this.delivery].join("/");
    this.lease = lease_ms * 0.95; // we stop a little before the server gives the work away
    this.stopped = new Promise((resolve) => (this.#stopped = resolve));
  }

  /** For APIs that take one: aborted when the handler has to stop. Nothing else can stop it. */
  get signal() {
    return this.#abort.signal;
  }

  stop(why: Why) {
    this.#stopped(why);
    this.#abort.abort(new Error(why));
  }

  /** By both clocks: the monotonic one stands still while a machine is suspended. */
  leaseLeft() {
    const [steady, wall] = clocks();
    return this.lease - Math.max(steady - this.#since[0], wall - this.#since[1]);
  }

  extended(since: [number, number]) {
    this.#since = since;
  }

  /** Writes to the run's log. */
  log(text: string, level = "info") {
    const about = headers();
    about.set("Taskparty-Run", this.dispatch.run);
    about.set("Taskparty-Shard", String(this.dispatch.shard.index));
    about.set("Taskparty-Attempt", String(this.dispatch.attempt));
    about.set("Taskparty-Level", level);
    this.executor.nc.publish(this.executor.subject("log", this.dispatch.job), text, { headers: about });
  }

  /** The beginning of what is said of it. */
  record() {
    const { run, job, shard, attempt, fire_time } = this.dispatch;
    const { index, total } = shard;
    return { v: 1, run, job, shard: { index, total }, attempt, delivery: this.delivery,
      instance: this.executor.instance, fire_time, started_at: this.startedAt };
  }
}

export const clocks = (): [number, number] => [performance.now(), Date.now()];

/** How an attempt ended. */
export interface End {
  outcome: string;
  code?: string;
  message?: string;
  output?: unknown;
  truncated?: boolean;
  retryable?: boolean;
}

/** What a handler's return means. What is too long is cut, and the cut marked. */
export function returned(output: unknown): End {
  const text = Buffer.from(JSON.stringify(output) ?? "null");
  const truncated = text.length > MAX_OUTPUT;
  return { outcome: "succeeded", output: truncated ? cut(text, 30_000) : output, truncated };
}

/** What an error of a handler means. */
export function thrown(error: unknown): End {
  const message = Buffer.from(error instanceof Error ? error.message || error.name : String(error));
  const badParams = error instanceof BadParams;
  return { outcome: "failed", code: badParams ? "bad_params" : "handler_error", message: cut(message, MAX_MESSAGE),
    truncated: message.length > MAX_MESSAGE, retryable: !badParams && !(error instanceof Fatal) };
}

function cut(text: Buffer, bytes: number) {
  return new TextDecoder().decode(text.subarray(0, bytes), { stream: true }); // a half character is left out
}
