"""Rules by name: built-in rules, sets of them, rules of installed packages, and rules in a user's file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from watchglass.config import (
    CALIBRATIONS,
    Contract,
    ParameterInfo,
    RuleSpec,
    built,
    describe,
    find_class,
    installed,
)
from watchglass.errors import InvalidValueError, PluginFileError
from watchglass.rules.built_in import BUILT_IN, rule_names
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.reported_symptoms import symptoms_of
from watchglass.rules.rule import METHODS, Rule

#: The requirements for a rule in a user's file.
CONTRACT = Contract(
    Rule, "rule", "watchglass.Rule",
    "check(self, view), check_step(self, step), check_window(self, window) or tick(self, tick)",
)  # fmt: skip

_SECTION = re.compile(r"^(Looks at|Fires when|Usual causes|What to try|Costs|Source):\s*(.*)$")


@dataclass(frozen=True)
class RuleSet:
    """Built-in rules that are named together."""

    help: str  #: Their purpose, in one sentence.
    rules: tuple[str, ...]  #: Names of built-in rules, in the order in which they are evaluated.


_HELP = {
    "default": "evaluated unless rules are named; suits every run at little cost",
    "all": "every built-in rule",
    "sagemaker": "the built-in rules of SageMaker Debugger; for its thresholds add --calibration sagemaker",
    "llm": "language models and other transformers",
    "vision": "convolutional networks with ReLUs",
    "tabular": "networks whose samples are rows of a table",
    "trees": "boosted trees",
    "system": "time of steps, and use of processors, memory, disks and GPUs",
}

#: Sets by name.
RULE_SETS: Mapping[str, RuleSet] = MappingProxyType(
    {name: RuleSet(text, tuple(rule_names(name))) for name, text in _HELP.items()}
)


@dataclass(frozen=True)
class RuleDocumentation:
    """A rule's documentation, for people."""

    name: str  #: Name of the rule.
    summary: str  #: First line of its docstring.
    #: ``Looks at``, ``Fires when``, ``Usual causes``, ``What to try``, ``Costs``, ``Source``, where given.
    sections: dict[str, str]
    parameters: list[ParameterInfo]  #: Its parameters.
    #: By calibration, the values of the parameters that it changes; of one with another algorithm, all of its
    #: parameters.
    calibrations: dict[str, dict[str, Any]]
    algorithms: dict[str, str]  #: By calibration with another algorithm, when that one fires.
    sets: tuple[str, ...]  #: Names of the rule sets that hold it, except ``"all"``.
    symptoms: tuple[str, ...]  #: Identifiers of the built-in symptoms that it can report, which lead to causes.
    built_only: str  #: For a built-in rule, why no real training run fires it in the tests; "" where one does.


def find_rule(name: str) -> type[Rule]:
    """The class of a rule.

    Args:
        name: A built-in name, ``"DeadRelu"``, the name of an installed rule, or a file and a class,
            ``"path/to/file.py:MyRule"``.

    Raises:
        UnknownNameError: No such rule, or no such class in the file; the message suggests a similar name.
        MissingFileError: No such file.
        PluginFileError: The file cannot be imported, or the class is not a rule.
    """
    modules = {known: f"{__package__}.{each.module}" for known, each in BUILT_IN.items()}
    cls: type[Rule] = find_class(name, modules, CONTRACT, also=RULE_SETS)
    if all(getattr(cls, method) is getattr(Rule, method) for method in METHODS):
        raise PluginFileError(f"{name} has no method {CONTRACT.method}; every rule needs one")
    return cls


def installed_rules() -> list[str]:
    """Names of the rules that other installed packages offer, as entry points of the group ``watchglass.rules``."""
    return sorted(installed(CONTRACT).keys() - BUILT_IN.keys())


def build_rule(spec: RuleSpec, calibration: str = "default") -> Rule:
    """A new instance of a rule with its parameters: calibration first, then what the specification sets.

    Raises:
        UnknownNameError: An unknown rule or parameter; the message suggests a similar name.
        InvalidValueError: A value of the wrong type or outside its limits, or an unknown calibration.
        PluginFileError: Its constructor raises another error, or the class declares an invalid value.
    """
    cls = find_rule(spec.name)
    if calibration not in CALIBRATIONS:
        raise InvalidValueError(f'calibration must be one of {", ".join(CALIBRATIONS)} but got "{calibration}"')
    _check_calibrations(cls, spec.name)
    chosen = cls.calibrations.get(calibration, {})
    rule = (
        built(chosen, spec.name, spec.parameters)
        if isinstance(chosen, type)
        else built(cls, spec.name, {**chosen, **spec.parameters})
    )
    _check_declared(rule, spec.name)
    return rule


