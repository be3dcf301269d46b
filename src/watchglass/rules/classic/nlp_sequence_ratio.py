"""NLPSequenceRatio: sequences that consist mostly of one token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from watchglass.config import ParameterError, parameter
from watchglass.records import Finding, Mode, Severity, facts, in_percent
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView


class NLPSequenceRatio(Rule):
    """A large share of the input tokens are padding, or another given token.

    Looks at: the share of each of the most common tokens in the sketched inputs, and the tokens that rows end with.
    Fires when: over `samples` sequences the share of padding is above `threshold_percent`: an `info`, because padding
        costs time. PaddingNotMasked reports padding that harms training. In calibration `sagemaker` the tokens are
        those of `token_values`, and the finding is a `warning`.
    Usual causes: sequences that are padded to the longest of the data set instead of the batch.
    What to try: group sequences by length, pad each batch to its longest one, or pack several into one row.
    Costs: a copy of at most 128 KiB of the inputs, at about 80 of 5,000 steps.
    Source: `token_values` 0 and `token_thresholds_percent` 50: SageMaker Debugger; Krell et al., Efficient Sequence
        Packing, 2021 (half of the tokens of BERT's batches were padding).
    """

    needs = (Needs(facts=("input_sketch",), why="to count tokens"),)
    modes = (Mode.TRAIN,)
    calibrations: ClassVar[Mapping[str, Mapping[str, Any]]] = {"sagemaker": {"token_values": ("0",), "samples": 1}}

    token_values: tuple[str, ...] = parameter((), help="tokens to count; none: the padding that rows end or begin with")
    token_thresholds_percent: tuple[str, ...] = parameter(("50",), help="largest share of each, in percent")
    samples: int = parameter(200, help="sequences before the rule judges", unit="sequences", ge=1)

    sequences: int = state(int)
    #: Sums over sequences of the share of each token.
    shares: dict[str, float] = state(dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("token_values", "token_thresholds_percent"):
            for value in getattr(self, name):
                try:
                    float(value)
                except ValueError:
                    raise ParameterError(self.name, name, f"must be numbers but got {value!r}") from None

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding once enough sequences were sketched."""
        for sketch in view.facts(facts.InputSketch):
            if len(sketch.shape) != 2 or sketch.most_common is None:
                continue
            self.sequences += sketch.shape[0]
            common = {str(int(value)): share for value, share in sketch.most_common}
            if not self.token_values and sketch.padding is not None:
                common = {str(sketch.padding.token): sketch.padding.share}
            for token in self.token_values or tuple(common):
                self.shares[token] = self.shares.get(token, 0.0) + sketch.shape[0] * common.get(token, 0.0)
            if self.sequences >= self.samples:
                yield from self._judge(view)

    def applicable(self, view: StepView) -> str:
        """Not for models without sequences of tokens."""
        return "" if self.sequences else "no input is a batch of sequences of tokens"

    def _judge(self, view: StepView) -> Iterable[Finding]:
        limits = self.token_thresholds_percent or ("50",)
        for index, token in enumerate(self.token_values or sorted(self.shares)):
            percent = 100 * self.shares.get(token, 0.0) / self.sequences
            limit = float(limits[min(index, len(limits) - 1)])
            if percent > limit:
                yield self.finding(
                    view,
                    severity=Severity.WARNING if self.token_values else Severity.INFO,
                    subject=f"token {token}",
                    value=percent,
                    limit=limit,
                    message=f"token {token} is {in_percent(percent / 100)} of the tokens of {self.sequences} sequences",
                    symptoms=("mostly_one_token",) if self.token_values else (),
                )
