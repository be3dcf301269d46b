"""The time that a step spent in each module of a model, as a fact of the step."""

from __future__ import annotations

from watchglass.records.declared import InColumns
from watchglass.records.fact import DeclaredFact


class ModuleSeconds(InColumns):
    """One module in one step; times without those of its submodules, in seconds.

    Attributes:
        module: Its path; "" for the model.
        module_type: Its type.
        model: Number of its model.
        calls: Number of its calls.
        forward_s: Time of its forwards.
        backward_s: Time of its backwards.
    """

    module: str
    module_type: str
    model: int
    calls: int
    forward_s: float
    backward_s: float


class UntimedModules(DeclaredFact, kind="modules_not_timed"):
    """A model whose modules were to be timed and are not."""

    model: str
    reason: str


class StepModules(DeclaredFact, kind="module_times"):
    """The modules of one step."""

    modules: tuple[ModuleSeconds, ...]
    on_device: bool = False
