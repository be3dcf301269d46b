"""DeadExpert: experts that get no tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from watchglass.config import parameter
from watchglass.records import UNUSED_UNITS, Finding, Mode, Role, Severity, TensorInfo, count, facts
from watchglass.rules import signals
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.rules.streaks import Streaks, began
from watchglass.tables import StepView

_LOAD = ".router_load"


class DeadExpert(Rule):
    """Experts of a mixture get no tokens.

    Looks at: for each expert of a router, whether it got less than a hundredth of a fair share of the tokens; and the
        gradients of modules that are experts by their name or class.
    Fires when: this holds in each of the last `window` captures, which together had enough tokens to expect `least` for
        each expert. The finding is a `warning` if at least half of the experts of the router are dead, else an `info`.
        It is also a `warning` if, in these captures, the gradients of at least half of the experts were zero or below
        `little` times that of the expert with the largest one.
    Usual causes: no loss for the balance of the experts; a router that has collapsed.
    What to try: a loss for their balance; noise on the router's logits; fewer experts.
    Costs: nothing without a router; one bit for each expert at captured steps.
    Source: no use at all: NeMo Automodel; half of the experts, windows, `little`: house.
    """

    idle_at_plain_steps = True
    needs = (
        Needs(collection="router", statistics=("count",), optional=True, why="to see the load of experts"),
        Needs(role=Role.WEIGHT, statistics=("l2",), optional=True, why="to know the experts"),
        Needs(role=Role.GRADIENT, statistics=("l2",), optional=True, why="to see which experts learn"),
    )
    modes = (Mode.TRAIN,)

    window: int = parameter(8, help="captures in a row", unit="captures", ge=1)
    least: float = parameter(50.0, help="expected number of tokens per expert in these captures", ge=0)
    start: int = parameter(50, help="first step that is judged", unit="steps", ge=0)
    little: float = parameter(1e-4, help="gradient of an expert over the largest one", unit="ratio", gt=0, lt=1)

    #: By router: captures in a row without use for each expert, and tokens for each expert in them.
    unused: dict[str, dict[str, Any]] = state(dict)
    #: By list of experts and expert: captures in a row with almost no gradient.
    idle: Streaks = state(Streaks)
    #: Whether gradients of experts were captured.
    learn: bool = state(bool)
    #: Captures that showed the use or the gradients of experts.
    captures: int = state(int)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding for each router."""
        rows = view.statistics(collection="router", name_regex=r"\.router_logits$")
        counts = dict(zip(rows.names, rows.count.tolist(), strict=True))
        for info, _, bits in view.rows(UNUSED_UNITS):
            if len(bits) < 2:
                continue
            fair = counts.get(info.name.replace(_LOAD, ".router_logits"), 0.0) / len(bits) ** 2
            known = self.unused.get(info.name)
            if known is None or len(known["captures"]) != len(bits):
                nothing = np.zeros(len(bits))
                known = {"captures": nothing, "tokens": nothing, "since": nothing - 1}
                self.unused[info.name] = known
            # Lists after a restart of the evaluator.
            captures = (np.asarray(known["captures"], np.float64) + 1) * bits
            tokens = (np.asarray(known["tokens"], np.float64) + fair) * bits
            known["captures"], known["tokens"] = captures, tokens
            since = known["since"] = began(np.asarray(known["since"], np.int64), view.mode_step, bits)
            dead = np.flatnonzero((captures >= self.window) & (tokens >= self.least))
            if len(dead) and view.model_step >= self.start:
                yield self._finding(view, info.name, dead.tolist(), len(bits), int(since[dead].max()))
        yield from self._without_gradient(view)
        self.captures += view.captured and bool(self.unused or self.learn)

    def applicable(self, view: StepView) -> str:
        """Not for models without experts, nor with too few captures."""
        if not self.unused and not self.learn:
            return "no mixture of experts was captured"
        few = self.captures < self.window
        return f"experts were captured at {count(self.captures, 'step')}; {self.window} are needed" if few else ""

    def _without_gradient(self, view: StepView) -> Iterable[Finding]:
        """A finding for each list of experts of which most do not learn."""
        gradients = view.statistics(Role.GRADIENT, min_dims=2)
        if not len(gradients):
            return
        weights, model = view.statistics(Role.WEIGHT, min_dims=2), view.latest_fact(facts.ModelDescription.KIND)
        # Steps have the same weights, and thousands of modules.
        known_at = f"experts of the model described at step {model.global_step if model is not None else None}"
        parts = weights.remembered(known_at, lambda: _experts(view, weights.tensors))
        if not parts:
            return
        norms = dict(zip(gradients.names, gradients.l2.tolist(), strict=True))
        found: dict[str, dict[str, float]] = {}
        for family, expert, name in parts:
            experts = found.setdefault(family, {})
            experts[expert] = max(experts.get(expert, 0.0), norms.get(f"gradient/{name}", 0.0))
        for family, experts in found.items():
            largest, self.learn = max(experts.values()), True
            dead = [
                expert
                for expert, norm in experts.items()
                if self.idle.follow(view.mode_step, norm <= self.little * largest, f"{family}/{expert}") >= self.window
            ]
            if largest > 0 and len(experts) > 1 and 2 * len(dead) >= len(experts) and view.model_step >= self.start:
                yield self.finding(
                    view,
                    tensors=[family],
                    value=float(len(dead)),
                    message=f"{len(dead)} of {len(experts)} experts of {family} got almost no gradient in "
                    f"{self.window} captures up to step {view.mode_step} ({', '.join(dead[:8])})",
                    symptoms=("experts_without_tokens",),
                    evidence={"module": family, "experts": len(experts)},
                    since=self.idle.since(*(f"{family}/{expert}" for expert in dead)),
                )

    def _finding(self, view: StepView, name: str, dead: list[int], experts: int, since: int) -> Finding:
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
            evidence={"module": module, "experts": experts, "numbers": dead},
            since=since,
        )


def _experts(view: StepView, weights: Sequence[TensorInfo]) -> list[tuple[str, str, str]]:
    """The list of experts, the expert and the name of each trainable weight that belongs to one."""
    types = {path: kind for path, (_, kind) in signals.modules(view).items()}
    split = [path.rpartition(".") for path in types if "shared" not in path.lower()]
    named = Counter(above for above, _, part in split if "expert" in part.lower())
    if not named and not any("Expert" in kind for kind in types.values()):
        return []
    parts = [(*_expert(info.module, types, named), info.name) for info in weights if info.trainable]
    return [part for part in parts if part[1]]


def _expert(path: str, types: dict[str, str], named: Counter[str]) -> tuple[str, str]:
    """The place of the experts that a module belongs to, and the one that it is part of; "" for others.

    Args:
        path: Path of the module.
        types: Class names of all modules by path.
        named: How many modules below a path are experts by their name.
    """
    parts = path.split(".")
    for at, part in enumerate(parts):
        here, above = ".".join(parts[: at + 1]), ".".join(parts[:at])
        if "shared" in part.lower() or not ("expert" in part.lower() or "Expert" in types.get(here, "")):
            continue
        if "expert" in part.lower() and named[above] == 1 and at + 1 < len(parts):
            return here, parts[at + 1]
        return above or "the model", part
    return "", ""
