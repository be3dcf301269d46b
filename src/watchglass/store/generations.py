"""Generations of compacted data: which segments are inside them, and which generation counts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from watchglass.errors import DamagedDataError, InvalidValueError, MissingFileError
from watchglass.records import record_from_json
from watchglass.store import layout
from watchglass.store.contract import Store
from watchglass.store.json_documents import read_small

#: Longest manifest in bytes that is read; one of 1,024 workers takes 200 KB.
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Covered:
    """The part of a generation that belongs to one worker."""

    attempt: int  #: Attempt of the worker.
    worker: str  #: Its name.
    segments: int  #: Its segments with a lower ``seq`` are inside; reading continues with this one.
    frames: str  #: Path of the object that replaces them.
    bytes: int  #: Length of that object.


@dataclass(frozen=True)
class Generation:
    """A generation whose manifest was written, so that it is whole."""

    number: int  #: Counts from 1.
    created_ns: int  #: When its manifest was written, nanoseconds since 1970.
    covers: tuple[Covered, ...]  #: Its parts, by attempt, then worker.

    def covered(self, attempt: int, worker: str) -> Covered | None:
        """Its part of a worker; None where it has none."""
        return next((each for each in self.covers if (each.attempt, each.worker) == (attempt, worker)), None)

    def to_json(self) -> dict[str, Any]:
        """The content of its manifest."""
        return {
            "generation": self.number, "created_ns": self.created_ns,
            "covers": [asdict(each) for each in self.covers],
        }  # fmt: skip


def generation_numbers(store: Store) -> list[int]:
    """Numbers of the generations that there are folders of, lowest first; not all of them are whole."""
    parsed = (layout.parse_generation(name) for name in store.folders(layout.COMPACTED))
    return sorted(number for number in parsed if number is not None)


def newest_generation(store: Store) -> Generation | None:
    """The generation that counts: the newest with a manifest. None where nothing was compacted.

    Raises:
        DamagedDataError: Its manifest makes no sense.
    """
    for number in reversed(generation_numbers(store)):
        try:
            return read_generation(store, number)
        except MissingFileError:
            continue
    return None


def read_generation(store: Store, number: int) -> Generation:
    """A generation.

    Raises:
        MissingFileError: It has no manifest: it is being written, or its writer died.
        DamagedDataError: Its manifest makes no sense.
    """
    path = layout.generation_manifest(number)
    data = read_small(store, path, _MAX_BYTES)
    try:
        value = json.loads(data)
        covers = tuple(_covered(row, number) for row in value["covers"])
        created_ns = value["created_ns"]
        if value["generation"] != number or type(created_ns) is not int:
            raise DamagedDataError("it is of another generation")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedDataError(
            f"{path} in {store.location} is not a manifest of compacted data ({ascii(str(error))[:120]})"
        ) from error
    if len({(each.attempt, each.worker) for each in covers}) != len(covers):
        raise DamagedDataError(f"{path} in {store.location} names a worker twice")
    return Generation(number, created_ns, covers)


def _covered(row: Any, number: int) -> Covered:
    found = record_from_json(Covered, row)
    if not all(0 <= value < 1 << 60 for value in (found.attempt, found.segments, found.bytes)):
        raise InvalidValueError(f"a worker is described wrongly: {ascii(row)[:120]}")
    if found.frames != layout.compacted_frames(number, found.attempt, found.worker):
        raise InvalidValueError(f"the frames of a worker are somewhere else: {found.frames[:80]!a}")
    return found
