"""Two training runs never write one run at once, unless they are ranks of one job."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import NEVER, TRAIN, Processes, ended
from waiting import until
from watchglass import open_run
from watchglass.errors import WatchglassError

pytestmark = pytest.mark.usefixtures("preloaded_python")


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.close()


def steps_of(run: Path) -> int:
    try:
        return len(open_run(run).steps())
    except WatchglassError:
        return 0


def test_of_five_launches_at_once_one_trains_and_four_are_refused(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('began', flush=True)\n" + TRAIN)
    words = ("-m", "watchglass", "run", "--run", "here", "train.py", "end", NEVER, "0.01")
    launches = [processes.start(*words, cwd=tmp_path) for _ in range(5)]
    until(lambda: sum(launch.poll() is not None for launch in launches) == 4)
    until(lambda: steps_of(tmp_path / "here") > 3)
    (tmp_path / "end").touch()
    answers = sorted(ended(launch) for launch in launches)
    assert [status for status, _, _ in answers] == [0, 2, 2, 2, 2], answers
    for _, out, err in answers[1:]:
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("watchglass: error: here is being written by process ")
        assert line.endswith("(attempt 0); wait for its end, or name another run with --run")
    assert open_run(tmp_path / "here").attempts == [0]


def test_a_launch_after_one_that_was_killed_resumes(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("-m", "watchglass", "run", "--run", "here", "--evaluator", "none", "train.py")
    first = processes.start(*words, NEVER, NEVER, "0.01", cwd=tmp_path)
    until(lambda: steps_of(tmp_path / "here") > 3)
    first.send_signal(signal.SIGKILL)
    status, _, err = ended(processes.start(*words, "5", NEVER, "0", cwd=tmp_path))
    assert status == 0, err
    assert open_run(tmp_path / "here").attempts == [0, 1]


def test_two_scripts_that_watch_themselves(processes: Processes, tmp_path: Path) -> None:
    watching = "import watchglass\nopen('pid', 'w').write(str(os.getpid()))\nwatchglass.watch(model, run='here')\n"
    (tmp_path / "train.py").write_text(TRAIN.replace("step, broken =", f"{watching}step, broken ="))
    first = processes.start("train.py", "end", NEVER, "0.01", cwd=tmp_path)
    until(lambda: steps_of(tmp_path / "here") > 3)
    pid = (tmp_path / "pid").read_text()
    for words in (
        ("train.py", "5", NEVER, "0"),
        ("-m", "watchglass", "run", "--run", "here", "train.py", "5", NEVER, "0"),
    ):
        status, out, err = ended(processes.start(*words, cwd=tmp_path))
        assert status != 0
        assert out == ""
        last = err.splitlines()[-1]
        assert f"by process {pid}" in last
        assert "(attempt 0)" in last
    (tmp_path / "end").touch()
    assert ended(first)[0] == 0
    assert ended(processes.start("train.py", "5", NEVER, "0", cwd=tmp_path))[0] == 0
    assert open_run(tmp_path / "here").attempts == [0, 1]


SPAWNED = """
import torch.multiprocessing as mp

def train(index, together):
    import torch, watchglass
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    hook = watchglass.watch(model, run='here')
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(10):
        optimizer.zero_grad(); model(torch.randn(3, 4)).square().mean().backward(); optimizer.step()
    together.wait()  # none is over before all have begun
    hook.close()

if __name__ == '__main__':
    together = mp.get_context('spawn').Barrier(3)
    mp.spawn(train, (together,), nprocs=3)
"""


@pytest.mark.parametrize("words", [(), ("-m", "watchglass", "run", "--run", "here")])
def test_processes_of_one_script_are_workers_of_one_attempt(
    processes: Processes, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(SPAWNED)
    status, _, err = ended(processes.start(*words, "train.py", cwd=tmp_path))
    assert status == 0, err
    assert words or err == ""
    run = open_run(tmp_path / "here")
    assert run.attempts == [0]
    assert run.workers == ["worker_0", "worker_1", "worker_2"]
    courses = [[end.mode_step for end, _ in run.worker(name).course] for name in run.workers]
    assert courses == [list(range(10))] * 3
