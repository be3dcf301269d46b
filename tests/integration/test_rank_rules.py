"""Rules that compare ranks, together: live under torchrun, and silent where ranks differ as they should."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import rank_faults
import ranks
import watchglass
from example_runs import example_run
from preloaded import Preloaded
from rank_runs import judged
from watchglass.evaluate import replay

TESTS = Path(ranks.__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("healthy", ["divided_loss", "local_sgd", "parts", "sum_for_adam"])
def test_ranks_that_differ_as_they_should_get_no_alarm(tmp_path: Path, healthy: str) -> None:
    assert judged(tmp_path, rank_faults.by_hand, healthy)[0] == []


@pytest.mark.slow
def test_an_example_and_its_twin_are_made_in_one_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for sick in (True, False):
        run = example_run("RanksRepeatData", Path("runs", "sick" if sick else "healthy"), sick=sick)
        assert bool(replay(str(run.path), [run.rule]).findings) is sick
    assert {path.name for path in Path("runs").iterdir()} == {"sick", "healthy"}


SCRIPT = """
import sys
import torch, torch.distributed as dist
import rank_faults
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
getattr(rank_faults, sys.argv[1])(sys.argv[2], dist.get_rank(), lambda model: None)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "fault", "causes"),
    [
        ("wrapped", "changed", {"replica_changed"}),
        ("wrapped", "bypass", {"gradients_not_averaged"}),
        ("wrapped", "same_data", {"ranks_see_same_data"}),
        ("wrapped", "wrong_values", {"silent_corruption"}),
        ("wrapped", "", set()),
        ("by_hand", "seed", {"ranks_initialized_differently"}),
        ("by_hand", "skip", {"ranks_out_of_step"}),
        ("by_hand", "sum", {"gradients_summed_over_ranks"}),
        ("by_hand", "", set()),
    ],
)
def test_live_under_torchrun(tmp_path: Path, preloaded: Preloaded, training: str, fault: str, causes: set[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = ["-m", "watchglass", "run", "--run-dir", str(tmp_path / "run"), "--save-interval", "1"]
    run += ["--rules", "default,SilentDataCorruption"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "WATCHGLASS_STRICT": "1"}
    command = [str(preloaded.python), *torchrun, *run, str(script), training, fault]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    live = [each for each in watchglass.open_run(tmp_path / "run").journal.findings if each.severity.value != "info"]
    assert {each.causes[0] for each in live} == causes, [(each.rule, each.message) for each in live]
