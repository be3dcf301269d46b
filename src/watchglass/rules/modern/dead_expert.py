"""DeadExpert: experts that get no tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import Finding, Mode, Severity, UnitKind
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

_LOAD = ".router_load"


class DeadExpert(Rule):
    """Experts of a mixture get no tokens.

    Looks at: for each expert of a router, whether it got less than a hundredth of a fair share of the tokens.
    Fires when: this holds in each of the last `window` captures, which together had enough tokens to expect `least` for
        each expert. It is a `warning` if at least half of the experts of the router are dead, else an `info`.
    Usual causes: no loss for the balance of the experts; a router that has collapsed.
    What to try: a loss for their balance; noise on the router's logits; fewer experts.
    Costs: nothing without a router; one bit for each expert at captured steps.
    Source: no use at all: NeMo Automodel; half of the experts, windows: house.
    """

    default = True
    needs = (Needs(collection="router", statistics=("count",), optional=True, why="to see the load of experts"),)

    window: int = parameter(8, help="captures in a row", unit="captures", ge=1)
    least: float = parameter(50.0, help="tokens for each expert to be expected in these captures", ge=0)
    start: int = parameter(50, help="first step that is judged", unit="steps", ge=0)

    #: By router: captures in a row without use for each expert, and tokens for each expert in them.
    unused: dict[str, dict[str, Any]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each router."""
        if view.mode is not Mode.TRAIN:
            return
        rows = view.statistics(collection="router", name_regex=r"\.router_logits$")
        counts = dict(zip(rows.names, rows.count.tolist(), strict=True))
        for info, bits in view.units(UnitKind.UNUSED):
            if len(bits) < 2:
                continue
            fair = counts.get(info.name.replace(_LOAD, ".router_logits"), 0.0) / len(bits) ** 2
            known = self.unused.get(info.name)
            if known is None or len(known["captures"]) != len(bits):
                known = self.unused[info.name] = {"captures": np.zeros(len(bits)), "tokens": np.zeros(len(bits))}
            # Lists after a restart of the evaluator.
            captures = (np.asarray(known["captures"], np.float64) + 1) * bits
            tokens = (np.asarray(known["tokens"], np.float64) + fair) * bits
            known["captures"], known["tokens"] = captures, tokens
            dead = np.flatnonzero((captures >= self.window) & (tokens >= self.least))
            if len(dead) and view.model_step >= self.start:
                yield self._finding(view, info.name, dead.tolist(), len(bits))

    def applicable(self, view: StepView) -> str:
        """Not for models without routers."""
        return "" if self.unused else "no router of a mixture of experts was captured"

    def _finding(self, view: StepView, name: str, dead: list[int], experts: int) -> Finding:
        module = name.removesuffix(_LOAD)
        serious = 2 * len(dead) >= experts
        which = ", ".join(map(str, dead[:8])) + (", ..." if len(dead) > 8 else "")
        return self.finding(
            view,
            severity=Severity.WARNING if serious else Severity.INFO,
            tensors=[name],
            value=float(len(dead)),
            message=f"{len(dead)} of {experts} experts of {module} got no tokens in {self.window} captures up to step "
            f"{view.mode_step} (number {which})",
            symptoms=("experts_without_tokens",) if serious else (),
            evidence={"module": module, "experts": experts},
        )
