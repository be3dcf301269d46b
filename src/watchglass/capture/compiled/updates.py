"""Facts about the updates of compiled steps: samples of them, the initialization before the first, loss scaling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from watchglass.capture.arrays import Elements, number_of
from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart
from watchglass.capture.compiled.reading import ByPart, is_floating, some, whole
from watchglass.capture.compiled.reductions import symmetry_on_device
from watchglass.capture.facts.initial_weights import initialization, symmetry_of
from watchglass.capture.facts.update_samples import ELEMENTS, SampledParameter, UpdateSamples, chosen
from watchglass.record import CapturedRecords, DeferredFact, OpenStep
from watchglass.records import Role, facts

#: Lines of the script that update by themselves, as far as that is known.
SCRIPT = Updater("ScriptOptimizer")


class UpdateFacts:
    """Makes the facts ``update_sample``, ``initialization`` and ``loss_scale``. For the training thread.

    Args:
        source: The source of facts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._samples: dict[int, UpdateSamples] = {}
        self._initialized: set[int] = set()
        # For the recorder's thread.
        self._scale: float | None = None

    def save(
        self, step: OpenStep, found: ByPart, model: int, updater: Updater | None, kinds: frozenset[str],
        about: Callable[[int], int | None],
    ) -> None:  # fmt: skip
        """Add the facts about the update of a model.

        Args:
            step: The step.
            found: Its values.
            model: Number of the model.
            updater: What has updated it; None where that is not known.
            kinds: The kinds of facts that are wanted.
            about: The number of a model in facts.
        """
        weights = _of(found, ValuePart.BEFORE, model)
        first, self._initialized = model not in self._initialized, self._initialized | {model}
        if first and (model or step.mode_step == 0) and "initialization" in kinds and weights:
            self._add_initialization(step.records, weights, about(model))
        for name, part in (("learning_rate", ValuePart.RATE), ("loss_scale", ValuePart.SCALE)):
            for _, value in _of(found, part, model).values():
                step.records.series.append((name, Role.METRIC, 1.0, number_of(value)))
                if part is ValuePart.SCALE and "loss_scale" in kinds:
                    later = DeferredFact(facts.LossScale, functools.partial(self._rescaled, _elements(value)))
                    step.records.add_fact(later, self._source)
        if "update_sample" in kinds and _of(found, ValuePart.AFTER, model):
            updater = updater or SCRIPT
            sampled = self._samples.setdefault(model, UpdateSamples(updater.type, step.mode_step))
            if sampled.due(step.mode_step):
                self._add_sample(step, found, model, updater, sampled)

    def _add_initialization(
        self, records: CapturedRecords, weights: Mapping[str, tuple[Collected, Any]], model: int | None
    ) -> None:
        rows: dict[str, tuple[tuple[int, ...], Any]] = {}
        for name, (what, value) in weights.items():
            shape = tuple(value.shape)
            if len(shape) < 2 or what.parameter is None or not math.prod(shape):
                continue
            last = bool(what.parameter.unit_axis)
            numbers = symmetry_on_device(value, len(shape) - 1 if last else 0)
            elements = whole(value) if numbers is None else numbers
            if elements is not None:
                make = _symmetry_of_last if last else symmetry_of
                found = elements.computed(make if numbers is None else np.asarray)
                rows[name] = (shape[-1], shape[-2], *shape[:-2]) if last else shape, found
        later = DeferredFact(facts.Initialization, functools.partial(initialization, rows, model))
        records.add_fact(later, "first update")

    def _rescaled(self, scale: Elements | None) -> facts.LossScale | None:
        """A scale that differs from the one before; for the recorder's thread."""
        if scale is None:
            return None
        before, self._scale = self._scale, float(scale.numbers().reshape(-1)[0])
        return None if before == self._scale else facts.LossScale(self._scale, before)

    def _add_sample(self, step: OpenStep, found: ByPart, model: int, updater: Updater, sampled: UpdateSamples) -> None:
        before, after, gradients, moments = (
            _of(found, part, model)
            for part in (ValuePart.BEFORE, ValuePart.AFTER, ValuePart.GRADIENT, ValuePart.MOMENT)
        )
        names = [
            name
            for name, (what, value) in before.items()
            if name in after and name in gradients and what.parameter is not None and is_floating(value)
        ]
        count = next((_elements(value) for _, value in _of(found, ValuePart.UPDATES, model).values()), None)
        rows = []
        for index in chosen([len(before[name][1].shape) for name in names]):
            name = names[index]
            place, value = before[name][0].parameter, before[name][1]
            was, gradient, now = (some(each[name][1], ELEMENTS) for each in (before, gradients, after))
            moment = some(moments[name][1], ELEMENTS) if name in moments else None
            same = all(each[name][1].shape == value.shape for each in (gradients, after, moments) if name in each)
            if place is None or was is None or gradient is None or now is None or not same:
                continue
            group = updater.group_of.get(name, 0)
            rows.append(
                SampledParameter(
                    place, len(value.shape), _name_of(value), group, was, gradient, now, moment,
                    count if moment is not None else None,
                )
            )  # fmt: skip
        if not rows:
            return
        rate = next((_elements(value) for _, value in _of(found, ValuePart.RATE, model).values()), None)
        groups = [(group, None if index else rate) for index, group in enumerate(updater.groups)]
        make = functools.partial(sampled.sample, sampled.took(step.mode_step), groups, rows, None)
        step.records.add_fact(DeferredFact(facts.UpdateSample, make), updater.type)


def _of(found: ByPart, part: ValuePart, model: int) -> dict[str, tuple[Collected, Any]]:
    """Values of a part of a model, by name."""
    return {what.name: (what, value) for what, value in found.get(part, ()) if what.model == model}


def _elements(value: Any) -> Elements | None:
    """A number as elements."""
    return Elements(np.array([value], np.float64)) if isinstance(value, (int, float)) else whole(value)


def _symmetry_of_last(weight: NDArray[Any]) -> NDArray[np.float64]:
    """The numbers of a weight whose last axis counts its units."""
    return symmetry_of(np.moveaxis(weight, -1, 0))


def _name_of(value: Any) -> str:
    return str(getattr(value.dtype, "name", value.dtype))
