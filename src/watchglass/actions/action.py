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
    """Something that is done about events. Subclasses become keyword-only dataclasses by themselves.

    Each event is delivered in a separate process, by a new instance, and with a time limit. :meth:`act` returns when
    it is done. After an exception the event is delivered again later, except after
    :class:`~watchglass.errors.UndeliverableError`. An event can be delivered twice, with the same
    ``event.id``: the evaluator was killed after a delivery and before it noted the delivery.

    Attributes:
        takes_summaries: Whether it is given events of kind ``"summary"`` too.
        reads_environment: Whether ``$NAME`` in its parameters stands for a variable of the environment.
        arrived: Of several receivers those that an earlier try of the same event has reached, by numbers that the
            action chooses. The next try gets what :meth:`act` adds before it fails.
    """

    takes_summaries: ClassVar[bool] = False
    reads_environment: ClassVar[bool] = True

    on: tuple[str, ...] = parameter(("finding",), help="kinds of events", choices=KINDS)
    statuses: tuple[Status, ...] = parameter((), help="with on=status, only changes to these; none for all")
    timeout_s: float = parameter(30.0, help="how long one try may take", unit="seconds", gt=0, le=3600)
    retries: int = parameter(3, help="how often a delivery that failed is tried again", ge=0, le=100)
    per_hour: int | None = parameter(60, help="most deliveries within an hour; none for no limit", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.arrived: set[int] = set()

    @abstractmethod
    def act(self, event: Event) -> None:
        """Deliver one event; called in a separate process.

        Raises:
            UndeliverableError: It cannot be delivered, now or later.
            DeliverLater: It shall be tried again, after a stated time.
            Exception: It failed, and is tried again.
        """

    def check(self) -> None:
        """Refuse, before a training begins, what can already be seen to be wrong: no such program, no such address.

        Parameters still hold ``$NAME`` where they do.

        Raises:
            WatchglassError: What is wrong, in one line.
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
