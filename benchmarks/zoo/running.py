"""Trains the programs of the zoo, side by side, and keeps their runs: what has been trained is not trained again."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from members import HERE, PROGRAMS, ROOT, Member

#: Seconds after which a program is ended: it hangs.
LIMIT_S = 900
#: Modules that the programs import.
_LIBRARIES = ("sklearn.datasets", "sklearn.metrics", "sklearn.model_selection")
#: What bare programs have learned: it does not depend on watchglass, and takes as long to measure as all else.
_SKILLS = HERE / "skills.csv"
#: Several programs run side by side, each on one core and on no device.
_OWN = {
    "PYTHONPATH": str(PROGRAMS),
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
MINUTE_S = 60.0
Event = TypeVar("Event")


@dataclass(frozen=True)
class Trial:
    """One program with one seed: the unit of all figures.

    Attributes:
        member: The program.
        seed: Its seed.
        folder: What is kept of it: `run`, `figures.json` of the watched program, `measured.json` of the bare one.
    """

    member: Member
    seed: int
    folder: Path

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    def figures(self) -> dict[str, Any]:
        """What the watched program logged."""
        return _read(self.folder / "figures.json")

    def skill(self) -> float | None:
        """What the bare program has learned; None where it failed, NaN where that is not a number."""
        skill: float | None = _read(self.folder / "measured.json")["skill"]
        return skill


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def trials(chosen: Iterable[Member], seeds: int, folder: Path) -> list[Trial]:
    """Every program with every seed."""
    return [
        Trial(member, seed, folder / member.half / member.script.stem / member.name / f"seed_{seed}")
        for member in chosen
        for seed in range(seeds)
    ]


@contextmanager
def preloaded() -> Iterator[str]:
    """An executable in place of Python that has imported what the programs do, which takes longer than most of them."""
    sys.path.append(str(ROOT / "tests"))
    from preloaded import Preloaded

    with tempfile.TemporaryDirectory(prefix="watchglass-") as folder:
        interpreter = Preloaded(Path(folder))
        try:
            yield str(interpreter.importing(*_LIBRARIES))
        finally:
            interpreter.close()


def train(wanted: Sequence[Trial], jobs: int, python: str, *, rules: str, retrain: bool, measure: bool = True) -> None:
    """Train what is not there yet: each program watched and bare, `jobs` at a time.

    Each of the two is done when its stamp is there; it is written last, so an interrupted call leaves nothing half done
    behind.

    Args:
        wanted: The trials.
        jobs: How many programs train at a time.
        python: The executable that runs those of PyTorch.
        rules: Rules that are evaluated while the program trains, as for `--rules`; ``"default"`` for no such option.
        retrain: Train the watched programs again. The bare ones do not depend on watchglass.
        measure: Train the bare ones too.

    Raises:
        RuntimeError: Of trials whose program could not be started or left no figures, after all others have run.
    """
    if measure:
        _take_skills(wanted)
    bare = [_Bare(trial) for trial in wanted] if measure else []
    watched = [_Watched(trial, rules) for trial in wanted]
    waiting: list[_Watched | _Bare] = [each for each in bare if not each.done()]
    waiting += [each for each in watched if retrain or not each.done()]
    if not waiting:
        return
    failed: list[str] = []
    processes = _Processes(python)
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(each.train, processes) for each in waiting]
        try:
            for future in shown(as_completed(futures), len(waiting), "training"):
                failed += future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise
    if failed:
        raise RuntimeError("\n".join(["these programs left no figures:", *failed]))


def _take_skills(wanted: Iterable[Trial]) -> None:
    """Take over what was measured before of the same programs, in place of bare runs."""
    if not _SKILLS.is_file():
        return
    with _SKILLS.open(newline="", encoding="utf-8") as stream:
        rows = {(row["program"], row["seed"]): row for row in csv.DictReader(stream)}
    for trial in wanted:
        row = rows.get((trial.member.id, str(trial.seed)))
        if row is not None and row["digest"] == _digest(trial.member) and not _stamp(trial, "bare")[0]:
            figures = trial.folder / "measured.json"
            _clear(trial, "bare", figures)
            figures.write_text(json.dumps({"skill": json.loads(row["skill"])}), encoding="utf-8")
            _finished(trial, "bare", figures, _SKILLS, "")


def write_skills(measured: Iterable[Trial]) -> None:
    """Write what bare programs have learned, for the next call on another machine."""
    with _SKILLS.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(("program", "seed", "digest", "skill"))
        for trial in measured:
            rows.writerow((trial.member.id, trial.seed, _digest(trial.member), json.dumps(trial.skill())))


def trained(wanted: Iterable[Trial]) -> list[Trial]:
    """Those of which the present version has been trained, watched for any rules, and bare."""
    return [
        trial for trial in wanted if {_stamp(trial, kind)[0] for kind in ("watched", "bare")} == {_digest(trial.member)}
    ]


def shown(events: Iterable[Event], total: int, doing: str) -> Iterator[Event]:
    """The events, with their progress on stderr: a bar on a terminal, elsewhere a line per minute."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield from progress.track(events, total=total, description=doing)
        return
    began = printed = time.monotonic()
    for done, event in enumerate(events, 1):
        yield event
        now = time.monotonic()
        if now - printed >= MINUTE_S:
            left = (now - began) / done * (total - done) / MINUTE_S
            print(f"{doing}: {done} of {total}, about {left:.0f} minutes left", file=sys.stderr, flush=True)
            printed = now


