"""What ``watchglass run`` says around a script, and that nothing of ours changes how the script ends."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from watchglass.errors import EXIT_STOPPED
from watchglass.run import open_run
from watchglass.store import create_attempt, create_run, layout, newest_generation, open_store

pytestmark = pytest.mark.slow

#: A rule that is fine for the launcher, which checks it, and ends the evaluator, which has capture switched off.
DEADLY = """
import os
from watchglass import Rule
if os.environ.get("WATCHGLASS") == "0":
    os._exit(11)
class Deadly(Rule):
    def check(self, view):
        return ()
"""


def run(folder: Path, *words: str, body: str = "print('trained')", **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(body)
    command = [sys.executable, "-m", "watchglass", "run", *words, "train.py"]
    environ = {**os.environ, **env}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_script_that_does_not_train_is_reported_with_its_exit_status(tmp_path: Path) -> None:
    done = run(tmp_path, "--run", "here", body="print('trained'); raise SystemExit(3)")
    assert (done.returncode, done.stdout) == (3, "trained\n")
    assert done.stderr.splitlines() == [
        "watchglass: run directory here",
        "watchglass: verdict on here",
        "failed before its first step: the script ended with exit status 3",
        "   note     the script ended itself; its last output may give the reason",
    ]


@pytest.mark.usefixtures("preloaded_python")
def test_a_second_start_is_a_new_attempt_of_the_same_run(tmp_path: Path) -> None:
    assert run(tmp_path, "--run", "here", "--evaluator=none").returncode == 0
    manifest = (tmp_path / "here" / "run.json").read_bytes()
    done = run(tmp_path, "--run", "here", "--evaluator=none")
    assert done.stderr.splitlines() == [
        "watchglass: run directory here, attempt 1 of an existing run; not being evaluated; "
        "to evaluate it: watchglass follow here",
        "watchglass: recorded; to get the verdict: watchglass check here",
    ]
    assert (tmp_path / "here" / "run.json").read_bytes() == manifest


def test_quiet_is_quiet(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_an_evaluator_that_dies_changes_nothing_for_the_script(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DEADLY)
    done = run(tmp_path, "--run", "here", "--rules", "mine.py:Deadly", body="print('trained'); raise SystemExit(4)")
    assert (done.returncode, done.stdout) == (4, "trained\n")
    again = "watchglass: warning: the evaluator ended with exit status 11; restarting ({} of 3), continuing from"
    assert done.stderr.splitlines()[1:] == [
        *(f"{again.format(number)} the journal" for number in (1, 2, 3)),
        "watchglass: warning: the evaluator ended with exit status 11, 4 times in all; this run is no longer "
        "evaluated; to evaluate it later: watchglass check here",
        "watchglass: to get the verdict: watchglass check here",
    ]


def test_a_report_that_cannot_be_written_changes_nothing_for_the_script(tmp_path: Path) -> None:
    body = "import os; os.rmdir('out'); open('out', 'w').close(); raise SystemExit(5)"
    done = run(tmp_path, "--run", "here", "--report", "out/report.html", body=body)
    assert done.returncode == 5
    assert "watchglass: warning: no verdict on here: cannot make the folder out" in done.stderr


def test_a_user_module_named_as_one_of_the_standard_library_disturbs_no_other(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("queue.py", "types.py", "json.py"):
        (tmp_path / "elsewhere" / name).write_text("raise AssertionError('shadowed')")
    (tmp_path / "train.py").write_text("print('trained')")
    watchglass = Path(sysconfig.get_path("scripts"), "watchglass")
    if not watchglass.exists():
        pytest.skip("the console script is not installed here")
    done = subprocess.run(
        [watchglass, "run", "../train.py"], cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "shadowed" not in done.stderr


@pytest.mark.usefixtures("preloaded_python")
def test_torchrun_does_not_restart_what_was_stopped_on_purpose(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "here"))
    create_run(store, command=[])
    store.write(layout.control_commit("stop", create_attempt(store, "first")), b"{}")
    elastic = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    done = run(tmp_path, "--run-dir", "here", TORCHELASTIC_RESTART_COUNT="1", **elastic)
    assert (done.returncode, done.stdout) == (EXIT_STOPPED, "")
    assert "stopped by request; not started again" in done.stderr
    # On purpose, that is by a new launch, it goes on.
    assert run(tmp_path, "--run-dir", "here", TORCHELASTIC_RESTART_COUNT="0", **elastic).returncode == 0


TRAINING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(12):
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
    optimizer.step()
raise SystemExit(3)
"""


@pytest.mark.usefixtures("preloaded_python")
def test_a_run_is_compacted_when_its_training_has_ended(tmp_path: Path) -> None:
    done = run(tmp_path, "--run", "here", "--save-interval", "1", "--compact", body=TRAINING)
    assert done.returncode == 3
    assert "watchglass: compacted: " in done.stderr
    store = open_store(str(tmp_path / "here"))
    assert newest_generation(store) is not None
    assert store.list(layout.segments(0)) == []
    opened = open_run(tmp_path / "here")
    assert opened.steps() == list(range(12))
    assert len(opened.tensor("gradient/weight").reductions("l2")[1]) == 12


@pytest.mark.usefixtures("preloaded_python")
def test_a_compaction_that_fails_changes_nothing_for_the_script(tmp_path: Path) -> None:
    body = "open('here/compacted', 'w').close()" + TRAINING
    done = run(tmp_path, "--run", "here", "--evaluator=none", "--compact", body=body)
    assert done.returncode == 3
    assert "watchglass: warning: here was not compacted: " in done.stderr
    assert open_run(tmp_path / "here").steps() == list(range(12))
