"""What others may know of an evaluation while it goes on, handed over whole so that no thread sees half of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchglass.evaluate.follower import FollowedWorker
from watchglass.records import Finding, Mode, RuleStatus

#: Scalars of which the last value is kept; of a training that makes ever new names only those of its last step are.
MOST_KEPT = 1000


@dataclass(frozen=True)
class RunSnapshot:
    """One run as its evaluator knows it at one moment.

    Attributes:
        run: Location of the run.
        name: What output calls it: its path below the prefix that is followed, or its location.
        attempt: Newest attempt of which something was read; -1 for none.
        statuses: Where each rule stands.
        findings: In the order of attempt, step, rule, worker.
        train_steps: TRAIN steps that were evaluated, by worker, over all attempts.
        scalars: The last TRAIN value of each scalar (``loss``, ``learning_rate``), of the first worker.
        ended: How the training ended, in words; "" while it goes on.
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
        """Replace what there is."""
        self.newest = tuple(snapshots)


class Gauges:
    """Last values and counts of a run, kept up as steps are evaluated. For the evaluator's thread."""

    def __init__(self) -> None:
        self._scalars: dict[str, float] = {}
        self._seen: tuple[int, int] | None = None

    def scalars(self, workers: Iterable[FollowedWorker]) -> dict[str, float]:
        """The last TRAIN value of each scalar, of the first worker of the newest attempt that has steps."""
        shown = [worker for worker in workers if worker.view is not None and worker.view.mode is Mode.TRAIN]
        if shown:
            newest = max(worker.attempt for worker in shown)
            views = next(worker.views for worker in shown if worker.attempt == newest)
            mark = (newest, views[0].global_step)
            if mark != self._seen:
                self._seen = mark
                last = {view.recorded_name(name): value for view in views for name, value in view.scalars().items()}
                self._scalars |= last
                if len(self._scalars) > MOST_KEPT:
                    self._scalars = last
        return dict(self._scalars)
