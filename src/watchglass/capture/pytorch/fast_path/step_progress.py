"""How far the open step is on the fast path, shared by the parts of it."""

from __future__ import annotations

#: Places in a step. Plain numbers: looking up a member of an enumeration costs more than comparing it.
OFF, BETWEEN, IN_FORWARD, IN_BACKWARD, RESTING = range(5)

#: By place: whether a call of the model there is a part of the pattern.
Follows = tuple[bool, bool, bool, bool]
ONE_EACH: Follows = (False, True, False, True)
SEVERAL_FOR_ONE: Follows = (False, True, True, False)
NO_MORE: Follows = (False, False, False, False)


class StepProgress:
    """Written at every callback, so read without a call.

    Attributes:
        at: Where the step is: off the fast path, between steps, since a forward began, since a backward began; or that
            steps are only counted.
        running: Whether a backward runs now.
        follows: Which calls of the model may come next.
    """

    __slots__ = ("at", "follows", "running")

    def __init__(self) -> None:
        self.at = OFF
        self.running = False
        self.follows = NO_MORE
