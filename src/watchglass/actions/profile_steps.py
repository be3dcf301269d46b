"""ProfileSteps: the operators of the next training steps, profiled because a rule has found something."""

from __future__ import annotations

from watchglass.actions.action import Action
from watchglass.config import MOST_PROFILED_STEPS, parameter
from watchglass.errors import EndOfRunError, InvalidValueError, UndeliverableError
from watchglass.records import Event


class ProfileSteps(Action):
    """Profiles the operators of the next training steps with PyTorch's profiler.

    It writes the same request as ``watchglass profile``. The report, ``watchglass show`` and ``run.operators()`` have
    the operators. While requested steps are to come, further events request nothing.

    Example: ProfileSteps:steps=5,rules=StepOutlier
    """

    reads_environment = False

    steps: int = parameter(5, help="number of training steps", unit="steps", ge=1, le=MOST_PROFILED_STEPS)
    per_hour: int | None = parameter(6, help="largest number of deliveries per hour; none for no limit", ge=1)

    def act(self, event: Event) -> None:
        """Request them."""
        from watchglass.run import open_run, request_profile

        # Only the newest steps: the next step follows from them.
        first = event.finding.last_step if event.finding is not None else 0
        run = open_run(event.run, attempt=event.attempt, steps=(first, 1 << 53))
        cause = event.finding.id if event.finding is not None else ""
        try:
            request_profile(run, self.steps, None, reason=event.message, finding=cause)
        except InvalidValueError:
            return  # an earlier event has requested these steps
        except EndOfRunError as error:
            raise UndeliverableError(str(error)) from None
