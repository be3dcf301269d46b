"""A fleet of runs for tests: who listens to it, a clock, and turns until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from clocks import Now
from waiting import PATIENCE_S
from watchglass.config import EvaluatorConfig, EvaluatorTiming, RuleSpec
from watchglass.evaluate import Followed
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.evaluate.many.fleet import Fleet
from watchglass.evaluate.many.member import Member
from watchglass.store import LocalStore
from watchglass.testing import Step

NAN = float("nan")
HEALTHY = [Step({"loss": 1 / (n + 1)}) for n in range(20)]
SICK = [*HEALTHY[:10], *[Step({"loss": NAN})] * 5]
#: A run has ended as soon as its workers have, and new runs are searched for all the time.
IMPATIENT = EvaluatorTiming(settled_s=-1.0, restarted_s=0.0, search_s=(0.05, 30.0))
RULES = (RuleSpec("ExplodingTensor"), RuleSpec("LossNotDecreasing"))


class Heard:
    """An audience that remembers."""

    def __init__(self) -> None:
        self.followed: list[str] = []
        self.ends: dict[str, Followed] = {}
        self.left_out: dict[str, str] = {}
        self.sentences: list[str] = []

    def begun(self, name: str, location: str) -> None:
        self.followed.append(name)

    def ended(self, name: str, location: str, followed: Followed) -> None:
        assert name not in self.ends, "reported twice"
        self.ends[name] = followed

    def skipped(self, name: str, location: str, reason: str) -> None:
        assert name not in self.left_out, "reported twice"
        self.left_out[name] = reason

    def notified(self, sentence: str) -> None:
        self.sentences.append(sentence)


@contextmanager
def following(folder: Path, heard: Heard, *, timing: EvaluatorTiming = IMPATIENT, **options: Any) -> Iterator[Fleet]:
    """A fleet below a folder, closed at the end; ``evaluator`` makes the evaluators of its runs."""
    member = partial(Member, evaluator=options.pop("evaluator", Evaluator))
    store = options.pop("store", None) or LocalStore(folder)
    fleet = Fleet(EvaluatorConfig(str(folder), None, RULES, timing=timing), store, heard, member=member, **options)
    try:
        yield fleet
    finally:
        fleet.close("interrupted", patience_s=0.0)


def turn_until(fleet: Fleet, condition: Callable[[], Any], now: Now | None = None) -> None:
    """Turns until it is so, by the real clock or by one that moves between two turns."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "did not happen"
        pause_s = fleet.turn()
        if now is None:
            time.sleep(min(0.01, pause_s))
        else:
            now.advance(pause_s)
