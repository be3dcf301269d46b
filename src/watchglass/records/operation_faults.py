"""Operations that turn finite numbers into others, in neutral words: what went wrong, with which numbers, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, NamedTuple

from watchglass.records.declared import Declared


class FaultKind(NamedTuple):
    """One way in which an operation makes values that are not finite."""

    says: str  #: A sentence without its end; braces hold ``operation``, ``values`` or numbers of the fault.
    harmless: bool = False  #: Whether its gradients are zero, so that an update with them harms no weight.


#: Why a search for the first bad module is refused where compiled code hides the operations (``refused``).
COMPILED_MODEL = "the model is compiled"

#: By kind; each is also the name of a symptom, whose cause has the cure.
FAULT_KINDS: Mapping[str, FaultKind] = {
    "root_at_zero": FaultKind("{operation} was given zero{values}, where its gradient is infinite"),
    "root_of_negative": FaultKind("{operation} was given negative values{values}, which have no real root"),
    "end_of_domain": FaultKind(
        "{operation} was given the end of its domain{values}, where the value or its gradient is infinite"
    ),
    "outside_domain": FaultKind("{operation} was given values outside its domain{values}"),
    "log_of_zero": FaultKind("{operation} was given zero{values}, whose logarithm is negative infinity"),
    "log_of_negative": FaultKind("{operation} was given negative values{values}, which have no real logarithm"),
    "log_of_softmax": FaultKind("{operation} was given a softmax with probabilities of zero{values}"),
    "log_of_sigmoid": FaultKind("{operation} was given a sigmoid that had reached 0 or 1{values}"),
    "division_by_zero": FaultKind("{operation} was given a divisor of zero{values}"),
    "mean_of_nothing": FaultKind("a sum was divided by zero, as in a mean over no elements"),
    "mean_of_no_rows": FaultKind("a mean over no elements was taken", harmless=True),
    "labels_all_ignored": FaultKind(
        "all {labels} labels are the ignored label {ignored}, so the loss is a mean over no elements", harmless=True
    ),
    "labels_weigh_nothing": FaultKind("the weights of all {labels} labels are zero, so their mean divides by zero"),
    "exponential_overflow": FaultKind("{operation} was given values above {limit}, whose exponential is infinite"),
    "float16_overflow": FaultKind("the result of {operation}{values} is beyond 65504, the largest number of float16"),
    "untaken_branch": FaultKind(
        "{operation} in the branch that `where` did not take has an infinite gradient{values}, and zero times it is NaN"
    ),
    "row_masked_whole": FaultKind("{rows} of {all_rows} rows of {operation} are masked whole"),
    "target_too_long": FaultKind(
        "{targets} of {all_targets} targets of {operation} do not fit into their inputs "
        "(a target of {target} labels, an input of {input} steps)"
    ),
    "spread_of_one": FaultKind("{operation} was taken of {elements} element, divided by one less than their number"),
    "equal_eigenvalues": FaultKind(
        "{operation} was given equal eigenvalues or singular values, where its gradient is infinite"
    ),
    "product_overflow": FaultKind("{operation} of finite values{values} is beyond the largest number of {dtype}"),
}  # fmt: skip


class OperationFault(Declared):
    """An operation that was the first to make values that are not finite."""

    kind: str  #: One of :data:`FAULT_KINDS`.
    operation: str  #: The operation, ``"sqrt"``.
    backward: bool = False  #: Whether its result is finite and only its gradient is not.
    low: float | None = None  #: The smallest value that it was given; None where that is not known.
    high: float | None = None  #: The largest.
    numbers: Mapping[str, Any] = field(default_factory=dict)  #: Further numbers and words of its sentence.
    place: str = ""  #: File and line of the script, ``"train.py, line 31"``, "" where that is not known.
    code: str = ""  #: That line.

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"the kind of a fault must be one of {', '.join(FAULT_KINDS)} but got {self.kind!r}")

    @property
    def harmless(self) -> bool:
        """Whether its gradients are zero."""
        return FAULT_KINDS[self.kind].harmless

    @property
    def sentence(self) -> str:
        """It in words, without a full stop."""
        known = self.low is not None and self.high is not None
        values = f" (values from {self.low:.3g} to {self.high:.3g})" if known else ""
        said = FAULT_KINDS[self.kind].says.format(operation=self.operation, values=values, **self.numbers)
        at = ""
        if self.place:
            at = f" ({self.place}: {self.code})" if self.code else f" ({self.place})"
        end = "; the gradients are zero, so the weights are unharmed" if self.harmless else ""
        begin = "the loss is finite, but " if self.backward else ""
        return f"{begin}{said}{at}{end}"
