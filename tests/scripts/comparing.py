"""Runs a script bare and watched, and compares what it did with each other and with what it states."""

from __future__ import annotations

import filecmp
import math
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import watchglass
from scripts.expectations import Expectation, Series
from watchglass.records import Mode

_LONGEST_S = 120


class Ended(NamedTuple):
    """How a process ended, what it printed, and where."""

    status: int
    out: str
    err: str
    folder: Path

    def files(self) -> set[str]:
        """What it left in its folder."""
        paths = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return {str(path) for path in paths if "__pycache__" not in path.parts}


def run(command: list[str | Path], folder: Path) -> Ended:
    """Runs a command in a new folder."""
    folder.mkdir()
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=_LONGEST_S)
    return Ended(done.returncode, done.stdout, done.stderr, folder)


def compare(script: Path, expected: Expectation, python: Path, folder: Path) -> None:
    """Asserts that a script does the same watched as bare, and what it states.

    Args:
        script: The script.
        expected: What it states.
        python: The executable that runs it.
        folder: An empty folder.
    """
    bare = run([python, script, *expected.arguments], folder / "bare")
    where = folder / "run"
    words = ["-m", "watchglass", "run", "--run", where, *expected.options, script, *expected.arguments]
    watched = run([python, *words], folder / "watched")

    bare_status = expected.status if expected.bare_status is None else expected.bare_status
    assert (bare.status, watched.status) == (bare_status, expected.status), watched.err
    assert watched.out == bare.out
    if not expected.timing:
        assert of_the_script(watched.err) == bare.err.splitlines()
    assert watched.files() == bare.files()
    for name in expected.files:
        assert filecmp.cmp(bare.folder / name, watched.folder / name, shallow=False), f"{name} differs"
    assert re.search(expected.headline, headline(watched.err)), watched.err
    for pattern in expected.says:
        assert re.search(pattern, watched.err), watched.err
    for pattern in expected.never_says:
        assert not re.search(pattern, watched.err), watched.err
    check_records(expected, where, bare.out)


def headline(text: str) -> str:
    """The first line of the verdict in what ``watchglass run`` printed; "" for none."""
    found = re.search(r"^watchglass: verdict on .*\n(.*)", text, re.MULTILINE)
    return found[1] if found else ""


def of_the_script(text: str) -> list[str]:
    """The lines on stderr that are not those of watchglass."""
    before = re.split(r"^watchglass: verdict on ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [line for line in before.splitlines() if not line.startswith("watchglass: ")]


def check_records(expected: Expectation, where: Path, printed: str) -> None:
    """The run holds what the script printed, at the same steps."""
    if expected.steps is None and not expected.recorded:
        return
    opened = watchglass.open_run(where)
    if expected.steps is not None:
        assert len(opened.steps(mode=Mode.TRAIN)) == expected.steps
    for series in expected.recorded:
        meant = stated(series, printed)
        found = opened.tensor(series.series).values(mode=Mode[series.mode])
        missing = sorted(set(meant) - set(found))
        assert not missing, f"{series.series} was not recorded at {series.mode} steps {missing[:10]}"
        wrong = [
            f"step {step}: printed {value!r}, recorded {found[step]!r}"
            for step, value in meant.items()
            if not math.isclose(found[step], value, rel_tol=series.relative, abs_tol=1e-7)
        ]
        assert not wrong, f"{series.series}: " + "; ".join(wrong[:5])


def stated(series: Series, printed: str) -> dict[int, float]:
    """What the script printed of a series, by mode step."""
    found = {int(step): float(value) for step, value in re.findall(series.line, printed)}
    assert found, f"no line of the output matches {series.line!r}"
    return found
