"""The adapter for XGBoost: a callback for XGBoost's training loop; no function of XGBoost is wrapped or replaced.

One boosting round is one TRAIN step. What XGBoost evaluates after a round goes by the data: metrics of the training
data to the round's TRAIN step, those of all other sets to one EVAL step behind it. Each keeps XGBoost's name,
``validation-logloss``; the loss is also recorded as ``loss``, in both modes, the name by which rules follow a run of
any framework.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from xgboost import collective
from xgboost.callback import TrainingCallback

from watchglass.capture.loops import Loop
from watchglass.capture.port import Port
from watchglass.capture.xgboost.rounds import Rounds
from watchglass.capture.xgboost.training_set import training_set
from watchglass.config import Collection, environment
from watchglass.errors import TrainingStopped


class XGBoostLoop(Loop):
    """No model is given to ``watch``: ``xgboost.train`` makes its own, and the script gives it a callback."""

    name = "xgboost"
    options = ("train", "loss")
    #: The vectors of feature importances too, one number for each feature.
    collections = (Collection("feature_importance", save_raw=True),)

    def is_loop(self, value: object) -> bool:
        """No."""
        return False

    def attach(self, port: Port, watched: None = None) -> XGBoostCallback:
        """A callback that records into a port which is open already."""
        return XGBoostCallback(lambda: port)

    def callback(
        self, open_port: Callable[[], Port], close_port: Callable[[Port, str | None], None], **options: str
    ) -> XGBoostCallback:
        """A callback for ``xgboost.train``, ``xgboost.cv`` and the scikit-learn estimators."""
        return XGBoostCallback(open_port, close_port, **options)

    def rank(self) -> int | None:
        """Rank in the group of XGBoost's communicator, which only the training thread can read."""
        return int(collective.get_rank()) if collective.is_distributed() else environment.group_rank()


#: The callback whose training this thread began last and has not ended: an exception may have.
_latest = threading.local()


class XGBoostCallback(TrainingCallback):
    """Watches one ``xgboost.train``, ``xgboost.cv`` or ``fit`` at a time; may be used again for the next.

    A copy (scikit-learn's ``clone``) watches like the original. A pickled one, part of a saved estimator, loads as a
    callback that does nothing, also where watchglass is not installed.

    Args:
        open_port: Makes or finds the port when training begins, in the thread that trains.
        close_port: Called with that port when training has ended; a second argument is ``"failed"`` when an
            exception ended it, else None.
        train: Name of the evaluation set that is the training data; if "", the set that is, or else the first whose
            name contains "train".
        loss: Metric that rules follow as the loss; the first that is known to be one if "".
    """

    def __init__(
        self,
        open_port: Callable[[], Port],
        close_port: Callable[[Port, str | None], None] = lambda port, status: None,
        *,
        train: str = "",
        loss: str = "",
    ) -> None:
        super().__init__()
        self._open_port, self._close_port = open_port, close_port
        self._train, self._loss = train, loss
        self._rounds: Rounds | None = None

    def before_training(self, model: Any) -> Any:
        """Training begins: watch it from here on. Returns the model unchanged."""
        left: XGBoostCallback | None = getattr(_latest, "callback", None)
        if left is not None and left._rounds is not None:
            left._close_port(left._rounds.port, "failed")
        port, _latest.callback = self._open_port(), self
        rank = XGBoostLoop().rank()
        port.rank = lambda: rank
        self._rounds = Rounds(port, self._train or port.guard.call(training_set) or "", self._loss)
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """A boosting round begins, unless the run is to stop here."""
        try:
            if self._rounds is not None:
                self._rounds.begin(evals_log)
        except TrainingStopped:
            return True
        return False

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """A boosting round and its evaluation have ended; returns whether the run is to stop."""
        if self._rounds is None:
            return False
        self._rounds.end(model)
        # XGBoost stops by its stop flag: an exception would lose the trees so far.
        try:
            self._rounds.apply_changes()
        except TrainingStopped:
            return True
        return False

    def after_training(self, model: Any) -> Any:
        """Training has ended. Returns the model unchanged."""
        rounds, self._rounds, _latest.callback = self._rounds, None, None
        if rounds is not None:
            # Where an earlier callback stopped the run, the end of the last round was not reported here.
            rounds.end(model)
            self._close_port(rounds.port, None)
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> XGBoostCallback:
        return XGBoostCallback(self._open_port, self._close_port, train=self._train, loss=self._loss)

    def __reduce__(self) -> tuple[type[TrainingCallback], tuple[()]]:
        return TrainingCallback, ()
