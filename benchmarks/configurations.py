"""What is measured: configurations of capture, with the most that each may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import watchglass
from watchglass.config import ProfilerConfig, RuleSpec
from watchglass.rules import capture_for, rule_names

#: What "statistics of all weights, gradients and module outputs" is in collections, and for `limits.captured`.
_STATISTICS = ("weights", "biases", "gradients", "outputs")
_SEEN = ("parameters", "gradients", "outputs")

#: A capture may take so many times the physical limit where that is a target.
TIMES_LIMIT = 4.0

#: Share of the training's time that the default configuration may use, as a ratio, and how often records are written.
BUDGET_RATIO, FLUSH_INTERVAL_S = 0.01, 0.5

#: How often the machine is sampled by default. The time of three runs passes for each step of the watched run.
SAMPLE_INTERVAL_S = ProfilerConfig().sample_interval_s

#: Where nothing else is due, the total gradient norm still is, but not more often than at every 64th step.
NORM_INTERVAL = 64


@dataclass(frozen=True)
class Configuration:
    """One way to capture, and how it is measured.

    Attributes:
        name: As on the command line.
        says: Description of the configuration.
        settings: Keyword arguments of :func:`watchglass.watch`.
        targets: Most that the ratio may be, by model; these are the models it is measured with.
        interval: Steps from one capture to the next, 0 for none; None where the hook chooses.
        captured: What a capture looks at, for :func:`limits.captured`.
        block: Steps that are summed up; a multiple of the interval, so that blocks are alike.
        turn: Steps that each training makes before the next comes; the block is a multiple of it.
        warm_up: Rounds before the clock starts, until caches, allocators and the plan have settled.
        avoided: Steps that are multiples of it are made off the clock; None where there are none.
        trim: Share of the blocks left out at either end as disturbed; none where blocks differ for a reason.
        judged_by_limit: Whether a capture's time is held against the physical limit.
    """

    name: str
    says: str
    settings: dict[str, Any]
    targets: Mapping[str, float]
    interval: int | None
    captured: tuple[str, ...] = _SEEN
    block: int = 10
    turn: int = 10
    warm_up: int = 60
    avoided: int | None = None
    trim: float = 0.1
    judged_by_limit: bool = False


def _collections(**settings: Any) -> list[watchglass.Collection]:
    return [watchglass.Collection(name, **settings) for name in _STATISTICS]


def _statistics(interval: int) -> dict[str, Any]:
    return {"collections": _collections(save_histogram=True), "save_interval": interval}


_T0 = Configuration(
    "t0",
    "a step on which only T0 is due: loss, learning rate, time",
    # No step but the first is a multiple of the interval. A budget of almost nothing makes the total gradient norm
    # as rare as it gets; the steps at which it is due are made off the clock.
    {"collections": _collections(), "save_interval": 1 << 30, "overhead_budget": 1e-9},
    {"mlp": 1.005, "transformer": 1.005, "mlp by hand": 1.005},
    interval=0,
    captured=(),
    block=(NORM_INTERVAL - 1) // 7,
    turn=(NORM_INTERVAL - 1) // 7,
    # With the first step, which is made when watching begins, a multiple of the norm's interval.
    warm_up=2 * NORM_INTERVAL - 1,
    avoided=NORM_INTERVAL,
)

_DEFAULT = Configuration(
    "default",
    "the default configuration, which keeps a budget of 1 %",
    # The time of three runs passes for each step of the watched run, so a share of the time is three times as much.
    {"overhead_budget": BUDGET_RATIO / 3},
    {"mlp": 1.015, "transformer": 1.01, "convolutional": 1.015},
    interval=None,
    captured=("parameters", "gradients", "updates", "outputs"),
    block=64,
    turn=16,
    warm_up=300,
    trim=0.0,
)


def _of_set(name: str, model: str) -> Configuration:
    """The capture that the rules of a set and the default ones need."""
    rules = [RuleSpec(each) for each in dict.fromkeys([*rule_names("default"), *rule_names(name)])]
    return replace(
        _DEFAULT,
        name=name,
        says=f"what the rules of the sets default and {name} need, within the same budget",
        settings={**capture_for(rules), **_DEFAULT.settings},
        targets={model: 1.015},
    )


CONFIGURATIONS = (
    Configuration(
        "statistics-1",
        "statistics with histograms of all weights, gradients and module outputs, every step",
        _statistics(1),
        {"mlp": 1.30, "transformer": 1.15},
        interval=1,
        judged_by_limit=True,
    ),
    Configuration(
        "statistics-10",
        "the same at interval 10",
        _statistics(10),
        {"mlp": 1.03, "transformer": 1.015},
        interval=10,
        judged_by_limit=True,
    ),
    _DEFAULT,
    _of_set("llm", "transformer"),
    _of_set("vision", "convolutional"),
    _of_set("tabular", "mlp"),
    _T0,
    replace(
        _T0,
        name="profiling",
        says="the same with system metrics and phases of steps",
        settings={**_T0.settings, "profiler": ProfilerConfig(enabled=True, sample_interval_s=3 * SAMPLE_INTERVAL_S)},
        targets={"mlp": 1.01, "transformer": 1.01},
    ),
    replace(
        _T0,
        name="module-times",
        says="the same with the times of modules",
        settings={
            **_T0.settings,
            "profiler": ProfilerConfig(enabled=True, sample_interval_s=3 * SAMPLE_INTERVAL_S, module_times=True),
        },
        targets={"mlp": 1.03, "transformer": 1.03},
        # Modules are timed in some steps, and these count.
        trim=0.0,
    ),
    Configuration(
        "raw-10",
        "raw weights, gradients and outputs at interval 10",
        {"collections": _collections(save_raw=True), "save_interval": 10},
        {"mlp": 1.15, "transformer": 1.05},
        interval=10,
    ),
    Configuration(
        "compiled-10",
        "statistics as above of a compiled model, interval 10",
        _statistics(10),
        {"compiled transformer": 1.05},
        interval=10,
    ),
)

#: Measured where there is a GPU, with a model that is worth one.
ON_DEVICE = Configuration(
    "device-1",
    "statistics as above on a GPU, every step",
    _statistics(1),
    {"large transformer": 1.01},
    interval=1,
)
