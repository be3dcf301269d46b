"""Parts of a loss that have the wrong sign by their structure alone, independent of how the loss goes."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.rules.graph.terms import LossTerm, Made

#: Operations of a penalty that are never negative, and those that only combine such values.
_SIZES, _COMBINING = ("pow", "abs", "norm"), ("sum", "mean", "sqrt", "stack", "cat", "add")
#: Operations that combine the losses of samples.
_AVERAGES = ("mean", "sum")
#: Samples from which on a square of similarities is one of pairs in a batch (house).
_PAIRS = 4


def reversed_hinge(terms: Iterable[LossTerm]) -> bool:
    """Whether a loss is a hinge on one plus target times output: zero where the output has the wrong sign.

    Args:
        terms: Terms of the loss that depend on data.
    """
    return any(
        term.last is not None and (term.coefficient or 0) > 0 and _is_reversed_hinge(term.last) for term in terms
    )


def reversed_part(terms: Iterable[LossTerm]) -> str:
    """What is wrong about the sign of a part of a loss, as half a sentence; "" for nothing.

    Args:
        terms: All terms of the loss.
    """
    for term in terms:
        if term.last is None or not term.coefficient:
            continue
        if term.coefficient < 0 and _is_size_of_weights(term):
            return "the loss falls while the weights grow, because a penalty on them is subtracted from it"
        if _is_raised_surrogate(term.last, term.coefficient > 0):
            return (
                "the loss is the smaller one of the two products of advantages and ratios of probabilities, which is "
                "to be raised, and has no minus sign"
            )
        if term.coefficient > 0 and (pairs := _reversed_pairs(term.last)):
            return pairs
    return ""


def _is_size_of_weights(term: LossTerm) -> bool:
    """Whether a term is a sum of squares, absolutes or lengths of parameters alone, and of nothing else."""
    measures = False
    for each in term.results:
        name, given = each.name, each.operands
        if each.layer is not None or each.others - {"parameter"}:
            return False
        if name == "pow" and (each.data.exponent or 1) % 2:
            return False
        if name in _SIZES and given == ["parameter"]:
            measures = True
        elif name not in _COMBINING or each.others:
            return False
    return measures


def _is_raised_surrogate(at: Made, positive: bool) -> bool:
    """Whether it is the clipped objective of PPO without its minus sign."""
    while at.name in (*_AVERAGES, "neg") and len(at.sources) == 1:
        positive = positive is (at.name != "neg")
        at = at.sources[0]
    if at.name != "minimum" or not positive:
        return False
    weighed = [each for each in at.sources if each.name == "mul" and each.others == {"constant"}]
    ratios = [each.sources[0] for each in weighed if len(each.sources) == 1 and each.data.factor is None]
    if len(ratios) != 2:
        return False
    clipped = [each for each in ratios if each.name == "clamp"]
    plain = [each for each in ratios if each.name == "exp"]
    return len(clipped) == len(plain) == 1 and clipped[0].sources == plain


def _reversed_pairs(at: Made) -> str:
    """Whether cross entropy makes similar pairs unlike, as half a sentence; "" if it does not."""
    if at.name != "nll_loss" or len(at.sources) != 1:
        return ""
    of = at.sources[0]
    if of.name != "log_softmax" or len(of.sources) != 1:
        return ""
    of, sign = of.sources[0], 1
    while of.name in ("neg", "mul", "div") and len(of.sources) == 1:
        factor = -1.0 if of.name == "neg" else of.data.factor
        if not factor or (of.name == "div" and of.operands[:1] == ["constant"]):
            return ""
        of, sign = of.sources[0], sign if factor > 0 else -sign
    if sign > 0 and _is_distance(of):
        return "cross entropy takes distances as logits, so it is low where samples are far from what they belong to"
    if sign < 0 and _is_product_of_one_layer(of):
        return "cross entropy takes minus the similarities of samples as logits, so it makes the pairs unlike"
    return ""


def _is_distance(at: Made) -> bool:
    """Whether it is made of squared or absolute differences of two results of layers, summed over their units."""
    if at.name == "distance":
        return len(at.of_layers) == 2
    at = at.back(("sqrt", "clamp"))
    if at.name == "norm":
        of = at.sources
    else:
        if at.name not in _AVERAGES or len(at.sources) != 1:
            return False
        square = at.sources[0]
        even = square.name == "pow" and square.data.exponent == 2
        if not even and square.name != "abs":
            return False
        of = square.sources
    return len(of) == 1 and of[0].name == "sub" and len(of[0].of_layers) == 2


def _is_product_of_one_layer(at: Made) -> bool:
    """Whether it holds the products of all pairs of results of one layer."""
    shape, sources = at.shape, at.sources
    square = len(shape) == 2 and shape[0] == shape[1] >= _PAIRS
    if at.name not in ("linear", "bmm") or at.layer is not None or not square:
        return False
    layers = [{each.layer for each in (source, *source.before)} - {None} for source in sources]
    return len(layers) == 2 and layers[0] == layers[1] != set()


def _is_reversed_hinge(at: Made) -> bool:
    at = at.back(_AVERAGES)
    if not (at.name == "relu" or (at.name == "clamp" and (at.data.min, at.data.max) == (0, None))):
        return False
    product = _of_constant(at.first, "add")
    output = _of_constant(product, "mul")
    # A single number is a scale, not the target of each sample.
    if output is None or product is None or product.data.factor is not None:
        return False
    layers = any(each.layer is not None for each in (output, *output.before))
    return output.name in ("linear", "add") and layers and output.shape[-1:] in ([1], [])


def _of_constant(at: Made | None, name: str) -> Made | None:
    """What an operation with this name takes besides a constant; None for others."""
    if at is None or at.name != name or at.others != {"constant"}:
        return None
    return at.first if len(at.sources) == 1 and len(at.operands) == 2 else None
