"""MixedPrecision: values of half precision overflow or vanish."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, facts, in_percent
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import Statistics, StepView

#: The dtype whose range is small: bfloat16 has that of float32. Its largest number, and its smallest one above zero.
_HALF, _LARGEST, _SMALLEST = "float16", 65504.0, 2.0**-24


class MixedPrecision(Rule):
    """Values of float16 overflow or vanish, or the gradient scaler finds no scale that works.

    Looks at: the scale of a gradient scaler and the updates that it skipped; gradients and outputs of float16.
    Fires when: the scale is below 1, or `in_a_row` updates in a row were skipped after step `start` (before it, the
        scaler is still searching for its scale). Or gradients of float16 are zero in more than `zeros` of their
        elements while the others lie within `near_zero` times the smallest number of float16, in `window` captures in a
        row. Or outputs of float16 come within `near` of its largest number, 65504, in `window` captures in a row.
    Usual causes: no gradient scaler, values that are too large for float16, a loss that is a sum.
    What to try: bfloat16, which has the range of float32; torch.amp.GradScaler; normalisation before large layers.
    Costs: a microsecond per update of a gradient scaler; nothing beyond the statistics that are captured by default.
    Source: Micikevicius et al., Mixed Precision Training (1710.03740); house: the limits.
    """

    needs = (
        Needs(facts=("loss_scale", "step_skipped"), optional=True, why="to follow the gradient scaler"),
        Needs(scalars=("loss_scale",), optional=True, why="to know the scale on a device"),
        Needs(
            role=Role.GRADIENT, statistics=("zero_ratio", "nonzero_abs_mean"), optional=True,
            why="to see gradients that vanish",
        ),
        Needs(role=Role.OUTPUT, statistics=("min", "max"), optional=True, why="to see outputs that nearly overflow"),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )  # fmt: skip
    modes = (Mode.TRAIN,)

    in_a_row: int = parameter(3, help="skipped updates in a row", unit="steps", ge=1)
    start: int = parameter(100, help="steps in which the scaler searches for its scale", unit="steps", ge=0)
    zeros: float = parameter(0.3, help="share of zeros in a gradient", unit="ratio", gt=0, le=1)
    near_zero: float = parameter(64.0, help="size of the others, over the smallest number of float16", gt=1)
    near: float = parameter(0.5, help="largest output over the largest number of float16", unit="ratio", gt=0, lt=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    skipped: Streaks = state(Streaks)
    scaled: bool = state(bool)
    half: bool = state(bool)
    #: By tensor, captures in a row.
    vanishing: Streaks = state(Streaks)
    large: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """Findings about the scaler, gradients and outputs."""
        yield from self._scaler(view)
        gradients = _in_half(view.statistics(Role.GRADIENT))
        outputs = _in_half(view.statistics(Role.OUTPUT))
        self.half |= bool(len(gradients) or len(outputs))
        if len(gradients):
            tiny = gradients.nonzero_abs_mean < self.near_zero * _SMALLEST
            vanish = (gradients.zero_ratio > self.zeros) & tiny
            for row in self._rows(view, self.vanishing, gradients, vanish):
                yield self._underflow(view, gradients, row)
        if len(outputs):
            with np.errstate(invalid="ignore"):
                most = np.maximum(np.abs(outputs.min), np.abs(outputs.max)) / _LARGEST
            for row in self._rows(view, self.large, outputs, np.isfinite(most) & (most > self.near)):
                name, share = outputs.names[row], float(most[row])
                yield self._finding(
                    view, name, [name], share, self.near, "outputs_near_overflow",
                    f"{name} reaches {in_percent(share)} of the largest number of float16 at step {view.mode_step}",
                    self.large.since(name),
                )  # fmt: skip

    def applicable(self, view: StepView) -> str:
        """Not where nothing is of half precision."""
        return "" if self.half or self.scaled else "nothing that was captured is of float16, and no scaler was used"

    def _scaler(self, view: StepView) -> Iterable[Finding]:
        scale = view.scalar("loss_scale")
        for fact in view.facts(facts.LossScale):
            scale = fact.scale if fact.scale is not None else scale
        self.scaled |= scale is not None
        skipped = self.skipped.follow(view.mode_step, signals.skipped(view))
        if scale is not None and scale < 1:
            yield self._finding(
                view, "scale", [], scale, 1.0, "scale_below_one",
                f"the gradient scaler has lowered its scale to {scale:.3g} at step {view.mode_step}: gradients "
                "are not finite even where they are not scaled",
            )  # fmt: skip
        if skipped >= self.in_a_row and view.model_step >= self.start:
            yield self._finding(
                view, "skipped", [], float(skipped), float(self.in_a_row), "updates_skipped",
                f"the gradient scaler has skipped {skipped} updates in a row up to step {view.mode_step}, after "
                "gradients that were not finite", self.skipped.since(),
            )  # fmt: skip

    def _rows(self, view: StepView, streaks: Streaks, rows: Statistics, now: npt.NDArray[np.bool_]) -> list[int]:
        """Rows for which a condition has held for `window` captures in a row."""
        times = [
            streaks.follow(view.mode_step, holds, name) for name, holds in zip(rows.names, now.tolist(), strict=True)
        ]
        return [row for row, number in enumerate(times) if number >= self.window]

    def _underflow(self, view: StepView, gradients: Statistics, row: int) -> Finding:
        name, zeros = gradients.names[row], float(gradients.zero_ratio[row])
        others = float(gradients.nonzero_abs_mean[row])
        scaler = "" if self.scaled else ", and no gradient scaler is used"
        return self._finding(
            view, "gradients", [name], zeros, self.zeros, "gradients_underflow",
            f"{in_percent(zeros)} of {name} are zero, and the others, {others:.2g} in the "
            f"mean, are near the smallest number of float16 at step {view.mode_step}{scaler}",
            self.vanishing.since(name), mean_of_others=others,
        )  # fmt: skip

    def _finding(
        self, view: StepView, subject: str, tensors: list[str], value: float, limit: float, symptom: str, message: str,
        since: int | None = None, **measured: float,
    ) -> Finding:  # fmt: skip
        return self.finding(
            view, subject=subject, tensors=tensors, value=value, limit=limit,
            message=message, symptoms=(symptom,), evidence={**signals.evidence(view), **measured}, since=since,
        )  # fmt: skip


def _in_half(rows: Statistics) -> Statistics:
    """The rows of tensors of float16."""
    return rows.part(
        _HALF, lambda: np.array([n for n, info in enumerate(rows.tensors) if info.dtype == _HALF], np.int64)
    )
