"""Actions on findings and changes of status: stopping, messages, webhooks, commands, and those of users."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.actions.action import Action as Action
    from watchglass.actions.courier import (
        Courier as Courier,
        DeliveryOutcome as DeliveryOutcome,
        in_memory as in_memory,
    )
    from watchglass.actions.registry import (
        CONTRACT as CONTRACT,
        action_names as action_names,
        build_action as build_action,
        checked_actions as checked_actions,
        documentation as documentation,
        find_action as find_action,
        parse_action as parse_action,
    )
    from watchglass.actions.stop_training import StopTraining as StopTraining
    from watchglass.actions.stopping import Stopping as Stopping
    from watchglass.actions.subscription import Subscription as Subscription

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
