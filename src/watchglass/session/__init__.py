"""The composition root inside a training process: builds hook and adapters, keeps the current hook, offers `watch`."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.session.current import (
        current_hook as current_hook,
        on_failure as on_failure,
        on_framework_imported as on_framework_imported,
        recorded as recorded,
        save_scalar as save_scalar,
        save_tensor as save_tensor,
    )
    from watchglass.session.specs import (
        action_specs as action_specs,
        capture_of_rules as capture_of_rules,
        rule_specs as rule_specs,
    )
    from watchglass.session.watching import callback as callback, watch as watch

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
