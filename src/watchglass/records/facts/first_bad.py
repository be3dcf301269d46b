"""Facts about values that are not finite."""

from __future__ import annotations

from watchglass.records.fact import DeclaredFact
from watchglass.records.operation_faults import OperationFault


class NonfiniteLoss(DeclaredFact, kind="nonfinite_loss"):
    """A backward began from a loss that is not finite."""

    value: str = ""


class NonfiniteGradients(DeclaredFact, kind="nonfinite_gradients"):
    """An update uses gradients that are not finite."""

    tensors: tuple[str, ...] = ()
    count: int = 0
    first_in_backward: str | None = None


class FirstBadPlace(DeclaredFact, kind="first_bad_module"):
    """Where values were first not finite."""

    level: str = ""  #: `flags`, `graph`, `rerun`, `step` or `next_steps`
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


class ModulesExamined(DeclaredFact, kind="modules_examined"):
    """In some of the next steps every module is examined, until there is a place found by `next_steps`."""

    steps: int = 0
