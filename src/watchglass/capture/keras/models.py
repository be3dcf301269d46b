"""What is known of one watched model, and the numbers of its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from watchglass.capture.keras.backends import Backend
from watchglass.capture.keras.losses import RunningMeans
from watchglass.capture.keras.structure import KerasModules, variables
from watchglass.record import OpenStep
from watchglass.records import Mode, facts


class KerasModel:
    """A watched model. For the training thread.

    Args:
        model: The model.
        number: Its number.
        backend: Its backend.

    Attributes:
        samples: Samples and batches that its metrics have counted, where these are counted as they are taken.
        means: Of its metrics that each step updates with a loss, whether samples are the weights; by mode. It is known
            for the steps of Keras, and of others once they were traced.
    """

    def __init__(self, model: Any, number: int, backend: Backend) -> None:
        self._model, self.number, self._backend = model, number, backend
        self._running = RunningMeans()
        self.samples = self.batches = 0
        self.means: dict[Mode, Mapping[str, bool]] = {
            mode: {"loss": True}
            for mode, name in ((Mode.TRAIN, "train_step"), (Mode.EVAL, "test_step"))
            if getattr(type(model), name).__module__.partition(".")[0] == "keras"
        }
        self._described = False
        self._settings: facts.OptimizerSettings | None = None
        #: The learning rate; None while it is not known, as that of a schedule.
        self.rate: float | None = None

    def reset(self) -> None:
        """Its metrics begin anew."""
        self._running.reset()
        self.samples = self.batches = 0

    def read_settings(self) -> None:
        """Read the settings and the learning rate of its optimizer, while the variables have values."""
        optimizer = self._model.optimizer
        if optimizer is None:
            return
        settings = {name: value for name, value in optimizer.get_config().items() if _is_setting(value)}
        self.rate = rate_of(optimizer)
        settings["lr"] = settings.pop("learning_rate", self.rate)
        self._settings = facts.OptimizerSettings(type(optimizer).__name__, (settings,))

    def describe(self, step: OpenStep, mode: Mode) -> None:
        """Add the facts about it, once."""
        if self._described or mode is not Mode.TRAIN:
            return
        self._described = True
        places = [place for _, place in KerasModules().modules(self._model)]
        about = facts.ModelDescription(
            module_types={place.path: place.module_type for place in places},
            module_kinds={place.path: place.kind.value for place in places},
            parameters=sum(_size(variable) for variable, _ in variables(self._model)),
            compiled=True,
        )
        step.records.add_fact(about, "keras")
        if self._settings is not None:
            step.records.add_fact(self._settings, "keras")

    def numbers(self, mode: Mode, logs: Mapping[str, Any]) -> dict[str, Any]:
        """The loss of the batches of a call, and those of several outputs, out of its logs."""
        means = self.means.get(mode, {})
        counted = {each.name: each for each in self._model.metrics if each.name in means}
        found: dict[str, Any] = {}
        for name, value in logs.items():
            if name != "loss" and not name.endswith("_loss"):
                continue
            if name in counted:
                weights = self._backend.count(counted[name])
                if weights is None:
                    weights = self.samples if means[name] else self.batches
                value = self._running.batch(f"{mode.value}/{name}", value, weights)
            found[name if name == "loss" else f"{name.removesuffix('_loss')}/loss"] = value
        return found


def rate_of(optimizer: Any) -> float | None:
    """The learning rate of an optimizer, if that is a number that only the script changes."""
    rate = optimizer.learning_rate
    if isinstance(rate, keras.Variable):
        return float(rate.value)
    return float(rate) if isinstance(rate, (int, float)) else None


def _size(variable: Any) -> int:
    size = 1
    for length in variable.shape:
        size *= length
    return size


def _is_setting(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
