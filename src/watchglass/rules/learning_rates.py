"""Settings and first steps of an optimizer that explain why a loss does not fall."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from watchglass.records import ModuleKind, facts
from watchglass.rules import signals
from watchglass.stats import median
from watchglass.tables import StepView

#: Usual learning rates. An optimizer that divides by the size of recent gradients (Adam, RMSprop) moves each weight by
#: about its rate. Source: 1e-3 as default of Adam (Kingma and Ba, ICLR 2015); 1e-6 to 1 for plain gradients of
#: normalised inputs (Bengio, Practical Recommendations, 2012); house: one order of magnitude of tolerance.
_ADAPTIVE, _PLAIN = (2e-6, 0.03), (2e-5, 2.0)
#: Share of the highest rate from which on the first step has the full rate.
_FULL = 0.9
#: Update over weight that is tiny, and large, for any optimizer. Source: 1e-3 as healthy: Karpathy, CS231n; 1e-4 to
#: 1e-1: TheDeepChecker.
_TINY, _LARGE = 1e-4, 3e-2
#: A rate that is so many times the highest one before is no step of a schedule. Steps that a run must have had before,
#: because a warm-up may begin near zero, and steps for which what follows is due to it (house).
_JUMP, _BEGUN, _JUST = 100.0, 8, 32


class Jump(NamedTuple):
    """A jump of the learning rate."""

    before: float  #: The rate of the step before.
    after: float  #: The rate since.
    step: int  #: The training step with the new rate.

    def then(self, message: str) -> str:
        """A message about what followed: ``"the learning rate rose from 0.05 to 1e+05 at step 150, and then ..."``."""
        return (
            f"the learning rate rose from {self.before:.3g} to {self.after:.3g} at step {self.step}, and then {message}"
        )

    @property
    def evidence(self) -> dict[str, float]:
        """Both rates and the step, for advice with figures."""
        return {"rate_before": self.before, "rate_after": self.after, "rate_step": self.step}


def jump(view: StepView) -> Jump | None:
    """The jump of the learning rate in the training steps just before, far above every rate so far; None for none."""
    rates = signals.learning_rates(view)
    if len(rates) <= _BEGUN:
        return None
    highest = np.fmax.accumulate(rates)[:-1]
    first = max(_BEGUN, len(rates) - _JUST)
    found = np.flatnonzero((highest > 0) & np.isfinite(rates[1:]) & (rates[1:] >= _JUMP * highest))
    found = found[found >= first - 1]
    if not len(found):
        return None
    at = int(found[-1]) + 1
    return Jump(float(rates[at - 1]), float(rates[at]), int(signals.learning_rate_steps(view)[at]))


def _optimizer(view: StepView) -> facts.OptimizerSettings:
    return view.latest_fact(facts.OptimizerSettings) or facts.OptimizerSettings()


def adaptive(view: StepView) -> bool:
    """Whether the optimizer divides by the size of recent gradients: only then it has an epsilon."""
    return _optimizer(view).setting("eps") is not None


def beyond_usual(view: StepView) -> str:
    """``"above"`` or ``"below"`` if the learning rate is orders of magnitude off for the kind of optimizer, else ""."""
    optimizer, rates = _optimizer(view), signals.learning_rates(view)
    momentum = optimizer.setting("momentum") or 0.0
    highest = max([*rates[np.isfinite(rates)].tolist(), signals.learning_rate(view) or 0.0])
    # LBFGS finds its own length of a step.
    if not any(optimizer.groups[:1]) or highest <= 0 or optimizer.setting("line_search_fn") is not None:
        return ""
    low, high = _ADAPTIVE if adaptive(view) else _PLAIN
    # Momentum adds up about this number of gradients.
    steady = highest / (1 - min(0.99, float(momentum)))
    return "above" if highest > high or (momentum and steady > 5 * high) else "below" if steady < low else ""


def unusual(view: StepView) -> tuple[str, ...]:
    """The symptom of a learning rate that is orders of magnitude off; none for others."""
    symptom_ids = {"above": ["rate_above_usual"], "below": ["rate_below_usual"], "": []}
    return tuple(symptom_ids[beyond_usual(view)])


def too_high(view: StepView) -> tuple[str, ...]:
    """The symptom of a learning rate that is far above usual ones; none for others."""
    return tuple(each for each in unusual(view) if each == "rate_above_usual")


def ordinary(view: StepView) -> bool:
    """Whether the learning rate is one that usually moves weights, so that small updates come of small gradients."""
    rate = signals.learning_rate(view) or 0.0
    return any(_optimizer(view).groups[:1]) and beyond_usual(view) == "" and rate >= (1e-4 if adaptive(view) else 1e-2)


def without_warmup(view: StepView) -> bool:
    """Whether a model that needs a warm-up began at its full rate: normalised, by an optimizer with moments."""
    kinds = [kind for kind, _ in signals.modules(view).values()]
    needs = ModuleKind.ATTENTION in kinds or (
        ModuleKind.EMBEDDING in kinds and kinds.count(ModuleKind.NORMALIZATION) > 2
    )
    rates = signals.learning_rates(view)
    full = not len(rates) or (rates[0] > 0 and rates[0] >= _FULL * float(np.max(rates)))
    return needs and full and adaptive(view)


def remember_ratio(ratios: list[float], view: StepView) -> None:
    """Appends the median ratio of updates to weights of a captured step to the latest ones, in place."""
    if not view.captured or signals.skipped(view):
        return
    _, _, found = signals.update_ratios(view)
    if len(found):
        ratios.append(float(np.median(found)))
        del ratios[:-16]


def symptoms(view: StepView, ratios: list[float]) -> tuple[str, ...]:
    """What rate and updates add to a finding about the loss.

    Args:
        view: The step.
        ratios: See :func:`remember_ratio`.
    """
    symptom_ids: list[str] = []
    beyond = beyond_usual(view)
    if beyond:
        symptom_ids.append("rate_above_usual" if beyond == "above" else "rate_below_usual")
    usual = median(ratios) if ratios else math.nan
    if usual > _LARGE:
        symptom_ids.append("update_ratio_large")
    elif usual < _TINY:
        symptom_ids.append("update_ratio_small")
    elif not beyond:
        symptom_ids.append("updates_moderate")
    if without_warmup(view) and usual > _LARGE / 3:
        symptom_ids.append("full_rate_at_once")
    return tuple(symptom_ids)


def evidence(ratios: list[float]) -> dict[str, float]:
    """The same ratio as evidence for advice with figures; none where it is not known."""
    return {"update_ratio": median(ratios)} if ratios and median(ratios) > 0 else {}
