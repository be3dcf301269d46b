"""Divides an evaluation into parts that any process can evaluate, in any order, any number of times. Pure.

What a rule finds on a worker depends on that worker's steps alone, so runs and workers divide freely. Rules divide as
well, but the rules of a part share the reading of its steps: two halves of the rules may read the same twice. So rules
are divided only where one worker has so much data that its part alone would take longer than all others together. Rules
that see all workers at once form a separate part, with all workers and only the columns that they declare.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from watchglass.errors import InvalidValueError
from watchglass.evaluate.scaling.contents import RunContents

#: Parts for each core, where there is enough data: the last parts to end are then a small share of the whole.
PARTS_PER_CORE = 4
#: A smaller part costs more to send and to merge than to evaluate.
LEAST_BYTES = 1 << 18
#: Share of the time of a part for reading and decoding, which every division by rules repeats; measured by
#: ``benchmarks/scale.py``.
READING_SHARE = 0.5


@dataclass(frozen=True)
class Part:
    """Some workers of a run, shown to some rules."""

    run: str  #: Location of the run.
    workers: tuple[str, ...] | None  #: Names of the workers, in their order; None for all workers of the run.
    rules: tuple[int, ...] | None  #: Positions of the rules in the configuration; None for all.
    bytes: int  #: The size of what the workers wrote.


def plan(
    runs: Sequence[RunContents],
    rules: int,
    cores: int,
    *,
    whole: Collection[int] = (),
    reading_share: float = READING_SHARE,
) -> tuple[Part, ...]:
    """The parts of an evaluation, the largest first, so that small ones fill the cores at the end.

    Every worker of every run is in exactly one part for each rule.

    Args:
        runs: The runs to evaluate.
        rules: The number of rules.
        cores: The number of parts that can be evaluated at once.
        whole: Rules that see all workers at once.
        reading_share: Share of the cost of a part for reading, 0 to 1.

    Raises:
        InvalidValueError: No core, or no rule.
    """
    if cores < 1 or rules < 1:
        raise InvalidValueError(f"a plan needs at least 1 core and 1 rule but got {cores} cores and {rules} rules")
    total = sum(run.bytes for run in runs)
    target = max(LEAST_BYTES, total // (cores * PARTS_PER_CORE))
    parts = [part for run in runs for part in _by_workers(run, target, rules, sorted(whole))]
    parts = [piece for part in parts for piece in _by_rules(part, rules, cores, total, reading_share)]
    return tuple(sorted(parts, key=lambda part: -part.bytes))


def _by_workers(run: RunContents, target: int, rules: int, whole: Sequence[int]) -> list[Part]:
    """A run as parts of about ``target`` bytes, each with whole workers, as even as they can be."""
    count = min(len(run.workers), max(1, round(run.bytes / target)))
    if count <= 1 or len(whole) == rules:
        return [Part(run.run, None, None, run.bytes)]
    bins: list[tuple[int, int, list[str]]] = [(0, number, []) for number in range(count)]
    # The largest first, each into the smallest part: at most a third more than the best division.
    for worker, size in sorted(run.workers.items(), key=lambda item: -item[1]):
        filled, number, members = heapq.heappop(bins)
        members.append(worker)
        heapq.heappush(bins, (filled + size, number, members))
    place = {worker: number for number, worker in enumerate(run.workers)}
    single = tuple(number for number in range(rules) if number not in whole) if whole else None
    parts = [
        Part(run.run, tuple(sorted(members, key=place.__getitem__)), single, filled)
        for filled, _, members in sorted(bins, key=lambda each: each[1])
        if members
    ]
    return [*parts, Part(run.run, None, tuple(whole), run.bytes)] if whole else parts


def _by_rules(part: Part, rules: int, cores: int, total: int, reading_share: float) -> list[Part]:
    """A part divided by rules, where it would otherwise take longer than all other parts together.

    With k pieces the part takes ``reading + (1 - reading) / k`` of its time, and the total work grows by
    ``(k - 1) * reading`` of it. The chosen k ends the whole first.
    """
    alone = part.workers is None or len(part.workers) == 1
    if not alone or part.bytes * cores <= total or part.bytes <= LEAST_BYTES:
        return [part]

    def ends(pieces: int) -> float:
        longest = part.bytes * (reading_share + (1 - reading_share) / pieces)
        return max(longest, (total + (pieces - 1) * reading_share * part.bytes) / cores)

    shown = range(rules) if part.rules is None else part.rules
    pieces = min(range(1, min(len(shown), cores) + 1), key=lambda k: (round(ends(k)), k))
    if pieces == 1:
        return [part]
    weight = math.ceil(part.bytes * (reading_share + (1 - reading_share) / pieces))
    return [Part(part.run, part.workers, tuple(shown[number::pieces]), weight) for number in range(pieces)]
