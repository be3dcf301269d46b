"""Kinds of facts that capture can record, and which of them it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from watchglass.records import DeclaredFact, facts

#: Kinds of facts that can be switched on and off, by name.
FACTS: Mapping[str, type[DeclaredFact]] = MappingProxyType(
    {kind.KIND: kind for kind in vars(facts).values() if getattr(kind, "NEEDED_BY", None) is not None}
)

#: Facts that evaluations have as well, at some of their first steps whatever is captured there.
SKETCHES = frozenset({"input_sketch", "output_sketch", "target_sketch"})


def chosen_facts(names: Iterable[str] | None) -> frozenset[str]:
    """The kinds to record: those named, or those that the report or the default rules need where ``names`` is None."""
    if names is None:
        return frozenset(name for name, kind in FACTS.items() if kind.NEEDED_BY)
    return frozenset(names)


def facts_for(needed: Iterable[str], *, default: bool) -> tuple[str, ...] | None:
    """The kinds to record for some rules, sorted; None where these are those that are recorded when nothing is chosen.

    Args:
        needed: Kinds of facts that rules look at.
        default: Whether the default rules are among them.
    """
    shown = {name for name, kind in FACTS.items() if kind.NEEDED_BY == "report"}
    base = chosen_facts(None) if default else shown
    kinds = base | FACTS.keys() & set(needed)
    return None if kinds == chosen_facts(None) else tuple(sorted(kinds))
