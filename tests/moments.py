"""The steps among the moments of a run, steps as moments, and a run with an evaluator that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from clocks import Now
from watchglass.config import EvaluatorConfig, EvaluatorTiming, RuleSpec
from watchglass.evaluate import Judging, replay
from watchglass.evaluate.engine.engine import Engine
from watchglass.evaluate.live.evaluator import Evaluator
from watchglass.records import Finding
from watchglass.store import LocalStore
from watchglass.tables import AttemptEnd, JointStep, Moment, StepView
from watchglass.testing import Batch, RunBuilder, Step


def views_shown(moments: Iterable[Moment]) -> Iterator[tuple[StepView, ...]]:
    """The views of each step."""
    return (moment.views for moment in moments if isinstance(moment, JointStep))


def feed(engine: Engine, *views: StepView) -> list[Finding]:
    """Shows one step to an engine."""
    return engine.show(JointStep(views))


def finish(engine: Engine) -> list[Finding]:
    """Says to an engine that the run has ended."""
    return engine.show(AttemptEnd())


#: The workers are this process: nothing reads its stacks.
_TIMING = EvaluatorTiming(outside_stacks_s=math.inf)


class Made:
    """Keeps what a factory of an evaluator makes."""

    judging: Judging

    def by(self, factory: Callable[..., Judging]) -> Callable[..., Judging]:
        def make(*args: Any) -> Judging:
            self.judging = factory(*args)
            return self.judging

        return make


class FollowedCase:
    """A run whose workers are this process, with an evaluator whose clock moves only in :meth:`wait`."""

    def __init__(
        self, path: Path, specs: tuple[RuleSpec, ...], workers: int = 1, *, alone: bool = False,
        store: LocalStore | None = None,
    ) -> None:  # fmt: skip
        self.specs, self.clock, self.made = specs, Now(), Made()
        self.builder, self.store = RunBuilder(path, workers=workers, alone=alone), store or LocalStore(path)
        self.evaluator = self._started()

    def _started(self) -> Evaluator:
        evaluator = Evaluator(
            EvaluatorConfig(self.store.location, None, self.specs, timing=_TIMING), store=self.store,
            judging=self.made.by(Judging), clock=self.clock,
        )  # fmt: skip
        evaluator.open(lambda seconds: False, patience_s=0.0)
        return evaluator

    def write(self, *given: Step | Batch) -> None:
        """Writes rows, which the evaluator reads."""
        for each in given:
            self.builder.batch(each) if isinstance(each, Batch) else self.builder.step(each)
        while self.evaluator.turn():
            pass

    def wait(self, *seconds: float) -> None:
        """The evaluator looks at workers and reads, before and after each of these times."""
        for each in (*seconds, 0.0):
            self.write()
            self.clock.advance(each)

    def again(self) -> None:
        """Another evaluator follows the run from here on."""
        self.evaluator.close()
        self.evaluator = self._started()

    def messages(self, rule: str) -> list[str]:
        """What a rule found so far."""
        return [found.message for found in self.evaluator.evaluation().findings if found.rule == rule]

    def end(self) -> None:
        """Ends the run and its evaluation, which a replay must equal."""
        self.builder.leave()
        self.builder.close()
        self.write()
        self.evaluator.finish()
        self.assert_replay_equals_live()

    def assert_replay_equals_live(self) -> None:
        """The evaluator found the same as a replay."""
        live, replayed = self.evaluator.evaluation(), replay(self.store, self.specs)
        assert [found.to_json() for found in replayed.findings] == [found.to_json() for found in live.findings]
        assert replayed.statuses == live.statuses
