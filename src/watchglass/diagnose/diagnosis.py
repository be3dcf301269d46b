"""From findings to diagnoses: findings with one cause, the likeliest cause, advice. Pure functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any

from watchglass.records import Diagnosis, Finding, Mode, RankedCause, Severity
from watchglass.rules import RULE_SETS, Knowledge, built_in_knowledge

_MOST_CAUSES = 3
#: A cause with a lower score is omitted if there is a likelier one.
_LEAST_SCORE = 0.1
#: A cause with a lower score is only listed; the headline does not state it.
_LIKELY = 0.5
#: A cause with this score or a higher one may have changed the values that another one is read off (house).
_CERTAIN = 0.9
_MOST_ADVICE = 5
#: Most sentences for a cause, and against it; further ones are only counted.
_MOST_EVIDENCE = 12

#: Attempt and model: NaN in one of them is no evidence about another.
_Trained = tuple[int, int | None]
#: Attempt and global step.
_Moment = tuple[int, int]
#: See :func:`importance`.
_Importance = tuple[bool, float, float, _Moment]
#: What ends a run within this time comes before what makes it slow: one day (house).
_SOON_S = 86_400.0

#: Rules whose findings are about time, memory or the machine, also those of severity info, which name no symptoms.
_OF_MACHINE = frozenset(RULE_SETS["system"].rules)

_MODES = {Mode.TRAIN: "training", Mode.EVAL: "evaluation", Mode.PREDICT: "prediction"}


def diagnose(
    findings: Iterable[Finding],
    knowledge: Knowledge | None = None,
    *,
    survived: Container[str] = (),
    part: Callable[[Finding], Hashable] | None = None,
) -> tuple[Diagnosis, ...]:
    """The diagnoses of findings, worst first, then those with a proven cause, then in the order of :func:`importance`.

    Findings of severity info alone make no separate diagnosis. The cause that the symptoms of open findings support
    most explains every finding that supports it, on any worker; a cause that an exact symptom proves comes before those
    that only fit. Then the remaining findings are treated in the same way. A finding that is first seen after values
    have become NaN or infinite, or after an error states that the loss has diverged, is a consequence: it joins the
    same diagnosis and does not count for any cause. Exceptions are findings with an exact symptom that does not depend
    on these values, and values that become NaN after a divergence. Nothing follows from what began later: an error is
    explained by a later warning only if that shows what the program has been since the start. A finding about time,
    memory or the machine joins only if it is known to have begun at the step at which values became bad (evidence
    ``since_step``); then the headline states both. A finding that says what the cure of a cause gains or costs joins
    each diagnosis of it, also if it speaks against it, and its headline. Workers share their gradients. So findings of
    bad values on other workers at the same step join too, and count for causes.

    What happens in one part of a run explains nothing in another one. Only groups of several parts that have the same
    likeliest cause are one diagnosis: the same program has it each time.

    Args:
        findings: In any order.
        knowledge: The knowledge for this run (see :meth:`Knowledge.where`); the built-in knowledge if None.
        survived: Ids of findings of what ends a run, that did not end this one.
        part: The part of the run that a finding is about (see :class:`PartsOfRun`); None for a run of one part.
    """
    return _Diagnosing(knowledge or built_in_knowledge(), survived, part or (lambda finding: 0)).diagnose(findings)


def importance(findings: Sequence[Finding], knowledge: Knowledge, survived: Container[str] = ()) -> _Importance:
    """Sort key among what is as severe: what is wrong with values comes first, because no speed repairs it.

    Of what is about time, memory or the machine, what ends the run comes before what makes it slow: what has stopped it
    already, then what ends it within a day, the soonest first. Then comes the largest stated gain, and last what states
    none. Of equals, the earliest comes first.

    Args:
        findings: One or more with one cause, in any order.
        knowledge: Tells which symptoms are about the machine.
        survived: Ids of findings of what ends a run, that did not end this one: it went on, or ended as it should.
    """
    machine = all(each.rule in _OF_MACHINE or knowledge.of_machine(each.symptoms) for each in findings)
    gain = max((each.gain or 0.0 for each in findings), default=0.0) if machine else 0.0
    ends = [each.ends_in_s for each in findings if machine and each.id not in survived]
    soonest = min((each for each in ends if each is not None and each <= _SOON_S), default=math.inf)
    # Steps of different modes have numbers that do not compare.
    return machine, soonest, -gain, min(map(_when, findings))


class _Diagnosing:
    """One diagnosis after the other, with one knowledge."""

    def __init__(self, knowledge: Knowledge, survived: Container[str], part: Callable[[Finding], Hashable]) -> None:
        self._knowledge = knowledge
        self._survived = survived
        self._part = part
        self._known_support: dict[tuple[str, ...], dict[str, float]] = {}
        #: Causes that one model in one attempt cannot have, by what the script does.
        self._ruled_out: dict[tuple[Hashable, ...], frozenset[str]] = {}

    def diagnose(self, findings: Iterable[Finding]) -> tuple[Diagnosis, ...]:
        ordered = sorted(findings, key=_order)
        parts: dict[Hashable, list[Finding]] = {}
        for finding in ordered:
            parts.setdefault(self._part(finding), []).append(finding)
            if out := self._knowledge.ruled_out(_already(finding)):
                self._ruled_out[self._model_of(finding)] = self._cannot_be(finding) | out
        joined: dict[Hashable, tuple[list[Finding], list[Finding]]] = {}
        for own in parts.values():
            times: Counter[Hashable] = Counter()
            for disease, group, consequences in self._groups(own):
                times[disease] += 1
                alike = joined.setdefault((disease, times[disease]), ([], []))
                alike[0].extend(group)
                alike[1].extend(consequences)
        found = [
            (importance(group, self._knowledge, self._survived), self._diagnosis(group, consequences))
            for group, consequences in joined.values()
        ]
        proven = self._proven(ordered)
        found.sort(key=lambda each: (-each[1].severity.rank, _unproven(each[1], proven), each[0]))
        return tuple(diagnosis for _, diagnosis in found)

    def _groups(self, ordered: Sequence[Finding]) -> Iterator[tuple[Hashable, list[Finding], list[Finding]]]:
        """Of one part of a run: its diseases, each with its findings and with those that only follow from it."""
        broken = self._broken(ordered)
        rest: list[Finding] = []
        after: dict[_Trained, list[Finding]] = {}
        for finding in ordered:
            first = broken.get(_trained(finding))
            if first and self._may_follow(finding, first[0]):
                after.setdefault(_trained(finding), []).append(finding)
            else:
                rest.append(finding)
        while best := self._best_cause(rest):
            group = self._with_broken(self._explained(rest, best), broken)
            rest = _without(rest, group)
            likeliest = next(iter(self._ranking(group)), "")
            begun = self._begun(group, likeliest)
            led_to = [finding for finding in rest if self._follows(finding, begun, likeliest)]
            rest = _without(rest, led_to)
            yield likeliest, group, [*led_to, *_after([*group, *led_to], broken, after)]
        for group in self._by_subject(rest, broken):
            yield _subject(group[0]), group, _after(group, broken, after)

    def _broken(self, ordered: Sequence[Finding]) -> dict[_Trained, list[Finding]]:
        """By attempt and model, the errors of the first step at which values became NaN or infinite, or diverged."""
        broken: dict[_Trained, list[Finding]] = {}
        for finding in ordered:
            if finding.severity is Severity.ERROR and self._knowledge.ruins(finding.symptoms):
                first = broken.setdefault(_trained(finding), [])
                if not first or _when(finding) == _when(first[0]):
                    first.append(finding)
        return broken

    def _may_follow(self, finding: Finding, broken: Finding) -> bool:
        """Whether a finding may only show that values had become NaN or infinite, or had diverged."""
        if self._knowledge.of_machine(finding.symptoms):
            # What is slow since a step is noticed in the first step that begins after it.
            since = finding.evidence.get("since_step")
            return finding.mode is broken.mode and since in (broken.step, broken.step + 1)
        if finding.severity is Severity.INFO and not finding.symptoms:
            return False  # it only states what is so, such as the load of the machine
        if self._knowledge.breaks(finding.symptoms) and not self._knowledge.breaks(broken.symptoms):
            return False  # people look for NaN, so that a divergence before it does not hide it
        proven = self._knowledge.proven(finding.symptoms) and not self._knowledge.proven_by_values(finding.symptoms)
        # What holds for several steps may have begun in the very step, and shows later.
        later = (_begin(finding), _when(finding)) > (_begin(broken), _when(broken))
        return later and not proven

    def _support_of(self, finding: Finding) -> dict[str, float]:
        """Added log odds of each cause by one finding: of its symptoms, or of the causes that its rule names."""
        symptoms = finding.symptoms
        if symptoms not in self._known_support:
            self._known_support[symptoms] = self._knowledge.support(symptoms)
        support = self._known_support[symptoms] or self._knowledge.named(finding.causes)
        out = self._cannot_be(finding)
        return {cause: odds for cause, odds in support.items() if cause not in out} if out else support

    def _cannot_be(self, finding: Finding) -> frozenset[str]:
        return self._ruled_out.get(self._model_of(finding), frozenset())

    def _support(self, findings: Sequence[Finding]) -> dict[str, float]:
        """The same for all findings together: each symptom counts once, and so do the causes that one rule names."""
        support = self._knowledge.support(symptom for finding in findings for symptom in finding.symptoms)
        named = {
            (finding.rule, finding.causes)
            for finding in findings
            if finding.causes and not self._knowledge.support(finding.symptoms)
        }
        for _, causes in sorted(named):
            for cause, odds in self._knowledge.named(causes).items():
                support[cause] = support.get(cause, 0.0) + odds
        if not self._ruled_out:
            return support
        supporting = [self._support_of(finding) for finding in findings]
        return {cause: odds for cause, odds in support.items() if any(cause in each for each in supporting)}

    def _best_cause(self, rest: Sequence[Finding]) -> str:
        """The cause that all findings support most, among those supported by a finding above info; "" for none."""
        rest = self._without_consequences(rest)
        serious = [finding for finding in rest if finding.severity is not Severity.INFO]
        backed = {cause for finding in serious for cause in self._support_of(finding)}
        return next((cause for cause in self._ranking(rest, self._proven(serious)) if cause in backed), "")

    def _without_consequences(self, rest: Sequence[Finding]) -> Sequence[Finding]:
        """Findings without those whose proof is read off values that a likely cause has changed before."""
        doubtful = [finding for finding in rest if self._knowledge.proven_by_values(finding.symptoms)]
        others = [each for each in _without(rest, doubtful) if each.severity is not Severity.INFO]
        if not doubtful or not others:
            return rest
        support = self._support(others)
        causes = [cause for cause, odds in support.items() if _score(odds) >= _CERTAIN]
        begun = {cause: self._begun(self._explained(others, cause), cause) for cause in causes}
        return _without(
            rest,
            [
                finding
                for finding in doubtful
                if any(_begin(finding) > since and self._follows(finding, since, by) for by, since in begun.items())
            ],
        )

    def _explained(self, rest: Sequence[Finding], cause: str) -> list[Finding]:
        """The findings that a cause explains, and those that join it.

        A finding that is worse than those for which the cause is the likeliest, and earlier than what they found, is
        not explained by it: nothing follows from what came later.
        """
        group = [
            finding
            for finding in rest
            if self._support_of(finding).get(cause, 0.0) > 0 or self._knowledge.joins(finding.symptoms, cause)
        ]
        core = [each for each in group if cause in self._proven([each]) or cause == self._likeliest(each)]
        if not core:
            return group
        begun = self._begun(group, cause) if self._proven(core) else min(map(_begin, core))
        worst = max(each.severity.rank for each in core)
        own = {id(each) for each in core}
        return [
            each for each in group if id(each) in own or each.severity.rank <= worst or _begin(each) >= begun
        ]  # fmt: skip

    def _likeliest(self, finding: Finding) -> str:
        support = self._support_of(finding)
        return max(support, key=support.__getitem__, default="")

    def _begun(self, group: Sequence[Finding], cause: str) -> _Moment:
        """When a cause began: at the first step where the program itself has it, else when its findings began."""
        proving = [finding for finding in group if cause in self._proven([finding])]
        first = min(map(_begin, proving or group))
        from_start = any(cause in self._knowledge.proven_from_start(finding.symptoms) for finding in proving)
        return (first[0], 0) if from_start else first

    def _proven(self, findings: Sequence[Finding]) -> frozenset[str]:
        return self._knowledge.proven(symptom for finding in findings for symptom in finding.symptoms)

    def _ranking(self, findings: Sequence[Finding], proven: frozenset[str] | None = None) -> list[str]:
        """Causes of findings, most likely first; proven ones before those that only fit."""
        support = self._support(findings)
        proven = self._proven(findings) if proven is None else proven
        return sorted(support, key=lambda cause: (cause not in proven, -support[cause]))

    def _by_subject(self, rest: Sequence[Finding], broken: dict[_Trained, list[Finding]]) -> Iterator[list[Finding]]:
        """Findings without a known cause, grouped by rule and subject over all workers."""
        groups: dict[tuple[object, ...], list[Finding]] = {}
        for finding in rest:
            groups.setdefault(_subject(finding), []).append(finding)
        grouped: set[int] = set()
        for one in groups.values():
            group = [finding for finding in one if id(finding) not in grouped]
            if all(finding.severity is Severity.INFO for finding in group):
                continue
            group = self._with_broken(group, broken)
            grouped.update(id(finding) for finding in group)
            yield group

    def _with_broken(self, group: list[Finding], broken: dict[_Trained, list[Finding]]) -> list[Finding]:
        """The group with all findings of the step at which values first became bad, if it has one of them."""
        for first in broken.values():
            ids = {id(finding) for finding in first}
            if any(id(finding) in ids for finding in group):
                group = sorted([*_without(group, first), *first], key=_order)
        return group

    def _follows(self, finding: Finding, begun: _Moment, cause: str) -> bool:
        """Whether a finding is later than the beginning of a group and has only consequences of its cause."""
        symptoms = finding.symptoms
        leads_to = self._knowledge.consequences.get(cause, frozenset())
        return bool(symptoms) and _when(finding) >= begun and set(symptoms) <= leads_to

    def _diagnosis(self, group: Sequence[Finding], consequences: Sequence[Finding]) -> Diagnosis:
        support = self._support(group)
        ranked = self._ranking(group)[:_MOST_CAUSES]
        ranked = [name for name in ranked if name == ranked[0] or _score(support[name]) >= _LEAST_SCORE]
        # The headline shows the finding that people notice first (a non-finite value), else the best evidence for the
        # cause; the chain of symptoms shows the findings before it.
        best = ranked[0] if ranked else ""
        serious = [finding for finding in group if finding.severity is not Severity.INFO]
        key = max(
            serious,
            key=lambda f: (
                self._knowledge.breaks(f.symptoms), self._support_of(f).get(best, 0.0), f.severity.rank,
                [-n for n in _when(f)],
            ),
        )  # fmt: skip
        causes = tuple(self._ranked(name, support[name], group, key) for name in ranked)
        chain = sorted([*group, *consequences], key=_order)
        title = _title(causes) or f"{key.rule} has found something"
        since = [finding.message for finding in consequences if self._knowledge.of_machine(finding.symptoms)]
        joined = [finding.message for finding in group if self._knowledge.joins(finding.symptoms, best)]
        return Diagnosis(
            causes=causes,
            findings=tuple(finding.id for finding in chain),
            severity=max(chain, key=lambda finding: finding.severity.rank).severity,
            step=_since(group),
            subject=str(key.evidence.get("module") or "") or next(iter(key.tensors), ""),
            headline=f"{title[:1].upper()}{title[1:]}: {'; '.join([key.message, *joined[:1], *since[:1]])}",
            what_to_try=causes[0].what_to_try if causes else key.what_to_try,
            workers=tuple(sorted({finding.worker for finding in chain}, key=_by_number)),
            models=tuple(sorted({finding.model for finding in chain if finding.model is not None})),
        )

    def _ranked(self, name: str, odds: float, group: Sequence[Finding], key: Finding) -> RankedCause:
        supporting = [finding for finding in group if self._support_of(finding).get(name, 0.0) > 0]
        evidence, against = self._evidence(name, group)
        return RankedCause(
            self._knowledge.cause(name), _score(odds), _since(supporting or group), evidence, against,
            self._advice(name, group, key),
        )  # fmt: skip

    def _evidence(self, cause: str, group: Sequence[Finding]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Sentences for a cause and against it, earliest first; the same finding of several workers gives one sentence.

        The message of a finding describes its first symptom; other symptoms are described by their meaning.
        """
        alike: dict[tuple[object, ...], list[Finding]] = {}
        for finding in group:
            key = (*_trained(finding), finding.mode, finding.step, finding.rule, finding.tensors[:1], finding.symptoms)
            alike.setdefault(key, []).append(finding)
        sentences: tuple[list[str], list[str]] = ([], [])
        for findings in alike.values():
            first, symptoms = findings[0], findings[0].symptoms
            for position, symptom in enumerate(symptoms):
                weight = self._knowledge.links.get(symptom, {}).get(cause, 0.0)
                if weight:
                    means = self._knowledge.symptoms[symptom].means
                    sentences[weight < 0].append(_dated(first.message if position == 0 else means, findings))
            if not self._knowledge.support(symptoms) and cause in self._knowledge.named(first.causes):
                sentences[0].append(_dated(first.message, findings))
        if sentences[0]:
            shown = [symptom for finding in group for symptom in finding.symptoms]
            quiet = self._knowledge.silent(cause, shown)
            sentences[1].extend(f"{rule} has found nothing" for rule in quiet)
        return _counted(sentences[0]), _counted(sentences[1])

    def _advice(self, cause: str, group: Sequence[Finding], key: Finding) -> tuple[str, ...]:
        """Sentences with numbers if these are known, then the general ones, then those of custom rules."""
        already = {name for finding in group for name in _already(finding)}
        framework = _framework(key)
        sentences = list(self._knowledge.advise(cause, self._known(cause, group, key), already, framework))
        for finding in group:
            usual = self._knowledge.advise(finding.causes[0], {}, (), _framework(finding)) if finding.causes else ()
            if self._support_of(finding).get(cause, 0.0) > 0 and not set(finding.what_to_try) <= set(usual):
                sentences += finding.what_to_try
        return tuple(dict.fromkeys(sentences))[:_MOST_ADVICE]

    def _known(self, cause: str, group: Sequence[Finding], key: Finding) -> dict[str, Any]:
        """Values of the findings about one model, for the placeholders of concrete advice.

        The model is the one of the headline if its findings support the cause. Of evidence, the earliest value counts;
        what is scaled and what tells the factor come from one finding if one has both.
        """
        # The first of those with the highest support: `max` keeps the first of equals.
        best = max(
            group,
            key=lambda each: (
                self._alike(each, key) and self._support_of(each).get(cause, 0.0) > 0,
                self._support_of(each).get(cause, 0.0),
            ),
        )
        own = [finding for finding in group if finding.model is None or self._alike(finding, best)]
        known: dict[str, Any] = {}
        for names in [*self._knowledge.scaled_by(), ()]:
            for finding in own:
                if all(name in finding.evidence for name in names):
                    for name in names or finding.evidence:
                        known.setdefault(name, finding.evidence[name])
        tensor = next(iter(best.tensors), "").rpartition("/")[2]
        return {
            **known, "step": best.step, "mode": _MODES.get(best.mode, ""), "worker": best.worker,
            "tensor": tensor,
        }  # fmt: skip

    def _alike(self, finding: Finding, other: Finding) -> bool:
        """Whether two findings are about one model in one attempt."""
        return self._model_of(finding) == self._model_of(other)

    def _model_of(self, finding: Finding) -> tuple[Hashable, ...]:
        return (*_trained(finding), self._part(finding))


