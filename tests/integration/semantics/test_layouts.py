"""Tensors of every layout: nested, strided, expanded, subclassed, and such that have no values at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_twice import ALL, Watch, batch, l2, numbers, numbers_of, trained_twice


def test_what_has_no_values_is_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Parts(nn.Module):
        """Returns, beside its scores, tensors whose numbers cannot be read."""

        def __init__(self) -> None:
            super().__init__()
            self.phantom = nn.Parameter(torch.empty(3, 3, device="meta"))
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            ragged = torch.nested.nested_tensor([x[0, :3], x[1, :5]], layout=torch.jagged)
            return {"scores": self.head(x), "meta": torch.empty(2, device="meta"), "nested": ragged}

    def training(watch: Watch) -> Any:
        model = Parts()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs)["scores"], labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    with caplog.at_level(logging.WARNING, "watchglass"):
        run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "head.output")) == list(l2(run, "gradient/head.weight")) == ALL
    assert not {"phantom", "output.meta"} & set(run.tensor_names())
    said = [record.message for record in caplog.records if "is not recorded" in record.message]
    assert len(said) == 3, "once in each of the runs"
    assert all("on the meta device" in sentence for sentence in said)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_recorded_by_the_values_they_hold(tmp_path: Path, layout: torch.layout) -> None:
    totals: list[float] = []

    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, rows: Tensor) -> Tensor:
            hidden = self.first(rows)
            totals.append(sum(float(part.detach().double().square().sum()) for part in hidden.unbind()) ** 0.5)
            return torch.stack([self.head(part).mean(0) for part in hidden.unbind()])

    def training(watch: Watch) -> Any:
        totals.clear()
        model = Ragged()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        seen = []
        for number in ALL:
            generator = torch.Generator().manual_seed(number)
            parts = [torch.randn(length, 6, generator=generator) for length in (2, 5, 3)]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.nested.nested_tensor(parts, layout=layout)), torch.tensor([0, 1, 2]))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    assert list(l2(run, "gradient/first.weight")) == ALL
    np.testing.assert_allclose(list(l2(run, "first.output").values()), totals, rtol=1e-9)


def test_views_strides_and_subclasses_are_read_as_their_values(tmp_path: Path) -> None:
    seen: list[dict[str, Tensor]] = []

    class Tagged(Tensor):
        """A subclass that does nothing."""

    class Shapes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 4)
            self.head.weight = nn.Parameter(torch.randn(12, 4).t())  # strides of a transpose

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            scores = self.head(x)
            found = {
                "scores": scores, "transposed": scores.t(), "every other": scores[::2, 1::2],
                "expanded": scores[:1].expand(5, 4), "flipped": scores.flip(0), "negative": torch.view_as_complex(
                    scores.reshape(-1, 2, 2)).conj().imag, "tagged": scores.as_subclass(Tagged),
            }  # fmt: skip
            seen.append({name: value.detach().as_subclass(Tensor).clone() for name, value in found.items()})
            return found

    def training(watch: Watch) -> Any:
        seen.clear()
        model = Shapes()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        watch(model)
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs)["scores"], labels).backward()
            optimizer.step()
        return model, optimizer

    run = trained_twice(tmp_path, training, save_raw=True)
    for name, value in seen[7].items():
        stored = f"output.{name}" if name != "scores" else "head.output"
        assert numbers(run, stored, 7) == pytest.approx(numbers_of(value), rel=1e-9, nan_ok=True), name
        np.testing.assert_array_equal(run.tensor(stored).value(7), value.numpy())
    assert list(l2(run, "update/head.weight")) == ALL
