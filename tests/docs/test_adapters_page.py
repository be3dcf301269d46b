"""docs/adapters.md: the adapter on the page passes the suite on the page, and the table names what exists."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from watchglass import Hook, open_run
from watchglass.capture import FRAMEWORKS, Arrays, Loop, Modules, frameworks
from watchglass.record import StepClock
from watchglass.testing import AdapterSuite, PhaseSuite

CHECKS = [name for name in vars(AdapterSuite) if name.startswith("test_")]
CHECKS_OF_PHASES = [name for name in vars(PhaseSuite) if name.startswith("test_")]


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docs" / "adapters.md").read_text()


@pytest.fixture
def page(text: str, in_tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the page has defined, once it was run from top to bottom; files that it names are files."""
    blocks = re.findall(r"```python\n(?:# (\w+\.py)\n)?(.*?)```", text, re.DOTALL)
    (in_tmp_path / "page.py").write_text("\n".join(code for name, code in blocks if not name))
    for name, code in blocks:
        if name:
            (in_tmp_path / name).write_text(code)
    sys.path.insert(0, str(in_tmp_path))
    before = dict(FRAMEWORKS)
    yield runpy.run_path("page.py")
    sys.path.remove(str(in_tmp_path))
    FRAMEWORKS.clear()
    FRAMEWORKS.update(before)
    frameworks.member.cache_clear()
    for name in re.findall(r"```python\n# (\w+)\.py\n", text):
        del sys.modules[name]


def test_the_training_of_the_page_is_recorded(page: dict[str, Any]) -> None:
    run = open_run("runs/trainer")
    assert run.steps() == list(range(30))
    assert run.tensor("gradient/weights").steps() == [0, 10, 20]
    assert run.tensor("mine").reductions("max")[1].tolist() == [2.0] * 30


def test_the_facts_of_the_page_are_recorded(page: dict[str, Any]) -> None:
    run = open_run("runs/trainer")
    for kind in ("initialization", "batch", "input_sketch", "output_sketch", "target_sketch", "update_sample"):
        assert [fact.global_step for fact in run.facts(kind)] == ([0] if kind == "initialization" else [0, 10, 20]), (
            kind
        )
    output, target = run.facts("output_sketch")[0].data, run.facts("target_sketch")[0].data
    assert (output["rows"], target["kind"], output["columns"]) == (32, "values", 2)
    assert run.facts("update_sample")[1].data["cosine_gradient"][0] == pytest.approx(-1.0, abs=1e-6)


def test_the_loop_over_pytorch_drives_and_names(page: dict[str, Any]) -> None:
    run = open_run("runs/outer")
    assert run.steps() == list(range(5))
    for name in ("gradient/dense.kernel", "update/dense.bias"):
        assert run.tensor(name).steps() == list(range(5))
    assert not [name for name in run.tensor_names() if "body" in name]


def test_inputs_outputs_and_units_of_layers_are_recorded_by_the_neutral_half(page: dict[str, Any]) -> None:
    run = open_run("runs/layers")
    for name in ("input.0", "hidden.input.0", "act.input.0", "act.output", "head.output", "update/head.weight"):
        assert run.tensor(name).steps() == [0, 2, 4]
    # The network returns what its last layer returned: that is saved once.
    assert "output" not in run.tensor_names()
    [layer] = [each for each in run.worker().tables.catalog if each.name == "act.output"]
    assert (layer.unit_axis, layer.module_kind.value) == (1, "rectifier")
    assert not any(each.before or each.after for each in page["network"].layers.values())


def test_an_adapter_is_less_than_a_hundred_lines(page: dict[str, Any], in_tmp_path: Path) -> None:
    assert len((in_tmp_path / "trainer_adapter.py").read_text().splitlines()) < 100


def test_the_compiled_step_is_recorded_from_outside(page: dict[str, Any]) -> None:
    run = open_run("runs/compiled")
    assert run.steps() == list(range(6))
    assert run.tensor("gradient/weights").steps() == [0, 2, 4]
    phases = run.phases()
    assert (phases["compute"] > 0).all()
    assert not any(phases[name].any() for name in ("forward", "backward", "update"))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("adapter", ["Trainer", "Network", "Compiled"])
def test_the_adapters_of_the_page_pass_every_check(
    page: dict[str, Any], tmp_path: Path, adapter: str, check: str
) -> None:
    run: Callable[[Path], None] = getattr(page[f"Test{adapter}"](), check)
    run(tmp_path / "suite")


@pytest.mark.parametrize("check", CHECKS_OF_PHASES)
@pytest.mark.parametrize("adapter", ["Trainer", "Compiled"])
def test_the_phases_of_the_page_pass_every_check(
    page: dict[str, Any], tmp_path: Path, adapter: str, check: str
) -> None:
    run: Callable[[Path], None] = getattr(page[f"TestTimed{adapter}"](), check)
    run(tmp_path / "suite")


def test_the_contract_names_methods_that_exist(text: str) -> None:
    rows = text.split("| member | meaning |")[1].split("\n\n")[0].splitlines()[2:]
    described = {name for row in rows for name in re.findall(r"`(\w+\.\w+)", row.split("|")[1])}
    own = {f"{each.__name__}.{name}" for each in (Loop, Arrays, Modules) for name in vars(each) if name[0] != "_"}
    assert described == own | {"Loop.name"}
    port = Hook("unused", strict=True).port
    names = set(re.findall(r"`port\.(\w+)", text))
    assert len(names) > 6
    assert [name for name in names if not hasattr(port, name)] == []
    for name in ("forward", "begin_update", "end_update"):
        assert hasattr(StepClock, name)
