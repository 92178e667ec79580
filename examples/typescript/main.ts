// A service with a few handlers. NATS_URL=nats://127.0.0.1:4222 npm start

import { setTimeout as wait } from "node:timers/promises";
import { BadParams, Fatal, type Context } from "./context.ts";
import { Executor } from "./executor.ts";

/** Gives back what it got. */
async function echo(ctx: Context, params: unknown) {
  ctx.log("echo");
  const { idempotency_key: key, shard, attempt } = ctx.dispatch;
  return { params, key, shard, attempt, delivery: ctx.delivery };
}

/** Takes its time: `{"ms": 500}`. */
async function sleep(ctx: Context, params: { ms?: unknown } | null) {
  if (typeof params?.ms !== "number") throw new BadParams("ms: a number of milliseconds is missing");
  await wait(params.ms, undefined, { signal: ctx.signal });
  return { delivery: ctx.delivery };
}

/** Fails; the job's `retry` decides what follows. */
async function fail(_: Context, params: unknown) {
  throw new Error(`cannot do it: ${params}`);
}

/** Fails, and nobody needs to try again. */
async function fatal(_: Context, params: unknown) {
  throw new Fatal(`never: ${params}`);
}

/** Has a fault. */
async function panic(_: Context, params: any) {
  return params.missing.field;
}

/** Takes its time, and heeds nothing. */
async function deaf(_: Context, { ms }: { ms: number }) {
  await wait(ms);
}

const stop = new AbortController();
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => stop.abort());
const { TASKPARTY_APP = "typescript-demo", NATS_URL = "nats://127.0.0.1:4222", TASKPARTY_DRAIN = "30" } = process.env;
const handlers = {
  echo: { slots: 4, call: echo },
  sleep: { slots: 2, call: sleep },
  fail: { slots: 1, call: fail },
  fatal: { slots: 1, call: fatal },
  panic: { slots: 1, call: panic },
  deaf: { slots: 1, call: deaf },
};
await new Executor(TASKPARTY_APP, handlers, { drainMs: Number(TASKPARTY_DRAIN) * 1_000 }).run(NATS_URL, stop.signal);
process.exit(); // a handler that did not heed its signal ends here
