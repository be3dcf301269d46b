"""``watchglass profile``: ask a running job for the operators, or functions, of its next training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watchglass import view
from watchglass.cli import shared_options
from watchglass.cli.capture_options import PythonProfiler
from watchglass.cli.declaring import option
from watchglass.cli.failure import print_note
from watchglass.cli.shared_options import RunPath, whole_number
from watchglass.cli.terminal import print_table, progress, stdout_console
from watchglass.config import ParameterError, ProfilerConfig
from watchglass.errors import InvalidValueError
from watchglass.records import count

if TYPE_CHECKING:
    from watchglass.run import Operators, ProfileRequest, PythonProfile

    _Request = ProfileRequest[Operators] | ProfileRequest[PythonProfile]


def profile(
    run: RunPath,
    steps: Annotated[
        str | None, option("--steps N", "How many training steps. [default: 5; none where settings change]")
    ] = None,
    python: Annotated[bool, option("--python", "Profile Python functions instead of PyTorch's operators.")] = False,
    python_profiler: PythonProfiler = None,
    start: Annotated[str | None, option("--start STEP", "The first one. [default: the next possible one]")] = None,
    sample_interval: Annotated[
        str | None, option("--sample-interval SECONDS", "Sample system metrics every SECONDS.")
    ] = None,
    module_times: Annotated[str | None, option("--module-times on|off", "Begin or end to time the modules.")] = None,
    off: Annotated[bool, option("--off", "Pause the sampler, and refuse to profile steps.")] = False,
    on: Annotated[bool, option("--on", "Go on after --off.")] = False,
    no_wait: Annotated[bool, option("--no-wait", "Do not wait for the result.")] = False,
    as_json: Annotated[bool, option("--json", "Print JSON for programs.")] = False,
) -> None:
    """Profile the next training steps of a running job: operators with PyTorch's profiler, or Python functions.

    With --sample-interval, --module-times, --off or --on, change how the job is profiled from now on.

    Prints what takes the most time, once the steps are over. Ctrl-C ends the wait alone.
    """
    from watchglass.run import open_run

    answer: dict[str, Any] = {"run": run}
    settings = _settings(sample_interval, module_times, on=on, off=off)
    if settings:
        step = open_run(run).change_profiler(**settings)
        answer["changed"] = {**settings, "from_step": step}
        changes = ", ".join(f"{name} = {str(value).lower()}" for name, value in settings.items())
        print_note(f"{view.printable(run)}: {changes}, from step {step} on or the next possible one")
        if steps is None:
            _print_json(as_json, answer)
            return
    number, first = whole_number("--steps", steps or "5"), None if start is None else whole_number("--start", start)
    request = (
        open_run(run).profile_python(number, start=first, profiler=python_profiler or "cprofile")
        if python or python_profiler
        else open_run(run).profile(number, start=first)
    )
    asked = f"{count(number, 'training step')} of {view.printable(run)} will be profiled, from step "
    print_note(f"{asked}{request.steps.start} on{'' if start is not None else ' or the next possible one'}")
    if no_wait:
        print_note(f"to see the result: watchglass show {run}, or watchglass report {run} -o FILE")
        _print_json(as_json, {**answer, "steps": _ends(request.steps)})
        return
    try:
        windows = _wait(request)
    except KeyboardInterrupt:
        print_note(f"interrupted; the request remains. To see the result: watchglass show {run}")
        raise
    if as_json:
        found = [{**asdict(window), "steps": _ends(window.steps)} for window in windows]
        answer |= {"steps": _ends(request.steps), "windows": found, "refused": request.refused}
        _print_json(as_json, answer)
    else:
        _print(windows)


def _ends(steps: range) -> list[int]:
    """The first step, and the one after the last."""
    return [steps.start, steps.stop]


def _print_json(as_json: bool, answer: dict[str, Any]) -> None:
    if as_json:
        typer.echo(view.strict_json(answer), nl=False)


def _wait(request: _Request) -> Sequence[Operators | PythonProfile]:
    with progress("waiting for the profiled steps (Ctrl-C to end the wait)") as tick:
        windows = request.wait(tick=tick)
    for name, reason in request.refused.items():
        print_note(f"{name} was not profiled: {reason}")
    return windows


def _print(windows: Sequence[Operators | PythonProfile]) -> None:
    from watchglass.run import Operators

    console = stdout_console()
    for window in windows:
        titles: tuple[str, ...] = view.OPERATOR_TITLES
        if isinstance(window, Operators):
            rows = view.operator_rows(window)
        else:
            titles, rows = view.FUNCTION_TITLES, view.function_rows(window)
        words = ("operator", "function", "place")
        print_table(
            console, _heading(window), rows, titles=titles, numbers=[each for each in titles if each not in words]
        )


def _heading(window: Operators | PythonProfile) -> str:
    from watchglass.run import PythonProfile

    cost = view.window_cost_sentence(window.cost)
    what = "Python functions" if isinstance(window, PythonProfile) else "Operators"
    steps = f"{what} of training steps {window.steps.start}:{window.steps.stop} of {window.worker}, per step"
    return "; ".join(filter(None, (steps, cost, window.note)))


def _settings(sample_interval: str | None, module_times: str | None, *, on: bool, off: bool) -> dict[str, Any]:
    """The settings of the profiler that the options change."""
    if on and off:
        raise InvalidValueError("use either --on or --off, not both")
    settings: dict[str, Any] = {"enabled": on} if on or off else {}
    if sample_interval is not None:
        try:
            settings["sample_interval_s"] = ProfilerConfig(sample_interval_s=sample_interval).sample_interval_s  # type: ignore[arg-type]
        except ParameterError as error:
            raise InvalidValueError(f"--sample-interval {error.reason}") from None
    if module_times is not None:
        shared_options.check_choice("--module-times", module_times, ("on", "off"))
        settings["module_times"] = module_times == "on"
    return settings
