"""Eager loops: tapes that record, the gradients that they compute, and updates by optimizers or by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from watchglass.capture.tensorflow.clips import ClippedGradients
from watchglass.capture.tensorflow.losses import JudgedCall
from watchglass.capture.tensorflow.models import variable_of
from watchglass.capture.tensorflow.tape_steps import TapeSteps, mean_loss
from watchglass.records import Mode


class EagerTapes:
    """Hears what tapes, optimizers, layers and losses do, in eager loops and while functions are traced.

    Args:
        steps: Gets the steps.
    """

    def __init__(self, steps: TapeSteps) -> None:
        self._steps, self._tracing, self._models = steps, steps.tracing, steps.models
        self._applies = 0  # calls of optimizers that are open: one may call another
        self._begins = steps.port.guarded(steps.begin)

    def tape_enters(self) -> bool:
        """A tape begins to record."""
        if not self._steps.counts_eager():
            return False
        self._steps.keras()
        self._steps.tapes += 1
        if self._steps.tapes == 1:
            opened = self._steps.open
            if opened is not None and opened.is_complete:
                self._steps.leave()
            elif opened is not None and not opened.models:
                self._steps.drop()
            if self._steps.open is None:
                self._begins(())
        return False

    def tape_exits(self) -> None:
        """A tape ends its recording."""
        if self._steps.counts_eager():
            self._steps.tapes = max(0, self._steps.tapes - 1)

    def gradient_begins(self) -> bool:
        """Whether the end of a call of ``gradient`` is to be reported."""
        return self._steps.counts()

    def derived(self, target: Any, sources: Any, gradients: Any) -> None:
        """A tape has computed gradients."""
        if not isinstance(gradients, (list, tuple, dict, tf.Tensor, tf.IndexedSlices)):
            return
        model = self._models.of(tf.nest.flatten(sources))
        if model is None:
            return
        if self._tracing.tracing:
            self._tracing.derived(model, target, sources, gradients)
            return
        opened = self._steps.open
        if opened is not None and model.number in opened.updated:
            self._steps.leave()
            opened = None
        if opened is None:
            self._steps.begin((model,))
            opened = self._steps.open
        if opened is None:
            return
        opened.models[model.number] = model
        self._steps.read_before(opened, (model,))
        self._steps.values.describe(model)
        if opened.doings is not None:
            self._tracing.derived(model, target, sources, gradients)
            target = opened.doings.scaled.get(id(target), (target, target))[1]
        opened.losses.setdefault(model.number, []).append(tf.nest.flatten(target)[0])

    def scaled(self, loss: Any, scaled: Any) -> None:
        """An optimizer has scaled a loss."""
        if self._tracing.open and self._steps.counts():
            self._tracing.open[-1].scaled[id(scaled)] = scaled, loss

    def clipped(self, call: Callable[[], ClippedGradients]) -> None:
        """A function that clips has returned; inside an optimizer it does what that says of itself."""
        if self._tracing.open and not self._applies and self._steps.counts():
            self._tracing.open[-1].clips.append(call())

    def applies(self, optimizer: Any, gradients: Any, variables: Any) -> bool:
        """An optimizer is about to change variables."""
        if not self._steps.counts():
            return False
        self._applies += 1
        if self._applies > 1 or variables is None:
            return True
        pairs = [(variable_of(each), grad) for each, grad in zip(variables, gradients, strict=False)]
        pairs = [pair for pair in pairs if pair[0] is not None]
        for model in self._models.owners(variable for variable, _ in pairs):
            model.optimizer = optimizer
            if not self._tracing.tracing and self._steps.open is not None:
                self._steps.open.updated.add(model.number)
                self._steps.read_before(self._steps.open, (model,))
        if self._tracing.open:
            self._tracing.open[-1].updates.append((optimizer, pairs))
        return True

    def applied(self, optimizer: Any, done: bool) -> None:
        """It has changed them."""
        self._applies -= 1
        if self._applies or self._tracing.tracing or self._steps.open is None:
            return
        if self._steps.open.is_complete:
            self._steps.end()

    def assigned(self, variable: Any) -> bool:
        """A script changes a variable."""
        opened = self._steps.open
        if opened is not None and opened.models and not self._tracing.tracing:
            known = self._models.place_of(variable)
            if known is not None:
                opened.updated.add(known[0].number)
        return False

    def layer_enters(self, layer: Any) -> bool:
        """A layer is called."""
        if not self._steps.counts():
            return False
        if self._tracing.open and (self._tracing.tracing or self._steps.tapes):
            self._tracing.open[-1].depth += 1
            return True
        if not self._steps.tapes and not self._tracing.tracing:
            self._steps.forward = True
        if self._tracing.tracing or self._steps.tapes:
            self._models.offer(layer)
        return False

    def layer_returns(self, layer: Any, arguments: Any, result: Any) -> None:
        """A layer has returned."""
        if self._tracing.open:
            self._tracing.layer_returns(layer, arguments, result)

    def collects(self) -> bool:
        """Whether values of what is called now are collected."""
        return bool(self._tracing.open) and self._steps.counts() and (self._tracing.tracing or self._steps.tapes > 0)

    def judged(self, about: Callable[[int], JudgedCall | None], result: Any) -> None:
        """A loss function has returned."""
        if not self._steps.counts():
            return
        if self._tracing.tracing or (self._steps.tapes and self._tracing.open):
            doings = self._tracing.open[-1]
            doings.judged.append((about(len(doings.judged) + 1), result))
        elif not self._steps.tapes and self._steps.forward and self._steps.port.started and tf.is_tensor(result):
            self._steps.forward = False
            self._steps.leave()
            self._steps.recorded.begin(Mode.EVAL)
            self._steps.recorded.end({"loss": mean_loss([result])}, model=self._models.numbers.first)
