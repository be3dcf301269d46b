"""Fp8Range: values of float8 outside its range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
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
#: Names of what a cast loses, see docs/configuration.md.
_CAST = re.compile(
    r"^(?:(?P<module>.*)\.)?cast_(?P<what>overflow|underflow)(?P<backward>\.backward)?"
    rf"\.(?P<dtype>{'|'.join(_FORMATS)})\.\d+$"
)
_UNSEEN = (
    "nothing that was captured is of float8, and no cast to it was seen: compiled code and kernels of other libraries "
    "do not show theirs"
)
#: Inputs of modules are not captured by default, and most are the output of another module.
_ROLES = (Role.OUTPUT, Role.WEIGHT, Role.GRADIENT)


class Fp8Range(Rule):
    """Values of float8 overflow, saturate at the largest number, or vanish.

    Looks at: outputs of modules, weights and gradients of float8; and what `Tensor.to` casts to float8 in a forward or
        a backward. The rule cannot see casts by compiled code, by kernels of other libraries, or of a tensor of another
        class than PyTorch's own.
    Fires when: in `window` captures in a row one of these holds for a tensor of float8:
        * More than `overflow` of the elements are infinite or pile up at the largest number of their dtype. From
          `overflow_error` on it is an error. Elements pile up there if more of them are in the last half of a power of
          two than in the half before it. A smaller pile does not show: of normally distributed values a tenth may
          saturate without a finding.
        * More than `underflow` of the elements that are not zero lie below the smallest number of full precision.

        Or one of these for a cast:

        * More than `overflow` of the finite elements are at or beyond the largest number, where a clamp before the cast
          puts them too. From `overflow_error` on it is an error.
        * More than `vanished` of the elements that are not zero become zero.
    Usual causes: no scale, a scale that is stale or from another tensor, outliers in a few channels.
    What to try: a scale from the tensor's own maximum, e5m2 for gradients, scales by row or block.
    Costs: a few passes over each tensor that is cast, at captured steps; nothing else in addition to the statistics
        that are captured by default.
    Source: Micikevicius et al., FP8 Formats for Deep Learning (2209.05433); house: the limits.
    """

    needs = (
        *(
            Needs(
                role=role, statistics=("histogram", "count", "zero", "posinf", "neginf", "min", "max"), optional=True,
                why="to see values of float8 at the ends of its range",
            )
            for role in _ROLES
        ),
        Needs(collection="float8_casts", statistics=("mean",), optional=True, why="to see what casts to float8 lose"),
    )  # fmt: skip
    modes = (Mode.TRAIN,)

    overflow: float = parameter(0.01, help="share of elements at or beyond the largest number", gt=0, lt=1)
    overflow_error: float = parameter(0.1, help="the same, from which it is an error", gt=0, le=1)
    underflow: float = parameter(0.1, help="share of nonzero elements without full precision", gt=0, lt=1)
    vanished: float = parameter(0.1, help="share of nonzero elements that a cast makes zero", gt=0, lt=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    seen: bool = state(bool)
    #: By tensor, captures in a row.
    over: Streaks = state(Streaks)
    under: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings about the tensors of float8."""
        for role in _ROLES:
            rows = _in_float8(view.statistics(role))
            for row, name in enumerate(rows.names):
                self.seen = True
                yield from self._tensor(view, rows, row, name)
        casts = view.statistics(collection="float8_casts")
        for name, share in zip(casts.names, casts.mean.tolist(), strict=True):
            cast = _CAST.search(name)
            if cast is not None:
                self.seen = True
                yield from self._cast(view, name, share, cast)

    def applicable(self, view: StepView) -> str:
        """Not where nothing is of float8."""
        return "" if self.seen else _UNSEEN

    def _tensor(self, view: StepView, rows: Statistics, row: int, name: str) -> Iterable[Finding]:
        dtype = rows.tensors[row].dtype
        over, under = _shares(rows, row, _FORMATS[dtype])
        if self.over.follow(view.mode_step, over > self.overflow, name) >= self.window:
            severe = over >= self.overflow_error
            yield self._finding(
                view, name, Severity.ERROR if severe else Severity.WARNING, "eight_bits_overflow", over,
                self.overflow_error if severe else self.overflow,
                f"{100 * over:.3g} % of {name} are infinite or at the largest number of {dtype} at step "
                f"{view.mode_step}",
            )  # fmt: skip
        if self.under.follow(view.mode_step, under > self.underflow, name) >= self.window:
            zero = float(rows.zero[row] / rows.count[row])
            yield self._finding(
                view, name, Severity.WARNING, "eight_bits_underflow", under, self.underflow,
                f"{100 * zero:.3g} % of {name} are zero, and {100 * under:.3g} % of the others are below the smallest "
                f"number of full precision of {dtype} at step {view.mode_step}", zero=zero,
            )  # fmt: skip

    def _cast(self, view: StepView, name: str, share: float, cast: re.Match[str]) -> Iterable[Finding]:
        module, dtype = cast["module"] or "the model", cast["dtype"]
        where = "backward" if cast["backward"] else "forward"
        over = cast["what"] == "overflow"
        counts, limit = (self.over, self.overflow) if over else (self.under, self.vanished)
        if counts.follow(view.mode_step, share > limit, name) < self.window:
            return
        if not over:
            yield self._finding(
                view, name, Severity.WARNING, "eight_bits_underflow", share, limit,
                f"{100 * share:.3g} % of the nonzero elements that {module} casts to {dtype} in the {where} become "
                f"zero at step {view.mode_step}",
            )  # fmt: skip
            return
        severe = share >= self.overflow_error
        yield self._finding(
            view, name, Severity.ERROR if severe else Severity.WARNING, "eight_bits_overflow", share,
            self.overflow_error if severe else limit,
            f"{100 * share:.3g} % of the elements that {module} casts to {dtype} in the {where} are at or beyond its "
            f"largest number, {_FORMATS[dtype].largest:g}, at step {view.mode_step}",
        )  # fmt: skip

    def _finding(
        self, view: StepView, name: str, severity: Severity, symptom: str, value: float, limit: float, message: str,
        **measured: float,
    ) -> Finding:  # fmt: skip
        over = symptom == "eight_bits_overflow"
        since = self.over.since(name) if over else self.under.since(name)
        return self.finding(
            view, severity=severity, subject=f"{symptom} {name}", tensors=[name], value=value, limit=limit,
            message=message, symptoms=(symptom,), evidence={**signals.evidence(view), **measured}, since=since,
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
