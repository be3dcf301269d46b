"""Evaluations of a training split and of other data, in turn, are told apart by their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import watchglass
from watchglass import Mode, Run, open_run
from watchglass.capture.facts.input_sketches import Sample
from watchglass.capture.facts.seen_rows import SeenRows, hashes_of
from watchglass.capture.pytorch.facts.copies import row_sample

Batch = tuple[Tensor, Tensor]


class ReturnsItsLoss(nn.Module):
    """As nanoGPT's model does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.inner(inputs), targets)


def tabular(seed: int) -> Callable[[], Batch]:
    """Batches drawn from 100 samples."""
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(100, 8, generator=random)

    def draw() -> Batch:
        chosen = torch.randint(0, 100, (16,), generator=random)
        return inputs[chosen], inputs[chosen, :3].argmax(1)

    return draw


def text(seed: int) -> Callable[[], Batch]:
    """Pieces of 64 tokens that begin anywhere in 4,000."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (4000,), generator=random)

    def draw() -> Batch:
        starts = torch.randint(0, 3935, (16,), generator=random).tolist()
        return torch.stack([tokens[i : i + 64] for i in starts]), torch.stack([tokens[i + 64] for i in starts])

    return draw


def network(kind: Callable[[int], Callable[[], Batch]]) -> nn.Module:
    torch.manual_seed(0)
    if kind is tabular:
        return ReturnsItsLoss(nn.Linear(8, 3))
    return ReturnsItsLoss(nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 20)))


def train(
    run: Path, kind: Callable[[int], Callable[[], Batch]], splits: str, draws: int = 6
) -> tuple[Run, list[float]]:
    """Trains on split ``t`` and evaluates the named splits in turn; returns the run, and the mean of each split."""
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    data = {name: kind(seed) for seed, name in enumerate("tva")}
    means: list[float] = []
    with watchglass.watch(model, run=run, save_interval=1, strict=True):
        for step in range(40):
            optimizer.zero_grad()
            model(*data["t"]()).backward()
            optimizer.step()
            if step == 39:
                with torch.no_grad():
                    means = [sum(float(model(*data[name]())) for _ in range(draws)) / draws for name in splits]
    return open_run(run), means


@pytest.mark.parametrize("kind", [tabular, text])
@pytest.mark.parametrize("splits", ["tv", "vt"])
def test_training_split_and_validation_split_have_the_means_of_the_script(
    tmp_path: Path, kind: Callable[[int], Callable[[], Batch]], splits: str
) -> None:
    run, means = train(tmp_path / "run", kind, splits)
    (stretch,) = run.stretches()
    assert stretch.means["loss"] == pytest.approx(means[splits.index("v")], rel=1e-6)
    assert stretch.training_means["loss"] == pytest.approx(means[splits.index("t")], rel=1e-6)
    assert run.models[0].validation_loss == pytest.approx(means[splits.index("v")], rel=1e-6)
    _, shares = run.scalars("rows_seen_in_training", Mode.EVAL)
    own, other = (shares[6 * splits.index(name) :][:6] for name in "tv")
    assert min(own) > 0.5
    assert max(other) < 0.05


@pytest.mark.parametrize("splits", ["v", "va", "t"])
def test_other_evaluations_stay_whole(tmp_path: Path, splits: str) -> None:
    run, means = train(tmp_path / "run", tabular, splits)
    (stretch,) = run.stretches()
    assert stretch.means["loss"] == pytest.approx(sum(means) / len(means), rel=1e-6)
    assert stretch.training_means == {}


def test_batches_of_loaders_are_known_by_a_part_of_the_training_set(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, others = torch.rand(2000, 1, 12, 12), torch.rand(500, 1, 12, 12)
    sets = [TensorDataset(each, each.flatten(1)[:, :4].argmax(1)) for each in (images, others)]
    means = []
    with watchglass.watch(model, run=tmp_path / "run", save_interval=4, strict=True):
        for x, y in DataLoader(sets[0], batch_size=20, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for data in sets:
                losses = [F.cross_entropy(model(x), y, reduction="sum").item() for x, y in DataLoader(data, 50)]
                means.append(sum(losses) / len(data))
    (stretch,) = open_run(tmp_path / "run").stretches()
    assert stretch.training_means["loss"] == pytest.approx(means[0], rel=1e-5)
    assert stretch.means["loss"] == pytest.approx(means[1], rel=1e-5)


def test_rows_of_equal_elements_and_other_values_are_not_known() -> None:
    seen = SeenRows()

    def part(tensor: Tensor) -> Sample:
        sample = row_sample(tensor, 64, 64, 256)
        assert sample is not None
        return sample

    seen.note(part(torch.cat([torch.zeros(4, 100), torch.rand(4, 100)])))
    assert seen.share(part(torch.zeros(8, 100)), 1) == 0
    assert seen.share(part(torch.rand(8, 100)), 1) == 0
    for dtype in (torch.bfloat16, torch.float16, torch.uint8, torch.bool, torch.int32, torch.complex64):
        values = (torch.rand(8, 3, 5) * 200).to(dtype)
        hashes = hashes_of(part(values)).tolist()
        assert hashes == hashes_of(part(values.clone().transpose(1, 2).contiguous().transpose(1, 2))).tolist()
