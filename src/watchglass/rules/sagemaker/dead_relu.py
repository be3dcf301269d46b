"""DeadRelu as SageMaker Debugger documents it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import INACTIVE_UNITS, Finding, Mode, ModuleKind, Role, TensorInfo
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule
from watchglass.tables import StepView

_RECTIFIERS = (ModuleKind.RECTIFIER,)


class DeadRelu(Rule):
    """Most units of a ReLU layer are hardly ever active.

    Looks at: the share of values other than zero, for each unit of a ReLU, at a captured step. The units of a tensor
        are those of its unit axis. Where outputs are not recorded whole, a unit has no activity if all its values are
        zero, and full activity otherwise.
    Fires when: more than `threshold_layer` percent of a layer's units have less than `threshold_inactivity` percent of
        activity.
    Usual causes: a learning rate that moved the biases far below zero, biases initialised negative.
    What to try: LeakyReLU or GELU, a lower learning rate, zero biases.
    Costs: the outputs of ReLUs on disk, whole, at captured steps.
    Source: SageMaker Debugger documentation.
    """

    needs = (
        Needs(rows=(INACTIVE_UNITS,), why="to see units that are zero"),
        Needs(role=Role.OUTPUT, module_kinds=_RECTIFIERS, raw=True, optional=True, why="to count the active values"),
    )
    modes = (Mode.TRAIN,)

    threshold_inactivity: float = parameter(
        1.0, help="share of active values below which a unit is inactive", unit="percent", ge=0, le=100
    )
    threshold_layer: float = parameter(50.0, help="share of a layer's units that are inactive", unit="percent", ge=0)

    def check(self, view: StepView) -> Iterable[Finding]:
        """One finding per layer with too many inactive units."""
        for info, activity in _activities(view):
            inactive = activity < self.threshold_inactivity
            percent = 100 * float(np.mean(inactive)) if len(inactive) else 0.0
            if percent <= self.threshold_layer:
                continue
            yield self.finding(
                view,
                tensors=[info.name],
                value=percent,
                limit=self.threshold_layer,
                message=f"{int(np.sum(inactive))} of {len(inactive)} units of {info.module or info.name} have less "
                f"than {self.threshold_inactivity:g} % of activity at step {view.mode_step}",
                symptoms=("dead_units",),
                evidence={"layer": info.module or info.name, **signals.optimizer_evidence(view)},
            )

    applicable = staticmethod(signals.without_layers)


def _activities(view: StepView) -> Iterator[tuple[TensorInfo, npt.NDArray[np.float64]]]:
    """For each ReLU of this step the activity of each unit, in percent."""
    whole = set(view.whole(Role.OUTPUT))
    for info, _, zero in view.rows(INACTIVE_UNITS):
        value = view.value(info.name) if info.name in whole else None
        if value is None or value.ndim < 2 or info.unit_axis is None:
            yield info, np.where(zero, 0.0, 100.0)
        else:
            units = np.moveaxis(value, info.unit_axis, 0).reshape(value.shape[info.unit_axis], -1)
            yield info, 100 * np.mean(units != 0, axis=1)
