"""The ``watchglass`` command: its verbs, and its exit status after an error."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from watchglass.cli.declaring import option
from watchglass.cli.failure import COULD_NOT, INTERRUPTED, failing_in_one_line, print_error
from watchglass.config import TIMING, Timing

#: Verbs in the order of the help. Each is a function in the file of its name, imported on use, so that a launcher does
#: not wait for the imports of other verbs.
VERBS = (
    "run", "follow", "check", "explain", "show", "rules", "backtest", "actions", "report", "dashboard", "top", "mcp",
    "profile", "trace", "import-trace", "compact", "export", "rm",
)  # fmt: skip

#: Errors in the use of options, found without naming click: since 0.26 typer contains a copy of click.
_USAGE_ERRORS = tuple(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException" and issubclass(kind, Exception)
)


_Debug = Annotated[bool, option("--debug", "Show the traceback of an error.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from watchglass.version import __version__

        typer.echo(f"watchglass {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, option("--version", "Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Watch a training run, find its faults, and explain the causes."""


def _guarded(verb: Callable[..., int | None]) -> Callable[..., int | None]:
    """A verb with ``--debug``, whose errors are printed as one line."""

    @functools.wraps(verb)
    def guarded(*, debug: bool, **options: Any) -> int | None:
        with failing_in_one_line(debug):
            return verb(**options)

    signature = inspect.signature(verb, eval_str=True)
    option = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Debug)
    guarded.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    return guarded


def application(verbs: Iterable[str] = VERBS, timing: Timing = TIMING) -> typer.Typer:
    """The command with some of its verbs; ``timing`` is the object of their contexts."""
    app = typer.Typer(
        name="watchglass",
        help="Watch a training run, find its faults, and explain the causes.",
        epilog="Start here:  watchglass run train.py",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # Rich doubles the time until the help of a verb is printed
        context_settings={"help_option_names": ["-h", "--help"], "obj": timing},
        callback=_options,
    )
    for verb in verbs:
        name = verb.replace("-", "_")
        module = import_module(f"watchglass.cli.{name}")
        guarded = _guarded(getattr(module, name))
        summary = (inspect.getdoc(guarded) or "").partition("\n\n")[0]  # otherwise cut to one line of the list
        if verb == "run":  # has arguments that belong to the script
            settings = {"allow_interspersed_args": False}
            app.command(verb, cls=module.RunCommand, context_settings=settings, short_help=summary)(guarded)
        else:
            app.command(verb, short_help=summary)(guarded)
    return app


def main(argv: Sequence[str] | None = None, timing: Timing = TIMING) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of this process by default.
        timing: How long the verbs wait.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process; it stays closed for the script
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  for the life of the process
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        # Not by calling it, which would leave an exception hook behind in the caller's process.
        verbs = words[:1] if set(words[:1]) & set(VERBS) else VERBS
        command = typer.main.get_command(application(verbs, timing))
        status = command.main(words or ["--help"], "watchglass", standalone_mode=False)
        sys.stdout.flush()
    except _USAGE_ERRORS as error:
        print_error(str(getattr(error, "format_message", error.__str__)()))
        return COULD_NOT
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`watchglass show RUN | head`); nothing may be flushed at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if not words:  # a verb is missing
        return COULD_NOT
    return status if isinstance(status, int) else 0