def _unproven(diagnosis: Diagnosis, proven: frozenset[str]) -> bool:
    return not diagnosis.causes or diagnosis.causes[0].cause.id not in proven


def _title(causes: Sequence[RankedCause]) -> str:
    """What the headline may state as a fact; "" without a cause."""
    if not causes:
        return ""
    return causes[0].cause.title if causes[0].score >= _LIKELY else "cause unclear"


def _score(odds: float) -> float:
    return min(round(1.0 - math.exp(-odds), 3), 0.999)  # no number of symptoms makes a cause certain


def _after(
    group: Sequence[Finding], broken: dict[_Trained, list[Finding]], after: dict[_Trained, list[Finding]]
) -> list[Finding]:
    """Findings first seen after values became NaN or infinite with a finding of the group; each is returned once."""
    ids = {id(finding) for finding in group}
    hit = [trained for trained, first in broken.items() if id(first[0]) in ids]
    return [finding for trained in hit for finding in after.pop(trained, [])]


def _trained(finding: Finding) -> _Trained:
    return (finding.attempt, finding.model)


def _already(finding: Finding) -> list[str]:
    """What the script does already, as a finding states."""
    stated = finding.evidence.get("already")
    return [name for name in stated if isinstance(name, str)] if isinstance(stated, list) else []


