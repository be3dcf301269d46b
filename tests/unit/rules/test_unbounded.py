"""Losses that fall without limit while outputs grow, by the operations that the fact ``loss_graph`` shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from loss_terms import terms_of
from watchglass.rules.graph.growth import falls_without_limit

Loss = Callable[[Tensor, Tensor], Tensor]


def divergence(mean: Tensor, logarithm: Tensor) -> Tensor:
    """Of a normal distribution from the standard one."""
    return 0.5 * (mean**2 + logarithm.exp() - 1 - logarithm).sum(1).mean()


def density(outputs: Tensor, targets: Tensor) -> Tensor:
    return Normal(outputs[:, :2], F.softplus(outputs[:, 2:]) + 0.01).log_prob(targets[:, :2]).mean()


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).mean()


def margins(outputs: Tensor) -> Tensor:
    """Of all classes but the first one."""
    behind = (outputs - outputs[:, :1] + 1).clamp_min(0)
    return behind.scatter(1, torch.zeros(len(outputs), 1, dtype=torch.int64), 0.0).sum(1).mean()


ENDLESS: list[Loss] = [
    lambda outputs, targets: -margins(outputs),
    lambda outputs, targets: -torch.where(targets > 0, outputs - targets, 0.0).pow(2).mean(),
    lambda outputs, targets: -squares(outputs, targets),
    lambda outputs, targets: F.l1_loss(outputs, targets) - divergence(outputs[:, :2], outputs[:, 2:]),
    lambda outputs, targets: F.mse_loss(outputs, targets) - divergence(outputs[:, :2], outputs[:, 2:]),
    density,
    lambda outputs, targets: F.l1_loss(outputs, targets) - 0.1 * outputs.exp().mean(),
]
LIMITED: list[Loss] = [
    lambda outputs, targets: margins(outputs),
    squares,
    lambda outputs, targets: F.mse_loss(outputs, targets) + divergence(outputs[:, :2], outputs[:, 2:]),
    lambda outputs, targets: -density(outputs, targets),
    lambda outputs, targets: -F.cosine_similarity(outputs, targets).mean(),
    # A bonus for entropy, a critic, the gap of a triplet.
    lambda outputs, targets: F.mse_loss(outputs, targets) + (outputs.softmax(1) * outputs.log_softmax(1)).sum(1).mean(),
    lambda outputs, targets: outputs[:16].mean() - outputs[16:].mean(),
    lambda outputs, targets: F.relu(1 + (outputs - targets) ** 2 - (outputs - targets.flip(0)) ** 2).mean(),
    lambda outputs, targets: (1 - outputs.std(0)).relu().mean() + squares(outputs, targets),
    # A reward weighs the likelihood of an action, with any sign.
    lambda outputs, targets: (outputs.log_softmax(1)[:, 0] * targets[:, 0]).mean(),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "endless"), [(each, True) for each in ENDLESS] + [(each, False) for each in LIMITED])
def test_a_loss_whose_falling_terms_grow_fastest_has_no_limit(loss: Loss, endless: bool) -> None:
    terms = terms_of(loss(nn.Linear(3, 4)(torch.randn(32, 3)), torch.randn(32, 4)))
    assert falls_without_limit(terms) == endless


LABELS = torch.arange(32) % 4


@pytest.mark.parametrize(
    ("loss", "endless"),
    [
        (lambda one, other: F.cross_entropy(one, LABELS) - 0.4 * F.cross_entropy(other, LABELS), True),
        (lambda one, other: F.cross_entropy(one, LABELS) + 0.4 * F.cross_entropy(other, LABELS), False),
        # The second term is of both, and so is the first one then.
        (lambda one, other: F.mse_loss(one, other.detach()) - F.l1_loss(one + other, torch.zeros(32, 4)), False),
        (lambda one, other: one.mean() + (torch.ones(32, 4) - other).div(one.exp()).pow(2).mean(), False),
    ],
)
def test_what_one_head_gives_can_grow_alone(loss: Loss, endless: bool) -> None:
    shared = nn.Linear(3, 3)(torch.randn(32, 3)).relu()
    assert falls_without_limit(terms_of(loss(nn.Linear(3, 4)(shared), nn.Linear(3, 4)(shared)))) is endless
