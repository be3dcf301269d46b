"""Many runs below one folder: listed, opened on demand, compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from watchglass.config import joined, suggest
from watchglass.errors import MissingFileError, UnknownNameError, in_a_line
from watchglass.lazy_imports import named
from watchglass.records import Mode, count
from watchglass.run.markup import page
from watchglass.run.run import Run, open_run
from watchglass.run.search import RunSearch
from watchglass.run.table import Table
from watchglass.store import open_store, read_manifest

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def open_runs(folder: str | os.PathLike[str]) -> Runs:
    """The runs below a folder or a prefix of an object store, by name. Only their manifests are read.

    Args:
        folder: A folder with runs, up to four folders deep; or a run itself, which then is the only one.

    Raises:
        MissingFileError: There is no run.
        InvalidValueError: It holds more than 10,000 folders that are not runs.
    """
    location = os.fspath(folder)
    return runs_of(location, RunSearch(open_store(location)))


def runs_of(location: str, search: RunSearch) -> Runs:
    """The runs that a search below a location finds; see :func:`open_runs`."""
    found = [_listed(location, path) for path in search.look()]
    found += [ListedRun(path, joined(location, path), 0, reason) for path, reason in search.unreadable.items()]
    if not found:
        raise MissingFileError(f"{location} holds no runs; give a folder below which `watchglass run` wrote some")
    return Runs(location, sorted(found, key=lambda each: (each.created_ns, each.name)))


def identifier_of(name: str) -> str:
    """The identifier of a listed run, for addresses and programs: it tells nothing, and no path can be made of it."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True)
class ListedRun:
    """A run in a listing.

    Attributes:
        name: Its path below the folder; for a folder that is the run itself, the folder's name.
        location: Its location, for :func:`open_run`.
        created_ns: Wall time of its creation, nanoseconds since 1970; 0 where unknown.
        problem: The reason why it cannot be read, "" where it can.
    """

    name: str
    location: str
    created_ns: int
    problem: str = ""


