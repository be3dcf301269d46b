"""UnchangedTensor: a trainable parameter never changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import unchanged_tensor
from watchglass.tables import Statistics, StepView

#: Irrational-looking weights of the statistics in a tensor's fingerprint, so that changes do not cancel.
_FINGERPRINT = {
    "zero": 0.0271828, "min": 1.4142135, "max": 1.7320508, "sum": 2.2360679, "abs_sum": 2.6457513, "m2": 3.3166247,
    "l2": 3.6055512,
}  # fmt: skip


class UnchangedTensor(Rule):
    """A trainable weight has not changed by a single bit since the run began.

    Looks at: a fingerprint of the statistics of trainable weights, between captures.
    Fires when: a weight is the same in `num_steps` captures since the start, while others change. The severity is
        `warning` for weights with two or more axes that receive a gradient, and `info` for the rest, and where a group
        has a learning rate of zero beside others. Or no weight changes at all, although the learning rate is not zero.
        Frozen parameters, skipped steps and parameters that changed once are not reported. Nor is a weight of a resumed
        attempt, because an earlier attempt saw whether it ever changed.
    Usual causes: the optimizer does not hold the weight, no gradient reaches it, dead units before it.
    What to try: build the optimizer from model.parameters(); look for detach() or no_grad().
    Costs: statistics of weights and gradients at captured steps.
    Source: allclose over 3 captures: SageMaker Debugger documentation; TrainCheck (OSDI 2025); house: since the start.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(role=Role.WEIGHT, statistics=("nonfinite", *_FINGERPRINT), why="to see whether weights change"),
        Needs(role=Role.GRADIENT, statistics=("l2",), optional=True, why="to see why one does not"),
        Needs(facts=("step_skipped",), optional=True, why="to omit skipped updates"),
    )
    calibrations: ClassVar = {"sagemaker": unchanged_tensor.UnchangedTensor}

    num_steps: int = parameter(8, help="captures in a row without a change", unit="captures", ge=2)

    #: Aligned columns: tensor ids, their last fingerprints, captures without a change (-1 once it has moved),
    #: and the step of the first of these captures.
    ids: Any = state(lambda: np.empty(0, np.int64))
    prints: Any = state(lambda: np.empty(0))
    still: Any = state(lambda: np.empty(0, np.int64))
    since: Any = state(lambda: np.empty(0, np.int64))

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step with captured weights."""
        if view.mode is not Mode.TRAIN or not view.captured or signals.skipped(view):
            return
        rate = signals.learning_rate(view)
        weights = view.statistics(Role.WEIGHT)
        weights = weights.part(
            "trainable", lambda: np.flatnonzero([info.trainable is True for info in weights.tensors])
        )
        weights = weights.where(weights.nonfinite == 0)
        if not len(weights):
            return
        still, since, moved_now = self._compare(view, weights, counts=rate is None or rate > 0)
        stuck = still >= self.num_steps - 1
        if not np.any(stuck):
            return
        if np.all(stuck):
            yield self._nothing_moves(view, weights, int(np.min(still)) + 1, int(np.max(since)))
        elif moved_now and not (view.attempt and signals.resumed(view)):
            captures, began = int(np.min(still[stuck])) + 1, int(np.max(since[stuck]))
            yield from self._some_stuck(view, weights.where(stuck), captures, began)

    applicable = staticmethod(signals.without_layers)

    def _compare(
        self, view: StepView, weights: Statistics, *, counts: bool
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool]:
        """Captures without a change per row, -1 for rows that have moved; their first one; whether any moved just now.

        Args:
            view: The step.
            weights: This capture.
            counts: Whether the optimizer could have moved anything.
        """
        ids, prints_before, still_before, since_before = self.ids, self.prints, self.still, self.since
        captured = weights.ids.astype(np.int64)
        prints = _fingerprints(weights)
        same = np.array_equal(ids, captured)
        rows = np.arange(len(ids)) if same else _places(captured, ids)
        known = rows >= 0
        still, since = np.zeros(len(rows), np.int64), np.full(len(rows), view.mode_step)
        changed = np.zeros(len(rows), np.bool_)
        still[known], since[known] = still_before[rows[known]], since_before[rows[known]]
        changed[known] = prints[known] != prints_before[rows[known]]
        if counts:
            still += known & (still >= 0)
        still[changed] = -1
        if len(rows) == len(ids) and known.all():
            self.ids, self.prints, self.still, self.since = captured, prints, still, since
        else:
            # Groups of parameters may be captured in turn: absent rows keep their values.
            prints_before, still_before = prints_before.copy(), still_before.copy()
            prints_before[rows[known]], still_before[rows[known]] = prints[known], still[known]
            self.ids = np.concatenate([ids, captured[~known]])
            self.prints = np.concatenate([prints_before, prints[~known]])
            self.still = np.concatenate([still_before, still[~known]])
            self.since = np.concatenate([since_before, since[~known]])
        return still, since, bool(np.any(changed))

    def _nothing_moves(self, view: StepView, weights: Statistics, captures: int, since: int) -> Finding:
        whose = (
            f"none of the {len(weights)} trainable weights has" if len(weights) > 1 else "the trainable weight has not"
        )
        return self.finding(
            view,
            subject="everything",
            tensors=weights.names[:16],
            value=float(len(weights)),
            message=f"{whose} changed in {captures} captures up to step {view.mode_step}",
            symptoms=("nothing_moves",),
            evidence={"captures": captures, **signals.optimizer_evidence(view)},
            since=since,
        )

    def _some_stuck(self, view: StepView, stuck: Statistics, captures: int, since: int) -> Iterable[Finding]:
        gradients = view.statistics(Role.GRADIENT)
        largest = dict(zip(gradients.names, gradients.l2.tolist(), strict=True))
        norms = [largest.get(f"gradient/{name}") for name in stuck.names]
        matrices = [len(info.shape) >= 2 for info in stuck.tensors]
        with_gradient = [
            name for name, norm, matrix in zip(stuck.names, norms, matrices, strict=True) if norm is not None and matrix
        ]
        names = with_gradient or stuck.names
        zero = all(largest.get(f"gradient/{name}") == 0 for name in with_gradient)
        symptom = "no_gradient" if not with_gradient else "gradients_exactly_zero" if zero else "parameter_unchanged"
        # Which may be how the script freezes them.
        idle = symptom == "parameter_unchanged" and signals.has_idle_group(view)
        severity = Severity.WARNING if with_gradient and not idle else Severity.INFO
        many = len(names) > 1
        why = {
            "no_gradient": f"no gradient was captured for {'them' if many else 'it'}",
            "gradients_exactly_zero": "their gradients are exactly zero" if many else "its gradient is exactly zero",
            "parameter_unchanged": "and gradients reach them" if many else "and a gradient reaches it",
        }[symptom]
        others = f" and {len(names) - 1} more have" if many else " has"
        yield self.finding(
            view,
            severity=severity,
            subject="weights",
            tensors=names[:16],
            value=float(len(names)),
            message=f"{names[0]}{others} not changed in any of {captures} captures up to step {view.mode_step}"
            f"{', ' if symptom == 'parameter_unchanged' else ': '}{why}"
            f"{'; the learning rate of a parameter group is zero' if idle else ''}",
            symptoms=() if idle else (symptom,),
            evidence={"captures": captures},
            since=since,
        )


def _fingerprints(weights: Statistics) -> npt.NDArray[np.float64]:
    """One number per row, float64[n], the same bits for the same statistics wherever the row lies.

    Column by column: the bits of a matrix product depend on the address of a row, and on the rows next to it.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return sum((getattr(weights, name) * factor for name, factor in _FINGERPRINT.items()), np.zeros(len(weights)))


def _places(wanted: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Index of each of ``wanted`` in ``among`` (no duplicates), int64; -1 if absent."""
    if not len(among):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(among)
    found = order[np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)]
    return np.where(among[found] == wanted, found, -1)
