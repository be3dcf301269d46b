"""Parts of a loss that have the wrong sign by their structure alone, independent of how the loss goes."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.rules.loss_terms import LossTerm

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
    return any(term.whole and (term.coefficient or 0) > 0 and _is_reversed_hinge(term) for term in terms)


def reversed_part(terms: Iterable[LossTerm]) -> str:
    """What is wrong about the sign of a part of a loss, as half a sentence; "" for nothing.

    Args:
        terms: All terms of the loss.
    """
    for term in terms:
        if not term.whole or not term.operations or not term.coefficient:
            continue
        if term.coefficient < 0 and _is_size_of_weights(term):
            return "the loss falls while the weights grow, because a penalty on them is subtracted from it"
        if _is_raised_surrogate(term):
            return (
                "the loss is the smaller one of the two products of advantages and ratios of probabilities, which is "
                "to be raised, and has no minus sign"
            )
        if term.coefficient > 0 and (pairs := _reversed_pairs(term)):
            return pairs
    return ""


def _is_size_of_weights(term: LossTerm) -> bool:
    """Whether a term is a sum of squares, absolutes or lengths of parameters alone, and of nothing else."""
    measures = False
    for at, each in enumerate(term.operations):
        name, given = term.name(at), term.operands(at)
        if each.get("layer") is not None or "unknown" in given or "constant" in given:
            return False
        if name == "pow" and (each.get("exponent") or 1) % 2:
            return False
        if name in _SIZES and given == ["parameter"]:
            measures = True
        elif name not in _COMBINING or "parameter" in given:
            return False
    return measures


def _is_raised_surrogate(term: LossTerm) -> bool:
    """Whether it is the clipped objective of PPO without its minus sign."""
    at, sign = len(term.operations) - 1, 1 if (term.coefficient or 0) > 0 else -1
    while term.name(at) in (*_AVERAGES, "neg") and len(term.sources(at)) == 1:
        sign = -sign if term.name(at) == "neg" else sign
        at = term.sources(at)[0]
    if term.name(at) != "minimum" or sign < 0:
        return False
    ratios = [
        term.sources(each)[0]
        for each in term.sources(at)
        if term.name(each) == "mul" and sorted(map(str, term.operands(each)))[-1:] == ["constant"]
        and len(term.sources(each)) == 1 and "factor" not in term.operations[each]
    ]  # fmt: skip
    if len(ratios) != 2:
        return False
    clipped = [each for each in ratios if term.name(each) == "clamp"]
    plain = [each for each in ratios if term.name(each) == "exp"]
    return len(clipped) == len(plain) == 1 and term.sources(clipped[0]) == plain


def _reversed_pairs(term: LossTerm) -> str:
    """Whether cross entropy makes similar pairs unlike, as half a sentence; "" if it does not."""
    at = len(term.operations) - 1
    if term.name(at) != "nll_loss" or len(term.sources(at)) != 1:
        return ""
    of = term.sources(at)[0]
    if term.name(of) != "log_softmax" or len(term.sources(of)) != 1:
        return ""
    of, sign = term.sources(of)[0], 1
    while term.name(of) in ("neg", "mul", "div") and len(term.sources(of)) == 1:
        factor = -1.0 if term.name(of) == "neg" else term.operations[of].get("factor")
        if not factor or (term.name(of) == "div" and term.operands(of)[:1] == ["constant"]):
            return ""
        of, sign = term.sources(of)[0], sign if factor > 0 else -sign
    if sign > 0 and _is_distance(term, of):
        return "cross entropy takes distances as logits, so it is low where samples are far from what they belong to"
    if sign < 0 and _is_product_of_one_layer(term, of):
        return "cross entropy takes minus the similarities of samples as logits, so it makes the pairs unlike"
    return ""


def _is_distance(term: LossTerm, at: int) -> bool:
    """Whether it is made of squared or absolute differences of two results of layers, summed over their units."""
    if term.name(at) == "distance":
        return len(term.of_layers(at)) == 2
    while term.name(at) in ("sqrt", "clamp") and len(term.sources(at)) == 1:
        at = term.sources(at)[0]
    if term.name(at) == "norm":
        of = term.sources(at)
    else:
        if term.name(at) not in _AVERAGES or len(term.sources(at)) != 1:
            return False
        square = term.sources(at)[0]
        even = term.name(square) == "pow" and term.operations[square].get("exponent") == 2
        if not even and term.name(square) != "abs":
            return False
        of = term.sources(square)
    return len(of) == 1 and term.name(of[0]) == "sub" and len(term.of_layers(of[0])) == 2


def _is_product_of_one_layer(term: LossTerm, at: int) -> bool:
    """Whether it holds the products of all pairs of results of one layer."""
    shape, sources = term.shape(at), term.sources(at)
    square = len(shape) == 2 and shape[0] == shape[1] >= _PAIRS
    if term.name(at) not in ("linear", "bmm") or term.operations[at].get("layer") is not None or not square:
        return False
    layers = [
        {term.operations[each].get("layer") for each in (source, *term.before(source))} - {None} for source in sources
    ]
    return len(layers) == 2 and layers[0] == layers[1] != set()


def _is_reversed_hinge(term: LossTerm) -> bool:
    at = len(term.operations) - 1
    while at >= 0 and term.name(at) in _AVERAGES and len(term.sources(at)) == 1:
        at = term.sources(at)[0]
    limits = [term.operations[at].get(limit) for limit in ("min", "max")] if at >= 0 else []
    if at < 0 or not (term.name(at) == "relu" or (term.name(at) == "clamp" and limits == [0, None])):
        return False
    added = next(iter(term.sources(at)), None)
    product = _of_constant(term, added, "add")
    output = _of_constant(term, product, "mul")
    # A single number is a scale, not the target of each sample.
    if output is None or product is None or "factor" in term.operations[product]:
        return False
    layers = [each for each in (output, *term.before(output)) if term.operations[each].get("layer") is not None]
    return term.name(output) in ("linear", "add") and bool(layers) and term.shape(output)[-1:] in ([1], [])


def _of_constant(term: LossTerm, at: int | None, name: str) -> int | None:
    """What an operation with this name takes besides a constant; None for others."""
    if at is None or term.name(at) != name or sorted(map(str, term.operands(at)))[-1:] != ["constant"]:
        return None
    sources = term.sources(at)
    return sources[0] if len(sources) == 1 and len(term.operands(at)) == 2 else None
