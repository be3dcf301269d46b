"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from watchglass.config import environment
from watchglass.errors import InvalidValueError

RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="Where the run is: runs/train-20250101-120000, s3://BUCKET/PATH.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No line per finding and no verdict.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Although processes of other machines cannot be seen: they have ended."),
]
ActionsFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File whose tables [[actions]] are used. [default: the nearest watchglass.toml]",
    ),
]
FailOn = Annotated[
    str, typer.Option("--fail-on", metavar="warning|error|never", help="Least severity for exit status 1.")
]
PricePerHour = Annotated[
    str | None,
    typer.Option(
        "--price-per-hour",
        metavar="PRICE",
        help="What an hour of the whole training costs, all its machines together: to say what a stop has saved. "
        "[default: $WATCHGLASS_PRICE_PER_HOUR]",
    ),
]


def price_of(given: str | None) -> float | None:
    """The price of an hour: as given, else as the environment says, None where neither does.

    Raises:
        InvalidValueError: It is no number, not finite or below 0.
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
        raise InvalidValueError(f"{source} must be a finite number, 0 or above, such as 32.77, but got {text!r}")
    return price


Engine = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Evaluate in this process, or spread over a Ray cluster.")
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="HOST:PORT", help="The Ray cluster; RAY_ADDRESS, or one on this machine, if not given."
    ),
]


def check_engine(engine: str, address: str | None) -> None:
    """Refuse an engine that there is not, and the address of a cluster that would not be used.

    Raises:
        InvalidValueError: Either.
    """
    check_choice("--engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise InvalidValueError(f"--ray-address {address} is used by --engine ray only; add that, or leave it out")


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse what an option does not offer.

    Raises:
        InvalidValueError: ``value`` is none of ``choices``.
    """
    if value not in choices:
        raise InvalidValueError(f"{option} must be one of {', '.join(choices)} but got {value!r}")
