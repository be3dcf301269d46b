"""``watchglass rm``: remove runs, and nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from watchglass.cli.failure import failing_in_one_line, print_note
from watchglass.cli.options import Debug, Force
from watchglass.config import joined
from watchglass.errors import InvalidValueError, NotARunError, WatchglassError

if TYPE_CHECKING:
    from watchglass.store import Removal, Store


def rm(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Where the runs are.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Force = False,
    debug: Debug = False,
) -> int:
    """Remove runs that nobody writes or reads. Files that are no part of a run stay."""
    with failing_in_one_line(debug):
        from watchglass.store import open_store

        # All of them are looked at before the first is removed: a mistyped one stops it all.
        stores = [open_store(run) for run in dict.fromkeys(runs)]
        try:
            plans = [(store, _planned(store, force)) for store in stores]
            for store, removal in plans:
                if not yes:
                    _ask(store, removal)
                _remove(store, removal, force)
        finally:
            for store in stores:
                store.close()
    return 0


def _planned(store: Store, force: bool) -> Removal:
    from watchglass.cli.terminal import working
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
    from watchglass.run import open_runs
    from watchglass.view import count

    try:
        names = open_runs(location).names
    except WatchglassError:
        return error
    return NotARunError(
        f"{location} is not a run but holds {count(len(names), 'run')}; name each that is to be removed: "
        + joined(location, names[0])
    )


def _ask(store: Store, removal: Removal) -> None:
    from watchglass.view import count, printable, size

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
    from watchglass.cli.terminal import working
    from watchglass.run import open_run
    from watchglass.view import count

    try:
        with working("reading the run"):
            return f", {count(len(open_run(store.location).steps()), 'training step')}"
    except WatchglassError:
        return ""


def _remove(store: Store, removal: Removal, force: bool) -> None:
    from watchglass.cli.terminal import working
    from watchglass.store import check_idle, remove
    from watchglass.view import count, printable, size

    with working(f"removing {store.location}"):
        check_idle(store, even_if_unseen=force)  # somebody may have come while we asked
        remove(store, removal)
    typer.echo(f"{printable(store.location)} is removed ({size(removal.bytes)})")
    if removal.foreign:
        print_note(f"{count(len(removal.foreign), 'object')} that no run has stayed there: {removal.foreign[0]}")
