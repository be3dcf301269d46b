"""A run in a few words: its repr, its page in a notebook, how it ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from watchglass.records import Mode, Role, count
from watchglass.run.ending import ending_of
from watchglass.run.markup import page
from watchglass.run.summaries import count_steps

if TYPE_CHECKING:
    from watchglass.run.run import Run


#: Scalars that a page shows; a search over a hundred models has a thousand.
_MOST_ROWS = 100


def state_of(run: Run) -> str:
    """How a run ended: ``finished``, ``failed``, ``stopped``, or ``lost`` (its processes are gone, and nothing says
    why); else ``not finished`` or ``no data``.

    Where workers left differently, all of it: ``failed and finished``.
    """  # noqa: D205
    ending = ending_of(run)
    if run.finished:
        early = {failure.worker for failure in ending.early}
        lasts = {worker: run.worker(worker).lifecycle[-1] for worker in run.workers if worker not in early}
        ends = {str(last.get("status", "finished")) for last in lasts.values()} or {"finished"}
        if ending.failure is not None and "stopped" not in ends:
            # Not only what failed while it trained: a launcher also sees what came after the last step.
            ends = {"failed"} if ends == {"finished"} else ends | {"failed"}
        return " and ".join(sorted(ends))
    if ending.failure is not None:
        return "lost" if ending.failure.kind == "lost" else "failed"
    if ending.over:
        return "finished"
    return "not finished" if run.workers else "no data"


def summary(run: Run) -> list[str]:
    """What a run holds, in a few words each."""
    modes = [(count_steps(run, mode), mode.name) for mode in (Mode.TRAIN, Mode.EVAL, Mode.PREDICT)]
    steps = " and ".join(f"{number} {name}" for number, name in modes if number) or "no"
    parts = [
        count(len(run.workers), "worker"),
        f"{steps} {'step' if sum(number for number, _ in modes) == 1 else 'steps'}",
        count(len(run.worker().infos()), "tensor"),
    ]
    if len(run.attempts) > 1:
        alone = len(run.worker().attempts) == 1
        parts.insert(0, f"attempt {run.attempt}" if alone else count(len(run.attempts), "attempt"))
    if run.journal.findings:
        parts.append(count(len(run.journal.findings), "finding"))
    return [*parts, "replaced by a later attempt" if run.attempt < max(run.attempts, default=0) else state_of(run)]


def page_of(run: Run) -> str:
    """A run as HTML: what it holds, its scalars, its seams."""
    created = datetime.fromtimestamp(run.manifest.created_ns / 1e9).strftime("%Y-%m-%d %H:%M")
    rows: list[tuple[Any, ...]] = []
    for role in (Role.LOSS, Role.METRIC):
        for name in run.tensor_names(role=role):
            for mode in run.modes:
                steps, values = run.scalars(name, mode)
                if len(steps):
                    rows.append((name, mode.name, float(values[0]), float(values[-1]), int(steps[-1])))
    left = [f"and {len(rows) - _MOST_ROWS:,} more rows"] if len(rows) > _MOST_ROWS else []
    more = "; ".join([*left, *(str(seam) for seam in run.seams)])
    note = f"{', '.join(summary(run))}; begun {created}"
    return page(run.location, note, ("scalar", "mode", "first", "last", "at step"), rows[:_MOST_ROWS], more)
