"""Facts about values that are not finite."""

from __future__ import annotations

from watchglass.records.fact import DeclaredFact
from watchglass.records.operation_faults import OperationFault


class NonfiniteLoss(DeclaredFact):
    """A backward began from a loss that is not finite."""

    KIND = "nonfinite_loss"

    value: str = ""


class NonfiniteGradients(DeclaredFact):
    """An update uses gradients that are not finite."""

    KIND = "nonfinite_gradients"

    tensors: tuple[str, ...] = ()
    count: int = 0
    first_in_backward: str | None = None


class FirstBadPlace(DeclaredFact):
    """Where values were first not finite."""

    KIND = "first_bad_module"

    level: str = ""  #: `flags`, `graph`, `rerun` or `next_steps`
    where: str = ""  #: `forward`, `backward`, `loss`, `weights` or `input`
    module: str = ""
    module_type: str = ""
    tensor: str = ""
    sentence: str = ""
    refused: str = ""
    operation: OperationFault | None = None
    verified: str | None = None
    optimizer: str | None = None
    updated_at: int | None = None
    step: int | None = None


class ModulesExamined(DeclaredFact):
    """In some of the next steps every module is examined, until there is a place found by `next_steps`."""

    KIND = "modules_examined"

    steps: int = 0
