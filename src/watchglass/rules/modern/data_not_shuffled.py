"""DataNotShuffled: batches that are sorted by class or by time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Severity
from watchglass.rules import guessing, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Rows of a batch, classes and sketches that are compared.
_ROWS, _MOST_CLASSES, _MOST_SKETCHES = 12, 64, 128


class DataNotShuffled(Rule):
    """The batches are sorted: within each of them the targets vary far less than over the data.

    Looks at: the entropy of the classes within a batch, or the variance of its targets, against that over all sketched
        batches; the sampler of the data loader.
    Fires when: within batches of at least 12 rows it is below `share` of its value over all batches, in the mean of at
        least `min_sketches` sketches. The rule skips data loaders that shuffle, targets for each position of a sequence
        or an image, recurrent models whose targets are not classes, and models in turns. It also skips labels that
        differ between the losses of a step, and runs that act before they learn.
    Usual causes: a data loader without `shuffle=True`, an index that walks through sorted files, one file per class.
    What to try: shuffle=True in the data loader, or shuffle the file list before each epoch.
    Costs: a copy of at most 32,768 elements of the targets at about 80 of 5,000 steps.
    Source: Bengio, Practical Recommendations for Gradient-Based Training, 2012, 3.1 (order); house: `share`.
    """

    default = True
    needs = (
        Needs(facts=("target_sketch",), why="to compare batches"),
        Needs(facts=("data_loader",), optional=True, why="to know whether it shuffles"),
    )

    share: float = parameter(0.4, help="entropy or variance within a batch, of that over all", gt=0, lt=1)
    min_sketches: int = parameter(12, help="sketches before batches are compared", ge=2)

    pools: dict[str, dict[str, Any]] = state(dict)
    #: Of sketches: entropy or variance within, and the mean of the targets, -1 where there is none.
    batches: list[list[float]] = state(list)
    samplers: list[str] = state(list)
    unjudged: int = state(int)
    several: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a sketched step."""
        self.unjudged += sum(phase.mode is Mode.EVAL and "loss" not in phase.means for phase in view.phases)
        for fact in view.facts("data_loader"):
            if len(self.samplers) < 32:
                self.samplers.append(str(fact.data.get("sampler")))
        found = [fact.data for fact in view.facts("target_sketch")]
        if view.mode is not Mode.TRAIN or view.in_turns or not found:
            return
        self.several |= len(found) > 1
        data = found[0]
        if len(found) > 1 or len(data.get("shape", ())) > 2 or data.get("rows", 0) < _ROWS:
            return
        pool = guessing.pool_of(self.pools, data)
        guessing.add_targets(pool, data)
        within = _within(data)
        if within is None or len(self.batches) >= _MOST_SKETCHES:
            return
        self.batches.append(within)
        yield from self._judge(view, pool, data)

    def _judge(self, view: StepView, pool: dict[str, Any], data: Any) -> Iterable[Finding]:
        shuffles = any(sampler not in ("SequentialSampler", "None") for sampler in self.samplers)
        if len(self.batches) < self.min_sketches or len(self.pools) != 1 or self.several or shuffles:
            return
        if guessing.acts(self.unjudged):
            return
        table = np.asarray(self.batches)
        inside = float(table[:, 0].mean())
        if pool["counts"]:
            if not 1 < len(pool["counts"]) <= _MOST_CLASSES:
                return
            total, what = _entropy(list(pool["counts"].values())), "entropy of the classes"
        else:
            recurrent = any(kind == ModuleKind.RECURRENT.value for kind, _ in signals.modules(view).values())
            total, what = inside + float(table[:, 1].var(ddof=1)), "variance of the targets"
            if recurrent or _drifts(table[:, 1]):
                return
        if total <= 1e-9 or inside >= self.share * total:
            return
        sequential = ", and the data loader reads in order" if "SequentialSampler" in self.samplers else ""
        yield self.finding(
            view,
            severity=Severity.WARNING,
            subject="targets",
            value=inside / total,
            limit=self.share,
            message=(
                f"within a batch of {data['shape'][0]} rows the {what} is {inside:.3g} on average, but {total:.3g} "
                f"over {len(self.batches)} sketched batches together{sequential}"
            ),
            symptoms=("batches_sorted",),
        )


def _within(data: Any) -> list[float] | None:
    """Entropy or variance of a batch, corrected for its few rows, and the mean of values."""
    counts = [number for _, number in data.get("counts") or ()]
    if counts:
        return [_entropy(counts) + (len(counts) - 1) / (2 * sum(counts)), -1.0]
    if data.get("kind") != "values" or data.get("columns") != 1 or "variance" not in data:
        return None
    return [data["variance"] * data["rows"] / (data["rows"] - 1), data["mean"]]


def _drifts(means: Any) -> bool:
    """Whether the targets move slowly with the steps, as returns do while a policy improves, and not with an epoch."""
    steps = np.diff(means)
    return bool(np.mean(steps**2) < 0.25 * np.var(means))


def _entropy(counts: list[int]) -> float:
    total = sum(counts)
    return -sum(number / total * math.log(number / total) for number in counts if number)
