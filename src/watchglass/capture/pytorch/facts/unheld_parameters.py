"""Fact ``unheld_parameters``: parameters that a backward reaches and that no optimizer updates.

``membership`` compares the optimizers with the models. Layers in a plain list, a second module of the loop and
parameters of a loss are no part of a model that is trained. Autograd's graph shows them all.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from watchglass.capture.arrays import Elements
from watchglass.capture.facts.update_samples import ELEMENTS
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.facts.copies import Copies, some
from watchglass.capture.pytorch.facts.object_names import ObjectNames
from watchglass.capture.pytorch.modules.models import Models
from watchglass.capture.pytorch.modules.module_tree import kind_of, parameters_of, type_name
from watchglass.record import CapturedRecords, DeferredFact
from watchglass.records import ModuleKind, facts

#: Parameters that are described, and whose values are remembered.
_MOST, _MOST_REMEMBERED = 32, 4096


class _Seen(NamedTuple):
    """The sum of the sampled elements of a parameter, and how many looks in a row have found it."""

    total: float
    looks: int


class UnheldParameters:
    """Compares the parameters that a backward reaches with those of the optimizers.

    Args:
        port: The port that records.
        models: The models that are watched.
        subjects: Names of the optimizers that are called.
        leave: Collects the functions that end the listening.
    """

    def __init__(self, port: Port, models: Models, subjects: ObjectNames, leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._subjects = subjects
        self._updating: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Those that hold reported parameters and have not stepped.
        self._idle: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Backwards of a step of which parameters were reported; the recorder's thread remembers their values.
        self._reported: set[int] = set()
        # By id: a parameter and its number. A fast script may have dropped it before its values are compared.
        self._numbers: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._next = itertools.count()
        self._seen: dict[int, _Seen] = {}
        leave.callback(calls.OPTIMIZER_GIVEN.listen(port.guard, after=subjects.optimizer_given))

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped, at any step."""
        if optimizer in self._updating:
            return
        self._updating.add(optimizer)
        if optimizer in self._idle:
            fact = facts.ReachedParameters(stepped=self._subjects.name("optimizer", optimizer))
            self._port.records.current().add_fact(fact, "optimizer")

    def look(self, records: CapturedRecords, backward: int, reached: Sequence[Tensor]) -> None:
        """A backward is about to reach these parameters."""
        optimizers = self._subjects.made_optimizers(reached)
        holding = {id(each): optimizer for optimizer in optimizers for each in parameters_of(optimizer)}
        # Ahead of the first update all may update.
        updating = [optimizer for optimizer in optimizers if optimizer in self._updating] or optimizers
        updated = {id(each) for optimizer in updating for each in parameters_of(optimizer)}
        if updated.isdisjoint(map(id, reached)):
            return  # an optimizer that was made before watching began is known once it has stepped
        idle = [each for each in reached if id(each) not in updated]
        holders = self._models.parents.holders(idle)
        rows: list[tuple[facts.ReachedParameter, int, Elements]] = []
        copies, count = Copies(), 0
        for parameter in idle:
            holder, optimizer = holders.get(id(parameter)), holding.get(id(parameter))
            owner = self._models.owner(parameter)
            if owner is None and holder is not None:
                owner = self._models.parents.owner(holder)
            if optimizer is None and owner is not None and any(id(each) in updated for each in owner.parameters()):
                continue  # the fact membership has those of models of which others are updated
            count += 1
            values = some(parameter, ELEMENTS) if len(rows) < _MOST else None
            if values is None:
                continue
            row = _described(parameter, holder, owner)
            if optimizer is not None:
                self._idle.add(optimizer)
                name = self._subjects.name("optimizer", optimizer)
                row = replace(row, optimizer=name, optimizer_type=type(optimizer).__name__)
            rows.append((row, self._number(parameter), copies.add(values)))
        if not rows and backward not in self._reported:
            return
        (self._reported.add if rows else self._reported.discard)(backward)
        copies.send()
        make = functools.partial(self._fact, facts.ReachedParameters(backward, count), rows)
        records.add_fact(DeferredFact(facts.ReachedParameters, make), "autograd")

    def _number(self, parameter: Tensor) -> int:
        known = self._numbers.get(id(parameter))
        if known is None or known[0]() is not parameter:
            if len(self._numbers) > _MOST_REMEMBERED:
                self._numbers.clear()
            known = self._numbers[id(parameter)] = weakref.ref(parameter), next(self._next)
        return known[1]

    def _fact(self, fact: facts.ReachedParameters, rows: Sequence[Any]) -> facts.ReachedParameters:
        if len(self._seen) > _MOST_REMEMBERED:
            self._seen.clear()
        parameters = []
        for row, number, copied in rows:
            taken = copied.received().astype(float)
            total, known = float(taken.sum()), self._seen.get(number)
            looks = known.looks + 1 if known is not None and known.total == total else 1
            self._seen[number] = _Seen(total, looks)
            spread = {"min": float(taken.min()), "max": float(taken.max()), "std": float(taken.std())}
            parameters.append(replace(row, looks=looks, sampled=taken.size, **spread))
        return replace(fact, parameters=tuple(parameters))


def _described(parameter: Tensor, holder: nn.Module | None, owner: nn.Module | None) -> facts.ReachedParameter:
    """A parameter, its name within the outermost module that holds it, and what that is."""
    names = owner.named_parameters() if owner is not None else ()
    return facts.ReachedParameter(
        type_name(owner) if owner is not None else "",
        next((name for name, each in names if each is parameter), ""),
        tuple(parameter.shape),
        (kind_of(holder) if holder is not None else ModuleKind.OTHER).value,
        owner is None or owner.training,
    )
