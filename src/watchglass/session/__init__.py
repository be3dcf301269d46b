"""The composition root inside a training process: builds hook and adapters, keeps the current hook, offers `watch`."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.session.current import current_hook, on_failure, on_framework_imported, save_scalar, save_tensor
    from watchglass.session.specs import action_specs, capture_of_rules, rule_specs
    from watchglass.session.watching import watch, xgboost_callback

_HOMES = {
    "current": ("current_hook", "on_failure", "on_framework_imported", "save_scalar", "save_tensor"),
    "specs": ("action_specs", "capture_of_rules", "rule_specs"),
    "watching": ("watch", "xgboost_callback"),
}

__all__ = [
    "action_specs", "capture_of_rules", "current_hook", "on_failure", "on_framework_imported", "rule_specs",
    "save_scalar", "save_tensor", "watch", "xgboost_callback",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__, _HOMES)
