"""Fp8Range: values of float8 outside its range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.stats import edges
from watchglass.tables import Statistics, StepView


class _Format(NamedTuple):
    """A kind of float8: its largest number, and its smallest one of full precision."""

    largest: float
    normal: float


#: Micikevicius et al., FP8 Formats for Deep Learning (2209.05433); PyTorch documentation of the ``fnuz`` variants.
_FORMATS = {
    "float8_e4m3fn": _Format(448.0, 2.0**-6),
    "float8_e5m2": _Format(57344.0, 2.0**-14),
    "float8_e4m3fnuz": _Format(240.0, 2.0**-7),
    "float8_e5m2fnuz": _Format(57344.0, 2.0**-15),
}
#: Inputs of modules are not captured by default, and most are the output of another module.
_ROLES = (Role.OUTPUT, Role.WEIGHT, Role.GRADIENT)


class Fp8Range(Rule):
    """Values of float8 overflow, saturate at the largest number, or vanish.

    Looks at: outputs of modules, weights and gradients of float8. The rule cannot see a tensor that is cast to float8
        and back inside a forward, as libraries for float8 do in their linear layers.
    Fires when: in `window` captures in a row one of these holds:
        * More than `overflow` of the elements are infinite or pile up at the largest number of their dtype. From
          `overflow_error` on it is an error. Elements pile up there if more of them are in the last half of a power of
          two than in the half before it. A smaller pile does not show: of normally distributed values a tenth may
          saturate without a finding.
        * More than `underflow` of the elements that are not zero lie below the smallest number of full precision.
    Usual causes: no scale, a scale that is stale or from another tensor, outliers in a few channels.
    What to try: a scale from the tensor's own maximum, e5m2 for gradients, scales by row or block.
    Costs: nothing in addition to the statistics that are captured by default.
    Source: Micikevicius et al., FP8 Formats for Deep Learning (2209.05433); house: the limits.
    """

    needs = tuple(
        Needs(
            role=role, statistics=("histogram", "count", "zero", "posinf", "neginf", "min", "max"), optional=True,
            why="to see values of float8 at the ends of its range",
        )
        for role in _ROLES
    )  # fmt: skip

    overflow: float = parameter(0.01, help="share of elements at or beyond the largest number", gt=0, lt=1)
    overflow_error: float = parameter(0.1, help="the same, from which it is an error", gt=0, le=1)
    underflow: float = parameter(0.1, help="share of nonzero elements without full precision", gt=0, lt=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    seen: bool = state(bool)
    #: By tensor, captures in a row.
    over: dict[str, int] = state(dict)
    under: dict[str, int] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings about the tensors of float8."""
        if view.mode is not Mode.TRAIN:
            return
        for role in _ROLES:
            rows = _in_float8(view.statistics(role))
            for row, name in enumerate(rows.names):
                self.seen = True
                yield from self._tensor(view, rows, row, name)

    def applicable(self, view: StepView) -> str:
        """Not where nothing is of float8."""
        return "" if self.seen else "nothing that was captured is of float8"

    def _tensor(self, view: StepView, rows: Statistics, row: int, name: str) -> Iterable[Finding]:
        dtype = rows.tensors[row].dtype
        over, under = _shares(rows, row, _FORMATS[dtype])
        self.over[name] = self.over.get(name, 0) + 1 if over > self.overflow else 0
        self.under[name] = self.under.get(name, 0) + 1 if under > self.underflow else 0
        if self.over[name] >= self.window:
            severe = over >= self.overflow_error
            yield self._finding(
                view, name, Severity.ERROR if severe else Severity.WARNING, "eight_bits_overflow", over,
                self.overflow_error if severe else self.overflow,
                f"{100 * over:.3g} % of {name} are infinite or at the largest number of {dtype} at step "
                f"{view.mode_step}",
            )  # fmt: skip
        if self.under[name] >= self.window:
            zero = float(rows.zero[row] / rows.count[row])
            yield self._finding(
                view, name, Severity.WARNING, "eight_bits_underflow", under, self.underflow,
                f"{100 * zero:.3g} % of {name} are zero, and {100 * under:.3g} % of the others are below the smallest "
                f"number of full precision of {dtype} at step {view.mode_step}",
            )  # fmt: skip

    def _finding(
        self, view: StepView, name: str, severity: Severity, symptom: str, value: float, limit: float, message: str
    ) -> Finding:
        return self.finding(
            view, severity=severity, subject=f"{symptom} {name}", tensors=[name], value=value, limit=limit,
            message=message, symptoms=(symptom,), evidence=signals.evidence(view),
        )  # fmt: skip


def _in_float8(rows: Statistics) -> Statistics:
    """The rows of tensors of float8."""
    return rows.part(
        "float8", lambda: np.array([n for n, info in enumerate(rows.tensors) if info.dtype in _FORMATS], np.int64)
    )


def _shares(rows: Statistics, row: int, kind: _Format) -> tuple[float, float]:
    """Share of all elements beyond or at the end of the range, and of those not zero without full precision."""
    elements = float(rows.count[row])
    infinite = float(rows.posinf[row] + rows.neginf[row]) / elements if elements else 0.0
    bins = rows.histograms.take(np.array([row]))
    seen = float(bins.seen[0])
    if not seen:
        return infinite, 0.0
    low, high = edges(bins.keys)
    least = np.minimum(np.abs(low), np.abs(high))
    last = 1.5 * 2.0 ** math.floor(math.log2(kind.largest))
    at_end, before = _within(least, bins.counts, last, math.inf), _within(least, bins.counts, last / 1.5, last)
    reached = max(abs(float(rows.min[row])), abs(float(rows.max[row]))) == kind.largest
    # The largest number may be reached by design, by few elements: a scale maps the maximum of a tensor to it.
    saturated = at_end / seen if reached and at_end > before else 0.0
    nonzero = float(bins.counts.sum())
    small = _within(least, bins.counts, 0.0, kind.normal)
    return infinite + saturated, small / nonzero if nonzero else 0.0


def _within(least: npt.NDArray[np.float64], counts: npt.NDArray[np.uint64], low: float, high: float) -> float:
    """Elements in the bins whose magnitudes begin in [low, high)."""
    return float(counts[(least >= low) & (least < high)].sum())
