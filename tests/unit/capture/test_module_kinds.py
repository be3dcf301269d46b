"""Of which kind a module of PyTorch is, and where that is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import watchglass
from train_twice import train
from watchglass import ModuleKind, open_run
from watchglass.capture.pytorch.modules.module_tree import kind_of


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class Scaled(nn.Linear):
    """A user's own."""


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)


KINDS = {
    ModuleKind.LINEAR: (
        nn.Linear(2, 3), nn.Bilinear(2, 2, 3), Scaled(2, 3), nn.LazyLinear(3), nn.MultiheadAttention(4, 2).out_proj,
        parametrizations.weight_norm(nn.Linear(2, 3)),
    ),
    ModuleKind.CONVOLUTION: (nn.Conv1d(2, 2, 1), nn.Conv3d(2, 2, 1), nn.ConvTranspose2d(2, 2, 1)),
    ModuleKind.RECURRENT: (nn.LSTM(2, 2), nn.GRUCell(2, 2)),
    ModuleKind.EMBEDDING: (nn.Embedding(2, 2), nn.EmbeddingBag(2, 2)),
    ModuleKind.NORMALIZATION: (nn.BatchNorm2d(2), nn.SyncBatchNorm(2), nn.LayerNorm(2), nn.InstanceNorm1d(2)),
    ModuleKind.ATTENTION: (nn.MultiheadAttention(4, 2),),
    ModuleKind.RECTIFIER: (nn.ReLU(), nn.ReLU6(), nn.Threshold(0, 0)),
    ModuleKind.SATURATING: (nn.Sigmoid(), nn.Tanh(), nn.Hardtanh(), nn.Softsign()),
    ModuleKind.SOFTMAX: (nn.Softmax(1), nn.LogSoftmax(1)),
    ModuleKind.ACTIVATION: (nn.GELU(), nn.LeakyReLU(), nn.PReLU(), nn.RReLU(), nn.SiLU()),
    ModuleKind.DROPOUT: (nn.Dropout(), nn.AlphaDropout()),
    ModuleKind.POOLING: (nn.MaxPool2d(2), nn.AdaptiveAvgPool1d(2)),
    ModuleKind.CONTAINER: (nn.Sequential(), nn.ModuleList(), Residual(), nn.TransformerEncoderLayer(4, 2)),
    ModuleKind.OTHER: (nn.Identity(), nn.Flatten(), Sine(), nn.CrossEntropyLoss()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_modules(kind: ModuleKind) -> None:
    assert [kind_of(module) for module in KINDS[kind]] == [kind] * len(KINDS[kind])


def test_every_kind_is_one_of_pytorch() -> None:
    assert set(KINDS) == set(ModuleKind)


def test_kinds_are_in_the_catalog_and_in_the_fact(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    collections = [watchglass.Collection("mine", module_kinds=("rectifier",)), "gradients", "optimizer_variables"]
    with watchglass.watch(model, run=tmp_path / "run", save_interval=1, collections=collections):
        for number in range(3):
            train(model, optimizer, number)
    run = open_run(tmp_path / "run")
    kinds = {name: run.tensor(name).info.module_kind for name in run.tensor_names()}
    assert kinds["1.output"] is ModuleKind.RECTIFIER
    assert kinds["gradient/0.weight"] is kinds["optimizer/exp_avg/2.bias"] is ModuleKind.LINEAR
    assert kinds["loss"] is ModuleKind.OTHER
    assert run.facts("model")[0].data["module_kinds"] == {
        "": "container",
        "0": "linear",
        "1": "rectifier",
        "2": "linear",
    }
    assert "0.output" not in kinds
    tensors = run.sql("SELECT module_kind FROM tensors WHERE tensor = '1.output'").to_arrow()
    assert tensors["module_kind"].to_pylist() == ["rectifier"]
