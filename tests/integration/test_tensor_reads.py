"""Fact ``tensor_reads``: which line of a script reads tensors, in steps that are observed whole and rarely."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from watchglass import open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.public_calls import READS, is_wrapped

HERE = Path(__file__).name
ORIGINAL = {name: getattr(torch.Tensor, name) for name in READS if hasattr(torch.Tensor, name)}


def trained(
    path: Path, after: Callable[[int, Tensor, nn.Module], object], steps: int = 12, optimizer: Any = torch.optim.SGD,
    **settings: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """The facts of a run; ``after`` is called after each step, with its number, its loss and the model."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    updater = optimizer(model.parameters(), lr=0.1)
    with Hook(path, profiler=True, strict=True, **{"save_interval": 1, "facts": ("tensor_reads",), **settings}) as hook:
        PyTorchAdapter(hook.port, discover=True)
        for number in range(steps):
            updater.zero_grad()
            loss = F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long))
            loss.backward()
            updater.step()
            after(number, loss, model)
    return [fact.data for fact in open_run(path).facts("tensor_reads")]


def line_of(function: Callable[..., Any]) -> str:
    return f"{HERE}:{function.__code__.co_firstlineno + 1}"


def test_each_way_to_read_is_found_with_its_line_and_phase(tmp_path: Path) -> None:
    def read(number: int, loss: Tensor, model: nn.Module) -> None:
        loss.item(), float(value := loss.detach()), int(value), bool(value), value.tolist(), value.item()

    for look in (looks := trained(tmp_path / "run", read)):
        reads = {each["call"]: each for each in look["reads"]}
        assert {name: each["count"] for name, each in reads.items()} == {
            "item": 2, "__float__": 1, "__int__": 1, "__bool__": 1, "tolist": 1,
        }  # fmt: skip
        assert {(each["at"], each["device"], each["phase"]) for each in reads.values()} == {
            (line_of(read), "cpu", "other")
        }
        assert look["complete"]
        assert 0 < sum(each["seconds"] for each in reads.values()) < look["seconds"]
    assert len(looks) == 6


def test_reads_of_pytorch_and_of_watchglass_are_left_out(tmp_path: Path) -> None:
    """Adam reads its number of steps, and copies that stay on the host read nothing."""

    def copy(number: int, loss: Tensor, model: nn.Module) -> None:
        loss.cpu(), loss.to(torch.float64)

    looks = trained(tmp_path / "run", copy, optimizer=torch.optim.Adam)
    assert [look["reads"] for look in looks] == [[]] * 6


def test_a_line_that_reads_all_the_time_ends_the_look(tmp_path: Path) -> None:
    def read(number: int, loss: Tensor, model: nn.Module) -> None:
        [loss.item() for _ in range(2000)]

    for look in trained(tmp_path / "run", read):
        assert (look["complete"], [each["count"] for each in look["reads"]]) == (False, [1024])


def test_methods_are_wrapped_in_observed_steps_only(tmp_path: Path) -> None:
    wrapped = []

    def note(number: int, loss: Tensor, model: nn.Module) -> None:
        wrapped.append(is_wrapped(torch.Tensor.item))

    looks = trained(tmp_path / "run", note, steps=40)
    assert [number for number, each in enumerate(wrapped) if each] == [1, 2, 3, 7, 8, 9, 31, 32, 33]
    assert len(looks) == 9
    assert {name: getattr(torch.Tensor, name) for name in ORIGINAL} == ORIGINAL
    assert "__bool__" not in vars(torch.Tensor), "what is inherited is inherited again"


def test_a_step_with_an_evaluation_before_it_is_left_out(tmp_path: Path) -> None:
    def evaluate(number: int, loss: Tensor, model: nn.Module) -> None:
        if number == 8:
            with torch.no_grad():
                F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)).item()

    looks = trained(tmp_path / "run", evaluate)
    assert len(looks) == 4, "of steps 2 to 4, and 8"
    assert all(look["reads"] == [] for look in looks)


def test_nothing_is_observed_where_no_rule_needs_it(tmp_path: Path) -> None:
    wrapped = []
    for name, settings in (("facts", {"facts": None}), ("profiler", {"facts": ("batch",)})):
        trained(tmp_path / name, lambda *_: wrapped.append(is_wrapped(torch.Tensor.item)), **settings)
    assert not any(wrapped)


class Noted(Tensor):
    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class NotedInMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Noted.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [False, True])
def test_subclasses_and_modes_of_the_script_see_the_function_that_they_know(tmp_path: Path, mode: bool) -> None:
    def read(number: int, loss: Tensor, model: nn.Module) -> None:
        with NotedInMode() if mode else nullcontext():
            (loss.detach() if mode else loss.detach().as_subclass(Noted)).item()

    Noted.seen.clear()
    assert trained(tmp_path / "run", read) == [], "such a step is not judged"
    read_by = {func for func in Noted.seen if func.__name__ == "item"}
    assert read_by == {ORIGINAL["item"]}


def test_reads_of_a_raising_call_are_counted_and_raise(tmp_path: Path) -> None:
    raised = []

    def read(number: int, loss: Tensor, model: nn.Module) -> None:
        try:
            torch.zeros(2).item()
        except RuntimeError as error:
            raised.append(str(error))

    looks = trained(tmp_path / "run", read)
    assert len(raised) == 12
    assert len(set(raised)) == 1
    assert [each["count"] for look in looks for each in look["reads"]] == [1] * 6
