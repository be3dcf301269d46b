"""Every source of phases keeps its contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from watchglass.capture import Hook, attach, loop
from watchglass.capture.pytorch.profiling.phases import PyTorchPhases
from watchglass.records import StepPhase
from watchglass.testing import PhaseCase, PhaseSuite

Spend = Callable[[StepPhase], None]


class Samples(Dataset[Tensor]):
    def __init__(self, spend: Spend, size: int) -> None:
        self.spend, self.size = spend, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        self.spend(StepPhase.DATA)
        return torch.full((4,), index / self.size)


class Spending(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, spend: Spend) -> Tensor:
        ctx.spend = spend
        return value * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ctx.spend(StepPhase.BACKWARD)
        return gradient, None


class Copying(TorchDispatchMode):
    """Copies take time."""

    def __init__(self, spend: Spend) -> None:
        super().__init__()
        self.spend = spend

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.spend(StepPhase.COPY)
        return func(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self, spend: Spend) -> None:
        super().__init__()
        self.spend = spend
        self.linear = nn.Linear(4, 2)
        self.on_device = nn.Parameter(torch.empty(1, device="meta"), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        self.spend(StepPhase.FORWARD)
        return Spending.apply(self.linear(inputs), self.spend)


class PyTorchCase(PhaseCase):
    def __init__(self, spend: Spend) -> None:
        super().__init__(spend)
        self.model = Model(spend)
        self.optimizer = torch.optim.SGD(self.model.linear.parameters(), 0.1)

    def attach(self, hook: Hook) -> None:
        attach(hook.port, loop("torch"), self.model)

    def train(self, steps: int) -> None:
        for inputs in DataLoader(Samples(self.spend, steps)):
            self.spend(StepPhase.PREPARE)
            with Copying(self.spend):
                inputs.to("meta")
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(inputs), torch.zeros(1, dtype=torch.long)).backward()
            self.spend(StepPhase.UPDATE)
            self.optimizer.step()
            self.spend(StepPhase.OTHER)

    def evaluate(self, steps: int) -> frozenset[StepPhase]:
        self.model.eval()
        with torch.no_grad():
            for inputs in DataLoader(Samples(self.spend, steps)):
                self.spend(StepPhase.PREPARE)
                with Copying(self.spend):
                    inputs.to("meta")
                F.cross_entropy(self.model(inputs), torch.zeros(1, dtype=torch.long))
                self.spend(StepPhase.OTHER)
        self.model.train()
        return frozenset(StepPhase) - {StepPhase.BACKWARD, StepPhase.UPDATE}


class TestPyTorch(PhaseSuite):
    source = PyTorchPhases
    case = PyTorchCase
