"""Whether a loss falls without limit while a model's outputs grow: then one of its signs is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from watchglass.records import loss_kind
from watchglass.rules.graph.terms import LossTerm, Made

#: Order of an exponential: above that of any usual power.
_EXPONENTIAL = 8.0


class Growth(NamedTuple):
    """How fast a result can grow with outputs that grow, in both directions."""

    up: float  #: Order of its growth: 1 for linear, 2 for squares; 0 where it has a limit.
    down: float  #: The same towards minus infinity.

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
#: Operations that give an output of a layer.
_LAYERS = ("matrix", "looks_up")
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
        values = [made.value(_growth) for made in term.results]
        found = values[-1] if term.last is not None else None
        if found is None or None in values:
            return False
        if term.coefficient is None:
            found = found.either
        elif term.coefficient < 0:
            found = found.negative
        # A term of no layer, such as a penalty, may be about any of them.
        same = [each for each in heads if not term.layers or not each[0] or each[0] & term.layers]
        heads = [each for each in heads if each not in same]
        heads.append((term.layers.union(*(each[0] for each in same)), _largest([found, *(each[1] for each in same)])))
    return any(growth.down > growth.up for _, growth in heads)


def _growth(made: Made) -> Growth | None:
    """Growth of a result; None where that of one before it, or its operation, is not known."""
    operation, name, given = made.operation, made.name, made.operands
    if operation.kind in _LAYERS:
        return _LINEAR
    if operation.limited:
        return _LIMITED
    if operation.high == 0:
        return Growth(0.0, 1.0)
    if order := loss_kind(name).order:
        return Growth(order, 0.0)
    values = [each.value(_growth) if isinstance(each, Made) else _LINEAR for each in given if each != "constant"]
    found = [each for each in values if each is not None]
    if "unknown" in given or len(found) < len(values):
        return None
    if not found:
        return _LIMITED
    if name in _OF_ONE:
        return _OF_ONE[name](_largest(found))
    if name == "pow":
        return _power(found[0], made.data.exponent)
    if name == "clamp":
        limits = [getattr(made.data, limit) is None for limit in ("max", "min")]
        return Growth(*(order if free else 0.0 for free, order in zip(limits, found[0], strict=True)))
    if name in ("maximum", "minimum"):
        return _extreme(found, upper=name == "maximum", fixed=len(found) < len(given))
    if name == "add":
        return _largest(found)
    if name == "sub":
        return _difference(found, first=given[0] != "constant" and len(given) > 1)
    if name in ("mul", "div"):
        return _product(made, found)
    return None


def _largest(found: list[Growth]) -> Growth:
    return Growth(max(each.up for each in found), max(each.down for each in found))


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
    return _largest([found[0], found[1].negative])


def _product(made: Made, found: list[Growth]) -> Growth | None:
    sources, name = made.sources, made.name
    if len(found) == 1:
        number = made.data.factor
        if name == "div" and made.operands[0] == "constant":
            return None
        return found[0].either if number is None else found[0] if number > 0 else found[0].negative
    if len(sources) != 2:
        return found[0].either
    one, other = found
    if name == "div":
        # By a length: of the same order as what it divides.
        if any(each.name in ("norm", "std") for each in (sources[1], *sources[1].before)):
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
