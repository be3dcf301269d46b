"""What lists say about a run: one record, made where the run is read, and kept while its files stay as they are."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from watchglass.diagnose.judgement import verdict
from watchglass.errors import in_a_line
from watchglass.records import Finding, Mode, Severity, Verdict
from watchglass.run import ListedRun, Run, count_steps, identifier_of, may_go_on, open_run, state_of
from watchglass.store import Store, attempts, claimed_workers, open_store
from watchglass.view import colour_of, headline, live_tone, settings_of, tone

#: Points of the course of a loss, and most workers that are named.
_POINTS, _NAMED = 60, 5
#: The state of a run of which only a part was read.
BEING_READ = "being read"
#: Runs of more workers have a preview.
_MANY_WORKERS = 64


class AccusedWorker(NamedTuple):
    """A worker with findings."""

    worker: str  #: Its name.
    severity: str  #: Of the worst.
    findings: int  #: How many.
    step: int  #: The first step of them.


@dataclass(frozen=True)
class RunSummary:
    """What a list says about a run.

    Attributes:
        listed: Its name and location, the time of its creation.
        read: Whether the rest was read.
        problem: Why it cannot be read, "" if it can.
        state: ``"finished"``, ``"not finished"`` and so on, see :func:`~watchglass.run.state_of`.
        headline: Its verdict in one line: by the journal of its evaluator; no rule is evaluated.
        tone: Severity of the verdict, "" for a clean run.
        worst_diagnosis: The headline of its worst diagnosis, "" for none.
        findings: How many findings it has; None where no rule was evaluated.
        worst: Severity of the worst finding, "" for none.
        attempts: How often it was started.
        workers: How many workers it has.
        models: How many models it trains or evaluates; losses are those of the first.
        train_steps: Training steps.
        eval_steps: Steps of evaluations.
        planned_train_steps: The planned number of training steps; None if unknown.
        seconds: Duration of its steps.
        loss: The last training loss; None for none.
        validation_loss: The mean loss of the last evaluation; None for none.
        losses: Course of the training loss, thinned.
        settings: What it was started with, by name.
        accused: Workers with findings, the worst first; none of a run of one worker.
        colour: Its colour, by the hash of its identifier.
    """

    listed: ListedRun
    read: bool = False
    problem: str = ""
    state: str = ""
    headline: str = ""
    tone: str = ""
    worst_diagnosis: str = ""
    findings: int | None = None
    worst: str = ""
    attempts: int = 0
    workers: int = 0
    models: int = 0
    train_steps: int = 0
    eval_steps: int = 0
    planned_train_steps: int | None = None
    seconds: float = 0.0
    loss: float | None = None
    validation_loss: float | None = None
    losses: tuple[float, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    accused: tuple[AccusedWorker, ...] = ()
    colour: str = ""

    @property
    def identifier(self) -> str:
        """The run in addresses and for programs: a hash of its name."""
        return identifier_of(self.listed.name)

    @property
    def live(self) -> bool:
        """Whether it may go on."""
        return self.read and may_go_on(self.state) and not self.problem

    @property
    def done_ratio(self) -> float | None:
        """The share of the planned steps that are over; None if unknown."""
        planned = self.planned_train_steps
        return min(self.train_steps / planned, 1.0) if planned else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated time until its planned end; None if unknown or over."""
        planned, done = self.planned_train_steps, self.train_steps
        if not self.live or planned is None or not 0 < done < planned:
            return None
        return self.seconds * (planned - done) / done


