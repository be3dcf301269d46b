"""Records losses that a script computes with tensor operations in evaluations."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.graph.loss_expressions import OTHER, Expression, Key
from watchglass.capture.pytorch.graph.loss_operations import ARRANGING, OperationObserver, Traced, given_constants
from watchglass.capture.pytorch.graph.nodes import number_of
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.saving.reduce import version_of
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import Forward

#: Series of these losses.
_LOSS, HANDWRITTEN = "loss", "loss/handwritten"
#: Tensors of an expression between two calls of a model that are followed at most.
_MOST_FOLLOWED = 256


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
        self._observer = OperationObserver(current.port, current.events, self._observed, self._left, expected)
        # The forward that is followed, how its loss is made, rows of it, and losses that were found.
        self._forward: Forward | None = None
        self._expression: Expression | None = None
        self._rows: list[Any] = []
        self._losses: list[weakref.ref[Tensor]] = []
        # By identity: a tensor, its version and its expression.
        self._followed: dict[int, tuple[weakref.ref[Tensor], int, Key]] = {}

    def called(self, root: nn.Module, *, evaluating: bool) -> None:
        """A model is about to be called."""
        self._forward = None
        self._observer.called(root, evaluating=evaluating)

    def returned(self, root: nn.Module, forward: Forward, output: Any) -> None:
        """A model has returned this in an evaluation."""
        self._expression = expression = self._current.sources.expression_of(root)
        if expression is None or self._observer.expected():
            self._observer.leave()
            return
        self._rows, self._losses, self._followed = [], [], {}
        for path, tensor in tensors_in(output):
            if type(tensor) is Tensor and not tensor.is_nested:
                self._follow(expression, tensor, ("output", path))
        if self._followed:
            self._forward = forward
            self._observer.listen(root, expression.operations)

    def _left(self) -> None:
        self._forward = None

    def _observed(self, operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        forward, expression = self._forward, self._expression
        first = args[0] if args else kwargs.get("input")
        if forward is None or expression is None or not isinstance(first, Tensor):
            return
        key = self._key(first)
        if operation is ARRANGING:
            if result is not first:
                self._follow(expression, result, key)
            return
        operands = [key]
        if operation.operands > 1:
            other = args[1] if len(args) > 1 else kwargs.get("other")
            operands.append(self._key(other))
            if operation.numbers:
                operands = [_or_number(at, value) for at, value in zip(operands, (first, other), strict=True)]
        constants = given_constants(operation, args, kwargs, first)
        made = (operation.name, *(constants or ()), *operands)
        if constants is None or made not in expression.parts:
            return
        self._follow(expression, result, made)
        # Some are observed twice: a function of PyTorch calls another.
        if made == expression.key and result.numel() == 1 and not any(each() is result for each in self._losses):
            self._losses.append(weakref.ref(result))
            self._found(forward, expression, first, result)

    def _follow(self, expression: Expression, tensor: Tensor, key: Key) -> None:
        if key in expression.parts and len(self._followed) < _MOST_FOLLOWED:
            self._followed[id(tensor)] = weakref.ref(tensor), version_of(tensor), key

    def _key(self, value: Any) -> Key:
        known = self._followed.get(id(value))
        if known is None or (tensor := known[0]()) is None or tensor is not value or known[1] != version_of(tensor):
            return OTHER
        return known[2]

    def _found(self, forward: Forward, expression: Expression, terms: Tensor, result: Tensor) -> None:
        """A tensor is the loss, reduced from ``terms``."""
        with torch.no_grad():
            value = result.detach() if expression.sign > 0 else -result.detach()
            elements, rows = (terms.numel(), terms.shape[0]) if expression.summed and terms.dim() else (1, 1)
            part = losses.number(value / elements if elements > 1 else value)
            if len(self._losses) > 1:
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


def _or_number(key: Key, value: Any) -> Key:
    """The expression of an operand, which may be a number."""
    number = number_of(value) if key == OTHER else None
    return key if number is None else ("number", number)
