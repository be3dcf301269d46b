"""Models of a process, by what is differentiated and updated: their numbers, modules and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from watchglass.capture.compiled.collecting import Collected, ValuePart
from watchglass.capture.jax.trees import Leaf, named_leaves
from watchglass.capture.model_numbers import FrameworkNumbers
from watchglass.capture.module_places import NOWHERE, ParameterPlace, Place, path_below, path_in
from watchglass.records import ModuleKind, facts

#: What plain pytrees call a bias.
_BIASES = frozenset(("b", "bias"))


class TracedModule(NamedTuple):
    """A module that was called, as its library describes it.

    Attributes:
        path: Names of the module and its parents below the model, as the parameters have them; empty for the model.
        module_type: Its class.
        kind: Its kind.
        unit_axis: The axis of its weights that counts units.
        dropout: Share of the elements that it drops in training; 0 for other modules.
    """

    path: tuple[str, ...]
    module_type: str
    kind: ModuleKind
    unit_axis: int = -1
    dropout: float = 0.0


class PytreeModels:
    """Numbers of models, and places of their modules and parameters. For the training thread.

    A model is the structure of what is differentiated: names and shapes of its leaves. Equal ones have numbers of their
    own, and the names and kinds of the first.

    Args:
        own: The numbers of models of JAX.
    """

    def __init__(self, own: FrameworkNumbers) -> None:
        self._own = own
        self._numbers: dict[tuple[Any, ...], int] = {}
        # By number of the first model of a structure: its number and those of its equals.
        self._equal: dict[int, list[int]] = {}
        self._renamed: dict[tuple[int, str], Collected] = {}
        self._places: dict[tuple[int, tuple[str, ...]], Place] = {}
        self._axes: dict[tuple[int, tuple[str, ...]], int] = {}
        self._sizes: dict[int, int] = {}
        self._dropout: dict[tuple[int, tuple[str, ...]], float] = {}
        # The model whose function is traced now, where that is known.
        self._current: int | None = None

    @property
    def current(self) -> int:
        """The model whose function is traced now; the first one where that is not known."""
        return self._own.first if self._current is None else self._current

    @contextmanager
    def traced(self, number: int | None) -> Iterator[None]:
        """A function of this model is traced inside; None for one that is not known."""
        before, self._current = self._current, number
        try:
            yield
        finally:
            self._current = before

    def number_of(self, rows: Sequence[Leaf]) -> int:
        """The number of the first model with such parameters, a new one for the first time."""
        key = tuple((path, np.shape(leaf)) for path, leaf in rows)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._own.new()
            self._equal[number] = [number]
            self._sizes[number] = sum(int(np.prod(shape)) for _, shape in key)
        return number

    def holding(self, rows: Sequence[Leaf]) -> int | None:
        """The number of the first model that such parameters are, or are a part of; None if there is none so far."""
        own = tuple((path, np.shape(leaf)) for path, leaf in rows)
        exact = self._numbers.get(own)
        return (
            exact
            if exact is not None
            else next((self._numbers[key] for key in self._numbers if {*own} <= {*key}), None)
        )

    def equal(self, base: int) -> list[int]:
        """Numbers of the models that are equal to one, the first of them first."""
        found = self._equal.get(base)
        return next(each for each in self._equal.values() if base in each) if found is None else found

    def twin(self, base: int) -> int:
        """The number of a further model that is equal to one."""
        number = self._own.new()
        self._sizes[number] = self._sizes[base]
        self.equal(base).append(number)
        return number

    def renamed(self, key: str, what: Collected, number: int) -> Collected:
        """What a value under a key is, of the model with this number in place of its equal."""
        found = self._renamed.get((number, key))
        if found is None:
            place = self._place_in(what.place, number)
            parameter, name = what.parameter, what.name
            if parameter is not None:
                inner = path_below(what.model, parameter.name)
                place_in = self._place_in(parameter.place, number)
                parameter = replace(parameter, name=path_in(number, inner), place=place_in)
            if what.place is not NOWHERE and what.part in _NAMED:
                kind, slash, inner = name.rpartition("/")
                name = f"{kind}{slash}{path_in(number, path_below(what.model, inner))}"
            found = replace(what, name=name, place=place, parameter=parameter, model=number)
            self._renamed[number, key] = found
        return found

    @staticmethod
    def _place_in(place: Place, number: int) -> Place:
        if place is NOWHERE:
            return place
        return replace(place, path=path_below(place.model or 0, place.path)).of(number)

    def found_in(self, arguments: Any) -> tuple[dict[int, tuple[str, ...]], int | None]:
        """Paths of parameters of a known model among some arguments, by identity, and its number; None for none."""
        by_end = {path: (number, shape) for key, number in self._numbers.items() for path, shape in key}
        found: dict[int, tuple[str, ...]] = {}
        numbers = []
        for path, leaf in named_leaves(arguments):
            words = path[:-1] if path[-1:] == ("value",) else path
            for start in range(len(words)):
                number, shape = by_end.get(words[start:], (0, None))
                if shape == np.shape(leaf):
                    found[id(leaf)] = words[start:]
                    numbers.append(number)
                    break
        return (found, max(numbers, key=numbers.count)) if found else self._in_a_row(arguments)

    def _in_a_row(self, arguments: Any) -> tuple[dict[int, tuple[str, ...]], int | None]:
        """The same of leaves without names, as Equinox passes them: all parameters of a model one after the other."""
        leaves = jax.tree_util.tree_leaves(arguments)
        shapes = [np.shape(leaf) for leaf in leaves]
        for key, number in self._numbers.items():
            own, size = [shape for _, shape in key], len(key)
            start = next((at for at in range(len(leaves) - size + 1) if shapes[at : at + size] == own), None)
            if size > 1 and start is not None:
                return {id(leaves[start + at]): path for at, (path, _) in enumerate(key)}, number
        return {}, None

    def module(self, call: TracedModule) -> Place:
        """The place of a module that was called; modules are numbered as they are first called."""
        key = self.current, call.path
        if call.dropout:
            self._dropout[key] = call.dropout
        if key not in self._places:
            self._axes[key] = call.unit_axis
            self._places[key] = self._place(self.current, call.path, call.module_type, call.kind)
        return self._places[key]

    def parameter(self, number: int, path: tuple[str, ...], leaf: Any) -> ParameterPlace:
        """The place of a parameter; its kind is that of the module, or else follows from its shape."""
        key = number, path[:-1]
        name, axes = path[-1] if path else "value", len(np.shape(leaf))
        if key not in self._places:
            kind = _kind(path, axes)
            if kind is ModuleKind.OTHER:  # a bias may come first: other parameters of its module decide
                place = self._place(number, path[:-1], "pytree", kind)
            else:
                self._places[key] = place = self._place(number, path[:-1], "pytree", kind)
        else:
            place = self._places[key]
        axis = 0 if place.kind is ModuleKind.EMBEDDING else self._axes.get(key, -1)
        word = "bias" if name in _BIASES and axes <= 1 else name
        return ParameterPlace(self._named(number, path or ("value",)), word, place, axis)

    def parameters(self, number: int, rows: Sequence[Leaf]) -> list[ParameterPlace]:
        """The places of all parameters of a model, in their order."""
        for path, leaf in rows:
            if len(np.shape(leaf)) > 1:
                self.parameter(number, path, leaf)
        for path, _ in rows:
            key = number, path[:-1]
            if key not in self._places:
                self._places[key] = self._place(number, path[:-1], "pytree", ModuleKind.OTHER)
        return [self.parameter(number, path, leaf) for path, leaf in rows]

    def about(self, number: int) -> int | None:
        """The number of a model in facts: None where there is one."""
        return self._own.in_facts(number)

    def description(self, number: int) -> facts.ModelDescription:
        """What is known of a model."""
        first = self.equal(number)[0]
        places = [self._place_in(place, number) for (model, _), place in self._places.items() if model == first]
        return facts.ModelDescription(
            framework="jax",
            module_types={place.path: place.module_type for place in places},
            module_kinds={place.path: place.kind.value for place in places},
            dropout={self._named(*key): share for key, share in self._dropout.items() if key[0] == number},
            parameters=self._sizes.get(number), devices=(jax.default_backend(),), compiled=True,
            model=self.about(number),
        )  # fmt: skip

    def _place(self, number: int, path: tuple[str, ...], module_type: str, kind: ModuleKind) -> Place:
        index = sum(1 for model, _ in self._places if model == number)
        return Place(self._named(number, path), module_type, index, number, kind)

    @staticmethod
    def _named(number: int, path: tuple[str, ...]) -> str:
        return path_in(number, *path)


#: Parts whose names begin with that of their model.
_NAMED = frozenset((
    ValuePart.GRADIENT, ValuePart.BEFORE, ValuePart.AFTER, ValuePart.STATE, ValuePart.MOMENT,
))  # fmt: skip


def _kind(path: tuple[str, ...], axes: int) -> ModuleKind:
    if axes < 2:
        return ModuleKind.OTHER
    if any("embed" in name.lower() for name in path):
        return ModuleKind.EMBEDDING
    return ModuleKind.LINEAR if axes == 2 else ModuleKind.CONVOLUTION
