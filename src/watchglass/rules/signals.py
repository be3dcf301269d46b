"""Values of a step that several rules read: loss, learning rate, progress, kinds of modules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from watchglass.records import CURE, Mode, ModuleKind, Role, facts
from watchglass.rules import levels
from watchglass.stats import median
from watchglass.tables import Selection, Statistics, StepView


def loss_name(view: StepView) -> str | None:
    """Name of the training loss at this step: ``loss``, or the first scalar with that role; None for none."""
    if view.scalar("loss") is not None:
        return "loss"
    return next(iter(view.scalars(Role.LOSS)), None)


def loss(view: StepView) -> float | None:
    """The training loss at this step, or None."""
    name = loss_name(view)
    return view.scalar(name) if name is not None else None


def losses(view: StepView, last: int | None = None) -> npt.NDArray[np.float64]:
    """The finite TRAIN losses up to and including this step, oldest first."""
    values = view.series(loss_name(view) or "loss", Mode.TRAIN, last)
    return values[np.isfinite(values)]


def skipped(view: StepView) -> bool:
    """Whether a gradient scaler skipped the update of this step after an overflow, as designed."""
    return bool(view.facts(facts.StepSkipped))


def clipped_to_zero(view: StepView) -> bool:
    """Whether clipping by an infinite norm has set the gradients of this step to zero."""
    norm = view.scalar("gradient_norm_before_clip")
    return norm is not None and math.isinf(norm)


def modules(view: StepView) -> dict[str, tuple[str, str]]:
    """Kind and class name of each of the model's modules, by path; none where they are not known."""
    about = view.latest_fact(facts.ModelDescription)
    if about is None or about.module_kinds is None or about.module_types is None:
        return {}
    kinds = about.module_kinds
    if about.model is None and view.several:
        others = [info.module for info in view.catalog if info.model == view.model and info.module]
        own = {path.partition(".")[0] for path in others}
        kinds = {path: kind for path, kind in kinds.items() if path.partition(".")[0] in own}
    return {path: (kind, about.module_types.get(path, "")) for path, kind in kinds.items()}


def unclipped_recurrence(view: StepView, modules_hit: Iterable[str] = ()) -> bool:
    """Whether a model has recurrent layers, among those hit if any are known, and nothing clips its gradients."""
    if view.latest_fact(facts.Clip) is not None:
        return False
    recurrent = {info.module for info in view.catalog.select(Selection(module_kinds=(ModuleKind.RECURRENT,)))}
    recurrent |= {path for path, (kind, _) in modules(view).items() if kind == ModuleKind.RECURRENT.value}
    hit = set(modules_hit)
    return bool(recurrent & hit if hit else recurrent)


def classes(view: StepView) -> int | None:
    """Units of the last weight, at least 2, as the number of classes; None for a model without a training accuracy."""
    weights = (
        view.catalog.select(Selection(Role.WEIGHT, min_dims=2)) if len(view.series("accuracy", Mode.TRAIN)) else []
    )
    last = max(weights, key=lambda info: info.layer_index, default=None)
    return max(2, last.shape[last.unit_axis or 0]) if last is not None else None


def above_guessing(view: StepView) -> float | None:
    """By how much the training accuracy of this step is above that of guessing, 0..1; None where one is not known."""
    accuracy = view.scalar("accuracy")
    guessed = classes(view) if accuracy is not None else None
    return accuracy - 1 / guessed if accuracy is not None and guessed else None


def without_layers(view: StepView) -> str:
    """The reason why rules about layers do not apply, as for boosted trees; "" if there are layers, or if unknown."""
    about = view.latest_fact(facts.ModelDescription)
    if about is None or about.module_kinds != {}:
        return ""
    types = ", ".join(about.roots)
    return f"a model of type {types} has no layers" if types else "no model with layers was seen"


def without_kinds(view: StepView, kinds: Collection[ModuleKind]) -> str:
    """The reason why rules about modules of these kinds do not apply; "" if the model has some, or if unknown."""
    about = view.latest_fact(facts.ModelDescription)
    found = about.module_kinds if about is not None else None
    if not kinds or not found or {kind.value for kind in kinds} & {*found.values()}:
        return ""
    return f"the model has no {' or '.join(kind.value for kind in kinds)} module"


def no_attention(view: StepView) -> str:
    """Why rules on attention do not apply where none was captured; with the cure where compiled code may hide it."""
    model = view.latest_fact(facts.ModelDescription)
    if model is None or not model.compiled:
        return "no attention was captured: the model has none, or other libraries compute it"
    return (
        "no attention was captured: the model is compiled, and has none or attention that compiled code does not show"
        f"{CURE}compute it by torch.nn.functional.scaled_dot_product_attention, or exclude it from compilation by "
        "attention.forward = torch.compiler.disable(attention.forward)"
    )


def resumed(view: StepView) -> bool:
    """Whether this attempt continues a run. Then its first steps are no start, and its tensors may be converged."""
    before = view.latest_fact(facts.Resumed)
    return before is not None and (before.start_step or 0) > 0


def _rate_name(view: StepView) -> str:
    """Name of the learning rate.

    Of several groups and optimizers, the first that made this step with a rate above zero, else the first.
    """
    if view.scalar("learning_rate") is not None:
        return "learning_rate"
    recorded = view.scalars(Role.METRIC) if view.mode is Mode.TRAIN else {}
    names = [name for name in recorded or view.catalog.names if name.startswith("learning_rate/")]
    return min(names, key=lambda name: (recorded.get(name) == 0, len(name), name), default="learning_rate")


