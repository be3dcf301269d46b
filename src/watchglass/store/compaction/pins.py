"""Pins: a reader notes which generation it reads, so that no process deletes it meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from watchglass.config import TIMING, Timing
from watchglass.errors import DamagedDataError, StoreError
from watchglass.store import layout
from watchglass.store.claim import Claim, is_alive, this_process
from watchglass.store.contract import Store
from watchglass.store.generations import newest_generation
from watchglass.store.json_documents import MAX_BYTES, document


@dataclass(frozen=True)
class PinRecord:
    """A pin as other processes see it."""

    path: str  #: Where it is.
    generation: int  #: The generation that is read: 0 for segments before any compaction.
    expires_ns: int  #: Until when it holds, nanoseconds since 1970.
    holder: Claim  #: The process that reads.

    def holds(self, now_ns: int) -> bool:
        """Whether it still counts: neither expired nor of a process of this machine that has ended."""
        return self.expires_ns + int(TIMING.clock_skew_s * 1e9) > now_ns and is_alive(self.holder) is not False


class Pin(AbstractContextManager["Pin"]):
    """Keeps what one generation holds, and the segments behind it, from being deleted. For one thread.

    Use it as a context, and call :meth:`tick` from time to time: one that is not renewed expires.
    """

    def __init__(self, store: Store, generation: int, timing: Timing = TIMING) -> None:
        self.generation = generation  #: The number of the generation, 0 for none.
        self._store, self._timing = store, timing
        self._path = layout.pin(uuid.uuid4().hex)
        self._holder = this_process()
        self._renewed_s = time.monotonic()
        self._write()

    def tick(self) -> bool:
        """Renew the pin if it is time; returns whether it was.

        Raises:
            StoreError: The store refused; the next call retries.
        """
        if time.monotonic() - self._renewed_s < self._timing.pin_renewal_s:
            return False
        self._write()
        self._renewed_s = time.monotonic()
        return True

    def close(self) -> None:
        """Release the pin. Never raises: a remnant expires."""
        with suppress(StoreError):
            self._store.delete(self._path)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _write(self) -> None:
        expires_ns = time.time_ns() + int(self._timing.pin_expiry_s * 1e9)
        data = {"generation": self.generation, "expires_ns": expires_ns, "holder": self._holder.to_json()}
        self._store.write(self._path, json.dumps(data).encode(), replace=True)


def pin(store: Store, timing: Timing = TIMING) -> Pin:
    """Pin the newest generation; read only afterwards.

    Raises:
        StoreError: The store refused, for instance a read-only one.
        DamagedDataError: The newest generation makes no sense.
    """
    while True:
        made = Pin(store, _newest(store), timing)
        # A compaction writes its generation first and lists the pins then: either it sees our pin, or we see its
        # generation.
        if _newest(store) == made.generation:
            return made
        made.close()


def pins(store: Store) -> list[PinRecord]:
    """All pins, also those that no longer hold; unreadable ones hold nothing and are omitted."""
    paths = [entry.path for entry in store.list(layout.PINS)]
    found = []
    content = store.read_many([(path, 0, MAX_BYTES) for path in paths])
    for path, data in zip(paths, content, strict=True):
        value = document(data)
        generation, expires_ns = value.get("generation"), value.get("expires_ns")
        if type(generation) is int and type(expires_ns) is int:
            with suppress(DamagedDataError):
                found.append(PinRecord(path, generation, expires_ns, Claim.from_json(value.get("holder", {}))))
    return found


def _newest(store: Store) -> int:
    generation = newest_generation(store)
    return generation.number if generation is not None else 0
