"""What a run has, as event files of TensorBoard; called again, what is new in it."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from watchglass import view
from watchglass.config import local_path, read_regular, scheme_of
from watchglass.errors import CompactedError, InvalidValueError, RunExistsError, StoreError, WatchglassError, importing
from watchglass.records import Mode
from watchglass.run import last_step_ns, sampled_after, spans, wall_times
from watchglass.trackers.buckets import buckets_of
from watchglass.trackers.module_graph import module_graph
from watchglass.trackers.step_numbers import scalars_of, statistics_of
from watchglass.trackers.texts import finding_texts, settings_text, verdict_text

if TYPE_CHECKING:
    from watchglass.records import Verdict
    from watchglass.run import Run, Worker
    from watchglass.tables import WorkerTables
    from watchglass.trackers.event_folder import EventFolder

#: Rows of statistics that are read at a time.
_ROWS = 1 << 16
#: Histograms of a tensor that are written from its first captures, and at each doubling of their number after that.
_FIRST, _PER_DOUBLING = 64, 32
#: The same of samples of a machine.
_FIRST_SAMPLES, _SAMPLES_PER_DOUBLING = 1024, 512
#: Instances of a metric, such as cores, that are written; of more, their mean.
_MOST_INSTANCES = 16
#: Verdicts that are none yet.
_NO_VERDICT = ("no data", "not judged")
#: The folder of texts and the graph.
_ABOUT = "watchglass"
#: The file that says what a folder has.
_STATE = "watchglass.json"
#: The file that the process which writes the folder holds locked.
_LOCK = ".lock"
_MOST_STATE_BYTES = 1 << 20
#: Attempt and own global step: the place of a recording, in order.
_Place: TypeAlias = tuple[int, int]
#: Scalars and histograms of a step, with their tags.
_OfTensors: TypeAlias = tuple[list[tuple[str, float]], list[tuple[str, NDArray[np.float32]]]]


@dataclass(frozen=True)
class ExportedRun:
    """What an export has written since it was opened."""

    folder: str  #: The folder of the run.
    scalars: int  #: Number of scalars.
    histograms: int  #: Number of histograms.
    steps: int  #: Number of training steps of all workers.


class TensorBoardExport:
    """A run as a folder of event files, ``FOLDER/NAME/train``, ``eval`` and ``watchglass``; for one thread.

    With several workers each has a folder, ``FOLDER/NAME/worker_1/train``. The folder says how much of the run it has:
    an export that is opened again goes on from there. Each attempt, and each file, begins with a mark at which
    TensorBoard drops what it had from that step on, so repeated steps replace the earlier ones.

    Args:
        run: The run. The caller refreshes it.
        folder: The folder that TensorBoard is started with. The run gets a folder of its name in it.
        judge: Returns the verdict on the run.
        histograms: Whether to write histograms.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        InvalidValueError: The folder is an address of an object store.
        RunExistsError: The folder of the run has something else, or another process writes it now.
        StoreError: It cannot be written.
    """

    def __init__(self, run: Run, folder: str, judge: Callable[[Run], Verdict], *, histograms: bool = True) -> None:
        with importing("event files are written by TensorBoard", "tensorboard"):
            from watchglass.trackers.event_folder import EventFolder
        if scheme_of(folder):
            raise InvalidValueError(f"TensorBoard needs a folder but got {folder!a}; write to a folder, and copy it")
        self._run, self._judge, self._histograms = run, judge, histograms
        self.path = Path(os.path.abspath(local_path(folder))) / _name_of(run.location)
        self._open: Callable[[Path], EventFolder] = EventFolder
        self._folders: dict[str, EventFolder] = {}
        self._done: dict[str, _Place] = {}
        self._attempts: dict[str, int] = {}
        self._captures: Counter[tuple[str, str]] = Counter()
        self._judged: Any = None
        self._settings = ""
        self._graph = False
        self._steps = 0
        with _writing(self.path):
            self._lock = self._claim()

    def _claim(self) -> int:
        """Take the folder for this process, and read how far it is; returns the descriptor that holds the lock."""
        state = self.path / _STATE
        others = self.path.is_dir() and any(each.name != _LOCK for each in self.path.iterdir())
        if others and not state.is_file():
            raise RunExistsError(f"{self.path} has other files; choose another folder, or remove it first")
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read_state(state)
            return lock
        except BlockingIOError:
            os.close(lock)
            raise RunExistsError(
                f"{self.path} is written by another process now; try again when it has ended"
            ) from None
        except BaseException:
            os.close(lock)
            raise

    def _read_state(self, state: Path) -> None:
        if not state.is_file():
            self._write_state()
            return
        try:
            known = json.loads(read_regular(state, _MOST_STATE_BYTES))
            run, done = known["run"], {str(key): (int(a), int(own)) for key, (a, own) in known["done"].items()}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise RunExistsError(f"{state} cannot be read; remove {self.path} to write it again") from None
        if run != self._run.manifest.run_id:
            raise RunExistsError(f"{self.path} has another run of this name; choose another folder, or remove it first")
        self._done = done

    def _write_state(self) -> None:
        content = {"run": self._run.manifest.run_id, "done": self._done}
        view.write_whole(self.path / _STATE, json.dumps(content).encode())

    @property
    def written(self) -> ExportedRun:
        """What was written so far."""
        folders = self._folders.values()
        return ExportedRun(
            str(self.path), sum(each.scalars for each in folders), sum(each.histograms for each in folders), self._steps
        )

    def write_new(self, *, ended: bool = False) -> None:
        """Write what the run has and the folder lacks.

        Args:
            ended: Nothing more comes: also an evaluation that may be incomplete.

        Raises:
            StoreError: The folder cannot be written, or the run not read.
        """
        with _writing(self.path):
            try:
                self._write_workers(ended=ended)
            except CompactedError:
                self._run.refresh(again=True)
                self._attempts.clear()  # marks at which TensorBoard drops what was written of the same steps
                self._write_workers(ended=ended)
            for stream in self._run.streams:
                self._write_samples(stream)
            self._write_texts(ended=ended)
            for folder in self._folders.values():
                folder.flush()
            self._write_state()

    def _write_workers(self, *, ended: bool) -> None:
        for name in self._run.workers:
            prefix = f"{name}/" if len(self._run.workers) > 1 else ""
            worker = self._run.worker(name)
            self._write_training(worker, f"{prefix}train")
            self._write_evaluations(worker, f"{prefix}eval", ended=ended)

    def close(self) -> None:
        """Close the files, and let another process write the folder."""
        for folder in self._folders.values():
            folder.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # Training steps

    def _write_training(self, worker: Worker, key: str) -> None:
        rows = worker.columns[worker.columns["mode"] == int(Mode.TRAIN)]
        attempt, own = self._done.get(key, (-1, -1))
        if attempt >= 0:
            later = rows["attempt"] > attempt
            rows = rows[later | ((rows["attempt"] == attempt) & (rows["own"].astype(np.int64) > own))]
        for attempt in np.unique(rows["attempt"]).tolist():
            part = rows[rows["attempt"] == attempt]
            part = part[np.argsort(part["own"], kind="stable")]
            self._write_attempt(worker.attempts[attempt], attempt, part, key)
            self._done[key] = (attempt, int(part["own"][-1]))
            self._steps += len(part)

    def _write_attempt(self, tables: WorkerTables, attempt: int, part: NDArray[Any], key: str) -> None:
        ends = tables.steps.log.latest
        ends = ends[np.searchsorted(ends["global_step"], part["own"])]
        wall = wall_times(tables.headers[:1], ends["end_ns"]).astype(np.int64) / 1e9
        self._begin(key, attempt, int(part["step"][0]), float(wall[0]))
        folder = self._folder(key)
        for first, stop in spans(part["own"], np.maximum(ends["captures"], 1), _ROWS):
            low, high = np.searchsorted(part["own"], [first, stop]).tolist()
            own = part["own"][low:high]
            scalars, histograms = scalars_of(tables, own), self._of_tensors(tables, own, key)
            for at, step in enumerate(part["step"][low:high].tolist()):
                of_tensors, buckets = histograms.get(at, ((), ()))
                folder.add(step, float(wall[low + at]), [*scalars[at], *of_tensors], buckets)

    def _of_tensors(self, tables: WorkerTables, own: NDArray[np.uint64], key: str) -> dict[int, _OfTensors]:
        """Scalars and buckets of the tensors at some steps, by place of the step."""
        found: dict[int, _OfTensors] = {}
        for at, of_step in statistics_of(tables, own, histograms=self._histograms).items():
            shown = []
            for name, histograms, row, values in of_step.histograms:
                number = self._captures[key, name]
                self._captures[key, name] += 1
                buckets = buckets_of(histograms, row, values) if _is_shown(number) else None
                if buckets is not None:
                    shown.append((name, buckets))
            found[at] = of_step.scalars, shown
        return found

    # Evaluations

    def _write_evaluations(self, worker: Worker, key: str, *, ended: bool) -> None:
        """The means of each evaluation, at the training step before it."""
        numbers = worker.numbers(Mode.EVAL)
        stretches = worker.stretches(Mode.EVAL)
        if stretches and not ended and not worker.ended and int(worker.columns["mode"][-1]) == int(Mode.EVAL):
            stretches = stretches[:-1]  # it may go on
        for stretch in reversed(stretches):
            if self._done.get(key, (-1, -1)) >= _place(numbers, stretch.last_step):
                break
        else:
            stretch = None
        for each in stretches[stretches.index(stretch) + 1 if stretch is not None else 0 :]:
            attempt, own = _place(numbers, each.last_step)
            tables = worker.attempts[attempt]
            ends = tables.steps.log.latest
            end_ns = ends["end_ns"][np.searchsorted(ends["global_step"], np.array([own], np.uint64))]
            wall_s = float(wall_times(tables.headers[:1], end_ns).astype(np.int64)[0] / 1e9)
            step = max(each.train_step, 0)
            begin = step
            if self._done.get(key, (attempt, 0))[0] < attempt:
                # The earlier attempt may have evaluated steps that this one has repeated without an evaluation.
                rows = worker.columns
                begin = min([step, *rows["step"][(rows["attempt"] == attempt) & (rows["mode"] == int(Mode.TRAIN))]])
            self._begin(key, attempt, int(begin), wall_s)
            of_training = [(f"training data/{name}", value) for name, value in each.training_means.items()]
            self._folder(key).add(step, wall_s, [*each.means.items(), *of_training])
            self._done[key] = (attempt, own)

    # Metrics of machines

    def _write_samples(self, stream: str) -> None:
        """Metrics of a machine. Their step is the second of the run, because several samples lie in one long step."""
        key = re.sub(r"[^A-Za-z0-9_.-]", "_", stream)
        number, last_ns = self._done.get(key, (0, 0))
        begun_ns = self._run.manifest.created_ns
        for moment in sampled_after(self._run, stream, last_ns):
            if _is_shown(number, _FIRST_SAMPLES, _SAMPLES_PER_DOUBLING):
                second = max(moment.wall_ns - begun_ns, 0) // 10**9
                self._begin(key, 0, second, moment.wall_ns / 1e9)
                self._folder(key).add(second, moment.wall_ns / 1e9, _system_scalars(moment.values()))
            number, last_ns = number + 1, moment.wall_ns
        if number:
            self._done[key] = (number, last_ns)

    # Findings, settings and the graph, which are few: each process writes them from the start

    def _write_texts(self, *, ended: bool) -> None:
        run = self._run
        worker, begun_ns = run.worker(), run.manifest.created_ns
        self._begin(_ABOUT, 0, 0, begun_ns / 1e9)
        folder, step = self._folder(_ABOUT), max(worker.numbers(Mode.TRAIN).last, 0)
        wall_s = (last_step_ns(worker) or begun_ns) / 1e9
        settings = settings_text(run)
        if settings != self._settings:
            self._settings = settings
            folder.add(step, wall_s, texts={"watchglass/settings": settings})
        if not self._graph and len(worker.columns):
            self._graph = True
            nodes = module_graph(run)
            if nodes:
                folder.add_graph(nodes, wall_s)
        found, statuses = run.journal.findings, run.journal.statuses
        judged = ([(each.id, each.count) for each in found], [each.status for each in statuses], run.finished)
        if judged != self._judged:
            verdict = self._judge(run)
            if verdict.status in _NO_VERDICT and not ended:
                return
            self._judged = judged
            folder.add(step, wall_s, texts={"watchglass/verdict": verdict_text(verdict), **finding_texts(verdict)})

    def _begin(self, key: str, attempt: int, step: int, wall_s: float) -> None:
        """Mark the begin of an attempt, or of the file of this process."""
        if self._attempts.get(key) != attempt:
            self._attempts[key] = attempt
            self._folder(key).start(step, wall_s)

    def _folder(self, key: str) -> EventFolder:
        if key not in self._folders:
            self._folders[key] = self._open(self.path / key)
        return self._folders[key]


def _is_shown(number: int, first: int = _FIRST, per_doubling: int = _PER_DOUBLING) -> bool:
    """Whether a capture of a tensor is among those whose histograms are written, by its number from 0 on."""
    return number < first or number % (2 ** (number // per_doubling).bit_length() // 2) == 0


def _system_scalars(values: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    for name, known in values.items():
        if len(known) > _MOST_INSTANCES:
            yield f"system/{name}", sum(known.values()) / len(known)
            continue
        for instance, value in known.items():
            yield f"system/{name}/{instance}" if instance else f"system/{name}", value


def _place(numbers: Any, step: int) -> _Place:
    place = numbers.place(step)
    return place.attempt, place.global_step


def _name_of(location: str) -> str:
    return location.rstrip("/").rpartition("/")[2] or "run"


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns errors of the file system into errors of the store."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WatchglassError):
            raise
        raise StoreError(f"cannot write {path}: {error.strerror or error}; check the folder and the disk") from error
