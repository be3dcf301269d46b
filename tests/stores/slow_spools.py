"""A spool of one worker, and a store behind it that is unreachable when a test says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.faulty_stores import spools
from watchglass.config import Timing
from watchglass.errors import StoreError
from watchglass.store import (
    LocalStore,
    Spool,
    layout,
)

__all__ = ["spools"]


LABEL = {"run": "r", "attempt": 0, "worker": "worker_0"}


class Remote(LocalStore):
    """A folder that takes whole objects only, and is unreachable when it is set to be."""

    appends = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.unreachable = False
        self.tries = 0
        self.takes_s = 0.0
        self.written: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def write(self, path: str, data: Any, *, replace: bool = False) -> None:
        self.gate.wait()
        self.tries += 1
        if self.unreachable:
            raise StoreError("the store is unreachable; see to it")
        time.sleep(self.takes_s)
        super().write(path, data, replace=replace)
        self.written.append(path)


@pytest.fixture
def remote(tmp_path: Path, spools: Path) -> Remote:
    return Remote(tmp_path / "remote")


@pytest.fixture
def open_spool(remote: Remote) -> Iterator[Any]:
    made: list[Spool] = []

    def opened(**settings: Any) -> Spool:
        room = {"most_bytes": 10_000, "memory_bytes": 1000, "reserve_bytes": 0}
        quick = {"timing": Timing(upload_pauses_s=(0.005, 0.02))}
        made.append(Spool(remote, "worker_0", LABEL, **{**room, **quick, **settings}))
        return made[-1]

    yield opened
    remote.unreachable = False
    remote.gate.set()
    for one in made:
        one.close(0.0)


def segment(seq: int) -> str:
    return layout.segment(0, 7, "worker_0", seq)


def tensors(seq: int) -> str:
    return layout.tensors(0, "worker_0", seq)
