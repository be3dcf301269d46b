"""DataNotShuffled: the batches are sorted by class or by time."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, facts, in_percent
from watchglass.rules import guessing, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Rows of a batch and units that are compared, sketches, and batches whose hashes are remembered.
_ROWS, _MOST_UNITS, _MOST_SKETCHES, _MOST_BATCHES = 4, 64, 128, 256
#: Share of the variance of inputs that lies between batches only where something sorts them.
_OF_INPUTS = 0.15
#: Batches that came again, with others in between, from which on a script makes its batches once.
_AGAIN = 3
#: Sketches of classes that are enough: means of values may drift for longer.
_CLASSES = 6
#: Sampled elements unlike the usual one, below which equal hashes prove nothing.
_VARIED = 16
#: Standard deviations by which a ratio of variances lies above that of random batches.
_CERTAIN = 5.0
_RANDOM = ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler", "DistributedSampler")


class _Spread(NamedTuple):
    """How values spread."""

    share: float  #: Of their variance, what lies between batches beyond what random batches of this size show, 0..1.
    certainty: float  #: By how many standard deviations that is more than random batches show.

    def exceeds(self, share: float) -> bool:
        """Whether that is more than a share, and no chance."""
        return self.share > share and self.certainty > _CERTAIN


class DataNotShuffled(Rule):
    """The batches are sorted: within each of them the targets vary far less than over the data.

    Looks at: how much of the variance of the targets (values or classes) is between batches and not within them; the
        same for inputs; the sampler of the data loader; hashes of the batches.
    Fires when: more than `share` of the variance of the targets is between batches of at least 4 rows. If each epoch
        has the same batches (the loader reads in order, or batches repeat), `fixed` is enough, and so is a share of
        0.15 for inputs. The rule needs at least `min_sketches` sketches (6 for classes and for labels that are 0 or 1),
        and a share far above that of random batches of this size. The rule skips data loaders that shuffle, targets for
        each position of a sequence or an image, recurrent models with other targets than classes and labels, models
        that are trained in turns, and reinforcement learning. If batches do not repeat, it also skips labels that
        differ between the losses of a step.
    Usual causes: a data loader without `shuffle=True`, an index that walks through sorted files, one file per class.
    What to try: shuffle=True in the data loader, or shuffle the file list before each epoch.
    Costs: a copy of at most 32,768 elements of the targets at about 80 of 5,000 steps.
    Source: Bengio, Practical Recommendations for Gradient-Based Training, 2012, 3.1 (order); the share is the
        intraclass correlation (Fisher, 1925); house: `share`, `fixed`.
    """

    needs = (
        Needs(facts=("target_sketch",), why="to compare batches"),
        Needs(facts=("input_sketch",), optional=True, why="to compare their inputs"),
        Needs(facts=("data_loader", "batch"), optional=True, why="to know whether it shuffles"),
    )

    share: float = parameter(0.5, help="share of the variance of targets that is between batches", gt=0, lt=1)
    fixed: float = parameter(0.05, help="the same, for batches that repeat in each epoch", gt=0, lt=1)
    min_sketches: int = parameter(10, help="sketches before batches are compared", ge=2)

    #: Whether all targets are labels that are 0 or 1; None before the first.
    labels: bool | None = state(lambda: None)
    #: Of targets and of inputs, see :func:`_add`.
    targets: dict[str, Any] = state(dict)
    inputs: dict[str, Any] = state(dict)
    #: Means of single targets, in the order of the steps.
    means: list[float] = state(list)
    #: Samplers of the loaders that may have given the first batch, and sizes of batches of all loaders by name.
    samplers: list[str] | None = state(lambda: None)
    loaders: dict[str, list[Any]] = state(dict)
    #: Hashes of batches, and how many came again with others in between.
    hashes: list[str] = state(list)
    again: int = state(int)
    rows: int = state(int)
    calls: dict[str, Any] = state(dict)
    several: bool = state(bool)
    #: The loss that is looked at.
    key: str = state(str)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a sketched step."""
        guessing.follow_calls(self.calls, view)
        for loader in view.facts(facts.LoaderSettings):
            if len(self.loaders) < 32:
                self.loaders[loader.loader] = [loader.sampler, loader.batch_size]
        if view.mode is not Mode.TRAIN or view.in_turns:
            return
        self._remember_batch(view)
        sketches = view.facts(facts.TargetSketch)
        self.several |= len(sketches) > 1
        for targets in sketches[:1]:
            key = f"{targets.function}/{targets.number}"
            self.key = self.key or key
            if key == self.key and len(targets.shape) <= 2:
                self._add_targets(targets)
        for sketch in view.facts(facts.InputSketch)[:1]:
            rows = sketch.shape[0] if sketch.shape else 0
            if sketch.channels is not None and rows >= _ROWS:
                _add(self.inputs, _units_of(sketch.channels), rows)
        if sketches or self.inputs:
            yield from self._judge(view)

    def _remember_batch(self, view: StepView) -> None:
        for batch in view.facts(facts.BatchInputs):
            if batch.iterations is None:
                continue
            shape = next((each for each in batch.shapes.values() if each), ())
            self.rows = shape[0] if shape else 0
            if self.samplers is None:
                known = [self.loaders[name] for name in batch.iterations if name in self.loaders]
                self.samplers = [str(sampler) for sampler, size in known if size == self.rows]
            # Single samples, as of a model that acts, and inputs of few different values come again by chance.
            if self.rows < _ROWS or batch.varied < _VARIED:
                continue
            hashed = " ".join(batch.hashes)
            if hashed not in self.hashes:
                self.hashes = [*self.hashes, hashed][-_MOST_BATCHES:]
            elif hashed != self.hashes[-1]:
                self.again += 1
            return

    def _add_targets(self, sketch: facts.TargetSketch) -> None:
        rows = sketch.rows
        if rows < _ROWS:
            return
        if sketch.kind == "classes":
            shares = {int(label): number / rows for label, number in sketch.counts or ()}
            _add(self.targets, {label: (share, share * (1 - share)) for label, share in shares.items()}, rows, {})
            return
        # One batch of zeros and ones does not make labels of values.
        self.labels = sketch.kind in ("labels", "one_hot") and self.labels is not False
        units = sketch.units
        if sketch.columns == 1 and sketch.mean is not None and sketch.variance is not None:
            units = facts.SketchedUnits((sketch.mean,), (math.sqrt(sketch.variance),))
            self.means = [*self.means, sketch.mean][-_MOST_SKETCHES:]
        if units:
            _add(self.targets, _units_of(units), rows)

    def _judge(self, view: StepView) -> Iterable[Finding]:
        samplers = self.samplers if self.samplers else [str(sampler) for sampler, _ in self.loaders.values()]
        if any(sampler in _RANDOM for sampler in samplers) or guessing.acts(self.calls):
            return
        in_order = bool(self.samplers) and all(sampler == "SequentialSampler" for sampler in self.samplers or ())
        fixed = in_order or self.again >= _AGAIN
        if self.several and not fixed:
            return
        classes = bool(self.targets.get("classes")) or self.labels is True
        recurrent = any(kind == ModuleKind.RECURRENT.value for kind, _ in signals.modules(view).values())
        if recurrent and not classes:
            return
        enough = min(self.min_sketches, _CLASSES) if classes else self.min_sketches
        found = _spread(self.targets, pooled=True) if self.targets.get("sketches", 0) >= enough else None
        single = not self.rows or self.targets.get("rows") == self.rows
        limit = self.fixed if fixed and single else self.share
        if found is not None and found.exceeds(limit) and (fixed or classes or not _drifts(self.means)):
            yield self._finding(view, "targets", found, limit, in_order)
        elif fixed and not recurrent and self.inputs.get("sketches", 0) >= self.min_sketches:
            found = _spread(self.inputs, pooled=False)
            if found is not None and found.exceeds(_OF_INPUTS):
                yield self._finding(view, "inputs", found, _OF_INPUTS, in_order)

    def _finding(self, view: StepView, what: str, found: _Spread, limit: float, in_order: bool) -> Finding:
        known = self.targets if what == "targets" else self.inputs
        rows = known["rows"]
        how = ", and the data loader reads in order" if in_order else ""
        if not how and self.again >= _AGAIN:
            how = ", and the same batches come again in each epoch"
        return self.finding(
            view,
            subject="targets",
            value=found.share,
            limit=limit,
            message=(
                f"{in_percent(found.share)} of the variance of the {what} lies between batches of {rows} rows and "
                f"not within them, in {known['sketches']} sketched batches{how}"
            ),
            symptoms=("batches_sorted",),
            evidence={"rows": rows, "batches": known["sketches"]},
        )


