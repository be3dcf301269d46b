"""A card that updates itself while its run goes on, and ends with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import watchglass
from watchglass.errors import InvalidValueError
from watchglass.run import open_run
from watchglass.testing import RunBuilder, Step


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def followers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watchglass-card"]


def test_the_card_shows_new_steps_until_it_is_closed(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(Step(scalars={"loss": 1.0}))
        builder.flush()
        card = watchglass.live(open_run(tmp_path / "run"), interval_s=0.5)
        assert "1 TRAIN step" in card.html
        builder.step(Step(scalars={"loss": 0.5}))
        builder.flush()
        wait_until(lambda: "2 TRAIN steps" in card.html)
        assert followers()
        card.close()
        wait_until(lambda: not followers())


def test_a_card_that_looks_too_often_is_refused(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "run") as builder:
        builder.step(Step(scalars={"loss": 1.0}))
        builder.flush()
        with pytest.raises(InvalidValueError, match=r"interval_s must be at least 0\.5 s but got 0\.1"):
            watchglass.live(open_run(tmp_path / "run"), interval_s=0.1)


def test_what_is_no_run_is_refused_in_one_line() -> None:
    with pytest.raises(
        InvalidValueError, match=r"live shows a run but got 'runs/a'; open it with watchglass\.open_run"
    ):
        watchglass.live("runs/a")  # type: ignore[arg-type]
