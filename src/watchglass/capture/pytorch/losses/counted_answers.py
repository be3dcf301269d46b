"""Records the accuracy of evaluations in which a script only counts right predictions.

``(model(x).argmax(1) == y).sum()``: no loss function is called there. The comparison of the largest outputs with
integers is observed, from a call of a model in an evaluation up to the next call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from watchglass.capture.pytorch.graph.loss_operations import OperationObserver, Traced
from watchglass.capture.pytorch.losses import functions as losses
from watchglass.capture.pytorch.modules.nested_tensors import tensors_in
from watchglass.capture.pytorch.public_calls import READS
from watchglass.capture.pytorch.training_state import TrainingState
from watchglass.record import Forward
from watchglass.records import Role

_LARGEST = Traced("largest", ("argmax", "max"), several=True)
_TOPMOST = Traced("topk", ("topk",), several=True)
_COMPARES = Traced("compare", ("eq", "__eq__"))
_OPERATIONS = frozenset((_LARGEST, _TOPMOST, _COMPARES))
#: Classes that were chosen, as they are kept, and how many for each prediction.
_Chosen = list[tuple[Tensor, int]]
#: Outputs of a model that are looked at, and elements of the largest predictions that are kept up to the next call.
_MOST_OUTPUTS, _MOST_KEPT = 8, 1 << 20
#: Evaluations of which each is observed; of twice as many every second, and so on. Python drops its caches for the
#: class of tensors where its methods are wrapped or restored; after a thousand times it caches nothing more.
_EACH = 128


class CountedAnswers:
    """Observes comparisons of predicted classes with labels. For the training thread.

    Args:
        current: The state of the run.
        expected: Whether there is compiled code of functions, which would be compiled once more.
    """

    def __init__(self, current: TrainingState, expected: Callable[[], bool]) -> None:
        self._observer = OperationObserver(current.port, current.events, self._observed, self._left, expected)
        self._guard = current.port.guard
        # Functions that end the observation of copies, which only predictions on a device need.
        self._copies: list[Callable[[], None]] = []
        # Shapes of the outputs of the last call, the forward, and the classes that were chosen, with copies.
        self._shapes: list[tuple[int, ...]] = []
        self._forward: Forward | None = None
        self._chosen: _Chosen = []
        # The predictions of the call before: to agree with another model is not to be right.
        self._others: _Chosen = []
        #: Whether an accuracy was recorded since a model has returned.
        self.found = False
        self._evaluating = False
        self._evaluations = 0

    def called(self, root: nn.Module, *, evaluating: bool) -> None:
        """A model is about to be called."""
        self._forward = None
        self._others, self._chosen = self._chosen, []
        self._evaluating = self._evaluating and evaluating
        self._observer.called(root, evaluating=evaluating)

    def returned(self, root: nn.Module, forward: Forward, output: Any) -> None:
        """A model has returned this in an evaluation."""
        self.found = False
        tensors = list(tensors_in(output, _MOST_OUTPUTS))
        self._shapes = [tuple(each.shape) for _, each in tensors if each.is_floating_point() and each.dim() > 1]
        if not self._evaluating:
            self._evaluating, self._evaluations = True, self._evaluations + 1
        spacing = 1 << max(0, self._evaluations.bit_length() - _EACH.bit_length())
        if (
            not self._shapes
            or self._evaluations % spacing
            or self._observer.expected()
            or self._observer.is_compiled(root)
        ):
            self._observer.leave()
            return
        self._forward = forward
        self._observer.listen(root, _OPERATIONS)
        if not self._copies and not all(each.is_cpu for _, each in tensors):
            self._copies = [READS[name].listen(self._guard, after=self._copied) for name in ("cpu", "to")]

    def _left(self) -> None:
        self._forward, self._chosen, self._others = None, [], []
        while self._copies:
            self._copies.pop()()

    def _observed(self, operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        forward = self._forward
        if forward is None or not args or not _has_values(args[0]):
            return
        if operation is _LARGEST or operation is _TOPMOST:
            self._choose(args[0], _dim_of(operation, args, kwargs), result)
        elif len(args) > 1 and _has_values(args[1]):
            self._compare(forward, args[0], args[1], result)

    def _copied(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Keep a copy of chosen classes as well as these."""
        if self._forward is None or not args or not (_has_values(args[0]) and _has_values(result)):
            return
        number = _number_of(args[0], self._chosen)
        if number and result.numel() == args[0].numel() and not result.is_floating_point():
            self._chosen.append((result, number))

    def _choose(self, outputs: Tensor, dim: Any, result: Any) -> None:
        """Keep the classes of the largest outputs."""
        indices = result[1] if isinstance(result, tuple) and len(result) > 1 else result
        if tuple(outputs.shape) not in self._shapes or not _has_values(indices) or indices.is_floating_point():
            return
        axes = outputs.dim()
        axis = dim % axes if type(dim) is int else 0
        number = indices.numel() * outputs.shape[axis] // max(1, outputs.numel())
        # With several classes for each prediction, rows are predictions.
        if axis in (1, axes - 1) and (number == 1 or (number > 1 and axes == 2)) and indices.numel() <= _MOST_KEPT:
            self._chosen = [*self._chosen[-3:], (indices, number)]

    def _compare(self, forward: Forward, one: Tensor, other: Tensor, result: Tensor) -> None:
        """Record the share of right predictions, if these are compared with labels."""
        if forward.has_accuracy:
            return  # by a loss function
        for predicted, labels in ((one, other), (other, one)):
            number = _number_of(predicted, self._chosen)
            if not number or labels.is_floating_point() or labels.dtype == torch.bool or not labels.dim():
                continue
            if _number_of(labels, [*self._chosen, *self._others]) or result.shape != predicted.shape:
                continue
            right, known = _first(result, number), _first(labels.expand_as(result), number)
            if right is None or known is None:
                continue
            self._forward = None  # once for each forward
            few = losses.few_as_arrays(right, known)
            if few is not None:
                judged = losses.counted(few[0], few[1] >= 0)
                share = None if judged is None else judged[0]
            else:
                with torch.no_grad():
                    valid = known >= 0
                    share = losses.number((right & valid).sum() / valid.sum())
            # Labels that are all ignored say nothing.
            if share is not None and not (type(share) is float and math.isnan(share)):
                forward.records.series.append(("accuracy", Role.METRIC, float(right.numel()), share))
                forward.has_accuracy = self.found = True
            return


def _has_values(value: Any) -> bool:
    """Whether this is a tensor whose values are in one place: none of another class, sparse, or inside torch.func."""
    try:
        return type(value) is Tensor and value.data_ptr() >= 0
    except RuntimeError:
        return False


def _dim_of(operation: Traced, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The axis of the classes, or None."""
    place, default = (2, -1) if operation is _TOPMOST else (1, None)
    return args[place] if len(args) > place else kwargs.get("dim", default)


def _number_of(tensor: Tensor, chosen: _Chosen) -> int:
    """How many classes a tensor has for each prediction, if it is one of these or a view of one; else 0."""
    for kept, number in chosen:
        if kept.numel() and kept.device == tensor.device and kept.data_ptr() == tensor.data_ptr():
            if kept.numel() == tensor.numel():
                return number
            if kept.numel() == number * tensor.numel():
                return 1  # the first of them
    return 0


def _first(tensor: Tensor, number: int) -> Tensor | None:
    """The elements for the first class of each prediction; None where it is not known which these are."""
    if number == 1:
        return tensor.reshape(-1)
    if tensor.dim() != 2 or tensor.shape[0] == tensor.shape[1]:
        return None
    return tensor[0] if tensor.shape[0] == number else tensor[:, 0]
