"""One run in a terminal: live with keys, or summed up once."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.top.app import TopApp as TopApp
    from watchglass.top.look import (
        LookingThread as LookingThread,
        RunLook as RunLook,
        look_at as look_at,
        look_json as look_json,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
