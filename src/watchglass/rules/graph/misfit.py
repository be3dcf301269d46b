"""Which way a loss goes with the misfit between outputs and targets: up, as it should, or down."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.records import loss_kind
from watchglass.rules.graph.normalization import normalized
from watchglass.rules.graph.terms import LossTerm, Made

#: Operations that keep the sign of a derivative.
_KEEPING = ("mean", "sum", "sqrt", "clamp", "average_pool")

#: The misfit in a result: 1 where that grows with it, -1 where it falls, 0 without one, None if unclear.
Sign = int | None


def sign_of(terms: Iterable[LossTerm]) -> int:
    """1 where a loss grows with the misfit, -1 where it falls; 0 where its terms disagree, or that is not known.

    Args:
        terms: Terms of the loss that depend on data.
    """
    found: set[Sign] = set()
    for term in terms:
        sign = term.last.value(_sign) if term.last is not None else None
        if sign and not term.coefficient:
            sign = None
        found.add(sign and (sign if (term.coefficient or 0) > 0 else -sign))
    found.discard(0)
    return (found.pop() or 0) if len(found) == 1 else 0


def _sign(made: Made) -> Sign:
    name, first = made.name, made.first
    if loss_kind(name).order or _is_distance(made):
        return 1
    if made.operation.high == 0 or _is_binary(made) or _is_overlap(made):
        return -1
    if name == "sub" and made.value(normalized):
        return -1
    if name == "sub" and first is not None and first.name == "logsumexp" and made.sources[1:] == first.sources:
        return 1
    if name == "log":
        return _of_logarithm(made)
    found = [each.value(_sign) for each in made.sources]
    if first is None or not any(each != 0 for each in found):
        return -1 if _is_similarity(made) else 0
    sign = first.value(_sign)
    if name == "nll_loss":
        return None if sign is None else -sign
    return _of_one(made, sign) if len(found) == 1 else _of_several(made, found)


def _of_one(made: Made, first: Sign) -> Sign:
    """An operation on a misfit and constants."""
    name, given = made.name, made.operands
    if first is None or name in _KEEPING or (name == "add" and "unknown" not in given):
        return first
    if name == "neg":
        return -first
    if name == "sub" and "unknown" not in given:
        return first if len(given) == 2 and given[1] == "constant" else -first
    factor = made.data.factor
    # The number that weighs a log-probability may be a reward.
    if factor and not _of_likelihood(made):
        return first if factor > 0 else -first
    # The weights of samples are positive. Those of log-probabilities may be rewards, unless each class has one.
    weighed = name in ("mul", "div") and "constant" in given
    by_class = len(made.shape) > 1 and made.shape[-1] > 1
    if weighed and (not _of_likelihood(made) or by_class):
        return first
    return None


def _of_several(made: Made, found: list[Sign]) -> Sign:
    name, sources = made.name, made.sources
    if None in found or len(sources) != 2:
        return None
    one, other = (each or 0 for each in found)
    if name == "add":
        return one if other in (0, one) else other if one == 0 else None
    if name == "sub":
        return one if other in (0, -one) else -other if one == 0 else None
    if name not in ("mul", "div") or (one and other) or (name == "div" and other):
        return None
    factor = sources[1] if one else sources[0]
    # A likelihood that its probability weighs is an entropy.
    entropy = _of_likelihood(made) and any(each.operation.probability for each in (factor, *sources))
    return None if entropy else (one or other) * _factor(factor) or None


def _of_logarithm(made: Made) -> Sign:
    """The logarithm of a probability, or of what is left of one where labels weigh it."""
    of = made.first
    while of is not None and of.shifted:
        weighed = all(each.name == "mul" for each in made.takers)
        of = None if of.name == "sub" and not weighed else of.sources[0]
    if of is not None and of.operation.probability:
        return -1
    return 0 if not any(each.value(_sign) != 0 for each in made.sources) else None


def _of_likelihood(made: Made) -> bool:
    return any(each.operation.logarithm for each in made.before)


def _is_binary(made: Made) -> bool:
    """Whether it is the likelihood of labels: of a probability and of what is left of it, each weighed."""
    sources = made.sources
    if made.name != "add" or len(sources) != 2:
        return False
    weighed = all(each.name == "mul" and "constant" in each.operands for each in sources)
    logarithms = [other for each in sources for other in each.sources] if weighed else []
    if len(logarithms) != 2 or any(each.name != "log" for each in logarithms):
        return False
    one, other = ({each, *each.before} for each in logarithms)
    return bool(one & other) and any(each.name == "sub" for each in one ^ other)


def _is_distance(made: Made) -> bool:
    """Whether it is the square, the absolute or the length of a difference to targets."""
    of = made.first
    squared = (made.name == "pow" and made.data.exponent == 2) or (made.name == "mul" and made.sources == [of, of])
    measured = squared or made.name in ("abs", "norm")
    return measured and of is not None and of.name == "sub" and "constant" in of.others


def _is_similarity(made: Made) -> bool:
    """Whether it is a sum of products of targets and outputs that are divided by their length."""
    of = made.first
    if made.name != "sum" or of is None or of.name != "mul":
        return False
    divided = of.first
    if "constant" not in of.operands or divided is None or divided.name != "div":
        return False
    return any(each.name == "norm" for each in divided.before)


def _is_overlap(made: Made) -> bool:
    """Whether it is what probabilities share with targets, over their sums (Dice, Jaccard)."""
    sources = made.sources
    if made.name != "div" or len(sources) != 2:
        return False
    shared, whole = ([each, *each.before] for each in sources)
    weighed = [each for each in shared if each.name == "mul" and "constant" in each.others and not each.data.factor]
    shares = {each for product in weighed for each in product.sources}
    inputs = {other for each in shares for other in (each, *each.before)}
    summed = any(each.name in ("sum", "mean") for each in whole) and bool(shares & {*whole})
    added = all(each.name != "neg" for each in (*shared, *whole) if each not in inputs)
    return summed and added and bool(shares) and all(each.operation.probability for each in shares)


def _factor(made: Made) -> int:
    """1 for what is never negative, -1 for what is never positive, else 0."""
    name = made.name
    if made.operation.low >= 0 or (name == "pow" and (made.data.exponent or 1) % 2 == 0):
        return 1
    if name in ("neg", "mean", "sum", "clamp") or (name in ("mul", "add", "div") and len(made.sources) == 1):
        return (-1 if name == "neg" else 1) * _factor(made.sources[0])
    return 0
