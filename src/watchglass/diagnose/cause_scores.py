"""How likely each cause was at which step: the diagnoses of the findings that were known by then. A pure function."""

from __future__ import annotations

import numpy as np

from watchglass.diagnose.judgement import diagnoser
from watchglass.records import CauseCourse, Diagnosis, Finding, Mode, Verdict
from watchglass.run import Run
from watchglass.view import training_step

#: Most steps at which diagnoses are made, and most findings that these diagnose together.
_MOST_STEPS, _MOST_FINDINGS = 64, 20_000


def cause_courses(run: Run, verdict: Verdict) -> tuple[CauseCourse, ...]:
    """The scores of all causes of a verdict, and of what was a likely cause before, in no order.

    Each diagnosis is made of the findings that were first seen up to its step, as they are now, beside the rules that
    have found nothing until now. A finding of an evaluation counts from the training step before it. Where findings
    begin at many steps, some of these are left out. The last score is that of the verdict.

    Args:
        run: The run.
        verdict: Its verdict.
    """
    numbers = run.worker().numbers(Mode.TRAIN)
    if not verdict.findings or not len(numbers):
        return ()
    by_step = _by_step(run, verdict, numbers.last)
    steps = sorted(by_step)
    most = max(2, min(_MOST_STEPS, _MOST_FINDINGS // len(verdict.findings)))
    if len(steps) > most:
        steps = [steps[place] for place in np.linspace(0, len(steps) - 1, most).round().astype(int).tolist()]
    diagnose = diagnoser(run, verdict.findings, verdict.statuses)
    scores = [_scores(diagnose([each for at in by_step if at <= step for each in by_step[at]])) for step in steps[:-1]]
    scores.append(_scores(verdict.diagnoses))
    titles = dict.fromkeys(title for known in scores for title in known)
    return tuple(CauseCourse(title, tuple(steps), tuple(known.get(title, 0.0) for known in scores)) for title in titles)


def _by_step(run: Run, verdict: Verdict, last: int) -> dict[int, list[Finding]]:
    """Findings by the training step at which they were first seen, those of an unknown one by the last step."""
    whose = {each.worker for each in verdict.findings if each.mode is not Mode.TRAIN}.intersection(run.workers)
    stretches = {worker: run.stretches(Mode.EVAL, worker) for worker in whose}
    found: dict[int, list[Finding]] = {}
    for finding in verdict.findings:
        step = training_step(finding, stretches.get(finding.worker, ()))
        found.setdefault(last if step is None else step, []).append(finding)
    return found


def _scores(diagnoses: tuple[Diagnosis, ...]) -> dict[str, float]:
    """The highest score of each cause, by title."""
    found: dict[str, float] = {}
    for diagnosis in diagnoses:
        for ranked in diagnosis.causes:
            found[ranked.cause.title] = max(ranked.score, found.get(ranked.cause.title, 0.0))
    return found
