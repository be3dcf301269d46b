"""Finding actions by name: the built-in ones, and those in a user's file."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from watchglass.actions.action import Action
from watchglass.actions.subscription import Subscription
from watchglass.actions.variables import check_variables
from watchglass.config import ActionSpec, Contract, ParameterInfo, built, describe, faults_of, find_class, suggest
from watchglass.errors import InvalidValueError, UnknownNameError

#: Built-in actions by name, in the order in which they are listed. Imported at first use.
_BUILT_IN = {
    "StopTraining": "watchglass.actions.stop_training",
    "Notify": "watchglass.actions.notify",
    "Webhook": "watchglass.actions.webhook",
    "Command": "watchglass.actions.command",
    "ProfileSteps": "watchglass.actions.profile_steps",
}

#: The contract of an action in a user's file.
CONTRACT = Contract(Action, "action", "watchglass.Action", "act(self, event)")

_SPELLING = re.compile(r"(?P<name>[^=]+?\.py(?::[A-Za-z_]\w*(?=:|$))?|[^:=,]+)(?::(?P<parameters>.*))?", re.DOTALL)
_NEXT_PARAMETER = re.compile(r",\s*(?=[A-Za-z_]\w*=)")


@dataclass(frozen=True)
class ActionDocumentation:
    """An action's documentation, for people."""

    name: str  #: Name of the action.
    summary: str  #: First line of its docstring.
    text: str  #: The rest of its docstring.
    parameters: list[ParameterInfo]  #: Its own parameters, then those that every action has.
    example: str  #: How it is named on a command line.


def action_names() -> list[str]:
    """Names of the built-in actions."""
    return list(_BUILT_IN)


def find_action(name: str) -> type[Subscription]:
    """The class of an action.

    Args:
        name: A built-in name, ``"Webhook"``, or a file and a class, ``"path/to/file.py:MyAction"``.

    Raises:
        UnknownNameError: No such built-in action, or no such class in the file; the message has the near name.
        MissingFileError: No such file.
        PluginFileError: The file cannot be imported, or the class is not an action.
    """
    cls: type[Subscription] = find_class(name, _BUILT_IN, CONTRACT)
    return cls


def build_action(spec: ActionSpec) -> Subscription:
    """A new instance of an action with its parameters; ``$NAME`` in them stays as it is.

    Raises:
        UnknownNameError: It has no such parameter, with the near name; or no such action.
        InvalidValueError: A value of the wrong type or outside its limits, or one that is missing.
        MissingFileError: See :func:`find_action`.
        PluginFileError: See there; or its constructor raises something else.
    """
    cls = find_action(spec.name)
    return built(cls, spec.name, spec.parameters)


def checked_actions(
    specs: Sequence[ActionSpec], rules: Sequence[str] | None, *, thorough: bool = True
) -> tuple[ActionSpec, ...]:
    """``specs`` themselves, if nothing wrong can be seen in them before the run.

    Args:
        specs: The actions.
        rules: Names of the rules that are evaluated; None where that does not matter.
        thorough: Also ask each action, which may import what it is made with.

    Raises:
        WatchglassError: What is wrong, in one line.
    """
    for spec in specs:
        action = build_action(spec)
        for rule in action.rules:
            if rules is not None and rule not in rules:
                raise UnknownNameError(
                    f'{action.name}: no rule "{rule}" is evaluated{suggest(rule, rules)}; those are {", ".join(rules)}'
                )
        if isinstance(action, Action):
            if action.reads_environment:
                check_variables(action.name, spec.parameters, os.environ)
            if thorough:
                with faults_of(spec.name, "checked"):
                    action.check()
    return tuple(specs)


def parse_action(text: str) -> ActionSpec:
    """An action as written on a command line: ``"Webhook:url=https://example.org/a?b=c,severity=error"``.

    A parameter ends where the next one begins, at a comma with ``name=`` behind it, so that values may hold colons,
    commas and equals signs.

    Raises:
        InvalidValueError: A text that does not read so.
    """
    match = _SPELLING.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(
            f"an action must read NAME or NAME:PARAM=VALUE,... or FILE.py:CLASS:PARAM=VALUE,... but got {text!r}"
        )
    name, parameters = match["name"].strip(), (match["parameters"] or "").strip()
    given: dict[str, str] = {}
    for part in _NEXT_PARAMETER.split(parameters) if parameters else ():
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise InvalidValueError(f"a parameter of action {name} must read PARAM=VALUE but got {part!r}")
        if key in given:
            raise InvalidValueError(f"action {name} has {key} twice; write several values as one list, {key}=A,B")
        given[key] = value.strip()
    return ActionSpec(name, given)


def documentation(cls: type[Subscription]) -> ActionDocumentation:
    """What an action's docstring and parameters say."""
    lines = inspect.cleandoc(cls.__doc__ or "").split("\n")
    text = "\n".join(lines[1:]).strip()
    text, _, example = text.partition("Example:")
    common = {info.name for info in describe(Action)}
    parameters = sorted(describe(cls), key=lambda info: info.name in common)  # its own parameters come first
    return ActionDocumentation(cls.__name__, lines[0], text.strip(), parameters, example.strip() or cls.__name__)
