"""How a training run is watched: the hook, its plan and budget, and one adapter per framework."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.capture.frameworks import (
        FRAMEWORKS as FRAMEWORKS,
        Entry as Entry,
        Framework as Framework,
        Numbers as Numbers,
        attach as attach,
        framework as framework,
        owner_of as owner_of,
    )
    from watchglass.capture.hook import Hook as Hook
    from watchglass.capture.process_failure import failure_from as failure_from, report_uncaught as report_uncaught
    from watchglass.capture.step_phases import (
        AFTER_BACKWARD as AFTER_BACKWARD,
        PhaseSource as PhaseSource,
        StepPhases as StepPhases,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
