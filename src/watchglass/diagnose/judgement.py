"""The verdict on a run: its diagnoses, its state and the steps saved by a stop, in one record. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from watchglass.diagnose.capture_faults import capture_fault
from watchglass.diagnose.crash import with_crash
from watchglass.diagnose.diagnosis import diagnose, importance
from watchglass.diagnose.memory import growing_memory
from watchglass.diagnose.parts_of_run import PartsOfRun
from watchglass.diagnose.unjudged import why_unjudged
from watchglass.record import recovered_steps
from watchglass.records import (
    Diagnosis,
    Evaluation,
    Finding,
    Mode,
    ModelSummary,
    RuleStatus,
    Severity,
    Status,
    StepEnd,
    UntimedModules,
    Verdict,
    WindowRefusal,
    facts,
    judged,
)
from watchglass.rules import Knowledge, load_knowledge
from watchglass.run import Ending, Run, count_steps, ending_of, examined_steps, is_judged, leaders_of, stop_reason
from watchglass.store import Problem, layout

#: From this number of steps on, their mean estimates the duration of further steps.
_ENOUGH_STEPS = 20
#: A step that takes this many times the usual duration was delayed by a single event.
_ACCIDENT = 10


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
        evaluation: A replay; if None, the journal of the evaluator.
        causes: Files of causes and links in addition to the built-in ones.
        price_per_hour: Price of an hour of the run, for all of its machines together, in any currency.

    Raises:
        MissingFileError: A file of causes does not exist.
        InvalidValueError: A file of causes is invalid.
    """
    knowledge = load_knowledge(causes).of_models(trees=_trees(run))
    findings = evaluation.findings if evaluation is not None else tuple(run.journal.findings)
    findings = tuple(_with_causes(finding, knowledge) for finding in findings)
    statuses = evaluation.statuses if evaluation is not None else tuple(run.journal.statuses)
    leaders = [run.worker(name) for name in leaders_of(run)]
    steps = count_steps(run, Mode.TRAIN)
    stopped = _stopped(run)
    problems, missing = _problems(run, evaluation)
    planned = _planned(run)
    seconds = max(worker.seconds for worker in leaders)
    steps_saved = _steps_saved(run, planned) if stopped else None
    models = run.models
    ending = ending_of(run)
    bypassed = _bypassed(run)
    capture = _capture(run)
    # What the user has fixed is not the budget's choice.
    chosen = () if capture.get("fixed_interval") is True else models
    evaluated = evaluation is not None or not ending.over or is_judged(run)
    unjudged = why_unjudged(run, statuses, bypassed, chosen, evaluated=evaluated)
    survived = _survived(run, findings, ending, stopped=stopped)
    diagnoses = diagnoser(run, findings, statuses, causes)(findings)
    saved = steps_saved * _seconds_per_step(run) if steps_saved is not None else None
    return Verdict(
        run=run.location,
        status=_status(run, findings, ending, unjudged, steps, stopped=stopped, missing=missing),
        diagnoses=with_crash(
            _with_checkpoints(run, diagnoses, findings, knowledge),
            None if stopped else ending.failure,
            steps,
        ),
        findings=tuple(sorted(findings, key=lambda f: (-f.severity.rank, importance([f], knowledge, survived)))),
        statuses=statuses,
        metrics=_metrics(models[0]) if len(models) == 1 else {},
        models=judged(models, findings) if len(models) > 1 else (),
        train_steps=steps,
        planned_train_steps=planned,
        seconds=seconds,
        stop_reason=stop_reason(run) if stopped else "",
        steps_saved=steps_saved,
        seconds_saved=saved,
        price_per_hour=price_per_hour,
        cost_saved=saved / 3600 * price_per_hour if saved is not None and price_per_hour is not None else None,
        capture=capture,
        problems=problems,
        records_missing=missing,
        script=_script(run),
        failure=None if stopped else ending.failure,
        ended_early=() if stopped else ending.early,
        bypassed=bypassed,
        unjudged=unjudged,
        attempt=run.attempt,
        examined=examined_steps(run),
    )


def diagnoser(
    run: Run, findings: Sequence[Finding], statuses: Sequence[RuleStatus], causes: Sequence[str] = ()
) -> Callable[[Sequence[Finding]], tuple[Diagnosis, ...]]:
    """The function that diagnoses findings of a run, all or some.

    Args:
        run: The run.
        findings: All of them.
        statuses: The statuses of its rules: what does not apply, and what has found nothing, counts as well.
        causes: See :func:`verdict`.
    """
    unfit = [status.rule for status in statuses if status.status is Status.NOT_APPLICABLE]
    # A rule with findings of severity info has found something too.
    spoke = {finding.rule for finding in findings}
    quiet = [each.rule for each in statuses if each.status is Status.NO_ISSUES_FOUND and each.rule not in spoke]
    knowledge = load_knowledge(causes).of_models(trees=_trees(run)).where(unfit, quiet)
    survived = _survived(run, findings, ending_of(run), stopped=_stopped(run))
    return partial(diagnose, knowledge=knowledge, survived=survived, part=PartsOfRun(run))


