"""Dead letters, sent again to the actions that are named now, once the fault is repaired."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from watchglass.actions import Action, Courier, DeliveryOutcome, build_action
from watchglass.config import ActionSpec, EvaluatorTiming
from watchglass.errors import InvalidValueError, MissingFileError
from watchglass.evaluate.live.deliveries import DeadLetter, key_among, observation_of
from watchglass.evaluate.live.event_ids import is_event
from watchglass.evaluate.live.journal import BufferedJournal
from watchglass.evaluate.live.store_retry import slept
from watchglass.records import Event, Observation
from watchglass.store import Store, layout, read_small

#: Longest dead letter in bytes that is read.
_MOST_BYTES = 1 << 20


@dataclass
class Resent:
    """The outcome for the dead letters of one action."""

    action: str  #: What the action is called in the run, ``"Webhook"``, ``"Webhook-2"`` for the second one.
    arrived: int = 0  #: How many have arrived, and are no dead letters any more.
    left: int = 0  #: How many still are.
    reason: str = ""  #: Why the last of those that failed did; "" where none did.
    named: bool = True  #: Whether the action is one of those that were named.


def resend(store: Store, actions: Sequence[ActionSpec], report: Callable[[str], None]) -> list[Resent]:
    """Sends the dead letters of a run again, each of them once, with the identifiers that their events have.

    What has arrived is written down in the journal and is no dead letter any more. An action that fails, but may work
    later, is not given what comes behind, so that it gets its events in their order.

    Args:
        store: The run's store.
        actions: In the order in which the evaluator was given them: the second webhook is that of ``Webhook-2``.
        report: Takes a sentence for the user.

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
        found = f"{names} delivers nothing" if names else "no action is named"
        raise InvalidValueError(
            f"dead letters need an action that sends them, but {found}; give --action, as for run, or [[actions]] in "
            "watchglass.toml"
        )
    if not store.list(layout.DEAD_LETTERS):
        return []
    journal = BufferedJournal(store, report)
    # The lease excludes other senders: an evaluator, or another process that sends again.
    journal.open(slept, patience_s=0.0, poll_s=store.policy.intervals().poll_s)
    try:
        return _sent(store, journal, lines, report)
    finally:
        journal.close()


def _sent(
    store: Store,
    journal: BufferedJournal,
    lines: Mapping[str, tuple[ActionSpec, Action]],
    report: Callable[[str], None],
) -> list[Resent]:
    done = {
        (seen.data.get("action"), seen.data.get("event"))
        for seen in journal.records
        if isinstance(seen, Observation) and seen.kind == "action_done"
    }
    found: dict[str, Resent] = {}
    given_up: set[str] = set()
    for letter in _letters(store, report):
        became = found.setdefault(letter.action, Resent(letter.action, named=letter.action in lines))
        if (letter.action, letter.event.id) in done:
            store.delete(letter.path)  # an earlier one that sent it was ended before it could
            became.arrived += 1
            continue
        if not became.named or letter.action in given_up:
            became.left += 1
            continue
        spec, action = lines[letter.action]
        outcome = _send(Courier(spec, letter.event, action.timeout_s), journal)
        tries, now_ns = letter.tries + 1, time.time_ns()
        row: dict[str, object] = {"tries": tries}
        if not outcome.done:
            replace(letter, tries=tries, reason=outcome.reason).written(store, now_ns)
            row |= {"reason": outcome.reason, "dead_letter": letter.path}
        kind = "action_done" if outcome.done else "action_failed"
        journal.write([observation_of(kind, letter.action, letter.event, now_ns, **row, resent=True)])
        journal.flush()
        if outcome.done:
            store.delete(letter.path)  # only now: what the journal does not have is sent once more
            became.arrived += 1
            continue
        became.left, became.reason = became.left + 1, outcome.reason
        if outcome.again:
            given_up.add(letter.action)
    return list(found.values())


def _send(courier: Courier, journal: BufferedJournal) -> DeliveryOutcome:
    try:
        while (outcome := courier.poll()) is None:
            time.sleep(EvaluatorTiming.delivery_look_s)
            journal.renew()
    finally:
        courier.end()
    return outcome


def _letters(store: Store, report: Callable[[str], None]) -> list[DeadLetter]:
    """Those that can be read, in the order in which the evaluator came by their events."""
    letters: list[DeadLetter] = []
    for entry in store.list(layout.DEAD_LETTERS):
        try:
            row = json.loads(read_small(store, entry.path, _MOST_BYTES))
            letter = DeadLetter(str(row["action"]), Event.from_json(row["event"]), int(row["tries"]))
            if not is_event(letter.event) or letter.path != entry.path:
                raise ValueError
            letters.append(letter)
        except (MissingFileError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
            report(f"{entry.path} is not a valid dead letter; it is not sent and stays in the run")
    return sorted(letters, key=lambda letter: (letter.action, letter.event.time_ns, letter.event.id))
