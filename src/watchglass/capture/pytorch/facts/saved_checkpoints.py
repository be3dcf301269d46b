"""Fact ``checkpoint``: files with weights or the state of an optimizer that the script saves.

Of what is saved only keys and types are looked at, once it is saved. Trainers save through the same two functions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import PurePath
from time import monotonic_ns
from typing import Any

from torch import Tensor, nn

from watchglass.capture.module_places import path_below
from watchglass.capture.port import Port
from watchglass.capture.pytorch import public_calls as calls
from watchglass.capture.pytorch.modules.models import Models
from watchglass.record import OpenStep
from watchglass.records import facts

#: Most entries of a mapping or a list that are looked at, parts of a path that are kept, and characters of these.
_MOST_ENTRIES, _MOST_PARTS, _MOST_CHARACTERS = 64, 2, 200


class SavedCheckpoints:
    """Listens to ``torch.save`` and to safetensors in the training thread."""

    def __init__(self, port: Port, models: Models, leave: ExitStack) -> None:
        self._port = port
        self._models = models
        self._since_ns = 0
        begun = port.guarded(self._begun)
        leave.callback(calls.SAVE.listen(port.guard, before=begun, after=port.guarded(self._saved)))
        written = port.guarded(self._tensors_saved)
        leave.callback(calls.SAFETENSORS.listen(port.guard, before=begun, after=written))

    def step_began(self, step: OpenStep) -> None:
        """A captured step has begun: safetensors may have been imported since the last one."""
        calls.SAFETENSORS.settle()

    def _begun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._since_ns = monotonic_ns()

    def _saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        saved = args[0] if args else kwargs.get("obj")
        parts = [saved, *_entries(saved)]
        weights = any(isinstance(part, nn.Module) or self._has_weights(_tensors(part)) for part in parts)
        self._add("torch.save", args, kwargs.get("f"), weights, any(map(_has_optimizer, parts)))

    def _tensors_saved(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        saved = args[0] if args else kwargs.get("tensor_dict")
        names = islice(dict.keys(saved), _MOST_ENTRIES) if isinstance(saved, dict) else ()
        self._add("safetensors", args, kwargs.get("filename"), self._has_weights(names), False)

    def _add(self, source: str, args: tuple[Any, ...], file: Any, weights: bool, optimizer: bool) -> None:
        port, seconds = self._port, (monotonic_ns() - self._since_ns) / 1e9
        port.settle()
        step = port.clock.train
        number = (step.mode_step if step is not None and not step.updated else port.clock.next_train_step) - 1
        # Before the first update it has no step; while the number of that is on its way, the step is not known.
        known = port.started and not port.resumption.waiting and number >= port.clock.first_train_step
        if known and (weights or optimizer):
            name = _name(args[1] if len(args) > 1 else file)
            saved = facts.SavedCheckpoint(number, name, round(seconds, 6), weights, optimizer)
            port.add_fact_between(saved, source)

    def _has_weights(self, names: Iterable[Any]) -> bool:
        """Whether one of these is the name of a weight of a watched model, or ends with it, or is the end of it."""
        given = {name for name in names if isinstance(name, str)}
        ends = {end for name in given for end in _ends(name)}
        return bool(given) and any(
            name in ends or not given.isdisjoint(_ends(name))
            for tree in self._models
            for _, place in tree.places()
            if (name := path_below(tree.number, place.name))
        )


def _entries(saved: Any) -> list[Any]:
    """What a mapping or a list holds, and what lists in a mapping hold; other objects might run code of the script."""
    inside: Iterable[Any] = ()
    if isinstance(saved, dict):
        inside = dict.values(saved)
    elif isinstance(saved, (list, tuple)):
        inside = saved
    found = list(islice(inside, _MOST_ENTRIES))
    return [*found, *(each for one in found if isinstance(one, (list, tuple)) for each in one[:_MOST_ENTRIES])]


def _tensors(part: Any) -> Iterator[Any]:
    """The names of tensors in a mapping."""
    if isinstance(part, dict):
        yield from (key for key, value in islice(dict.items(part), _MOST_ENTRIES) if isinstance(value, Tensor))


def _has_optimizer(part: Any) -> bool:
    """Whether it is the state of an optimizer, as PyTorch makes it."""
    return isinstance(part, dict) and dict.__contains__(part, "param_groups") and dict.__contains__(part, "state")


def _ends(name: str) -> Iterator[str]:
    """A name of a parameter, and that name within each of its modules."""
    while name:
        yield name
        _, _, name = name.partition(".")


def _name(file: Any) -> str:
    """The end of the path of a file; "" for a buffer, and for an object of the script."""
    if type(file) in (io.BufferedWriter, io.BufferedRandom, io.FileIO):
        file = file.name
    if not isinstance(file, (str, bytes, PurePath)):
        return ""
    return "/".join(PurePath(os.fsdecode(file)).parts[-_MOST_PARTS:])[-_MOST_CHARACTERS:]
