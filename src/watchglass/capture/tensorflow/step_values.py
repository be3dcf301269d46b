"""What a step of tapes has collected, and what its models and optimizers are, for the records."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from watchglass.capture.compiled.collecting import Collected, Updater, ValuePart, Values
from watchglass.capture.compiled.delivery import StepDelivery
from watchglass.capture.compiled.membership import OptimizedParameters
from watchglass.capture.compiled.reductions import Reduced
from watchglass.capture.compiled.updates import SCRIPT
from watchglass.capture.port import Port
from watchglass.capture.tensorflow.arrays import TensorFlowArrays
from watchglass.capture.tensorflow.losses import as_collected
from watchglass.capture.tensorflow.models import TrainedModel
from watchglass.capture.tensorflow.optimizers import (
    SECOND_MOMENT,
    scale_of,
    settings_of,
    states_of,
    updater_of,
    updates_before,
)
from watchglass.capture.tensorflow.tracing import Doings, GraphTracing
from watchglass.config import chosen_facts
from watchglass.record import OpenStep
from watchglass.records import Role


@dataclass(eq=False)
class OpenTapeStep:
    """A TRAIN step that is open.

    Attributes:
        step: The step, if something of it is due.
        doings: What happens between its functions, if it is due.
        values: What twins have returned.
        before: Parameters and what they were, if it is due.
        losses: Its losses, by number of the model.
        models: TrainedModels whose gradients were taken; none before it shows that it is a training step.
        updated: Numbers of those that were changed.
        rates: Learning rates of their updates, by the same number.
    """

    step: OpenStep | None
    doings: Doings | None = None
    values: list[Values] = field(default_factory=list)
    before: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    losses: dict[int, list[Any]] = field(default_factory=dict)
    models: dict[int, TrainedModel] = field(default_factory=dict)
    updated: set[int] = field(default_factory=set)
    rates: dict[int, float | None] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all its models were changed."""
        return bool(self.models) and self.models.keys() <= self.updated


class TapeStepValues:
    """Saves the values of due steps, and describes the models.

    Args:
        port: Gets the records.
        tracing: Knows what each value is.
        delivery: Takes the values.
    """

    def __init__(self, port: Port, tracing: GraphTracing, delivery: StepDelivery) -> None:
        self._port, self._tracing, self._delivery = port, tracing, delivery
        self._membership, self._arrays = OptimizedParameters("update"), TensorFlowArrays()
        self._described: weakref.WeakSet[Any] = weakref.WeakSet()

    def deliver(self, opened: OpenTapeStep, step: OpenStep) -> None:
        """Save what a TRAIN step has collected, with the state of its models and optimizers."""
        known, add, values = self._tracing.collector.known, self._tracing.collector.add, Values()
        updaters = {}
        for found in opened.values:
            values |= found
        for model in opened.models.values():
            scale = None if model.optimizer is None else scale_of(model.optimizer)
            for variable, place in model.parameters.values():
                _, old = opened.before.get(place.name, (None, None))
                # A weight whose gradient is not asked for is frozen, or stays as it is on purpose.
                if old is not None and place.name in model.derived:
                    about = Collected(ValuePart.BEFORE, place.name, place.place, place, model.number)
                    add(about, old, values)
                    add(_as(about, ValuePart.AFTER), self._arrays.values(variable), values)
            if scale not in (None, 1.0):
                for key in [each for each in values if known[each].part is ValuePart.GRADIENT]:
                    if known[key].model == model.number:
                        values[key] = _divided(values[key], scale)
            if model.optimizer is not None:
                updaters[model.number] = updater_of(model.optimizer)
                self._put_states(values, model, opened.rates.get(model.number), scale)
            if step.due and "membership" in chosen_facts(self._port.config.facts):
                derived = [name for name, exists in model.derived.items() if exists]
                self._membership.save(step, model.number, model.given, model.trainable(), derived)
            if model.clips:
                updater = updaters.get(model.number, SCRIPT)
                updaters[model.number] = replace(updater, clips=(*updater.clips, *model.clips))
        self.save(step, values, updaters)

    def _put_states(self, values: Values, model: TrainedModel, rate: float | None, scale: float | None) -> None:
        add, wants = self._tracing.collector.add, self._port.plan.wants(Role.OPTIMIZER_STATE)
        for slot, parameter, variable in states_of(model.optimizer, model):
            if wants:
                about = Collected(ValuePart.STATE, f"{slot}/{parameter.name}", parameter.place, model=model.number)
                add(about, self._arrays.values(variable), values)
            if slot == SECOND_MOMENT:
                about = Collected(ValuePart.MOMENT, parameter.name, parameter.place, parameter, model.number)
                add(about, self._arrays.values(variable), values)
        numbers = (
            (ValuePart.RATE, rate), (ValuePart.SCALE, scale), (ValuePart.UPDATES, updates_before(model.optimizer)),
        )  # fmt: skip
        for part, number in numbers:
            if number is not None:
                add(Collected(part, f"{part.value}/{model.number}", model=model.number), float(number), values)

    def save(self, step: OpenStep, values: Values, updaters: Mapping[int, Updater] | None = None) -> None:
        """Save values of a step.

        Args:
            step: The step.
            values: What twins and tapes have collected.
            updaters: What has changed the parameters, by number of the model.
        """
        known = self._tracing.collector.known
        ready = dict(values)
        labels = {known[key].call: key for key in values if known[key].part is ValuePart.LABELS}
        for key, value in values.items():
            call = known[key].call
            if known[key].part is ValuePart.PREDICTIONS and call is not None and call in labels:
                ready[key], ready[labels[call]] = as_collected(call, value, values[labels[call]])
        graphs, self._tracing.graphs = self._tracing.graphs, []
        for graph in graphs:
            if graph.values.keys() <= values.keys():
                self._delivery.traced(functools.partial(graph.read, values), graph.model)
            else:  # of a function that this step does not call
                self._tracing.graphs.append(graph)
        self._delivery.save(step, ready, known, updaters)

    def describe(self, model: TrainedModel) -> None:
        """Record once what a model and its optimizer are."""
        records = self._port.records.current()
        number = self._port.model_numbers.in_facts(model.number)
        if model not in self._described:
            self._described.add(model)
            records.add_fact(model.description(number), "tensorflow")
        if model.optimizer is not None and model.optimizer not in self._described:
            self._described.add(model.optimizer)
            records.add_fact(settings_of(model.optimizer, number), type(model.optimizer).__name__)


def _divided(gradient: Any, scale: float) -> Any:
    if isinstance(gradient, dict):
        return Reduced(gradient, scale)
    with tf.init_scope():
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / scale, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(scale, gradient.dtype)


def _as(about: Collected, part: ValuePart) -> Collected:
    return Collected(part, about.name, about.place, about.parameter, about.model)