def _survived(run: Run, findings: Sequence[Finding], ending: Ending, *, stopped: bool) -> frozenset[str]:
    """Ids of findings of what ends a run, that did not end this one."""
    completed = ending.over and ending.failure is None and not stopped
    return frozenset(each.id for each in findings if completed or _went_on(run, each))


def _went_on(run: Run, finding: Finding) -> bool:
    """Whether a run has gone on after what stood still, or would end it: by steps, or by another attempt.

    One further step is none: a rank may end it while it waits for the one that stands still.
    """
    if finding.attempt < run.attempt or finding.ends_in_s != 0:
        return finding.attempt < run.attempt
    numbers = run.worker(finding.worker if finding.worker in run.workers else None).numbers(finding.mode)
    return len(numbers) > 0 and numbers.last > finding.last_step + 1


def _with_checkpoints(
    run: Run, diagnoses: Sequence[Diagnosis], findings: Sequence[Finding], knowledge: Knowledge
) -> tuple[Diagnosis, ...]:
    """Diagnoses with the last weights that were saved before each began.

    Only of the last attempt: what earlier ones have done since they were continued is not a part of the run.
    """
    saved = [fact for worker in run.workers for fact in run.facts(facts.SavedCheckpoint, worker) if fact.weights]
    if not saved:
        return tuple(diagnoses)
    by_id = {each.id: each for each in findings}
    found: list[Diagnosis] = []
    for diagnosis in diagnoses:
        own = [by_id[each] for each in diagnosis.findings]
        trained = own[0].mode is Mode.TRAIN and all(each.attempt == run.attempt for each in own)
        before: list[facts.SavedCheckpoint] = []
        if trained and not importance(own, knowledge)[0]:
            begun = min(diagnosis.step, *(each.since for each in own if each.mode is Mode.TRAIN))
            before = [each for each in saved if each.step < begun]
        last = max(before, key=lambda each: each.step, default=None)
        found.append(replace(diagnosis, checkpoint=last))
    return tuple(found)


def _with_causes(finding: Finding, knowledge: Knowledge) -> Finding:
    """A finding with causes and advice from files of users, if only these know its symptoms."""
    causes = () if finding.causes else knowledge.likely(finding.symptoms)
    if not causes:
        return finding
    return replace(finding, causes=causes, what_to_try=finding.what_to_try or knowledge.cause(causes[0]).what_to_try)


def _status(
    run: Run, findings: tuple[Finding, ...], ending: Ending, unjudged: str, steps: int, *, stopped: bool, missing: bool
) -> str:
    if stopped:
        return "stopped"
    if ending.failure is not None:
        return "interrupted" if ending.failure.kind == "interrupt" else "failed"
    if any(finding.severity is not Severity.INFO for finding in findings):
        return "issues found"
    if not steps:
        return "no data"
    if not (run.finished or ending.over):
        return "incomplete"
    if missing:
        return "damaged"
    return "not judged" if unjudged else "no issues found"


def _problems(run: Run, evaluation: Evaluation | None) -> tuple[tuple[str, ...], bool]:
    """Parts of the run that could not be read, and whether records are missing because of it."""
    problems = run.problems
    known = [str(problem) for problem in problems]
    others = [text for text in (evaluation.problems if evaluation is not None else ()) if text not in known]
    missing = bool(others) or any(not _is_harmless(run, problem) for problem in problems)
    return (*dict.fromkeys((*known, *others)),), missing


