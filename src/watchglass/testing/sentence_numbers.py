"""Numbers in the sentence of a finding that none of its measured values explains."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from watchglass.config import describe
from watchglass.records import Finding
from watchglass.rules import Rule, state_of

#: A number that stands alone: not part of a name ("float16", "model_4.3"), a path or a power ("10^-3").
_NUMBER = re.compile(
    r"(?<![\w^/.])(?P<digits>-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"(?P<unit> (?:%|ms|minutes|hours|days|MB|GB)(?!\w))?(?![\w^]|\.\d)"
)
#: How many of a unit in sentences are one in records, which may be in the unit of sentences too.
_PER_UNIT = {
    " %": 100.0, " ms": 1000.0, " minutes": 1 / 60, " hours": 1 / 3600, " days": 1 / 86_400, " MB": 1e-6, " GB": 1e-9,
}  # fmt: skip
#: Most numbers in a field of the state of a rule that are looked at.
_MOST_IN_STATE = 16


def unmeasured_numbers(finding: Finding, rule: Rule) -> list[str]:
    """The numbers of the sentence of a finding that are not among what it measured, as they are written there.

    A number is measured if it is the value, the limit, a step or an evidence of the finding, a parameter of its rule,
    in the rule's state, or how many entries a list of these has, rounded as it is written, also in the unit of the
    sentence. Of lists in the state only short ones count, because any number is near one of many. Numbers of 0 and 1
    and those in the names of tensors are not looked at.

    Args:
        finding: A finding.
        rule: Its rule, as it is when it yields the finding.
    """
    sentence = finding.message
    for name in sorted(_texts((*finding.tensors, finding.evidence)), key=len, reverse=True):
        sentence = sentence.replace(name, "")
    steps = (finding.step, finding.last_step, finding.since, finding.global_step)
    state = [value for value in plain_state(rule).values() if not _is_long(value)]
    parameters = [getattr(rule, info.name) for info in describe(type(rule))]
    evidence = [value for name, value in finding.evidence.items() if name != "symptoms"]
    measured = (finding.value, finding.limit, *steps, finding.tensors, *evidence, *parameters, *state)
    known = {abs(each) for value in measured for each in _numbers(value) if math.isfinite(each)}
    return [
        found[0]
        for found in _NUMBER.finditer(sentence)
        if Decimal(found["digits"].replace(",", "")) not in (0, 1) and not _is_one_of(found, known)
    ]


def plain_state(rule: Rule) -> dict[str, Any]:
    """A copy of what a rule keeps from step to step, of plain JSON types."""
    text = json.dumps(state_of(rule), default=lambda each: each.tolist() if hasattr(each, "tolist") else vars(each))
    copied: dict[str, Any] = json.loads(text)
    return copied


def _is_one_of(found: re.Match[str], known: Iterable[float]) -> bool:
    """Whether a written number is one of these, within half a unit of its last digit."""
    written = Decimal(found["digits"].replace(",", ""))
    half = float(Decimal((0, (5,), int(written.as_tuple().exponent) - 1))) * (1 + 1e-6)
    scales = {1.0, _PER_UNIT.get(found["unit"] or "", 1.0)}
    return any(abs(scale * each - abs(float(written))) <= half for each in known for scale in scales)


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a plain value, also in its texts, and how many entries its lists have."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, str):
        for found in _NUMBER.finditer(value):
            yield float(found["digits"].replace(",", ""))
    else:
        entries = [*value.values()] if isinstance(value, Mapping) else [*value]
        yield len(entries)
        for each in entries:
            yield from _numbers(each)


def _is_long(value: Any) -> bool:
    return len([*_numbers(value)]) > _MOST_IN_STATE


def _texts(value: Any) -> Iterator[str]:
    """All texts in a plain value with a letter."""
    if isinstance(value, str):
        if re.search("[a-zA-Z]", value):
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)
