"""The checkpoints that a script saves, as facts; whatever is saved, and however, is saved as without watchglass."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from facts_of import batch, classifier, facts, watching

Save = Callable[[nn.Module, torch.optim.Optimizer], object]


def trained(run: Path, save: Save, **settings: Any) -> list[dict[str, Any]]:
    """The facts of a run that saves after its fifth update."""
    model = classifier()
    with watching(model, run, **settings):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number in range(8):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if number == 4:
                save(model, optimizer)
    return facts(run, "checkpoint")


@pytest.mark.parametrize("save_interval", [1, 1000])
def test_a_checkpoint_has_its_step_its_file_and_what_is_in_it(
    run_path: Path, tmp_path: Path, save_interval: int
) -> None:
    folder = tmp_path / "deep" / "checkpoint-5"
    folder.mkdir(parents=True)
    (found,) = trained(
        run_path,
        lambda model, optimizer: torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}, folder / "all.pt"
        ),
        save_interval=save_interval,
    )
    seconds = found.pop("seconds")
    assert found == {"step": 4, "file": "checkpoint-5/all.pt", "weights": True, "optimizer": True}
    assert 0 < seconds < 60
    assert set(torch.load(folder / "all.pt")) == {"model", "optimizer", "epoch"}


@pytest.mark.parametrize(
    ("made", "weights", "optimizer"),
    [
        (lambda model, optimizer: model, True, False),
        (lambda model, optimizer: model.state_dict(), True, False),
        (lambda model, optimizer: {f"net.{key}": value for key, value in model.state_dict().items()}, True, False),
        (lambda model, optimizer: model[4].state_dict(), True, False),
        (lambda model, optimizer: optimizer.state_dict(), False, True),
        (lambda model, optimizer: {"optimizer_states": [optimizer.state_dict()]}, False, True),
        (lambda model, optimizer: (model.state_dict(), optimizer.state_dict()), True, True),
    ],
)
def test_what_a_checkpoint_holds_is_known_by_its_keys(
    run_path: Path, made: Callable[..., Any], weights: bool, optimizer: bool
) -> None:
    (found,) = trained(run_path, lambda *trained: torch.save(made(*trained), io.BytesIO()))
    assert (found["weights"], found["optimizer"], found["file"]) == (weights, optimizer, "")


@pytest.mark.parametrize(
    "other", [torch.ones(3), {"images": torch.ones(3)}, {"epoch": 3}, [], None, {1: torch.ones(2)}, {"a": {"b": 2}}]
)
def test_what_holds_neither_weights_nor_an_optimizer_is_no_checkpoint(run_path: Path, other: Any) -> None:
    assert not trained(run_path, lambda *_: torch.save(other, io.BytesIO()))


def test_a_save_that_fails_raises_what_it_raises_and_is_no_checkpoint(run_path: Path, tmp_path: Path) -> None:
    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with pytest.raises((RuntimeError, OSError)):
            torch.save(model.state_dict(), tmp_path / "missing" / "model.pt")
        with pytest.raises((pickle.PicklingError, AttributeError)):
            torch.save({"model": model.state_dict(), "hook": lambda: None}, io.BytesIO())
        with pytest.raises(TypeError):
            torch.save()

    assert not trained(run_path, save)


def test_saves_of_other_threads_work_and_are_not_recorded(run_path: Path, tmp_path: Path) -> None:
    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        thread = threading.Thread(target=torch.save, args=(model.state_dict(), tmp_path / "model.pt"))
        thread.start()
        thread.join()

    assert not trained(run_path, save)
    assert torch.load(tmp_path / "model.pt")


def test_a_checkpoint_before_the_first_update_and_after_the_last_one(run_path: Path, tmp_path: Path) -> None:
    model = classifier()
    with watching(model, run_path):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.save(model.state_dict(), tmp_path / "first.pt")
        for number in range(3):
            inputs, labels = batch(number)
            loss = F.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            if number == 2:
                torch.save(model.state_dict(), tmp_path / "before the update.pt")
            optimizer.step()
        torch.save(obj=model.state_dict(), f=str(tmp_path / "last.pt"))
    found = [(each["step"], Path(each["file"]).name) for each in facts(run_path, "checkpoint")]
    assert found == [(1, "before the update.pt"), (2, "last.pt")]


def test_objects_of_the_script_are_not_touched(run_path: Path) -> None:
    class Table(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError

        values = keys = items

    class Buffer(io.BytesIO):
        @property
        def name(self) -> str:
            raise AssertionError

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.save([model.state_dict()], Buffer())
        with pytest.raises(Exception):  # noqa: B017, PT011 - whichever torch.save raises of it
            torch.save(Table(model.state_dict()), object())

    assert [each["file"] for each in trained(run_path, save)] == [""]


def test_files_of_safetensors_are_checkpoints(run_path: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    save_file = safetensors.save_file

    def save(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        save_file(model.state_dict(), tmp_path / "model.safetensors")
        safetensors.save_model(model, str(tmp_path / "again.safetensors"))
        save_file({"image": torch.ones(2)}, tmp_path / "image.safetensors")

    found = [(each["step"], Path(each["file"]).name, each["weights"]) for each in trained(run_path, save)]
    assert found == [(4, "model.safetensors", True), (4, "again.safetensors", True)]
    assert safetensors.load_file(tmp_path / "model.safetensors").keys() == classifier().state_dict().keys()
