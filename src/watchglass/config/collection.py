"""Collections: named groups of tensors, with what is kept of them and when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from watchglass.config.parameters import ParameterError, parameter, suggest, validate, values
from watchglass.config.saving import SaveSettings
from watchglass.errors import InvalidValueError
from watchglass.records import ModuleKind, Role


class BuiltInCollection(NamedTuple):
    """What a collection that exists in every run holds."""

    holds: str  #: What that is, for people.
    roles: tuple[Role, ...] = ()  #: Its tensors have one of these; empty for any.
    #: Where given, its tensors carry one of these instead, set by an adapter from the structure of the model. Roles are
    #: then those in which they are found without looking for the tag.
    tags: tuple[str, ...] = ()
    every_step: bool = False  #: Its values are recorded at every step, independent of the plan.
    #: Whether few models have anything of the kind, so that nothing is reported where it matches nothing.
    rare: bool = False


#: Collections that exist in every run.
BUILT_IN_COLLECTIONS: dict[str, BuiltInCollection] = {
    "all": BuiltInCollection("every tensor the run produces"),
    "default": BuiltInCollection("what a script saves under no other collection", (Role.CUSTOM,)),
    "weights": BuiltInCollection("parameters other than biases, before the update", (Role.WEIGHT,)),
    "biases": BuiltInCollection("biases, before the update", (Role.BIAS,)),
    "gradients": BuiltInCollection("gradients as the optimizer sees them", (Role.GRADIENT,)),
    "updates": BuiltInCollection("what an update changed in each parameter", (Role.UPDATE,)),
    "optimizer_variables": BuiltInCollection("state of the optimizers, by their own names", (Role.OPTIMIZER_STATE,)),
    "inputs": BuiltInCollection("inputs of modules", (Role.INPUT,)),
    "outputs": BuiltInCollection("outputs of modules", (Role.OUTPUT,)),
    "layers": BuiltInCollection("inputs and outputs of modules", (Role.INPUT, Role.OUTPUT)),
    "labels": BuiltInCollection("targets of loss functions", (Role.LABEL,)),
    "predictions": BuiltInCollection("predictions that loss functions get", (Role.PREDICTION,)),
    "losses": BuiltInCollection("losses", (Role.LOSS,), every_step=True),
    "metrics": BuiltInCollection(
        "accuracy, norms, learning rates and what a script saves", (Role.METRIC,), every_step=True
    ),
    "learning_rate": BuiltInCollection("learning rates", (), ("learning_rate",), every_step=True),
    "model_input": BuiltInCollection("inputs of the model", (), ("model_input",)),
    "model_output": BuiltInCollection("outputs of the model", (Role.OUTPUT,), ("model_output",)),
    "input_image": BuiltInCollection("inputs of the model that are images", (), ("input_image",)),
    "input_sequence": BuiltInCollection("inputs of the model that are sequences of tokens", (), ("input_sequence",)),
    "input_gradients": BuiltInCollection("gradients with respect to floating-point inputs", (), ("input_gradients",)),
    "relu_input": BuiltInCollection("inputs of ReLU", (), ("relu_input",)),
    "relu_output": BuiltInCollection("outputs of ReLU", (Role.OUTPUT,), ("relu_output",)),
    "tanh_input": BuiltInCollection("inputs of tanh", (), ("tanh_input",)),
    "sigmoid_input": BuiltInCollection("inputs of sigmoid", (), ("sigmoid_input",)),
    "attention": BuiltInCollection("largest logit and entropy of each attention head", (), ("attention",)),
    "float8_casts": BuiltInCollection("what casts to float8 lose, by module", (), ("float8_casts",), rare=True),
    "router": BuiltInCollection("load and logits of routers in mixtures of experts", (), ("router",), rare=True),
    "logsumexp": BuiltInCollection("log-sum-exp of the logits that a loss function gets", (), ("logsumexp",)),
    "feature_importance": BuiltInCollection("importance of each feature to boosted trees", (), ("feature_importance",)),
    "trees": BuiltInCollection("depth and largest node number of boosted trees", (), ("trees",)),
}

#: Prefix of collections that rules need and that are a part of a built-in one: ``"rules.outputs.linear"``.
PART_OF = "rules."

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_SELECTORS = ("include_regex", "modules", "module_kinds", "module_types", "roles", "tensors")


@dataclass(frozen=True)
class Collection(SaveSettings):
    """A named group of tensors, with what is recorded of them and when.

    A built-in name (:data:`BUILT_IN_COLLECTIONS`) selects by what a tensor is, and selectors narrow it; any other name
    needs a selector. Of several kinds of selectors all must match, of one kind any; ``include_regex`` and ``tensors``
    are one kind, the name. A setting that is None is that of the run (:class:`~watchglass.config.SessionConfig`).

    Attributes:
        name: Built-in name, or a new one together with a selector.
        include_regex: Regular expressions searched (not matched from the start) in tensor names.
        modules: Dotted paths of modules, each with everything inside it; ``*`` matches any part of one name between
            dots: ``"layers.*.attention"``.
        module_kinds: Kinds of modules, ``"rectifier"``, in any framework.
        module_types: Class names of modules, ``"ReLU"``.
        roles: Roles of tensors, ``"gradient"``.
        tensors: Names of tensors.
        save_interval: Keep every step that is a multiple of it; None lets the overhead budget choose, in training.
        start_step: First step that the interval may keep.
        end_step: First step that the interval may no longer keep; 0 keeps nothing.
        save_steps: Steps that are kept in addition to those of the interval, also before start and after end.
        modes: The four settings above for ``"train"``, ``"eval"`` and ``"predict"``. Only modes that are named here or
            for the whole training are captured in addition to training.
        reductions: Exact numbers in addition to the statistics: ``"median"``, ``"prod"``, ``"abs_min"`` and so on.
        save_histogram: Keep a histogram with the statistics.
        save_raw: Keep the tensors themselves too, not only their statistics.
        save_shape: Keep the shape at every capture, not only the first.

    Raises:
        InvalidValueError: A name that cannot be a collection's, a regular expression that does not compile, an unknown
            mode, role or reduction, steps that contradict each other.
    """

    name: str
    include_regex: tuple[str, ...] = parameter((), split=False)
    modules: tuple[str, ...] = parameter(())
    module_kinds: tuple[ModuleKind, ...] = parameter(())
    module_types: tuple[str, ...] = parameter(())
    roles: tuple[Role, ...] = parameter(())
    tensors: tuple[str, ...] = parameter(())

    def __post_init__(self) -> None:
        owner = f"collection {self.name}"
        if not _NAME.fullmatch(str(self.name)):
            raise InvalidValueError(
                "a collection's name must be a letter followed by up to 63 letters, digits, _ . or - "
                f"but got {self.name!r}"
            )
        validate(self, owner)
        check_patterns(self.include_regex, owner)
        if self.name not in BUILT_IN_COLLECTIONS and not self.narrows:
            near = suggest(self.name, BUILT_IN_COLLECTIONS)
            others = "" if near else f", or use one of {', '.join(sorted(BUILT_IN_COLLECTIONS))}"
            raise InvalidValueError(
                f"collection {self.name!r} selects nothing{near}; set {', '.join(_SELECTORS)}{others}"
            )
        self.check_modes(owner)

    @property
    def narrows(self) -> bool:
        """Whether it has selectors."""
        return any(getattr(self, name) for name in _SELECTORS)

    @property
    def built_in(self) -> BuiltInCollection | None:
        """The built-in collection of this name; None for a new name."""
        if self.name == "default" and self.narrows:
            return None  # as in SageMaker Debugger: these tensors too, whatever they are
        return BUILT_IN_COLLECTIONS.get(self.name)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that its tensors carry, empty where it does not select by tag."""
        return self.built_in.tags if self.built_in is not None else ()

    @property
    def looks_at(self) -> frozenset[Role]:
        """Roles in which its tensors are found; none for tensors that have to be looked for by tag."""
        own = self.built_in.roles if self.built_in is not None else ()
        possible = frozenset(own) if own or self.tags else frozenset(Role)
        return possible & frozenset(self.roles) if self.roles else possible

    def selects(
        self, name: str, role: Role, module: str = "", module_type: str = "", tags: tuple[str, ...] = (),
        module_kind: ModuleKind = ModuleKind.OTHER,
    ) -> bool:  # fmt: skip
        """Whether a tensor belongs to this collection.

        Args:
            name: Its name.
            role: Its role.
            module: Dotted path of its module, "" for none.
            module_type: Class name of its module, "" for none.
            tags: Tags that an adapter gives it; also the name of a collection that a script saves it under.
            module_kind: What its module is.
        """
        built_in = self.built_in
        if built_in is None:
            if self.name in tags:
                return True
        elif built_in.tags:
            if not any(tag in tags for tag in built_in.tags):
                return False
        elif built_in.roles and role not in built_in.roles:
            return False
        return (
            (not self.roles or role in self.roles)
            and (not self.module_kinds or module_kind in self.module_kinds)
            and (not self.module_types or module_type in self.module_types)
            and (not self.modules or any(_lies_in(module, pattern) for pattern in self.modules))
            and (not (self.include_regex or self.tensors) or self._names(name))
        )

    def _names(self, name: str) -> bool:
        return name in self.tensors or any(re.search(pattern, name) for pattern in self.include_regex)

    def to_json(self) -> dict[str, Any]:
        """The name and every parameter that differs from its default."""
        return {"name": self.name, **values(self)}


def check_patterns(patterns: tuple[str, ...], owner: str) -> None:
    """Refuse regular expressions that do not compile.

    Raises:
        ParameterError: One of them does not; the message names the place.
    """
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ParameterError(owner, "include_regex", f"{pattern!r} does not compile: {error}") from None


#: Collections that are recorded by default, as statistics.
DEFAULT_COLLECTIONS = tuple(
    Collection(name) for name in ("weights", "biases", "gradients", "updates", "outputs", "relu_output", "router")
)


def _lies_in(module: str, pattern: str) -> bool:
    """Whether a module is the one of a pattern, or inside it."""
    path, wanted = module.split("."), pattern.split(".")
    return len(path) >= len(wanted) and all(map(fnmatchcase, path, wanted))
