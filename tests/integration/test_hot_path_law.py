"""The hot-path law: a callback does no I/O and waits for no device.

Each way to break it is tried on purpose too, by a callback that does just that: a law that was never seen broken is
none. That a callback never raises into the training run is tested in ``test_faults_of_ours.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from watchglass import open_run

#: What is seen of each way to break the law.
TRACES = {
    "open": "open ",
    "write to an open file": "_io.flush",
    "make a folder": "os.mkdir",
    "list a folder": "os.listdir",
    "open a socket": "socket.__new__",
    "start a process": "subprocess.Popen",
    "start a thread": "_thread.start_",
    "import": "import ('colorsys'",
    "sleep": "time.sleep",
}
WAITS = {
    "item": "item",
    "float": "__float__",
    "bool": "__bool__",
    "tolist": "tolist",
    "cpu": "cpu",
    "to the host": "to",
    "a copy on the host": "copy_",
    "nonzero": "nonzero",
    "equal": "equal",
}


@pytest.fixture(scope="module")
def observed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which each case has one, with its runs and what was found."""
    folder = tmp_path_factory.mktemp("observed")
    command = [sys.executable, str(repository / "tests" / "hot_path.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "capture is off" not in done.stderr
    return folder


def assert_kept_and_seen_broken(folder: Path, traces: dict[str, str]) -> None:
    found: dict[str, list[str]] = json.loads((folder / "found.json").read_text())
    assert (found.pop("unwatched"), found.pop("watched")) == ([], [])
    assert set(found) == set(traces)
    for name, trace in traces.items():
        assert any(what.startswith(trace) for what in found[name]), f"{name} was not seen: {found[name]}"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["any loop", "PyTorch", "PyTorch, steps alike", "XGBoost"])
def test_no_callback_does_io(observed: Path, case: str) -> None:
    assert_kept_and_seen_broken(observed / case, TRACES)
    assert open_run(observed / case / "watched").steps() == list(range(32))


#: One tensor of each kind that is examined where everything is kept.
EVERYTHING = (
    "embed.weight", "embed.bias", "gradient/gate.weight", "update/experts.2.weight", "optimizer/exp_avg/head.bias",
    "head.input.0", "head.output", "input.0", "gradient/input.0", "gate.router_logits", "gate.router_load",
    "relu.output", "attention_entropy", "saved",
)  # fmt: skip


def assert_everything(folder: Path) -> None:
    run = open_run(folder)
    for name in EVERYTHING:
        found = [known for known in run.tensor_names() if known == name or (name in known and "attention" in name)]
        assert found, f"{name} was not captured"
        for known in found:
            assert run.tensor(known).steps() == list(range(0, 32, 8)), f"{known} was not captured to the end"
            assert run.tensor(known).reduction(24, "median") is not None
            assert run.tensor(known).value(24) is not None
    assert run.facts("clip")
    assert run.tensor("loss_scale").steps() == list(range(0, 32, 8))
    assert not run.facts("capture_fault")


@pytest.mark.slow
def test_no_callback_does_io_where_everything_is_kept(observed: Path) -> None:
    folder = observed / "PyTorch, everything"
    assert_kept_and_seen_broken(folder, TRACES)
    assert_everything(folder / "watched")


@pytest.mark.slow
def test_no_callback_waits_for_a_device_where_everything_is_kept(observed: Path) -> None:
    folder = observed / "PyTorch, everything on a device"
    assert_kept_and_seen_broken(folder, WAITS)
    assert_everything(folder / "watched")


@pytest.mark.slow
def test_no_callback_waits_for_a_device(observed: Path) -> None:
    folder = observed / "PyTorch, on a device"
    assert_kept_and_seen_broken(folder, WAITS)
    run = open_run(folder / "watched")
    for name in ("0.weight", "gradient/0.weight", "update/0.weight", "0.output"):
        assert run.tensor(name).steps() == list(range(0, 32, 8)), f"{name} was not captured on the device"
