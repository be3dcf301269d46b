"""A process beside a run writes what it has for TensorBoard, and never gets in its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from waiting import PATIENCE_S
from watchglass.run import open_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("tensorboard_alone")]

TRAIN = """
import sys, torch, watchglass
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e4)
{watch}
for step in range(40):
    loss = model(torch.ones(2, 4)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def train(folder: Path, *options: str, watch: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN.format(watch=watch))
    words = [*(("-m", "watchglass", "run", *options) if options else ()), "train.py"]
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def losses(folder: Path) -> dict[int, float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {each.step: each.value for each in events.Scalars("loss")}


def verdict(folder: Path) -> str:
    events = EventAccumulator(str(folder / "watchglass"))
    events.Reload()
    return str(events.Tensors("watchglass/verdict")[-1].tensor_proto.string_val[0].decode())


def expected(run: Path) -> dict[int, float]:
    return dict(zip(*(each.tolist() for each in open_run(run).scalars("loss")), strict=True))


def test_under_the_launcher_it_has_every_step_and_the_last_finding(tmp_path: Path) -> None:
    done = train(tmp_path, "--run", "run", "--tensorboard", "tb")
    assert done.returncode == 0, done.stderr
    assert f"to look at it in TensorBoard: tensorboard --logdir {tmp_path}/tb\n" in done.stderr
    found = losses(tmp_path / "tb" / "run" / "train")
    assert list(found) == list(range(40))
    assert found == pytest.approx(expected(tmp_path / "run"), nan_ok=True)
    assert "issues found" in verdict(tmp_path / "tb" / "run")


@pytest.mark.parametrize("options", [(), ("--run", "run")])
def test_a_script_can_ask_for_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = "" if options else ", run='run'"
    done = train(tmp_path, *options, watch=f"watchglass.watch(model, tensorboard='tb'{run})")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "tb" / "run" / "train") == pytest.approx(expected(tmp_path / "run"), nan_ok=True)


def test_a_folder_with_other_files_costs_the_run_nothing(tmp_path: Path) -> None:
    (tmp_path / "tb" / "run").mkdir(parents=True)
    (tmp_path / "tb" / "run" / "mine").touch()
    done = train(tmp_path, "--run", "run", "--tensorboard", "tb")
    assert done.returncode == 0
    assert f"no more data for TensorBoard: {tmp_path}/tb/run has other files" in done.stderr
    assert f"to write it later: watchglass export {tmp_path}/run --to tensorboard -o {tmp_path}/tb" in done.stderr
    assert len(open_run(tmp_path / "run").steps()) == 40
