"""The content of a run, as sections of rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from watchglass.errors import WatchglassError
from watchglass.record import recovered_steps
from watchglass.records import Mode, Role, UntimedModules, WindowRefusal, count
from watchglass.run import Run, count_steps_of, ending_of, leaders_of, state_of, stop_reason, usage_of
from watchglass.store import is_alive, lease_holder
from watchglass.view import (
    Section,
    Text,
    TextTable,
    capture_lines,
    duration,
    failure_sentence,
    finding_to_json,
    functions_sentence,
    loading_sentence,
    modules_sentence,
    number,
    operators_sentence,
    origin_rows,
    phases_sentence,
    printable,
    refusal_sentence,
    settings_of,
    untimed_sentence,
    usage_sentence,
)

#: Tensors listed per group without ``--tensors``.
_EXAMPLES = 3
#: Largest number of independent workers, models and last values in the list.
_MOST_WORKERS, _MOST_MODELS, _MOST_SCALARS = 20, 20, 60
#: Largest number of workers whose phases are shown: one that is slow shows in the phases of those that wait for it.
_MOST_TIMES = 8

Rows = list[tuple[str, ...]]


def head_of(run: Run) -> Rows:
    """The head of the output: labels and texts."""
    manifest = run.manifest
    seconds = max(run.worker(name).seconds for name in leaders_of(run))
    whose = f"{run.worker().name}: " if len(run.workers) > 1 else ""
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.created_ns / 1e9))
    return [
        ("command", " ".join(manifest.command)),
        *((label.lower(), text) for label, text in origin_rows(run)),
        ("run", manifest.run_id),
        ("begun", f"{begun}, {duration(seconds)} recorded"),
        ("state", _state(run)),
        ("attempts", str(len(run.attempts))),
        *(("", str(seam)) for seam in run.seams),
        ("workers", ", ".join(run.workers) or "none joined"),
        *(("machine", usage_sentence(usage)) for usage in usage_of(run)),
        *_times(run),
        *(("loading", whose + loading_sentence(loading)) for loading in (run.loader_workers(),) if len(loading)),
        *(("modules", whose + modules_sentence(times)) for times in (run.module_times(),) if len(times)),
        *(("not timed", untimed_sentence(each.to_data())) for each in run.facts(UntimedModules)),
        *(("operators", whose + operators_sentence(operators)) for operators in run.operators() if len(operators)),
        *(("functions", whose + functions_sentence(profile)) for profile in run.python_profiles() if len(profile)),
        *(("not profiled", refusal_sentence(each.to_data())) for each in run.facts(WindowRefusal)),
        *(("evaluated by", who) for who in _evaluators(run)),
        ("format", f"{manifest.format[0]}.{manifest.format[1]}, written by watchglass {manifest.version}"),
    ]


def content_json(run: Run) -> dict[str, Any]:
    """The content of a run as JSON types, for programs."""
    manifest, worker = run.manifest, run.worker()
    return {
        "run": run.location,
        "run_id": manifest.run_id,
        "state": state_of(run),
        "stop_reason": stop_reason(run) or None,
        "created": datetime.fromtimestamp(manifest.created_ns / 1e9, timezone.utc).isoformat(timespec="seconds"),
        "command": list(manifest.command),
        "attempts": run.attempts,
        "seams": [str(seam) for seam in run.seams],
        "workers": run.workers,
        "steps": {mode.name: len(worker.numbers(mode)) for mode in run.modes},
        "settings": settings_of(run),
        "scalars": [
            each
            for role in (Role.LOSS, Role.METRIC)
            for name in run.tensor_names(role=role)
            for each in _scalar_json(run, name)
        ],
        "tensors": [
            {
                "name": info.name, "role": info.role.value, "module": info.module, "module_type": info.module_type,
                "shape": list(info.shape), "dtype": info.dtype,
            }
            for info in worker.infos().values()
            if info.role not in (Role.LOSS, Role.METRIC)
        ],
        "findings": [finding_to_json(each) for each in run.journal.findings],
        "rules": [each.to_json() for each in run.journal.statuses],
        "machine": [usage_sentence(usage) for usage in usage_of(run)],
        "problems": [str(problem) for problem in run.problems],
    }  # fmt: skip


def _scalar_json(run: Run, name: str) -> Iterator[dict[str, Any]]:
    for mode in run.modes:
        steps, values = run.scalars(name, mode)
        if len(steps):
            yield {
                "name": name, "mode": mode.name, "count": len(steps), "first": float(values[0]),
                "last": float(values[-1]), "last_step": int(steps[-1]),
            }  # fmt: skip


def sections_of(run: Run, path: str, *, every: bool) -> Iterator[Section]:
    """The sections of the output.

    Args:
        run: The run.
        path: Its location as the user wrote it.
        every: List every tensor.
    """
    whose = f" of {run.worker().name}" if len(run.workers) > 1 else ""
    yield _steps(run)
    if len(run.models) > 1:
        yield _models(run)
    yield _last_values(run, f"Last values{whose}")
    tensors = list(_tensors(run, every))
    yield _section(f"Tensors{whose}", tensors, "" if tensors else "none recorded")
    yield _section("Capture", [("", worker, line) for worker in run.workers for line in _capture_lines(run, worker)])
    yield _rules(run, path)


def _section(title: str, rows: Rows, below: str = "") -> Section:
    """Rows below a title, and a line below them; either may be missing."""
    return Section(title, [*([TextTable((), rows)] if rows else []), *([Text(below)] if below else [])])


def _times(run: Run) -> Iterator[tuple[str, str]]:
    """The phases of the workers, with their names where there are several."""
    for name in run.workers[:_MOST_TIMES]:
        phases = run.phases(worker=name)
        if len(phases):
            yield "time", f"{f'{name}: ' if len(run.workers) > 1 else ''}{phases_sentence(phases)}"


def _evaluators(run: Run) -> list[str]:
    """The process that holds the lease of the journal, in words; empty for none."""
    try:
        holder = lease_holder(run.store)
    except WatchglassError:
        return []
    if holder is None:
        return []
    gone = ", which ended without releasing the journal" if is_alive(holder) is False else ""
    return [f"process {holder.pid} on {holder.host}{gone}"]


def _state(run: Run) -> str:
    """The state of the run, with its failure."""
    words = {"lost": "failed", "not finished": "not finished: running, or died"}
    state = state_of(run)
    failure = ending_of(run).failure if "stopped" not in state else None
    why = failure_sentence(failure).removeprefix("interrupted by ") if failure is not None else ""
    if "stopped" in state and (reason := stop_reason(run)):
        why = f"the reason given: {reason}"
    return words.get(state, state) + (f": {why}" if why else "")


def _steps(run: Run) -> Section:
    leaders = leaders_of(run)
    rows: Rows = []
    for worker in leaders[:_MOST_WORKERS]:
        for mode in (Mode.TRAIN, Mode.EVAL, Mode.PREDICT):
            steps = run.steps(mode, worker)
            if len(steps):
                number = count(count_steps_of(run.worker(worker), mode), "step")
                recorded = "" if number == count(len(steps), "step") else f", {len(steps):,} of them recorded"
                rows.append((worker or "", mode.name, number, f"{steps[0]} to {steps[-1]}{recorded}"))
    left = len(leaders) - _MOST_WORKERS
    below = f"and {count(left, 'further worker')}" if left > 0 else "" if rows else "none recorded"
    return _section("Steps", rows, below)


def _models(run: Run) -> Section:
    """The last losses of each model."""
    rows: Rows = []
    for each in run.models[:_MOST_MODELS]:
        best = f", {number(each.best_validation_loss)} at best" if each.best_validation_loss is not None else ""
        rows.append((
            each.worker, each.name, each.type, count(each.train_steps, "training step"),
            f"loss {number(each.training_loss)}" if each.training_loss is not None else "",
            f"validation {number(each.validation_loss)}{best}" if each.validation_loss is not None else "",
            count(each.findings, "finding") if each.findings else "",
        ))  # fmt: skip
    left = len(run.models) - _MOST_MODELS
    return _section("Models", rows, f"and {count(left, 'further model')}" if left > 0 else "")


def _last_values(run: Run, title: str) -> Section:
    rows: Rows = []
    names = [*run.tensor_names(role=Role.LOSS), *run.tensor_names(role=Role.METRIC)]
    for name in names[:_MOST_SCALARS]:
        steps, values = run.scalars(name, Mode.TRAIN)
        if len(values):
            rows.append(("", name, "TRAIN", number(float(values[-1])), f"step {steps[-1]}"))
    stretches = run.stretches(mode=Mode.EVAL)
    for name, mean in sorted(stretches[-1].means.items()) if stretches else ():
        rows.append(("", name, "EVAL", number(mean), f"mean after step {stretches[-1].train_step}"))
        if (of_training := stretches[-1].training_means.get(name)) is not None:
            rows.append(("", name, "EVAL", number(of_training), "the same of the training data"))
    left = len(names) - _MOST_SCALARS
    return _section(title, rows, f"and {count(left, 'further series', 'further series')}" if left > 0 else "")


def _tensors(run: Run, every: bool) -> Iterator[tuple[str, ...]]:
    for role in Role:
        names = run.tensor_names(role=role) if role not in (Role.LOSS, Role.METRIC) else ()
        if names:
            shown = names if every else names[:_EXAMPLES]
            left_out = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
            yield "", role.value, str(len(names)), ", ".join(map(printable, shown)) + left_out


def _capture_lines(run: Run, worker: str) -> list[str]:
    lifecycle = run.worker(worker).lifecycle
    ends = [event for event in lifecycle if event.get("event") == "left"]
    counters = ends[-1].get("counters") if ends else None
    known = counters if isinstance(counters, dict) else {}
    lines = list(capture_lines({**known, "recovered_steps": recovered_steps(lifecycle)}))
    if not isinstance(counters, dict):
        why = "unknown: the process ended without a report" if worker in run.lost else "not known yet"
        lines.append(f"the cost of watching is {why}")
    return lines or ["no cost recorded"]


def _rules(run: Run, path: str) -> Section:
    found = Counter(finding.rule for finding in run.journal.findings)
    rows: Rows = [
        ("", status.rule, status.status.value, str(found[status.rule] or ""), status.reason)
        for status in run.journal.statuses
    ]
    return _section("Rules", rows, "" if rows else f"not evaluated yet: watchglass check {path}")
