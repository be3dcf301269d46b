"""Names of the optimizers, schedulers, scalers, modules and loaders whose calls are facts, in order of appearance."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from watchglass.capture.guard import harmless
from watchglass.capture.pytorch.modules.module_tree import parameters_of
from watchglass.capture.pytorch.public_calls import is_wrapped
from watchglass.capture.pytorch.updates.update_counters import living_optimizers
from watchglass.records import facts

#: Objects of a kind that get their own number; the rest share one name (an optimizer per parameter).
_MOST_NUMBERED = 8


class ObjectNames:
    """Gives ``"optimizer"``, ``"optimizer_2"``, ``"scheduler"`` to objects, which it holds weakly."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._counts: dict[str, int] = {}
        self._parts: set[int] = set()
        self._made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._looked = False
        #: Grows with each new object.
        self.version = 0

    def name(self, kind: str, subject: Any) -> str:
        """Name of an object; ``kind`` is the first part of it."""
        known = self._names.get(id(subject))
        # An id may be used again once its object is gone.
        if known is not None and known[0]() is subject:
            return known[1]
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        name = kind if count == 1 else f"{kind}_{count}" if count <= _MOST_NUMBERED else f"{kind}_more"
        self._names[id(subject)] = (weakref.ref(subject, self._forgetter(id(subject))), name)
        self._parts.discard(id(subject))
        self.version += 1
        return name

    def _forgetter(self, key: int) -> Callable[[weakref.ref[Any]], None]:
        names = self._names

        def forget(reference: weakref.ref[Any]) -> None:
            if key in names and names[key][0] is reference:
                del names[key]

        return harmless(forget)

    def is_part(self, scheduler: Any) -> None:
        """A scheduler belongs to another and is stepped by it, never by the script."""
        self.name("scheduler", scheduler)
        self._parts.add(id(scheduler))

    def optimizer_given(self, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A script has given parameters to an optimizer, maybe to one that no call ever names."""
        self._made.add(arguments[0])

    def optimizers(self) -> list[Optimizer]:
        """The optimizers met, while they live."""
        return [subject for subject in self._alive() if isinstance(subject, Optimizer)]

    def made_optimizers(self, but_for: Iterable[Tensor]) -> list[Optimizer]:
        """The optimizers met and those that :meth:`optimizer_given` noted, while they live.

        Args:
            but_for: Where none of them holds one of these, optimizers are looked for once: a script may have made them
                before watching began.
        """
        made = {id(each): each for each in (*self._made, *self.optimizers())}
        if not self._looked:
            held = {id(parameter) for each in made.values() for parameter in parameters_of(each)}
            if any(id(parameter) not in held for parameter in but_for):
                self._looked = True
                self._made.update(living_optimizers())
                made |= {id(each): each for each in self._made}
        return list(made.values())

    def stepped_schedulers(self) -> int:
        """How many of the schedulers met have stepped."""
        return sum(isinstance(subject, LRScheduler) and has_stepped(subject) for subject in self._alive())

    def describe(self) -> dict[str, facts.CalledObject]:
        """Descriptions of the first eight objects of a kind, by name."""
        return {
            name: _describe(subject, self)
            for name, subject in ((self._names[id(subject)][1], subject) for subject in self._alive())
            if not name.endswith("_more") and id(subject) not in self._parts
        }

    def _alive(self) -> list[Any]:
        return [subject for reference, _ in list(self._names.values()) if (subject := reference()) is not None]


def has_stepped(scheduler: LRScheduler) -> bool:
    """Whether a scheduler has stepped since it was made, or continues one that had."""
    epoch = getattr(scheduler, "last_epoch", None)
    return not isinstance(epoch, int) or epoch > 0


def _describe(subject: Any, subjects: ObjectNames) -> facts.CalledObject:
    about = facts.CalledObject(type(subject).__name__)
    if isinstance(subject, Optimizer):
        # Schedulers of PyTorch, and most others, leave this in the groups: a sign of one that was made before us.
        about = replace(about, scheduled=any("initial_lr" in group for group in subject.param_groups))
    if isinstance(subject, LRScheduler):
        optimizer = getattr(subject, "optimizer", None)
        name = subjects.name("optimizer", optimizer) if isinstance(optimizer, Optimizer) else None
        observed = is_wrapped(type(subject).step)
        about = replace(about, optimizer=name, observed=observed, stepped=has_stepped(subject))
    if isinstance(subject, nn.Module):
        own = set(map(id, subject.parameters()))
        held = ((each, map(id, parameters_of(each))) for each in subjects.optimizers())
        names = (subjects.name("optimizer", each) for each, ids in held if not own.isdisjoint(ids))
        about = replace(about, optimizers=tuple(names))
    return about
