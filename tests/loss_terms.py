"""Terms of losses that tests compute from the outputs of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from watchglass.capture.facts.loss_terms import described
from watchglass.capture.pytorch.graph.autograd_graph import Graph
from watchglass.rules.graph.terms import LossTerm


def terms(loss: Callable[[Tensor], Tensor], units: int = 4) -> list[LossTerm]:
    """Terms of a loss of the outputs of eight samples, as the fact loss_graph has them."""
    return terms_of(loss(nn.Linear(3, units)(torch.randn(8, 3))))


def terms_of(loss: Tensor) -> list[LossTerm]:
    """Terms of any loss; its parameters are named by their places."""
    fact = described(Graph(loss.grad_fn), lambda parameter: f"layer {id(parameter)}")
    return [LossTerm(term) for term in fact.terms]
