"""Sentences of advice with numbers: their placeholders, and how these are filled in. Nothing is executed."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from watchglass.config import suggest

#: Format specifications for numbers: no width, because it could make a sentence of any length.
_NUMBER_SPEC = re.compile(r"(?:,|,?\.\d)?[efg]|,?d")

#: Longest text from the evidence of a finding in a sentence, in characters.
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class Scaling:
    """How one number follows from two others: multiplied by the factor that brings one of them to a healthy value."""

    number: str  #: Placeholder of the number that is scaled.
    by: str  #: Placeholder of the measured number that determines the factor, to which it is proportional.
    healthy: float  #: Healthy value of the measured number, above 0.
    decades: tuple[int, int]  #: Lowest and highest power of ten of the factor.
    most: float = math.inf  #: Upper limit of the result.
    least: float = 0.0  #: Lower limit of the result, at least 0.

    def of(self, number: float, measured: float | None) -> float | None:
        """The scaled number, with one significant digit; None if it cannot be scaled, or is at its limit already.

        If ``measured`` is unknown, the factor is the one of its limits that is nearer to 1. If all allowed factors
        lower the number, or all raise it, and ``measured`` asks for the opposite, there is no result.
        """
        if not math.isfinite(number) or number == 0:
            return None
        low, high = self.decades
        if measured is None or not math.isfinite(measured) or measured <= 0:
            power: float = low if abs(low) < abs(high) else high
        else:
            power = math.log10(self.healthy) - math.log10(measured)
            if (power >= 0 and high < 0) or (power <= 0 and low > 0):
                return None
            power = min(max(power, low), high)
        try:
            scaled = min(max(float(f"{number * 10.0**power:.1g}"), self.least), self.most)
        except OverflowError:
            return None
        return None if (number >= self.most if power > 0 else number <= self.least) else scaled


@dataclass(frozen=True)
class Placeholder:
    """A value that a template may mention."""

    name: str  #: Its name, between braces in a template.
    is_number: bool  #: Whether it is a number; a text otherwise.
    means: str  #: Its meaning, for people.
    otherwise: str | None = None  #: Text for an unknown value; None omits the template.
    scaling: Scaling | None = None  #: How it follows from other numbers, None if it does not.
    log10_of: str = ""  #: The number whose decimal logarithm it is, "" for none.

    @property
    def sources(self) -> tuple[str, ...]:
        """Placeholders that it follows from."""
        if self.scaling is not None:
            return (self.scaling.number, self.scaling.by)
        return (self.log10_of,) if self.log10_of else ()

    def value(self, known: Mapping[str, Any]) -> float | str | None:
        """Its value, from known values; None if unknown."""
        if self.scaling is not None:
            number = _number(known.get(self.scaling.number))
            return None if number is None else self.scaling.of(number, _number(known.get(self.scaling.by)))
        if self.log10_of:
            number = _number(known.get(self.log10_of))
            return math.log10(number) if number is not None and 0 < number < math.inf else None
        found = known.get(self.name)
        if self.is_number:
            number = _number(found)
            return number if number is not None and math.isfinite(number) else None
        if isinstance(found, str) and found:
            return found[:_LONGEST_TEXT]
        return self.otherwise


@dataclass(frozen=True)
class Template:
    """A sentence with placeholders."""

    text: str  #: As it was written, ``"Learning rate {learning_rate:.3g}: try {lower_learning_rate:g}"``.
    #: Literal text, then a placeholder's name ("" for none) and its format specification.
    parts: tuple[tuple[str, str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the placeholders in it."""
        return tuple(name for _, name, _ in self.parts if name)

    def fill(self, placeholders: Mapping[str, Placeholder], known: Mapping[str, Any]) -> str | None:
        """The sentence with its values; None if one of them is unknown."""
        filled: list[str] = []
        for literal, name, spec in self.parts:
            filled.append(literal)
            if not name:
                continue
            value = placeholders[name].value(known)
            if value is None:
                return None
            filled.append(_formatted(value, spec))
        return "".join(filled)


def parse_template(text: str, placeholders: Mapping[str, Placeholder]) -> Template:
    """A template that any values can fill in.

    Raises:
        ValueError: A placeholder is not declared, or has an attribute, element, conversion or width; the message names
            it.
    """
    try:
        raw = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"has braces that do not pair: {error}; write {{{{ and }}}} for braces themselves") from None
    parts: list[tuple[str, str, str]] = []
    for literal, name, spec, conversion in raw:
        if name is None:
            parts.append((literal, "", ""))
            continue
        if name not in placeholders:
            raise ValueError(_unknown(name, placeholders))
        if conversion:
            raise ValueError(f'must mention {{{name}}} without a conversion but got "!{conversion}"')
        is_number = placeholders[name].is_number
        if spec and not (is_number and _NUMBER_SPEC.fullmatch(spec)):
            kind = "a number, which takes .3g and the like" if is_number else "a text, which takes none"
            raise ValueError(f'cannot give {{{name}}} the format "{spec}": it is {kind}')
        parts.append((literal, name, spec or ""))
    return Template(text, tuple(parts))


def _unknown(name: str, placeholders: Iterable[str]) -> str:
    if not name.isidentifier():
        return f'must mention placeholders by name alone but got "{{{name}}}"; attributes and elements are not allowed'
    return (
        f"mentions {{{name}}}, which is not a placeholder{suggest(name, placeholders)}; declare it under "
        "[placeholders], with kind and means"
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _formatted(value: float | str, spec: str) -> str:
    if isinstance(value, str):
        return value
    text = format(round(value), spec) if spec.endswith("d") else format(value, spec or "g")
    # A number that is not zero is never called 0.
    return text if value == 0 or not math.isfinite(value) or re.search(r"[1-9]", text) else format(value, ".1g")
