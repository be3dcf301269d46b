"""Snapshots of an active evaluation for other threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchglass.records import Finding, RuleStatus


@dataclass(frozen=True)
class RunSnapshot:
    """One run as its evaluator knows it at one moment. Never changes; for any number of threads.

    :meth:`Evaluator.snapshot` makes it from what the rules are shown and have found, and counts nothing itself.

    Attributes:
        run: Location of the run.
        name: The name that output uses: the path below the prefix that is followed, or the location.
        attempt: Newest attempt of which something was read; -1 for none.
        statuses: The status of each rule.
        findings: In the order of attempt, step, rule, worker.
        train_steps: TRAIN steps that were evaluated, by worker, over all attempts.
        scalars: The last TRAIN value of each scalar (``loss``, ``learning_rate``), of the first worker.
        ended: How the run ended, in words; "" while it continues.
        deliveries: What actions did, by action and outcome: ``{("Webhook", "done"): 3}``.
        read_s: When something new was last read, on the monotonic clock of this process.
    """

    run: str
    name: str = ""
    attempt: int = -1
    statuses: tuple[RuleStatus, ...] = ()
    findings: tuple[Finding, ...] = ()
    train_steps: Mapping[str, int] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    ended: str = ""
    deliveries: Mapping[tuple[str, str], int] = field(default_factory=dict)
    read_s: float = 0.0


class Snapshots:
    """Where an evaluator leaves its newest snapshots. Any thread may read :attr:`newest`; one thread publishes."""

    def __init__(self) -> None:
        #: One per run, in the order in which they were found. Never changed, only replaced.
        self.newest: tuple[RunSnapshot, ...] = ()

    def publish(self, snapshots: Iterable[RunSnapshot]) -> None:
        """Replace the newest snapshots."""
        self.newest = tuple(snapshots)
