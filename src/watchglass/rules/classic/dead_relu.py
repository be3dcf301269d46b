"""DeadRelu: most units of a ReLU layer give zero for every sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import INACTIVE_UNITS, Finding, Mode, ModuleKind, Role, Severity, TensorInfo
from watchglass.rules import learning_rates, signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.sagemaker import dead_relu
from watchglass.rules.streaks import began
from watchglass.tables import Selection, StepView

_ENOUGH_CAPTURES = 16
#: Captures of a whole run from which on it is judged at its end.
_FEWEST_CAPTURES = 3


class DeadRelu(Rule):
    """Most units of a ReLU layer are zero for every sample of every batch of a window.

    Looks at: for each unit, whether it was zero on all elements of a captured step. The units are those of outputs of
        ReLU modules. If the model has none, they are those of inputs of linear and convolution layers, because
        functional ReLU has no module.
    Fires when: more than `threshold_layer` percent of a layer's units were zero in each of the last `window` captures.
        These must include at least 256 values of each unit, or 16 captures. At the end of a run with fewer captures,
        but at least 3, all but the first must agree. The severity is `error` if every unit of a
        layer was zero. One batch proves little: in small batches half of all units can be zero although none is dead.
    Usual causes: a learning rate that moved the biases far below zero, biases initialised negative.
    What to try: LeakyReLU or GELU, a lower learning rate, zero biases.
    Costs: one bit per unit of each ReLU, and statistics of outputs, at captured steps.
    Source: 70 percent: DeepDiagnosis (ICSE 2022), AutoTrainer (ICSE 2021); 50 percent of units with less than 1 percent
        of activity: SageMaker Debugger documentation; house: the window of batches.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(rows=(INACTIVE_UNITS,), why="to see units that are zero on every batch"),
        Needs(role=Role.OUTPUT, statistics=("count",), optional=True, why="to know how many values a unit had"),
        Needs(role=Role.WEIGHT, statistics=("count",), optional=True, why="to know which layers follow a convolution"),
    )
    modes = (Mode.TRAIN,)
    calibrations: ClassVar = {"sagemaker": dead_relu.DeadRelu}

    threshold_layer: float = parameter(
        70.0, help="share of a layer's units that are dead", unit="percent", ge=0, lt=100
    )
    window: int = parameter(8, help="captures over which a unit must be zero", unit="captures", ge=1)
    min_values: int = parameter(256, help="values of a unit that must have been zero", ge=0)
    min_units: int = parameter(4, help="layers with fewer units are ignored", unit="units", ge=1)

    #: Per tensor: for how many captures and values in a row each unit was zero, and captures altogether.
    runs: dict[str, dict[str, Any]] = state(dict)
    step: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """One finding per layer with too many dead units."""
        units = view.rows(INACTIVE_UNITS)
        if not units:
            return
        self.step = view.mode_step
        # Inputs of layers count only where no module returns the result of a ReLU.
        by_outputs = any(info.role is Role.OUTPUT for info, _, _ in units)
        for info, _, zero in units:
            if by_outputs != (info.role is Role.OUTPUT) or len(zero) < self.min_units:
                continue
            self._follow(view, info, zero)
            yield from self._layer(view, info, self.window)

    def finish(self, view: StepView) -> Iterable[Finding]:
        """The last judgement of layers with few captures: all but the first must agree."""
        for name, run in self.runs.items():
            info = view.catalog.by_name(name)
            if info is not None and _FEWEST_CAPTURES <= run["seen"] < self.window:
                yield from self._layer(view, info, run["seen"] - 1)

    def applicable(self, view: StepView) -> str:
        """Not for models without ReLU-like units."""
        kinds = [kind for kind, _ in signals.modules(view).values()]
        if kinds and ModuleKind.RECTIFIER not in kinds and not self.runs:
            return "the model has no ReLU, as far as its modules and the inputs of its layers show"
        return signals.without_layers(view)

    def _follow(self, view: StepView, info: TensorInfo, zero: npt.NDArray[np.bool_]) -> None:
        values = self._values_per_unit(view, info, len(zero))
        run = self.runs.get(info.name)
        if run is None or len(run["captures"]) != len(zero):
            nothing = np.zeros(len(zero), np.int64)
            run = self.runs[info.name] = {"captures": nothing, "values": nothing, "seen": 0, "since": nothing - 1}
        # Lists after a restart of the evaluator.
        run["captures"] = (np.asarray(run["captures"], np.int64) + 1) * zero
        run["values"] = (np.asarray(run["values"], np.int64) + values) * zero
        run["seen"] += 1
        run["since"] = began(np.asarray(run["since"], np.int64), view.mode_step, zero)

    def _layer(self, view: StepView, info: TensorInfo, window: int) -> Iterable[Finding]:
        run = self.runs[info.name]
        captures, values = (np.asarray(run[key], np.int64) for key in ("captures", "values"))
        dead = (captures >= window) & ((values >= self.min_values) | (captures >= _ENOUGH_CAPTURES))
        # Behind a convolution a unit of a Linear layer is one channel at one place: places at the border can stay zero
        # for good although every channel is alive.
        after_convolution = view.catalog.answers.get("DeadRelu, flattened", lambda: _flattened(view))
        limit = max(self.threshold_layer, 95.0) if info.module in after_convolution else self.threshold_layer
        percent = 100.0 * (np.count_nonzero(dead) / len(dead))
        if percent <= limit:
            return
        count, every = int(np.sum(dead)), bool(np.all(dead))
        seen_in = int(np.min(captures[dead]))
        where = f"{info.module or info.name} ({info.module_type})"
        layer = where if info.role is Role.OUTPUT else f"the activation before {where}"
        yield self.finding(
            view,
            severity=Severity.ERROR if every else Severity.WARNING,
            tensors=[info.name],
            value=percent,
            limit=limit,
            message=f"{count} of {len(dead)} units of {layer} {'was' if count == 1 else 'were'} zero for every sample "
            f"of the last {'capture' if seen_in == 1 else f'{seen_in} captures'} up to step {self.step}",
            symptoms=("dead_units", *(["all_units_dead"] if every else []), *learning_rates.too_high(view)),
            evidence={
                "layer": layer,
                "units": len(dead),
                "dead_units": count,
                "captures": seen_in,
                **signals.optimizer_evidence(view),
            },
            since=int(np.asarray(run["since"])[dead].max()),
        )

    @staticmethod
    def _values_per_unit(view: StepView, info: TensorInfo, units: int) -> int:
        """How many values of each unit this step had; 0 if the tensor's statistics were not captured."""
        rows = view.statistics(info.role)
        row = rows.row(info.name)
        return int(rows.count[row]) // max(units, 1) if row is not None else 0


def _flattened(view: StepView) -> frozenset[str]:
    """Modules that receive a flattened output of a convolution: Linear ones directly after a layer of kernels."""
    weights: Sequence[TensorInfo] = sorted(
        view.catalog.select(Selection(Role.WEIGHT, min_dims=2)), key=lambda info: info.layer_index
    )
    return frozenset(
        after.module for before, after in pairwise(weights) if len(before.shape) > 2 and len(after.shape) == 2
    )
