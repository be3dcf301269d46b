"""AttentionLogitGrowth: attention logits beyond what a softmax resolves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

_MARK = "attention_logits_max."


class AttentionLogitGrowth(Rule):
    """The largest attention logit of a head grows beyond 100.

    Looks at: the largest product of query and key, scaled and masked as the softmax sees it, for each attention head.
        In compiled code the rule sees `scaled_dot_product_attention` alone.
    Fires when: in `window` captures in a row it is above `limit` and `growth` times its value at the first capture; one
        capture is enough if it is ten times that value. Or it is above five times `limit` since the first capture: such
        a softmax has never worked. Large logits that do not grow, like those of some pretrained models, are an `info`.
    Usual causes: logits that are not divided by the square root of the head's size, a learning rate that is too high,
        no normalisation of queries and keys.
    What to try: normalise queries and keys; clip their logits (QK-Clip); a lower learning rate with warm-up.
    Costs: queries and keys of a few rows of four sequences are multiplied again at captured steps; attention that is
        written out is read where its softmax is called.
    Source: 100: Kimi K2 (2507.20534); growth and windows: house.
    """

    needs = (
        Needs(collection="attention", statistics=("max",), optional=True, why="to see the largest logit of each head"),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )
    modes = (Mode.TRAIN,)

    limit: float = parameter(100.0, help="largest logit of a softmax that works", gt=0)
    growth: float = parameter(1.5, help="growth since the first capture", unit="ratio", ge=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    #: By tensor: largest logit at the first capture, and captures in a row above the limit.
    first: dict[str, float] = state(dict)
    above: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """At most one finding of a step, about the head with the largest logit."""
        rows = view.statistics(collection="attention", name_regex=r"(^|\.)attention_logits_max\.")
        if not len(rows):
            return
        grown: dict[str, float] = {}
        steady: dict[str, float] = {}
        for name, value in zip(rows.names, rows.max.tolist(), strict=True):
            if not np.isfinite(value):
                continue
            start = self.first.setdefault(name, value)
            times = self.above.follow(view.mode_step, value > self.limit, name)
            # A run of a few hundred steps has few captures.
            at_once = value > max(self.limit, 10 * abs(start))
            if at_once or times >= self.window:
                sick = value > self.growth * start or min(value, start) > 5 * self.limit
                (grown if sick else steady)[name] = value
        found = grown or steady
        if found:
            yield self._finding(view, found, Severity.WARNING if grown else Severity.INFO)

    def applicable(self, view: StepView) -> str:
        """Not where no attention was captured."""
        return "" if self.first else signals.no_attention(view)

    def _finding(self, view: StepView, found: dict[str, float], severity: Severity) -> Finding:
        name = max(found, key=found.__getitem__)
        path, _, head = name.partition(_MARK)
        module = path.rstrip(".") or "the model"
        more = f"; {len(found)} heads are above {self.limit:g}" if len(found) > 1 else ""
        return self.finding(
            view,
            severity=severity,
            subject="attention",
            tensors=[name, *(other for other in found if other != name)][:16],
            value=found[name],
            limit=self.limit,
            message=f"the largest attention logit of head {head} of {module} is {found[name]:.4g} at step "
            f"{view.mode_step}, after {self.first[name]:.3g} at the first capture{more}",
            symptoms=("attention_logits_large",) if severity is Severity.WARNING else (),
            evidence={"module": module, **signals.evidence(view)},
            since=self.above.since(name),
        )
