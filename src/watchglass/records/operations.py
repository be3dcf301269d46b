"""Operations and losses in neutral words, into which an adapter translates the names of its framework once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class OperationKind(str, Enum):
    """What an operation does with values.

    ``ARRANGES`` chooses, repeats, moves or converts them. ``ADDS`` is linear in all that it takes, ``MATRIX``
    multiplies by a matrix (a layer, if that is a parameter), ``LOOKS_UP`` takes rows of a table. ``RECURS`` and
    ``ATTENDS`` are whole layers. ``SOFTMAX`` is one or its logarithm. ``ACTIVATES`` is any other function of elements,
    or a choice among them.
    """

    ARRANGES = "arranges"
    ADDS = "adds"
    MULTIPLIES = "multiplies"
    MATRIX = "matrix"
    LOOKS_UP = "looks_up"
    RECURS = "recurs"
    ATTENDS = "attends"
    ACTIVATES = "activates"
    SOFTMAX = "softmax"
    NORMALIZES = "normalizes"
    DROPS = "drops"
    POOLS = "pools"
    LOSS = "loss"
    PARAMETER = "parameter"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation on tensors, of which there is one object.

    Attributes:
        name: Its word, as rules know it.
        kind: What it does.
        low: Its results are never below.
        high: Nor above.
        logarithm: Whether its result may be the logarithm of a probability.
        form: Another word, where it is a form of the operation ``name``; "" where it is that itself.
    """

    name: str
    kind: OperationKind
    low: float = -math.inf
    high: float = math.inf
    logarithm: bool = False
    form: str = ""

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


def _all(kind: OperationKind, names: str, low: float = -math.inf, high: float = math.inf) -> Iterable[Operation]:
    return (Operation(name, kind, low, high) for name in names.split())


_K, _NO = OperationKind, math.inf
#: Operations by their words. ``reshape`` keeps the order of all elements, ``copy`` changes only their type, device or
#: memory, and ``rearrange`` stands for all arrangements without a word of their own. ``rsub`` is ``sub`` with its
#: operands exchanged.
OPERATIONS: Mapping[str, Operation] = {
    each.word: each
    for each in (
        *_all(_K.ARRANGES, """reshape copy transpose expand slice select split index choose gather roll pad masked_fill
            tril nan_to_num rearrange"""),
        *_all(_K.ADDS, """add sub neg cat stack sum mean cumsum index_add scatter_add scatter index_put lerp fft
            average_pool"""),
        Operation("sub", _K.ADDS, form="rsub"),
        *_all(_K.MULTIPLIES, "mul div"), Operation("mul", _K.MULTIPLIES, form="addcmul"),
        *_all(_K.MATRIX, "linear bmm convolution bilinear"),
        *_all(_K.LOOKS_UP, "embedding"), *_all(_K.RECURS, "recurrent", -1.0, 1.0), *_all(_K.ATTENDS, "attention"),
        *_all(_K.ACTIVATES, """leaky_relu prelu gelu silu elu mish hardswish shrink glu pow reciprocal maximum minimum
            max min where topk sort prod xlogy round clamp log1p"""),
        *_all(_K.ACTIVATES, "relu softplus exp sqrt rsqrt distance abs norm std var", 0.0),
        *_all(_K.ACTIVATES, "sigmoid hardsigmoid", 0.0, 1.0),
        *_all(_K.ACTIVATES, "tanh hardtanh sin cos erf sign", -1.0, 1.0),
        *_all(_K.ACTIVATES, "atan", -math.pi / 2, math.pi / 2),
        Operation("exp", _K.ACTIVATES, -1.0, form="expm1"),
        *(Operation("log", _K.ACTIVATES, logarithm=True, form=form) for form in ("", "log2", "log10")),
        *(Operation("logsumexp", _K.ACTIVATES, logarithm=True, form=form) for form in ("", "logaddexp")),
        Operation("log_sigmoid", _K.ACTIVATES, -_NO, 0.0, logarithm=True),
        Operation("log_softmax", _K.SOFTMAX, -_NO, 0.0, logarithm=True), Operation("softmax", _K.SOFTMAX, 0.0, 1.0),
        *_all(_K.NORMALIZES, "batch_norm layer_norm group_norm rms_norm"),
        *_all(_K.DROPS, "dropout"), *_all(_K.POOLS, "max_pool"),
        *_all(_K.LOSS, """nll_loss mse_loss smooth_l1_loss huber_loss binary_cross_entropy
            binary_cross_entropy_with_logits soft_margin_loss multi_margin_loss multilabel_margin_loss ctc_loss"""),
    )
}  # fmt: skip


