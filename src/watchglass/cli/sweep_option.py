"""Values of ``--sweep``: the parameters of a rule and the values to try."""

from __future__ import annotations

import math
from collections.abc import Iterable

import watchglass.rules
from watchglass.config import ParameterInfo, RuleSpec, describe, suggest
from watchglass.errors import InvalidValueError, UnknownNameError

#: Number of values of a range without a count.
_DEFAULT_COUNT = 5
#: Largest number of combinations of one back-test.
MOST_COMBINATIONS = 1000


def parse_sweeps(texts: Iterable[str], spec: RuleSpec) -> dict[str, list[str | float | int]]:
    """Values by parameter, from ``"threshold=1e-8,1e-7"`` and ``"window=4..64/5"``.

    The values of a range include both ends. Their ratio is constant if both ends are positive and the upper is at least
    ten times the lower, else their difference.

    Args:
        texts: As written on the command line.
        spec: The rule.

    Raises:
        UnknownNameError: A parameter that the rule does not have.
        InvalidValueError: A text of another form, a parameter that has a value already or takes a list, or too many
            combinations.
    """
    known = {info.name: info for info in describe(watchglass.rules.find_rule(spec.name))}
    sweeps: dict[str, list[str | float | int]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not name or not values:
            raise InvalidValueError(f"--sweep must be PARAM=VALUE,VALUE or PARAM=FROM..TO/COUNT but got {text!r}")
        if name not in known:
            has = f"; it has {', '.join(known)}" if known else "; it has none"
            raise UnknownNameError(f'--sweep: {spec.name} has no parameter "{name}"{suggest(name, known)}{has}')
        if name in spec.parameters or name in sweeps:
            raise InvalidValueError(f"--sweep {name}: this parameter already has a value; set it once")
        sweeps[name] = _values(values, known[name])
    count = math.prod(len(values) for values in sweeps.values())
    if count > MOST_COMBINATIONS:
        raise InvalidValueError(f"--sweep allows at most {MOST_COMBINATIONS:,} combinations but got {count:,}")
    return sweeps


def _values(text: str, parameter: ParameterInfo) -> list[str | float | int]:
    if parameter.type.startswith(("a list", "a table")):
        raise InvalidValueError(f"--sweep {parameter.name}: {parameter.type} cannot be swept, only single values can")
    if ".." in text and "," not in text and "number" in parameter.type:
        return _range(text, parameter)
    values = [part.strip() for part in text.split(",")]
    if not all(values):
        raise InvalidValueError(f"--sweep {parameter.name}: a value is empty in {text!r}")
    return list(dict.fromkeys(values))


def _range(text: str, parameter: ParameterInfo) -> list[str | float | int]:
    ends, slash, count_text = text.partition("/")
    low_text, _, high_text = ends.partition("..")
    try:
        low, high = float(low_text), float(high_text)
        count = int(count_text) if slash else _DEFAULT_COUNT
    except ValueError:
        low, high, count = math.nan, math.nan, 0
    if not (math.isfinite(low) and math.isfinite(high) and low < high and 2 <= count <= MOST_COMBINATIONS):
        raise InvalidValueError(
            f"--sweep {parameter.name}: a range must read FROM..TO or FROM..TO/COUNT, the larger number last and COUNT "
            f"from 2 to {MOST_COMBINATIONS:,}, but got {text!r}"
        )
    shares = [index / (count - 1) for index in range(count)]
    if low > 0 and high >= 10 * low:
        values = [low * (high / low) ** share for share in shares]
    else:
        values = [low + (high - low) * share for share in shares]
    # Round off the last digits, which are errors of the logarithm.
    rounded = [float(f"{value:.6g}") for value in values]
    if "whole" in parameter.type:
        return list(dict.fromkeys(round(value) for value in rounded))
    return list(dict.fromkeys(rounded))
