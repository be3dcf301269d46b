"""What changes on a page, as server-sent events: the page fetches itself again when it shows what has changed.

An event ``changed`` names the parts that have changed and the last training step, an event ``pulse`` how new they are.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

#: Seconds between looks for changes, between two pulses, and after which something is sent in any case: proxies close
#: what is silent.
_LOOK_S, _PULSE_S, _SILENT_S = 0.2, 2.0, 15.0


class Source(NamedTuple):
    """What events tell of.

    Attributes:
        number: The number of the newest state.
        change: What has changed since a number, plain JSON values.
        pulse: How new it is, plain text.
    """

    number: Callable[[], int]
    change: Callable[[int], dict[str, object]]
    pulse: Callable[[], str]


async def events(
    source: Source, epoch: str, after: str, stopping: threading.Event, limit: int | None = None
) -> AsyncIterator[str]:
    """The events after a state, until the server stops.

    Args:
        source: What they tell of.
        epoch: Names this start of the server: numbers of another one mean nothing.
        after: ``"EPOCH-NUMBER"``, the state that the page has.
        stopping: Set when the server stops.
        limit: Most events.
    """
    began, _, text = after.rpartition("-")
    number = int(text) if began == epoch and text.isascii() and text.isdigit() else -1
    sent, told, spoke_s, pulse_s = 0, "", time.monotonic(), float("-inf")
    yield "retry: 2000\n\n"
    while not stopping.is_set() and (limit is None or sent < limit):
        newest, now_s = source.number(), time.monotonic()
        event = ""
        if newest > number:
            data = json.dumps(await run_in_threadpool(source.change, number))
            event, number = f"id: {epoch}-{newest}\nevent: changed\ndata: {data}\n\n", newest
        elif now_s - pulse_s >= _PULSE_S:
            pulse, pulse_s = await run_in_threadpool(source.pulse), now_s
            if pulse != told:
                event, told = f"event: pulse\ndata: {json.dumps(pulse)}\n\n", pulse
        if event or now_s - spoke_s >= _SILENT_S:
            spoke_s, sent = now_s, sent + bool(event)
            yield event or ": here\n\n"
        else:
            await asyncio.sleep(_LOOK_S)
