"""The ``watchglass`` command: its verbs, and how it ends when something is wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
import typer.main

from watchglass.cli.actions import actions
from watchglass.cli.backtest import backtest
from watchglass.cli.check import check
from watchglass.cli.compact import compact
from watchglass.cli.explain import explain
from watchglass.cli.export import export
from watchglass.cli.failure import COULD_NOT, print_error
from watchglass.cli.follow import follow
from watchglass.cli.report import report
from watchglass.cli.rm import rm
from watchglass.cli.rules import rules
from watchglass.cli.run import RunCommand, run
from watchglass.cli.show import show

app = typer.Typer(
    name="watchglass",
    help="Watch a training, find out what is wrong with it, and say why.",
    epilog="Start here:  watchglass run train.py",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})(run)
app.command()(follow)
app.command()(check)
app.command()(explain)
app.command()(show)
app.command()(rules)
app.command()(backtest)
app.command()(actions)
app.command()(report)
app.command()(compact)
app.command()(export)
app.command()(rm)

#: Errors in the use of options, found without naming click: typer has brought its own copy since 0.26.
_USAGE_ERRORS = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from watchglass import __version__

        typer.echo(f"watchglass {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Watch a training, find out what is wrong with it, and say why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of this process by default.
    """
    try:
        # Not by calling `app`, which would leave an exception hook behind in whoever calls us.
        command = typer.main.get_command(app)
        status = command.main(list(argv) if argv is not None else None, "watchglass", standalone_mode=False)
        sys.stdout.flush()
    except _USAGE_ERRORS as error:
        message = str(getattr(error, "format_message", error.__str__)())
        if message:  # none when help was printed because nothing was asked
            print_error(message)
        return COULD_NOT
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`watchglass show RUN | head`); nothing may be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status if isinstance(status, int) else 0
