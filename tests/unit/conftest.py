"""Unit tests start no process; those that do are in tests/integration, tests/faults and the like."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from refusals import audited

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn")


@pytest.fixture(autouse=True)
def no_process_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts a process. A process of the session, for all tests, was started before."""
    if request.node.get_closest_marker("gpu"):
        yield
        return
    started: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            started.append(f"{event}{arguments[:2]}")

    with audited(note):
        yield
    assert not started, f"a unit test starts no process: {'; '.join(started)}"
