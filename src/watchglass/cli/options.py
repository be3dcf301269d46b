"""Options that several verbs share, and how their values are read."""

from __future__ import annotations

from typing import Annotated

import typer

from watchglass.errors import InvalidValueError

RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="Where the run is: runs/train-20250101-120000, s3://BUCKET/PATH.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Although processes of other machines cannot be seen: they have ended."),
]
FailOn = Annotated[
    str, typer.Option("--fail-on", metavar="warning|error|never", help="Least severity for exit status 1.")
]


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse what an option does not offer.

    Raises:
        InvalidValueError: ``value`` is none of ``choices``.
    """
    if value not in choices:
        raise InvalidValueError(f"{option} must be one of {', '.join(choices)} but got {value!r}")
