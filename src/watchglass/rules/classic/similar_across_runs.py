"""SimilarAcrossRuns: the first tensor that differs from that of another run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import Statistics, StepView

_COLUMNS = ("count", "nonfinite", "zero", "min", "max", "mean", "abs_mean", "std")


class _Difference(NamedTuple):
    name: str
    ours: float
    theirs: float
    what: str
    many: int


class SimilarAcrossRuns(Rule):
    """A tensor or scalar differs from that of another run at the same step; names the first one.

    Looks at: scalars of every step, and statistics of tensors that both runs captured at the step.
    Fires when: one of them differs by more than `atol + rtol * scale`. The scale is the magnitude of the other run's
        value; for a tensor, its largest magnitude. With `rtol=0,atol=0` every bit of the statistics counts. The finding
        names the first step, and there the first tensor in the order in which modules run. Without `other_run` nothing
        is compared. The rule skips sampled tensors and metrics of time.
    Usual causes: another seed, order of data, version, precision or number of workers; a change of the code.
    What to try: look at the named step first; everything before it is equal.
    Costs: the evaluator reads the other run too.
    Source: SageMaker Debugger documentation (other run required); tolerances: numpy.allclose.
    """

    needs = (
        Needs(statistics=_COLUMNS, optional=True, why="to compare tensors"),
        Needs(scalars=("loss",), why="to compare the loss"),
    )
    compares = ("other_run",)

    other_run: str = parameter("", help="location of the run to compare with")
    rtol: float = parameter(1e-5, help="relative tolerance", ge=0)
    atol: float = parameter(1e-8, help="absolute tolerance", ge=0)
    name_regex: str | None = parameter(None, help="only tensors whose name contains a match of this")

    steps: int = state(int)
    differs: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at each step that differs; they fold into one."""
        other = view.reference("other_run")
        if other is None:
            return
        self.steps += 1
        found = self._tensors(view, other) or self._scalars(view, other)
        if found is None:
            return
        more = f", and so do {found.many - 1} more tensors" if found.many > 1 else ""
        yield self.finding(
            view,
            subject="difference",
            tensors=[found.name],
            value=found.ours,
            limit=found.theirs,
            message=f"{found.name} differs from that of {self.other_run} at {view.mode.name} step {view.mode_step}: "
            f"its {found.what} is {found.ours:.6g}, there {found.theirs:.6g}{more}",
            symptoms=("differs_from_other_run",),
        )

    def applicable(self, view: StepView) -> str:
        """Not without another run that has the same steps."""
        if not self.other_run:
            return "other_run is not set; give it the location of a run: SimilarAcrossRuns:other_run=runs/before"
        return "" if self.steps else f"{self.other_run} has none of the steps of this run"

    def _scalars(self, view: StepView, other: StepView) -> _Difference | None:
        theirs = other.scalars()
        for name, value in view.scalars().items():
            if name in theirs and not np.isclose(value, theirs[name], rtol=self.rtol, atol=self.atol, equal_nan=True):
                return _Difference(name, value, theirs[name], "value", 1)
        return None

    def _tensors(self, view: StepView, other: StepView) -> _Difference | None:
        ours = view.statistics(name_regex=self.name_regex).in_layer_order()
        theirs = other.statistics(name_regex=self.name_regex)
        if not len(ours) or not len(theirs):
            return None
        place = {name: row for row, name in enumerate(theirs.names)}
        rows = np.array([place.get(name, -1) for name in ours.names])
        both = (rows >= 0) & ~ours.sampled & ~theirs.sampled[rows]
        differ = np.zeros(len(ours), np.bool_)
        what = np.full(len(ours), "", object)
        for column in reversed(_COLUMNS):
            apart = both & self._apart(ours, theirs, rows, column)
            differ |= apart
            what[apart] = column
        if not differ.any():
            return None
        first = int(np.argmax(differ))
        column = str(what[first])
        mine, there = float(getattr(ours, column)[first]), float(getattr(theirs, column)[rows[first]])
        words = {"count": "number of elements", "nonfinite": "number of values that are not finite"}
        return _Difference(ours.names[first], mine, there, words.get(column, column), int(differ.sum()))

    def _apart(self, ours: Statistics, theirs: Statistics, rows: np.ndarray, column: str) -> np.ndarray:
        mine, other = getattr(ours, column), getattr(theirs, column)[rows]
        with np.errstate(all="ignore"):
            if column in ("count", "nonfinite"):
                return np.asarray(mine != other)
            if column == "zero":
                return np.asarray((mine != other) & (self.rtol == 0) & (self.atol == 0))
            scale = np.maximum(np.abs(theirs.min), np.abs(theirs.max))[rows]
            near = np.abs(mine - other) <= self.atol + self.rtol * scale
        return np.asarray(~near & ~(np.isnan(mine) & np.isnan(other)) & (mine != other))
