"""Which symptoms a rule can report: those that its code names."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from watchglass.rules.knowledge import built_in_knowledge
from watchglass.rules.rule import Rule

_PACKAGE = __name__.rpartition(".")[0]
#: Modules whose functions every rule calls and that report nothing.
_CONTRACT = ("rule", "needs", "registry", "reported_symptoms")


def symptoms_of(cls: type[Rule]) -> tuple[str, ...]:
    """Identifiers of the symptoms that a rule can report, in the order of ``causes.toml``.

    They are read from its code: every text that is the identifier of a built-in symptom, in the class, and in what the
    class uses of this package and of its module. A rule has no list of its symptoms that could differ from its code.
    Tests compare the result with the symptoms that rules report.
    """
    named: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [cls]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for found in _parts(each, cls.__module__):
            if isinstance(found, str):
                named.add(found)
            else:
                waiting.append(found)
    return tuple(name for name in built_in_knowledge().symptoms if name in named)


def _parts(value: Any, own: str) -> Iterator[Any]:
    """Texts in ``value`` and further values that it uses."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from value
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, type) and _is_ours(value.__module__, own):
        # The fields of a rule hold calibrations and needs, which report nothing.
        methods = (FunctionType, staticmethod, classmethod, property)
        yield from (each for each in vars(value).values() if isinstance(each, methods))
        yield from (base for base in value.__bases__ if base is not Rule)
    elif isinstance(value, FunctionType) and _is_ours(value.__module__, own):
        yield from _of_code(value.__code__, value.__globals__, own)


def _of_code(code: CodeType, names: dict[str, Any], own: str) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _of_code(constant, names, own)
        elif isinstance(constant, (str, tuple, frozenset)):
            yield constant
    for name in code.co_names:
        value = names.get(name)
        if isinstance(value, ModuleType):
            # A function that is called as `module.function`.
            if _is_ours(value.__name__, own):
                yield from (vars(value)[other] for other in code.co_names if other in vars(value))
        elif value is not None:
            yield value


def _is_ours(module: str, own: str) -> bool:
    in_package = module.startswith(f"{_PACKAGE}.") and module not in {f"{_PACKAGE}.{name}" for name in _CONTRACT}
    return module == own or in_package
