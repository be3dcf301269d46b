"""``watchglass profile``: ask a running job for the operators of its next training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from watchglass import view
from watchglass.cli.failure import print_note
from watchglass.cli.shared_options import RunPath
from watchglass.cli.terminal import print_table, progress, stdout_console
from watchglass.errors import InvalidValueError
from watchglass.records import count

if TYPE_CHECKING:
    from watchglass.run import Operators, ProfileRequest


def profile(
    run: RunPath,
    steps: Annotated[str, typer.Option("--steps", metavar="N", help="How many training steps.")] = "5",
    start: Annotated[
        str | None, typer.Option("--start", metavar="STEP", help="The first one. [default: the next possible one]")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for the operators.")] = False,
) -> None:
    """Profile the operators of the next training steps of a running job with PyTorch's profiler.

    Prints the operators that take the most time, once the steps are over. Ctrl-C ends the wait alone.
    """
    from watchglass.run import open_run

    number, first = _number("--steps", steps), None if start is None else _number("--start", start)
    request = open_run(run).profile(number, start=first)
    asked = f"{count(number, 'training step')} of {view.printable(run)} will be profiled, from step "
    print_note(f"{asked}{request.steps.start} on{'' if start is not None else ' or the next possible one'}")
    if no_wait:
        print_note(f"to see the operators: watchglass show {run}, or watchglass report {run} -o FILE")
        return
    try:
        _print(request)
    except KeyboardInterrupt:
        print_note(f"interrupted; the request remains. To see the operators: watchglass show {run}")
        raise


def _print(request: ProfileRequest) -> None:
    with progress("waiting for the profiled steps (Ctrl-C to end the wait)") as tick:
        windows = request.wait(tick=tick)
    console = stdout_console()
    for name, reason in request.refused.items():
        print_note(f"{name} was not profiled: {reason}")
    for window in windows:
        rows = view.operator_rows(window)
        print_table(console, _heading(window), rows, titles=view.OPERATOR_TITLES, numbers=view.OPERATOR_TITLES[1:])


def _heading(window: Operators) -> str:
    cost = view.window_cost_sentence(window.cost)
    steps = f"Operators of training steps {window.steps.start}:{window.steps.stop} of {window.worker}, per step"
    return "; ".join(filter(None, (steps, cost, window.note)))


def _number(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:19]) < 1 << 53:
        raise InvalidValueError(f"{option} must be a whole number from 1 on but got {text!r}")
    return int(text)
