"""What a handler is given, and how it says what should follow."""

import asyncio
import json
import logging
import time

log = logging.getLogger("taskparty")
MAX_MESSAGE, MAX_OUTPUT = 8 * 1024, 64 * 1024  # bytes


def clock():
    """Seconds on a clock that nobody sets, and that counts suspend where there is such a one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Fatal(Exception):
    """No other attempt will do better. After any other exception the job's `retry` decides."""


class BadParams(Exception):
    """The params are not what the handler takes; no other attempt is made."""


class Context:
    """One delivery of one attempt of one shard."""

    def __init__(self, executor, msg, dispatch):
        self.executor, self.msg, self.dispatch = executor, msg, dispatch
        self.run, self.job, self.handler = dispatch["run"], dispatch["job"], dispatch["handler"]
        self.shard, self.attempt = dispatch["shard"], dispatch["attempt"]
        self.idempotency_key = dispatch["idempotency_key"]  # give it to whatever must happen only once
        self.fire_time = dispatch["fire_time"]  # decides which day is settled; never the time now
        self.delivery = msg.metadata.num_delivered
        self.lease = dispatch["lease_ms"] / 1000 * 0.95  # we stop a little before the server gives it away
        self.lease_ends = clock() + self.lease
        self.cancelled = asyncio.get_running_loop().create_future()
        self.started_at = self.call = None  # when the handler was called, and its task
        self.key = (self.run, self.shard["index"], self.attempt, self.delivery)

    async def keep_lease(self):
        """Returns when the lease is lost."""
        while clock() < self.lease_ends:
            await asyncio.sleep(max(0, min(self.lease / 3, self.lease_ends - clock())))
            sent = clock()
            try:
                await self.executor.answer(self.msg, b"+WPI")
                if clock() < self.lease_ends: self.lease_ends = sent + self.lease
            except Exception as error: log.warning("a lease was not extended: %r", error)

    async def log(self, text, level="info"):
        """Writes to the run's log."""
        headers = {"Taskparty-Run": self.run, "Taskparty-Shard": str(self.shard["index"]),
                   "Taskparty-Attempt": str(self.attempt), "Taskparty-Level": level}
        subject = self.executor.subject("log", self.job)
        await self.executor.nc.publish(subject, text.encode(), headers=headers)

    def record(self):
        """The beginning of what is said of it."""
        shard = {"index": self.shard["index"], "total": self.shard["total"]}
        return {"v": 1, "run": self.run, "job": self.job, "shard": shard, "attempt": self.attempt,
                "delivery": self.delivery, "instance": self.executor.instance, "fire_time": self.fire_time,
                "started_at": self.started_at}


async def in_thread(function, *args):
    """Calls what blocks. A thread cannot be stopped: until it ends the handler has not ended, and keeps its slot."""
    work = asyncio.create_task(asyncio.to_thread(function, *args))
    while not work.done():
        try: await asyncio.wait({work})
        except asyncio.CancelledError: pass  # it is reported, a second later, as one that goes on
    return work.result()


def returned(handler):
    """What a handler's end means. What is too long is cut, and the cut marked."""
    try:
        output = json.dumps(handler.result())
        cut = len(output) > MAX_OUTPUT  # it is all ASCII
        return {"outcome": "succeeded", "output": output[:30_000] if cut else json.loads(output), "truncated": cut}
    except BadParams as error:
        return failed("bad_params", error, retryable=False)
    except Fatal as error:
        return failed("handler_error", error, retryable=False)
    except asyncio.CancelledError:
        return failed("handler_error", "the handler cancelled itself", retryable=True)
    except Exception as error:
        return failed("handler_error", error, retryable=True)


def failed(code, error, retryable):
    text = (str(error) or repr(error)).encode()
    message, cut = text[:MAX_MESSAGE].decode(errors="ignore"), len(text) > MAX_MESSAGE
    return {"outcome": "failed", "code": code, "message": message, "retryable": retryable, "truncated": cut}
