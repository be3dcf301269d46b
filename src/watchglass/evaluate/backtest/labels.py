"""Labels of stored runs, from a file that people write: which were sick, since when, and of which disease."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchglass.config import build, check_names, parameter, read_regular, read_toml, validate, why_no_file
from watchglass.errors import InvalidValueError, MissingFileError, UnknownNameError, WatchglassError

#: A file of labels is shorter than this.
_MOST_BYTES = 64 << 20

#: Columns of a file of labels, in the order in which the documentation has them.
COLUMNS = ("run", "sick", "since_step", "until_step", "cause")


@dataclass(frozen=True)
class Label:
    """The label of one run.

    Attributes:
        run: Its location, or the last parts of it: ``"train-7"``, ``"lr/train-7"``.
        sick: Whether something is wrong with it that the rule should find.
        since_step: First TRAIN step at which it is; None where that is not known.
        until_step: Last TRAIN step at which it still helps to know; None for the end of the run.
        cause: The cause, for people.

    Raises:
        InvalidValueError: A value of the wrong type, or steps that contradict each other.
    """

    run: str = parameter("")
    sick: bool = parameter(False)
    since_step: int | None = parameter(None, ge=0)
    until_step: int | None = parameter(None, ge=0)
    cause: str = parameter("")

    def __post_init__(self) -> None:
        validate(self, "a label")
        if not self.run.strip():
            raise InvalidValueError("a label: run must name a run but got ''")
        if not self.sick and (self.since_step is not None or self.until_step is not None):
            raise InvalidValueError(
                f"a label: {self.run} is not sick, so since_step and until_step must be empty but got "
                f"{self.since_step if self.since_step is not None else self.until_step}"
            )
        if self.until_step is not None and self.until_step < (self.since_step or 0):
            raise InvalidValueError(
                f"a label: until_step of {self.run} must not be before since_step ({self.since_step or 0}) but got "
                f"{self.until_step}"
            )


def read_labels(path: str | os.PathLike[str]) -> list[Label]:
    """The labels of a file.

    Args:
        path: ``.csv`` with a line of column names, ``.json`` with a list of objects (or an object whose ``runs`` is
            one), or ``.toml`` with ``[[runs]]``.

    Raises:
        MissingFileError: It is not there.
        InvalidValueError: It is none of these, has an unknown column, or an impossible value; the message names the
            place.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"file of labels {path} {why_no_file(path)}")
    readers = {".csv": _from_csv, ".json": _from_json, ".toml": _from_toml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InvalidValueError(f"file of labels {path} must end in {', '.join(readers)} but got {path.suffix!r}")
    labels = []
    for place, row in reader(path):
        try:
            check_names(row, COLUMNS, "a label")
            for needed in ("run", "sick"):
                if needed not in row:
                    raise InvalidValueError(f"a label: {needed} is missing")
            labels.append(build(Label, row, "a label"))
        except WatchglassError as error:
            raise InvalidValueError(f"{path}, {place}: {str(error).removeprefix('a label: ')}") from None
    if not labels:
        raise InvalidValueError(f"file of labels {path} contains no labels")
    return labels


def labels_of_runs(labels: Sequence[Label], runs: Sequence[str]) -> tuple[dict[str, Label], list[str]]:
    """Labels by location of the run that each is of, and the runs of further labels, which are not among ``runs``.

    One file of labels serves many calls, each on some of its runs.

    Raises:
        UnknownNameError: All labels are of other runs.
        InvalidValueError: One fits several runs, or two are of one run.
    """
    found: dict[str, Label] = {}
    others: list[str] = []
    for label in labels:
        name = label.run.strip().rstrip("/")
        fitting = [run for run in runs if run.rstrip("/") == name] or [
            run for run in runs if run.rstrip("/").endswith(f"/{name.removeprefix('./')}")
        ]
        if not fitting:
            others.append(label.run)
            continue
        if len(fitting) > 1:
            raise InvalidValueError(
                f"the label of {label.run} matches {len(fitting)} runs, {fitting[0]} and {fitting[1]}; write more of "
                "its path"
            )
        if fitting[0] in found:
            raise InvalidValueError(f"{fitting[0]} has two labels, {found[fitting[0]].run} and {label.run}; leave one")
        found[fitting[0]] = label
    if others and not found:
        raise UnknownNameError(
            f"no label matches a given run: the first label is of {others[0]}, the first run is "
            f"{runs[0] if runs else 'missing'}"
        )
    return found, others


def _from_csv(path: Path) -> list[tuple[str, dict[str, Any]]]:
    text = _text(path)
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True, strict=True)
    rows = []
    try:
        for row in reader:
            place = f"line {reader.line_num}"
            if None in row or None in row.values():
                raise InvalidValueError(f"{path}, {place}: does not have as many columns as the first line")
            # An empty cell gives no value; the others are read by the type of their column.
            rows.append((place, {name.strip(): cell.strip() for name, cell in row.items() if cell.strip()}))
    except csv.Error as error:
        raise InvalidValueError(f"{path}, line {reader.line_num}: is not valid CSV: {error}") from None
    check_names([name.strip() for name in reader.fieldnames or ()], COLUMNS, f"{path}, line 1")
    return rows


def _from_json(path: Path) -> list[tuple[str, dict[str, Any]]]:
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(f"{path} is not valid JSON: {error}") from None
    return _rows(path, data.get("runs") if isinstance(data, Mapping) else data)


def _from_toml(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return _rows(path, read_toml(path, "file of labels").get("runs"))


def _rows(path: Path, rows: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InvalidValueError(f"{path} must hold a list of labels, each with {', '.join(COLUMNS)}, under runs")
    return [
        (f"label {number}", {name: cell for name, cell in row.items() if cell is not None})
        for number, row in enumerate(rows, start=1)
    ]


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
