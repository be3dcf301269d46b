"""The objective of an update: the losses whose backward contributed to the gradients that an optimizer used.

The gradients themselves show which losses these are. The gradients of a few parameters of each model are followed. A
gradient that is another object, or has another version, after a backward was changed by it. A gradient that is None, or
all zero, before a backward was cleared since the previous one. So the result does not depend on how a script clears
gradients, on frozen parameters, or on which optimizer uses which gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from watchglass.capture.pytorch.device.readback import DeviceRows
from watchglass.capture.pytorch.modules.module_tree import ModuleTree, parameters_of
from watchglass.capture.pytorch.saving.reduce import plain, version_of

#: Most parameters of one model, or of one optimizer, that are followed. Beyond the second number over all models, a
#: further model has one; the third number is the limit over all. Each costs almost a microsecond at each backward.
_OF_ONE, _MANY, _MOST = 6, 96, 512
#: Elements of a gradient that are examined to see whether it was set to zero.
_LOOKED_AT = 1 << 14
#: Most backwards since the last update whose losses are kept; after more of them the objective of the update is
#: unknown.
_MOST_LOSSES = 1 << 16


@dataclass(slots=True, eq=False)
class Loss:
    """The loss that one backward started from."""

    number: int  #: Backwards are numbered in their order.
    value: Any  #: A float, or a readback of one; None where it was not observed.
    weight: float = 1.0  #: Its weight in an average: samples.
    plain: bool = True  #: Whether that was one tensor, with no gradient given, and for all parameters.


#: Where a gradient on a device was changed between two backwards: what there is of it, on its way to the host. If that
#: is all zero, earlier losses no longer count.
_Cut = DeviceRows


class _Followed:
    """A parameter whose gradient is followed.

    Attributes:
        parameter: Weak reference to it.
        model: Number of its model.
        losses: Whose backwards contributed to the gradient that it has.
        had: Whether it had a gradient, as that was noted.
    """

    __slots__ = ("_gradient", "_version", "had", "losses", "model", "parameter")

    def __init__(self, parameter: Tensor, model: int) -> None:
        self.parameter = weakref.ref(parameter)
        self.model = model
        self.losses: list[Loss | _Cut] = []
        self._gradient: weakref.ref[Tensor] | None = None
        self._version = 0
        self.had = False

    @property
    def is_trainable(self) -> bool:
        """Whether a backward may change its gradient."""
        parameter = self.parameter()
        return parameter is not None and parameter.requires_grad

    @property
    def gradient(self) -> Tensor | None:
        """Its gradient."""
        parameter = self.parameter()
        return None if parameter is None else parameter.grad

    def note(self, gradient: Tensor) -> None:
        """Note the present gradient."""
        # As _version, which costs a call for each parameter at every backward.
        plainly = type(gradient) is Tensor and not gradient.is_inference()
        self._version = gradient._version if plainly else _version(gradient)
        self._gradient, self.had = weakref.ref(gradient), True

    def note_unknown(self) -> None:
        """Note that there is a gradient whose state is not known."""
        self._gradient, self.had = None, True

    def changed(self, gradient: Tensor) -> bool:
        """Whether the present gradient is not the one that was noted, or was changed since."""
        noted = self._gradient
        if noted is None or noted() is not gradient:
            return True
        plainly = type(gradient) is Tensor and not gradient.is_inference()
        return self._version != (gradient._version if plainly else _version(gradient))

    def forget_cleared(self, gradient: Tensor) -> None:
        """Before a backward: losses whose gradient was set to zero since it was noted contribute no more."""
        if not self.had or not self.changed(gradient):
            return
        with torch.no_grad():
            values = _some(gradient)
            if values is not None and values.is_cpu and not bool(values.any()):
                self.losses.clear()
            elif values is not None and not values.is_cpu:
                self.losses.append(DeviceRows(values.any().float()))


class Objective:
    """The objective of one model in one update.

    Attributes:
        losses: The losses that it sums, at most, in the order of their backwards.
    """

    __slots__ = ("_parts", "losses")

    def __init__(self, parts: Sequence[Sequence[Loss | _Cut]]) -> None:
        if len(parts) > 1 and parts.count(parts[0]) == len(parts):
            parts = parts[:1]  # as most: of one backward
        found = {each for part in parts for each in part if isinstance(each, Loss)}
        self.losses = sorted(found, key=lambda loss: loss.number)
        cut = any(not isinstance(each, Loss) for part in parts for each in part)
        self._parts = [[*part] for part in parts] if cut else None

    @staticmethod
    def sum_of(values: Sequence[Any]) -> Any:
        """The sum of numbers, some of them on their way from a device, or a readback of it."""
        return Objective([[Loss(number, value) for number, value in enumerate(values)]]).value

    @property
    def weight(self) -> float:
        """Its weight in an average."""
        return sum(loss.weight for loss in self.losses)

    @property
    def value(self) -> Any:
        """The sum, or a readback of it; None if a loss of it was not observed."""
        values = [loss.value for loss in self.losses]
        if None in values:
            return None
        if self._parts is None and all(type(value) is float for value in values):
            return total(values)
        return self

    def resolve(self) -> float:
        """The sum; waits for the device."""
        losses = self.losses
        if self._parts is not None:
            found = {loss for part in self._parts for loss in _uncleared(part)}
            losses = sorted(found, key=lambda loss: loss.number)
        return total([float(v.resolve() if hasattr(v, "resolve") else v) for v in (loss.value for loss in losses)])

    def joined(self, other: Objective) -> Objective:
        """The objective of both."""
        return Objective([*(self._parts or [[*self.losses]]), *(other._parts or [[*other.losses]])])


class Objectives:
    """Follows the gradients of models and optimizers. Used by the training thread, or while that waits for autograd.

    Attributes:
        backwards: How many there were since the last update, the one that runs included.
    """

    def __init__(self) -> None:
        self.backwards = 0
        self._followed: list[_Followed] = []
        # Valid while the optimizer has as many parameters, and no followed parameter was added.
        self._of_optimizers = weakref.WeakKeyDictionary[Optimizer, tuple[int, int, list[_Followed]]]()
        self._changes = 0
        # Of the last backward: where models take turns, gradients may be of backwards before the last update.
        self._number = 0
        # Losses of all backwards since the last update.
        self._recent: list[Loss] = []
        self._running: Loss | None = None
        self._updated = False

    def follow(self, tree: ModuleTree) -> None:
        """A model was seen for the first time."""
        added = self._add([parameter for parameter in tree.parameters() if parameter.requires_grad], tree.number)
        if not self._updated:
            # A model whose calls cannot be observed is found when its optimizer steps, after its first backwards.
            for followed in added:
                followed.losses = [*self._recent] if followed.gradient is not None else []

    def begin(self, value: Any, weight: float, *, plain: bool) -> None:
        """A backward begins from ``value``, None where that is no loss."""
        if self._updated:
            self._updated = False
            self._recent, self.backwards = [], 0
        # Written out: at every backward, a call for each parameter that has no gradient would count.
        for followed in self._followed:
            parameter = followed.parameter()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None:
                if followed.losses:
                    followed.forget_cleared(gradient)
                followed.note(gradient)
            elif followed.had:
                followed.had = False
                followed.losses.clear()
        self.backwards += 1
        self._running = None
        if value is not None and len(self._recent) <= _MOST_LOSSES:
            self._number += 1
            self._running = Loss(self._number, value, weight, plain=plain)
            self._recent.append(self._running)

    def end(self, models: Container[int]) -> None:
        """It has ended.

        Args:
            models: Those whose forwards it ran through, for where that is all that shows: some gradients are
                accumulated where they are not seen, as those of ``fully_shard`` before they are reduced.
        """
        loss, self._running = self._running, None
        if loss is None:
            return
        changed = False
        for followed in self._followed:
            parameter = followed.parameter()
            gradient = None if parameter is None else parameter.grad
            if gradient is None:
                if not followed.had:
                    continue
                followed.had = False
            elif followed.had and not followed.changed(gradient):
                continue
            else:
                followed.note(gradient)
            followed.losses.append(loss)
            changed = True
        if changed or self._updated:
            return
        for followed in self._followed:
            if followed.model in models and followed.is_trainable:
                followed.losses.append(loss)

    def of(self, optimizer: Optimizer) -> dict[int, Objective]:
        """Objectives of the gradients that an optimizer uses now, by model, the running backward included."""
        followed = self._followed_of(optimizer)
        running = self._running is not None
        if self._recent and (running or not any(each.losses or each.gradient is not None for each in followed)):
            # It steps inside the backward, or steps parameters of which none is followed yet.
            added = [] if running else self._choose(optimizer)
            if running or added:
                return {model: Objective([self._recent]) for model in {each.model for each in followed or added} or {0}}
        return self._objectives(followed)

    def recent(self) -> dict[int, Objective]:
        """The objective of all backwards since the last update."""
        return {0: Objective([self._recent])} if self._recent and not self._updated else {}

    def updated(self, optimizer: Optimizer) -> None:
        """An optimizer has used its gradients, or a scaler has kept it from that."""
        for followed in self._followed_of(optimizer):
            followed.losses.clear()
        self._updated = True

    def take(self) -> dict[int, Objective]:
        """Objectives of all gradients, where a step ends that no optimizer updated."""
        found = self._objectives(self._followed)
        for followed in self._followed:
            followed.losses.clear()
        self._updated = True
        return found

    def forget(self, updated: Optimizer | None) -> None:
        """Backwards and updates were not observed.

        Args:
            updated: The optimizer that has stepped last, if no backward has run since then.
        """
        self.restore(None, None, 0.0, 0)
        if updated is not None:
            self.updated(updated)

    def restore(self, optimizer: Optimizer | None, value: float | None, weight: float, backwards: int) -> None:
        """Add backwards since the last update that were not followed; their losses add up to ``value``.

        They contributed to the gradients of ``optimizer``; without it, of all optimizers.
        """
        self._number += 1
        loss = Loss(self._number, value, weight)
        self._recent, self.backwards, self._updated = [loss], backwards, False
        for followed in self._followed if optimizer is None else self._followed_of(optimizer):
            followed.losses = [loss]
            followed.note_unknown()

    def parameter_of(self, optimizer: Optimizer) -> Tensor | None:
        """A parameter of an optimizer that is followed and gets gradients; a script may have cleared these by now."""
        parameters = (followed.parameter() for followed in self._followed_of(optimizer) if followed.losses)
        return next((each for each in parameters if each is not None), None)

    def _objectives(self, followed: Iterable[_Followed]) -> dict[int, Objective]:
        if len(self._recent) > _MOST_LOSSES:
            return {}
        found: dict[int, list[list[Loss | _Cut]]] = {}
        for each in followed:
            if each.losses:
                found.setdefault(each.model, []).append(each.losses)
        return {model: Objective(parts) for model, parts in found.items()}

    def _followed_of(self, optimizer: Optimizer) -> list[_Followed]:
        count = 0
        for group in optimizer.param_groups:
            count += len(group["params"])
        known = self._of_optimizers.get(optimizer)
        if known is None or known[:2] != (count, self._changes):
            held = {id(parameter) for parameter in parameters_of(optimizer)}
            found = [each for each in self._followed if id(each.parameter()) in held]
            known = self._of_optimizers[optimizer] = (count, self._changes, found)
        return known[2]

    def _choose(self, optimizer: Optimizer) -> list[_Followed]:
        """Follow some parameters of an optimizer that have a gradient now; returns those that were not before."""
        held = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
        return self._add(held, min((each.model for each in self._followed_of(optimizer)), default=0))

    def _add(self, parameters: Sequence[Tensor], model: int) -> list[_Followed]:
        self._followed = [each for each in self._followed if each.parameter() is not None]
        self._changes += 1
        room = max(_MANY - len(self._followed), int(len(self._followed) < _MOST))
        count = min(_OF_ONE, len(parameters), room)
        known = {id(each.parameter()) for each in self._followed}
        # Evenly, the first and the last among them.
        chosen = [parameters[index * (len(parameters) - 1) // max(1, count - 1)] for index in range(count)]
        added = [_Followed(parameter, model) for parameter in chosen if id(parameter) not in known]
        self._followed += added
        return added


def groups(objectives: Mapping[int, Objective]) -> dict[int, set[int]]:
    """Models that have losses in common, by the first of each group."""
    found: list[tuple[set[int], set[Loss]]] = []
    for model, objective in objectives.items():
        members, losses = {model}, set(objective.losses)
        apart = []
        for others, theirs in found:
            if losses & theirs:
                members, losses = members | others, losses | theirs
            else:
                apart.append((others, theirs))
        found = [*apart, (members, losses)]
    return {min(members): members for members, _ in sorted(found, key=lambda group: min(group[0]))}


def total(values: Iterable[float]) -> float:
    """The sum, added one by one as the fast path does: ``sum`` rounds otherwise since Python 3.12."""
    result = 0.0
    for value in values:
        result += value
    return result


def _uncleared(part: Sequence[Loss | _Cut]) -> list[Loss]:
    """The losses that remain of a gradient that was set to zero at cuts."""
    left: list[Loss] = []
    for each in part:
        if isinstance(each, Loss):
            left.append(each)
        elif not float(each.resolve()):
            left = []
    return left


def _version(gradient: Tensor) -> int:
    """How often a gradient was changed in place; that of a sharded one shows at its local part."""
    if type(gradient) is not Tensor and hasattr(gradient, "to_local"):
        gradient = gradient.to_local()
    return version_of(gradient)


def _some(gradient: Tensor) -> Tensor | None:
    """Some of a gradient's values."""
    values = plain(gradient)
    if values is None or values.numel() <= _LOOKED_AT:
        return values
    return values.flatten()[:: values.numel() // _LOOKED_AT] if values.is_contiguous() else values
