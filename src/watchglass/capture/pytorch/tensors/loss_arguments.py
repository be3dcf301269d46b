"""Predictions and labels: the arguments of loss functions."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from watchglass.capture.port import Port
from watchglass.capture.pytorch.events import Events, LossCall
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.public_calls import parameters_of
from watchglass.capture.saving.saving import Item, Saving
from watchglass.records import Role

_TARGETS = ("target", "targets")
_LOGSUMEXP = "logsumexp"
#: Most elements of a log-sum-exp; of more, rows at a fixed stride.
_MOST_LOGITS = 1 << 21


class LossArguments:
    """Saves labels and predictions, and the log-sum-exp of the logits of a cross-entropy.

    Names are ``label``, ``prediction`` and ``logsumexp``; where a loss judges several tensors, ``prediction.anchor``
    and so on; of the second loss of one forward ``label_2``.
    """

    def __init__(self, port: Port, models: Models, saving: Saving, events: Events) -> None:
        self._plan = port.plan
        self._saving = saving
        self._last = (0, 0)
        self._losses = 0
        events.loss_computed.append(self._loss_computed)

    def _loss_computed(self, call: LossCall) -> None:
        forward = (id(call.forward), call.forward.start_ns)
        self._losses = self._losses + 1 if forward == self._last else 1
        self._last = forward
        ending = f"_{self._losses}" if self._losses > 1 else ""
        records, plan = call.forward.records, self._plan
        if plan.wants(Role.LABEL) or plan.wants(Role.PREDICTION):
            judged, label = _arguments(call)
            if label is not None:
                self._saving.save(records, Role.LABEL, Item(label, f"label{ending}"))
            items = [Item(value, f"prediction{ending}{'.' if name else ''}{name}") for name, value in judged]
            self._saving.save_all(records, Role.PREDICTION, items)
        if call.function == "cross_entropy" and plan.wants_tag(_LOGSUMEXP):
            logits = call.predictions
            if isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() and logits.numel():
                sampled = logits.numel() > _MOST_LOGITS
                item = Item(logsumexp(logits), f"{_LOGSUMEXP}{ending}", tags=(_LOGSUMEXP,), sampled=sampled)
                self._saving.save(records, Role.CUSTOM, item)


def logsumexp(logits: Tensor, most: int = _MOST_LOGITS) -> Tensor:
    """Log-sum-exp over the classes, as cross-entropy sees them: axis 1, or 0 of a vector.

    Args:
        logits: Of shape ``(classes,)`` or ``(batch, classes, ...)``.
        most: About the number of elements that are read; of more, a fixed stride along the other axes.
    """
    axis = 1 if logits.dim() > 1 else 0
    excess = math.ceil(logits.numel() / most)
    for other in range(logits.dim()):
        if excess > 1 and other != axis:
            stride = min(excess, logits.shape[other])
            logits = logits[(slice(None),) * other + (slice(None, None, stride),)]
            excess = math.ceil(excess / stride)
    return torch.logsumexp(logits.detach().float(), axis)


def _arguments(call: LossCall) -> tuple[list[tuple[str, Tensor]], Tensor | None]:
    """Tensors that a loss judges, each with the name of its argument where there are several, and the target."""
    names, judged = _signature(call.function)
    given = {**dict(zip(names, call.arguments, strict=False)), **call.kwargs}
    tensors = [(name, given[name]) for name in judged if isinstance(given.get(name), Tensor)]
    target = next((given[name] for name in _TARGETS if isinstance(given.get(name), Tensor)), None)
    return tensors if len(tensors) > 1 else [("", value) for _, value in tensors], target


@functools.lru_cache(maxsize=64)
def _signature(function: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of a loss function's arguments, and those of what it judges: all that it must be given but the target.

    ``weight``, lengths and the like come after the target.
    """
    parameters = parameters_of(function)
    needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    target = next((index for index, name in enumerate(needed) if name in _TARGETS), len(needed))
    # A variance that accompanies the prediction is predicted too.
    return tuple(parameters), (*needed[:target], *(name for name in needed[target:] if name == "var"))
