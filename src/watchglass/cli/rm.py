"""``watchglass rm``: remove runs, and nothing else."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

import watchglass.run
from watchglass.cli.failure import print_note
from watchglass.cli.shared_options import Force
from watchglass.cli.terminal import working
from watchglass.config import joined
from watchglass.errors import InvalidValueError, NotARunError, WatchglassError
from watchglass.records import count
from watchglass.view import printable, size

if TYPE_CHECKING:
    from watchglass.store import Removal, Store


def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Where the runs are.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Force = False,
) -> None:
    """Remove runs that nobody writes or reads. Files that are no part of a run stay."""
    from watchglass.store import check_idle, open_store, remove

    with ExitStack() as opened:
        # All of them are looked at before the first is removed: a mistyped one stops it all.
        stores = [opened.enter_context(closing(open_store(run))) for run in dict.fromkeys(runs)]
        for store, removal in [(store, _planned(store, force)) for store in stores]:
            if not yes:
                _ask(store, removal)
            with working(f"removing {store.location}"):
                check_idle(store, even_if_unseen=force)  # a reader may have begun while the user was asked
                remove(store, removal)
            typer.echo(f"{printable(store.location)} is removed ({size(removal.bytes)})")
            if removal.foreign:
                objects = count(len(removal.foreign), "object")
                print_note(f"{objects} that no run has stayed there: {removal.foreign[0]}")


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
    """The error of a location that is no run, which says so where it is a folder of runs."""
    try:
        names = watchglass.run.open_runs(location).names
    except WatchglassError:
        return error
    return NotARunError(
        f"{location} is not a run but holds {count(len(names), 'run')}; name each that is to be removed: "
        + joined(location, names[0])
    )


def _ask(store: Store, removal: Removal) -> None:
    what = (
        f"{printable(store.location)}: {size(removal.bytes)} in {count(len(removal.paths), 'object')}"
        f"{_steps(store)}. Remove it for ever?"
    )
    if not sys.stdin.isatty():
        raise InvalidValueError(f"{store.location} is removed only after a question; without a terminal say --yes")
    try:
        agreed = typer.confirm(what)
    except typer.Abort:
        typer.echo()  # Ctrl-C leaves the line of the question open
        agreed = False
    if not agreed:
        print_note(f"{store.location} stays as it is")
        raise typer.Abort


def _steps(store: Store) -> str:
    """How many training steps a run has, as far as it can be read."""
    try:
        with working("reading the run"):
            return f", {count(len(watchglass.run.open_run(store.location).steps()), 'training step')}"
    except WatchglassError:
        return ""
