"""Options that several verbs share, with the checks of their values."""

from __future__ import annotations

import math
import re
from typing import Annotated

from watchglass.cli.declaring import argument, option
from watchglass.config import environment
from watchglass.errors import InvalidValueError

RunOrPrefix = Annotated[
    str, argument("RUN", "Location of the run, or a folder or prefix of runs: runs, s3://BUCKET/runs.")
]
RunPath = Annotated[str, argument("RUN", "Location of the run: runs/train-20250101-120000, s3://BUCKET/PATH.")]
Quiet = Annotated[bool, option("--quiet, -q", "Print neither findings nor the verdict.")]
Verbose = Annotated[
    bool,
    option("--verbose, -v", "Also print the cost of watching, and why rules could not be evaluated, with the verdict."),
]
Force = Annotated[
    bool,
    option(
        "--force", "Proceed although processes on other machines cannot be checked. Use it only when they have ended."
    ),
]
ActionsFile = Annotated[
    str | None, option("--config FILE", "File with [[actions]] tables. [default: the nearest watchglass.toml]")
]
AsJson = Annotated[bool, option("--json", "Print JSON for programs, as --format json does.")]
FailOn = Annotated[str, option("--fail-on warning|error|never", "Lowest severity that gives exit status 1.")]
PricePerHour = Annotated[
    str | None,
    option(
        "--price-per-hour PRICE",
        "Price of one hour of the run on all its machines; a stopped run then reports the cost saved. "
        "[default: $WATCHGLASS_PRICE_PER_HOUR]",
    ),
]


def format_of(given: str, as_json: bool, formats: tuple[str, ...]) -> str:
    """The format of the output: ``"json"`` with ``--json``, else the value of ``--format``.

    Raises:
        InvalidValueError: Another format; or both options, which contradict each other.
    """
    check_choice("--format", given, formats)
    if as_json and given not in ("text", "json"):
        raise InvalidValueError(f"use either --json or --format {given}, not both")
    return "json" if as_json else given


def price_of(given: str | None) -> float | None:
    """The price of an hour: the option, else the environment variable, else None.

    Raises:
        InvalidValueError: It is not a finite number of at least 0.
    """
    text = given if given is not None else environment.price_per_hour()
    if text is None:
        return None
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not math.isfinite(price) or price < 0:
        source = "--price-per-hour" if given is not None else environment.PRICE_PER_HOUR
        raise InvalidValueError(f"{source} must be a finite number >= 0, such as 32.77, but got {text!r}")
    return price


Engine = Annotated[str, option("--engine local|ray", "Evaluate in this process, or distributed over a Ray cluster.")]
RayAddress = Annotated[
    str | None,
    option(
        "--ray-address HOST:PORT",
        "Address of the Ray cluster. [default: $RAY_ADDRESS, else a new cluster on this machine]",
    ),
]


def check_engine(engine: str, address: str | None) -> None:
    """Refuse an unknown engine, and the address of a Ray cluster without ``--engine ray``.

    Raises:
        InvalidValueError: Either.
    """
    check_choice("--engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise InvalidValueError(f"--ray-address {address} needs --engine ray; add it, or omit --ray-address")


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices of an option.

    Raises:
        InvalidValueError: ``value`` is not one of ``choices``.
    """
    if value not in choices:
        raise InvalidValueError(f"{option} must be one of {', '.join(choices)} but got {value!r}")


def whole_number(option: str, text: str) -> int:
    """The value of an option that is a whole number from 1 on.

    Raises:
        InvalidValueError: It is something else.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:19]) < 1 << 53:
        raise InvalidValueError(f"{option} must be a whole number from 1 on but got {text!r}")
    return int(text)


def range_of(text: str) -> range:
    """The value of ``--steps START:STOP``.

    Raises:
        InvalidValueError: It is something else.
    """
    found = re.fullmatch(r"(\d{1,15}):(\d{1,15})", text, re.ASCII)
    if found is None or int(found[1]) >= int(found[2]):
        raise InvalidValueError(f"--steps must be START:STOP with START below STOP, such as 100:200, but got {text!r}")
    return range(int(found[1]), int(found[2]))
