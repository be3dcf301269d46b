r"""The contract of an action: a class with typed parameters that is given events, one at a time.

::

    class AppendToFile(Action):
        '''Writes a line per event.'''

        path: str = parameter("findings.txt", help="where to write")

        def act(self, event):
            with open(self.path, "a") as file:
                file.write(f"{event.rule}: {event.message}\n")
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from watchglass.actions.subscription import Subscription
from watchglass.config import parameter
from watchglass.records import Event, Status

#: Kinds of events that actions subscribe to.
KINDS = ("finding", "status")


class Action(Subscription):
    """A response to events. Subclasses become keyword-only dataclasses automatically.

    Each event is delivered in a separate process, by a new instance, and with a time limit. :meth:`act` returns when
    it is done. After an exception the event is delivered again later, except after
    :class:`~watchglass.errors.UndeliverableError`. An event can be delivered twice, with the same
    ``event.id``: the evaluator was killed after a delivery and before it noted the delivery.

    Attributes:
        takes_summaries: Whether it gets events of kind ``"summary"``, too.
        reads_environment: Whether ``$NAME`` in its parameters stands for a variable of the environment.
        arrived: If there are several receivers, those that earlier tries of the same event have reached, by numbers
            that the action chooses. :meth:`act` adds to it; after a failure the next try gets it.
    """

    takes_summaries: ClassVar[bool] = False
    reads_environment: ClassVar[bool] = True

    on: tuple[str, ...] = parameter(("finding",), help="kinds of events", choices=KINDS)
    statuses: tuple[Status, ...] = parameter((), help="with on=status, only changes to these; all if not given")
    timeout_s: float = parameter(30.0, help="time limit of one attempt", unit="seconds", gt=0, le=3600)
    retries: int = parameter(3, help="number of retries of a failed delivery", ge=0, le=100)
    per_hour: int | None = parameter(60, help="largest number of deliveries per hour; none for no limit", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.arrived: set[int] = set()

    @abstractmethod
    def act(self, event: Event) -> None:
        """Deliver one event; called in a separate process.

        Raises:
            UndeliverableError: It cannot be delivered, now or later.
            DeliverLater: It should be tried again after a stated time.
            Exception: It failed and is tried again.
        """

    def check(self) -> None:
        """Refuse parameters that cannot work, before the run begins: a program or an address that does not exist.

        Parameters still contain ``$NAME``, which is read at delivery.

        Raises:
            WatchglassError: The reason, in one line.
        """

    def wants(self, event: Event) -> bool:
        """Whether an event concerns this action."""
        if event.kind == "summary":
            return self.takes_summaries
        if event.kind not in self.on or (self.rules and event.rule not in self.rules):
            return False
        if event.finding is not None:
            return self.concerned_by(event.finding)
        return event.status is not None and (not self.statuses or event.status.status in self.statuses)
