"""From findings to diseases: which findings belong together, what most likely caused them, what to try. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from watchglass.records import Cause, Diagnosis, Finding, RankedCause, Severity
from watchglass.rules import CAUSES, CONCRETE_ADVICE, CONSEQUENCES, links_of

#: Added log odds of the causes that a rule without symptoms names, first to third: 0.6, 0.3 and 0.15 as noisy-or.
_NAMED = (0.92, 0.36, 0.16)
_MOST_CAUSES = 3
_MOST_ADVICE = 5


def diagnose(findings: Iterable[Finding]) -> tuple[Diagnosis, ...]:
    """The diseases behind findings, worst first, then earliest. Findings that are only info make none of their own.

    The cause that the symptoms of all open findings support most explains every finding that speaks for it; the rest
    is explained anew. What is first seen after values have become NaN or infinite is a consequence of that: it joins
    the same diagnosis and says nothing about causes.
    """
    ordered = sorted(findings, key=_when)
    broken = next((f for f in ordered if f.severity is Severity.ERROR and _breaks(f)), None)
    after = [f for f in ordered if broken is not None and f.attempt == broken.attempt and _when(f) > _when(broken)]
    rest = [f for f in ordered if f not in after]
    found: list[Diagnosis] = []
    while any(f.severity is not Severity.INFO for f in rest):
        group, best = _next_group(rest)
        rest = [f for f in rest if f not in group]
        led_to = [f for f in rest if _follows(f, group, best)]
        rest = [f for f in rest if f not in led_to]
        aftermath = after if broken is not None and broken in group else []
        found.append(_diagnosis(group, sorted([*led_to, *aftermath], key=_when)))
    return tuple(sorted(found, key=lambda diagnosis: (-diagnosis.severity.rank, diagnosis.step)))


def _when(finding: Finding) -> tuple[int, int]:
    return (finding.attempt, finding.global_step)


def _symptoms(finding: Finding) -> list[str]:
    symptoms = finding.evidence.get("symptoms")
    return [str(symptom) for symptom in symptoms] if isinstance(symptoms, (list, tuple)) else []


def _breaks(finding: Finding) -> bool:
    """Whether from this finding on every value may be NaN, whatever its cause."""
    return any(symptom.startswith("nonfinite") for symptom in _symptoms(finding))


def _support(findings: Sequence[Finding]) -> dict[str, float]:
    """Added log odds of each cause over the symptoms of all findings, and over the causes that rules name."""
    support = links_of(symptom for finding in findings for symptom in _symptoms(finding))
    for finding in findings:
        if not links_of(_symptoms(finding)):
            for cause, odds in zip(finding.causes, _NAMED, strict=False):
                support[cause] = support.get(cause, 0.0) + odds
    return support


def _next_group(rest: Sequence[Finding]) -> tuple[list[Finding], str]:
    """The findings that the best supported cause explains, and it; the first finding alone where none is known."""
    serious = [finding for finding in rest if finding.severity is not Severity.INFO]
    support = _support(rest)
    backed = {cause for finding in serious for cause in _support([finding])}
    candidates = {cause: odds for cause, odds in support.items() if cause in backed}
    if not candidates:
        return serious[:1], ""
    best = max(candidates, key=lambda cause: candidates[cause])
    return [finding for finding in rest if _support([finding]).get(best, 0.0) > 0], best


def _follows(finding: Finding, group: Sequence[Finding], cause: str) -> bool:
    """Whether a finding is later than all of a group's beginning and nothing but what its cause leads to."""
    symptoms = _symptoms(finding)
    later = _when(finding) >= min(_when(member) for member in group)
    return bool(symptoms) and later and set(symptoms) <= CONSEQUENCES.get(cause, frozenset())


def _diagnosis(group: Sequence[Finding], consequences: Sequence[Finding]) -> Diagnosis:
    support = _support(group)
    ranked = sorted(support, key=lambda cause: -support[cause])[:_MOST_CAUSES]
    causes = tuple(_ranked(name, support[name], group) for name in ranked)
    # A value that is not finite is what people will have noticed, else what tells most of the cause; the chain of
    # symptoms shows what came before it.
    best = ranked[0] if ranked else ""
    serious = [finding for finding in group if finding.severity is not Severity.INFO]
    key = max(
        serious, key=lambda f: (_breaks(f), _support([f]).get(best, 0.0), f.severity.rank, [-n for n in _when(f)])
    )
    first = min(group, key=_when)
    title = causes[0].cause.title if causes else f"{key.rule} has found something"
    return Diagnosis(
        causes=causes,
        findings=tuple(finding.id for finding in [*group, *consequences]),
        severity=max((*group, *consequences), key=lambda finding: finding.severity.rank).severity,
        step=first.step,
        subject=str(key.evidence.get("module") or "") or next(iter(key.tensors), ""),
        headline=f"{title[:1].upper()}{title[1:]}: {key.message}",
        what_to_try=_advice(causes[0].cause, group) if causes else key.what_to_try,
    )


def _ranked(name: str, odds: float, group: Sequence[Finding]) -> RankedCause:
    speak = [finding for finding in sorted(group, key=_when) if _support([finding]).get(name, 0.0) > 0]
    first = speak[0] if speak else min(group, key=_when)
    return RankedCause(
        _cause(name), round(1.0 - math.exp(-odds), 3), first.step, tuple(finding.message for finding in speak)
    )


def _cause(name: str) -> Cause:
    return CAUSES.get(name) or Cause(name, name.replace("_", " "), "", ())


def _advice(cause: Cause, group: Sequence[Finding]) -> tuple[str, ...]:
    """Sentences with numbers where they are known, then the general ones, then what custom rules say."""
    known = _numbers(group)
    sentences: list[str] = []
    for template in CONCRETE_ADVICE.get(cause.id, ()):
        try:
            sentences.append(template.format(**known))
        except (KeyError, ValueError, TypeError):
            continue  # a number that it needs is not known
    # The first general sentence says the same without numbers.
    sentences += cause.what_to_try[1:] if sentences else cause.what_to_try
    if cause.id not in CAUSES:
        sentences += [sentence for finding in group for sentence in finding.what_to_try]
    return tuple(dict.fromkeys(sentences))[:_MOST_ADVICE]


def _numbers(group: Sequence[Finding]) -> dict[str, Any]:
    """What the findings' evidence has for the placeholders of concrete advice; the earliest value counts."""
    known: dict[str, Any] = {}
    for finding in sorted(group, key=_when):
        for name, value in finding.evidence.items():
            known.setdefault(name, value)
    rate, ratio = known.get("learning_rate"), known.get("update_ratio")
    if isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0:
        known.setdefault("optimizer", "this optimizer")
        known["lower_learning_rate"] = _rounded(rate / _factor(ratio, healthy=1e-2, above=True))
        known["higher_learning_rate"] = _rounded(rate * _factor(ratio, healthy=1e-3, above=False))
    return known


def _factor(ratio: Any, *, healthy: float, above: bool) -> float:
    """By which power of ten the learning rate is off, from the ratio of update to weight; 10 at least, 1000 at most."""
    if not isinstance(ratio, (int, float)) or not math.isfinite(ratio) or ratio <= 0:
        return 10.0
    decades = math.log10(ratio / healthy) * (1 if above else -1)
    return float(10.0 ** min(max(round(decades), 1), 3))


def _rounded(value: float) -> float:
    return float(f"{value:.1g}")
