"""A run as an offline run of Weights & Biases, by its own client: ``wandb sync`` uploads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from watchglass import view
from watchglass.errors import importing
from watchglass.records import Mode
from watchglass.run import spans
from watchglass.trackers.step_numbers import scalars_of, statistics_of
from watchglass.trackers.tensorboard_export import ExportedRun

if TYPE_CHECKING:
    from watchglass.records import Verdict
    from watchglass.run import Run, Worker

#: The horizontal axis of all charts.
_AXIS = "train_step"
#: Rows of statistics that are read at a time.
_ROWS = 1 << 16


def export_wandb(run: Run, folder: str, judge: Callable[[Run], Verdict], *, project: str = "watchglass") -> ExportedRun:
    """Write a run as an offline run into a new folder. Nothing is sent anywhere.

    Scalars and reductions of tensors are logged by training step, ``train/loss``, and the means of evaluations as
    ``eval/loss`` at the training step before them. Settings are its config, the verdict is in its summary. Histograms
    are left out.

    Args:
        run: The run.
        folder: A folder that does not exist or is empty.
        judge: Returns the verdict on the run.
        project: Name of the project that it is uploaded to.

    Raises:
        MissingExtraError: The client is not installed.
        InvalidValueError: The folder is an address of an object store.
        RunExistsError: The folder exists and is not empty.
    """
    target = view.check_export_path(folder)
    with importing("an offline run is written by the client of Weights & Biases", "wandb"), _without_reports():
        import wandb
    target.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        mode="offline", silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
    )
    name = Path(run.location.rstrip("/")).name
    with _without_reports():
        opened = wandb.init(
            dir=str(target), project=project, id=run.manifest.run_id, name=name, settings=settings,
            config=view.settings_of(run), notes=" ".join(run.manifest.command),
        )  # fmt: skip
        try:
            opened.define_metric(_AXIS)
            opened.define_metric("*", step_metric=_AXIS)
            steps = scalars = 0
            for worker in map(run.worker, run.workers):
                prefix = f"{worker.name}/" if len(run.workers) > 1 else ""
                for row in _rows(worker, prefix):
                    opened.log(row)
                    steps += any(name.startswith(f"{prefix}train/") for name in row)
                    scalars += len(row) - 1
            verdict = judge(run)
            opened.summary["watchglass/verdict"] = view.headline(verdict)
            opened.summary["watchglass/causes"] = [
                f"{each.headline}: {cause.cause.title}" for each in verdict.diagnoses for cause in each.causes[:1]
            ]
        finally:
            opened.finish()
    return ExportedRun(str(target), scalars, 0, steps)


def _rows(worker: Worker, prefix: str) -> Iterator[dict[str, Any]]:
    """The numbers of each training step, then of each evaluation, by name."""
    rows = worker.columns[worker.columns["mode"] == int(Mode.TRAIN)]
    for attempt in np.unique(rows["attempt"]).tolist():
        tables = worker.attempts[attempt]
        part = rows[rows["attempt"] == attempt]
        part = part[np.argsort(part["own"], kind="stable")]
        ends = tables.steps.log.latest
        captures = ends["captures"][np.searchsorted(ends["global_step"], part["own"])]
        for first, stop in spans(part["own"], np.maximum(captures, 1), _ROWS):
            low, high = np.searchsorted(part["own"], [first, stop]).tolist()
            own = part["own"][low:high]
            scalars, tensors = scalars_of(tables, own), statistics_of(tables, own, histograms=False)
            for at, step in enumerate(part["step"][low:high].tolist()):
                found = [*scalars[at], *(tensors[at].scalars if at in tensors else ())]
                yield {_AXIS: step, **{f"{prefix}train/{name}": value for name, value in found}}
    for stretch in worker.stretches(Mode.EVAL):
        means = {f"{prefix}eval/{name}": value for name, value in stretch.means.items()}
        yield {_AXIS: max(stretch.train_step, 0), **means}


@contextlib.contextmanager
def _without_reports() -> Iterator[None]:
    """The client sends no reports about its own errors."""
    before = os.environ.get("WANDB_ERROR_REPORTING")
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["WANDB_ERROR_REPORTING"]
        else:
            os.environ["WANDB_ERROR_REPORTING"] = before