class _Processes:
    """The programs that run, so that an interrupt ends them."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, trial: Trial, watch: Sequence[str], file: Path, options: Sequence[str], output: Path) -> None:
        """Run the program of a trial to its end, or for `LIMIT_S`.

        Args:
            trial: The trial.
            watch: What stands before the script on Python's command line.
            file: Where the program writes its figures.
            options: Further options of the program.
            output: Where its output goes.
        """
        member = trial.member
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(member.ranks)]
        program = [str(member.script), member.name, "--seed", str(trial.seed), "--figures", str(file), *options]
        python = self._python if member.framework == "pytorch" else sys.executable  # they do not survive a fork
        command = [python, *(torchrun if member.ranks > 1 else []), *watch, *program]
        # A report that is still being written would slow the next program.
        environment = {**os.environ, **_OWN}
        # Without bytecode each program would compile PyTorch and scikit-learn: seconds, longer than it trains.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with output.open("wb") as stream, self._lock:
            if self._ended:
                return
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
            self._running.add(process)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        """End all that run."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()


@dataclass(frozen=True)
class _Watched:
    """The watched run of a trial.

    Attributes:
        trial: The trial.
        rules: Rules that are evaluated meanwhile.
    """

    trial: Trial
    rules: str

    def done(self) -> bool:
        """Whether the present version of the program has been trained so."""
        return _stamp(self.trial, "watched") == [_digest(self.trial.member), self.rules]

    def train(self, processes: _Processes) -> list[str]:
        """Train it.

        Returns:
            What went wrong with the measurement itself. That a program fails is a result.
        """
        trial = self.trial
        figures, output = trial.folder / "figures.json", trial.folder / "watched.txt"
        _clear(trial, "watched", figures)
        shutil.rmtree(trial.run, ignore_errors=True)
        # Default options: what is scored is what a user gets who writes `watchglass run` before the script.
        rules = [] if self.rules == "default" else ["--rules", self.rules]
        watch = ["-m", "watchglass", "run", "--run-dir", str(trial.run), *rules]
        processes.run(trial, watch, figures, (), output)
        return _finished(trial, "watched", figures, output, self.rules)


@dataclass(frozen=True)
class _Bare:
    """The bare run of a trial, which measures what the program learns.

    Attributes:
        trial: The trial.
    """

    trial: Trial

    def done(self) -> bool:
        """Whether the present version of the program has been measured."""
        return _stamp(self.trial, "bare") == [_digest(self.trial.member)]

    def train(self, processes: _Processes) -> list[str]:
        """Train it.

        Returns:
            What went wrong with the measurement itself. That a program fails is a result.
        """
        figures, output = self.trial.folder / "measured.json", self.trial.folder / "bare.txt"
        _clear(self.trial, "bare", figures)
        processes.run(self.trial, (), figures, ("--measure",), output)
        return _finished(self.trial, "bare", figures, output, "")


def _digest(member: Member) -> str:
    """Digest of the script and of what it imports from the zoo: a changed program is trained again."""
    imported = ["zoo.py", *(["zoo_ranks.py"] if member.ranks > 1 else [])]
    parts = (member.script.read_bytes(), *((PROGRAMS / name).read_bytes() for name in imported))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _stamp(trial: Trial, kind: str) -> list[str]:
    try:
        return (trial.folder / f"{kind}.stamp").read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return [""]


def _clear(trial: Trial, kind: str, figures: Path) -> None:
    trial.folder.mkdir(parents=True, exist_ok=True)
    (trial.folder / f"{kind}.stamp").unlink(missing_ok=True)
    figures.unlink(missing_ok=True)


def _finished(trial: Trial, kind: str, figures: Path, output: Path, rules: str) -> list[str]:
    if not figures.is_file():
        return [f"{trial.member.id}, seed {trial.seed}: no {figures.name}; see {output}"]
    (trial.folder / f"{kind}.stamp").write_text(f"{_digest(trial.member)} {rules}", encoding="utf-8")
    return []
