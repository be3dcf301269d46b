"""Records losses that a script computes with tensor operations in evaluations."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.compiled.graphs import unless_captured
from watchglass.capture.pytorch.graph.loss_expressions import Expression, OperationTracer
from watchglass.capture.pytorch.graph.loss_operations import ARRANGING, OperationObserver, Traced
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.modules.module_tree import is_compiled
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import Forward

#: Series of these losses.
_LOSS, HANDWRITTEN = "loss", "loss/handwritten"


class HandwrittenLosses:
    """Observes, from a call of a model in an evaluation up to the next call, operations on its outputs.

    Args:
        current: The state of the run.
        record: Records the loss of a forward (None where the script's is on a scale that is not known), and name and
            value of the part that is compared with that of TRAIN steps; returns the rows.
        expected: Whether there is compiled code of functions, which would be compiled once more.
    """

    def __init__(
        self,
        current: TrainingState,
        record: Callable[[Forward, Any, str, Any], list[Any]],
        expected: Callable[[], bool],
    ) -> None:
        self._current = current
        self._record = record
        self._expected = expected
        self._observer = OperationObserver(current.port.guard, current.port.guarded(unless_captured(self._observed)))
        self._tracer: OperationTracer | None = None
        # Rows of the forward that is followed.
        self._rows: list[Any] = []
        # Models called since operations are observed, by whether any part of them is compiled.
        self._compiled: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
        current.port.on_settle.append(self.leave)
        current.port.detach_with(self.leave)
        current.events.resting.append(lambda on: self.leave())

    def called(self, root: nn.Module, *, evaluating: bool) -> None:
        """A model is about to be called."""
        self._tracer = None
        if self._observer.operations:
            # Compiled code has guards on what it calls.
            if evaluating and self._compiled.get(root) is False:
                self._observer.attend(False)
            else:
                self.leave()

    def returned(self, root: nn.Module, forward: Forward, output: Any) -> None:
        """A model has returned this in an evaluation."""
        sources = self._current.sources
        expression = sources.expression_of(root)
        if expression is None or self._expected():
            self.leave()
            return
        found = functools.partial(self._found, forward, expression)
        if tracer := OperationTracer(sources.expressions, expression, tensors_in(output), found):
            if root not in self._compiled:
                self._compiled[root] = is_compiled(root)
            self._tracer, self._rows = tracer, []
            self._observer.listen(frozenset((*sources.expressions.operations, ARRANGING)))

    def leave(self) -> None:
        """The evaluation is over, or may be."""
        self._tracer = None
        self._observer.leave()
        self._compiled.clear()

    def _observed(self, operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        if self._tracer is not None:
            self._tracer.observed(operation, args, kwargs, result)

    def _found(self, forward: Forward, expression: Expression, terms: Tensor, result: Tensor, only: bool) -> None:
        with torch.no_grad():
            value = result.detach() if expression.sign > 0 else -result.detach()
            elements, rows = (terms.numel(), terms.shape[0]) if expression.summed and terms.dim() else (1, 1)
            part = losses.number(value / elements if elements > 1 else value)
            if not only:
                # Which of them the script means is not known, unless it is the same once more. No device is waited for.
                if not (self._rows and type(part) is float and part == self._rows[-1][-1]):
                    self._take_back(forward)
                return
            whole = {"batch": 1, "row": rows, "element": elements}.get(expression.per)
            loss = None if whole is None else part if whole == elements else losses.number(value / max(1, whole))
        if part is not None:
            self._rows = self._record(forward, loss, HANDWRITTEN, part)

    def _take_back(self, forward: Forward) -> None:
        rows, self._rows = self._rows, []
        series = forward.records.series
        series[:] = [row for row in series if not any(row is mine for mine in rows)]
        forward.has_loss = forward.has_loss and len(rows) < len((_LOSS, HANDWRITTEN))
