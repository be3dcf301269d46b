"""What pages and documents on time state about a run, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from watchglass.records import Finding, Mode, RuleStatus

if TYPE_CHECKING:
    from watchglass.run import Run
    from watchglass.view.formats import RuleText

#: Names of percentiles, and which they are.
PERCENTILES = {"max": 100, "p99": 99, "p95": 95, "p50": 50, "min": 0}


def job_numbers(run: Run) -> dict[str, Any]:
    """Command, workers, begin, end and stages of the run."""
    stages = run.stages()
    seconds = stages.seconds
    return {
        "command": list(run.manifest.command),
        "workers": list(run.workers),
        "begin": str(stages.stages[0].begin) if len(stages) else None,
        "end": str(stages.stages[-1].end) if len(stages) else None,
        "seconds": sum(seconds.values()),
        "initialization_s": seconds.get("initialization"),
        "training_loop_s": stages.loop_s,
        "finalization_s": seconds.get("finalization"),
        "training_s": seconds.get("training", 0.0),
        "evaluation_s": seconds.get("evaluation", 0.0),
        "training_steps": sum(stage.steps for stage in stages["training"]),
        "evaluation_steps": sum(stage.steps for stage in stages["evaluation"]),
    }


def phase_numbers(run: Run) -> dict[str, Any]:
    """By mode, the number of steps, their time, and mean and shares of phases of the typical ones."""
    found = {mode: run.phases(mode) for mode in (Mode.TRAIN, Mode.EVAL)}
    return {
        mode.name: {
            "steps": len(phases), "seconds": float(phases.seconds.sum()), "shares": known_numbers(phases.shares),
            "typical": {
                "steps": len(typical), "mean": float(typical.seconds.mean()), "shares": known_numbers(typical.shares)
            },
        }
        for mode, phases in found.items()
        if len(typical := phases.typical())
    }  # fmt: skip


def duration_numbers(run: Run) -> dict[str, Any]:
    """By mode, the number of steps, the mean and the percentiles of their durations, and the number of the longest."""
    found = {mode: run.phases(mode) for mode in (Mode.TRAIN, Mode.EVAL)}
    return {
        mode.name: {
            "steps": len(each), "mean": float(each.seconds.mean()), **percentiles(each.seconds),
            "longest_step": int(each.steps[each.seconds.argmax()]),
        }
        for mode, each in found.items()
        if len(each)
    }  # fmt: skip


def percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    """Those of :data:`PERCENTILES`."""
    return dict(zip(PERCENTILES, np.percentile(values, list(PERCENTILES.values())).tolist(), strict=True))


def rule_numbers(status: RuleStatus, findings: Sequence[Finding], text: RuleText | None) -> dict[str, Any]:
    """A rule on time: status, what it looks for, parameters, how often it found something, what to try."""
    own = [finding for finding in findings if finding.rule == status.rule]
    return {
        **status.to_json(), "looks_for": "" if text is None else text.summary,
        "parameters": {**({} if text is None else text.parameters), **status.parameters},
        "times_triggered": sum(finding.count for finding in own),
        "what_to_try": list(dict.fromkeys(line for finding in own for line in finding.what_to_try)),
    }  # fmt: skip


def known_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without those that are NaN, which JSON has not."""
    return {name: value for name, value in values.items() if not (isinstance(value, float) and math.isnan(value))}
