"""Tensors that are no plain arrays, and values in unusual places: read truly, or left out with a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import watchglass
from watchglass import open_run
from watchglass.capture.pytorch.saving import reduce

EVERYTHING: dict[str, Any] = {"save_interval": 1, "strict": True, "collections": ("all", "model_output", "logsumexp")}


class Codes(Tensor):
    """Holds its values in a way of its own, as quantised tensors of other libraries do."""

    codes: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor) -> Codes:
        made: Codes = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        made.codes = codes
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(args[0].codes)
        raise NotImplementedError(function)


class Readable(Codes):
    def dequantize(self) -> Tensor:  # type: ignore[override]
        return self.codes * 0.5


def test_quantised_tensors_are_read_as_the_numbers_they_stand_for() -> None:
    assert torch.equal(reduce.plain(Readable(torch.arange(4))), torch.arange(4) * 0.5)  # type: ignore[arg-type]


def test_values_that_only_the_tensor_s_own_class_finds_are_not_read_from_nowhere() -> None:
    with pytest.raises(RuntimeError, match="does not show where its values are"):
        reduce.plain(Codes(torch.arange(4)))
    assert reduce.plain(torch.empty(0, 3)) is not None


def test_modules_inside_vmap_are_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(torch.func.vmap(self.inner)(x))  # type: ignore[no-any-return]

    model = Mapped()
    with watchglass.watch(model, run=tmp_path / "run", **EVERYTHING):
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    run = open_run(tmp_path / "run")
    assert "outer.output" in run.tensor_names()
    assert "inner.output" not in run.tensor_names()
    assert sum("inner.output is not recorded" in message for message in caplog.messages) == 1


def test_nested_tensors_are_read_and_do_not_spoil_the_catalog(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", **EVERYTHING):
        parts = [torch.randn(2, 4), torch.randn(3, 4)]
        model(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().sum().backward()
        optimizer.step()
    run = open_run(tmp_path / "run")
    assert not run.problems
    assert run.tensor("input.0").info.shape == (5, 4)
    assert run.tensor("input.0").reduction(0, "max") == torch.cat(parts).max()


def test_modules_that_overwrite_their_input_have_outputs_of_their_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Sequential(nn.Linear(4, 2)))
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=["outputs", "relu_output"]):
        model(torch.randn(5, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    run = open_run(tmp_path / "run")
    # Containers return what their last child returned: once is enough.
    assert run.tensor_names(role="output") == ["0.output", "1.output", "2.0.output"]
    assert run.tensor("0.output").reduction(0, "min") < 0 == run.tensor("1.output").reduction(0, "min")


def test_the_output_of_the_model_is_there_by_itself_where_it_is_asked_for(tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 3))
    settings: dict[str, Any] = {"run": tmp_path / "run", "save_interval": 1, "collections": ["model_output"]}
    with watchglass.watch(first, **settings):
        watchglass.watch(second)
        (first(torch.randn(5, 4)).sum() + second(torch.randn(5, 4)).sum()).backward()
        for model in (first, second):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert open_run(tmp_path / "run").tensor_names(role="output") == ["output", "model_2.output"]


def test_labels_of_a_loss_that_the_model_computes_itself_are_labels_too(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.head(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watchglass.watch(model, run=tmp_path / "run", **EVERYTHING):
        for _ in range(3):
            loss = model(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))["loss"]
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert run.tensor("label").steps() == run.tensor("logsumexp").steps() == [0, 1, 2]
    assert run.scalars("loss")[1].tolist() == losses


def test_complex_parameters_are_described_without_a_warning(tmp_path: Path) -> None:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
            self.turn = nn.Parameter(torch.tensor(1 + 1j))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.weight * self.turn).abs()

    model = Wave()
    optimizer = torch.optim.Adam(model.parameters())
    with watchglass.watch(model, run=tmp_path / "run", **EVERYTHING):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    assert open_run(tmp_path / "run").tensor("optimizer/exp_avg/weight").steps() == [0]


def test_attention_of_some_sequences_only_is_marked_as_a_sample(tmp_path: Path) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=["attention"]):
        for size in (4, 5):
            model(torch.randn(size, 3, 8)).sum().backward()
            optimizer.step()
    run = open_run(tmp_path / "run")
    assert [run.step(step).statistics().sampled.tolist() for step in (0, 1)] == [[False] * 4, [True] * 4]
