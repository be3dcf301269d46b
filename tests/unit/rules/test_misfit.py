"""Whether a loss grows with the misfit, from the operations that make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from loss_terms import terms
from watchglass.records import facts
from watchglass.rules.graph.misfit import sign_of
from watchglass.rules.graph.terms import LossTerm, Made, terms_of

LABELS = torch.arange(8) % 4
HOT = F.one_hot(LABELS, 4).float()
VALUES = torch.linspace(0, 1, 32).view(8, 4)
SHARE = torch.linspace(0, 1, 8)
SIGNS = torch.tensor([1.0, -1.0] * 4)[:, None]


def binary(probability: Tensor) -> Tensor:
    share = probability.clamp(1e-6, 1 - 1e-6)
    return (SHARE * share.log() + (1 - SHARE) * (1 - share).log()).mean()


def gaussian(out: Tensor) -> Tensor:
    return (0.5 * out[:, 1] + 0.5 * (SHARE - out[:, 0]) ** 2 / out[:, 1].exp()).mean()


def focal(out: Tensor) -> Tensor:
    share = out.softmax(1)[range(8), LABELS]
    return (-((1 - share) ** 2) * share.log()).mean()


def dice(probability: Tensor) -> Tensor:
    return (2 * (probability * HOT).sum() + 1) / (probability.sum() + HOT.sum() + 1)


def jaccard(probability: Tensor) -> Tensor:
    shared = (probability * HOT).sum(1)
    return (shared / (probability.sum(1) + HOT.sum(1) - shared)).mean()


def sign(loss: Callable[[Tensor], Tensor]) -> int:
    return sign_of(terms(loss))


LOSSES: list[Callable[[Tensor], Tensor]] = [
    lambda out: F.cross_entropy(out, LABELS),
    lambda out: F.cross_entropy(out, LABELS) / 4 + F.mse_loss(out, VALUES),
    lambda out: F.mse_loss(out, VALUES).sqrt(),
    lambda out: ((out - VALUES) ** 2).sum(1).mean(),
    lambda out: (VALUES - out).abs().mean(),
    lambda out: (VALUES - out).norm(),
    lambda out: -out.log_softmax(1)[range(8), LABELS].mean(),
    lambda out: -(HOT * out.softmax(1).log()).sum(1).mean(),
    lambda out: (out.logsumexp(1, keepdim=True) - out).gather(1, LABELS[:, None]).mean(),
    lambda out: -torch.distributions.Categorical(logits=out).log_prob(LABELS).mean(),
    lambda out: -binary(out[:, 0].sigmoid()),
    lambda out: -torch.distributions.Normal(out[:, 0], F.softplus(out[:, 1])).log_prob(SHARE).mean(),
    lambda out: -F.cosine_similarity(out, VALUES).mean(),
    lambda out: 1 - dice(out.softmax(1)),
    lambda out: 1 - jaccard(out.sigmoid()),
    gaussian,
    focal,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_grows_with_the_misfit_and_its_negative_falls(loss: Callable[[Tensor], Tensor]) -> None:
    assert (sign(loss), sign(lambda out: -loss(out))) == (1, -1)


def test_a_second_minus_inside_counts() -> None:
    assert sign(lambda out: F.nll_loss(-out.log_softmax(1), LABELS)) == -1


@pytest.mark.parametrize(
    "loss",
    [
        # Rewards of actions have any sign, and so has what a critic says.
        lambda out: (out.log_softmax(1)[range(8), LABELS] * SHARE).mean(),
        lambda out: (out.log_softmax(1).gather(1, LABELS[:, None]) * SHARE[:, None]).mean(),
        lambda out: -out.mean(),
        # A critic's probability of a fake, and an entropy.
        lambda out: (1 - out[:, 0].sigmoid()).log().mean(),
        lambda out: (out.softmax(1) * out.log_softmax(1)).sum(1).mean(),
        # One loss against another.
        lambda out: F.cross_entropy(out, LABELS) - F.mse_loss(out, VALUES),
        lambda out: F.mse_loss(out, VALUES) / F.mse_loss(out, HOT),
        # Products with rewards, over a sum of weights.
        lambda out: (out * VALUES).sum() / out.exp().sum(),
    ],
)
def test_other_losses_have_no_known_sign(loss: Callable[[Tensor], Tensor]) -> None:
    assert sign(loss) == 0


def test_operations_that_end_in_several_numbers_have_no_sign() -> None:
    """Of the graph of a loss, which is one number, the last operation is missing then."""
    (term,) = terms(lambda out: F.cross_entropy(out, LABELS))
    whole = facts.TermOfLoss(1.0, "data", True, term.data)
    assert sign_of([LossTerm(whole)]) == 1
    assert sign_of([LossTerm(replace(whole, operations=term.data[:-1]))]) == 0


def test_a_result_is_evaluated_once_for_all_that_ask() -> None:
    (term,) = terms(lambda out: F.mse_loss(out, VALUES).sqrt())
    asked: list[str] = []

    def depth(made: Made) -> int:
        asked.append(made.name)
        return 1 + max((each.value(depth) for each in made.sources), default=0)

    assert [made.value(depth) for made in reversed(term.results)] == [3, 2, 1]
    assert asked == ["linear", "mse_loss", "sqrt"]


def test_rules_share_the_terms_of_a_fact_and_its_data_stay_the_same() -> None:
    fact = facts.TermsOfLoss(True, terms=(facts.TermOfLoss(1.0, "data", True, (facts.MadeBy("linear"),)),))
    before = fact.to_data()
    assert terms_of(fact) is terms_of(fact)
    assert fact.to_data() == before
