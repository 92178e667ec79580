"""A service with a few handlers. `NATS_URL=nats://127.0.0.1:4222 python main.py`"""

import asyncio
import logging
import os
import signal
import time

from context import BadParams, Fatal, in_thread
from executor import Executor


async def echo(ctx, params):
    """Gives back what it got."""
    await ctx.log("echo")
    return {"params": params, "key": ctx.idempotency_key, "shard": ctx.shard,
            "attempt": ctx.attempt, "delivery": ctx.delivery}


async def sleep(ctx, params):
    """Takes its time: `{"ms": 500}`."""
    if not isinstance(params, dict) or not isinstance(params.get("ms"), int):
        raise BadParams("ms: a number of milliseconds is missing")
    await asyncio.sleep(params["ms"] / 1000)
    return {"delivery": ctx.delivery}


async def fail(ctx, params):
    """Fails; the job's `retry` decides what follows."""
    raise RuntimeError(f"cannot do it: {params}")


async def fatal(ctx, params):
    """Fails, and nobody needs to try again."""
    raise Fatal(f"never: {params}")


async def panic(ctx, params):
    """Has a fault."""
    return {}["missing"]


async def deaf(ctx, params):
    """Blocks a thread for `{"ms": 500}`, whatever it is told."""
    await in_thread(time.sleep, params["ms"] / 1000)


HANDLERS = {"echo": (echo, 4), "sleep": (sleep, 2), "fail": (fail, 1), "fatal": (fatal, 1), "panic": (panic, 1),
            "deaf": (deaf, 1)}


async def main():
    logging.basicConfig(level=logging.INFO)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    app, url = os.environ.get("TASKPARTY_APP", "python-demo"), os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
    drain = float(os.environ.get("TASKPARTY_DRAIN", "30"))
    await Executor(app, HANDLERS, drain=drain).run(url, stop)
    os._exit(0)  # a handler that did not stop ends here; asyncio would wait for it


if __name__ == "__main__":
    asyncio.run(main())
