"""Bad input to capture, from any source: one error or warning with the cure, and an unchanged run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from torch_hooks import forward_hooks, pre_hooks
from train_twice import EVERYTHING, Watch, trained_twice
from watchglass import open_run
from watchglass.cli import main
from watchglass.config.saving import REDUCTION_NAMES
from watchglass.errors import InvalidValueError

pytestmark = pytest.mark.usefixtures("preloaded_python")

#: A setting of collection "mine" that cannot be, and what the error says of it.
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a regular expression": (
        {"include_regex": "conv(1"},
        "include_regex 'conv(1' does not compile: missing ), unterminated subpattern at position 4",
    ),
    "a reduction": (
        {"include_regex": "fc", "reductions": "medain"},
        f"reductions must be one of {', '.join(REDUCTION_NAMES)} but got 'medain' (did you mean \"median\"?)",
    ),
    "steps": (
        {"include_regex": "fc", "start_step": 9, "end_step": 3},
        "end_step must be after start_step (9) but got 3; to keep nothing use end_step = 0 alone",
    ),
    "an interval": (
        {"include_regex": "fc", "start_step": 11, "end_step": 19, "save_interval": 10},
        "save_interval has no multiple from start_step (11) to before end_step (19) but got 10; name single steps with "
        "save_steps",
    ),
    "steps of a mode": (
        {"include_regex": "fc", "modes": {"eval": {"start_step": 2, "end_step": 2}}},
        "modes.eval.end_step must be after start_step (2) but got 2; to keep nothing use end_step = 0 alone",
    ),
}  # fmt: skip

SCRIPT = """
import torch
print("trained")
"""


@pytest.fixture
def folder(empty_home: Path) -> Path:
    """A working directory with a script and nothing else, which the search for files does not leave."""
    (empty_home / "train.py").write_text(SCRIPT)
    return empty_home


def toml(settings: dict[str, Any], place: str = "collections.mine") -> str:
    """The settings of a table, inner tables after it."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    inner = [toml(value, f"{place}.{key}") for key, value in settings.items() if isinstance(value, dict)]
    return "\n".join([f"[{place}]", *plain, *inner])


def original(settings: dict[str, Any]) -> str:
    """The same as a hook configuration file of SageMaker Debugger: all values are strings."""
    flat = {key: str(value) for key, value in settings.items() if not isinstance(value, dict)}
    flat |= {
        f"{mode}.{key}": str(value) for mode, own in settings.get("modes", {}).items() for key, value in own.items()
    }
    return json.dumps({"CollectionConfigurations": [{"CollectionName": "mine", "CollectionParameters": flat}]})


def words(settings: dict[str, Any]) -> list[str]:
    """The same for the command line."""
    flat = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    flat |= {
        f"modes.{mode}.{key}": value for mode, own in settings.get("modes", {}).items() for key, value in own.items()
    }  # fmt: skip
    return ["--collection", "mine:" + ",".join(f"{key}={value}" for key, value in flat.items())]


