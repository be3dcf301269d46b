"""What is shown of a run, read at one moment; and the thread that reads it again and again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass import diagnose, view
from watchglass.config import Clock
from watchglass.diagnose import RunSummary
from watchglass.errors import in_a_line
from watchglass.records import Finding, Mode, Verdict, count
from watchglass.run import Run, is_judged, last_step_ns, open_run, usage_of

#: Seconds between two looks at a run in a folder; an object store says itself.
_PERIOD_S = 0.5
#: Pause after a look, as a multiple of its length: a long run costs a fifth of a core at most.
_PAUSE_RATIO = 4.0
#: Steps whose phases are shown, the newest.
_PHASED = 200
#: Scalars whose last value is shown beside the loss.
_SHOWN = ("learning_rate", "accuracy", "gradient_norm")


@dataclass(frozen=True, eq=False)
class RunLook:
    """A run at one moment. Never changes.

    Attributes:
        summary: What lists say about it: state, headline, progress.
        verdict: The verdict by the findings of its evaluator.
        steps: The training steps with a loss, int64[n], ascending.
        loss: Their losses, float64[n].
        last: Last values of further scalars, by name.
        phases: Shares of the phases of the newest steps, 0 to 1, by name; empty if they were not recorded.
        step_s: Mean time of these steps; None if unknown.
        machine: How much of the machines the run used, a sentence for each.
        evaluated: How its rules are evaluated, in words.
        last_ns: Wall time of its last step; None for none.
        problem: Why it cannot be read now, "" if it can.
    """

    summary: RunSummary
    verdict: Verdict
    steps: NDArray[np.int64]
    loss: NDArray[np.float64]
    last: dict[str, float]
    phases: dict[str, float]
    step_s: float | None
    machine: tuple[str, ...]
    evaluated: str
    last_ns: int | None
    problem: str = ""

    @property
    def location(self) -> str:
        """Its location."""
        return self.summary.listed.location

    @property
    def findings(self) -> list[Finding]:
        """The findings, the most severe first, then by step."""
        return sorted(self.verdict.findings, key=lambda each: (-each.severity.rank, each.step))

    def progress(self, now_ns: int) -> str:
        """``"not finished · 120 of 1,000 training steps (12 %), about 3 min left · last step 2 s ago"``."""
        run = self.summary
        steps = count(run.train_steps, "training step")
        if run.planned_train_steps:
            steps = f"{run.train_steps:,} of {count(run.planned_train_steps, 'training step')}"
        steps += f" ({view.percent(run.done_ratio)})" if run.done_ratio is not None else ""
        steps += f", about {view.duration(run.seconds_left)} left" if run.seconds_left is not None else ""
        parts = [run.state, steps]
        if run.live and self.last_ns is not None:
            parts.append(f"last step {view.duration(max(0, round((now_ns - self.last_ns) / 1e9)))} ago")
        parts.append(self.evaluated)
        return " · ".join(parts)

    def numbers(self) -> str:
        """``"loss 0.31 at step 1,200 · learning rate 0.001 · 25 ms a step"``."""
        parts = [f"loss {view.number(float(self.loss[-1]))} at step {int(self.steps[-1]):,}"] if len(self.loss) else []
        parts += [f"{name.replace('_', ' ')} {view.number(value)}" for name, value in self.last.items()]
        parts += [f"{view.exact_duration(self.step_s)} a step"] if self.step_s is not None else []
        return " · ".join(parts)


def look_at(run: Run, problem: str = "") -> RunLook:
    """What is shown of a run as it was read last. No rule is evaluated."""
    worker = run.worker()
    empty = np.empty(0, np.int64), np.empty(0)
    steps, loss = run.scalars("loss") if worker.has("loss") else empty
    last = {}
    for name in _SHOWN:
        values = run.scalars(name)[1] if worker.has(name) else empty[1]
        if len(values):
            last[name] = float(values[-1])
    phases = run.phases()
    values = phases.values[-_PHASED:]
    whole = float(values.sum())
    names = phases.shares
    shares = dict(zip(names, (values.sum(0) / whole).tolist(), strict=True)) if whole else {}
    if is_judged(run):
        evaluated = "rules evaluated to the end"
    elif run.journal.statuses and not run.finished:
        evaluated = "rules are evaluated"
    else:
        evaluated = "rules not evaluated: watchglass check does"
    verdict = diagnose.verdict(run)
    return RunLook(
        diagnose.summary_of(run, judged=verdict), verdict, steps, loss, last,
        {name: share for name, share in shares.items() if share > 0}, whole / len(values) if whole else None,
        tuple(view.usage_sentence(each) for each in usage_of(run)), evaluated, last_step_ns(worker), problem,
    )  # fmt: skip


def look_json(look: RunLook) -> str:
    """A look as JSON, with texts for numbers that JSON lacks."""
    run, verdict = look.summary, look.verdict
    return view.strict_json(
        {
            "run": look.location,
            "state": run.state,
            "status": verdict.status,
            "headline": run.headline,
            "train_steps": run.train_steps,
            "planned_train_steps": run.planned_train_steps,
            "seconds_left": run.seconds_left,
            "loss": {"step": int(look.steps[-1]), "value": float(look.loss[-1])} if len(look.loss) else None,
            "last": look.last,
            "phases": look.phases,
            "seconds_per_step": look.step_s,
            "machine": list(look.machine),
            "evaluated": look.evaluated,
            "diagnoses": [
                {"headline": each.headline, "severity": each.severity.value, "step": each.step}
                for each in verdict.diagnoses
            ],
            "findings": [_finding_json(each) for each in look.findings],
        }
    )


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id, "rule": finding.rule, "severity": finding.severity.value, "mode": finding.mode.name,
        "step": finding.step, "message": finding.message, "value": finding.value, "limit": finding.limit,
    }  # fmt: skip


def at_step(finding: Finding) -> str:
    """``"120"``, ``"EVAL 3"``."""
    return f"{finding.step:,}" if finding.mode is Mode.TRAIN else f"{finding.mode.name} {finding.step:,}"


class LookingThread:
    """A thread that reads a run until it is closed; readers take what it read last.

    Args:
        location: Location of the run.
        clock: The time.

    Attributes:
        newest: What was read last.

    Raises:
        WatchglassError: The run cannot be opened.
    """

    def __init__(self, location: str, clock: Clock = time) -> None:
        self._run, self._clock = open_run(location), clock
        self.newest = look_at(self._run)
        self._closed = threading.Event()
        intervals = self._run.store.policy.intervals(len(self._run.workers))
        self._period_s, self._liveness_s = max(_PERIOD_S, intervals.poll_s), intervals.liveness_s
        self._looked_s = clock.monotonic()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        took_s = 0.0
        while not self._closed.wait(max(self._period_s, _PAUSE_RATIO * took_s)):
            begun_s = self._clock.monotonic()
            self.look()
            took_s = self._clock.monotonic() - begun_s

    def look(self) -> None:
        """Read what is new. Called by the thread alone, and by tests."""
        try:
            news = self._run.refresh()
            # Whether its processes live is seen without news, too.
            late = self._clock.monotonic() - self._looked_s > self._liveness_s
            if news or late or self.newest.problem:
                self._looked_s = self._clock.monotonic()
                self.newest = look_at(self._run)
        except Exception as error:  # shown beside what was read before
            old = self.newest
            fields = {name: getattr(old, name) for name in old.__dataclass_fields__}
            self.newest = RunLook(**{**fields, "problem": in_a_line(error)})