class Takes(str, Enum):
    """What the predictions of a loss are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    LOG_PROBABILITIES = "log-probabilities"
    VALUES = "values"


class Targets(str, Enum):
    """What its targets are: numbers of classes, labels of 0 and 1, signs, lists of classes, or other values."""

    CLASSES = "classes"
    BINARY = "binary"
    SIGNS = "signs"
    LISTS = "lists"
    VALUES = "values"


@dataclass(frozen=True, slots=True)
class LossKind:
    """A kind of loss.

    Attributes:
        name: Its word, as rules know it.
        takes: What its predictions are.
        targets: What its targets are.
        order: Order of its growth with the misfit, 2 for squares; 0 where it is not declared.
        elementwise: Whether it compares element by element, so that predictions and targets broadcast.
        each: Whether it has a term for each compared element.
    """

    name: str
    takes: Takes
    targets: Targets
    order: float = 0.0
    elementwise: bool = True
    each: bool = True

    @property
    def of_differences(self) -> bool:
        """Whether it measures differences of predictions and targets."""
        return self.takes is Takes.VALUES and self.targets is Targets.VALUES and self.order > 0

    @property
    def of_classes(self) -> bool:
        """Whether it is a likelihood of classes."""
        return self.targets is Targets.CLASSES and self.takes is not Takes.VALUES

    @property
    def of_labels(self) -> bool:
        """Whether it is a likelihood of labels that are 0 or 1, each by itself."""
        return self.targets is Targets.BINARY and self.each


_T, _Y = Takes, Targets
#: Kinds of losses by their words.
LOSSES: Mapping[str, LossKind] = {
    each.name: each
    for each in (
        LossKind("cross_entropy", _T.LOGITS, _Y.CLASSES, elementwise=False, each=False),
        LossKind("nll_loss", _T.LOG_PROBABILITIES, _Y.CLASSES, elementwise=False, each=False),
        LossKind("multi_margin_loss", _T.VALUES, _Y.CLASSES, 1.0, elementwise=False, each=False),
        LossKind("multilabel_margin_loss", _T.VALUES, _Y.LISTS, 1.0, elementwise=False, each=False),
        LossKind("ctc_loss", _T.LOG_PROBABILITIES, _Y.LISTS, 1.0, elementwise=False, each=False),
        LossKind("binary_cross_entropy", _T.PROBABILITIES, _Y.BINARY, 1.0),
        LossKind("binary_cross_entropy_with_logits", _T.LOGITS, _Y.BINARY, 1.0),
        LossKind("multilabel_soft_margin_loss", _T.LOGITS, _Y.BINARY, each=False),
        LossKind("soft_margin_loss", _T.LOGITS, _Y.SIGNS, 1.0),
        LossKind("hinge_embedding_loss", _T.VALUES, _Y.SIGNS),
        LossKind("kl_div", _T.LOG_PROBABILITIES, _Y.VALUES),
        LossKind("mse_loss", _T.VALUES, _Y.VALUES, 2.0),
        *(LossKind(name, _T.VALUES, _Y.VALUES, 1.0) for name in ("l1_loss", "smooth_l1_loss", "huber_loss")),
        LossKind("poisson_nll_loss", _T.VALUES, _Y.VALUES),
        LossKind("gaussian_nll_loss", _T.VALUES, _Y.VALUES, each=False),
    )
}
_UNDECLARED = LossKind("", Takes.VALUES, Targets.VALUES, elementwise=False, each=False)


def loss_kind(name: str) -> LossKind:
    """The kind of loss of this name; one without any property for a name that is not declared."""
    return LOSSES.get(name, _UNDECLARED)
