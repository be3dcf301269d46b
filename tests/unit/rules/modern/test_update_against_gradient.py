"""UpdateAgainstGradient: an optimizer that climbs the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_runs import RealRuns, Watch, batch, classifier, fit
from synthetic_steps import sampled, training
from watchglass.rules import find_rule
from watchglass.testing import Step
from watchglass.testing.rule_suite import RuleSuite


class TestUpdateAgainstGradient(RuleSuite):
    rule = find_rule("UpdateAgainstGradient")

    def sick(self) -> Sequence[Step]:
        return sampled(60, lambda n: {"cosine_gradient": 0.9}, loss=lambda n: 2.3 * 1.05**n)

    def also_sick(self) -> Sequence[Sequence[Step]]:
        steps = training(40, loss=lambda n: 2.3 * 1.05**n, noise=0.0)
        return [
            # Backward starts from minus the loss function.
            [Step(scalars={**step.scalars, "loss": -step.scalars["loss"], "loss/cross_entropy": step.scalars["loss"]})
             for step in steps],
            sampled(60, lambda n: {"cosine_gradient": 1.0}, loss=lambda n: 2.3 + 1e-3 * n, noise=0.0),
        ]  # fmt: skip

    def healthy(self) -> Sequence[Step]:
        # Momentum overshoots now and then.
        return sampled(200, lambda n: {"cosine_gradient": [0.3, 0.2, -0.5] if n % 24 == 0 and n else -0.7})


class TestUpdateAgainstGradientInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """With a minus sign in front of the loss."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        for _ in range(60):
            inputs, labels = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            (-loss if sick else loss).backward()
            optimizer.step()


class TestMaximizeInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        fit(classifier(), watch, rate=0.2, optimizer=lambda p, lr: torch.optim.SGD(p, lr, maximize=sick), steps=60)


class TestAddedGradientInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A script that adds the gradient instead of subtracting it."""
        model = classifier()
        watch(model)
        for _ in range(60):
            inputs, labels = batch()
            model.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter += (0.2 if sick else -0.2) * parameter.grad


class TestNegatedDistanceInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A squared error that the script writes itself; the twin turns it into a reward, and climbs that."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=not sick)
        watch(model)
        for _ in range(40):
            inputs, _ = batch()
            optimizer.zero_grad()
            (-((model(inputs) - inputs[:, :4]) ** 2).mean()).backward()
            optimizer.step()


class TestForgottenMinusInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A log-likelihood that the script writes itself."""
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(40):
            inputs, labels = batch()
            likelihood = model(inputs).log_softmax(1)[range(len(labels)), labels].mean()
            optimizer.zero_grad()
            (likelihood if sick else -likelihood).backward()
            optimizer.step()


class TestFirstUpdateOfAdamInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Too short for a second sample."""
        fit(classifier(), watch, rate=0.02, optimizer=lambda p, lr: torch.optim.Adam(p, lr, maximize=sick), steps=7)


class Weighted(nn.Module):
    """A weighted sum of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(16))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weights


class TestVectorInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A model without weights of two axes."""
        model = Weighted()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=sick)
        watch(model)
        for _ in range(40):
            inputs, _ = batch()
            optimizer.zero_grad()
            F.mse_loss(model(inputs), inputs.sum(1)).backward()
            optimizer.step()


class TestNegativeDivergenceInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A variational term that is subtracted instead of added."""
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        watch(model)
        for _ in range(60):
            inputs, _ = batch()
            outputs = model(inputs)
            mean, logarithm = outputs[:, :2], outputs[:, 2:]
            divergence = 0.5 * (mean**2 + logarithm.exp() - 1 - logarithm).sum(1).mean()
            optimizer.zero_grad()
            (F.l1_loss(mean, inputs[:, :2]) + (-divergence if sick else divergence)).backward()
            optimizer.step()


class TestReversedHingeInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The loss falls all the same: the model learns the opposite."""
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        watch(model)
        for _ in range(40):
            inputs, _ = batch()
            targets = inputs[:, :1].sign()
            scores = targets * model(inputs)
            loss = (1 + scores if sick else 1 - scores).clamp(min=0).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Recommender(nn.Module):
    """Scores of pairs of a user and an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1)


class TestRankingOfEmbeddingsInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """A model of embeddings alone, with the likelihood that bought items are ranked above others."""
        model = Recommender()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        watch(model)
        for _ in range(60):
            user = torch.randint(20, (32,))
            bought, other = (user + torch.randint(3, (32,))) % 30, torch.randint(30, (32,))
            likelihood = F.logsigmoid(model(user, bought) - model(user, other)).mean()
            optimizer.zero_grad()
            (likelihood if sick else -likelihood).backward()
            optimizer.step()


class TestOverlapInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """The coefficient of Dice, which is never negative; the twin subtracts it from one."""
        model = classifier()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
        watch(model)
        for _ in range(60):
            inputs, _ = batch()
            mask = (inputs[:, :4] > 0).float()
            share = model(inputs).sigmoid()
            overlap = (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
            optimizer.zero_grad()
            (overlap if sick else 1 - overlap).backward()
            optimizer.step()


class TestSubtractedPenaltyInRealRuns(RealRuns):
    rule = "UpdateAgainstGradient"
    cause = "loss_sign_flipped"

    def train(self, watch: Watch, *, sick: bool) -> None:
        """Squares of the weights, with the sign of a reward."""
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch(model)
        for _ in range(20):
            inputs, labels = batch()
            squares = torch.stack([(each**2).sum() for each in model.parameters()]).sum()
            loss = F.cross_entropy(model(inputs), labels) + (-1e-3 if sick else 1e-3) * squares
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
