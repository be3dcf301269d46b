"""``--engine ray`` gives the answer of the local engine, byte for byte, even if processes die; no process remains."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from command_line import training
from evaluators.ray_cluster import two_nodes
from simulated_runs import Simulated, simulate
from watchglass.evaluate import replay
from watchglass.run import open_run
from watchglass.session import rule_specs
from watchglass.store import LocalStore
from watchglass.testing import RunBuilder, build_run

pytest.importorskip("ray", exc_type=ImportError)
pytestmark = pytest.mark.slow

#: A rule that finds something on every worker, has a fault on one, and may wait in the middle for whom a test kills.
OWN = """
import os, time
from pathlib import Path
from watchglass import Rule, Severity

class Marks(Rule):
    folder: str = ""

    def check(self, view):
        if view.worker == "worker_1" and view.mode_step == 40:
            raise RuntimeError("no luck at 40")
        if self.folder and view.mode_step == 20 and view.worker == "worker_2":
            Path(self.folder, f"at-{os.getpid()}").touch()
            while not Path(self.folder, "go").exists():
                time.sleep(0.01)
        if view.mode_step % 25 == 0:
            yield self.finding(view, severity=Severity.WARNING, message="a mark", subject=str(view.mode_step))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sick run of four workers, a healthy one, one that is still going on, and something that is no run."""
    folder = tmp_path_factory.mktemp("built")
    build_run(folder / "sick", training(80, broken_at=50), workers=4)
    build_run(folder / "well", training(80), workers=2)
    build_run(folder / "open", training(30), status=None)
    (folder / "large").mkdir()
    simulate(LocalStore(folder / "large"), Simulated(48, 200, workers=4), kinds=2)  # several parts
    (folder / "torn").mkdir()
    (folder / "torn" / "run.json").write_text("{")
    return folder


@pytest.fixture
def runs(built: Path, tmp_path: Path) -> Path:
    """The same runs, of the test's own."""
    (tmp_path / "own.py").write_text(OWN)
    return Path(shutil.copytree(built, tmp_path / "runs"))


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="wg", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, str]]:
    """One for all tests that leave its nodes as they are: it takes several seconds to begin and to end."""
    with two_nodes() as environment:
        yield environment


@pytest.fixture
def cluster() -> Iterator[dict[str, str]]:
    """One whose nodes the test may end."""
    with two_nodes() as environment:
        yield environment


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "watchglass", *map(str, arguments)]


def said(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=env, cwd=cwd, timeout=240)
    return done.returncode, done.stdout, done.stderr


def await_file(folder: Path, pattern: str, process: subprocess.Popen[str]) -> Path:
    """The file, once it is there; the process must not end before."""
    while not (found := list(folder.glob(pattern))):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found[0]


def await_end(pid: int) -> None:
    """With its node a process ends a moment later."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.02)


def processes_of(folder: Path) -> list[str]:
    """Processes of a cluster whose files are below a folder, and that are not defunct."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = " ".join(process.info["cmdline"] or [])
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(words)
    return found


def test_a_cluster_of_its_own_says_the_same_and_is_gone_afterwards(runs: Path, tmp_path: Path, short: Path) -> None:
    rules = ("--rules", f"DeadRelu,ExplodingTensor,LossNotDecreasing,{tmp_path}/own.py:Marks", "--format", "json")
    home = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(short)}
    local = said("check", runs, *rules, env=home)
    assert said("check", runs, *rules, "--engine", "ray", env=home) == local
    assert local[0] == 1
    assert {run["status"] for run in json.loads(local[1])["runs"]} >= {"issues found", "unreadable"}
    assert "no luck at 40" in local[1] + local[2]
    assert list(short.iterdir()) == []
    assert processes_of(short) == []
    assert not (tmp_path / ".ray").exists()


def test_two_nodes_say_the_same_as_one_process(runs: Path, shared: dict[str, str]) -> None:
    """Of a run in several parts, and with paths that are relative to the process that starts the check."""
    relative = ("check", "large", "--rules", "../own.py:Marks,ExplodingTensor,UnchangedTensor", "--format", "json")
    assert said(*relative, "--engine", "ray", env=shared, cwd=runs) == said(*relative, cwd=runs)


def end_node_of(pid: int) -> None:
    node = psutil.Process(pid).parent()
    assert node is not None
    assert node.name() == "raylet"
    processes = node.children(recursive=True)
    for process in (node, *processes):  # as when a machine ends
        process.kill()


