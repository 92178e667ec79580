// A TaskParty executor on @nats-io, to copy into a service. Why it does what it does: docs/protocol.md.

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { jetstream, type JetStreamClient } from "@nats-io/jetstream";
import { connect, createInbox, headers, type Msg, type NatsConnection, type Subscription } from "@nats-io/transport-node";
import { take } from "./attempt.ts";
import type { Context } from "./context.ts";

const PULL = JSON.stringify({ batch: 1, expires: 30_000_000_000, idle_heartbeat: 2_000_000_000 }); // nanoseconds

export interface Handler {
  slots: number;
  call: (ctx: Context, params: any) => Promise<unknown>;
}

export class Executor {
  readonly instance = `ts-${randomBytes(6).toString("hex")}`; // a new one at each start
  readonly startedAt = new Date().toISOString();
  readonly live = new Map<string, Context>();
  readonly pulls = new Set<Subscription>();
  nc!: NatsConnection;
  js!: JetStreamClient;
  draining = false;
  readonly app: string;
  readonly handlers: Record<string, Handler>;
  readonly options: { drainMs: number; prefix: string };

  constructor(app: string, handlers: Record<string, Handler>, options: { drainMs?: number; prefix?: string } = {}) {
    [this.app, this.handlers] = [app, handlers];
    this.options = { drainMs: 30_000, prefix: "taskparty", ...options };
  }

  subject(kind: string, ...rest: string[]) {
    return [this.options.prefix, kind, this.app, ...rest].join(".");
  }

  /** Works until `stop` is aborted, then drains. */
  async run(servers: string, stop: AbortSignal) {
    this.nc = await connect({ servers, maxReconnectAttempts: -1, waitOnFirstConnect: true, reconnectTimeWait: 500, pingInterval: 5_000 });
    this.js = jetstream(this.nc, { timeout: 2_000 });
    this.nc.subscribe(this.subject("cancel", ">"), { callback: (_, msg) => this.cancel(msg) });
    this.nc.subscribe(this.subject("probe", this.instance), { callback: (_, msg) => this.probe(msg) });
    const consumers = Object.entries(this.handlers).flatMap(([name, { slots }]) => Array<string>(slots).fill(name));
    const slots = Promise.all([...consumers, `on_${this.instance}`].map((consumer) => this.slot(consumer)));
    while (!stop.aborted) {
      await this.putEntry();
      await sleep(5_000, undefined, { signal: stop }).catch(() => {});
    }
    this.draining = true;
    await this.putEntry();
    for (const inbox of this.pulls) inbox.drain(); // asks for nothing more, and gets what is on its way
    await Promise.race([slots, sleep(this.options.drainMs)]);
    for (const ctx of this.live.values()) ctx.stop("drained");
    await Promise.race([slots, sleep(5_000)]);
    await this.putEntry(true); // last
    await this.nc.drain();
  }

  async putEntry(gone = false) {
    const running = (name: string) => [...this.live.values()].map((ctx) => ctx.dispatch).filter((work) => work.handler === name);
    const handlers = Object.entries(this.handlers).map(([name, { slots }]) => [name, { slots, running: running(name).map((work) => work.job) }]);
    const entry = { v: 1, app: this.app, instance: this.instance, handlers: Object.fromEntries(handlers), host: hostname(),
      pid: process.pid, started_at: this.startedAt, draining: this.draining };
    const about = headers();
    if (gone) about.set("KV-Operation", "DEL");
    const key = `$KV.${this.options.prefix}_executors.${this.app}.${this.instance}`;
    await this.js.publish(key, gone ? "" : JSON.stringify(entry), { headers: about })
      .catch((error) => console.warn("not registered (does the scheduler run?):", error.message));
  }

  cancel(msg: Msg) {
    const { run, shard, by } = msg.json<{ run: string; shard?: number | null; by?: string }>();
    for (const ctx of this.live.values()) {
      if (ctx.dispatch.run !== run || (shard ?? ctx.dispatch.shard.index) !== ctx.dispatch.shard.index) continue;
      ctx.by = by ?? "";
      ctx.stop("cancelled");
    }
  }

  probe(msg: Msg) {
    const slots = Object.values(this.handlers).reduce((sum, { slots }) => sum + slots, 0);
    const free = this.draining ? 0 : Math.max(0, slots - this.live.size);
    const { job } = msg.data.length ? msg.json<{ job?: string }>() : {};
    msg.respond(JSON.stringify({ free, running: [...this.live.values()].some((ctx) => ctx.dispatch.job === job) }));
  }

  /** Asks for one message, sees it through, asks for the next: never for more than is free. */
  async slot(consumer: string) {
    while (!this.draining) {
      try {
        const msg = await this.pull(consumer);
        await (msg ? take(this, msg) : sleep(500));
      } catch (error) {
        console.error(`a slot of ${consumer} goes on after`, error);
      }
    }
  }

  /** The next message; none when the request ended without one, or nothing was heard for too long. */
  async pull(consumer: string) {
    const inbox = this.nc.subscribe(createInbox());
    const silence = setTimeout(() => inbox.unsubscribe(), 6_000);
    this.pulls.add(inbox);
    try {
      const stream = `${this.options.prefix.toUpperCase()}_DISPATCH_${this.app}`;
      this.nc.publish(`$JS.API.CONSUMER.MSG.NEXT.${stream}.${consumer}`, PULL, { reply: inbox.getSubject() });
      for await (const msg of inbox) {
        if (!msg.headers?.code) return msg;
        if (msg.headers.code !== 100) return; // 100 is a sign of life
        silence.refresh();
      }
    } finally {
      clearTimeout(silence);
      this.pulls.delete(inbox);
      inbox.unsubscribe();
    }
  }

  /** +ACK, +WPI, -NAK or +TERM as a request: only its answer shows that the server has it. */
  async answer(msg: Msg, word: string) {
    const reply = (await this.nc.request(msg.reply!, word, { timeout: 2_000 })).string();
    if (reply && !reply.startsWith("+OK")) throw new Error(`${word} was refused: ${reply}`);
  }
}
