"""``watchglass rm``: remove runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

import watchglass.run
from watchglass.cli.declaring import argument, option
from watchglass.cli.failure import print_note
from watchglass.cli.shared_options import Force
from watchglass.cli.terminal import working
from watchglass.config import joined
from watchglass.errors import InvalidValueError, NotARunError, WatchglassError
from watchglass.records import Mode, count
from watchglass.view import printable, size

if TYPE_CHECKING:
    from watchglass.store import Removal, Store


def rm(
    runs: Annotated[list[str], argument("RUN", "Locations of the runs.")],
    yes: Annotated[bool, option("--yes, -y", "Do not ask for confirmation.")] = False,
    force: Force = False,
) -> None:
    """Remove runs that no process writes or reads. Other files in their folders are kept."""
    from watchglass.store import check_idle, open_store, remove

    with ExitStack() as opened:
        # All are checked before the first is removed: one wrong location prevents every removal.
        stores = [opened.enter_context(closing(open_store(run))) for run in dict.fromkeys(runs)]
        for store, removal in [(store, _planned(store, force)) for store in stores]:
            if not yes:
                _ask(store, removal)
            with working(f"removing {store.location}"):
                check_idle(store, even_if_unseen=force)  # a reader may have begun while the user answered
                remove(store, removal)
            typer.echo(f"{printable(store.location)} removed ({size(removal.bytes)})")
            if removal.foreign:
                objects = count(len(removal.foreign), "object")
                print_note(f"kept {objects} not part of the run: {removal.foreign[0]}")


def _planned(store: Store, force: bool) -> Removal:
    from watchglass.store import check_idle, plan_removal

    with working(f"looking at {store.location}"):
        try:
            removal = plan_removal(store)
        except NotARunError as error:
            raise _of_many(store.location, error) from None
        check_idle(store, even_if_unseen=force)
    return removal


def _of_many(location: str, error: NotARunError) -> NotARunError:
    """The error of a location that is no run; it names a folder of runs as such."""
    try:
        names = watchglass.run.open_runs(location).names
    except WatchglassError:
        return error
    return NotARunError(
        f"{location} is a folder of {count(len(names), 'run')}, not a run; name each run to remove: "
        + joined(location, names[0])
    )


def _ask(store: Store, removal: Removal) -> None:
    what = (
        f"{printable(store.location)}: {size(removal.bytes)} in {count(len(removal.paths), 'object')}"
        f"{_steps(store)}. Remove it permanently?"
    )
    if not sys.stdin.isatty():
        raise InvalidValueError(f"{store.location} was not removed: confirmation needs a terminal; use --yes")
    try:
        agreed = typer.confirm(what)
    except typer.Abort:
        typer.echo()  # Ctrl-C leaves the line of the question open
        agreed = False
    if not agreed:
        print_note(f"{store.location} was not removed")
        raise typer.Abort


def _steps(store: Store) -> str:
    """The number of training steps of a run, for the question; "" if the run cannot be read."""
    try:
        with working("reading the run"):
            steps = watchglass.run.count_steps(watchglass.run.open_run(store.location), Mode.TRAIN)
            return f", {count(steps, 'training step')}"
    except WatchglassError:
        return ""
