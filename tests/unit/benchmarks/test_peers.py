"""Tools are measured in environments of their own, which are made once."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import peer_training
import peers
from workloads import mlp


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run."""
    seen: list[list[str]] = []

    def run(command: list[str]) -> str:
        seen.append(command)
        if command[1:3] == ["-m", "venv"]:
            Path(command[3]).mkdir(parents=True)
        return ""

    monkeypatch.setattr(peers, "run", run)
    return seen


def test_an_environment_is_made_once_and_again_when_its_requirements_change(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    python = peers.environment("smdebug", tmp_path, said.append)
    assert python.is_relative_to(tmp_path)
    assert [command[:3] for command in commands] == [[sys.executable, "-m", "venv"], [str(python), "-m", "pip"]]
    assert {"smdebug==1.0.34", "numpy==1.26.4", f"torch=={torch.__version__.partition('+')[0]}"} < set(commands[1])
    assert len(said) == 1

    assert peers.environment("smdebug", tmp_path, said.append) == python
    assert len(commands) == 2
    monkeypatch.setitem(peers.ENVIRONMENTS, "smdebug", ("smdebug==2",))
    assert peers.environment("smdebug", tmp_path, said.append) != python


def test_one_that_was_not_finished_is_made_again(tmp_path: Path, commands: list[list[str]]) -> None:
    python = peers.environment("wandb", tmp_path, lambda _: None)
    (python.parent.parent / "made").unlink()
    peers.environment("wandb", tmp_path, lambda _: None)
    assert len(commands) == 4


def test_watchglass_needs_no_environment_but_this_one(tmp_path: Path, commands: list[list[str]]) -> None:
    assert peers.environment("watchglass", tmp_path, lambda _: None) == Path(sys.executable)
    assert not commands


def test_a_failure_shows_what_the_process_said() -> None:
    with pytest.raises(peers.PeerFailedError, match=r"status 3:\n.*no such tool"):
        peers.run([sys.executable, "-c", "import sys; print('no such tool', file=sys.stderr); sys.exit(3)"])


def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "run", lambda command: f"a tool says hello\n\n{json.dumps({'ratio': 2.0})}\n")
    found = peers.measure("wandb", "mlp", 1, python=Path("python"), threads=2, seconds=1.0, half_width=0.1)
    assert found == {"ratio": 2.0}


def test_every_tool_has_a_line_and_an_environment() -> None:
    assert set(peers.LINES) == set(peer_training.TOOLS)
    assert {tool.partition("-")[0] for tool in peers.LINES} == set(peers.ENVIRONMENTS)


def test_a_row_shows_each_ratio_and_what_is_missing() -> None:
    row = peers.show("wandb", {("mlp", 10): {"ratio": 1.5, "ci95": [1.4, 1.6]}})
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["", "1.500 ± 0.100", "", ""]
    assert len(row) == len(peers.TABLE.head.splitlines()[0])


@pytest.mark.parametrize("tool", ["watchglass-statistics", "watchglass-parameters", "watchglass-raw"])
def test_measures_watchglass_itself(tool: str) -> None:
    found = peer_training.measure(tool, "mlp", 2, limit_s=0.0, half_width=1.0)
    assert (found["tool"], found["model"], found["interval"], found["blocks"]) == (tool, "mlp", 2, 1)
    assert found["written_bytes"] > 0
    assert set(found["versions"]) == {"watchglass", "torch", "numpy"}


class Called:
    """Stands for a module and everything in it; remembers what was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Called:
            self.calls.append(name)
            return self

        return call


@pytest.mark.parametrize(
    ("tool", "module", "once", "each"),
    [
        ("tensorboard", "torch.utils.tensorboard", ["SummaryWriter"], ["add_histogram"] * 12),
        ("wandb", "wandb", ["init", "watch"], ["log"]),
    ],
)
def test_peers_are_called_at_their_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, module: str, once: list[str], each: list[str]
) -> None:
    fake = Called()
    monkeypatch.setitem(sys.modules, module, fake)  # type: ignore[arg-type]
    monkeypatch.setattr(peer_training.os, "environ", {})
    attached = peer_training.TOOLS[tool](mlp(), str(tmp_path), 2)
    assert fake.calls == once
    for _ in range(4):
        attached.step()
    assert fake.calls == once + 2 * each
    attached.close()


def test_smdebug_is_asked_for_six_reductions_or_the_tensors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    fake = Called()
    module = types.SimpleNamespace(
        ReductionConfig=lambda **options: asked.append(options), SaveConfig=fake.SaveConfig, Hook=fake.Hook
    )
    monkeypatch.setitem(sys.modules, "smdebug.pytorch", module)  # type: ignore[arg-type]
    monkeypatch.setattr(peer_training.logging, "disable", lambda level: None)
    for tool in ("smdebug-reductions", "smdebug-raw"):
        peer_training.TOOLS[tool](mlp(), str(tmp_path), 1)
    assert [bool(options["save_raw_tensor"]) for options in asked] == [False, True]
    assert len(asked[0]["reductions"]) + len(asked[0]["norms"]) == 6
    assert fake.calls.count("register_module") == 2
