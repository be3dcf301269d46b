"""What a script under ``programs`` is expected to do, from the block of TOML in its comments."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BLOCK = re.compile(r"^# /// watchglass\n((?:#.*\n)*?)# ///$", re.MULTILINE)


@dataclass(frozen=True)
class Series:
    """A series of the run that equals what the script prints.

    Attributes:
        series: Its name in the run.
        line: Regular expression over the script's output; its groups are a mode step and the value.
        mode: TRAIN, EVAL or PREDICT.
        relative: Largest relative difference, for values that are printed with few digits.
    """

    series: str
    line: str
    mode: str = "TRAIN"
    relative: float = 1e-4


@dataclass(frozen=True)
class Expectation:
    """What running a script, bare and watched, comes to.

    Attributes:
        headline: Regular expression that is found in the first lines of the verdict; "" where none is printed.
        status: Exit status of ``watchglass run``.
        bare_status: Exit status of the script alone; by default the same.
        says: Regular expressions that are found in what ``watchglass run`` prints on stderr.
        never_says: Regular expressions that are not.
        files: Files that the script saves, equal byte by byte.
        recorded: Series that equal what the script prints.
        steps: Number of TRAIN steps of the run; None where it does not matter.
        options: Options of ``watchglass run``.
        arguments: Arguments of the script.
        imports: Large modules that it imports besides PyTorch, for the interpreter to have ready.
        slow: Whether it takes more than about five seconds.
        timing: Whether the output on stderr differs between any two runs of the script, and is not compared.
    """

    headline: str
    status: int = 0
    bare_status: int | None = None
    says: tuple[str, ...] = ()
    never_says: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recorded: tuple[Series, ...] = ()
    steps: int | None = None
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    slow: bool = False
    timing: bool = False


def expectation(script: Path) -> Expectation:
    """The expectation that a script states.

    Raises:
        ValueError: It states none, or one with an unknown key.
    """
    block = _BLOCK.search(script.read_text())
    if block is None:
        raise ValueError(f"{script} has no block '# /// watchglass'")
    data = tomllib.loads("".join(line[2:] or "\n" for line in block[1].splitlines(keepends=True)))
    recorded = tuple(Series(**each) for each in data.pop("recorded", ()))
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
    try:
        return Expectation(**{**data, **lists}, recorded=recorded)
    except TypeError as error:
        raise ValueError(f"{script}: {error}") from None
