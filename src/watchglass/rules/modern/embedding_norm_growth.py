"""EmbeddingNormGrowth: the rows of an embedding grow without levelling off."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, ModuleKind, Role
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: Captures over which the latest growth is measured.
_LATEST = 8


class EmbeddingNormGrowth(Rule):
    """The rows of an embedding have grown far beyond their initial size, and still grow.

    Looks at: the root mean square of the weights of embeddings at captured steps.
    Fires when: from step `start` on, it is `growth` times its first value, and has grown by at least a tenth since half
        the current step number: a `warning`, because the growth does not level off. Rows that start at zero are not
        judged.
    Usual causes: no weight decay on embeddings, a learning rate that is too high for them.
    What to try: weight decay on embeddings, a normalisation after them, or scaled embeddings.
    Costs: nothing beyond the statistics of weights that are captured by default.
    Source: Takase et al., Spike No More (2312.16903), on the scale of embeddings; house: the limits.
    """

    needs = (
        Needs(
            role=Role.WEIGHT, module_kinds=(ModuleKind.EMBEDDING,), statistics=("rms",), optional=True,
            why="to see the size of embeddings",
        ),
        Needs(scalars=("loss",), optional=True, why="to report the loss"),
    )  # fmt: skip
    modes = (Mode.TRAIN,)

    growth: float = parameter(10.0, help="root mean square over its first value", unit="ratio", gt=1)
    start: int = parameter(200, help="first step that is judged", unit="steps", ge=0)

    #: By tensor: step numbers and values, of which early ones are thinned out.
    course: dict[str, list[list[float]]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each embedding that grows."""
        rows = view.statistics(Role.WEIGHT, module_kinds=(ModuleKind.EMBEDDING,))
        for name, rms in zip(rows.names, rows.rms.tolist(), strict=True):
            if not np.isfinite(rms) or rms <= 0:
                continue
            course = self.course.setdefault(name, [])
            course.append([float(view.model_step), rms])
            _thin(course)
            first, half = course[0][1], _value_at(course, view.model_step / 2)
            late = view.model_step >= self.start and len(course) >= _LATEST
            if late and rms > self.growth * first and rms > 1.1 * half:
                yield self.finding(
                    view,
                    tensors=[name],
                    value=rms,
                    limit=self.growth * first,
                    message=f"the values of {name} have grown {rms / first:.3g}-fold, to a root mean square of "
                    f"{rms:.3g} at step {view.mode_step}, and {rms / half:.3g}-fold since half of the run so far",
                    symptoms=("embedding_grows",),
                    evidence={"growth": rms / first, "growth_since_half": rms / half, **signals.evidence(view)},
                )

    def applicable(self, view: StepView) -> str:
        """Not for models without embeddings."""
        return "" if self.course else "the model has no embedding whose weights were captured"


def _thin(course: list[list[float]]) -> None:
    """Leave out every other of the older values where there are many; the first one stays."""
    if len(course) >= 64:
        course[1:-_LATEST] = course[2:-_LATEST:2]


def _value_at(course: list[list[float]], step: float) -> float:
    """The value of the last capture up to a step."""
    return next((value for at, value in reversed(course) if at <= step), course[0][1])
