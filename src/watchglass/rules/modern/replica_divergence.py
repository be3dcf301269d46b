"""ReplicaDivergence: ranks that train one model have different weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts
from watchglass.rules.modern.rank_average import Average, average, samples
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep, Statistics, StepView

#: Columns that are compared. A change of any element changes the norm; the others find what its rounding hides.
_COLUMNS = ("count", "min", "max", "sum", "abs_sum", "l2")
#: Weights of which the sums of a step are kept, to see which rank moved.
_MOST_KEPT = 1024
#: Times as far as the others that the rank has moved which is named.
_FURTHER = 3.0

_Rows = dict[str, np.ndarray[Any, Any]]


class _Compared(NamedTuple):
    """Tensors of one kind that all ranks hold whole, by the names of their parameters."""

    alike: frozenset[str]  #: Those that are equal on all ranks.
    apart: frozenset[str]  #: Those that are not.
    zero: frozenset[str]  #: Those that are zero on all ranks.


class ReplicaDivergence(Rule):
    """Ranks that train one model have different weights.

    Looks at: statistics of weights and gradients on each rank, at steps that all ranks capture; some elements of a
        gradient before and after ranks average it. Only parameters that every rank holds whole, and that are trained:
        no shards, no running statistics.
    Fires when: a weight differs between ranks by more than `tolerance`. If gradients agree, the rule reports at once:
        ranks started with different weights, or one rank changed its own. If gradients differ too, ranks do not average
        them, or ranks are out of step. The rule then reports after `patience` steps without equal weights, or at the
        end of the run, because weights also differ between the averages of local SGD and federated averaging.
    Usual causes: a training loop that calls model.module and not the wrapper, no_sync around all backward passes, no
        average at all, no broadcast of the first weights, a checkpoint that one rank alone loads, a skipped update.
    What to try: call the wrapper in the training loop; broadcast weights and optimizer state from rank 0.
    Costs: nothing with one process; with several, statistics that are captured by default, and a copy of 16 elements
        of a gradient.
    Source: any difference: BLOOM chronicles (BigScience, 2022), TrainCheck (OSDI 2025); house: `tolerance`, which
        exceeds the stated rounding of sums; house: `patience`, of the size of the longest interval of local SGD in Lin
        et al. (ICLR 2020).
    """

    idle_at_plain_steps = True
    needs = (
        Needs(role=Role.WEIGHT, statistics=_COLUMNS, why="to compare the weights of ranks"),
        Needs(role=Role.BIAS, statistics=_COLUMNS, optional=True, why="to compare their biases"),
        Needs(role=Role.GRADIENT, statistics=_COLUMNS, why="to see whether gradients are averaged"),
        Needs(facts=("rank_gradients",), optional=True, why="to see how gradients are averaged"),
    )

    tolerance: float = parameter(1e-9, help="largest difference due to rounding", unit="ratio", ge=0)
    patience: int = parameter(64, help="steps in which the weights of local SGD agree again", unit="steps", ge=1)

    #: Captures that all ranks share.
    seen: int = state(int)
    #: The last step at which all weights agreed, and sums of weights then.
    agreed_at: int = state(lambda: -1)
    sums: dict[str, float] = state(dict)
    #: Captures at which weights and gradients that are not zero agreed.
    averaged: int = state(int)
    #: The first step since then at which weights differed, and which of them.
    apart_at: int = state(lambda: -1)
    apart: list[str] = state(list)
    #: Whether ranks hold different parts of the model, or average their weights from time to time.
    separate: bool = state(bool)
    reported: bool = state(bool)

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """At most one finding for each time that weights come apart."""
        views = [view for view in step.views if view.captured]
        if step.mode is not Mode.TRAIN or len(step.views) < 2 or len(views) < len(step.views) or self.separate:
            return
        gradients = self._compare(views, (Role.GRADIENT,))
        weights = self._compare(views, (Role.WEIGHT, Role.BIAS))
        trained = gradients.alike | gradients.apart
        apart = weights.apart & trained
        if not weights.alike & trained and not apart:
            return
        self.seen += 1
        if not apart:
            self._agree(views, gradients, step.mode_step)
            return
        if self.apart_at < 0:
            self.apart_at, self.apart = step.mode_step, sorted(apart)
        yield from self._judge(step, gradients, apart, trained)

    def _agree(self, views: Sequence[StepView], gradients: _Compared, at: int) -> None:
        if self.apart_at >= 0 and not self.reported:
            self.separate = True  # averages of weights, as in local SGD
        self.agreed_at, self.apart_at, self.reported = at, -1, False
        self.averaged += bool(gradients.alike - gradients.zero) and not gradients.apart
        rows = self._rows(views[0], (Role.WEIGHT, Role.BIAS))
        self.sums = {name: float(row[3]) for name, row in list(rows.items())[:_MOST_KEPT]}

    def _judge(
        self, step: JointStep, gradients: _Compared, apart: frozenset[str], trained: frozenset[str]
    ) -> Iterable[Finding]:
        if self.reported:
            return
        exchanged = apart <= gradients.alike and bool(apart - gradients.zero)
        if self.agreed_at < 0:
            if exchanged:
                yield self._started_apart(step)
            elif gradients.alike - gradients.zero or average(step) not in (None, Average.OWN):
                self.separate = True  # each rank has a part of the model: tensor or expert parallel
            elif step.mode_step - self.apart_at >= self.patience:
                yield self._left_out(step, gradients, trained)
        elif exchanged:
            yield self._changed(step, apart)
        elif step.mode_step - self.apart_at >= self.patience:
            yield self._left_out(step, gradients, trained)

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """A finding if weights were apart at the end of the attempt, and gradients are not averaged."""
        views = [view for view in step.views if view.mode is Mode.TRAIN]
        if self.apart_at < 0 or self.reported or self.separate or len(views) < 2:
            return
        yield self._left_out(step, _Compared(frozenset(), frozenset(), frozenset()), frozenset())

    def _finding(self, step: JointStep, symptom: str, message: str, what_to_try: Sequence[str] = ()) -> Finding:
        self.reported = True
        return self.finding(
            step,
            severity=Severity.ERROR if symptom in ("replica_moved", "replicas_start_apart") else Severity.WARNING,
            subject=symptom,
            tensors=self.apart[:8],
            value=float(len(self.apart)),
            limit=0.0,
            message=message,
            symptoms=(symptom,),
            what_to_try=what_to_try,
            evidence={"since": self.apart_at, "agreed": self.agreed_at, "ranks": len(step.views)},
        )

    def _which(self) -> str:
        return f"{self.apart[0]} and {len(self.apart) - 1} more weights" if len(self.apart) > 1 else self.apart[0]

    def _started_apart(self, step: JointStep) -> Finding:
        return self._finding(
            step,
            "replicas_start_apart",
            f"{self._which()} differ between ranks from the first step on, although their gradients agree: ranks that "
            "average gradients must start with the same weights",
        )

    def _changed(self, step: JointStep, apart: frozenset[str]) -> Finding:
        rank = self._moved(step, apart)
        where = f"on {rank} alone" if rank else "on one rank alone"
        self.apart = sorted(apart)
        return self._finding(
            step,
            "replica_moved",
            f"{self._which()} changed {where} after step {self.agreed_at}: gradients agree on all ranks, weights do "
            f"not since step {self.apart_at}",
        )

    def _moved(self, step: JointStep, apart: frozenset[str]) -> str:
        """The worker whose weights are alone, or have moved much further than all others; "" if that is none."""
        far = {}
        for view in step.views:
            rows = self._rows(view, (Role.WEIGHT, Role.BIAS))
            known = [name for name in apart if name in rows and name in self.sums]
            far[view.worker] = sum(abs(float(rows[name][3]) - self.sums[name]) for name in known)
        first, second, *_ = sorted(far.values(), reverse=True)
        return max(far, key=lambda worker: far[worker]) if first > _FURTHER * second else ""

    def _left_out(self, step: JointStep, gradients: _Compared, trained: frozenset[str]) -> Finding:
        since = f"since step {self.apart_at}" if self.agreed_at >= 0 else "from the first step on"
        words = f"{self._which()} differ between ranks {since}, and so do their gradients: "
        if self.averaged:
            return self._finding(
                step, "replicas_out_of_step", words + "a rank has left out an update, or taken one more than the others"
            )
        how, cure = self._why(step, gradients, trained)
        return self._finding(step, "average_left_out", words + how, cure)

    def _why(self, step: JointStep, gradients: _Compared, trained: frozenset[str]) -> tuple[str, tuple[str, ...]]:
        """Why gradients are not averaged, and the cure."""
        found = samples(step) or [fact for view in step.views if (fact := view.latest_fact(facts.AveragedGradient))]
        wrapper = found[0].wrapper if found else ""
        if trained and gradients.apart < trained and gradients.alike - gradients.zero:
            share = f"{len(gradients.apart)} of {len(trained)}"
            return (
                f"the gradients of {share} parameters are not averaged",
                ("Wrap the model after all its parameters are there and trainable",),
            )
        if wrapper and not any(each.called for each in found):
            return (
                f"the model is in {wrapper}, but the training loop calls the module inside it, so gradients are not "
                "averaged",
                ("Call the wrapper in the training loop, not model.module",),
            )
        if wrapper and not any(each.synchronised for each in found):
            return (
                "every backward runs inside no_sync(), so gradients are not averaged",
                ("Leave no_sync() for the last micro-batch before each update",),
            )
        if wrapper:
            return f"{wrapper} does not average them, as with a custom communication hook", ()
        return "nothing averages them", ()

    def _rows(self, view: StepView, roles: Sequence[Role]) -> _Rows:
        """Columns of the tensors that this rank holds whole, by names of parameters."""
        found: _Rows = {}
        for role in roles:
            rows = view.statistics(role)
            columns = _columns(rows)
            for place, info in enumerate(rows.tensors):
                if info.placement in ("local", "replicated"):
                    found[info.name.removeprefix("gradient/")] = columns[place]
        return found

    def _compare(self, views: Sequence[StepView], roles: Sequence[Role]) -> _Compared:
        ranks = [self._rows(view, roles) for view in views]
        names = [name for name in ranks[0] if all(name in rows for rows in ranks[1:])]
        if not names:
            return _Compared(frozenset(), frozenset(), frozenset())
        values = np.stack([np.stack([rows[name] for name in names]) for rows in ranks])
        # Sums cancel: their rounding is a share of the sum of absolutes.
        size = np.abs(values[0])
        size[:, 3] = np.abs(values[0][:, 4])
        with np.errstate(invalid="ignore"):
            far = np.abs(values[1:] - values[0]) > self.tolerance * size
        apart = (far & ~(np.isnan(values[1:]) & np.isnan(values[0]))).any(axis=(0, 2))
        zero = (values[:, :, 5] == 0).all(axis=0)
        return _Compared(
            frozenset(name for name, is_apart in zip(names, apart, strict=True) if not is_apart),
            frozenset(name for name, is_apart in zip(names, apart, strict=True) if is_apart),
            frozenset(name for name, is_zero in zip(names, zero, strict=True) if is_zero),
        )

    def applicable(self, step: JointStep) -> str:
        """A reason where there are no ranks to compare."""
        if len(step.views) < 2:
            return "the run has one rank"
        if not self.seen:
            return "no step was captured on all ranks with weights that each of them holds whole"
        return ""


def _columns(rows: Statistics) -> np.ndarray[Any, Any]:
    return np.stack([getattr(rows, name) for name in _COLUMNS], axis=1)
