"""Recall, right causes, false alarms and delay of a half of the zoo, with intervals, and which programs count."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, pstdev

from scipy.stats import binomtest

from judging import Judged
from members import Member
from running import Trial

#: How much less skill than its twin a faulty program must show, with one seed. House: a fiftieth of the way from
#: guessing to perfect, and twice the spread of the twin over its seeds where that is more.
LEAST_HARM = 0.02


@dataclass(frozen=True)
class Share:
    """So many of so many.

    Attributes:
        hits: How many.
        of: Of how many.
    """

    hits: int
    of: int

    @property
    def value(self) -> float:
        """The share, in 0..1; NaN of none."""
        return self.hits / self.of if self.of else math.nan

    def __str__(self) -> str:
        """Percent with the 95 % interval of Wilson (1927)."""
        if not self.of:
            return "-"
        interval = binomtest(self.hits, self.of).proportion_ci(method="wilson")
        return f"{100 * self.value:.0f} % ({100 * interval.low:.0f} to {100 * interval.high:.0f})"


@dataclass(frozen=True)
class Figures:
    """What the rules reach on some runs.

    Attributes:
        recall: Faulty runs that get an alarm, by severity.
        first: Faulty runs whose first cause is right.
        three: Faulty runs with a right cause among the first three.
        false_alarms: Healthy runs that get an alarm, by severity.
        delay: Median step of the first right finding as a share of the run; NaN where there is none.
    """

    recall: dict[str, Share]
    first: Share
    three: Share
    false_alarms: dict[str, Share]
    delay: float


def figures(judged: Iterable[Judged]) -> Figures:
    """The figures of these runs."""
    every = list(judged)
    sick = [each for each in every if each.trial.member.fault]
    healthy = [each for each in every if not each.trial.member.fault]
    delays = [each.share for each in sick if not math.isnan(each.share)]
    return Figures(
        recall={severity: _share(sick, severity) for severity in ("warning", "error")},
        first=Share(sum(each.right(1) for each in sick), len(sick)),
        three=Share(sum(each.right(3) for each in sick), len(sick)),
        false_alarms={severity: _share(healthy, severity) for severity in ("warning", "error")},
        delay=median(delays) if delays else math.nan,
    )


def _share(judged: Sequence[Judged], severity: str) -> Share:
    return Share(sum(each.alarms(severity) for each in judged), len(judged))


def agreement(judged: Iterable[Judged], reference: Iterable[Judged]) -> Share:
    """Faulty runs whose first cause is the one that is named most often for the same fault in another framework.

    The same fault is that of the counterpart of the program if there is one in the reference, else its fault class. A
    run of a class that the reference lacks does not count. No alarm is a verdict as well.

    Args:
        judged: Runs of one framework.
        reference: Runs of PyTorch.
    """
    by_fault: dict[str, Counter[str]] = {}
    for each in reference:
        fault = each.trial.member.fault
        for name in (each.trial.member.id, fault.name) if fault else ():
            by_fault.setdefault(name, Counter())[_first(each)] += 1
    same = []
    for each in judged:
        fault = each.trial.member.fault
        known = fault and (by_fault.get(each.trial.member.counterpart) or by_fault.get(fault.name))
        if known:
            most = max(known.values())
            same.append(known[_first(each)] == most)
    return Share(sum(same), len(same))


def _first(judged: Judged) -> str:
    return judged.causes[0] if judged.causes else judged.severity


def harmless(trials: Iterable[Trial]) -> dict[Member, str]:
    """Faulty programs that do not count, each with the reason.

    A program counts where its fault is certain from structure, or where it shows less skill than its healthy twin with
    more than half of the seeds.
    """
    skills: dict[Member, dict[int, float | None]] = {}
    for trial in trials:
        skills.setdefault(trial.member, {})[trial.seed] = trial.skill()
    twins = {(member.script, member.name): by_seed for member, by_seed in skills.items()}
    dropped = {}
    for member, by_seed in skills.items():
        if member.fault is None or member.fault.certain:
            continue
        reason = _too_good(by_seed, twins.get((member.script, member.twin), {}))
        if reason:
            dropped[member] = reason
    return dropped


def _too_good(faulty: Mapping[int, float | None], twin: Mapping[int, float | None]) -> str:
    known = [skill for skill in twin.values() if skill is not None and math.isfinite(skill)]
    if len(known) < len(twin) or not known:
        return "its healthy twin fails"
    margin = max(LEAST_HARM, 2 * pstdev(known))
    worse = 0
    for seed, skill in faulty.items():
        own = twin.get(seed)
        reference = own if own is not None else median(known)
        worse += skill is None or not math.isfinite(skill) or reference - skill > margin
    if worse * 2 > len(faulty):
        return ""
    mean = median(skill for skill in faulty.values() if skill is not None)
    return f"skill {mean:.2f} beside {median(known):.2f} of its twin: worse with {worse} of {len(faulty)} seeds"
