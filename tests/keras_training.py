"""A small training of Keras for the conformance suite, under the backend of the process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from watchglass.testing import AdapterCase

with suppress(ImportError):
    importlib.import_module("tensorflow")  # Keras may import it later, which sets environment variables


class KerasCase(AdapterCase):
    """A classifier that ``fit`` trains, one update an epoch, with a validation after each."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(3)
        layers = keras.layers
        self.model = keras.Sequential(
            [
                layers.Input((6,)), layers.Dense(8), layers.BatchNormalization(), layers.ReLU(), layers.Dropout(0.2),
                layers.Dense(3),
            ]
        )  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        self.inputs = np.random.default_rng(3).normal(size=(32, 6)).astype(np.float32)
        self.labels = self.inputs[:, :3].argmax(1)
        self._at_first = [(each, each.numpy().copy()) for each in self.model.variables]

    def again(self) -> AdapterCase:
        """The same model, with the functions that Keras has made of it; variables of an optimizer begin as zeros."""
        if keras.backend.backend() == "torch":  # no function is compiled, and the first fit draws other random numbers
            return super().again()
        keras.utils.set_random_seed(3)
        optimizer = self.model.optimizer
        fresh = [(each, np.zeros(each.shape)) for each in optimizer.variables if each is not optimizer.learning_rate]
        for variable, value in self._at_first + fresh:
            variable.assign(value)
        self.losses, self.evaluation_losses = [], []
        return self

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        case = self

        class Losses(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
                case.losses.append(logs["loss"])
                after_step(len(case.losses) - 1)

            def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
                case.evaluation_losses.append(logs["val_loss"])

        data = self.inputs, self.labels
        if steps:
            self.model.fit(
                *data, batch_size=32, epochs=steps, validation_data=data, callbacks=[Losses()], verbose=0
            )  # fmt: skip

    def evaluate(self) -> bool:
        self.model.evaluate(self.inputs, self.labels, verbose=0)
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {str(index): each for index, each in enumerate(self.model.get_weights())}
