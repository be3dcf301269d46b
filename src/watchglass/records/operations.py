"""Operations and losses in neutral words, into which an adapter translates the names of its framework once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

#: What an operation does with values: it ``arranges`` them (chooses, repeats, moves or converts), ``adds`` them (is
#: linear in all that it takes), is a ``matrix`` product (a layer, if one of the two is a parameter), ``looks_up`` rows
#: of a table, ``recurs`` or ``attends`` (as a whole layer), is a ``softmax`` or the logarithm of one, or ``activates``:
#: is any other function of elements, or a choice among them.
OperationKind = Literal[
    "arranges", "adds", "multiplies", "matrix", "looks_up", "recurs", "attends", "activates", "softmax", "normalizes",
    "drops", "pools", "loss", "parameter", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation on tensors, of which there is one object."""

    name: str  #: Its word, as rules know it.
    kind: OperationKind  #: What it does.
    low: float = -math.inf  #: Its results are never below.
    high: float = math.inf  #: Nor above.
    logarithm: bool = False  #: Whether its result may be the logarithm of a probability.
    form: str = ""  #: Another word, where it is a form of the operation ``name``; "" where it is that itself.

    @property
    def word(self) -> str:
        """Its own word."""
        return self.form or self.name

    @property
    def limited(self) -> bool:
        """Whether its results have a limit on both sides."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def probability(self) -> bool:
        """Whether its results are probabilities."""
        return (self.low, self.high) == (0.0, 1.0)

    @property
    def weighted_sum(self) -> bool:
        """Whether it gives weighted sums: the outputs of a layer, if it has weights."""
        return self.name in ("linear", "convolution", "bmm")


#: The leaf of a graph.
PARAMETER = Operation("parameter", "parameter")


def _all(kind: OperationKind, names: str, low: float = -math.inf, high: float = math.inf) -> Iterable[Operation]:
    return (Operation(name, kind, low, high) for name in names.split())


#: Operations by their words. ``reshape`` keeps the order of all elements, ``copy`` changes only their type, device or
#: memory, and ``rearrange`` stands for every arrangement that has no word here. ``rsub`` is ``sub`` with its
#: operands exchanged.
OPERATIONS: Mapping[str, Operation] = {
    each.word: each
    for each in (
        *_all("arranges", """reshape copy transpose expand slice select split index choose gather roll pad masked_fill
            tril nan_to_num rearrange"""),
        *_all("adds", """add sub neg cat stack sum mean cumsum index_add scatter_add scatter index_put lerp fft
            average_pool"""),
        Operation("sub", "adds", form="rsub"),
        *_all("multiplies", "mul div"), Operation("mul", "multiplies", form="addcmul"),
        *_all("matrix", "linear bmm convolution bilinear"),
        *_all("looks_up", "embedding"), *_all("recurs", "recurrent", -1.0, 1.0), *_all("attends", "attention"),
        *_all("activates", """leaky_relu prelu gelu silu elu mish hardswish shrink glu pow reciprocal maximum minimum
            max min where topk sort prod xlogy round clamp log1p
            acos asin acosh atanh erfinv logit"""),
        *_all("activates", "relu softplus exp sqrt rsqrt distance abs norm std var", 0.0),
        *_all("activates", "sigmoid hardsigmoid", 0.0, 1.0),
        *_all("activates", "tanh hardtanh sin cos erf sign", -1.0, 1.0),
        *_all("activates", "atan", -math.pi / 2, math.pi / 2),
        Operation("exp", "activates", -1.0, form="expm1"),
        *(Operation("log", "activates", logarithm=True, form=form) for form in ("", "log2", "log10")),
        *(Operation("logsumexp", "activates", logarithm=True, form=form) for form in ("", "logaddexp")),
        Operation("log_sigmoid", "activates", -math.inf, 0.0, logarithm=True),
        Operation("log_softmax", "softmax", -math.inf, 0.0, logarithm=True), Operation("softmax", "softmax", 0.0, 1.0),
        *_all("normalizes", "batch_norm layer_norm group_norm rms_norm"),
        *_all("unknown", "var_mean std_mean eigh eig svd"), *_all("drops", "dropout"), *_all("pools", "max_pool"),
        *_all("loss", """nll_loss mse_loss smooth_l1_loss huber_loss binary_cross_entropy
            binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss multilabel_margin_loss ctc_loss"""),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LossKind:
    """A kind of loss."""

    name: str  #: Its word, as rules know it.
    takes: Literal["logits", "probabilities", "log-probabilities", "values"]  #: What its predictions are.
    #: What its targets are: numbers of classes, labels of 0 and 1, signs, lists of classes, or other values.
    targets: Literal["classes", "binary", "signs", "lists", "values"]
    order: float = 0.0  #: Order of its growth with the misfit, 2 for squares; 0 where it is not declared.
    elementwise: bool = True  #: Whether it compares element by element, so that predictions and targets broadcast.
    each: bool = True  #: Whether it has a term for each compared element.

    @property
    def of_differences(self) -> bool:
        """Whether it measures differences of predictions and targets."""
        return self.takes == "values" and self.targets == "values" and self.order > 0

    @property
    def of_classes(self) -> bool:
        """Whether it is a likelihood of classes."""
        return self.targets == "classes" and self.takes != "values"

    @property
    def of_labels(self) -> bool:
        """Whether it is a likelihood of labels that are 0 or 1, each by itself."""
        return self.targets == "binary" and self.each


#: Kinds of losses by their words.
LOSSES: Mapping[str, LossKind] = {
    each.name: each
    for each in (
        LossKind("cross_entropy", "logits", "classes", elementwise=False, each=False),
        LossKind("nll_loss", "log-probabilities", "classes", elementwise=False, each=False),
        LossKind("multi_margin_loss", "values", "classes", 1.0, elementwise=False, each=False),
        LossKind("multilabel_margin_loss", "values", "lists", 1.0, elementwise=False, each=False),
        LossKind("ctc_loss", "log-probabilities", "lists", 1.0, elementwise=False, each=False),
        LossKind("binary_cross_entropy", "probabilities", "binary", 1.0),
        LossKind("binary_cross_entropy_with_logits", "logits", "binary", 1.0),
        LossKind("multilabel_soft_margin_loss", "logits", "binary", each=False),
        LossKind("soft_margin_loss", "logits", "signs", 1.0),
        LossKind("hinge_embedding_loss", "values", "signs"),
        LossKind("kl_div", "log-probabilities", "values"),
        LossKind("mse_loss", "values", "values", 2.0),
        *(LossKind(name, "values", "values", 1.0) for name in ("l1_loss", "smooth_l1_loss", "huber_loss")),
        LossKind("poisson_nll_loss", "values", "values"),
        LossKind("gaussian_nll_loss", "values", "values", each=False),
    )
}
_UNDECLARED = LossKind("", "values", "values", elementwise=False, each=False)


def loss_kind(name: str) -> LossKind:
    """The kind of loss of this name; one without any property for a name that is not declared."""
    return LOSSES.get(name, _UNDECLARED)
