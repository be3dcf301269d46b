"""Finding rules by name: the built-in ones, and those in a user's file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from watchglass.config import ParameterInfo, RuleSpec, describe, suggest
from watchglass.errors import InvalidValueError, MissingFileError, RuleFileError, UnknownNameError
from watchglass.rules.rule import Rule

#: Built-in rules by name, in the order in which they are evaluated and listed. Imported when first asked for.
_BUILT_IN = {
    "ExplodingTensor": "watchglass.rules.classic.exploding_tensor",
    "ExplodingGradient": "watchglass.rules.classic.exploding_gradient",
    "VanishingGradient": "watchglass.rules.classic.vanishing_gradient",
    "DeadRelu": "watchglass.rules.classic.dead_relu",
    "PoorWeightInitialization": "watchglass.rules.classic.poor_weight_initialization",
    "WeightUpdateRatio": "watchglass.rules.classic.weight_update_ratio",
    "UnchangedTensor": "watchglass.rules.classic.unchanged_tensor",
    "LossNotDecreasing": "watchglass.rules.classic.loss_not_decreasing",
    "Overfit": "watchglass.rules.classic.overfit",
}

_SECTION = re.compile(r"^(Looks at|Fires when|Usual causes|What to try|Source):\s*(.*)$")


@dataclass(frozen=True)
class RuleDocumentation:
    """A rule's documentation, for people.

    Attributes:
        name: Name of the rule.
        summary: First line of its docstring.
        sections: ``Looks at``, ``Fires when``, ``Usual causes``, ``What to try``, ``Source``, where given.
        parameters: Its parameters.
        calibrations: Parameter values by calibration.
    """

    name: str
    summary: str
    sections: dict[str, str]
    parameters: list[ParameterInfo]
    calibrations: dict[str, dict[str, Any]]


def rule_names() -> list[str]:
    """Names of the built-in rules, in the order in which they are evaluated."""
    return list(_BUILT_IN)


def default_rules() -> tuple[RuleSpec, ...]:
    """The rules that are evaluated when nobody says otherwise: every built-in one, with its defaults."""
    return tuple(RuleSpec(name) for name in _BUILT_IN)


def find_rule(name: str) -> type[Rule]:
    """The class of a rule.

    Args:
        name: A built-in name, ``"DeadRelu"``, or a file and a class, ``"path/to/file.py:MyRule"``.

    Raises:
        UnknownNameError: No such built-in rule, or no such class in the file; the message has the near name.
        MissingFileError: No such file.
        RuleFileError: The file cannot be imported, or the class is not a rule.
    """
    path, colon, class_name = name.rpartition(":")
    if colon or name.endswith(".py"):
        return _rule_from_file(path if colon else name, class_name if colon else "", name)
    module = _BUILT_IN.get(name)
    if module is None:
        raise UnknownNameError(
            f'there is no rule "{name}"{suggest(name, _BUILT_IN)}; "watchglass rules" lists them, and a rule of your '
            'own is named by file and class: "my_rules.py:MyRule"'
        )
    cls: type[Rule] = getattr(importlib.import_module(module), name)
    return cls


def build_rule(spec: RuleSpec, calibration: str = "default") -> Rule:
    """A new instance of a rule with its parameters: calibration first, then what the specification sets.

    Raises:
        UnknownNameError: It has no such parameter, with the near name; or no such rule.
        InvalidValueError: A value of the wrong type or outside its limits, or an unknown calibration.
    """
    cls = find_rule(spec.name)
    known = [parameter.name for parameter in describe(cls)]
    for name in spec.parameters:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UnknownNameError(f'{cls.__name__} has no parameter "{name}"{suggest(name, known)}; {has}')
    if calibration not in ("default", "sagemaker"):
        raise InvalidValueError(f'calibration must be one of default, sagemaker but got "{calibration}"')
    overrides: Mapping[str, Any] = cls.calibrations.get(calibration, {})
    return cls(**{**overrides, **spec.parameters})


def documentation(cls: type[Rule]) -> RuleDocumentation:
    """What a rule's docstring and parameters say."""
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
    calibrations = {name: dict(overrides) for name, overrides in cls.calibrations.items()}
    return RuleDocumentation(cls.__name__, lines[0] if lines else "", sections, describe(cls), calibrations)


def _rule_from_file(path: str, class_name: str, spec: str) -> type[Rule]:
    module = _import_file(path)
    rules = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Rule) and value.__module__ == module.__name__
    }
    if not class_name:
        if len(rules) == 1:
            return next(iter(rules.values()))
        raise RuleFileError(f'{path} has {len(rules)} rules; name one: "{path}:ClassName"')
    found = getattr(module, class_name, None)
    if found is None:
        raise UnknownNameError(f'{path} has no class "{class_name}"{suggest(class_name, rules)}')
    if not (isinstance(found, type) and issubclass(found, Rule)):
        raise RuleFileError(f"{spec} is not a rule; a rule is a class that derives from watchglass.Rule")
    if inspect.isabstract(found):
        raise RuleFileError(f"{spec} has no method check(self, view); every rule needs one")
    return found


def _import_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise MissingFileError(f'there is no rule file "{path}"; give its path from {Path.cwd()} or an absolute one')
    # The name is made from path and time of change: two files called rules.py do not collide, and an edited file is
    # imported anew in a notebook. It has to be in sys.modules for dataclasses to resolve the annotations.
    stamp = f"{file.resolve()}\0{file.stat().st_mtime_ns}"
    name = f"watchglass_rule_file_{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = importlib.util.spec_from_file_location(name, file)
    if loader is None or loader.loader is None:
        raise RuleFileError(f"{path} cannot be imported: its name must end in .py")
    module = importlib.util.module_from_spec(loader)
    sys.modules[name] = module
    try:
        loader.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        where = f"line {error.lineno}, " if isinstance(error, SyntaxError) and error.lineno else ""
        text = " ".join(str(error).split())
        raise RuleFileError(f"{path} cannot be imported: {where}{type(error).__name__}: {text}") from error
    return module
