"""How a training run is watched: the hook, its plan and budget, and one adapter per framework."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.capture.arrays import (
        ArrayInfo as ArrayInfo,
        Arrays as Arrays,
        Elements as Elements,
        arrays_of as arrays_of,
    )
    from watchglass.capture.frameworks import FRAMEWORKS as FRAMEWORKS, Entry as Entry, named_by as named_by
    from watchglass.capture.hook import Hook as Hook
    from watchglass.capture.loops import Loop as Loop, attach as attach, loop as loop, loop_of as loop_of
    from watchglass.capture.modules import Modules as Modules, modules_of as modules_of
    from watchglass.capture.phase_source import PhaseSource as PhaseSource, record_phases as record_phases
    from watchglass.capture.port import Port as Port
    from watchglass.capture.process.process_failure import (
        failure_from as failure_from,
        report_uncaught as report_uncaught,
    )
    from watchglass.capture.step_phases import (
        AFTER_BACKWARD as AFTER_BACKWARD,
        StepPhases as StepPhases,
    )

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