def _framework(finding: Finding) -> str:
    """The framework of the model, as a finding states."""
    stated = finding.evidence.get("framework")
    return stated if isinstance(stated, str) else ""


def _when(finding: Finding) -> _Moment:
    return (finding.attempt, finding.global_step)


def _begin(finding: Finding) -> _Moment:
    """When what a finding reports began, as far as known: global steps are at least as far apart as mode steps."""
    return (finding.attempt, max(0, finding.global_step - (finding.step - finding.since)))


def _since(findings: Sequence[Finding]) -> int:
    """The mode step at which what the first of these findings reports, or another one in its mode, began."""
    first = findings[0]
    return min(each.since for each in findings if each.mode is first.mode and each.attempt == first.attempt)


def _order(finding: Finding) -> tuple[object, ...]:
    """Sort key: earliest first, within a step in an order that does not depend on arrival."""
    return (*_when(finding), finding.rule, _by_number(finding.worker), finding.id)


def _by_number(worker: str) -> tuple[int, str]:
    return (len(worker), worker)  # worker_10 comes after worker_9


def _subject(finding: Finding) -> tuple[object, ...]:
    return (finding.rule, finding.evidence.get("subject"), finding.tensors[:1], finding.model)


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """Findings that are not among others, compared by identity: comparing a million by value takes too long."""
    left_out = {id(finding) for finding in others}
    return [finding for finding in findings if id(finding) not in left_out]


def _dated(sentence: str, findings: Sequence[Finding]) -> str:
    """A sentence with step and rule: ``"step 4: the loss rose in the steps before (ExplodingTensor)"``."""
    first, workers = findings[0], len({finding.worker for finding in findings})
    mode = "" if first.mode is Mode.TRAIN else f"{first.mode.name} "
    on = f", on {workers} workers" if workers > 1 else ""
    return f"{mode}step {first.step}: {sentence} ({first.rule}{on})"


def _counted(sentences: Sequence[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(sentences))
    rest = len(unique) - _MOST_EVIDENCE
    return (*unique[:_MOST_EVIDENCE], f"and {rest:,} more") if rest > 1 else tuple(unique)
