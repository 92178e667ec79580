// One delivery: the lease is kept, the handler called, the result stored, and then the work acked.

import { setTimeout as sleep } from "node:timers/promises";
import type { Msg } from "@nats-io/transport-node";
import { clocks, Context, returned, thrown, type End } from "./context.ts";
import type { Executor } from "./executor.ts";

export async function take(executor: Executor, msg: Msg) {
  let ctx: Context;
  try {
    ctx = new Context(executor, msg);
  } catch {
    return executor.answer(msg, "+TERM"); // nobody can read it
  }
  if (executor.live.has(ctx.key)) return; // the server forgot that we have it
  // The last delivery is begun even now: handed back, it would be lost without ever having run.
  if (executor.draining && ctx.delivery < ctx.dispatch.max_deliveries) return executor.answer(msg, "-NAK");
  executor.live.set(ctx.key, ctx);
  try {
    keepLease(ctx);
    await seeThrough(ctx);
  } finally {
    ctx.settled = true;
    await ctx.returned; // a handler that does not stop keeps its slot until it does
    executor.live.delete(ctx.key);
  }
}

async function keepLease(ctx: Context) {
  while (!ctx.settled) {
    await sleep(Math.max(0, Math.min(ctx.lease / 3, ctx.leaseLeft())), undefined, { ref: false });
    if (ctx.leaseLeft() <= 0) return ctx.stop("lease lost");
    if (ctx.settled) return;
    const sent = clocks();
    try {
      await ctx.executor.answer(ctx.msg, "+WPI");
      if (ctx.leaseLeft() > 0) ctx.extended(sent);
    } catch (error) {
      console.warn("a lease was not extended:", error);
    }
  }
}

async function seeThrough(ctx: Context) {
  const { executor, dispatch } = ctx;
  let end: End | undefined;
  if (ctx.delivery > dispatch.max_deliveries) end = { outcome: "lost", code: "executor_lost" };
  else if (ctx.delivery === 1 && Date.now() > Date.parse(dispatch.start_by)) end = { outcome: "not_started", code: "start_deadline" };
  else if (!Object.hasOwn(executor.handlers, dispatch.handler)) end = { outcome: "failed", code: "unknown_handler" };
  else end = await call(ctx);
  if (!end) return;
  const result = JSON.stringify({ ...ctx.record(), ...end, finished_at: new Date().toISOString() });
  const stored = () => executor.js.publish(executor.subject("result"), result);
  const acked = () => executor.answer(ctx.msg, "+ACK");
  for (const step of [stored, acked]) { // in this order
    for (let done = false; !done; ) {
      if (ctx.leaseLeft() <= 0) return; // somebody else may have it by now, and what he says counts
      try {
        await step();
        done = true;
      } catch (error) {
        console.warn("not reported yet:", error);
        await sleep(500);
      }
    }
  }
}

/** Calls the handler and waits for whatever ends it; nothing when nothing is to be reported. */
async function call(ctx: Context): Promise<End | undefined> {
  const { executor, dispatch } = ctx;
  ctx.startedAt = new Date().toISOString();
  const handler = (async () => executor.handlers[dispatch.handler]!.call(ctx, dispatch.params))().then(returned).catch(thrown);
  ctx.returned = handler;
  const started = () => executor.nc.publish(executor.subject("started"), JSON.stringify({ ...ctx.record(), shard: dispatch.shard.index }));
  const announce = setTimeout(started, 100);
  const limit = dispatch.timeout_ms === null ? undefined : setTimeout(() => ctx.stop("timeout"), dispatch.timeout_ms);
  try {
    const end = await Promise.race([handler, ctx.stopped]);
    if (typeof end !== "string") return end;
    if (end === "lease lost") return;
    const goesOn = "; its code did not stop and may still be at work";
    const more = await Promise.race([handler.then(() => ""), sleep(1_000, goesOn)]); // a moment to tidy up
    if (end === "timeout") return { outcome: "timed_out", code: "timeout", message: `stopped at its timeout of ${dispatch.timeout_ms} ms${more}` };
    if (end === "cancelled") return { outcome: "cancelled", code: "cancelled", message: `cancelled by ${ctx.by}${more}`, retryable: false };
    await executor.answer(ctx.msg, "-NAK"); // the drain time is over: somebody else's
  } finally {
    clearTimeout(announce);
    clearTimeout(limit);
  }
}