def _units_of(units: facts.SketchedUnits) -> dict[int, tuple[float, float]]:
    """Mean and variance of each unit."""
    return {unit: (mean, std**2) for unit, (mean, std) in enumerate(zip(units.mean, units.std, strict=True))}


def _add(
    sums: dict[str, Any], units: Mapping[int, tuple[float, float]], rows: int, classes: dict[str, Any] | None = None
) -> None:
    """Add a batch to sums, which are plain JSON.

    Args:
        sums: By unit the sums of the mean, of its square, and of the variance within a batch.
        units: Mean and variance of the units of a batch. A class that a batch does not have has neither.
        rows: Rows of the batch.
        classes: Given where the units are classes.
    """
    if sums.get("sketches", 0) >= _MOST_SKETCHES:
        return
    known = sums.setdefault("units", {})
    for unit, (mean, variance) in units.items():
        if str(unit) in known or len(known) <= _MOST_UNITS:
            before = known.get(str(unit), [0.0, 0.0, 0.0])
            within = variance * rows / (rows - 1)
            known[str(unit)] = [before[0] + mean, before[1] + mean * mean, before[2] + within]
    sums["classes"] = classes is not None
    sums["sketches"] = sums.get("sketches", 0) + 1
    sums["inverse"] = sums.get("inverse", 0.0) + 1 / rows
    sums["rows"] = max(rows, sums.get("rows", 0))
    # Which batches are the same.
    key = zlib.crc32(repr(sorted((unit, f"{mean:.6g}") for unit, (mean, _) in units.items())).encode())
    if key not in sums.setdefault("different", []):
        sums["different"].append(key)