def _is_harmless(run: Run, problem: Problem) -> bool:
    """Whether no complete record is missing: a file ends within a frame, and no step is missing there.

    The last frame of a killed process is incomplete, and its successor, or a harvest, continues after it. A file that
    was cut looks the same, except for the steps that are missing.
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
    """Whether watchglass stopped this attempt: a worker reports it, or was killed after the stop was committed."""
    if any(event.get("status") == "stopped" for worker in run.workers for event in run.worker(worker).lifecycle):
        return True
    kinds = {seen.kind for seen in run.journal.observations if seen.attempt == run.attempt}
    return "worker_stopped" in kinds


def _planned(run: Run) -> int | None:
    plans = run.facts(facts.PlannedSteps)
    return plans[-1].steps if plans else None


def _steps_saved(run: Run, planned: int | None) -> int | None:
    """TRAIN steps of the plan that were not reached; a resumed run counts from its first step."""
    numbers = run.worker().numbers(Mode.TRAIN)
    return max(0, planned - (numbers.last + 1)) if planned is not None and len(numbers) else None


class _Interval(NamedTuple):
    """From the start of one TRAIN step to that of the next."""

    seconds: float
    captured: bool
    evaluated: bool


def _seconds_per_step(run: Run) -> float:
    """Estimated duration of each further TRAIN step, with its share of the evaluations, in seconds.

    The first steps of a run take much longer than later ones, and are captured, which later ones seldom are. So steps
    without a capture give the best estimate. If there are too few steps, the shortest one counts, which tends to
    underestimate.
    """
    intervals = _intervals(run)
    between = [each for each in intervals if not each.evaluated] or intervals
    usual = [each.seconds for each in between if not each.captured]
    if len(usual) < _ENOUGH_STEPS:  # if the user captures every step, later ones would have been captured as well
        usual = [each.seconds for each in between[10:]]
    if len(usual) < _ENOUGH_STEPS:
        ends = [end for end, _ in run.worker().course if end.mode is Mode.TRAIN]
        return min((each.seconds for each in between), default=0.0) or min(
            ((end.end_ns - end.start_ns) / 1e9 for end in ends), default=0.0
        )
    # The mean includes occasional stalls of a loader; the limit excludes a machine that was suspended.
    limit = _ACCIDENT * statistics.median(usual)
    step = statistics.mean(min(seconds, limit) for seconds in usual)
    evaluations = sum(max(0.0, each.seconds - step) for each in intervals if each.evaluated)
    return step + evaluations / len(intervals)


def _intervals(run: Run) -> list[_Interval]:
    """Intervals within attempts: each attempt has a separate clock, and the time between two attempts is no step."""
    found: list[_Interval] = []
    before: StepEnd | None = None
    attempt, evaluated = -1, False
    for end, place in run.worker().course:
        if end.mode is not Mode.TRAIN:
            evaluated = True
            continue
        if before is not None and place.attempt == attempt:
            found.append(_Interval((end.start_ns - before.start_ns) / 1e9, before.captures > 0, evaluated))
        before, attempt, evaluated = end, place.attempt, False
    return found


def _trees(run: Run) -> bool:
    """Whether all models are boosted trees."""
    found = [model for worker in run.workers for model in run.facts(facts.ModelDescription, worker)]
    return bool(found) and all(model.trees for model in found)


def _bypassed(run: Run) -> tuple[facts.BypassedUpdates, ...]:
    """The last fact of each worker."""
    kind = facts.BypassedUpdates
    return tuple(replace(each, worker=worker) for worker in run.workers for each in run.facts(kind, worker)[-1:])


def _metrics(model: ModelSummary) -> dict[str, float]:
    """Accuracy and loss of the last evaluation, and the last training loss."""
    found = {
        model.accuracy_name: model.accuracy,
        model.validation_name: model.validation_loss,
        "training loss": model.training_loss,
    }
    return {name: value for name, value in found.items() if value is not None}


def _capture(run: Run) -> dict[str, Any]:
    """The counters and phases of the first worker with any, growth of memory, a failure of ours, steps recovered."""
    found: dict[str, Any] = {}
    for name in run.workers:
        if found := _counters(run, name):
            if len(run.workers) > 1:
                found["worker"] = name
            if len(phases := run.phases(worker=name)):
                found["phases"] = {phase: round(share, 4) for phase, share in phases.typical().shares.items()}
            # `watchglass profile` prints why its own request was refused.
            if refused := [each.to_data() for each in run.facts(WindowRefusal, name) if each.request is None]:
                found["refused_windows"] = refused
            if untimed := [each.to_data() for each in run.facts(UntimedModules, name)]:
                found["untimed_modules"] = untimed
            break
    if (growth := growing_memory(run)) is not None:
        found["memory"] = growth
    if fault := capture_fault(run):
        found["fault"] = fault
    recovered = sum(recovered_steps(run.worker(worker).lifecycle) for worker in run.workers)
    return {**found, "recovered_steps": recovered} if recovered else found


def _counters(run: Run, worker: str) -> dict[str, Any]:
    """The counters that a worker wrote when it left, or the last ones that it recorded."""
    left = [event["counters"] for event in run.worker(worker).lifecycle if isinstance(event.get("counters"), dict)]
    costs = left or [cost.counters for cost in run.facts(facts.CaptureCost, worker)]
    return dict(costs[-1]) if costs else {}
