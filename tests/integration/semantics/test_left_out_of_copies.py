"""Hooks of ours are in no copy of a model, whenever and however it is made: its bytes are those of a bare one."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import watchglass
from torch_hooks import forward_hooks, pre_hooks
from train_twice import EVERYTHING, batch

HOOK_TABLES = (
    "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip


class Net(nn.Module):
    """Makes copies of itself wherever it is asked to, also in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if taking is not None:
            taking(self)
        return self.head(x)  # type: ignore[no-any-return]


class Stateful(Net):
    """Says itself what of it is saved, without asking PyTorch."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "more": 1}


taking: Callable[[nn.Module], None] | None = None


@contextmanager
def taken(take: Callable[[nn.Module], None]) -> Iterator[None]:
    global taking
    taking = take
    try:
        yield
    finally:
        taking = None


def saved(value: Any) -> bytes:
    """The pickle in what ``torch.save`` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with zipfile.ZipFile(buffer) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


class Tensorless(pickle.Pickler):
    """Leaves tensors out: pickles of them hold addresses."""

    def persistent_id(self, value: Any) -> str | None:
        return "tensor" if isinstance(value, Tensor) else None


def pickled(value: Any, protocol: int | None = None) -> bytes:
    buffer = io.BytesIO()
    Tensorless(buffer, protocol).dump(value)
    return buffer.getvalue()


def loaded(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    kinds = [Net, Stateful, nn.Linear, AveragedModel, torch.optim.swa_utils.get_ema_multi_avg_fn]
    with torch.serialization.safe_globals(kinds):
        return torch.load(buffer, weights_only=True)


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own


def entries(way: str, model: nn.Module) -> dict[str, int]:
    """Hooks by module and table; what a shallow copy has inside is the watched model's."""
    return {
        f"{name}{table}": len(vars(module)[table])
        for name, module in (model.named_modules() if way != "copy" else [("", model)])
        for table in HOOK_TABLES
        if vars(module).get(table)
    }


def train(model: nn.Module, moments: Callable[[str], None], steps: int = 20) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    moments("before")
    for step in range(steps):
        inputs, labels = batch(step)
        if step in (0, 11, 16):
            with taken(lambda module, step=step: moments(f"in the forward of step {step}")):  # type: ignore[misc]
                loss = F.cross_entropy(model(inputs), labels)
        else:
            loss = F.cross_entropy(model(inputs), labels)
        if step in (1, 12):
            moments(f"after the forward of step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step in (0, 14, 16):
            moments(f"after step {step}")


def make(kind: type[Net]) -> Net:
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("kind", [Net, Stateful])
@pytest.mark.parametrize("interval", [1, 16])
def test_bytes_are_those_of_an_unwatched_model(tmp_path: Path, kind: type[Net], interval: int) -> None:
    ways: dict[str, Callable[[Any], bytes]] = {
        "torch.save": saved, "pickle": pickled, "oldest": lambda value: pickled(value, 0),
        "in a checkpoint": lambda value: saved({"model": value, "step": 3}),
        "averaged": lambda value: saved(AveragedModel(value)),
        "copied": lambda value: saved(copy.deepcopy(value)), "state": lambda value: saved(value.state_dict()),
    }  # fmt: skip
    outcomes = []
    for watched in (False, True):
        model, found = make(kind), {}
        hook = None
        if watched:
            hook = watchglass.watch(
                model, run=tmp_path / "run", strict=True, save_interval=interval, collections=EVERYTHING
            )

        def take(moment: str, model: nn.Module = model, found: dict[str, bytes] = found) -> None:
            found.update({f"{way} {moment}": ways[way](model) for way in ways})

        train(model, take)
        if hook is not None:
            hook.close()
        outcomes.append(found)
    bare, seen = outcomes
    assert bare.keys() == seen.keys()
    assert [name for name in bare if bare[name] != seen[name]] == []


@pytest.mark.parametrize("kind", [Net, Stateful])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_copy_has_an_entry_of_ours_and_all_load_as_weights(tmp_path: Path, kind: type[Net], compiled: bool) -> None:
    model = make(kind)
    ways: dict[str, Callable[[Any], Any]] = {
        "deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": through_pickle,
        "averaged": AveragedModel, "weights only": loaded,
    }  # fmt: skip
    if kind is Stateful:
        del ways["copy"]  # hands over the tables themselves
    found: dict[str, dict[str, int]] = {}

    def take(moment: str) -> None:
        if compiled and "forward of" in moment:
            return
        found.update({f"{way} {moment}": entries(way, ways[way](model)) for way in ways})

    with watchglass.watch(model, run=tmp_path / "run", strict=True, save_interval=4, collections=EVERYTHING):
        train(torch.compile(model, backend="eager") if compiled else model, take, 17)  # type: ignore[arg-type]
    assert found
    assert {name: tables for name, tables in found.items() if tables} == {}


def test_hooks_of_the_script_are_in_its_copies(tmp_path: Path) -> None:
    model = make(Net)
    model.register_forward_hook(seen)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        model.first.register_forward_pre_hook(given, with_kwargs=True)
        train(model, lambda moment: None, 3)
        for copied in (copy.deepcopy(model), copy.copy(model), through_pickle(model)):
            assert forward_hooks(copied) == [seen]
            assert pre_hooks(copied.first) == [given]
            copied.first(torch.zeros(1, 12))  # the hook gets its keyword arguments, or this fails
    assert forward_hooks(model) == [seen]


def seen(module: nn.Module, inputs: Any, output: Any) -> None:
    """A hook of the script's."""


def given(module: nn.Module, inputs: Any, kwargs: Any) -> None:
    """Another."""


def test_ordered_dicts_are_pickled_as_ever_after_the_last_watch(tmp_path: Path) -> None:
    import copyreg
    from collections import OrderedDict

    state = nn.Module.__getstate__
    gc.collect()
    before = dict(copyreg.dispatch_table)
    model = make(Net)
    with watchglass.watch(model, run=tmp_path / "run", strict=True):
        assert through_pickle(OrderedDict(a=1)) == OrderedDict(a=1)
    assert nn.Module.__getstate__ is state
    assert copyreg.dispatch_table == before