def summary_of(
    run: Run, listed: ListedRun | None = None, *, judged: Verdict | None = None, state: str | None = None
) -> RunSummary:
    """The summary of a run as it was read.

    Statistics of tensors are not decoded for it: where they make no sense, the verdict does not say so yet.

    Args:
        run: The run.
        listed: Its place in a list; it is its own if None.
        judged: The verdict on it; made here if None.
        state: How its processes are; looked at here if None.

    Raises:
        WatchglassError: It cannot be read any more.
    """
    listed = listed or ListedRun(run.location, run.location, run.manifest.created_ns)
    judged = judged or verdict(run if run.is_snapshot else run.snapshot())
    state = state or state_of(run)
    findings, models = run.journal.findings, run.models
    diagnosis = max(judged.diagnoses, key=lambda each: each.severity.rank, default=None)
    return RunSummary(
        listed, read=True, state=state, headline=headline(judged),
        tone=live_tone(judged) if may_go_on(state) else tone(judged),
        worst_diagnosis=diagnosis.headline if diagnosis is not None else "",
        findings=len(findings) if findings or run.journal.statuses else None, worst=_worst(findings),
        attempts=len(run.attempts), workers=len(run.workers), models=len(models), train_steps=judged.train_steps,
        eval_steps=count_steps(run, Mode.EVAL), planned_train_steps=judged.planned_train_steps,
        seconds=judged.seconds, loss=models[0].training_loss if models else None,
        validation_loss=models[0].validation_loss if models else None, losses=_thinned(run),
        settings=settings_of(run), accused=_accused(findings) if len(run.workers) > 1 else (),
        colour=colour_of(run.manifest.run_id),
    )  # fmt: skip


def preview_of(listed: ListedRun) -> RunSummary | None:
    """The summary of a run of very many workers by its journal and its first worker alone, in a fraction of the time.

    Its state is :data:`BEING_READ`. None for a run of few workers.

    Raises:
        WatchglassError: It cannot be read.
    """
    store = open_store(listed.location)
    workers = claimed_workers(store, max(attempts(store), default=0))
    if len(workers) <= _MANY_WORKERS:
        return None
    run = open_run(listed.location, workers=workers[:1])
    accused = _accused(run.journal.findings)
    return replace(summary_of(run, listed, state=BEING_READ), workers=len(workers), accused=accused)


class Summaries:
    """Summaries of runs, each read again only where a file of the run has changed, or while the run goes on.

    For any number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[bytes, RunSummary]] = {}

    def of(self, listed: ListedRun) -> RunSummary:
        """The summary of a run; with its problem if it cannot be read."""
        if listed.problem:
            return RunSummary(listed, read=True, problem=listed.problem)
        try:
            files = _files(open_store(listed.location))
            with self._lock:
                known = self._known.get(listed.location)
            if known is not None and known[0] == files and not known[1].live:
                return replace(known[1], listed=listed)
            found = summary_of(open_run(listed.location), listed)
        except Exception as error:  # of one run among many
            return RunSummary(listed, read=True, problem=in_a_line(error))
        with self._lock:
            self._known[listed.location] = files, found
        return found


def _files(store: Store) -> bytes:
    """A digest of the names and sizes of all files of a run."""
    listed = "\n".join(f"{each.path} {each.size}" for each in store.list())
    return hashlib.sha256(listed.encode("utf-8", "surrogatepass")).digest()


def _worst(findings: list[Finding]) -> str:
    severities = (each.severity for each in findings)
    return max(severities, key=lambda severity: severity.rank).value if findings else ""


def _accused(findings: list[Finding]) -> tuple[AccusedWorker, ...]:
    """The workers with the worst findings, and of these with most."""
    of_worker: dict[str, list[Finding]] = {}
    for each in findings:
        of_worker.setdefault(each.worker, []).append(each)
    accused = [
        AccusedWorker(worker, _worst(each), len(each), min(found.step for found in each))
        for worker, each in of_worker.items()
        if worker
    ]
    return tuple(
        sorted(accused, key=lambda each: (-Severity(each.severity).rank, -each.findings, each.worker))[:_NAMED]
    )


def _thinned(run: Run) -> tuple[float, ...]:
    """The course of the loss, the mean of each of 60 stretches; what is not finite stays so."""
    if not run.worker().has("loss"):
        return ()
    _, values = run.scalars("loss")
    if not len(values):
        return ()
    begins = np.unique(np.linspace(0, len(values), _POINTS + 1).astype(int)[:-1])
    counts = np.diff([*begins.tolist(), len(values)])
    return tuple((np.add.reduceat(values, begins) / counts).tolist())
