"""AlwaysClipping: most gradients are clipped, clipping removes almost all of them, or it comes before unscaling."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Role, Severity, facts, in_percent
from watchglass.rules import signals
from watchglass.rules.modern.call_rounds import Round, rounds_of
from watchglass.rules.modern.sampled_updates import middle, sampled_updates
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.stats import median
from watchglass.tables import StepView

#: Norms that are remembered.
_LATEST = 16
#: Captures with a norm from which on it is judged.
_FEWEST = 8
#: Relative difference of limits that are the same but for rounding, and mean over limit where most elements are at it.
_ROUNDING, _AT_LIMIT = 1e-5, 0.9
#: Elements from which on a gradient shows a limit of its elements (house).
_MANY = 16
#: Change of a layer's norm, as a share of the whole norm, that shows that the gradient is another one (house).
_CHANGED = 0.01


class AlwaysClipping(Rule):
    """Most steps clip the gradient, or clipping removes almost all of it.

    Looks at: how often the norm exceeded the limit of clipping, this limit, the norm before it, sampled updates, the
        order of calls with a gradient scaler, and whether the gradients of all weights end at one absolute value.
    Fires when: more than `share` of at least `calls` calls exceeded the limit: `info`, because many recipes clip at
        every step. It is a `warning` if four conditions hold: the limit is less than `left` of the norm in the median
        of the last captures, the optimizer does not normalise the gradient itself (as Adam does), updates are below
        `small` times the weights, and the loss has fallen by less than half. Or the last three hold, and in eight
        captures in a row most elements of all gradients have one absolute value, or their norm is the same while the
        norms of single layers change: they are clipped, by PyTorch or by the script, with a limit that each of them
        exceeds. Or the norm is infinite in eight
        captures in a row: a gradient that is scaled by it is zero. Or gradients are clipped between the backward and
        the step of a scaler whose scale is above the limit, without its unscale_, and the limit is less than `left` of
        the norm.
    Usual causes: a limit from a recipe for another loss or batch size; a loss that is summed and not averaged; a
        missing scaler.unscale_(optimizer).
    What to try: set the limit near the median of the norm; with Adam, the limit changes little. With a scaler, call
        unscale_ before clipping.
    Costs: the facts clip and calls, about a microsecond per call; update_sample, 0.05 ms for each of at most 32
        parameters at steps 8 to 64 apart.
    Source: a public run monitor (more than 5 % of 300 steps); PyTorch documentation of automatic mixed precision
        (working with unscaled gradients); house: `share` and the rest.
    """

    starts_with = "stage"
    needs = (
        Needs(facts=("clip",), optional=True, why="to see how often gradients are clipped"),
        Needs(scalars=("gradient_norm_before_clip",), optional=True, why="to compare the limit with the norm"),
        Needs(facts=("update_sample",), why="to see what is left of updates"),
        Needs(
            role=Role.GRADIENT,
            statistics=("count", "min", "max", "nonzero_abs_mean", "l2"),
            optional=True,
            why="to see that all elements are at a limit",
        ),
        Needs(scalars=("gradient_norm",), optional=True, why="to see that a script sets the norm"),
        Needs(scalars=("loss",), optional=True, why="to see whether the run learns"),
        Needs(facts=("calls", "loss_scale"), optional=True, why="to see whether gradients are unscaled before"),
    )

    share: float = parameter(0.5, help="share of calls that clip", unit="ratio", gt=0, le=1)
    calls: int = parameter(64, help="calls after which it is judged", ge=1)
    left: float = parameter(0.01, help="limit over norm below which little is left", unit="ratio", gt=0)
    small: float = parameter(1e-4, help="update over weight below which little is learned", unit="ratio", gt=0)

    #: Calls that could be compared with their limit, and those above it; the limit.
    compared: int = state(int)
    exceeded: int = state(int)
    limit: float | None = state(lambda: None)
    norms: list[float] = state(list)
    ratio: float = state(float)
    #: At the latest capture, the absolute value at which the gradients end (``"edge"``), their norm (``"norm"``), and
    #: captures with the same.
    values: dict[str, float] = state(dict)
    same: Streaks = state(Streaks)
    #: Norms of the gradients of layers at the latest capture.
    layers: list[float] = state(list)
    #: Captures in a row with an infinite norm.
    infinite: Streaks = state(Streaks)
    normalises: bool = state(bool)
    start: list[float] = state(list)
    #: Whether the latest order of calls clips gradients that a scaler has not unscaled.
    scaled: bool = state(bool)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding at a TRAIN step."""
        for clip in view.facts(facts.Clip):
            self._take(clip)
        if view.mode is not Mode.TRAIN:
            return
        signals.remember_start(self.start, signals.loss(view))
        for sample in sampled_updates(view):
            self.ratio = middle(sample.ratio())
            # An epsilon is part of a denominator: the optimizer divides by the size of its gradients.
            self.normalises = bool(np.isfinite(sample.setting("eps")).any())
        for fact in view.facts(facts.Calls):
            rounds = rounds_of(fact)
            self.scaled = all(map(_clips_scaled, rounds)) if rounds else self.scaled
        norm = view.scalar("gradient_norm_before_clip")
        if norm is None or norm <= 0:
            yield from self._at_a_limit(view)
            return
        scale = view.scalar("loss_scale")
        if self.scaled and scale is not None and self.limit and self.limit < min(scale, self.left * norm) < np.inf:
            kept = self.limit / norm
            yield self._finding(
                view, "before unscaling", kept, self.left, "clipped_before_unscaling",
                f"gradients are clipped before scaler.unscale_, while they are multiplied by {scale:g}: clipping at "
                f"{self.limit:g} leaves {100 * kept:.2g} % of a norm of {norm:.3g} at step {view.mode_step}",
            )  # fmt: skip
            return
        if (captures := self.infinite.follow(view.mode_step, np.isinf(norm))) >= _FEWEST:
            yield self._finding(
                view, "infinite", float(captures), float(_FEWEST), "gradient_huge",
                f"the norm of the gradient is infinite in {captures} captures in a row up to step {view.mode_step}, so "
                "clipping by it sets every gradient to zero", since=self.infinite.since(),
            )  # fmt: skip
        if not np.isfinite(norm):
            return
        self.norms = [*self.norms[1 - _LATEST :], norm]
        seldom = self.compared > 0 and self.exceeded <= self.share * self.compared
        if not self.limit or len(self.norms) < _FEWEST or seldom:
            return
        usual = median(self.norms)
        kept = self.limit / usual
        if kept < self.left and self._stuck(view):
            yield self._finding(
                view, "nothing left", kept, self.left, "clipped_to_nothing",
                f"clipping at {self.limit:g} leaves {100 * kept:.2g} % of the gradient, whose norm is {usual:.3g} in "
                f"the median, and updates are {self.ratio:.2g} times the weights at step {view.mode_step}",
                update_ratio=self.ratio, gradient_norm=usual,
            )  # fmt: skip
        elif self.compared >= self.calls and kept < 1:
            yield self.finding(
                view,
                severity=Severity.INFO,
                subject="often",
                tensors=["gradient_norm"],
                value=self.exceeded / self.compared,
                limit=self.share,
                message=f"{in_percent(self.exceeded / self.compared)} of {self.compared} clip calls had something to "
                f"clip up to step {view.mode_step}: the limit is {self.limit:g}, the norm {usual:.3g} in the median",
            )

    def _at_a_limit(self, view: StepView) -> Iterable[Finding]:
        """A finding where the gradients themselves show that all of them exceeded a limit."""
        if not view.captured or self.normalises or not 0 < self.ratio < self.small:
            return
        gradients = signals.weight_gradients(view)
        gradients = gradients.where(gradients.count >= _MANY)
        if not len(gradients):
            return
        ends = np.maximum(np.abs(gradients.min), np.abs(gradients.max))
        edge, norm = float(ends.max()), view.scalar("gradient_norm") or 0.0
        flat = (ends >= (1 - _ROUNDING) * edge) & (gradients.nonzero_abs_mean >= _AT_LIMIT * edge)
        edges = self._count(view, "edge", edge if edge > 0 and flat.all() else 0.0)
        # A batch of all data gives the same gradient at each step, unless the weights move.
        layers = gradients.l2.tolist()
        changes = [abs(new - old) > _CHANGED * norm for new, old in zip(layers, self.layers, strict=False)]
        norms = self._count(view, "norm", norm if any(changes) else 0.0)
        self.layers = layers
        if edges >= _FEWEST:
            what = f"most elements of all gradients are at {edge:.3g} or -{edge:.3g}, the limit of clipping by value,"
        elif norms >= _FEWEST:
            what = f"the norm of the gradient is {norm:.3g}, the limit of clipping by the norm,"
        else:
            return
        if self._stuck(view):
            yield self.finding(
                view,
                subject="at a limit",
                tensors=gradients.names[:8] if edges >= _FEWEST else ["gradient_norm"],
                value=edge if edges >= _FEWEST else norm,
                message=f"{what} in {max(edges, norms)} captures in a row up to step "
                f"{view.mode_step}, and updates are {self.ratio:.2g} times the weights",
                symptoms=("clipped_to_nothing",),
                evidence={**signals.evidence(view), "update_ratio": self.ratio},
                since=self.same.since("edge" if edges >= _FEWEST else "norm"),
            )

    def _count(self, view: StepView, name: str, value: float) -> int:
        """Captures in a row with this value, but for rounding; zero is no value."""
        if not abs(value - self.values.get(name, 0.0)) <= _ROUNDING * value:
            self.same.follow(view.mode_step, False, name)
        self.values[name] = value
        return self.same.follow(view.mode_step, value > 0, name)

    def _finding(
        self, view: StepView, subject: str, value: float, limit: float, symptom: str, message: str, *,
        since: int | None = None, **measured: float,
    ) -> Finding:  # fmt: skip
        return self.finding(
            view, subject=subject, tensors=["gradient_norm"], value=value, limit=limit, message=message,
            symptoms=(symptom,), evidence={**signals.evidence(view), **measured}, since=since,
        )  # fmt: skip

    def _take(self, clip: facts.Clip) -> None:
        if clip.max_norm is not None:
            self.limit = float(clip.max_norm)
        self.compared += clip.compared
        self.exceeded += clip.exceeded

    def _stuck(self, view: StepView) -> bool:
        slow = 0 < self.ratio < self.small and not signals.warming_up(view) and not signals.decayed(view)
        return not self.normalises and slow and signals.progress(self.start, signals.losses(view, 32)) < 0.5


def _clips_scaled(order: Round) -> bool:
    """Whether gradients are clipped on the way from the backward to the step of a scaler, and not unscaled before."""
    calls = order.calls
    clips = [at for at, call in enumerate(calls) if call.startswith("clip_grad")]
    steps = [at for at, call in enumerate(calls) if call.startswith("scaler") and call.endswith(".step")]
    if not clips or not steps or clips[0] > steps[0]:
        return False
    return not any(call.endswith(".unscale_") for call in calls[: clips[0]])
