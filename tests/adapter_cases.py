"""Tiny training runs of every framework that has an adapter, for the conformance suite and the hot-path law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
import xgboost
from numpy.typing import NDArray
from torch import nn
from xgboost.callback import TrainingCallback

import framework_around_pytorch as around
from watchglass.capture import Hook, attach, loop
from watchglass.config import BUILT_IN_COLLECTIONS, FACTS
from watchglass.testing import AdapterCase


class PyTorchCase(AdapterCase):
    """A classifier with everything that depends on mode and chance: dropout, batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.inputs = torch.randn(32, 6)
        self.labels = self.inputs[:, :3].argmax(1)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
        )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.inputs), self.labels)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            after_step(step)
            self.evaluation_losses.append(self._evaluated())

    def evaluate(self) -> bool:
        self._evaluated()
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}

    def _evaluated(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = F.cross_entropy(self.model(self.inputs), self.labels)
        self.model.train()
        return float(loss)


class _Everything(nn.Module):
    """A little of all that capture looks for: attention, experts with a router, all activations it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = 3
        self.embed = nn.Linear(6, 8)
        self.qkv = nn.Linear(8, 24)
        self.gate = nn.Linear(8, self.num_experts)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(self.num_experts))
        self.tanh, self.sigmoid, self.relu = nn.Tanh(), nn.Sigmoid(), nn.ReLU()
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.1)
        self.head = nn.Linear(8, 3)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden = self.tanh(self.embed(sequences))
        query, key, value = self.qkv(hidden).view(*hidden.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden = self.norm((hidden + attended).mean(1))
        shares = self.gate(hidden).softmax(-1)
        mixed = torch.stack([expert(hidden) for expert in self.experts], -1) @ shares[..., None]
        return self.head(self.dropout(self.relu(F.relu(mixed[..., 0]) + self.sigmoid(hidden) + F.tanh(hidden))))


#: What this training run does not have.
_OF_OTHERS = {"feature_importance", "trees", "input_image", "input_sequence", "float8_casts"}


class EverythingCase(PyTorchCase):
    """Keeps everything of a run with a gradient scaler, clipping, a scheduler and inputs that need gradients."""

    settings: ClassVar = {
        "collections": dict.fromkeys(sorted(set(BUILT_IN_COLLECTIONS) - _OF_OTHERS), True),
        "modes": {"eval": {"save_interval": 2}},
        "save_raw": True,
        "save_shape": True,
        "reductions": ["median", "prod", "abs_median", "abs_prod", "abs_min"],
        "facts": list(FACTS),
    }
    hook: Hook | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inputs = torch.randn(16, 5, 6)
        self.labels = self.inputs[:, :, :3].sum(1).argmax(1)
        self.model = _Everything()
        self.prepare()

    def prepare(self) -> None:
        """What is made of the model once it is where it is trained."""
        self.inputs = self.inputs.detach().requires_grad_()
        # Knows the scale itself: others make the scaler wait for what it has found.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=6)

    def attach(self, hook: Hook) -> None:
        super().attach(hook)
        self.hook = hook

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            self.update()
            after_step(step)

    def update(self) -> None:
        """One step of the training."""
        self.optimizer.zero_grad()
        self.inputs.grad = None
        logits = self.model(self.inputs)
        loss = F.cross_entropy(logits, self.labels)
        if self.hook is not None:
            self.hook.save_tensor("saved", logits)
            self.hook.save_scalar("saved_loss", loss)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()


class NumPyCase(AdapterCase):
    """A linear regression in a loop that no adapter knows."""

    hook: Hook | None = None

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        self.inputs = random.normal(size=(32, 4))
        self.targets = self.inputs @ np.array([1.0, -2.0, 0.5, 0.0])
        self.weights = np.zeros(4)

    def attach(self, hook: Hook) -> None:
        self.hook = hook

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        for step in range(steps):
            if self.hook is None:
                self.update()
            else:
                with self.hook.step("train") as recorded:
                    gradient = self.update()
                    self.hook.save_scalar("loss", self.loss())
                    if recorded.due:
                        self.hook.save_tensor("gradient/weights", gradient)
            self.losses.append(self.loss())
            after_step(step)
            self.evaluate()
            self.evaluation_losses.append(self.loss())

    def evaluate(self) -> bool:
        if self.hook is not None:
            with self.hook.step("eval"):
                self.hook.save_scalar("loss", self.loss())
        return True

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {"weights": self.weights.copy()}

    def loss(self) -> float:
        return float(np.mean((self.inputs @ self.weights - self.targets) ** 2))

    def update(self) -> NDArray[np.float64]:
        gradient: NDArray[np.float64] = self.inputs.T @ (self.inputs @ self.weights - self.targets) / 16
        self.weights -= 0.1 * gradient
        return gradient


class AroundPyTorchCase(AdapterCase):
    """A model of a framework around PyTorch, whose adapters are both attached."""

    model: around.Model

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.model = around.Model()

    def attach(self, hook: Hook) -> None:
        attach(hook.port, loop("torch"))
        super().attach(hook)

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        self.model.fit(steps, self.losses, after_step)

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        return {name: value.numpy().copy() for name, value in self.model.state_dict().items()}


class XGBoostCase(AdapterCase):
    """A booster with a training set and a validation set."""

    settings: ClassVar = {"collections": loop("xgboost").collections}

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(3)
        inputs = random.normal(size=(80, 4))
        labels = (inputs[:, 0] + 0.3 * random.normal(size=80) > 0).astype(int)
        self.data, self.held_out = xgboost.DMatrix(inputs[:50], labels[:50]), xgboost.DMatrix(inputs[50:], labels[50:])
        self.callbacks: list[TrainingCallback] = []

    def attach(self, hook: Hook) -> None:
        self.callbacks = [attach(hook.port, loop("xgboost"))]

    def train(self, steps: int, after_step: Callable[[int], None]) -> None:
        class AfterStep(TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                after_step(epoch)
                return False

        found: dict[str, Any] = {}
        self.model = xgboost.train(
            {"objective": "binary:logistic", "max_depth": 2, "subsample": 0.8, "seed": 3, "nthread": 1},
            self.data, steps, evals=[(self.data, "train"), (self.held_out, "validation")], evals_result=found,
            callbacks=[*self.callbacks, AfterStep()], verbose_eval=False,
        )  # fmt: skip
        if found:
            self.losses += found["train"]["logloss"]
            self.evaluation_losses += found["validation"]["logloss"]

    def parameters(self) -> Mapping[str, NDArray[Any]]:
        assert self.model is not None
        return {"model": np.frombuffer(self.model.save_raw("ubj"), np.uint8)}
