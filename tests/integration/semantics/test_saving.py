"""Watched models that are saved, copied and sent to other processes: nothing of watchglass goes with them."""

from __future__ import annotations

import copy
import io
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import watchglass
from torch_hooks import forward_hooks, pre_hooks
from train_twice import ALL, Watch, bits, l2, train, trained_twice
from watchglass import Mode, Role, open_run


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def through_torch(value: Any) -> Any:
    return torch.load(io.BytesIO(saved(value)), weights_only=False)


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy, "copy": copy.copy, "torch.save": through_torch, "pickle": through_pickle,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_watched_model_is_a_model_of_its_own(tmp_path: Path, way: str) -> None:
    def training(watch: Watch) -> Any:
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        seen, copies = [], []
        for number in ALL:
            seen.append(train(model, optimizer, number))
            if number in (3, 20):  # before the fast path, and on it
                one = WAYS[way](model)
                if way != "copy":  # a shallow copy shares hooks and weights, and is the watched model for all we know
                    other = torch.optim.SGD(one.parameters(), 0.1)
                    seen += [train(one, other, 500 + part) for part in range(3)]
                copies.append(one)
        return seen, model, copies

    run = trained_twice(tmp_path, training, discovered=False)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/0.weight")) == ALL
    assert not [name for name in run.tensor_names() if "model_2" in name]


@pytest.mark.parametrize("way", WAYS)
def test_optimizers_schedulers_and_whole_checkpoints_are_saved_as_ever(tmp_path: Path, way: str) -> None:
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    states = []
    for one, watched in ((model, True), (twin, False)):
        optimizer = torch.optim.Adam(one.parameters(), 0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        torch.manual_seed(0)
        hook = watchglass.watch(one, run=tmp_path / "run", save_interval=1, strict=True) if watched else None
        for number in range(8):
            train(one, optimizer, number)
            scheduler.step()
        checkpoint = {
            "model": one.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": scheduler.state_dict(),
        }
        states.append(bits(WAYS[way](checkpoint)))
        if way != "copy":
            assert bits(WAYS[way](optimizer)) == bits(optimizer)
        if hook is not None:
            hook.close()
    assert states[0] == states[1]


LOADING = """
    import sys
    sys.modules["watchglass"] = None
    import pickle, torch
    load = {"pt": lambda file: torch.load(file, weights_only=False), "pkl": pickle.load}
    for path in sys.argv[1:]:
        with open(path, "rb") as file:
            model = load[path.rsplit(".")[-1]](file)
        model.train()
        loss = model(torch.ones(2, 12)).sum()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        print(sorted(name for name in sys.modules if name.startswith("watchglass")))
"""


def test_what_was_saved_at_any_moment_loads_where_watchglass_is_not_installed(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    paths = []

    def save(moment: str) -> None:
        for ending, data in (("pt", saved(model)), ("pkl", pickle.dumps(model))):
            paths.append(tmp_path / f"{moment}.{ending}")
            paths[-1].write_bytes(data)

    with watchglass.watch(model, run=tmp_path / "run", save_interval=16, strict=True):
        save("before")
        for number in range(20):
            inputs = torch.randn(16, 12)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
            if number in (0, 10):
                save(f"before the backward of step {number}")
            loss.backward()
            if number in (16, 19):
                save(f"after the backward of step {number}")
            optimizer.step()
        save("on the fast path")
    save("after")
    code = textwrap.dedent(LOADING)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['watchglass']"] * len(paths)


def test_a_state_dict_and_an_exported_model_hold_nothing_of_us(tmp_path: Path) -> None:
    model = network().eval()
    inputs = torch.ones(2, 12)
    before = (list(model.state_dict()), model(inputs))
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        train(model, optimizer, 0)
        exported = torch.export.export(model, (inputs,))
        assert list(model.state_dict()) == before[0]
        torch.testing.assert_close(exported.module()(inputs), before[1], rtol=0, atol=0)
        buffer = io.BytesIO()
        torch.export.save(exported, buffer)
        assert b"watchglass" not in buffer.getvalue()
    assert b"watchglass" not in saved(model)


# -- TorchScript, which PyTorch deprecates and still has ---------------------------------------------------------------


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.scaled_dot_product_attention(x[None], x[None], x[None])[0])  # type: ignore[no-any-return]

    @torch.jit.export
    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) / 2  # type: ignore[no-any-return]


