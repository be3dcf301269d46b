"""Facts about a training run: its models and optimizers, where they begin, and what of them is captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from watchglass.records.declared import Declared
from watchglass.records.fact import DeclaredFact


class ModelDescription(DeclaredFact, kind="model"):
    """A model, or all models that a run begins with."""

    module_types: Mapping[str, str] | None = None  #: by path
    module_kinds: Mapping[str, str] | None = None  #: by path
    parameters: int | None = None
    devices: tuple[str, ...] | None = None
    roots: tuple[str, ...] = ()
    compiled: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)  #: by number of the model
    dropout: Mapping[str, float] = field(default_factory=dict)  #: by path
    padding: Mapping[str, int] = field(default_factory=dict)  #: by path
    framework: str = ""  #: whose model it is, by import name; "" where PyTorch's words describe it
    trees: bool | None = None
    objective: str | None = None
    features: tuple[str, ...] | None = None
    model: int | None = None


class OptimizerSettings(DeclaredFact, kind="optimizer"):
    """The settings of an optimizer, when it first steps."""

    type: str = ""
    groups: tuple[Mapping[str, Any], ...] = ()
    model: int | None = None

    def setting(self, name: str) -> Any:
        """A setting of the first group; None where it has none of this name."""
        return self.groups[0].get(name) if self.groups else None


class PlannedSteps(DeclaredFact, kind="planned_steps"):
    """The number of training steps that the script plans."""

    steps: int | None = None
    source: str = ""


class StageBegin(DeclaredFact, kind="stage"):
    """Another stage of the training of a model begins with this step."""

    begins_with: str  #: `parameters`, `optimizer` or `data`
    trained: int = 0
    model: int | None = None


class InitialWeight(Declared):
    """A weight before its first update."""

    shape: tuple[int, ...] = ()
    fan_in: int = 0
    fan_out: int = 0
    identical_rows: float | None = None  #: 0..1
    constant: bool | None = None
    std: float | None = None


class Initialization(DeclaredFact, kind="initialization", needed_by="rules"):
    """How alike the rows of each weight are, and their spread, before the first update."""

    COST = "one pass over at most a million elements of each weight, before its first update"

    tensors: Mapping[str, InitialWeight] = field(default_factory=dict)
    model: int | None = None


class PlannedCollection(Declared):
    """A collection of a capture plan, in one mode."""

    name: str
    roles: tuple[str, ...]
    tags: tuple[str, ...]
    narrowed: bool = False
    interval: int | None = None  #: steps; None if the budget chooses
    start: int = 0
    end: int | None = None
    steps: tuple[int, ...] = ()


class CapturePlan(DeclaredFact, kind="capture_plan"):
    """Collections with their modes and intervals, and the recorded facts."""

    collections: Mapping[str, tuple[PlannedCollection, ...]]  #: by mode
    facts: tuple[str, ...]
    keeps_tensors: bool
    overhead_budget: float | None = None  #: 0..1 of the time
