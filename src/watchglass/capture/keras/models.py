"""What is known of one watched model, and the numbers of its steps."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras

from watchglass.capture.compiled.collecting import Updater
from watchglass.capture.compiled.keras_optimizers import clips_of, config_of, group_of
from watchglass.capture.keras.backends import Backend, TakenBatches
from watchglass.capture.keras.losses import RunningMeans
from watchglass.capture.keras.structure import KerasModules, variables
from watchglass.capture.keras.training_modes import TrainingModes
from watchglass.record import OpenStep
from watchglass.records import Mode, ModuleKind, facts

#: Names under which Keras logs the share of right answers of a model with one output.
_ACCURACIES = (
    "accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy",
)  # fmt: skip


class KerasModel:
    """A watched model. For the training thread.

    Args:
        model: The model.
        number: Its number.
        backend: Its backend.

    Attributes:
        samples: Samples and batches that its metrics have counted, where these are known for each call.
        means: Of its metrics that each step updates with a loss, whether samples are the weights; by mode. It is known
            for the steps of Keras, and of others once they were traced.
    """

    def __init__(self, model: Any, number: int, backend: Backend) -> None:
        self._model, self.number, self._backend = model, number, backend
        self._running = RunningMeans()
        # By mode and name, metrics with known running means; emptied when Keras resets them.
        self._counted: dict[Mode, dict[str, Any]] = {}
        self.samples = self.batches = 0
        # Whether these are all since Keras has reset its metrics.
        self._counts_all = False
        self.means: dict[Mode, Mapping[str, bool]] = {
            mode: {"loss": True}
            for mode, name in ((Mode.TRAIN, "train_step"), (Mode.EVAL, "test_step"))
            if getattr(type(model), name).__module__.partition(".")[0] == "keras"
        }
        self._described = False
        #: What updates it; and its batches between two updates.
        self.updater: Updater | None = None
        self.batches_per_update = 1
        # Batches that its optimizer has had.
        self._trained = 0
        self._optimizer: weakref.ref[Any] | None = None
        # Those of an optimizer that are to be recorded.
        self._settings: facts.OptimizerSettings | None = None
        #: How its layers run that depend on the mode.
        self.modes = TrainingModes()
        #: The learning rate; None while it is not known, as that of a schedule.
        self.rate: float | None = None

    def reset(self) -> None:
        """Keras has reset its metrics."""
        self._running.reset()
        self._counted.clear()
        self.samples = self.batches = 0
        self._counts_all = True

    def read_settings(self) -> None:
        """Read the settings and the learning rate of its optimizer, while the variables have values."""
        optimizer = self._model.optimizer
        if optimizer is None:
            return
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        settings = config_of(inner)
        self.rate = rate_of(optimizer)
        kind = type(inner).__name__
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._optimizer = weakref.ref(optimizer)
            self._settings = facts.OptimizerSettings(kind, (group_of(settings, self.rate),))
        group = facts.UpdateGroup(
            lr=self.rate, weight_decay=settings.get("weight_decay") or 0.0, decoupled=True,
            eps=settings.get("epsilon"), beta2=settings.get("beta_2", settings.get("rho")),
        )  # fmt: skip
        self.updater = Updater(kind, (group,), skips=inner is not optimizer, clips=clips_of(settings))
        self.batches_per_update = inner.gradient_accumulation_steps or 1
        self._trained = self._batches_trained()

    def trains(self, batches: int) -> int:
        """Its optimizer gets so many more batches; returns how many updates it makes of them."""
        before = self.updates
        self._trained += batches
        return self.updates - before

    @property
    def batches_uncounted(self) -> int:
        """Batches that its optimizer has had and :meth:`trains` was not told of, or less than none; waits for it."""
        return self._batches_trained() - self._trained

    @property
    def updates(self) -> int:
        """Updates that its optimizer has made."""
        return self._trained // self.batches_per_update

    def _batches_trained(self) -> int:
        optimizer = self._model.optimizer
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        return next((int(each.numpy()) for each in inner.variables if each.name == "iteration"), 0)

    def learn_means(self, mode: Mode, means: Mapping[str, bool]) -> None:
        """A trace has shown which metrics a step updates."""
        if self.means.get(mode) != means:
            self.means[mode] = dict(means)
            self._counted.pop(mode, None)

    def trainable(self) -> list[str]:
        """Names of its parameters that are not frozen."""
        return [place.name for variable, place in variables(self._model) if variable.trainable]

    def frozen(self) -> int:
        """How many of its parameters are frozen."""
        return sum(not variable.trainable for variable, _ in variables(self._model))

    def describe(self, step: OpenStep, mode: Mode, number: int | None) -> None:
        """Add the facts about it under a number, once, and about each optimizer."""
        if mode is not Mode.TRAIN:
            return
        settings, self._settings = self._settings, None
        if settings is not None:
            step.records.add_fact(replace(settings, model=number), "keras")
        if self._described:
            return
        self._described = True
        found = [(layer, place.of(self.number)) for layer, place in KerasModules().modules(self._model)]
        places = [place for _, place in found]
        about = facts.ModelDescription(
            framework="keras",
            module_types={place.path: place.module_type for place in places},
            module_kinds={place.path: place.kind.value for place in places},
            dropout={
                place.path: float(layer.rate)
                for layer, place in found
                if place.kind is ModuleKind.DROPOUT and isinstance(getattr(layer, "rate", None), (int, float))
            },
            parameters=sum(_size(variable) for variable, _ in variables(self._model)),
            compiled=True, model=number,
        )  # fmt: skip
        step.records.add_fact(about, "keras")

    def numbers(self, mode: Mode, logs: Mapping[str, Any]) -> dict[str, Any]:
        """The loss of the batches of a call, those of several outputs, and the accuracy of an evaluation: of its logs.

        With :meth:`weight` of each call, they add up to the means that Keras logs at the end.
        """
        found = {
            name if name == "loss" else f"{name.removesuffix('_loss')}/loss": self.loss(mode, name, value)
            for name, value in logs.items()
            if name == "loss" or name.endswith("_loss")
        }
        if mode is Mode.EVAL and "loss" in found:
            accuracies = (name for name in _ACCURACIES if name in logs and name in self.means.get(mode, ()))
            for name in itertools.islice(accuracies, 1):
                found["accuracy"] = self._of_batches(mode, "accuracy", logs[name], "loss")
        return found

    def weight(self, mode: Mode) -> float:
        """What the batches of the latest call count in means over an evaluation: samples, as far as they are known."""
        return self._running.weight(f"{mode.value}/loss") if mode is Mode.EVAL else 1.0

    def loss(self, mode: Mode, name: str, value: Any) -> Any:
        """The loss of the batches of a call, out of the value of this name in its logs."""
        return self._of_batches(mode, name, value, name)

    def _of_batches(self, mode: Mode, name: str, value: Any, counted_as: str) -> Any:
        """The value of the batches of a call, out of a mean that counts them as that of a loss does."""
        counted = self._counted.get(mode)
        if counted is None:
            means = self.means.get(mode, {})
            counted = self._counted[mode] = {each.name: each for each in self._model.metrics if each.name in means}
        value, mean = self._backend.number(value), counted.get(counted_as)
        if mean is None:
            return value
        weights = None if self._counts_all else self._backend.count(mean)
        if weights is None:
            weights = self.samples if self.means[mode][counted_as] else self.batches
        return self._running.batch(f"{mode.value}/{name}", value, weights)

    def count(self, data: Any, taken: TakenBatches | None, several: int) -> None:
        """A call has taken up to so many batches of some data."""
        if taken is not None:
            self.samples += taken.samples
            self.batches += len(taken.taken)
            return
        rows = self._backend.rows(data) if several == 1 and self._counts_all else None
        if rows is None:  # to be read
            self._counts_all = False
        else:
            self.samples += rows
            self.batches += 1


def rate_of(optimizer: Any) -> float | None:
    """The learning rate of an optimizer, if that is a number that only the script changes."""
    rate = optimizer.learning_rate
    if isinstance(rate, keras.Variable):
        return float(rate.numpy())  # also where each replica has a copy of it
    return float(rate) if isinstance(rate, (int, float)) else None


def _size(variable: Any) -> int:
    size = 1
    for length in variable.shape:
        size *= length
    return size
