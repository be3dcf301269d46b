"""Which way a loss goes with the misfit between outputs and targets: up, as it should, or down."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.rules.loss_terms import LossTerm

#: Losses that grow with the misfit.
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
           "binary_cross_entropy_with_logits", "soft_margin_loss", "multi_margin_loss", "ctc_loss")  # fmt: skip
_PROBABILITIES = ("softmax", "sigmoid")
_LOGARITHMS = ("log", "log_softmax", "log_sigmoid", "logsumexp")
#: Operations that keep the sign of a derivative.
_KEEPING = ("mean", "sum", "sqrt", "clamp", "average_pool")
#: Operations whose results are never negative.
_NEVER_NEGATIVE = ("exp", "softmax", "sigmoid", "relu", "softplus", "abs", "norm", "sqrt")


def sign_of(terms: Iterable[LossTerm]) -> int:
    """1 where a loss grows with the misfit, -1 where it falls; 0 where its terms disagree, or that is not known.

    Args:
        terms: Terms of the loss that depend on data.
    """
    found: set[int | None] = set()
    for term in terms:
        sign = _Misfit(term).sign() if term.whole and term.operations else None
        if sign and not term.coefficient:
            sign = None
        found.add(sign and (sign if (term.coefficient or 0) > 0 else -sign))
    found.discard(0)
    return (found.pop() or 0) if len(found) == 1 else 0


class _Misfit:
    """The misfit in one term: 1 where a result grows with it, -1 where it falls, 0 without one, None if unclear."""

    def __init__(self, term: LossTerm) -> None:
        self._term = term
        self._known: dict[int, int | None] = {}

    def sign(self) -> int | None:
        """That of the term."""
        # Operands come first.
        for at in range(len(self._term.operations)):
            self._known[at] = self._of(at)
        return self._known[len(self._term.operations) - 1]

    def _of(self, at: int) -> int | None:
        term = self._term
        name, sources = term.name(at), term.sources(at)
        if name in _LOSSES:
            return 1
        if name in ("log_softmax", "log_sigmoid"):
            return -1
        if self._is_distance(at):
            return 1
        if self._is_binary(at) or self._is_overlap(at):
            return -1
        if name == "sub" and (normalized := self._normalized(at)):
            return normalized
        if name == "log":
            return self._of_logarithm(at)
        found = [self._known[each] for each in sources]
        if not any(each != 0 for each in found):
            return -1 if self._is_similarity(at) else 0
        first = found[0]
        if name == "nll_loss":
            return None if first is None else -first
        if len(sources) == 1:
            return self._of_one(at, first)
        return self._of_several(at, found)

    def _of_one(self, at: int, first: int | None) -> int | None:
        """An operation on a misfit and constants."""
        term, name = self._term, self._term.name(at)
        given = term.operands(at)
        if first is None or name in _KEEPING or (name == "add" and "unknown" not in given):
            return first
        if name == "neg":
            return -first
        if name == "sub" and "unknown" not in given:
            return first if len(given) == 2 and given[1] == "constant" else -first
        factor = term.operations[at].get("factor")
        # The number that weighs a log-probability may be a reward.
        if factor and not self._of_likelihood(at):
            return first if factor > 0 else -first
        # The weights of samples are positive. Those of log-probabilities may be rewards, unless each class has one.
        weighed = name in ("mul", "div") and "constant" in given
        by_class = len(term.shape(at)) > 1 and term.shape(at)[-1] > 1
        if weighed and (not self._of_likelihood(at) or by_class):
            return first
        return None

    def _of_several(self, at: int, found: list[int | None]) -> int | None:
        term, name = self._term, self._term.name(at)
        sources = term.sources(at)
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
        entropy = self._of_likelihood(at) and any(term.name(each) in _PROBABILITIES for each in (factor, *sources))
        return None if entropy else (one or other) * self._factor(factor) or None

    def _of_logarithm(self, at: int) -> int | None:
        """The logarithm of a probability, or of what is left of one where labels weigh it."""
        term, of = self._term, next(iter(self._term.sources(at)), None)
        while of is not None and term.shifted(of):
            weighed = all(term.name(each) == "mul" for each in term.takers.get(at, ()))
            of = None if term.name(of) == "sub" and not weighed else term.sources(of)[0]
        if of is not None and term.name(of) in _PROBABILITIES:
            return -1
        return 0 if not any(self._known[each] != 0 for each in term.sources(at)) else None

    def _of_likelihood(self, at: int) -> bool:
        return any(self._term.name(each) in _LOGARITHMS for each in self._term.before(at))

    def _normalized(self, at: int) -> int:
        """-1 for an output less its logsumexp, a log-probability, 1 for the reverse, 0 for others."""
        term, given = self._term, self._term.operands(at)
        for sums, output, sign in ((given[1:2], given[:1], -1), (given[:1], given[1:2], 1)):
            if all(isinstance(each, int) and term.name(each) == "logsumexp" for each in sums) and sums:
                return sign if term.sources(sums[0]) == list(output) else 0
        return 0

    def _is_binary(self, at: int) -> bool:
        """Whether it is the likelihood of labels: of a probability and of what is left of it, each weighed."""
        term, sources = self._term, self._term.sources(at)
        if term.name(at) != "add" or len(sources) != 2:
            return False
        weighed = all(term.name(each) == "mul" and "constant" in term.operands(each) for each in sources)
        logarithms = [other for each in sources for other in term.sources(each)] if weighed else []
        if len(logarithms) != 2 or any(term.name(each) != "log" for each in logarithms):
            return False
        one, other = ({each, *term.before(each)} for each in logarithms)
        return bool(one & other) and any(term.name(each) == "sub" for each in one ^ other)

    def _is_distance(self, at: int) -> bool:
        """Whether it is the square, the absolute or the length of a difference to targets."""
        term, of = self._term, next(iter(self._term.sources(at)), None)
        squared = term.name(at) in ("abs", "norm") or (
            term.name(at) == "pow" and term.operations[at].get("exponent") == 2
        )
        if term.name(at) == "mul" and term.sources(at) == [of, of]:
            squared = True
        return squared and of is not None and term.name(of) == "sub" and "constant" in term.operands(of)

    def _is_similarity(self, at: int) -> bool:
        """Whether it is a sum of products of targets and outputs that are divided by their length."""
        term, of = self._term, next(iter(self._term.sources(at)), None)
        if term.name(at) != "sum" or of is None or term.name(of) != "mul":
            return False
        given = term.operands(of)
        made = next(iter(term.sources(of)), None)
        if "constant" not in given or made is None or term.name(made) != "div":
            return False
        return any(term.name(each) == "norm" for each in term.before(made))

    def _is_overlap(self, at: int) -> bool:
        """Whether it is what probabilities share with targets, over their sums (Dice, Jaccard)."""
        term, sources = self._term, self._term.sources(at)
        if term.name(at) != "div" or len(sources) != 2:
            return False
        shared, whole = ([each, *term.before(each)] for each in sources)
        weighed = [
            each
            for each in shared
            if term.name(each) == "mul" and "constant" in term.operands(each) and "factor" not in term.operations[each]
        ]
        made = {each for product in weighed for each in term.sources(product)}
        summed = any(term.name(each) in ("sum", "mean") for each in whole) and bool(made & {*whole})
        added = all(term.name(each) != "neg" for each in (*shared, *whole) if each not in self._inputs(made))
        return summed and added and bool(made) and all(term.name(each) in _PROBABILITIES for each in made)

    def _inputs(self, made: set[int]) -> set[int]:
        return {other for each in made for other in (each, *self._term.before(each))}

    def _factor(self, at: int) -> int:
        """1 for what is never negative, -1 for what is never positive, else 0."""
        term, name = self._term, self._term.name(at)
        if name in _NEVER_NEGATIVE or (name == "pow" and (term.operations[at].get("exponent") or 1) % 2 == 0):
            return 1
        if name in ("neg", "mean", "sum", "clamp") or (name in ("mul", "add", "div") and len(term.sources(at)) == 1):
            return (-1 if name == "neg" else 1) * self._factor(term.sources(at)[0])
        return 0
