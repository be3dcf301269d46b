"""``watchglass show``: what is in a run, or which runs are in a folder."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from watchglass.cli.failure import failing_in_one_line, print_warning
from watchglass.cli.options import Debug, RunPath
from watchglass.errors import MissingFileError, NotARunError, WatchglassError
from watchglass.records import Mode, Role

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from watchglass.run import Run

#: Tensors listed without --tensors; the groups say what there is.
_EXAMPLES = 3
#: Workers that train separately, models, and last values, that are listed.
_MOST_WORKERS, _MOST_MODELS, _MOST_SCALARS = 20, 20, 60


def show(
    run: RunPath,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    debug: Debug = False,
) -> int:
    """Show what is in a run: attempts, workers, steps, tensors, last values, what the rules said.

    Of a folder that holds runs and is none itself: the runs.
    """
    with failing_in_one_line(debug):
        from watchglass.cli.recovering import mention_unrecovered, recover
        from watchglass.cli.terminal import stdout_console, working
        from watchglass.run import open_run

        console = stdout_console()
        recover(run)
        try:
            with working("reading the run"):
                opened = open_run(run)
        except NotARunError:
            with working("looking for runs"):
                found = _runs_in(run)
            if found is None:
                raise
            _print_runs(console, run, found)
            return 0
        _print_head(console, run, opened)
        _print_steps(console, opened)
        _print_models(console, opened)
        _print_scalars(console, opened)
        _print_tensors(console, opened, every=tensors)
        _print_capture(console, opened)
        _print_rules(console, run, opened)
        mention_unrecovered(run, opened)
        for problem in opened.problems:
            print_warning(str(problem))
    return 0


def _runs_in(folder: str) -> list[dict[str, Any]] | None:
    """One row per run below a folder, None where there is none."""
    from watchglass.run import open_runs

    try:
        rows: list[dict[str, Any]] = open_runs(folder).to_arrow().to_pylist()
    except MissingFileError:
        return None
    return rows


def _print_runs(console: Console, folder: str, runs: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from watchglass.view import count, duration, number, printable

    console.print(Text(f"{printable(folder)}: {count(len(runs), 'run')}", style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name in ("run", "begun", "state", "steps", "time", "loss", "validation", "models", "findings"):
        right = name in ("steps", "loss", "validation", "models")
        table.add_column(Text(name, style="dim"), justify="right" if right else "left")
    table.show_header = True
    for row in runs:
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"].timestamp())) if row["created"] else ""
        if row["problem"]:
            table.add_row(Text(printable(row["name"])), begun, Text(printable(row["problem"]), style="yellow"))
            continue
        findings = f"{row['findings']}, worst {row['worst']}" if row["findings"] else "none"
        table.add_row(
            Text(printable(row["name"])), begun, Text(printable(row["state"])), f"{row['train_steps']:,}",
            duration(row["seconds"]), number(row["loss"]), number(row["validation_loss"]), str(row["models"]), findings,
        )  # fmt: skip
    console.print(table)
    if any((row["models"] or 0) > 1 for row in runs):
        console.print("  losses are those of the first model; watchglass show RUN has the others")


def _grid(title: str, console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    console.print()
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=2)
    return table


def _print_head(console: Console, path: str, run: Run) -> None:
    from rich.table import Table
    from rich.text import Text

    from watchglass.run import leaders_of
    from watchglass.view import duration, printable

    manifest = run.manifest
    seconds = max(run.worker(name).seconds for name in leaders_of(run))
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_ns / 1e9))
    console.print(Text(printable(path), style="bold"), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for label, text in (
        ("command", printable(" ".join(manifest.command))),
        ("run", manifest.run_id),
        ("begun", f"{begun}, {duration(seconds)} recorded"),
        ("state", printable(_state(run))),
        ("attempts", str(len(run.attempts))),
        *(("", str(seam)) for seam in run.seams),
        ("workers", ", ".join(map(printable, run.workers)) or "none joined"),
        *(("evaluated by", printable(who)) for who in _evaluators(run)),
        ("format", f"{manifest.format[0]}.{manifest.format[1]}, written by watchglass {printable(manifest.version)}"),
    ):
        table.add_row(Text(label, style="dim"), Text(text))
    console.print(table)


def _evaluators(run: Run) -> list[str]:
    """Who keeps the journal now, in words; none where nobody does."""
    from watchglass.store import is_alive, lease_holder

    try:
        holder = lease_holder(run.store)
    except WatchglassError:
        return []
    if holder is None:
        return []
    gone = ", which ended without giving it up" if is_alive(holder) is False else ""
    return [f"process {holder.pid} on {holder.host}{gone}"]


def _state(run: Run) -> str:
    """How the training ended, or that it has not."""
    from watchglass.run import ending_of, state_of
    from watchglass.view import failure_sentence

    words = {"lost": "failed", "not finished": "not finished: still training, or died"}
    state = state_of(run)
    failure = ending_of(run).failure if "stopped" not in state else None
    return words.get(state, state) + (f": {failure_sentence(failure)}" if failure is not None else "")


def _print_steps(console: Console, run: Run) -> None:
    from rich.text import Text

    from watchglass.run import leaders_of
    from watchglass.view import count, printable

    table = _grid("Steps", console)
    leaders = leaders_of(run)
    for worker in leaders[:_MOST_WORKERS]:
        for mode in (Mode.TRAIN, Mode.EVAL, Mode.PREDICT):
            steps = run.steps(mode, worker)
            if len(steps):
                table.add_row(
                    Text(printable(worker or "")), mode.name, Text(count(len(steps), "step")),
                    Text(f"{steps[0]} to {steps[-1]}"),
                )  # fmt: skip
    console.print(table if table.row_count else Text("  none recorded"))
    if len(leaders) > _MOST_WORKERS:
        console.print(f"  and those of {count(len(leaders) - _MOST_WORKERS, 'further worker')}")


def _whose(run: Run) -> str:
    """What a heading adds where what stands below it is of one worker of several."""
    from watchglass.view import printable

    return f" of {printable(run.worker().name)}" if len(run.workers) > 1 else ""


def _print_models(console: Console, run: Run) -> None:
    """What each model came to, where there are several."""
    from rich.text import Text

    from watchglass.view import count, number, printable

    models = run.models
    if len(models) < 2:
        return
    table = _grid("Models", console)
    for each in models[:_MOST_MODELS]:
        best = f", {number(each.best_validation_loss)} at best" if each.best_validation_loss is not None else ""
        table.add_row(
            each.worker, each.name, Text(printable(each.type)), count(each.train_steps, "training step"),
            Text(f"loss {number(each.training_loss)}" if each.training_loss is not None else ""),
            Text(f"validation {number(each.validation_loss)}{best}" if each.validation_loss is not None else ""),
            count(each.findings, "finding") if each.findings else "",
        )  # fmt: skip
    console.print(table)
    if len(models) > _MOST_MODELS:
        console.print(f"  and {count(len(models) - _MOST_MODELS, 'further model')}")


def _print_scalars(console: Console, run: Run) -> None:
    from rich.text import Text

    from watchglass.view import count, number, printable

    table = _grid(f"Last values{_whose(run)}", console)
    names = [*run.tensor_names(role=Role.LOSS), *run.tensor_names(role=Role.METRIC)]
    left = len(names) - _MOST_SCALARS
    for name in names[:_MOST_SCALARS]:
        steps, values = run.scalars(name, Mode.TRAIN)
        if len(values):
            table.add_row("", Text(printable(name)), "TRAIN", number(float(values[-1])), f"step {steps[-1]}")
    phases = run.phases(mode=Mode.EVAL)
    for name, mean in sorted(phases[-1].means.items()) if phases else ():
        table.add_row("", Text(printable(name)), "EVAL", number(mean), f"mean after step {phases[-1].train_step}")
    if table.row_count:
        console.print(table)
    if left > 0:
        console.print(f"  and {count(left, 'further series', 'further series')}")


def _print_tensors(console: Console, run: Run, *, every: bool) -> None:
    from rich.text import Text

    from watchglass.view import printable

    roles = [role for role in Role if role not in (Role.LOSS, Role.METRIC)]
    table = _grid(f"Tensors{_whose(run)}", console)
    for role in roles:
        names = run.tensor_names(role=role)
        if not names:
            continue
        shown = names if every else names[:_EXAMPLES]
        left_out = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
        table.add_row("", role.value, str(len(names)), Text(", ".join(map(printable, shown)) + left_out))
    console.print(table if table.row_count else Text("  none recorded"))


def _print_capture(console: Console, run: Run) -> None:
    from rich.text import Text

    from watchglass.record import recovered_steps
    from watchglass.view import capture_lines, printable

    table = _grid("Capture", console)
    lost = run.lost
    for worker in run.workers:
        ends = [event for event in run.worker(worker).lifecycle if event.get("event") == "left"]
        counters = ends[-1].get("counters") if ends else None
        recovered = {"recovered_steps": recovered_steps(run.worker(worker).lifecycle)}
        lines = list(capture_lines({**(counters if isinstance(counters, dict) else {}), **recovered}))
        if not isinstance(counters, dict):
            why = "unknown: the process ended without reporting it" if worker in lost else "not known yet"
            lines.append(f"what watching cost is {why}")
        for line in lines or ["no cost was recorded"]:
            table.add_row("", Text(printable(worker)), Text(line))
    if table.row_count:
        console.print(table)


def _print_rules(console: Console, path: str, run: Run) -> None:
    from rich.text import Text

    from watchglass.view import printable

    statuses = run.journal.statuses
    table = _grid("Rules", console)
    if not statuses:
        console.print(Text(f"  not evaluated yet: watchglass check {printable(path)}"), soft_wrap=True)
        return
    found = Counter(finding.rule for finding in run.journal.findings)
    for status in statuses:
        findings = f"{found[status.rule]}" if found[status.rule] else ""
        table.add_row("", Text(printable(status.rule)), status.status.value, findings, Text(printable(status.reason)))
    console.print(table)
