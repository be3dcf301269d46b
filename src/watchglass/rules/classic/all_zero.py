"""AllZero: tensors whose values are all zero."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role, Severity, TensorInfo
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

#: Modules whose outputs carry the signal. Masks, positions and what dropout leaves may be zero on purpose.
_CARRY = frozenset((
    ModuleKind.LINEAR, ModuleKind.CONVOLUTION, ModuleKind.RECURRENT, ModuleKind.EMBEDDING, ModuleKind.NORMALIZATION,
    ModuleKind.RECTIFIER, ModuleKind.SATURATING, ModuleKind.ACTIVATION,
))  # fmt: skip


class AllZero(Rule):
    """A tensor holds nothing but zeros.

    Looks at: the share of zeros in each captured tensor of training.
    Fires when: it is at least `threshold` percent in `window` captures of the tensor in a row. By default only tensors
        that must not stay zero count: trainable weights with two or more axes, and outputs of layers and activations. A
        matrix that starts at zero (LoRA, residual branches) moves with the first updates. With `everything`, all
        captured tensors count; zero gradients are then an `info`, because other rules report them.
    Usual causes: weights filled with a constant, units that have died, an input that arrives blank.
    What to try: random initial weights; LeakyReLU or GELU after the layer.
    Costs: nothing beyond the statistics that are captured by default.
    Source: 100 percent: SageMaker Debugger documentation; house: the window, and which tensors count.
    """

    needs = (Needs(statistics=("zero", "count"), why="to count zeros"),)
    calibrations: ClassVar = {"sagemaker": {"threshold": 100.0, "window": 1, "everything": True}}

    threshold: float = parameter(100.0, help="share of values that are zero", unit="percent", gt=0, le=100)
    window: int = parameter(8, help="captures of a tensor in a row", unit="captures", ge=1)
    everything: bool = parameter(False, help="whether all captured tensors count")
    name_regex: str | None = parameter(None, help="only tensors whose name contains a match of this")

    #: Captures in a row by tensor, of those that are zero at present.
    zero: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """One finding for the weights, one for the outputs, one for the rest of a step."""
        if view.mode is not Mode.TRAIN or not view.captured:
            return
        rows = view.statistics(name_regex=self.name_regex)
        full = (rows.count > 0) & (100.0 * rows.zero >= self.threshold * rows.count)
        if self.zero:
            # Groups of tensors may be captured in turn: those that are absent keep their numbers.
            over = set(rows.where(~full).names)
            self.zero = Streaks({name: streak for name, streak in self.zero.items() if name not in over})
        found: dict[Role, list[str]] = {}
        for info in rows.where(full).tensors:
            if self._counts(info) and self.zero.follow(view.mode_step, True, info.name) >= self.window:
                judged = info.role in (Role.WEIGHT, Role.OUTPUT, Role.GRADIENT)
                found.setdefault(info.role if judged else Role.CUSTOM, []).append(info.name)
        for role, names in found.items():
            yield self._finding(view, role, names)

    applicable = staticmethod(signals.without_layers)

    def _counts(self, info: TensorInfo) -> bool:
        if self.everything:
            return True
        if info.role is Role.WEIGHT:
            return info.trainable is True and len(info.shape) >= 2
        return info.role is Role.OUTPUT and info.module_kind in _CARRY

    def _finding(self, view: StepView, role: Role, names: list[str]) -> Finding:
        severity = Severity.WARNING if role in (Role.WEIGHT, Role.OUTPUT) else Severity.INFO
        others = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
        since = f" in {min(map(self.zero.times, names))} captures in a row" if self.window > 1 else ""
        whose = "their" if len(names) > 1 else "its"
        share = "all zero" if self.threshold == 100 else f"zero in at least {self.threshold:g} % of {whose} values"
        return self.finding(
            view,
            severity=severity,
            subject=role.value,
            tensors=names[:16],
            value=float(len(names)),
            message=f"{names[0]}{others} {share}{since} up to step {view.mode_step}",
            symptoms=("weights_all_zero",)
            if role is Role.WEIGHT
            else ("all_units_dead",)
            if role is Role.OUTPUT
            else (),
            evidence={
                "layer": names[0].partition(".output")[0],
                "captures": min(map(self.zero.times, names)),
                **signals.optimizer_evidence(view),
            },
            since=self.zero.since(*names),
        )
