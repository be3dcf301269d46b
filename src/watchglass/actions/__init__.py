"""What is done about findings and changes of status: stopping, messages, webhooks, commands, and users' own."""

from watchglass.actions.action import Action
from watchglass.actions.courier import Courier, Outcome, in_memory
from watchglass.actions.registry import (
    CONTRACT,
    ActionDocumentation,
    action_names,
    build_action,
    checked_actions,
    documentation,
    find_action,
    parse_action,
)
from watchglass.actions.stop_training import StopTraining
from watchglass.actions.stopping import Stopping
from watchglass.actions.subscription import Subscription

__all__ = [
    "CONTRACT", "Action", "ActionDocumentation", "Courier", "Outcome", "StopTraining", "Stopping", "Subscription",
    "action_names", "build_action", "checked_actions", "documentation", "find_action", "in_memory",
    "parse_action",
]  # fmt: skip
