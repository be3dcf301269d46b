"""Dead letters, sent again once somebody has mended what was wrong: to the actions that are named now."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from watchglass.actions import Action, Courier, Outcome, build_action
from watchglass.config import ActionSpec
from watchglass.errors import InvalidValueError, MissingFileError
from watchglass.evaluate.live.deliveries import key_among
from watchglass.evaluate.live.event_ids import is_event
from watchglass.evaluate.live.journal import Journal
from watchglass.records import Event, Observation
from watchglass.store import Store, layout, pace_of

_NAME = re.compile(rf"{layout.DEAD_LETTERS}/(?P<action>.+)-(?P<event>[0-9a-f]{{16}})\.json\Z")
#: Pause between looks at a delivery.
_LOOK_S = 0.02


@dataclass
class Resent:
    """What became of the dead letters of one action.

    Attributes:
        action: What the action is called in the run, ``"Webhook"``, ``"Webhook-2"`` for the second one.
        arrived: How many have arrived, and are no dead letters any more.
        left: How many still are.
        reason: Why the last of those that failed did; "" where none did.
        named: Whether the action is one of those that were named.
    """

    action: str
    arrived: int = 0
    left: int = 0
    reason: str = ""
    named: bool = True


@dataclass
class _Letter:
    """A dead letter as it was read."""

    path: str
    action: str
    event: Event
    tries: int


def resend(
    store: Store, actions: Sequence[ActionSpec], tell: Callable[[str], None], *, pause_s: float = _LOOK_S
) -> list[Resent]:
    """Sends the dead letters of a run again, each of them once, with the identifiers that their events have.

    What has arrived is written down in the journal and is no dead letter any more. An action that fails, but may work
    later, is not given what comes behind, so that it gets its events in their order.

    Args:
        store: The run's store.
        actions: In the order in which the evaluator was given them: the second webhook is that of ``Webhook-2``.
        tell: Takes a sentence for whoever looks on.
        pause_s: Seconds between looks at a delivery.

    Returns:
        What became of those of each action; nothing where there is no dead letter.

    Raises:
        InvalidValueError: None of the actions delivers anything.
        RunExistsError: An evaluator writes the journal, and may be delivering.
        WatchglassError: An action or a parameter is not right, or the store refused.
    """
    lines: dict[str, tuple[ActionSpec, Action]] = {}
    for spec in actions:
        action = build_action(spec)
        if isinstance(action, Action):
            lines[key_among(lines, action.name)] = spec, action
    if not lines:
        names = ", ".join(spec.name for spec in actions)
        found = f"{names} delivers nothing" if names else "none was"
        raise InvalidValueError(
            f"dead letters are sent again by the actions that are named, but {found}: give --action, as for run, or "
            "[[actions]] in watchglass.toml"
        )
    if not store.list(layout.DEAD_LETTERS):
        return []
    journal = Journal(store, tell)
    # Nobody else sends meanwhile: neither an evaluator, nor another one like us.
    journal.open(_paused, patience_s=0.0, poll_s=pace_of(store).poll_s)
    try:
        return _Resending(store, journal, lines, tell, pause_s).all()
    finally:
        journal.close()


class _Resending:
    def __init__(
        self,
        store: Store,
        journal: Journal,
        lines: dict[str, tuple[ActionSpec, Action]],
        tell: Callable[[str], None],
        pause_s: float,
    ) -> None:
        self._store, self._journal, self._lines, self._tell, self._pause_s = store, journal, lines, tell, pause_s
        self._done = {
            (seen.data.get("action"), seen.data.get("event"))
            for seen in journal.records
            if isinstance(seen, Observation) and seen.kind == "action_done"
        }

    def all(self) -> list[Resent]:
        found: dict[str, Resent] = {}
        given_up: set[str] = set()
        for letter in self._letters():
            became = found.setdefault(letter.action, Resent(letter.action, named=letter.action in self._lines))
            if (letter.action, letter.event.id) in self._done:
                self._store.delete(letter.path)  # whoever sent it was ended before it could
                became.arrived += 1
                continue
            if not became.named or letter.action in given_up:
                became.left += 1
                continue
            outcome = self._outcome(letter)
            if outcome.done:
                became.arrived += 1
                continue
            became.left, became.reason = became.left + 1, outcome.reason
            if outcome.again:
                given_up.add(letter.action)
        return list(found.values())

    def _outcome(self, letter: _Letter) -> Outcome:
        """Sends one, and writes down what became of it: first in the journal, so that it is not sent once more."""
        spec, action = self._lines[letter.action]
        courier = Courier(spec, letter.event, action.timeout_s)
        try:
            while (outcome := courier.poll()) is None:
                time.sleep(self._pause_s)
                self._journal.renew()
        finally:
            courier.end()
        tries = letter.tries + 1
        if outcome.done:
            self._note("action_done", letter, tries=tries, resent=True)
            self._store.delete(letter.path)
        else:
            told = {"action": letter.action, "event": letter.event.to_json(), "tries": tries, "reason": outcome.reason}
            text = json.dumps({**told, "time_ns": time.time_ns()})
            self._store.write(letter.path, text.encode(), replace=True)
            self._note(
                "action_failed", letter, tries=tries, reason=outcome.reason, dead_letter=letter.path, resent=True
            )
        return outcome

    def _note(self, kind: str, letter: _Letter, **data: Any) -> None:
        event = letter.event
        told = {"action": letter.action, "event": event.id, "rule": event.rule, **data, "time_ns": time.time_ns()}
        self._journal.write([Observation(kind, event.attempt, None, told)])
        self._journal.flush()

    def _letters(self) -> list[_Letter]:
        """Those that can be read, in the order in which the evaluator came by their events."""
        letters: list[_Letter] = []
        for entry in self._store.list(layout.DEAD_LETTERS):
            letter = self._read(entry.path)
            if letter is None:
                self._tell(f"{entry.path} is no dead letter that could be sent, and is left as it is")
            else:
                letters.append(letter)
        return sorted(letters, key=lambda letter: (letter.action, letter.event.time_ns, letter.event.id))

    def _read(self, path: str) -> _Letter | None:
        name = _NAME.match(path)
        if name is None:
            return None
        try:
            told = json.loads(self._store.read(path))
            event, tries = Event.from_json(told["event"]), int(told["tries"])
        except (MissingFileError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            return None
        if event.id != name["event"] or told.get("action") != name["action"] or not is_event(event):
            return None
        return _Letter(path, name["action"], event, tries)


def _paused(seconds: float) -> bool:
    time.sleep(seconds)
    return True
