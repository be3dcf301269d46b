"""Whether a loss falls without limit while a model's outputs grow: then one of its signs is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from watchglass.rules.loss_terms import LossTerm

#: Order of an exponential: above that of any usual power.
_EXPONENTIAL = 8.0


class Growth(NamedTuple):
    """How fast a result can grow with outputs that grow, in both directions.

    Attributes:
        up: Order of its growth: 1 for linear, 2 for squares; 0 where it has a limit.
        down: The same towards minus infinity.
    """

    up: float
    down: float

    @property
    def negative(self) -> Growth:
        """That of minus the result."""
        return Growth(self.down, self.up)

    @property
    def either(self) -> Growth:
        """That of the result times a number of any sign."""
        return Growth(max(self), max(self))

    def times(self, order: float) -> Growth:
        """That of an even power."""
        return Growth(min(_EXPONENTIAL, order * max(self)), 0.0)


_LIMITED, _LINEAR = Growth(0.0, 0.0), Growth(1.0, 1.0)
#: Operations with one fixed growth, independent of their inputs.
_FIXED: Mapping[str, Growth] = {
    **dict.fromkeys(("linear", "convolution", "bmm", "embedding", "bilinear"), _LINEAR),
    **dict.fromkeys(("softmax", "sigmoid", "tanh", "hardtanh", "sin", "cos", "atan", "erf", "sign", "recurrent"),
                    _LIMITED),
    **dict.fromkeys(("log_softmax", "log_sigmoid"), Growth(0.0, 1.0)),
    **dict.fromkeys(
        ("l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
         "soft_margin_loss", "multi_margin_loss", "ctc_loss"), Growth(1.0, 0.0)
    ),
    "mse_loss": Growth(2.0, 0.0),
}  # fmt: skip
#: Operations on one result.
_OF_ONE: Mapping[str, Callable[[Growth], Growth]] = {
    **dict.fromkeys(("mean", "sum", "average_pool", "max_pool", "cat", "stack", "dropout", "leaky_relu", "prelu",
                     "logsumexp", "max", "min", "topk", "sort", "cumsum", "scatter", "where"), lambda of: of),
    **dict.fromkeys(("neg", "nll_loss"), lambda of: of.negative),
    **dict.fromkeys(("relu", "softplus", "gelu", "silu", "elu", "mish"), lambda of: Growth(of.up, 0.0)),
    **dict.fromkeys(("abs", "norm", "std"), lambda of: of.times(1)),
    "var": lambda of: of.times(2),
    "exp": lambda of: Growth(_EXPONENTIAL if of.up else 0.0, 0.0),
    "sqrt": lambda of: Growth(of.up / 2, 0.0),
    # Near zero a logarithm falls as what an exponential or a softmax has made falls linearly.
    "log": lambda of: Growth(min(of.up, 1.0), 1.0),
    "log1p": lambda of: Growth(min(of.up, 1.0), 0.0),
}  # fmt: skip


def falls_without_limit(terms: Iterable[LossTerm]) -> bool:
    """Whether the terms of a loss that fall while outputs grow outweigh those that rise.

    Terms of different last layers are compared apart: what one head of a model gives can grow alone.

    Args:
        terms: All terms of the loss. With one that is not known as a whole the answer is False.
    """
    heads: list[tuple[set[str], Growth]] = []
    for term in terms:
        found = _of(term) if term.whole and term.operations else None
        if found is None:
            return False
        if term.coefficient is None:
            found = found.either
        elif term.coefficient < 0:
            found = found.negative
        layers = {str(each["layer"]) for each in term.operations if each.get("layer") is not None}
        # A term of no layer, such as a penalty, may be about any of them.
        same = [each for each in heads if not layers or not each[0] or each[0] & layers]
        heads = [each for each in heads if each not in same]
        names = layers.union(*(each[0] for each in same))
        growths = [found, *(each[1] for each in same)]
        heads.append((names, Growth(max(each.up for each in growths), max(each.down for each in growths))))
    return any(growth.down > growth.up for _, growth in heads)


def _of(term: LossTerm) -> Growth | None:
    known: dict[int, Growth] = {}
    # Operands come first.
    for at in range(len(term.operations)):
        found = _result(term, at, known)
        if found is None:
            return None
        known[at] = found
    return known[len(term.operations) - 1]


def _result(term: LossTerm, at: int, known: Mapping[int, Growth]) -> Growth | None:
    each, name, given = term.operations[at], term.name(at), term.operands(at)
    if name in _FIXED:
        return _FIXED[name]
    if "unknown" in given:
        return None
    found = [known[other] if isinstance(other, int) else _LINEAR for other in given if other != "constant"]
    if not found:
        return _LIMITED
    if name in _OF_ONE:
        of = Growth(max(one.up for one in found), max(one.down for one in found))
        return _OF_ONE[name](of)
    if name == "pow":
        return _power(found[0], each.get("exponent"))
    if name == "clamp":
        return Growth(
            *(
                0.0 if each.get(limit) is not None else order
                for limit, order in zip(("max", "min"), found[0], strict=True)
            )
        )
    if name in ("maximum", "minimum"):
        return _extreme(found, upper=name == "maximum", fixed=len(found) < len(given))
    if name == "add":
        return Growth(max(one.up for one in found), max(one.down for one in found))
    if name == "sub":
        return _difference(found, first=given[0] != "constant" and len(given) > 1)
    if name in ("mul", "div"):
        return _product(term, at, found)
    return None


def _power(of: Growth, exponent: float | None) -> Growth | None:
    if exponent is None or exponent <= 0:
        return None
    if exponent == 1:
        return of
    return of.times(exponent) if exponent % 2 == 0 or not of.down else None


def _extreme(found: list[Growth], *, upper: bool, fixed: bool) -> Growth:
    """The larger or smaller one of several results, and of constants."""
    ups, downs = [one.up for one in found], [one.down for one in found]
    if upper:
        return Growth(max(ups), 0.0 if fixed else min(downs))
    return Growth(0.0 if fixed else min(ups), max(downs))


def _difference(found: list[Growth], *, first: bool) -> Growth:
    if len(found) == 1:
        return found[0] if first else found[0].negative
    one, other = found[0], found[1].negative
    return Growth(max(one.up, other.up), max(one.down, other.down))


def _product(term: LossTerm, at: int, found: list[Growth]) -> Growth | None:
    sources, name = term.sources(at), term.name(at)
    if len(found) == 1:
        factor = term.operations[at].get("factor")
        if name == "div" and term.operands(at)[0] == "constant":
            return None
        return found[0].either if factor is None else found[0] if factor > 0 else found[0].negative
    if len(sources) != 2:
        return found[0].either
    one, other = found
    if name == "div":
        # By a length: of the same order as what it divides.
        if any(term.name(each) in ("norm", "std") for each in (sources[1], *term.before(sources[1]))):
            return _LIMITED
        return one if not other.down else one.either
    if sources[0] == sources[1]:
        return one.times(2)
    for factor, result in ((one, other), (other, one)):
        if max(factor) == 0.0 and max(result) and not result.up:
            return _LIMITED  # a probability times its logarithm
    if not one.down and not other.down:
        return Growth(min(_EXPONENTIAL, one.up + other.up), 0.0)
    for factor, result in ((one, other), (other, one)):
        if not factor.down:
            return Growth(*(min(_EXPONENTIAL, order + factor.up) if order else 0.0 for order in result))
    return Growth(one.up + other.up, one.up + other.up)
