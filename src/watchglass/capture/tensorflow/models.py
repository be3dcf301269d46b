"""Models of a process, by the variables that gradients are taken for: their numbers, modules and parameters."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from watchglass.capture.model_numbers import FrameworkNumbers
from watchglass.capture.module_places import ParameterPlace, Place, path_in
from watchglass.capture.modules import modules_of
from watchglass.records import ModuleKind, facts


def variable_of(source: Any) -> Any:
    """The variable of TensorFlow that a source of a gradient is, or that one of Keras holds; None for neither."""
    if isinstance(source, tf.Variable):
        return source
    held = getattr(source, "value", None)
    return held if isinstance(held, tf.Variable) else None


@dataclass(eq=False)
class TrainedModel:
    """A model that is trained.

    Attributes:
        number: Its number.
        parameters: Its variables with their places, by identity, in order.
        modules: The places of its modules, by identity of the module.
        roots: What the script calls, alive as long as this.
        optimizer: The optimizer that changed it last.
        given: Its parameters that optimizers were given, see :data:`~watchglass.capture.compiled.membership.Given`.
        derived: Names of those whose gradients the script has asked for, and whether there are any.
        clips: How the script clips its gradients one by one.
    """

    number: int
    parameters: dict[int, tuple[Any, ParameterPlace]] = field(default_factory=dict)
    modules: dict[int, Place] = field(default_factory=dict)
    roots: list[Any] = field(default_factory=list)
    optimizer: Any = None
    given: dict[str, dict[str, bool]] = field(default_factory=dict)
    derived: dict[str, bool] = field(default_factory=dict)
    clips: dict[facts.Clip, None] = field(default_factory=dict)

    def trainable(self) -> list[str]:
        """Names of its parameters that are not frozen, as layers of Keras may be after their variables were made."""
        frozen = {id(variable_of(each)) for root in self.roots for each in root.non_trainable_variables}
        return [
            place.name for key, (variable, place) in self.parameters.items() if variable.trainable and key not in frozen
        ]

    def description(self, number: int | None) -> facts.ModelDescription:
        """What is known of it, under a number; None where there is one model."""
        sizes = [int(variable.shape.num_elements() or 0) for variable, _ in self.parameters.values()]
        places = {
            place.path: place for place in (*self.modules.values(), *(p.place for _, p in self.parameters.values()))
        }
        return facts.ModelDescription(
            framework="tensorflow",
            module_types={path: place.module_type for path, place in places.items()},
            module_kinds={path: place.kind.value for path, place in places.items()},
            parameters=sum(sizes), roots=tuple(type(root).__name__ for root in self.roots), model=number,
        )  # fmt: skip


class TrainedModels:
    """All models of a process. For the training thread.

    Args:
        numbers: The numbers of models of TensorFlow.
    """

    def __init__(self, numbers: FrameworkNumbers) -> None:
        self.numbers = numbers
        self.known: list[TrainedModel] = []
        self._owners: dict[int, TrainedModel] = {}
        # Living modules and layers that may be models; those that were called or made last come last.
        self._candidates: dict[int, weakref.ref[Any]] = {}

    def offer(self, candidate: Any) -> None:
        """A module or layer that may be a model: it was made, given to ``watch``, or called by the script."""
        key = id(candidate)
        if key not in self._candidates:
            self._candidates[key] = weakref.ref(candidate, lambda _: self._candidates.pop(key, None))

    def of(self, sources: Iterable[Any]) -> TrainedModel | None:
        """The model of the sources of a gradient, made at the first time; None where none is a variable."""
        variables = {id(each): each for each in map(variable_of, sources) if each is not None and each.trainable}
        if not variables:
            return None
        owner = next((self._owners[key] for key in variables if key in self._owners), None)
        new = [variable for key, variable in variables.items() if key not in self._owners]
        if new:
            if owner is None:
                roots = self._roots({id(each): each for each in new})
                owner = TrainedModel(self.numbers.new(roots[0] if len(roots) == 1 else None))
                self.known.append(owner)
            self._place(owner, new)
        return owner

    def place_of(self, variable: Any) -> tuple[TrainedModel, ParameterPlace] | None:
        """A known parameter's model and place."""
        owner = self._owners.get(id(variable))
        return None if owner is None else (owner, owner.parameters[id(variable)][1])

    def owners(self, variables: Iterable[Any]) -> list[TrainedModel]:
        """The known models of some variables, each once."""
        found = (self._owners.get(id(variable)) for variable in variables)
        return list({model.number: model for model in found if model is not None}.values())

    def module(self, layer: Any) -> tuple[TrainedModel, Place] | None:
        """A known module's model and place."""
        return next(((model, model.modules[id(layer)]) for model in self.known if id(layer) in model.modules), None)

    def _place(self, model: TrainedModel, new: Sequence[Any]) -> None:
        missing = {id(each): each for each in new}
        roots = self._roots(missing)
        several = len(roots) + len(model.roots) > 1
        for root in roots:
            members = modules_of(root)
            assert members is not None
            prefix = path_in(model.number, _name_of(root, model.roots) if several else "")
            model.roots.append(root)
            for module, place in members.modules(root):
                model.modules.setdefault(id(module), _placed(place, prefix, model.number, len(model.modules)))
            places = {place.path: place for place in model.modules.values()}
            for variable, parameter in members.parameters(root):
                if id(variable) in missing or id(variable) not in self._owners:
                    owner = places.get(_joined(prefix, parameter.place.path), parameter.place)
                    self._own(model, variable, replace(parameter, name=_joined(prefix, parameter.name), place=owner))
                    missing.pop(id(variable), None)
        names = {place.name for _, place in model.parameters.values()}
        for variable in missing.values():
            name = path_in(model.number, re.sub(r":\d+$", "", variable.name).replace("/", "."))
            number, first = 1, name
            while name in names:
                number += 1
                name = f"{first}_{number}"
            names.add(name)
            leaf = name.rpartition(".")[2]
            word = "bias" if leaf.rstrip("0123456789_") in ("b", "bias") and len(variable.shape) <= 1 else leaf
            kind = ModuleKind.LINEAR if len(variable.shape) == 2 else ModuleKind.OTHER
            place = Place(name, "Variable", len(model.parameters), model.number, kind)
            self._own(model, variable, ParameterPlace(name, word, place, -1))

    def _own(self, model: TrainedModel, variable: Any, place: ParameterPlace) -> None:
        model.parameters[id(variable)] = variable, place
        self._owners[id(variable)] = model

    def _roots(self, missing: dict[int, Any]) -> list[Any]:
        """Few candidates that have the most of these variables, the smaller one of two equal ones."""
        rows = []
        for candidate in [each() for each in list(self._candidates.values())]:
            members = None if candidate is None else modules_of(candidate)
            if members is not None:
                have = {id(variable) for variable, _ in members.parameters(candidate)}
                rows.append((candidate, have))
        found, left = [], set(missing)
        while left and rows:
            candidate, have = max(rows, key=lambda row: (len(row[1] & left), -len(row[1] - left)))
            if not have & left:
                break
            found.append(candidate)
            left -= have
        return found


def _placed(place: Place, prefix: str, number: int, index: int) -> Place:
    return replace(place, path=_joined(prefix, place.path), model=number, index=index)


def _name_of(root: Any, others: Sequence[Any]) -> str:
    """A name for one of several roots of a model: that of its class, or that which the script gave it."""
    own = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(root).__name__).lower()
    given = str(getattr(root, "name", own))
    name = own if re.fullmatch(rf"{own}(_\d+)?", given) else given
    same = sum(1 for other in others if type(other) is type(root))
    return f"{name}_{same}" if same and name == own else name


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
