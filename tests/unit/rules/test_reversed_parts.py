"""Parts of a loss that have the wrong sign by their structure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loss_terms import terms, terms_of
from watchglass.rules.graph.reversed_parts import reversed_hinge, reversed_part

LABELS = torch.arange(8) % 4
SIGNS = torch.tensor([1.0, -1.0] * 4)[:, None]
ADVANTAGES = torch.linspace(-1, 1, 8)


@pytest.mark.parametrize(
    ("loss", "reversed_"),
    [
        (lambda out: (1 + SIGNS * out).clamp(min=0).mean(), True),
        (lambda out: F.relu(1 + SIGNS[:, 0] * out.squeeze(1)).sum(), True),
        (lambda out: (1 - SIGNS * out).clamp(min=0).mean(), False),
        (lambda out: -(1 + SIGNS * out).clamp(min=0).mean(), False),
        # A critic of a GAN, a scale, and limits on both sides.
        (lambda out: F.relu(1 + out).mean(), False),
        (lambda out: F.relu(1 + 0.5 * out).mean(), False),
        (lambda out: (1 + SIGNS * out).clamp(0, 2).mean(), False),
    ],
)
def test_a_hinge_is_reversed(loss: Callable[[Tensor], Tensor], reversed_: bool) -> None:
    assert reversed_hinge(terms(loss, units=1)) is reversed_


def squares(layer: nn.Linear) -> Tensor:
    return (layer.weight**2).sum() + (layer.bias**2).sum()


@pytest.mark.parametrize(
    ("penalty", "reversed_"),
    [
        (lambda layer: -0.01 * squares(layer), True),
        (lambda layer: -0.01 * layer.weight.norm(), True),
        (lambda layer: -sum(each.abs().sum() for each in layer.parameters()), True),
        (lambda layer: 0.01 * squares(layer), False),
        # What a script raises on purpose: a learned scale, and the distance of weights from where they were.
        (lambda layer: -layer.bias.sum(), False),
        (lambda layer: -((layer.weight - 1) ** 2).sum(), False),
    ],
)
def test_a_penalty_is_subtracted(penalty: Callable[[nn.Linear], Tensor], reversed_: bool) -> None:
    layer = nn.Linear(3, 4)
    loss = F.cross_entropy(layer(torch.randn(8, 3)), LABELS) + penalty(layer)
    assert ("penalty" in reversed_part(terms_of(loss))) is reversed_


def surrogate(out: Tensor, advantages: Tensor, of_two: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    ratio = (out.log_softmax(1)[range(8), LABELS] - 1).exp()
    return of_two(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


@pytest.mark.parametrize(
    ("loss", "reversed_"),
    [
        (lambda out: surrogate(out, ADVANTAGES, torch.min), True),
        (lambda out: surrogate(out, ADVANTAGES, torch.min) + 0.5 * F.mse_loss(out[:, 0], ADVANTAGES), True),
        (lambda out: -surrogate(out, ADVANTAGES, torch.min), False),
        (lambda out: surrogate(out, -ADVANTAGES, torch.max), False),
        # A policy gradient may as well lower costs.
        (lambda out: (out.log_softmax(1)[range(8), LABELS] * ADVANTAGES).mean(), False),
        (lambda out: torch.min(out[:, 0] * ADVANTAGES, out[:, 1] * ADVANTAGES).mean(), False),
    ],
)
def test_the_surrogate_of_a_policy_is_raised(loss: Callable[[Tensor], Tensor], reversed_: bool) -> None:
    assert ("advantages" in reversed_part(terms(loss))) is reversed_


@pytest.mark.parametrize(
    ("logits", "word"),
    [
        (lambda one, other: -(one @ other.T) / 0.1, "unlike"),
        (lambda one, other: one @ other.T / 0.1, ""),
        (lambda one, other: torch.cdist(one, other), "distances"),
        (lambda one, other: ((one[:, None] - other[None]) ** 2).sum(2), "distances"),
        (lambda one, other: (one[:, None] - other[None]).norm(dim=2) / 0.5, "distances"),
        (lambda one, other: -torch.cdist(one, other), ""),
        (lambda one, other: -((one[:, None] - other[None]) ** 2).sum(2), ""),
    ],
)
def test_pairs_are_made_unlike(logits: Callable[[Tensor, Tensor], Tensor], word: str) -> None:
    layer = nn.Linear(3, 4)
    one, other = layer(torch.randn(8, 3)), layer(torch.randn(8, 3))
    found = reversed_part(terms_of(F.cross_entropy(logits(one, other), torch.arange(8))))
    assert (word in found) if word else not found


def test_products_of_two_layers_may_have_any_sign() -> None:
    one, other = nn.Linear(3, 4)(torch.randn(8, 3)), nn.Linear(3, 4)(torch.randn(8, 3))
    assert not reversed_part(terms_of(F.cross_entropy(-(one @ other.T), torch.arange(8))))
