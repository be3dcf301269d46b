"""How class labels lie to tokens, as the fact ``token_targets`` shows it."""

from __future__ import annotations

from watchglass.records import facts

#: Labels that are the tokens of one place, all but an error of ours; and those of another place, *house*.
MOVED, _ELSEWHERE = 0.99, 0.9
#: Labels, and different ones, below which two texts may agree by chance, *house*.
_FEWEST, _FEWEST_KINDS = 32, 3


def moved(loss: facts.ComparedLabels) -> str:
    """The position of the labels among the tokens: ``"same"``, ``"next"`` or ``"second"``; "" for none or several."""
    places = [name for name, share in loss.agreeing.items() if share >= MOVED]
    others = [name for name, share in loss.agreeing.items() if share >= _ELSEWHERE]
    enough = loss.judged >= _FEWEST and loss.distinct >= _FEWEST_KINDS
    return places[0] if enough and places and len(others) == 1 else ""


def attention_over_tokens(fact: facts.TokensAndLabels) -> list[facts.SeenByAttention]:
    """Calls of attention in which as many positions see each other as there are tokens."""
    lengths = {each.length for each in fact.losses}
    return [
        each
        for each in fact.attention
        if each.queries == each.keys and each.queries in lengths and each.itself is not False
    ]
