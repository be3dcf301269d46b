"""Processes that accompany a training run: started by command line, supervised, replaced when they die."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.supervise.companion import CompanionProcess as CompanionProcess
    from watchglass.supervise.lifeline import (
        Lifeline as Lifeline,
        begin_beside as begin_beside,
    )
    from watchglass.supervise.restarted_once import RestartedOnce as RestartedOnce
    from watchglass.supervise.supervision import Supervision as Supervision

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
