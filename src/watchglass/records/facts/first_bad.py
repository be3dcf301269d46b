"""Facts about values that are not finite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from watchglass.records.fact import DeclaredFact
from watchglass.records.operation_faults import FAULT_KINDS, OperationFault


@dataclass(frozen=True)
class NonfiniteLoss(DeclaredFact):
    """A backward began from a loss that is not finite.

    Attributes:
        value: It, "nan" or "inf".
    """

    KIND = "nonfinite_loss"
    WHEN = "each"

    value: str = ""


@dataclass(frozen=True)
class NonfiniteGradients(DeclaredFact):
    """An update uses gradients that are not finite.

    Attributes:
        tensors, count: Names of the gradients, and how many there are.
        first_in_backward: The one that the backward made first.
    """

    KIND = "nonfinite_gradients"
    WHEN = "each that is observed"

    tensors: tuple[str, ...] = ()
    count: int = 0
    first_in_backward: str | None = None


@dataclass(frozen=True)
class FirstBadPlace(DeclaredFact):
    """Where values were first not finite: see [the first bad module](first-bad-module.md).

    Attributes:
        level: How it was found: `flags`, `graph`, `rerun` or `next_steps`.
        where: `forward`, `backward`, `loss`, `weights` or `input`.
        module, module_type, tensor: The module, its class, and the tensor; "" for none.
        sentence: It in words.
        refused: Why no better search was made; "" if it was.
        operation: The operation at fault: its `kind`, `operation`, `backward`, `low`, `high`, `harmless`, `place`,
            `code` and further numbers.
        verified: How a rerun was verified.
        optimizer, updated_at: The optimizer that last wrote the weights, and its step.
        step: The step of an answer of level `next_steps`.
    """

    KIND = "first_bad_module"

    level: str = ""
    where: str = ""
    module: str = ""
    module_type: str = ""
    tensor: str = ""
    sentence: str = ""
    refused: str = ""
    operation: Mapping[str, Any] | None = None
    verified: str | None = None
    optimizer: str | None = None
    updated_at: int | None = None
    step: int | None = None

    @property
    def fault(self) -> OperationFault | None:
        """The operation at fault, without the numbers of its sentence; None where it is not known."""
        found = self.operation or {}
        if found.get("kind") not in FAULT_KINDS:
            return None
        words = (found.get(name) for name in ("operation", "place", "code"))
        operation, place, code = (each if isinstance(each, str) else "" for each in words)
        return OperationFault(str(found["kind"]), operation, place=place, code=code)


@dataclass(frozen=True)
class ModulesExamined(DeclaredFact):
    """In some of the next steps every module is examined, until there is a `first_bad_module` of `next_steps`.

    Attributes:
        steps: Their number at most.
    """

    KIND = "modules_examined"

    steps: int = 0
