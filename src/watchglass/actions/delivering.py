"""The process of one delivery, started by :mod:`.courier`: reads action and event, calls the action, answers."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from watchglass.actions.action import Action
from watchglass.actions.courier import LONGEST_REASON
from watchglass.actions.registry import build_action, find_action
from watchglass.actions.variables import check_variables, concealed, resolved
from watchglass.config import ActionSpec
from watchglass.errors import DeliverLater, UndeliverableError, WatchglassError
from watchglass.records import Event, from_json
from watchglass.store import redacted


def main(arguments: list[str]) -> int:
    """Runs one delivery; the one argument is the number of the descriptor that takes the answer."""
    if len(arguments) != 1 or not arguments[0].isdigit():
        print("usage: python -m watchglass.actions DESCRIPTOR, with action and event on stdin", file=sys.stderr)
        return 2
    answer_to, ours = int(arguments[0]), os.getpid()
    os.set_inheritable(answer_to, False)
    given = json.loads(sys.stdin.buffer.readline())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # a user's code must not wait for input
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, given["limit_s"])  # the evaluator, which enforces the limit, may be killed
    answer = deliver(
        from_json(ActionSpec, given["action"]), Event.from_json(given["event"]), os.environ, arrived=given["arrived"]
    )
    if os.getpid() != ours:
        os._exit(0)  # forked by the action: the answer is its parent's
    with open(answer_to, "wb") as stream:
        stream.write(json.dumps(answer).encode() + b"\n")
    return 0


def deliver(
    spec: ActionSpec, event: Event, environ: Mapping[str, str], *, arrived: Iterable[int] = ()
) -> dict[str, Any]:
    """Delivers an event in this process; returns ``done``, ``reason``, ``again``, ``after_s`` and ``arrived``.

    A reason contains neither values of environment variables nor text that looks like a secret.
    """
    again, after_s, reached = True, None, set(arrived)
    try:
        action = _built(spec, environ)
        action.arrived = reached
        action.act(event)
        return {"done": True}
    except DeliverLater as error:
        reason, after_s = str(error), error.after_s
    except WatchglassError as error:
        reason, again = str(error), False
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}, line {where.lineno})"
    owner, colon, rest = concealed(" ".join(reason.split()), spec.parameters, environ).partition(": ")
    # Not the name before the colon: redaction would take "Webhook: its certificate ..." for a webhook with its secret.
    reason = f"{owner}: {redacted(rest)}" if colon and owner.isidentifier() else redacted(owner + colon + rest)
    answer = {"done": False, "reason": reason[:LONGEST_REASON], "again": again, "after_s": after_s}
    return {**answer, "arrived": sorted(reached)}


def _built(spec: ActionSpec, environ: Mapping[str, str]) -> Action:
    cls = find_action(spec.name)
    if not issubclass(cls, Action):
        raise UndeliverableError(f"{cls.__name__} is not delivered in a separate process")
    parameters = spec.parameters
    if cls.reads_environment:
        check_variables(cls.__name__, parameters, environ)
        parameters = resolved(parameters, environ)
    action = build_action(ActionSpec(spec.name, dict(parameters)))
    assert isinstance(action, Action)
    return action
