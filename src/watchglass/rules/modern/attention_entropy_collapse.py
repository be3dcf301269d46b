"""AttentionEntropyCollapse: the heads of a layer attend to single positions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks
from watchglass.tables import StepView

_MARK = "attention_entropy."
#: Nats below which attention has been sharp from the start, as in a pretrained model or over very few positions.
_SHARP = 0.3


class AttentionEntropyCollapse(Rule):
    """The attention of most heads of a layer collapses to single positions.

    Looks at: the mean entropy of the attention of each head, in nats, at captured steps. In compiled code the rule
        sees `scaled_dot_product_attention` alone.
    Fires when: for more than `heads` of the heads of a module it is below `share` times its largest value so far, in
        `window` captures in a row. New weights attend nearly evenly, so the largest value is near the logarithm of the
        number of positions. Single heads may attend to one position, such as the one before, in healthy models.
    Usual causes: a learning rate that is too high or without warm-up, attention logits that grow without limit.
    What to try: normalise queries and keys; a lower learning rate with warm-up; spectral normalisation of weights.
    Costs: the attention of up to four sequences is computed again at captured steps.
    Source: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (2303.06296); house:
        `share`, `heads`, `window`.
    """

    needs = (
        Needs(collection="attention", statistics=("mean",), optional=True, why="to see the entropy of each head"),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )
    modes = (Mode.TRAIN,)

    share: float = parameter(0.1, help="entropy over its largest value so far", unit="ratio", gt=0, lt=1)
    heads: float = parameter(0.5, help="share of the heads of a module", unit="ratio", ge=0, lt=1)
    window: int = parameter(3, help="captures in a row", unit="captures", ge=1)

    largest: dict[str, float] = state(dict)
    #: By module: captures in a row at which most heads had collapsed.
    collapsed: Streaks = state(Streaks)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each module whose heads have collapsed."""
        rows = view.statistics(collection="attention", name_regex=r"(^|\.)attention_entropy\.")
        modules: dict[str, dict[str, float]] = {}
        for name, mean in zip(rows.names, rows.mean.tolist(), strict=True):
            if np.isfinite(mean):
                self.largest[name] = max(self.largest.get(name, 0.0), mean)
                modules.setdefault(name.partition(_MARK)[0].rstrip("."), {})[name] = mean
        for module, means in modules.items():
            low = [name for name, mean in means.items() if self._is_low(name, mean)]
            most = len(low) > self.heads * len(means)
            if self.collapsed.follow(view.mode_step, most, module) >= self.window:
                yield self._finding(view, module, low, means)

    def applicable(self, view: StepView) -> str:
        """Not where no attention was captured."""
        return "" if self.largest else signals.no_attention(view)

    def _is_low(self, name: str, mean: float) -> bool:
        return self.largest[name] > _SHARP and mean < self.share * self.largest[name]

    def _finding(self, view: StepView, module: str, low: list[str], means: dict[str, float]) -> Finding:
        worst = min(low, key=means.__getitem__)
        return self.finding(
            view,
            subject=module or "the model",
            tensors=[worst, *(name for name in low if name != worst)][:16],
            value=means[worst],
            limit=self.share * self.largest[worst],
            message=f"the attention of {len(low)} of {len(means)} heads of {module or 'the model'} has collapsed: the "
            f"entropy of head {worst.partition(_MARK)[2]} is {means[worst]:.2g} nats at step {view.mode_step}, after "
            f"{self.largest[worst]:.3g}",
            symptoms=("attention_collapsed",),
            evidence={"module": module, **signals.evidence(view)},
            since=self.collapsed.since(module),
        )