class Runs:
    """Runs of a folder, oldest first. Made by :func:`open_runs`; for one thread.

    ``runs["name"]`` and ``runs[0]`` open one, and iterating opens one after another, leaving out those that cannot be
    read. Nothing is kept open. Tables have one row per run, also for those that cannot be read, with the reason.

    Attributes:
        location: The folder.
        listed: The runs that were found.
    """

    def __init__(self, location: str, listed: list[ListedRun]) -> None:
        self.location = location
        self.listed = listed
        self._summaries: Any = None

    @property
    def names(self) -> list[str]:
        """Names of the runs, oldest first."""
        return [each.name for each in self.listed]

    def __len__(self) -> int:
        return len(self.listed)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Run]:
        for each in self.listed:
            try:
                run = open_run(each.location)
            except Exception:
                continue
            yield run

    def __getitem__(self, key: str | int) -> Run:
        """Open a run by name, or by its place in the list.

        Raises:
            UnknownNameError: There is no such run.
            WatchglassError: It cannot be read.
        """
        if isinstance(key, str):
            chosen = [each for each in self.listed if each.name == key]
            if not chosen:
                raise UnknownNameError(f"{self.location} has no run {key!r}{suggest(key, self.names)}; see names")
            return open_run(chosen[0].location)
        if not -len(self) <= key < len(self):
            raise UnknownNameError(f"{self.location} has {count(len(self), 'run')}, so none with number {key}")
        return open_run(self.listed[key].location)

    def table(self) -> Table:
        """One row per run: ``name, created, state, attempts, workers, models, train_steps, eval_steps, loss,
        validation_loss, findings, worst, seconds, headline, problem, location``. Of several ``models`` the losses are
        those of the first; ``run.models`` has all. ``findings`` is None where no rule was evaluated, ``headline`` the
        verdict by what the evaluator has written. Opens each run that was not opened before, or has changed since.
        """  # noqa: D205
        return Table("runs", self._table)

    def to_arrow(self) -> pyarrow.Table:
        """:meth:`table` as a ``pyarrow.Table``."""
        return self.table().to_arrow()

    def to_pandas(self) -> pandas.DataFrame:
        """:meth:`table` as a pandas data frame."""
        return self.table().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """:meth:`table` as a polars data frame."""
        return self.table().to_polars()

    def compare(self, name: str, mode: Mode | str = Mode.TRAIN) -> Table:
        """The course of a scalar in all runs: a column ``step``, then one for each run that has the scalar.

        Each value is in the row of its step; NaN where a run has none. Runs that cannot be read are omitted.

        Raises:
            UnknownNameError: No run has it.
        """
        mode = Mode.of(mode)
        courses: dict[str, Any] = {}
        for each in self.listed:
            try:
                courses[each.name] = open_run(each.location).scalars(name, mode)
            except Exception:
                continue
        if not courses:
            raise UnknownNameError(f"no run of {self.location} has a scalar {name!r}")
        return Table(f"{name} by run", lambda: _aligned(courses))

    def __repr__(self) -> str:
        broken = sum(bool(each.problem) for each in self.listed)
        note = f", {broken} of them not readable" if broken else ""
        return f"Runs({self.location!r}: {len(self)} run{'s' * (len(self) != 1)}{note})"

    def _repr_html_(self) -> str:
        header = ("name", "state", "models", "train_steps", "loss", "validation_loss", "findings", "worst", "problem")
        rows = [[self._summary(each).get(column) for column in header] for each in self.listed]
        return page(self.location, count(len(self), "run"), [name.replace("_", " ") for name in header], rows)

    def _summary(self, listed: ListedRun) -> dict[str, Any]:
        """What lists say about a run: a :class:`~watchglass.diagnose.RunSummary` as a row of :meth:`table`."""
        if self._summaries is None:
            self._summaries = named("watchglass.diagnose:Summaries")()
        found = self._summaries.of(listed)
        row = {
            "name": listed.name, "created": listed.created_ns // 1000 or None, "problem": found.problem or None,
            "location": listed.location,
        }  # fmt: skip
        if found.problem:
            return row
        same = ("state", "attempts", "workers", "models", "train_steps", "eval_steps", "loss", "validation_loss",
                "findings", "seconds", "headline")  # fmt: skip
        return {**row, **{name: getattr(found, name) for name in same}, "worst": found.worst or None}

    def _table(self) -> pyarrow.Table:
        import pyarrow as pa

        kinds = {
            "name": pa.string(), "created": pa.timestamp("us", "UTC"), "state": pa.string(), "attempts": pa.int64(),
            "workers": pa.int64(), "models": pa.int64(), "train_steps": pa.int64(), "eval_steps": pa.int64(),
            "loss": pa.float64(), "validation_loss": pa.float64(), "findings": pa.int64(), "worst": pa.string(),
            "seconds": pa.float64(), "headline": pa.string(), "problem": pa.string(), "location": pa.string(),
        }  # fmt: skip
        return pa.Table.from_pylist([self._summary(each) for each in self.listed], pa.schema(kinds))


def _aligned(courses: dict[str, Any]) -> pyarrow.Table:
    import pyarrow as pa

    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(steps for steps, _ in courses.values())]))
    columns: dict[str, Any] = {"step": pa.array(steps)}
    for name, (own, values) in courses.items():
        column = np.full(len(steps), np.nan)
        column[np.searchsorted(steps, own)] = values
        columns[name if name != "step" else "step (run)"] = pa.array(column)
    return pa.table(columns)


def _listed(location: str, path: str) -> ListedRun:
    own = joined(location, path) if path else location
    name = path or own.rstrip("/").rpartition("/")[2] or own
    try:
        return ListedRun(name, own, read_manifest(open_store(own)).created_ns)
    except Exception as error:
        return ListedRun(name, own, 0, in_a_line(error))