def test_what_is_killed_in_the_middle_is_done_again(runs: Path, tmp_path: Path, shared: dict[str, str]) -> None:
    meet = tmp_path / "meet"
    meet.mkdir()
    rules = ("--rules", f"ExplodingTensor,{tmp_path}/own.py:Marks:folder={meet}", "--format", "json")
    process = subprocess.Popen(
        command("check", runs / "large", *rules, "--engine", "ray"), env=shared, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    at = await_file(meet, "at-*", process)
    pid = int(at.name.removeprefix("at-"))
    os.kill(pid, signal.SIGKILL)
    await_end(pid)
    (meet / "go").touch()
    out, err = process.communicate(timeout=240)
    assert len(list(meet.glob("at-*"))) == 2  # another process began again
    assert (process.returncode, out, err) == said("check", runs / "large", *rules)
    assert process.returncode == 1


def in_journal(run: Path) -> tuple[dict[str, object], list[object]]:
    """Findings by id, and statuses."""
    journal = open_run(run).journal
    return {finding.id: finding.to_json() for finding in journal.findings}, list(journal.statuses)


def test_live_runs_are_judged_as_by_one_process(tmp_path: Path, cluster: dict[str, str]) -> None:
    """Also where one of their nodes ends: what its processes had evaluated is evaluated by others."""
    (tmp_path / "own.py").write_text(OWN)
    live, meet = tmp_path / "live", tmp_path / "meet"
    meet.mkdir()
    rules = f"ExplodingTensor,LossNotDecreasing,{tmp_path}/own.py:Marks:folder={meet}"
    arguments = ("follow", live, "--rules", rules, "--until-idle", "1")
    with RunBuilder(live / "one", workers=4) as one, RunBuilder(live / "other", workers=2) as other:
        builders = [(one, training(80, broken_at=50)), (other, training(80))]
        for builder, steps in builders:
            builder.step(steps[0])
        process = subprocess.Popen(
            command(*arguments, "--engine", "ray"), env=cluster, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        for builder, steps in builders:
            for step in steps[1:]:
                builder.step(step)
        at = await_file(meet, "at-*", process)
        pid = int(at.name.removeprefix("at-"))
        end_node_of(pid)
        await_end(pid)
        (meet / "go").touch()
        for builder, _ in builders:
            builder.leave()
    out, err = process.communicate(timeout=240)
    assert len(list(meet.glob("at-*"))) == 2
    for name in ("one", "other"):
        replayed = replay(live / name, rule_specs([rules]))
        assert in_journal(live / name) == (
            {finding.id: finding.to_json() for finding in replayed.findings}, list(replayed.statuses),
        )  # fmt: skip
        shutil.rmtree(live / name / "journal")
    local = said(*arguments, env=cluster)
    assert (process.returncode, sorted(out.splitlines())) == (local[0], sorted(local[1].splitlines()))
    assert sorted(err.splitlines()) == sorted(local[2].splitlines())
    assert process.returncode == 1


def test_a_rule_that_always_ends_its_process_is_named_and_not_tried_for_ever(
    runs: Path, tmp_path: Path, shared: dict[str, str]
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\nfrom watchglass import Rule\n\nclass Ends(Rule):\n    def check(self, view):\n        os._exit(7)\n"
    )
    status, out, err = said("check", runs / "well", "--rules", f"{tmp_path}/deadly.py", "--engine", "ray", env=shared)
    assert (status, out) == (2, "")
    assert err.startswith(f"watchglass: error: the process that evaluated {runs}/well")
    assert "died 5 times; a rule of yours may end it" in err
    assert len(err.splitlines()) == 1


def test_a_driver_whose_own_node_is_gone_ends_with_one_line(runs: Path, tmp_path: Path, short: Path) -> None:
    meet = tmp_path / "meet"
    meet.mkdir()
    (tmp_path / "live").mkdir()
    run = (runs / "sick").rename(tmp_path / "live" / "sick")
    process = subprocess.Popen(
        command("follow", run.parent, "--rules", f"{tmp_path}/own.py:Marks:folder={meet}", "--engine", "ray"),
        env={**os.environ, "TMPDIR": str(short)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    await_file(meet, "at-*", process)
    (raylet,) = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "raylet"]
    raylet.kill()
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("watchglass: error: ")]
    assert "raylet" in line
    assert line.endswith("start the command again, with --engine local or on another node if it happens again")
    assert "Traceback" not in err
    while processes_of(short):
        time.sleep(0.05)
    assert list(short.iterdir()) == []


def assert_no_other_host_is_listened_to(process: subprocess.Popen[str]) -> None:
    """By a process with a cluster of its own."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    listening = [c.laddr.ip for member in family for c in member.net_connections() if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 5
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


@pytest.mark.parametrize(("number", "verb"), [(signal.SIGINT, "follow"), (signal.SIGTERM, "check")])
def test_a_cluster_of_ones_own_listens_to_no_other_host_and_a_signal_ends_all_of_it_in_order(
    runs: Path, tmp_path: Path, short: Path, number: signal.Signals, verb: str
) -> None:
    (tmp_path / "live").mkdir()
    run = (runs / "sick").rename(tmp_path / "live" / "sick")
    environment = {**os.environ, "TMPDIR": str(short)}
    rules = ("--rules", f"{tmp_path}/own.py:Marks:folder={tmp_path}")
    process = subprocess.Popen(
        command(verb, run.parent, *rules, "--engine", "ray"), text=True, start_new_session=True, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    await_file(tmp_path, "at-*", process)
    assert_no_other_host_is_listened_to(process)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    (tmp_path / "go").touch()  # following ends with what is under way
    out, err = process.communicate(timeout=240)
    assert (out == "") == (verb == "check")
    assert "Traceback" not in err
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    while processes_of(short):
        time.sleep(0.05)  # processes that got the request are ending
    assert list(short.iterdir()) == []


def test_a_cluster_that_does_not_answer_is_said_in_one_line(runs: Path) -> None:
    status, out, err = said("check", runs / "well", "--engine", "ray", "--ray-address", "127.0.0.1:9")
    assert (status, out) == (2, "")
    assert err.startswith("watchglass: error: the Ray cluster at 127.0.0.1:9 cannot be used: ")
    assert "check --ray-address and RAY_ADDRESS" in err
    assert len(err.splitlines()) == 1


def test_without_ray_the_extra_is_named(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    status, out, err = said("check", runs / "well", "--engine", "ray", env=environment)
    assert (status, out) == (2, "")
    assert "--engine ray needs Ray" in err
    assert "pip install 'watchglass[ray]'" in err