def learning_rates(view: StepView, last: int | None = None) -> npt.NDArray[np.float64]:
    """The learning rates of the training steps so far (of one group where there are several), oldest first.

    Args:
        view: The step.
        last: Number of the latest ones to return; all if None.
    """
    return view.series(_rate_name(view), Mode.TRAIN, last)


def learning_rate_steps(view: StepView) -> npt.NDArray[np.int64]:
    """The steps of :func:`learning_rates`: not all have one where steps are too short to record each."""
    return view.series_steps(_rate_name(view), Mode.TRAIN)


def learning_rate(view: StepView) -> float | None:
    """The learning rate of this step (of one group where there are several), or None."""
    value = view.scalar(_rate_name(view))
    if value is not None:
        return value
    optimizer = view.latest_fact(facts.OptimizerSettings)
    value = optimizer.setting("lr") if optimizer is not None else None
    return float(value) if isinstance(value, (int, float)) else None


def has_idle_group(view: StepView) -> bool:
    """Whether the learning rate of a parameter group is zero at this step while that of another is not."""
    rates = [value for name, value in view.scalars(Role.METRIC).items() if name.startswith("learning_rate/")]
    return bool(rates) and min(rates) == 0 < max(rates)


def warming_up(view: StepView) -> bool:
    """Whether the learning rate is zero or still rising: then small updates and a flat loss are intended."""
    rates = learning_rates(view, 32)
    return len(rates) > 0 and bool(rates[-1] <= 0 or rates[-1] > rates[0] * 1.001)


def decayed(view: StepView) -> bool:
    """Whether the learning rate is below half of its highest so far: then small updates are intended."""
    rates = learning_rates(view)
    return len(rates) > 0 and bool(rates[-1] < 0.5 * rates.max())


def optimizer_evidence(view: StepView) -> dict[str, Any]:
    """Learning rate and optimizer as evidence for a diagnosis; only what is known."""
    found: dict[str, Any] = {}
    rate = learning_rate(view)
    if rate is not None and np.isfinite(rate):
        found["learning_rate"] = rate
    optimizer = view.latest_fact(facts.OptimizerSettings)
    if optimizer is not None and optimizer.type:
        found["optimizer"] = optimizer.type
    return found


def evidence(view: StepView) -> dict[str, Any]:
    """The same with the last finite losses."""
    return {**optimizer_evidence(view), "losses": losses(view, 5).tolist()}


def progress(start: list[float], recent: npt.NDArray[np.float64]) -> float:
    """Decrease of the loss as a share of the first losses, see :func:`watchglass.rules.levels.progress`; 0 if unknown.

    Args:
        start: The first few finite losses of the run.
        recent: The latest finite losses.
    """
    if not start or not len(recent):
        return 0.0
    lowest = min(*start, float(np.min(recent)))
    return levels.progress(start, median(recent.tolist()), lowest=lowest)


def loss_words(start: list[float], recent: npt.NDArray[np.float64]) -> str:
    """``", and the loss is 2.1 in the median of the last 16, after 2.3 at the start"``; "" where none is known."""
    known = loss_evidence(start, recent)
    over = f" in the median of the last {len(recent)}" if len(recent) > 1 else ""
    return f", and the loss is {known['loss']:.3g}{over}, after {known['first_loss']:.3g} at the start" if known else ""


def loss_evidence(start: list[float], recent: npt.NDArray[np.float64]) -> dict[str, float]:
    """The numbers of :func:`loss_words`; none where no loss is known."""
    if not start or not len(recent):
        return {}
    lowest = min(*start, float(np.min(recent)))
    return {
        "loss": median(recent.tolist()),
        "last_losses": len(recent),
        "first_loss": levels.level(start, lowest=lowest),
    }


def remember_start(start: list[float], value: float | None, length: int = 8) -> None:
    """Appends a finite value to the first ``length`` ones of a series, in place."""
    if value is not None and len(start) < length and math.isfinite(value):
        start.append(float(value))


def weight_gradients(view: StepView) -> Statistics:
    """Statistics of this step's gradients of weights with two or more axes, first layer first.

    Biases and normalisation weights are left out: their gradients say little about how much a layer can learn.
    """
    return view.statistics(Role.GRADIENT, min_dims=2).in_layer_order()


def update_ratios(view: StepView) -> tuple[Statistics, npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Root mean square of this step's update over that of the weight, for weights with two or more axes.

    Returns:
        The weights, which of their rows have a ratio, int64[n], and the ratios, float64[n]; only where both are known,
        finite and the weight is not all zero.
    """
    updates = view.statistics(Role.UPDATE, min_dims=2)
    weights = view.statistics(Role.WEIGHT, min_dims=2)
    if not len(updates) or not len(weights):
        return weights, np.empty(0, np.int64), np.empty(0)

    def build() -> npt.NDArray[np.int64]:
        found = map(weights.group.row, view.catalog.owners(updates.ids).tolist())
        return np.array([-1 if row is None else row for row in found], dtype=np.int64)

    rows = updates.group.answers.get(("weights", weights.group), build)
    with np.errstate(all="ignore"):
        ratios = updates.rms / weights.rms[rows]
    usable = (rows >= 0) & np.isfinite(ratios) & (updates.nonfinite == 0)
    return weights, rows[usable], ratios[usable]
