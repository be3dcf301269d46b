"""Models that were trained one after the other, or in other processes, cannot affect each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from watchglass.diagnose.parts_of_run import PartsOfRun
from watchglass.records import Finding, Mode, Severity
from watchglass.run import open_run
from watchglass.testing import Step, build_run


def about(model: int | None, step: int = 0, worker: str = "worker_0") -> Finding:
    return Finding(
        id="a", rule="A", severity=Severity.ERROR, step=step, last_step=step, count=1, mode=Mode.TRAIN, worker=worker,
        tensors=(), value=None, limit=None, message="", global_step=step, model=model,
    )  # fmt: skip


def course(*models: int) -> Iterator[Step]:
    for model in models:
        prefix = f"model_{model + 1}/" if model else ""
        yield Step(scalars={f"{prefix}loss": 1.0}, model=model)


@pytest.mark.parametrize(
    ("order", "parts"),
    [
        ((0, 0, 1, 1, 2, 2), (0, 1, 2)),
        ((0, 1, 0, 1, 2, 2), (0, 0, 1)),
        ((0, 0, 1, 2, 1, 2), (0, 1, 1)),
        ((0, 1, 1, 2, 2, 0), (0, 0, 0)),
    ],
)
def test_models_whose_steps_overlap_are_one_part(
    run_path: Path, order: tuple[int, ...], parts: tuple[int, ...]
) -> None:
    part = PartsOfRun(open_run(build_run(run_path, [*course(*order)])))
    assert tuple(part(about(model))[1] for model in range(3)) == parts


def test_what_is_about_no_model_belongs_to_those_trained_then(run_path: Path) -> None:
    part = PartsOfRun(open_run(build_run(run_path, [*course(0, 0, 1, 1)])))
    assert [part(about(None, step))[1] for step in (0, 1, 2, 3, 9)] == [0, 0, 1, 1, 1]
    assert PartsOfRun(open_run(build_run(run_path.with_name("empty"), [])))(about(None)) == (None, 0)


def test_ranks_are_one_part(run_path: Path) -> None:
    part = PartsOfRun(open_run(build_run(run_path, [*course(0, 0)], workers=2)))
    assert part(about(0)) == part(about(0, worker="worker_1"))
