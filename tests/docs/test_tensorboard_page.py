"""docs/tensorboard.md: its commands run, its tags are there, its lines for ClearML read what was written."""

from __future__ import annotations

import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from watchglass.cli import main
from watchglass.records import PHASES, Mode, ModuleKind
from watchglass.testing import Step, build_run
from watchglass.trackers.step_numbers import SHOWN

pytestmark = pytest.mark.usefixtures("tensorboard_alone")


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "tensorboard.md").read_text(encoding="utf-8")


@pytest.fixture
def exported(page: str, in_tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a run that was exported with the command of the page."""
    weight = np.arange(6, dtype=np.float32)
    train = Step(
        {"loss": 1.0, "learning_rate": 0.1},
        statistics={"fc1.weight": weight, "gradient/fc1.weight": weight},
        rows={PHASES: [(0.1,) * len(PHASES.own)]},
    )
    made = [train, Step({"loss": 2.0}, mode=Mode.EVAL), train]
    types_of = {"model": {"module_types": {"": "Net", "fc1": "Linear"}}}
    build_run("runs/demo", made, modules={"fc1": ModuleKind.LINEAR}, facts=types_of)
    command, first, second = re.findall(r"\$ (watchglass export .*)\n(tb/demo: .*)\n(to look at it: .*)\n", page)[0]
    assert main(shlex.split(command)[1:]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == second
    pattern = re.sub(r"[\d,]+", r"[\\d,]+", re.escape(first).replace(r"\,", ","))
    assert re.fullmatch(pattern.replace(r"\ ", " "), said[0].replace(str(in_tmp_path) + "/", ""))
    return in_tmp_path / "tb" / "demo"


def test_the_folders_have_what_the_table_says(page: str, exported: Path) -> None:
    assert sorted(each.name for each in exported.iterdir() if each.is_dir()) == ["eval", "train", "watchglass"]
    found = {}
    for name in ("train", "eval", "watchglass"):
        events = EventAccumulator(str(exported / name))
        events.Reload()
        found[name] = events.Tags()
    scalars = found["train"]["scalars"]
    assert {"loss", "learning_rate", "weight/fc1.weight/l2", "gradient/fc1.weight/l2"} < set(scalars)
    assert ", ".join(f"`{name}`" for name in SHOWN) in page
    assert any(tag.startswith("phases/") for tag in scalars)
    assert found["train"]["tensors"] == ["weight/fc1.weight", "gradient/fc1.weight"]
    assert found["eval"]["scalars"] == ["loss"]
    assert {"watchglass/verdict", "watchglass/settings"} <= set(found["watchglass"]["tensors"])
    assert found["watchglass"]["graph"]
    (filtered,) = re.findall(r"by regular expression, `(.*?)`", page)
    assert [tag for tag in scalars if re.search(filtered, tag)] == ["gradient/fc1.weight/l2"]


def test_the_lines_for_clearml_report_every_scalar(page: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[Any, ...]] = []

    class Task:
        @classmethod
        def init(cls, **_: str) -> Task:
            return cls()

        def get_logger(self) -> Any:
            return types.SimpleNamespace(report_scalar=lambda *values: reported.append(values))

    monkeypatch.setitem(sys.modules, "clearml", types.SimpleNamespace(Task=Task))  # type: ignore[arg-type]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})  # noqa: S102
    assert ("loss", "train", 1.0, 0) in reported
    assert ("loss", "train", 1.0, 1) in reported
