"""PaddingNotMasked: padding affects the output of the model or its loss."""

from __future__ import annotations

import math
from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Share of rows that must end with the token, and gradient of its embedding, in that of a usual token, that is none.
_ROWS, _NO_GRADIENT = 0.6, 1e-4


class PaddingNotMasked(Rule):
    """Most tokens are padding, and the loss depends on them.

    Looks at: the token that most rows end (or begin) with and the share that its runs fill; the gradient of its
        embedding, compared with those of other tokens (exactly zero if padding is masked everywhere); the share of the
        same label among the targets.
    Fires when: runs of one token fill more than `share` of the inputs in `patience` sketches, and its embedding gets a
        gradient, or it fills the same share of the labels that the loss counts. From `some` on it is an `info`, because
        texts with a little padding train well without a mask.
    Usual causes: attention without `key_padding_mask`, a mean over all positions, an LSTM that reads the padding before
        its last state is used, a loss without `ignore_index`.
    What to try: mask padding in attention and pooling, and give the loss ignore_index.
    Costs: a copy of at most 128 KiB of the inputs and the norms of up to 4,096 rows of the gradient of an embedding, at
        about 80 of 5,000 steps.
    Source: exact for the gradient; house: `share`, `some`.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(facts=("input_sketch",), why="to find padding"),
        Needs(facts=("target_sketch",), optional=True, why="to see whether the loss counts it"),
    )
    modes = (Mode.TRAIN,)

    share: float = parameter(0.7, help="share of the inputs that is padding", gt=0, lt=1)
    some: float = parameter(0.3, help="the share from which it is reported", gt=0, lt=1)
    patience: int = parameter(4, help="sketches", unit="sketches", ge=1)

    #: By kind of leak: sketches.
    leaks: dict[str, int] = state(dict)
    sequences: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding at a sketched step."""
        for sketch in view.facts(facts.InputSketch):
            padding = sketch.padding
            if padding is None:
                continue
            self.sequences += 1
            if padding.share < self.some or padding.rows < _ROWS:
                continue
            gradient = padding.gradient
            if gradient is not None and gradient > _NO_GRADIENT:
                words = f"its embedding gets {gradient:.2g} times the gradient of a usual token"
                yield from self._leak(view, padding, "inputs", words, gradient)
            for target in view.facts(facts.TargetSketch):
                of_tokens = 2 * math.prod(target.shape) > math.prod(sketch.shape)
                if of_tokens and (counted := _counted(target, padding.token)) > 0.8 * padding.share:
                    words = f"{in_percent(counted)} of the labels that the loss counts are that token"
                    yield from self._leak(view, padding, "labels", words, counted)

    def applicable(self, view: StepView) -> str:
        """Not for models without sequences of tokens."""
        return "" if self.sequences else "no input is a batch of sequences of tokens"

    def _leak(
        self, view: StepView, padding: facts.SketchedPadding, subject: str, words: str, leak: float
    ) -> Iterable[Finding]:
        severe = padding.share >= self.share
        key = f"{subject}{severe}"
        self.leaks[key] = self.leaks.get(key, 0) + 1
        if self.leaks[key] < self.patience:
            return
        yield self.finding(
            view,
            severity=Severity.WARNING if severe else Severity.INFO,
            subject=subject,
            value=padding.share,
            limit=self.share if severe else self.some,
            message=f"{in_percent(padding.share)} of the inputs are token {padding.token} at ends of rows, and {words}",
            symptoms=("padding_leaks",) if severe else (),
            evidence={"token": padding.token, "leak": leak},
        )


def _counted(target: facts.TargetSketch, token: int) -> float:
    """Share of the padding token among the labels of a sequence that a loss counts."""
    if target.kind != "classes" or target.ignored or target.columns <= token:
        return 0.0
    return dict(target.counts or ()).get(token, 0) / max(1, target.rows)
