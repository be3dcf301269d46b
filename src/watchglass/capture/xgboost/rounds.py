"""The boosting rounds of one training run as steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from xgboost import Booster

from watchglass.capture.port import Port
from watchglass.capture.xgboost.model import KINDS, facts_of, importance, kinds_of, trees_of
from watchglass.record import OpenStep
from watchglass.records import DeclaredFact, Mode, Role

_log = logging.getLogger("watchglass")

#: Metrics of XGBoost that fall as a model learns its objective; ``error`` and its like only count mistakes.
LOSSES = frozenset((
    "rmse", "rmsle", "mae", "mape", "mphe", "logloss", "mlogloss", "poisson-nloglik", "gamma-nloglik", "cox-nloglik",
    "aft-nloglik", "tweedie-nloglik", "gamma-deviance", "quantile", "expectile",
))  # fmt: skip

#: Collections, and prefixes of the names of their tensors.
_IMPORTANCE = "feature_importance"
_TREES = "trees"

#: XGBoost's record of a training run: data set -> metric -> a value per round, in ``cv`` a pair of mean and deviation.
Evaluations = Mapping[str, Mapping[str, Sequence[Any]]]


class Rounds:
    """Opens and closes a TRAIN step per round, and an EVAL step for evaluations on other data.

    Args:
        port: The port that records.
        train: Name of the evaluation set that is the training data; the first whose name contains "train" if "".
        loss: Metric that is the loss; the first one of :data:`LOSSES` if "".
    """

    def __init__(self, port: Port, train: str, loss: str) -> None:
        self.port, self._train, self._loss = port, train, loss
        self._step: OpenStep | None = None
        self._kept: list[str] = []
        self._keep_trees = False
        self._facts: tuple[DeclaredFact, ...] = ()
        self._said = False
        self.evaluations: Evaluations = {}
        self.begin, self.end = port.guarded(self._begin), port.guarded(self._end)
        self.apply_changes = port.guarded(port.apply_changes)

    def _begin(self, evaluations: Evaluations) -> None:
        # One object for all rounds: it has the last round even if another callback hides its end.
        self.evaluations = evaluations
        self._step = self.port.begin(Mode.TRAIN)
        # Also without a model: cross-validation must not warn of an empty collection.
        keep, tags = self.port.plan.keep, (_IMPORTANCE,)
        kept = [kind for kind in KINDS if keep(f"{_IMPORTANCE}/{kind}", Role.CUSTOM, tags=tags)]
        self._kept = kept if self._step.due else []
        trees = keep(f"{_TREES}/depth", Role.CUSTOM, tags=(_TREES,))
        self._keep_trees = trees is not None and self._step.due

    def _end(self, model: Any) -> None:
        """A round has ended; nothing happens when it had before."""
        step, self._step = self._step, None
        if step is None:
            return
        if self.port.resumption.open and isinstance(model, Booster):
            # Only after the first round: an earlier call would configure the model too soon.
            with suppress(Exception):
                self.port.resumption.settle(model.num_boosted_rounds() - 1, "booster")
        metrics = self.evaluations
        train = _first(metrics, self._train, lambda name: "train" in name.lower())
        if train is None or self._loss_of(metrics[train]) is None:
            self._report_missing(train)
        if train is not None:
            self._add(step, train, followed=True)
        if isinstance(model, Booster):
            self._read(step, model)
        self.port.end(step)
        others = [name for name in metrics if name != train]
        if others:
            evaluation = self.port.clock.begin(Mode.EVAL)
            for name in others:
                # The last of several sets: XGBoost's early stopping uses that one too.
                self._add(evaluation, name, followed=name == others[-1])
            self.port.clock.end(evaluation)

    def _loss_of(self, metrics: Mapping[str, Any]) -> str | None:
        return _first(metrics, self._loss, _is_loss)

    def _add(self, step: OpenStep, data: str, *, followed: bool) -> None:
        metrics = self.evaluations[data]
        loss = self._loss_of(metrics)
        for name, values in metrics.items():
            mean, *deviation = values[-1] if isinstance(values[-1], tuple) else values[-1:]
            if name == loss and followed:
                self.port.add_scalar(step.records, "loss", float(mean), Role.LOSS)
            role = Role.LOSS if name == loss or _is_loss(name) else Role.METRIC
            self.port.add_scalar(step.records, f"{data}-{name}", float(mean), role)
            if deviation:
                self.port.add_scalar(step.records, f"{data}-{name}-std", float(deviation[0]), Role.METRIC)

    def _read(self, step: OpenStep, model: Booster) -> None:
        if not step.due and self._facts:
            return
        found = facts_of(model)
        for fact in found:
            # A schedule may change the learning rate at any round; rules look at the latest fact.
            if fact not in self._facts:
                step.records.add_fact(fact, "XGBoost")
        self._facts = found
        for kind in self._kept:
            if kind in kinds_of(found[1].type):
                self.port.save_tensor(f"{_IMPORTANCE}/{kind}", importance(model, kind), _IMPORTANCE)
        if self._keep_trees:
            depths, largest = trees_of(model, model.num_boosted_rounds() - 1)
            if len(depths):
                self.port.save_tensor(f"{_TREES}/depth", depths, _TREES)
                self.port.save_tensor(f"{_TREES}/largest_node", largest, _TREES)

    def _report_missing(self, train: str | None) -> None:
        if self._said:
            return
        self._said = True
        if train is None:
            missing = f"none of the evaluation sets ({', '.join(self.evaluations) or 'there are none'}) is known to be "
            cure = 'the training data; add (dtrain, "train") to evals, or give train="..."'
        else:
            missing = f"none of the metrics of {train} ({', '.join(self.evaluations[train])}) is known to be "
            cure = 'a loss; add one to eval_metric, or give loss="..."'
        _log.warning("watchglass: rules cannot judge whether the training loss falls: %s%s", missing, cure)


def _first(names: Iterable[str], wanted: str, known: Callable[[str], bool]) -> str | None:
    return next((name for name in names if (name == wanted if wanted else known(name))), None)


def _is_loss(metric: str) -> bool:
    return metric.partition("@")[0] in LOSSES
