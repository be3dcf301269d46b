"""Specifications of rules from text: ``"llm,DeadRelu:window=5,threshold_layer=80,my_rules.py:MyRule"``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchglass.config import RuleSpec
from watchglass.errors import InvalidValueError

_RULE = re.compile(r"(?P<name>.+?\.py(?::[A-Za-z_]\w*(?=:|$))?|[^:=]+)(?::(?P<parameters>.*))?", re.DOTALL)


def parse_rules(texts: Iterable[str], source: str = "--rules") -> tuple[RuleSpec, ...]:
    """Rules and rule sets from the text of a command line.

    A part of the form ``name=value`` between commas belongs to the rule before it.

    Args:
        texts: ``"DeadRelu:threshold=0.5,window=5,Overfit"``, ``"my.py:MyRule"``.
        source: The option or argument, for errors.

    Raises:
        InvalidValueError: A text of another form, or no rule.
    """
    specs: list[tuple[str, dict[str, str]]] = []
    for text in texts:
        begun = False
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            if begun and _is_parameter(part):
                specs[-1][1].update([_parameter(part, specs[-1][0])])
                continue
            match = _RULE.fullmatch(part)
            if match is None:
                raise InvalidValueError(
                    f"{source} must be NAME, NAME:PARAM=VALUE or FILE.py:CLASS, separated by commas, but got {part!r}"
                )
            name, first = match["name"].strip(), match["parameters"]
            specs.append((name, dict([_parameter(first, name)]) if first else {}))
            begun = True
    if not specs:
        raise InvalidValueError(f"{source} names no rule; to evaluate no rule use watchglass run --evaluator none")
    return tuple(RuleSpec(name, dict(parameters)) for name, parameters in specs)


def _is_parameter(part: str) -> bool:
    name, equals, _ = part.partition("=")
    return bool(equals) and ":" not in name


def _parameter(part: str, rule: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals or not name.strip().isidentifier():
        raise InvalidValueError(f"a parameter of rule {rule} must be PARAM=VALUE but got {part!r}")
    return name.strip(), value.strip()
