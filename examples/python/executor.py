"""A TaskParty executor on nats-py, to copy into a service. Why it does what it does: docs/protocol.md."""

import asyncio, json, logging, os, socket, uuid
from datetime import datetime, timezone
import nats
from context import Context, clock, returned

log = logging.getLogger("taskparty")
PULL = b'{"batch": 1, "expires": 30000000000, "idle_heartbeat": 2000000000}'  # nanoseconds
GOES_ON = "; its code did not stop and may still be at work"

def now(): return datetime.now(timezone.utc)

class Executor:
    """`handlers`: {name: (async function of context and params, slots)}; `drain`: seconds."""
    def __init__(self, app, handlers, prefix="taskparty", drain=30.0):
        self.app, self.handlers, self.prefix, self.drain = app, handlers, prefix, drain
        self.instance, self.started_at = f"py-{uuid.uuid4().hex[:12]}", now().isoformat()  # a new one at each start
        self.live, self.pulls, self.draining = {}, {}, False  # contexts by key; inboxes by task

    def subject(self, kind, *rest): return ".".join((self.prefix, kind, self.app, *rest))

    async def run(self, url, stop):
        """Works until the event `stop` is set, then drains."""
        self.nc = await nats.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=0.5, ping_interval=5)
        self.js, self.drained = self.nc.jetstream(timeout=2), asyncio.get_running_loop().create_future()
        await self.nc.subscribe(self.subject("cancel", ">"), cb=self.cancel)
        await self.nc.subscribe(self.subject("probe", self.instance), cb=self.probe)
        entry = asyncio.create_task(self.register())
        consumers = [name for name, (_, slots) in self.handlers.items() for _ in range(slots)]
        slots = [asyncio.create_task(self.slot(consumer)) for consumer in [*consumers, f"on_{self.instance}"]]
        await stop.wait()
        self.draining = True
        await self.put_entry()
        inboxes = [asyncio.create_task(inbox.drain()) for inbox in self.pulls.values()]
        await asyncio.wait([*inboxes, asyncio.create_task(asyncio.sleep(0))], timeout=2)  # what was on its way is here
        for task in list(self.pulls): task.cancel()  # nothing came
        await asyncio.wait(slots, timeout=self.drain)
        self.drained.set_result(None)
        await asyncio.wait(slots, timeout=5)
        entry.cancel()
        await self.put_entry(headers={"KV-Operation": "DEL"})  # last
        await self.nc.drain()

    async def register(self):
        while True:
            await self.put_entry()
            await asyncio.sleep(5)

    async def put_entry(self, headers=None):
        running = lambda name: [ctx.job for ctx in self.live.values() if ctx.handler == name]
        handlers = {name: {"slots": slots, "running": running(name)} for name, (_, slots) in self.handlers.items()}
        entry = {"v": 1, "app": self.app, "instance": self.instance, "handlers": handlers, "pid": os.getpid(),
                 "host": socket.gethostname(), "started_at": self.started_at, "draining": self.draining}
        key = f"$KV.{self.prefix}_executors.{self.app}.{self.instance}"
        try: await self.js.publish(key, b"" if headers else json.dumps(entry).encode(), headers=headers)
        except Exception as error: log.warning("not registered (does the scheduler run?): %r", error)

    async def cancel(self, msg):
        asked = json.loads(msg.data)
        for ctx in self.live.values():
            meant = ctx.run == asked["run"] and asked.get("shard") in (None, ctx.shard["index"])
            if meant and not ctx.cancelled.done(): ctx.cancelled.set_result(asked.get("by", ""))

    async def probe(self, msg):
        free = 0 if self.draining else sum(slots for _, slots in self.handlers.values()) - len(self.live)
        runs = json.loads(msg.data or b"{}").get("job") in [ctx.job for ctx in self.live.values()]
        await msg.respond(json.dumps({"free": max(0, free), "running": runs}).encode())

    async def slot(self, consumer):
        """Asks for one message, sees it through, asks for the next: never for more than is free."""
        while not self.draining:
            try: await (self.take(msg) if (msg := await self.pull(consumer)) else asyncio.sleep(0.5))
            except Exception: log.exception("a slot of %s goes on after", consumer)

    async def pull(self, consumer):
        """The next message; None when the request ended without one, or nothing was heard for too long."""
        inbox = self.pulls[asyncio.current_task()] = await self.nc.subscribe(self.nc.new_inbox())
        stream, status = f"{self.prefix.upper()}_DISPATCH_{self.app}", "100"
        try:
            await self.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", PULL, reply=inbox.subject)
            while status == "100":  # a sign of life
                msg = await inbox.next_msg(timeout=6)
                status = (msg.headers or {}).get("Status")
            return None if status else msg
        except asyncio.TimeoutError: return None
        finally:
            del self.pulls[asyncio.current_task()]
            if not self.draining: await inbox.unsubscribe()

    async def answer(self, msg, word):
        """+ACK, +WPI, -NAK or +TERM as a request: only its answer shows that the server has it."""
        reply = await self.nc.request(msg.reply, word, timeout=2)
        if reply.data and not reply.data.startswith(b"+OK"): raise RuntimeError(f"{word} was refused: {reply.data}")

    async def take(self, msg):
        try: ctx = Context(self, msg, json.loads(msg.data))
        except (ValueError, KeyError, TypeError): return await self.answer(msg, b"+TERM")  # nobody can read it
        if ctx.key in self.live: return  # the server forgot that we have it
        if self.draining and ctx.delivery < ctx.dispatch["max_deliveries"]: return await self.answer(msg, b"-NAK")
        self.live[ctx.key] = ctx
        tasks = [asyncio.create_task(ctx.keep_lease()), asyncio.create_task(self.see_through(ctx))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # a lost lease stops the rest, unreported
        for task in tasks: task.cancel()
        await asyncio.wait(tasks, timeout=2)
        if ctx.call: await asyncio.wait({ctx.call})  # a handler that does not stop keeps its slot until it does
        del self.live[ctx.key]

    async def see_through(self, ctx):
        if ctx.delivery > ctx.dispatch["max_deliveries"]: end = {"outcome": "lost", "code": "executor_lost"}
        elif ctx.delivery == 1 and now() > datetime.fromisoformat(ctx.dispatch["start_by"]):
            end = {"outcome": "not_started", "code": "start_deadline", "message": "it came after its start deadline"}
        elif ctx.handler not in self.handlers: end = {"outcome": "failed", "code": "unknown_handler"}
        else: end = await self.call(ctx)
        if end is None: return await self.answer(ctx.msg, b"-NAK")  # the drain time is over: somebody else's
        result = json.dumps(ctx.record() | end | {"finished_at": now().isoformat()}).encode()
        steps = [lambda: self.js.publish(self.subject("result"), result), lambda: self.answer(ctx.msg, b"+ACK")]
        while steps and clock() < ctx.lease_ends:  # stored first, then acked
            try: await steps[0](); steps.pop(0)
            except Exception as error: log.warning("not reported yet: %r", error); await asyncio.sleep(0.5)

    async def call(self, ctx):
        """Calls the handler and waits for whatever ends it; None when the work is to be handed back."""
        timeout, ctx.started_at = ctx.dispatch["timeout_ms"], now().isoformat()
        handler = ctx.call = asyncio.create_task(self.handlers[ctx.handler][0](ctx, ctx.dispatch["params"]))
        announce = asyncio.create_task(self.announce(ctx))
        try:
            await asyncio.wait({handler, ctx.cancelled, self.drained}, timeout=timeout and timeout / 1000,
                               return_when=asyncio.FIRST_COMPLETED)
            if handler.done(): return returned(handler)
            if ctx.cancelled.done(): end, why = {"outcome": "cancelled", "code": "cancelled", "retryable": False}, f"cancelled by {ctx.cancelled.result()}"
            elif self.drained.done(): end, why = None, ""
            else: end, why = {"outcome": "timed_out", "code": "timeout"}, f"stopped at its timeout of {timeout} ms"
            handler.cancel()  # raises CancelledError in it; it has a second to tidy up
            await asyncio.wait({handler}, timeout=1)
            return end and end | {"message": why if handler.done() else why + GOES_ON}
        finally: handler.cancel(); announce.cancel()

    async def announce(self, ctx):
        await asyncio.sleep(0.1)
        started = ctx.record() | {"shard": ctx.shard["index"]}
        await self.nc.publish(self.subject("started"), json.dumps(started).encode())
