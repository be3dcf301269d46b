"""TRAIN steps of which only the loss and the learning rate are recorded, as most steps of a run."""

from __future__ import annotations

from typing import Any

from watchglass.capture.planning.plan import Plan
from watchglass.capture.process.resumption import Resumption
from watchglass.capture.saving.pending_records import PendingRecords
from watchglass.capture.saving.tensor_ids import TensorIds
from watchglass.record import Recorder, SteadyRow, StepClock
from watchglass.records import Role, TensorInfo, series_name


class SteadySteps:
    """Records whole steps at once. For the training thread.

    Args:
        clock: Numbers the steps.
        ids: Has the ids of loss and learning rate.
        pending: Has records that belong to such a step in addition.
        resumption: While it waits for the first number, no such step is recorded.
        plan: While its budget does not know the usual cost of a step, neither.
        recorder: Gets the steps.
    """

    def __init__(
        self, clock: StepClock, ids: TensorIds, pending: PendingRecords, resumption: Resumption, plan: Plan,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self._clock, self._ids, self._pending = clock, ids, pending
        self._resumption, self._plan, self._recorder = resumption, plan, recorder
        # Ids of loss and learning rate by model, and the number of the model that began last.
        self._series: dict[int, tuple[int, int]] = {}
        self._model = 0

    def begin(self, model: int = 0, *, rated: bool = True) -> bool:
        """Whether TRAIN steps of a model may come through :meth:`step` now; if so, closes the open step.

        Args:
            model: Number of the model.
            rated: Whether these steps have a learning rate.
        """
        if not self._recorder.started or self._clock.evaluation is not None or not self._clock.at_boundary:
            return False
        if self._resumption.waiting or (self._clock.train is not None and self._clock.train.by_hand):
            return False
        if not self._plan.budget.knows_idle:
            return False  # steady steps are not measured: their cost is estimated from the others
        name = series_name("loss", model)
        loss = self._ids.of(name, lambda: TensorInfo(0, name, Role.LOSS, dtype="float64", model=model))
        rate = self._ids.known("learning_rate") or 0
        if rated and not rate:
            described = TensorInfo(0, "learning_rate", Role.METRIC, dtype="float64")
            rate = self._ids.of("learning_rate", lambda: described)
        self._series[model], self._model = (loss, rate), model
        if not model:
            self._recorder.row_ids = loss, rate
        pending = self._pending
        pending.holds = pending.saves_late
        self._clock.close_train()
        pending.holds = False
        return True

    def step(
        self, start_ns: int, end_ns: int, loss: Any, learning_rate: float, weight: float, phases: tuple[int, ...],
        model: int | None = None,
    ) -> None:  # fmt: skip
        """Record a whole TRAIN step of which only these values are known; see :class:`SteadyRow`.

        The model is one that :meth:`begin` got, the last one if it is not given.
        """
        row = self._clock.steady_train(start_ns, end_ns, loss, learning_rate, weight, phases)
        pending = self._pending
        model = self._model if model is None else model
        # A bare row has no model: it counts as the first model's.
        if not (model or pending.saves_late) and pending.carried.is_empty:
            self._recorder.put_row(row)
            return
        ids = self._series.get(model, (0, 0))  # one without numbers may come before any began
        step = SteadyRow._make(row).opened(pending.take(), ids)
        step.model = model
        pending.put_late()
        if pending.saves_late:
            if not self._resumption.waiting:
                self._recorder.flight.updated(step)
            pending.late = step
        else:
            self._recorder.put(step)