@pytest.mark.parametrize("kind", SETTINGS)
def test_code_and_files_are_refused_before_anything_is_watched(folder: Path, kind: str) -> None:
    settings, error = SETTINGS[kind]
    model = nn.Linear(4, 2)
    with pytest.raises(InvalidValueError) as caught:
        watchglass.watch(model, run="run", collections={"mine": settings})
    assert str(caught.value) == f"SessionConfig: collections.mine.{error}"
    (folder / "watchglass.toml").write_text(toml(settings))
    with pytest.raises(InvalidValueError) as caught:
        watchglass.watch(model, run="run")
    assert str(caught.value) == f"{folder / 'watchglass.toml'}: collections.mine.{error}"
    assert not list(folder.glob("run*"))
    assert not forward_hooks(model)
    assert not pre_hooks(model)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"run": 5}, "run must be a path or an address but got 5"),
        ({"run": ""}, "run must be a path or an address but got ''"),
        ({"runs": 5}, "runs must be a path or an address but got 5"),
        ({"runs": ""}, "runs must be a path or an address but got ''"),
        ({"config_file": 5}, "the configuration file must be a path but got 5"),
        ({"config_file": ""}, "the configuration file must be a path but got ''"),
        ({"calibration": "sagemakr"}, "calibration must be one of default, sagemaker but got 'sagemakr'"),
        ({"rules": 5}, "rules must be texts, rule classes or rules but got 5"),
        ({"rules": ["default", None]}, "rules must be texts, rule classes or rules but got None"),
        ({"rules": ""}, "rules names no rule; to evaluate no rule use watchglass run --evaluator none"),
        ({"stop_on": True}, 'stop_on must be "error", "warning" or "info" but got True'),
        ({"actions": 5}, "actions must be texts, action classes or actions but got 5"),
        ({"actions": [nn.Linear]}, "actions must be texts, action classes or actions but got <class 'torch.nn"),
        ({"collections": 5}, "SessionConfig: collections must be a list or a table but got 5"),
        ({"collections": {"weights": 5}}, "SessionConfig: collections.weights must be a table of settings, true or"),
        ({"collections": [{}]}, "SessionConfig: collections.0.name is missing"),
        ({"modes": {"eval": 5}}, "SessionConfig: modes.eval must be a table of settings but got 5"),
        ({"save_interval": b"3"}, "SessionConfig: save_interval must be a whole number or none but got b'3'"),
        ({"flush_interval_s": True}, "SessionConfig: flush_interval_s must be a number or none but got True"),
        ({"save_all": None}, "SessionConfig: save_all must be true or false but got None; the default is False"),
        ({"attempt": 1}, "SessionConfig: attempt is unknown; known are collections"),
        ({"save_intervall": 3}, 'SessionConfig: save_intervall is unknown (did you mean "save_interval"?)'),
    ],
)
def test_what_watch_cannot_take_is_one_line(folder: Path, given: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        watchglass.watch(nn.Linear(4, 2), **given)
    assert str(caught.value).startswith(error)
    assert "\n" not in str(caught.value)
    assert not list(folder.glob("run*"))


@pytest.mark.parametrize("source", ["found", "named", "original", "option"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_the_launcher_refuses_before_it_starts_the_script(
    folder: Path, capfd: pytest.CaptureFixture[str], kind: str, source: str
) -> None:
    settings, error = SETTINGS[kind]
    options: list[str] = []
    if source == "option":
        options = words(settings)
    elif source == "original":
        (folder / "hook.json").write_text(original(settings))
        options = ["--config", "hook.json"]
    else:
        name = "watchglass.toml" if source == "found" else "mine.toml"
        (folder / name).write_text(toml(settings))
        options = [] if source == "found" else ["--config", name]
    before = sorted(folder.iterdir())
    status = main(["run", "--run", "run", *options, "train.py"])
    out, err = capfd.readouterr()
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    if source == "original":
        # It has names of its own for modes.
        error = f"hook.json: CollectionConfigurations[0].CollectionParameters.{error.removeprefix('modes.')}"
    else:
        where = {"found": f"{folder}/watchglass.toml: collections.", "named": "mine.toml: collections.", "option": ""}
        error = f"{where[source]}mine.{error}"
    assert line.removeprefix("watchglass: error: ").removeprefix("--collection ") == error
    assert sorted(folder.iterdir()) == before


def test_a_script_s_own_mistake_under_the_launcher_is_the_script_s_error(folder: Path) -> None:
    mine = {"mine": {"include_regex": "("}}
    (folder / "train.py").write_text(
        f"import torch, watchglass\nwatchglass.watch(torch.nn.Linear(2, 2), collections={mine})"
    )
    done = launched(folder)
    assert done.returncode == 1
    assert "collections.mine.include_regex '(' does not compile" in done.stderr


def launched(folder: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "watchglass", "run", "--run", "run", "--evaluator=none", *options, "train.py"]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


# -- a collection that matches nothing ---------------------------------------------------------------------------------

TRAINING = """
{before}
import torch
torch.manual_seed(0)
model = torch.nn.Sequential()
model.add_module("conv1", torch.nn.Linear(4, 8))
model.add_module("act", torch.nn.ReLU())
model.add_module("fc", torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, 1])).backward()
    optimizer.step()
print(torch.cat([parameter.flatten() for parameter in model.parameters()]).double().sum().item())
"""

NEAR = ["conv1.weight", "fc.weight", "update/conv1.weight"]
UNMATCHED = [
    f"watchglass: collection typo holds nothing at step 0: did you mean {' or '.join(NEAR)}?",
    "watchglass: collection place holds nothing at step 0: did you mean conv1?",
    "watchglass: collection kind holds nothing at step 0: did you mean ReLU?",
    "watchglass: collection tanh_input holds nothing at step 0: the model has nothing of the kind, or it is hidden in "
    "compiled code or another library",
    "watchglass: collection later holds nothing at step 7: change what it selects, or leave it out",
]

OPTIONS = [
    "--collection", "typo:include_regex=^cnv1.weight", "--collection", "place:modules=conv2.0,save_interval=3",
    "--collection", "kind:module_types=Relu", "--collection", "tanh_input", "--collection",
    "later:tensors=zzz,save_steps=7,end_step=0", "--collection", "never:tensors=zzz,end_step=0",
]  # fmt: skip


@pytest.mark.parametrize("before", ["", "import logging; logging.basicConfig(level=logging.WARNING)"])
def test_a_collection_that_matches_nothing_is_reported_where_the_training_runs(folder: Path, before: str) -> None:
    (folder / "train.py").write_text(TRAINING.format(before=before))
    bare = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )  # fmt: skip
    done = launched(folder, *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    warned = [line[line.index("watchglass: ") :] for line in done.stderr.splitlines() if "holds nothing" in line]
    assert sorted(warned) == sorted(UNMATCHED)
    run = open_run(folder / "run")
    near = {fact.data["collection"]: fact.data["near"] for fact in run.facts("collection_unmatched")}
    assert near == {
        "typo": NEAR, "place": ["conv1"], "kind": ["ReLU"], "tanh_input": [], "later": []
    }  # fmt: skip


# -- tensors that cannot be read ---------------------------------------------------------------------------------------


class Iteration(list):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("cannot be gone through")


class Items(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise KeyError("nothing here")


@dataclasses.dataclass
class Fields:
    value: Any

    def __getattribute__(self, name: str) -> Any:
        if name == "value":
            raise ValueError("not computed yet")
        return super().__getattribute__(name)


class Forbidding(Tensor):
    """A subclass that implements no more than its own library needs."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__ in ("detach", "is_floating_point", "dim"):
            raise TypeError(f"no implementation of {function.__name__}")
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[misc]


#: What a module returns of its tensor, and what is warned of.
RETURNED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "list": (
        lambda value: Iteration([value]),
        "class Iteration are not recorded: RuntimeError: cannot be gone through",
    ),
    "mapping": (lambda value: Items(value=value), "class Items are not recorded: KeyError: 'nothing here'"),
    "dataclass": (Fields, "class Fields are not recorded: ValueError: not computed yet"),
    "tensor": (lambda value: value.as_subclass(Forbidding), "class Forbidding are not recorded: TypeError: no impl"),
    "meta": (lambda value: value.to("meta"), "inner.output is not recorded, nor is anything else on the meta device"),
    "generator": (lambda value: (each for each in [value]), ""),
    "iterator": (lambda value: iter([value]), ""),
    "set": (lambda value: {value}, ""),
    "nothing": (lambda value: None, ""),
}


class Inner(nn.Module):
    def __init__(self, returned: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.returned = returned
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        self.last = self.fc(x)
        return self.returned(self.last)


class Outer(nn.Module):
    def __init__(self, returned: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner = Inner(returned)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        returned = self.inner(x)
        if isinstance(returned, Iterator):
            assert next(returned) is self.inner.last, "somebody has looked into it already"
        assert self.inner.last is not None
        return self.head(self.inner.last)  # type: ignore[no-any-return]


def steps_of(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 24) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        model(torch.randn(5, 4))
    return losses


@pytest.mark.parametrize("kind", RETURNED)
def test_an_output_that_cannot_be_read_is_left_out_and_nothing_else_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    returned, warning = RETURNED[kind]

    def training(watch: Watch) -> Any:
        model = Outer(returned)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        return steps_of(model, optimizer), model.head, model.inner.fc, optimizer

    run = trained_twice(tmp_path, training)
    warned = [message for message in caplog.messages if "not recorded" in message]
    assert len(set(warned)) == bool(warning)
    assert len(warned) <= 1 or kind == "meta", "of a class once for a process, of the device once for a watching"
    assert all(warning in message for message in warned)
    assert all("return them in a tuple" in message or "give them some" in message for message in warned)
    names = run.tensor_names(role="output")
    assert "inner.output" not in names
    assert {"inner.fc.output", "head.output"} <= set(names)
    assert run.tensor("gradient/inner.fc.weight").steps() == list(range(24))


# -- the meta device ---------------------------------------------------------------------------------------------------


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.later = nn.Linear(4, 4, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)  # type: ignore[no-any-return]


def test_parameters_on_the_meta_device_are_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def training(watch: Watch) -> Any:
        model = Unused()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        watch(model)
        return steps_of(model, optimizer), model.fc, optimizer.state_dict()["state"]

    run = trained_twice(tmp_path, training)
    (warned,) = {message for message in caplog.messages if "meta" in message}
    assert "give them some before training: to_empty(device=...)" in warned
    assert not [name for name in run.tensor_names() if "later" in name]
    assert run.tensor("fc.weight").steps() == list(range(24))


@pytest.mark.parametrize("interval", [1, 100])
def test_a_training_run_on_the_meta_device_has_steps_and_nothing_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, interval: int
) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with watchglass.watch(
            model, run=tmp_path / "run", save_interval=interval, collections=EVERYTHING, strict=True
        ):  # fmt: skip
            for _ in range(24):
                optimizer.zero_grad()
                F.cross_entropy(model(torch.randn(5, 4)), torch.zeros(5, dtype=torch.long)).backward()
                optimizer.step()
            with torch.no_grad():
                F.cross_entropy(model(torch.randn(5, 4)), torch.zeros(5, dtype=torch.long))
    run = open_run(tmp_path / "run")
    assert run.steps() == list(range(24))
    assert len([message for message in caplog.messages if "meta device" in message]) == 1
    assert not run.problems
    assert not [name for name in run.tensor_names() if run.tensor(name).info.role.value in ("weight", "loss", "output")]


# -- compiled too early ------------------------------------------------------------------------------------------------


def test_a_model_compiled_before_it_is_watched_is_reported_with_the_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        steps_of(compiled, optimizer, 2)
        with watchglass.watch(compiled, run=tmp_path / "run", save_interval=1, strict=True):
            steps_of(compiled, optimizer, 4)
    finally:
        torch.compiler.reset()
    (warned,) = [message for message in caplog.messages if "not capturable" in message]
    assert "call watchglass.watch before the first compiled call, or torch.compiler.reset() in between" in warned
    run = open_run(tmp_path / "run")
    assert run.tensor("gradient/0.weight").steps() == [0, 1, 2, 3]
    assert len(run.facts("not_capturable")) == 1
