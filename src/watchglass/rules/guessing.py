"""What the targets of a loss are over many steps, and the loss of the best guess that knows no inputs.

Several rules pool the facts ``target_sketch`` and ``output_sketch`` of a run: a batch says little about how frequent a
class is. A pool is the state of a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from watchglass.records import Mode, facts, loss_kind
from watchglass.tables import StepView

#: Classes that a pool counts, and units whose means it keeps.
_MOST_CLASSES = 1024
#: Rows for each class that a pool needs before its frequencies count: with fewer the entropy comes out too low.
_ROWS_PER_CLASS = 20
#: Loss of the best guess for each unit below which labels do not change.
_KNOWN = 1e-3
#: Relative difference of two losses that are the same one.
_ROUNDED = 1e-3
#: Evaluations without a loss, after which a run is taken for one that acts and then learns.
_ACTS = 3
#: Batch sizes of data loaders that are remembered.
_MOST_LOADERS = 8

Pool = dict[str, Any]


def pool_of(pools: dict[str, Pool], sketch: facts.TargetSketch) -> Pool:
    """The pool of the loss that a sketch is about; made at its first."""
    key = f"{sketch.function}/{sketch.number}"
    first = {"function": sketch.function, "sketches": 0, "rows": 0, "counts": {}, "kind": ""}
    return pools.setdefault(key, first)


def add_targets(pool: Pool, sketch: facts.TargetSketch) -> None:
    """Add a sketch."""
    rows = sketch.rows
    pool["sketches"] += 1
    pool["rows"] += rows
    pool["columns"] = sketch.columns
    kind = sketch.kind
    # One batch of zeros and ones does not make labels of values.
    pool["kind"] = "values" if "values" in (kind, pool["kind"]) else kind or pool["kind"]
    for name in ("smoothing", "weighted", "positive_weight"):
        if (given := getattr(sketch, name)) is not None:
            pool[name] = given
    counts = pool["counts"]
    for value, number in sketch.counts or ():
        if str(value) in counts or len(counts) < _MOST_CLASSES:
            counts[str(value)] = counts.get(str(value), 0) + number
    means = sketch.units.mean if sketch.units is not None else () if sketch.mean is None else (sketch.mean,)
    if means:
        before = pool.get("means") or [0.0] * len(means)
        if len(before) == len(means):
            pool["means"] = [old + rows * new for old, new in zip(before, means, strict=True)]
            pool["mean_rows"] = pool.get("mean_rows", 0) + rows


def guess(pool: Pool) -> float | None:
    """The loss of the best prediction that is the same for every row; None where that is not known.

    Of classes the entropy of their frequencies, or the logarithm of their number where frequencies are not known well
    enough or classes are weighted. Never above what a uniform guess gives.
    """
    function, columns = pool["function"], pool.get("columns") or 0
    if loss_kind(function).of_classes:
        if columns < 2:
            return None
        uniform, shares = math.log(columns), _shares(pool, columns)
        return uniform if shares is None or pool.get("weighted") else min(uniform, _entropy(shares))
    if loss_kind(function).of_labels and not pool.get("weighted") and pool.get("mean_rows"):
        weight = pool.get("positive_weight", 1.0)
        if weight is None:
            return None
        means = [total / pool["mean_rows"] for total in pool["means"]]
        best = sum(_binary(mean, weight) for mean in means) / len(means)
        # Units whose label never changes (the first of several candidates is right) need no input, but the model may
        # not know which one is which.
        return best if best > _KNOWN else _binary(sum(means) / len(means), weight)
    return None


def shares_of(pool: Pool) -> list[float] | None:
    """Frequencies of the classes of a loss on classes, or on one label that is 0 or 1; None for others."""
    columns = pool.get("columns") or 0
    if loss_kind(pool["function"]).of_classes and columns > 1:
        return _shares(pool, columns) or [1 / columns] * columns
    if loss_kind(pool["function"]).of_labels and columns == 1 and pool["kind"] == "labels" and pool.get("mean_rows"):
        mean = pool["means"][0] / pool["mean_rows"]
        return [mean, 1 - mean]
    return None


def knows_frequencies(pool: Pool) -> bool:
    """Whether enough rows were sampled to know how frequent each class is."""
    counted = sum(pool["counts"].values())
    return bool(pool["counts"]) and counted >= _ROWS_PER_CLASS * len(pool["counts"])


def most_frequent(pool: Pool) -> float:
    """Share of the most frequent class, 0..1; 0 if unknown."""
    counts = pool["counts"]
    return max(counts.values()) / sum(counts.values()) if counts else 0.0


def guess_words(pool: Pool) -> str:
    """``"ln(10 classes) = 2.303"``."""
    value, columns = guess(pool), pool.get("columns") or 0
    if value is None:
        return ""
    if loss_kind(pool["function"]).of_classes and value > 0.995 * math.log(max(2, columns)):
        return f"ln({columns} classes) = {value:.4g}"
    of = "classes" if loss_kind(pool["function"]).of_classes else "labels"
    return f"the entropy of the frequencies of its {of}, {value:.4g}"


def reduced_by_script(view: StepView, sketch: facts.TargetSketch) -> bool:
    """Whether a script makes its loss of those of the rows, by more than their mean, as far as a step shows.

    Args:
        view: The step.
        sketch: The targets of a loss function at this step.
    """
    if not sketch.unreduced:
        return False
    loss, call = view.scalar("loss"), (sketch.function, sketch.number)
    whole = [
        output
        for output in view.facts(facts.OutputSketch)
        if (output.function, output.number) == call and output.rows * max(output.columns, 1) == math.prod(output.shape)
    ]
    means = [mean for output in whole for mean in (output.loss, output.squared_error) if mean is not None]
    return loss is None or not any(math.isclose(loss, mean, rel_tol=_ROUNDED) for mean in means)


def is_mean(view: StepView, function: str) -> bool | None:
    """Whether the loss at this step is the mean that its function gave, with nothing added; None if not known."""
    loss, mean = view.scalar("loss"), view.scalar(f"loss/{function}")
    if loss is None or mean is None:
        return None
    return abs(loss - mean) <= _ROUNDED * max(abs(loss), 1e-6)


def planned(view: StepView) -> int | None:
    """The number of steps that the script plans for this model, where known."""
    plan = view.latest_fact(facts.PlannedSteps)
    steps = plan.steps if plan is not None else None
    return steps if steps is not None and steps > 0 and not view.several else None


def follow_calls(calls: dict[str, Any], view: StepView) -> None:
    """Note what :func:`acts` has to know: evaluations without a loss, rows of inputs, batch sizes of loaders.

    Args:
        calls: Empty at first; the state of a rule, changed in place.
        view: A step.
    """
    for stretch in view.stretches:
        if stretch.mode is Mode.EVAL and "loss" not in stretch.means:
            calls["unjudged"] = calls.get("unjudged", 0) + 1
    for sketch in view.facts(facts.InputSketch)[:1]:
        if sketch.shape:
            mode = "trained" if view.mode is Mode.TRAIN else "evaluated"
            calls[mode] = max(sketch.shape[0], calls.get(mode, 0))
    for loader in view.facts(facts.LoaderSettings):
        size, sizes = loader.batch_size, calls.setdefault("loaded", [])
        if size is not None and size not in sizes and len(sizes) < _MOST_LOADERS:
            sizes.append(size)


def acts(calls: Mapping[str, Any]) -> bool:
    """Whether the model is called to act, and a loss follows later, as in reinforcement learning.

    An evaluation that counts right answers has no loss either. But it has more rows than a batch of the training, or
    its batches come from a data loader.

    Args:
        calls: Of :func:`follow_calls`.
    """
    rows = calls.get("evaluated", 0)
    tests = rows > calls.get("trained", math.inf) or (rows > 1 and rows in calls.get("loaded", ()))
    return calls.get("unjudged", 0) >= _ACTS and not tests


def _shares(pool: Pool, columns: int) -> list[float] | None:
    if pool["counts"] and knows_frequencies(pool):
        total, smoothing = sum(pool["counts"].values()), float(pool.get("smoothing") or 0.0)
        found = [(1 - smoothing) * number / total + smoothing / columns for number in pool["counts"].values()]
        absent = columns - len(found)
        return found + [smoothing / columns] * absent if smoothing else found
    if pool["kind"] == "shares" and pool.get("mean_rows") and len(pool.get("means") or ()) == columns:
        return [total / pool["mean_rows"] for total in pool["means"]]
    return None


def _entropy(shares: list[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def _binary(mean: float, weight: float) -> float:
    """Loss of the best constant probability of a label with this mean, positive ones weighted."""
    positive, negative = weight * mean, 1 - mean
    total = positive + negative
    if positive <= 0 or negative <= 0:
        return 0.0
    return -(positive * math.log(positive / total) + negative * math.log(negative / total))
