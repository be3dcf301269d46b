"""``watchglass show``: the content of a run, or the runs of a folder."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watchglass import view
from watchglass.cli.declaring import option
from watchglass.cli.failure import print_warning
from watchglass.cli.shared_options import RunPath, range_of, whole_number
from watchglass.cli.terminal import print_section, print_table, stdout_console, working
from watchglass.errors import InvalidValueError, MissingFileError, NotARunError
from watchglass.records import count

if TYPE_CHECKING:
    from rich.console import Console

    from watchglass.diagnose import RunSummary
    from watchglass.questions import SeriesAnswer
    from watchglass.run import ListedRun


#: Runs of a folder that are listed, the newest: about as many as a terminal shows at once.
_MOST_RUNS = 50
#: Most settings that differ between runs and are shown, and characters of a value.
_SETTINGS, _LONGEST = 6, 24


def show(
    run: RunPath,
    tensors: Annotated[bool, option("--tensors", "List every tensor.")] = False,
    every: Annotated[bool, option("--all", "Of a folder, list every run, not only the newest 50.")] = False,
    series: Annotated[
        str | None,
        option("--series NAME", "Show one scalar, such as loss, or one tensor over training steps."),
    ] = None,
    statistic: Annotated[
        str | None, option("--statistic NAME", "Of the tensor of --series: l2, mean, std, max and so on. [default: l2]")
    ] = None,
    mode: Annotated[
        str | None, option("--mode train|eval", "Of --series; eval is the mean of each evaluation. [default: train]")
    ] = None,
    steps: Annotated[
        str | None, option("--steps START:STOP", "Of --series, only these steps, STOP excluded. [default: all]")
    ] = None,
    points: Annotated[str | None, option("--points N", "Most points of --series, 2 to 200. [default: 40]")] = None,
    as_json: Annotated[bool, option("--json", "Print JSON for programs; a run with all its tensors.")] = False,
) -> None:
    """Show the content of a run: attempts, workers, steps, tensors, last values, findings of the rules.

    For a folder of runs: list the newest runs. With --series: one number over steps; each point stands for equally many
    steps, with their last, lowest and highest value.
    """
    from watchglass.cli.recovery import mention_unrecovered, recover
    from watchglass.cli.run_contents import content_json, head_of, sections_of
    from watchglass.diagnose import Summaries
    from watchglass.run import open_run, open_runs

    console = stdout_console()
    asked = {"--statistic": statistic, "--mode": mode, "--steps": steps, "--points": points}
    if series is None and (extra := [name for name, value in asked.items() if value is not None]):
        raise InvalidValueError(f"{extra[0]} needs --series NAME")
    recover(run)
    if series is not None:
        answer = _series(run, series, statistic, mode, steps, points)
        if as_json:
            typer.echo(view.strict_json(asdict(answer)), nl=False)
        else:
            _print_series(console, answer)
        return
    try:
        with working("reading the run"):
            opened = open_run(run)
    except NotARunError as error:
        try:
            with working("looking for runs"):
                found = open_runs(run)
                listed = found.listed if every else found.listed[-_MOST_RUNS:]
                rows = [*map(Summaries().of, listed)]
        except MissingFileError:
            raise error from None
        if [each.location for each in found.listed] == [run]:
            raise error  # a run whose manifest is damaged
        if as_json:
            document = {"location": run, "count": len(found), "runs": [_run_json(row) for row in rows]}
            typer.echo(view.strict_json(document), nl=False)
            return
        _print_runs(console, f"{run}: {count(len(found), 'run')}", rows, _differences(rows))
        _print_others(console, run, found.listed[: len(found) - len(listed)])
        return
    if as_json:
        typer.echo(view.strict_json(content_json(opened)), nl=False)
        return
    print_table(console, run, head_of(opened), labels="dim")
    for section in sections_of(opened, run, every=tensors):
        console.print()
        print_section(console, section)
    mention_unrecovered(run, opened)
    for problem in opened.problems:
        print_warning(str(problem))


def _series(
    run: str, name: str, statistic: str | None, mode: str | None, steps: str | None, points: str | None
) -> SeriesAnswer:
    from watchglass.questions import read_series
    from watchglass.run import open_run

    chosen = range_of(steps) if steps is not None else None
    many = whole_number("--points", points) if points is not None else 40
    with working("reading the run"):
        opened = open_run(run)
    return read_series(
        opened, name, listed_by=f"watchglass show {run} --tensors lists them", statistic=statistic or "",
        mode=mode or "train", first=chosen.start if chosen is not None else 0,
        last=chosen.stop - 1 if chosen is not None else None, points=many,
    )  # fmt: skip


def _print_series(console: Console, answer: SeriesAnswer) -> None:
    titles = ("step", "last", "lowest", "highest", "not finite")
    rows = [
        (f"{each.step:,}", *(_number(value) for value in (each.last, each.low, each.high)), f"{each.not_finite:,}")
        for each in answer.points
    ]
    heading = f"{answer.name} of {answer.run}, {answer.mode}: {count(answer.values, 'value')}"
    print_table(console, view.printable(heading), rows, titles=titles if rows else (), numbers=titles)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else view.number(value)


def _run_json(run: RunSummary) -> dict[str, Any]:
    """A run of a list as JSON types."""
    begun = (
        datetime.fromtimestamp(run.listed.created_ns / 1e9, timezone.utc).isoformat() if run.listed.created_ns else None
    )
    names = (
        "state", "headline", "attempts", "workers", "models", "train_steps", "planned_train_steps", "eval_steps",
        "loss", "validation_loss", "findings", "seconds",
    )  # fmt: skip
    return {
        "name": run.listed.name, "created": begun, "location": run.listed.location, "problem": run.problem or None,
        **{name: None if run.problem else getattr(run, name) for name in names}, "worst": run.worst or None,
        "settings": dict(run.settings),
    }  # fmt: skip


def _print_others(console: Console, folder: str, runs: list[ListedRun]) -> None:
    if not runs:
        return
    unreadable = sum(bool(each.problem) for each in runs)
    note = f", {unreadable} of them unreadable" if unreadable else ""
    line = f"… and {len(runs)} more{note}; every run: watchglass show {folder} --all"
    console.print(f"  {view.printable(line)}", markup=False, soft_wrap=True)


def _print_runs(console: Console, heading: str, runs: list[RunSummary], different: dict[str, dict[str, str]]) -> None:
    titles = ("run", "begun", "state", "steps", "time", "loss", "validation", "models", "findings")
    rows = [_row(run) for run in runs]
    table = zip_longest(titles, *([str(cell) for cell in row] for row in rows if len(row) == len(titles)))
    shown = _fitting(different, console.width - sum(max(map(len, column)) + 2 for column in table))
    print_table(
        console,
        heading,
        (
            (*row, *(values[run.listed.location] for values in shown.values()))
            for row, run in zip(rows, runs, strict=True)
        ),
        titles=(*titles, *shown),
        numbers=("steps", "loss", "validation", "models"),
    )
    if left := [name for name in different if name not in shown]:
        line = f"these differ too: {', '.join(left)}; watchglass report of the folder shows them"
        console.print(f"  {view.printable(line)}", markup=False, soft_wrap=True)
    if any(run.models > 1 for run in runs):
        console.print("  losses are those of the first model; for the other models: watchglass show RUN")


def _fitting(different: dict[str, dict[str, str]], width: int) -> dict[str, dict[str, str]]:
    """The first settings whose columns fit into so many characters."""
    shown = {}
    for name, values in different.items():
        width -= max(map(len, (name, *values.values()))) + 2
        if width < 0:
            break
        shown[name] = values
    return shown


def _differences(runs: list[RunSummary]) -> dict[str, dict[str, str]]:
    """The settings that differ, by name; each with its value by the location of a run, cut if it is long."""
    readable = [run.settings for run in runs[-_MOST_RUNS:] if run.settings]
    named = view.differing(readable)[:_SETTINGS] if len(readable) > 1 else []
    return {name: {run.listed.location: run.settings.get(name, "")[:_LONGEST] for run in runs} for name in named}


def _row(run: RunSummary) -> tuple[view.Inline, ...]:
    begun = (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.listed.created_ns / 1e9)) if run.listed.created_ns else ""
    )
    if run.problem:
        return run.listed.name, begun, view.Span(run.problem, "tag warning")
    findings = f"{run.findings}, worst {run.worst}" if run.findings else "none"
    if run.findings is None:
        findings = "not evaluated"
    return (
        run.listed.name, begun, run.state, f"{run.train_steps:,}", view.duration(run.seconds), view.number(run.loss),
        view.number(run.validation_loss), str(run.models), findings,
    )  # fmt: skip
