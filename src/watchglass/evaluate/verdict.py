"""The verdict on a run: its diagnoses, its state and what was saved, in one record. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from watchglass.errors import UnknownNameError
from watchglass.evaluate.diagnosis import diagnose
from watchglass.evaluate.evaluation import Evaluation
from watchglass.record import recovered_steps
from watchglass.records import Finding, Mode, Severity, Status, Verdict
from watchglass.rules import Knowledge, load_knowledge
from watchglass.run import Run
from watchglass.store import Problem, layout


def verdict(
    run: Run,
    evaluation: Evaluation | None = None,
    *,
    causes: Sequence[str] = (),
    price_per_hour: float | None = None,
) -> Verdict:
    """The verdict on a run.

    Args:
        run: The run, as far as it was read.
        evaluation: A replay; what the evaluator wrote into the journal if None.
        causes: Files of causes and links beside the built-in ones.
        price_per_hour: What an hour of the whole training costs, all of its machines together, in any currency.

    Raises:
        MissingFileError: A file of causes does not exist.
        InvalidValueError: A file of causes cannot be so.
    """
    knowledge = load_knowledge(causes)
    findings = evaluation.findings if evaluation is not None else tuple(run.journal.findings)
    findings = tuple(_with_causes(finding, knowledge) for finding in findings)
    statuses = evaluation.statuses if evaluation is not None else tuple(run.journal.statuses)
    silent = [status.rule for status in statuses if status.status is Status.NOT_APPLICABLE]
    steps = len(run.worker().numbers(Mode.TRAIN))
    stopped = _stopped(run)
    problems, missing = _problems(run, evaluation)
    planned = _planned(run)
    seconds = run.worker().seconds
    steps_saved = _steps_saved(run, planned) if stopped else None
    saved = steps_saved * _seconds_per_step(run) if steps_saved is not None else None
    return Verdict(
        run=run.location,
        status=_status(run, findings, stopped=stopped, missing=missing),
        diagnoses=diagnose(findings, knowledge.where(silent)),
        findings=tuple(sorted(findings, key=lambda f: (-f.severity.rank, f.attempt, f.global_step))),
        statuses=statuses,
        metrics=_metrics(run),
        train_steps=steps,
        planned_train_steps=planned,
        seconds=seconds,
        steps_saved=steps_saved,
        seconds_saved=saved,
        price_per_hour=price_per_hour,
        cost_saved=saved / 3600 * price_per_hour if saved is not None and price_per_hour is not None else None,
        capture=_capture(run),
        problems=problems,
        records_missing=missing,
        script=_script(run),
    )


def _with_causes(finding: Finding, knowledge: Knowledge) -> Finding:
    """A finding whose symptoms only files of users know, with the causes and the advice that these have for it."""
    symptoms = finding.evidence.get("symptoms")
    if finding.causes or not isinstance(symptoms, (list, tuple)):
        return finding
    causes = knowledge.likely(map(str, symptoms))
    if not causes:
        return finding
    return replace(finding, causes=causes, what_to_try=finding.what_to_try or knowledge.cause(causes[0]).what_to_try)


def _status(run: Run, findings: tuple[Finding, ...], *, stopped: bool, missing: bool) -> str:
    if stopped:
        return "stopped"
    if any(finding.severity is not Severity.INFO for finding in findings):
        return "issues found"
    if not len(run.worker().numbers(Mode.TRAIN)):
        return "no data"
    if not run.finished:
        return "incomplete"
    return "damaged" if missing else "no issues found"


def _problems(run: Run, evaluation: Evaluation | None) -> tuple[tuple[str, ...], bool]:
    """What of the run could not be read, and whether records are missing because of it."""
    problems = run.problems
    known = [str(problem) for problem in problems]
    others = [text for text in (evaluation.problems if evaluation is not None else ()) if text not in known]
    missing = bool(others) or any(not _is_harmless(run, problem) for problem in problems)
    return (*dict.fromkeys((*known, *others)),), missing


def _is_harmless(run: Run, problem: Problem) -> bool:
    """Whether nothing that was handed over is missing: a file ends within a frame, and no step is left out there.

    What a killed process was writing is torn, and its successor, or a harvest, goes on behind it. A file that was cut
    looks alike, but for the steps that it leaves out.
    """
    if problem.what != "ends within a frame":
        return False
    if problem.path.startswith(f"{layout.JOURNAL}/"):
        return True
    name = layout.parse_segment(problem.path)
    if name is None or name.worker not in run.workers:
        return False
    tables = run.worker(name.worker).attempts.get(name.attempt)
    steps = tables.steps if tables is not None else {}
    return bool(steps) and max(steps) + 1 == len(steps)  # they count from 0 in every attempt


def _script(run: Run) -> str:
    command = run.manifest.command
    return command[0] if command and command[0].endswith(".py") else ""


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


def _steps_saved(run: Run, planned: int | None) -> int | None:
    """TRAIN steps of the plan that were not reached; of a training that was resumed, from where it stood."""
    numbers = run.worker().numbers(Mode.TRAIN)
    return max(0, planned - (numbers.last + 1)) if planned is not None and len(numbers) else None


def _seconds_per_step(run: Run) -> float:
    """Typical time from the start of one TRAIN step to the next, in seconds.

    A mean counts the evaluations in between; over few steps a median is fairer, as the first steps of a training take
    much longer than all others, and are captured, which later ones seldom are.
    """
    course = [(end, place.attempt) for end, place in run.worker().course if end.mode is Mode.TRAIN]
    # Attempts have clocks of their own, and what lies between two of them is no step.
    between = [
        ((after.start_ns - before.start_ns) / 1e9, before.captures)
        for (before, attempt), (after, later) in pairwise(course)
        if attempt == later
    ]
    if not between:
        return statistics.median((end.end_ns - end.start_ns) / 1e9 for end, _ in course) if course else 0.0
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
