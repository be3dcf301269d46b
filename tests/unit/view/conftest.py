"""A run that went wrong, as the real writer writes it, and a verdict on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from watchglass.records import Cause, Diagnosis, Finding, Mode, RankedCause, RuleStatus, Severity, Status, Verdict
from watchglass.run import Run, open_run
from watchglass.testing import Step, build_run

#: A module name that is an attack on whatever prints it.
HOSTILE = "<img src=x onerror=alert(1)>"

GROWTH = ("step 30: the gradient norm grew 100-fold within 16 steps (ExplodingGradient)",)
AGAINST = ("step 45: the loss rose in the steps before (ExplodingTensor)",)

LAYERS = {"conv1": "Conv2d", "conv2": "Conv2d", HOSTILE: "Linear", "head": "Linear"}


def steps() -> list[Step]:
    generator = np.random.default_rng(7)
    made: list[Step] = []
    for number in range(60):
        broken = number >= 45
        scale = 10 ** (number / 15)
        statistics = {}
        for depth, name in enumerate(LAYERS):
            weight = generator.normal(size=(8, 4)).astype(np.float32)
            gradient = weight * np.float32(scale * 10.0 ** (depth - 3))
            if broken and depth < 2:
                gradient[0, 0] = np.nan
            statistics |= {f"{name}.weight": weight, f"gradient/{name}.weight": gradient}
            statistics[f"update/{name}.weight"] = weight * np.float32(1e-3 * scale)
        loss = float("nan") if broken else 2.0 + scale * 0.5
        made.append(Step(scalars={"loss": loss, "learning_rate": 5.0}, statistics=statistics, weight=32))
        if number % 20 == 19:
            evaluation = {"loss": 3.0 + number, "accuracy": 0.5 - number / 200}
            made += [Step(scalars=evaluation, mode=Mode.EVAL, weight=16)] * 2
    return made


def finding(rule: str, severity: Severity, step: int, message: str, *, mode: Mode = Mode.TRAIN) -> Finding:
    return Finding(
        id=f"{abs(hash((rule, step))) % 16**12:012x}", rule=rule, severity=severity, step=step, last_step=59,
        count=60 - step, mode=mode, worker="worker_0", tensors=(f"gradient/{HOSTILE}.weight",), value=float("inf"),
        limit=70.0, message=message,
    )  # fmt: skip


@pytest.fixture(scope="session")
def sick_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(build_run(tmp_path_factory.mktemp("view") / "sick", steps(), modules=LAYERS))


@pytest.fixture
def sick_run(sick_path: Path) -> Run:
    return open_run(sick_path)


@pytest.fixture
def sick_verdict() -> Verdict:
    growth = finding("ExplodingGradient", Severity.WARNING, 30, "the gradient norm grew 100-fold within 16 steps")
    broken = finding("ExplodingTensor", Severity.ERROR, 45, f"gradient/{HOSTILE}.weight holds NaN")
    overfit = finding("Overfit", Severity.INFO, 3, "validation loss rises", mode=Mode.EVAL)
    high = Cause(
        "learning_rate_too_high", "the learning rate is too high", "Each update overshoots.", ("Lower it",), "a book"
    )
    bad_data = Cause("bad_data", "the data holds NaN", "A NaN in a batch spreads.", ("Look at the data",))
    return Verdict(
        run="runs/sick",
        status="stopped",
        diagnoses=(
            Diagnosis(
                causes=(RankedCause(high, 0.83, 30, GROWTH), RankedCause(bad_data, 0.12, 45, (), AGAINST)),
                findings=(growth.id, broken.id),
                severity=Severity.ERROR,
                step=30,
                subject=f"{HOSTILE}.weight",
                headline="training diverges to NaN since step 30, first in conv1",
                what_to_try=("Lower the learning rate by a factor of 10", "Clip the gradient norm"),
            ),
        ),
        findings=(broken, growth, overfit),
        statuses=(
            RuleStatus("ExplodingGradient", Status.ISSUES_FOUND),
            RuleStatus("DeadRelu", Status.NOT_APPLICABLE, "the model has no ReLU"),
            RuleStatus("WeightUpdateRatio", Status.STARVED, "updates were captured every 128 steps, it needs 16"),
        ),
        metrics={"validation accuracy": 0.2051},
        train_steps=60,
        planned_train_steps=400,
        seconds=6.6,
        steps_saved=340,
        seconds_saved=37.4,
        capture={
            "callback_ns": 54_780_000,
            "train_ns": 6_600_000_000,
            "interval": 8,
            "bytes_written": 2_500_000,
            "dropped": {"raw": 3},
        },
    )


@pytest.fixture
def healthy_verdict() -> Verdict:
    statuses = (RuleStatus("DeadRelu", Status.NO_ISSUES_FOUND), RuleStatus("Overfit", Status.NO_ISSUES_FOUND))
    return Verdict(
        run="runs/healthy", status="no issues found", diagnoses=(), findings=(), statuses=statuses,
        metrics={"validation accuracy": 0.9812}, train_steps=400, planned_train_steps=400, seconds=75.0,
    )  # fmt: skip
