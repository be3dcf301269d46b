"""What the rules say of each run of the zoo, and what three checks of the loss curve say of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import Trial, shown

#: Severities that count as an alarm, the weaker one first.
ALARMS = ("warning", "error")


@dataclass(frozen=True)
class Judged:
    """What the rules say of a run.

    Attributes:
        trial: The run.
        severity: The worst severity of its diagnoses, "" for none.
        causes: Ids of causes in the order in which a person reads them: those of the first diagnosis, most likely
            first, then those of the next. Diagnoses of severity `info` are left out.
        rules: Rules with a finding of severity `warning` or `error`.
        share: Step of the first finding of the first diagnosis that names a right cause among the first three, as a
            share of the run in 0..1; NaN where there is none.
        status: Status of the verdict.
        findings: A line for each finding of severity `warning` or `error`: rule, step, figures.
        failed: Rules that failed on the run.
    """

    trial: Trial
    severity: str
    causes: tuple[str, ...]
    rules: tuple[str, ...]
    share: float
    status: str
    findings: tuple[str, ...]
    failed: tuple[str, ...]

    def alarms(self, severity: str) -> bool:
        """Whether it is called sick, at this severity or a worse one."""
        return self.severity in ALARMS[ALARMS.index(severity) :]

    def right(self, within: int) -> bool:
        """Whether a right cause is among the first so many."""
        fault = self.trial.member.fault
        return fault is not None and bool(set(self.causes[:within]) & set(fault.causes))


#: The verdict on a program that failed before its first step: no run, so no alarm.
_NOTHING_RECORDED: Mapping[str, Any] = {
    "diagnoses": [],
    "findings": [],
    "rules": [],
    "train_steps": 0,
    "status": "no run",
}


def judge(trials: Sequence[Trial], jobs: int, rules: str) -> list[Judged]:
    """Evaluate rules on every run, as `watchglass check` does.

    Args:
        trials: The runs.
        jobs: How many processes evaluate at a time.
        rules: Rules, as for `--rules`; ``"default"`` for no such option.
    """
    # One command for all runs of a script: starting costs more than judging.
    scripts = sorted({trial.folder.parents[1] for trial in trials})
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(_checked, script, rules) for script in scripts]
        documents = [each for done in shown(as_completed(futures), len(futures), "judging") for each in done.result()]
    by_run = {Path(document["run"]).resolve(): document for document in documents}
    return [_judged(trial, by_run.get(trial.run.resolve(), _NOTHING_RECORDED)) for trial in trials]


def _checked(runs: Path, rules: str) -> list[dict[str, Any]]:
    """The verdicts on all runs below a folder, as JSON."""
    command = [sys.executable, "-m", "watchglass", "check", str(runs), "--format", "json", "--allow-unfinished"]
    if rules != "default":
        command += ["--rules", rules]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(answer.stdout)
    except ValueError:
        raise RuntimeError(f"the rules could not be evaluated: {answer.stderr.strip()}") from None
    documents: list[dict[str, Any]] = found.get("runs", [found])
    return documents


def _judged(trial: Trial, document: Mapping[str, Any]) -> Judged:
    diagnoses = [each for each in document["diagnoses"] if each["severity"] in ALARMS]
    severities = {each["severity"] for each in diagnoses}
    causes = tuple(dict.fromkeys(cause["id"] for each in diagnoses for cause in each["causes"]))
    alarms = [each for each in document["findings"] if each["severity"] in ALARMS]
    return Judged(
        trial,
        next((severity for severity in reversed(ALARMS) if severity in severities), ""),
        causes,
        tuple(sorted({each["rule"] for each in alarms})),
        _share(trial, document, diagnoses, causes[:3]),
        document["status"],
        tuple(f"{each['rule']} ({each['severity']}, step {each['step']}): {each['message']}" for each in alarms),
        tuple(each["rule"] for each in document["rules"] if each["status"] == "Error"),
    )


def _share(
    trial: Trial, document: Mapping[str, Any], diagnoses: Sequence[Mapping[str, Any]], named: Sequence[str]
) -> float:
    fault = trial.member.fault
    steps = document["train_steps"]
    if fault is None or not steps:
        return math.nan
    right = set(fault.causes) & set(named)
    seen = {each["id"]: float(each["step"]) for each in document["findings"]}
    for diagnosis in diagnoses:
        if right & {cause["id"] for cause in diagnosis["causes"]}:
            first = min((seen[name] for name in diagnosis["findings"] if name in seen), default=diagnosis["step"])
            return min(1.0, (float(first) + 1) / float(steps))
    return math.nan


def _loss_is_nan(figures: Mapping[str, Any]) -> bool:
    return any(not math.isfinite(loss) for _, loss in [*figures["training"], *figures["validation"]])


def _validation_got_worse(figures: Mapping[str, Any]) -> bool:
    losses = [loss for _, loss in figures["validation"]]
    return len(losses) > 1 and losses[-1] > min(losses) + 0.1 * abs(min(losses))


def _hardly_fell(figures: Mapping[str, Any]) -> bool:
    losses = [loss for _, loss in figures["training"]]
    tenth = max(1, len(losses) // 10)
    first, last = losses[:tenth], losses[-tenth:]
    return bool(losses) and sum(last) / len(last) > 0.9 * (sum(first) / len(first))


#: Checks that need nothing but the losses a script prints: what the rules must be better than.
STRAWMEN: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "always alarm": lambda _: True,
    "loss is NaN": _loss_is_nan,
    "validation loss rose by 10 % over its best": _validation_got_worse,
    "training loss fell by less than 10 %": _hardly_fell,
    "any of these three": lambda figures: (
        _loss_is_nan(figures) or _validation_got_worse(figures) or _hardly_fell(figures)
    ),
}
