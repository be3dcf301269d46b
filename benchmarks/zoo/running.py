"""Trains the programs of the zoo, side by side, and keeps their runs: what has been trained is not trained again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from members import PROGRAMS, Member

#: Seconds after which a program is ended: it hangs.
LIMIT_S = 900


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


def train(wanted: Sequence[Trial], jobs: int, *, retrain: bool) -> None:
    """Train what is not there yet: each program watched and bare, `jobs` at a time.

    A trial is done when its stamp is there; it is written last, so an interrupted call leaves nothing half done behind.

    Raises:
        RuntimeError: Of trials whose program could not be started or left no figures, after all others have run.
    """
    waiting = [trial for trial in wanted if retrain or _stamp(trial) != _wanted(trial)]
    if not waiting:
        return
    failed: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    processes = _Processes()
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("training", total=len(waiting))
        futures = {pool.submit(_train_one, trial, processes): trial for trial in waiting}
        try:
            for future in as_completed(futures):
                complaint = future.result()
                if complaint:
                    failed.append(f"{futures[future].member.id}, seed {futures[future].seed}: {complaint}")
                progress.advance(bar)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.end()
            raise
    if failed:
        raise RuntimeError("\n".join(["these programs left no figures:", *failed]))


class _Processes:
    """The programs that run, so that an interrupt ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, command: Sequence[str], output: Path) -> int:
        """Run a command to its end.

        Returns:
            Its exit status; -9 where it was ended after `LIMIT_S`.
        """
        environment = {**os.environ, "PYTHONPATH": str(PROGRAMS), "OMP_NUM_THREADS": "1"}
        with output.open("wb") as stream, self._lock:
            if self._ended:
                return -9
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
            self._running.add(process)
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            with self._lock:
                self._running.discard(process)

    def end(self) -> None:
        """End all that run."""
        with self._lock:
            self._ended = True
            for process in self._running:
                process.terminate()


def _train_one(trial: Trial, processes: _Processes) -> str:
    """Train one, watched and bare.

    Returns:
        What went wrong with the measurement itself, "" for nothing. That a program fails is a result.
    """
    shutil.rmtree(trial.folder, ignore_errors=True)
    trial.folder.mkdir(parents=True)
    program = [str(trial.member.script), trial.member.name, "--seed", str(trial.seed)]
    figures, measured = trial.folder / "figures.json", trial.folder / "measured.json"
    # Default options: what is scored is what a user gets who writes `watchglass run` before the script.
    watch = [sys.executable, "-m", "watchglass", "run", "--run", str(trial.run)]
    processes.run([*watch, *program, "--log", str(figures)], trial.folder / "watched.txt")
    processes.run([sys.executable, *program, "--measure", "--log", str(measured)], trial.folder / "bare.txt")
    missing = [path.name for path in (figures, measured) if not path.is_file()]
    if missing:
        return f"no {' and no '.join(missing)}; see {trial.folder}"
    _stamp_file(trial).write_text(_wanted(trial), encoding="utf-8")
    return ""


def _stamp_file(trial: Trial) -> Path:
    return trial.folder / "stamp"


def _stamp(trial: Trial) -> str:
    try:
        return _stamp_file(trial).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _wanted(trial: Trial) -> str:
    """Digest of the script and of what it imports from the zoo: a changed program is trained again."""
    parts = (trial.member.script.read_bytes(), (PROGRAMS / "zoo.py").read_bytes())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