def _spread(sums: Mapping[str, Any], *, pooled: bool) -> _Spread | None:
    """The variance between batches: of all units together, or in the mean over units, which may have any scale."""
    sketches, different, units = sums["sketches"], len(sums["different"]), sums["units"]
    if different < 2 or not units or len(units) > _MOST_UNITS:
        return None
    table = np.asarray(list(units.values())) / sketches
    of_means = np.maximum(table[:, 1] - table[:, 0] ** 2, 0.0) * sketches / (sketches - 1)
    within = table[:, 2]
    by_chance = within * sums["inverse"] / sketches
    total = np.maximum(of_means - by_chance, 0.0) + within
    varies = total > 1e-12 * np.maximum(1e-12, table[:, 1])
    if not varies.any():
        return None
    of_means, within, by_chance, total = (each[varies] for each in (of_means, within, by_chance, total))
    if pooled:
        share = float((of_means - by_chance).sum() / total.sum())
        ratio = float(of_means.sum() / max(by_chance.sum(), 1e-300))
    else:
        share = float(np.mean((of_means - by_chance) / total))
        ratio = float(np.mean(of_means / np.maximum(by_chance, 1e-3 * of_means + 1e-300)))
    # The ratio of variances has an F distribution for random batches (its third root is nearly normal: Wilson and
    # Hilferty, 1931). Of classes each batch counts as often as there are classes.
    freedom = different - 1.0
    if sums["classes"]:
        freedom *= max(1.0, float(total.sum() ** 2 / (total**2).sum()) - 1)
    spread = 2 / (9 * freedom)
    return _Spread(share, (ratio ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def _drifts(means: list[float]) -> bool:
    """Whether the targets move slowly with the steps, as returns do while a policy improves, and not with an epoch."""
    if len(means) < 2:
        return False
    return bool(np.mean(np.diff(means) ** 2) < 0.25 * np.var(means))
