"""Facts that describe a training run: its models and optimizers, where they begin, and what of them is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from watchglass.records.fact import DeclaredFact


@dataclass(frozen=True)
class ModelDescription(DeclaredFact):
    """A model, or all models that a run begins with.

    Attributes:
        module_types, module_kinds: Class and kind of each module, by path.
        parameters, devices: Number of parameters, and types of their devices.
        roots: Classes of the outermost modules, or the type of a booster.
        compiled: Whether any of them is compiled.
        variables: By number of a model, the name that the script has for it.
        dropout: Probabilities of modules that drop elements, by path.
        padding: Tokens of embeddings that are padding, by path.
        trees, objective, features: Of boosted trees: that they are, what they minimise, and names of the features.
        model: Number of the model, if the fact is about one of several.
    """

    KIND = "model"

    module_types: Mapping[str, str] | None = None
    module_kinds: Mapping[str, str] | None = None
    parameters: int | None = None
    devices: tuple[str, ...] | None = None
    roots: tuple[str, ...] = ()
    compiled: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    dropout: Mapping[str, float] = field(default_factory=dict)
    padding: Mapping[str, int] = field(default_factory=dict)
    trees: bool | None = None
    objective: str | None = None
    features: tuple[str, ...] | None = None
    model: int | None = None


@dataclass(frozen=True)
class OptimizerSettings(DeclaredFact):
    """The settings of an optimizer, when it first steps.

    Attributes:
        type: Its class.
        groups: Settings of each group that are numbers or texts, by name: `lr`, `momentum`, `weight_decay` ...
        model: Number of the model, if there are several.
    """

    KIND = "optimizer"

    type: str = ""
    groups: tuple[Mapping[str, Any], ...] = ()
    model: int | None = None

    def setting(self, name: str) -> Any:
        """A setting of the first group; None where it has none of this name."""
        return self.groups[0].get(name) if self.groups else None


@dataclass(frozen=True)
class PlannedSteps(DeclaredFact):
    """The number of training steps that the script plans.

    Attributes:
        steps, source: It, and the variables that show it, or "as given".
    """

    KIND = "planned_steps"

    steps: int | None = None
    source: str = ""


@dataclass(frozen=True)
class StageBegin(DeclaredFact):
    """Another stage of the training of a model begins with this step.

    A new optimizer of the same class for the same parameters, and other data, count after 80 steps only.

    Attributes:
        begins_with: With what: `parameters` (others are updated, as after a part was unfrozen or a head replaced),
            `optimizer` (another one), or `data` (a loader of another data set).
        trained: How many parameters are trained.
        model: Number of the model, if there are several.
    """

    KIND = "stage"

    begins_with: str
    trained: int = 0
    model: int | None = None


@dataclass(frozen=True)
class InitialWeight:
    """A weight before its first update; :class:`Initialization` has what its fields mean."""

    shape: tuple[int, ...] = ()
    fan_in: int = 0
    fan_out: int = 0
    identical_rows: float | None = None
    constant: bool | None = None
    std: float | None = None


@dataclass(frozen=True)
class Initialization(DeclaredFact):
    """How alike the rows of each weight are, and their spread, before the first update.

    Attributes:
        tensors: By name of a weight with two or more axes: `shape`, `fan_in`, `fan_out`, `identical_rows` (share of
            rows that equal the first, 0..1), `constant`, `std`.
        model: Number of the model, if there are several.
    """

    KIND = "initialization"
    FROM = "the weights of an optimizer"
    WHEN = "the first update, and that of a model which is first trained later, where the step is captured"
    COST = "one pass over at most a million elements of each weight, before its first update"

    tensors: Mapping[str, InitialWeight] = field(default_factory=dict)
    model: int | None = None


@dataclass(frozen=True)
class CapturePlan(DeclaredFact):
    """Collections with their modes and intervals, and the recorded facts.

    Rules learn from it that their data will never come ([needs](rules-engine.md#needs)).

    Attributes:
        collections: For `train`, `eval` and `predict` a list of `name`, `roles`, `tags`, `narrowed`, `interval` (null:
            the budget chooses), `start`, `end`, `steps` (at most 64).
        facts: Kinds of facts that are recorded.
        keeps_tensors: Whether this worker records tensors.
        overhead_budget: Share of the time that capture may cost.
    """

    KIND = "capture_plan"
    WHEN = "with the first training step, and again when a script changes its settings"

    collections: Mapping[str, tuple[Mapping[str, Any], ...]]
    facts: tuple[str, ...]
    keeps_tensors: bool
    overhead_budget: float | None = None