class Attending(Plain):
    """Calls functions that watching wraps, which tracing warns of; has hooks of its own, which are compiled too."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2)
        self.register_forward_pre_hook(half)
        self.register_forward_hook(double)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.attend(x, x, x)[0]
        x = x + F.scaled_dot_product_attention(x[None], x[None], x[None])[0]
        return self.head(x) + 0 * F.mse_loss(x, x)  # type: ignore[no-any-return]


def half(self: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (inputs[0] / 2,)


def double(self: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    return output * 2


def code(made: Any) -> str:
    return re.sub(r"___torch_mangle_\d+\.", "", made.code)


def trace_function(model: nn.Module) -> Any:
    model.requires_grad_(False)
    try:
        return torch.jit.trace(lambda x: model(x) + 1, (torch.ones(3, 12),))
    finally:
        model.requires_grad_(True)


SCRIPTINGS: dict[str, Callable[[nn.Module], Any]] = {
    "script": lambda model: torch.jit.script(model),
    "trace": lambda model: torch.jit.trace(model, (torch.ones(3, 12),)),
    "trace_module": lambda model: torch.jit.trace_module(model, {"forward": (torch.ones(3, 12),)}),
    "trace of its forward": lambda model: torch.jit.trace(model.forward, (torch.ones(3, 12),)),
    "trace of a function": trace_function,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", SCRIPTINGS)
def test_a_watched_model_is_scripted_and_traced_as_one_that_is_not_watched(tmp_path: Path, way: str) -> None:
    def training(watch: Watch) -> Any:
        model = Attending() if way == "script" else Plain()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        inputs, scripts, losses = torch.randn(3, 12), [], []

        kind = type(model)

        def script() -> None:
            # PyTorch compiles a class once.
            model.__class__ = type(kind.__name__, (kind,), {})
            made = SCRIPTINGS[way](model)
            if isinstance(made, nn.Module):
                parts = [(code(each), len(forward_hooks(each)), len(pre_hooks(each))) for each in made.modules()]
                scripts.append((parts, made.forward(inputs), made.halved(inputs[:, :8])))
            else:
                scripts.append((code(made), made(inputs)))

        script()
        watch(model)
        script()
        for number in ALL:
            losses.append(train(model, optimizer, number))
            if number in (0, 7, 20):  # as it begins, and on the fast path
                script()
        with torch.no_grad():
            losses.append(model(inputs))
        return scripts, losses, model, [hook.__name__ for hook in forward_hooks(model) if hook is double]

    run = trained_twice(tmp_path, training)
    assert run.steps(Mode.TRAIN) == ALL
    assert list(l2(run, "stem.output")) == ALL
    assert len(run.steps(Mode.EVAL)) == 1


def loaded(model: nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(model), buffer)
    return torch.jit.load(io.BytesIO(buffer.getvalue()))


TORCHSCRIPT: dict[str, Callable[[nn.Module], Any]] = {
    "script": lambda model: torch.jit.script(model),
    "trace": lambda model: torch.jit.trace(model, (torch.ones(3, 12),)),
    "load": loaded,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("way", TORCHSCRIPT)
def test_torchscript_is_trained_as_ever_and_recorded_by_its_losses_and_updates(tmp_path: Path, way: str) -> None:
    def training(watch: Watch) -> Any:
        model = TORCHSCRIPT[way](nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        losses = [train(model, optimizer, number) for number in ALL]
        hooks = [len(forward_hooks(each)) + len(pre_hooks(each)) for each in model.modules()]
        return losses, hooks, list(model.state_dict().values())

    run = trained_twice(tmp_path, training)
    assert run.steps(Mode.TRAIN) == list(l2(run, "update/2.weight")) == list(l2(run, "gradient/2.weight")) == ALL
    assert not run.steps(Mode.EVAL)
    assert not run.tensor_names(role=Role.OUTPUT)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_hooks_come_back_where_scripting_fails(tmp_path: Path) -> None:
    class Unscriptable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) + len(open.__name__) * globals().get("nothing", 0)  # type: ignore[no-any-return]

    model = Unscriptable()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, strict=True):
        for number in range(4):
            train(model, optimizer, number)
            loss = F.cross_entropy
            with pytest.raises((RuntimeError, NotImplementedError)):
                torch.jit.script(model)
            assert F.cross_entropy is loss
    assert open_run(tmp_path / "run").tensor("head.output").steps() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_functions_and_classes_are_scripted_with_the_names_around_them(tmp_path: Path) -> None:
    Number = int  # noqa: N806
    names = ("script", "trace", "trace_module")
    before = [getattr(torch.jit, name) for name in names]
    with watchglass.watch(network(), run=tmp_path / "run"):

        class Counter:
            def __init__(self, start: Number) -> None:
                self.count = start

        def twice(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        torch.jit.script(Counter)
        torch.jit.script(obj=Counter)
        assert torch.jit.script(twice)(torch.ones(1)).item() == 2
        assert not [name for name, function in zip(names, before, strict=True) if getattr(torch.jit, name) is function]
    assert [getattr(torch.jit, name) for name in names] == before
