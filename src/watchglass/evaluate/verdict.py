"""The verdict on a run: its diagnoses, its state and what was saved, in one record. Pure."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from watchglass.errors import UnknownNameError
from watchglass.evaluate.diagnosis import diagnose
from watchglass.evaluate.replay import Evaluation
from watchglass.record import recovered_steps
from watchglass.records import Finding, Mode, Severity, Verdict
from watchglass.run import Run


def verdict(run: Run, evaluation: Evaluation | None = None) -> Verdict:
    """The verdict on a run.

    Args:
        run: The run, as far as it was read.
        evaluation: A replay; what the evaluator wrote into the journal if None.
    """
    findings = evaluation.findings if evaluation is not None else tuple(run.journal.findings)
    statuses = evaluation.statuses if evaluation is not None else tuple(run.journal.statuses)
    steps = len(run.worker().numbers(Mode.TRAIN))
    stopped = _stopped(run)
    planned = _planned(run)
    seconds = run.worker().seconds
    saved = None
    if stopped and planned is not None and steps:
        saved = max(0, planned - steps) * _seconds_per_step(run)
    return Verdict(
        run=run.location,
        status=_status(run, findings, stopped=stopped),
        diagnoses=diagnose(findings),
        findings=tuple(sorted(findings, key=lambda f: (-f.severity.rank, f.attempt, f.global_step))),
        statuses=statuses,
        metrics=_metrics(run),
        train_steps=steps,
        planned_train_steps=planned,
        seconds=seconds,
        seconds_saved=saved,
        capture=_capture(run),
    )


def _status(run: Run, findings: tuple[Finding, ...], *, stopped: bool) -> str:
    if stopped:
        return "stopped"
    if any(finding.severity is not Severity.INFO for finding in findings):
        return "issues found"
    if not len(run.worker().numbers(Mode.GLOBAL)):
        return "no data"
    return "no issues found" if run.finished else "incomplete"


def _stopped(run: Run) -> bool:
    """Whether watchglass stopped this attempt: a worker says so, or one was killed after the stop was committed."""
    if any(event.get("status") == "stopped" for worker in run.workers for event in run.worker(worker).lifecycle):
        return True
    kinds = {seen.kind for seen in run.journal.observations if seen.attempt == run.attempt}
    return "worker_stopped" in kinds


def _planned(run: Run) -> int | None:
    facts = run.facts("planned_steps")
    steps = facts[-1].data.get("steps") if facts else None
    return int(steps) if isinstance(steps, (int, float)) and not isinstance(steps, bool) else None


def _seconds_per_step(run: Run) -> float:
    """Typical time from the start of one TRAIN step to the next, in seconds.

    A mean counts the evaluations in between; over few steps a median is fairer, as the first steps of a training take
    much longer than all others, and are captured, which later ones seldom are.
    """
    ends = [end for end, _ in run.worker().course if end.mode is Mode.TRAIN]
    if len(ends) < 2:
        return (ends[0].end_ns - ends[0].start_ns) / 1e9 if ends else 0.0
    between = [((after.start_ns - before.start_ns) / 1e9, before.captures) for before, after in pairwise(ends)]
    if len(between) >= 64:
        return statistics.mean(seconds for seconds, _ in between[10:])
    uncaptured = [seconds for seconds, captures in between if not captures]
    return statistics.median(uncaptured or [seconds for seconds, _ in between])


def _metrics(run: Run) -> dict[str, float]:
    """Accuracy and loss of the last evaluation, and the last training loss."""
    found: dict[str, float] = {}
    evaluations = [phase for phase in run.phases(Mode.EVAL) if phase.train_step >= 0]
    if evaluations:
        for name in ("accuracy", "loss"):
            if name in evaluations[-1].means:
                found[f"validation {name}"] = evaluations[-1].means[name]
    try:
        _, losses = run.scalars("loss")
    except UnknownNameError:
        return found
    if len(losses):
        found["training loss"] = float(losses[-1])
    return found


def _capture(run: Run) -> dict[str, Any]:
    """The counters with which the first worker left, and how many steps of killed ones were recovered."""
    found: dict[str, Any] = {}
    for event in reversed(run.worker().lifecycle):
        counters = event.get("counters")
        if isinstance(counters, dict):
            found = dict(counters)
            break
    else:
        costs = run.facts("capture_cost")
        found = dict(costs[-1].data) if costs else {}
    recovered = sum(recovered_steps(run.worker(worker).lifecycle) for worker in run.workers)
    return {**found, "recovered_steps": recovered} if recovered else found
