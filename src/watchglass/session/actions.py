"""Actions as a script gives them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from watchglass.config import ActionSpec, RuleSpec, find_file, name_of, read_actions, seen_from, values
from watchglass.errors import InvalidValueError


def action_specs(
    actions: str | Iterable[Any] | None, rules: Sequence[RuleSpec], config_file: str | os.PathLike[str] | None = None
) -> tuple[ActionSpec, ...]:
    """What an evaluator is told of the actions that a script and its configuration file give.

    Args:
        actions: A text as on the command line, ``"Webhook:url=$HOOK"``, an action class, an action; or a list of them.
        rules: The rules that are evaluated.
        config_file: File of settings; when not given, the nearest ``watchglass.toml`` if there is one.

    Raises:
        InvalidValueError: An action that another process could not import, or a parameter that cannot be so.
        UnknownNameError: An action or a rule that does not exist.
    """
    found = find_file(config_file)
    specs = [] if found is None else list(read_actions(found, named=config_file is not None))
    if actions is not None:
        alone = isinstance(actions, (str, ActionSpec, type)) or not isinstance(actions, Iterable)
        specs += [_spec(action) for action in ([actions] if alone else actions)]
    if not specs:
        return ()
    from watchglass.actions import checked_actions
    from watchglass.rules import find_rule

    # What an action is made with is not imported into a training: only the process that delivers needs it.
    return checked_actions(specs, [find_rule(rule.name).__name__ for rule in rules], thorough=False)


def _spec(action: Any) -> ActionSpec:
    from watchglass.actions import CONTRACT, Subscription, parse_action

    if isinstance(action, (ActionSpec, str)):
        spec = parse_action(action) if isinstance(action, str) else action
        # The evaluator begins at the first training step, in what is then the working directory.
        return replace(spec, name=seen_from(spec.name, os.getcwd()))
    cls = action if isinstance(action, type) else type(action)
    if not issubclass(cls, Subscription):
        raise InvalidValueError(f"actions must be texts, action classes or actions but got {action!r:.100}")
    given = {} if isinstance(action, type) else values(action)
    return ActionSpec(name_of(cls, CONTRACT), given)
