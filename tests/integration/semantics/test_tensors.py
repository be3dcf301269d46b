"""Tensors of every kind: read as what they are, or said not to be readable; and nothing notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_twice import ALL, Watch, batch, l2, losses, numbers, numbers_of, trained_twice

# -- sparse ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_are_recorded_as_the_values_they_hold(tmp_path: Path, make: Any) -> None:
    seen: list[Tensor] = []

    def training(watch: Watch) -> Any:
        seen.clear()
        embed, head = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)
        model = nn.Sequential(embed, nn.Flatten(0, 1), head)
        optimizers = [make(embed.parameters(), lr=0.1), torch.optim.SGD(head.parameters(), 0.1)]
        watch(model)
        for number in ALL:
            tokens = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(number))
            for optimizer in optimizers:
                optimizer.zero_grad()
            F.cross_entropy(model(tokens), tokens.flatten() % 4).backward()
            seen.append(embed.weight.grad.coalesce().values().clone())
            for optimizer in optimizers:
                optimizer.step()
        return model, seen

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    for step in (0, 11, 23):
        assert numbers(run, "gradient/0.weight", step) == pytest.approx(numbers_of(seen[step]), rel=1e-6)
    assert list(run.scalars("gradient_norm")[0])[:1] == [0]


def test_clipped_sparse_gradients_and_scaled_ones(tmp_path: Path) -> None:
    def training(watch: Watch) -> Any:
        model = nn.EmbeddingBag(50, 4, mode="sum", sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        watch(model)
        for number in ALL:
            tokens = torch.randint(0, 50, (6, 3), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(tokens), tokens[:, 0] % 4)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return model

    run = trained_twice(tmp_path, training)
    assert list(l2(run, "gradient/weight")) == ALL


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_models_of_other_float_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    gradients: list[Tensor] = []

    def training(watch: Watch) -> Any:
        gradients.clear()
        model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4)).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs.to(dtype)), labels)
            loss.backward()
            gradients.append(model[0].weight.grad.clone())
            optimizer.step()
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training, save_raw=True)
    assert losses(run)[:3] == pytest.approx([losses(run)[step] for step in range(3)])
    assert run.tensor("0.weight").info.dtype == str(dtype).removeprefix("torch.")
    for step in (0, 23):
        assert numbers(run, "gradient/0.weight", step) == pytest.approx(numbers_of(gradients[step]), rel=1e-9)
        kept = torch.from_numpy(np.array(run.tensor("gradient/0.weight").value(step), np.float64))
        assert torch.equal(kept, gradients[step].double())


def test_complex_parameters_and_outputs_are_recorded_by_their_magnitudes(tmp_path: Path) -> None:
    gradients: list[Tensor] = []

    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(7, dtype=torch.complex64))
            self.mix = nn.Linear(7, 4, dtype=torch.complex64)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(torch.fft.rfft(x) * self.filter).abs()

    def training(watch: Watch) -> Any:
        gradients.clear()
        model = Spectral()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            gradients.append(model.filter.grad.clone())
            optimizer.step()
            seen.append(loss.item())
        return seen, model, optimizer

    run = trained_twice(tmp_path, training)
    assert run.steps() == ALL
    for step in (0, 23):
        assert numbers(run, "gradient/filter", step) == pytest.approx(numbers_of(gradients[step]), rel=1e-6)
    assert list(l2(run, "mix.output")) == list(l2(run, "update/mix.weight")) == ALL
    assert run.tensor("filter").info.dtype == "complex64"


def test_integer_and_boolean_tensors_among_inputs_outputs_and_parameters(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(10, 8), nn.Linear(8, 4)
            self.table = nn.Parameter(torch.arange(10), requires_grad=False)

        def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = (self.embed(self.table[tokens]) * mask[..., None]).sum(1)
            scores = self.head(hidden)
            return scores, scores.argmax(1), mask.any(1)

    def training(watch: Watch) -> Any:
        model = Counting()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        watch(model)
        seen = []
        for number in ALL:
            tokens = torch.randint(0, 10, (8, 5), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            scores, chosen, _ = model(tokens, tokens > 3)
            loss = F.cross_entropy(scores, tokens[:, 0] % 4)
            loss.backward()
            optimizer.step()
            seen += [loss.item(), chosen]
        return seen, model

    run = trained_twice(tmp_path, training)
    tokens = torch.randint(0, 10, (8, 5), generator=torch.Generator().manual_seed(0))
    assert numbers(run, "input.0", 0) == pytest.approx(numbers_of(tokens))
    assert numbers(run, "input.1", 0) == pytest.approx(numbers_of(tokens > 3))
    assert run.tensor("input.1").info.dtype == "bool"
    # What a module returns that is no float is left out, and what its last child returned bears that one's name.
    assert set(run.tensor_names(role="output")) == {"embed.output", "head.output"}
    assert run.tensor("table").info.trainable is False, "no optimizer has it"


FLOAT8 = [
    getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_outputs_and_frozen_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    outputs: list[Tensor] = []

    class Quantize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stored = nn.Parameter((torch.randn(12, 12) / 4).to(dtype), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            quantized = x.to(dtype)
            outputs.append(quantized.detach())
            return quantized

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantize, self.head = Quantize(), nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.quantize(x).float() @ self.quantize.stored.float()
            return self.head(x)

    def training(watch: Watch) -> Any:
        outputs.clear()
        model = Model()
        # The frozen one too, as a script that takes all parameters does.
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen, model

    run = trained_twice(tmp_path, training, save_raw=True)
    assert run.steps() == ALL
    name = str(dtype).removeprefix("torch.")
    assert run.tensor("quantize.output").info.dtype == run.tensor("quantize.stored").info.dtype == name
    for step in (0, 23):
        assert numbers(run, "quantize.output", step) == pytest.approx(numbers_of(outputs[step]), rel=1e-9)


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.nothing = nn.Parameter(torch.empty(0, 4))
            self.none = nn.Linear(12, 0, bias=True)
            self.head = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            empty = self.none(x)
            return self.head(x) * self.scale + empty.sum() + self.nothing.sum()

    def training(watch: Watch) -> Any:
        model = Odd()
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        watch(model)
        seen = []
        for number in ALL:
            inputs, labels = batch(number)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if number % 5 == 4:
                with torch.no_grad():
                    model(inputs[:0])  # a batch of nothing
            seen.append(loss.item())
        return seen, model, optimizer

    with pytest.warns(UserWarning, match="zero-element"):  # PyTorch's own
        run = trained_twice(tmp_path, training, save_raw=True, reductions=["median", "prod", "abs_min"])
    assert run.steps() == ALL
    for name in ("scale", "gradient/scale", "update/scale"):
        assert set(run.tensor(name).reductions("count")[1]) == {1.0}
    assert run.tensor("scale").value(0).shape == ()
    for name in ("nothing", "gradient/nothing", "none.output", "none.weight"):
        assert set(run.tensor(name).reductions("count")[1]) == {0.0}
        assert np.isnan(run.tensor(name).reductions("max")[1]).all()
    assert run.tensor("nothing").value(0).shape == (0, 4)