def _check_calibrations(cls: type[Rule], name: str) -> None:
    given: Any = cls.calibrations
    known = {info.name for info in describe(cls)}
    if (
        not isinstance(given, Mapping)
        or not given.keys() <= set(CALIBRATIONS)
        or not all(_is_calibration(cls, values, known) for values in given.values())
    ):
        raise PluginFileError(
            f"calibrations of {name} must be tables of its parameters, or rules of its name, by "
            f"{' or '.join(CALIBRATIONS)}, but is {given!r:.80}"
        )


def _is_calibration(cls: type[Rule], values: Any, known: set[str]) -> bool:
    if isinstance(values, type):
        return issubclass(values, Rule) and values.__name__ == cls.__name__
    return isinstance(values, Mapping) and values.keys() <= known


def _check_declared(rule: Rule, name: str) -> None:
    """Refuse invalid declarations, such as ``needs = (Needs(...))`` without a comma."""
    needs: object = rule.needs
    if not isinstance(needs, (tuple, list)) or not all(isinstance(need, Needs) for need in needs):
        raise PluginFileError(
            f"needs of {name} must be a tuple of Needs but is {needs!r:.80}; "
            "for a single need write needs = (Needs(...),)"
        )
    streams: object = rule.streams
    looks = type(rule).check_window is not Rule.check_window
    if not isinstance(streams, (Windows, type(None))) or (looks and streams is None):
        raise PluginFileError(
            f"streams of {name} must be Windows, for check_window, but is {streams!r:.80}; "
            'write streams = Windows(kinds=("samples",), length_s=60)'
        )
    measured = any(need.metrics for need in rule.needs)
    if measured and (not isinstance(streams, Windows) or "samples" not in streams.kinds):
        raise PluginFileError(
            f"streams of {name} must hold samples, because its needs name metrics, but is {streams!r:.80}; "
            'write streams = Windows(kinds=("samples",), length_s=60)'
        )
    compares: object = rule.compares
    parameters = [info.name for info in describe(type(rule))]
    if not isinstance(compares, (tuple, list)) or not all(each in parameters for each in compares):
        raise PluginFileError(
            f"compares of {name} must be a tuple of names of its parameters but is {compares!r:.80}; "
            'for a single name write ("other_run",)'
        )


def documentation(cls: type[Rule]) -> RuleDocumentation:
    """The documentation of a rule, from its docstring, its parameters and what its code names."""
    summary, sections = _docstring(cls)
    others = {name: each for name, each in cls.calibrations.items() if isinstance(each, type)}
    tables = {name: dict(each) for name, each in cls.calibrations.items() if not isinstance(each, type)}
    of_others = {name: {info.name: info.default for info in describe(each)} for name, each in others.items()}
    algorithms = {name: _docstring(each)[1].get("Fires when", "") for name, each in others.items()}
    built_in = BUILT_IN.get(cls.__name__) if cls.__module__.startswith(f"{__package__}.") else None
    return RuleDocumentation(
        cls.__name__,
        summary,
        sections,
        describe(cls),
        {**tables, **of_others},
        algorithms,
        tuple(built_in.sets.split()) if built_in else (),
        symptoms_of(cls),
        built_in.built_only if built_in else "",
    )


def _docstring(cls: type[Rule]) -> tuple[str, dict[str, str]]:
    """First line and sections of the docstring of a rule."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    sections: dict[str, str] = {}
    current = ""
    for line in lines[1:]:
        match = _SECTION.match(line)
        if match:
            current = match[1]
            sections[current] = match[2].strip()
        elif line.startswith(" ") and current:
            sections[current] = f"{sections[current]} {line.strip()}".strip()
        elif line.strip():
            current = ""
    return lines[0] if lines else "", sections


def rules_of_set(name: str) -> tuple[str, ...]:
    """Names of the rules of a set, a key of :data:`RULE_SETS`, in the order in which they are evaluated."""
    return RULE_SETS[name].rules


def expand(specs: Iterable[RuleSpec]) -> tuple[RuleSpec, ...]:
    """The rules that specifications of rules and rule sets name.

    A rule of several sets comes once, at its first place. A rule that is named itself replaces the same rule of a set,
    so that a set can be adjusted: ``"vision,DeadRelu:window=16"``. A rule that is named twice stays twice; the engine
    refuses it.

    Raises:
        InvalidValueError: A set with parameters.
    """
    specs = tuple(specs)
    named = {spec.name: spec for spec in specs if spec.name not in RULE_SETS}
    result: list[RuleSpec] = []
    from_sets: set[str] = set()
    for spec in specs:
        if spec.name not in RULE_SETS:
            if spec.name not in from_sets or spec is not named[spec.name]:
                result.append(spec)
            continue
        if spec.parameters:
            raise InvalidValueError(
                f'"{spec.name}" is a rule set and has no parameters, but got {", ".join(spec.parameters)}; '
                f"also name the rule: {spec.name},RULE:{next(iter(spec.parameters))}=VALUE"
            )
        before = {each.name for each in result}
        taken = [name for name in rules_of_set(spec.name) if name not in before]
        result += [named.get(name, RuleSpec(name)) for name in taken]
        from_sets.update(taken)
    return tuple(result)
