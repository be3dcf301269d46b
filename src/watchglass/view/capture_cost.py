"""The cost of watchglass and the records that it dropped, in sentences, from the counters of a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from watchglass.records import count
from watchglass.view.text import duration, percent, printable, size
from watchglass.view.usage import refusal_sentence, untimed_sentence

#: Share of the time that waits for data from which on it is stated: there XProf calls a step moderately input-bound.
_NOTABLE_WAIT = 0.05


def capture_lines(counters: Mapping[str, Any], *, brief: bool = False) -> Iterator[str]:
    """One line each for cost, records written and dropped, waits for data, growth of memory, what was not profiled.

    Args:
        counters: As in a worker's ``left`` event. Missing ones, and those that are not numbers, are omitted. ``worker``
            names the worker if there are several, ``phases`` has the shares of the phases of its steps, ``memory``
            how memory grew to its limit, ``fault`` how watchglass failed, ``refused_windows`` the windows of the
            configuration that were not profiled, and ``untimed_modules`` the models whose modules were to be timed and
            are not.
        brief: Omit the cost and what was written.
    """
    worker = counters.get("worker")
    whose = f"on {printable(worker)}: " if isinstance(worker, str) else ""
    recovered = _number(counters, "recovered_steps")
    if recovered:
        steps = count(int(recovered), "step")
        yield f"{steps} recovered from the flight recorder: a process ended before it had written all"
    if fault := fault_line(counters):
        yield fault
    if not brief:
        yield from (whose + line for line in _cost_lines(counters))
    dropped = counters.get("dropped")
    for kind, amount in dropped.items() if isinstance(dropped, Mapping) else ():
        if isinstance(amount, int) and amount > 0:
            yield f"{whose}{amount:,} {_KINDS.get(kind, kind)} dropped: the disk or the machine was too slow"
    waits = notable_wait(counters)
    if waits is not None:
        yield f"{whose}{percent(waits)} of a typical training step is a wait for data"
    growth = memory_growth(counters)
    if growth is not None:
        yield f"{whose}{growth}"
    refused = counters.get("refused_windows")
    for refusal in refused if isinstance(refused, list) else ():
        if isinstance(refusal, Mapping):
            yield f"{whose}not profiled: {refusal_sentence(refusal)}"
    untimed = counters.get("untimed_modules")
    for each in untimed if isinstance(untimed, list) else ():
        if isinstance(each, Mapping):
            yield f"{whose}not timed: {untimed_sentence(each)}"


def fault_line(counters: Mapping[str, Any]) -> str | None:
    """How watchglass itself has failed; None if it has not."""
    fault = counters.get("fault")
    return printable(fault) if isinstance(fault, str) and fault else None


def _cost_lines(counters: Mapping[str, Any]) -> Iterator[str]:
    callbacks, training = _number(counters, "callback_ns"), _number(counters, "train_ns")
    if callbacks is not None and training:
        recorder, device = (_number(counters, name) or 0.0 for name in ("recorder_cpu_ns", "device_ns"))
        cost = callbacks + recorder + device
        share, allowance = _number(counters, "overhead_budget"), _number(counters, "allowance_ns") or 0.0
        budgeted = share is not None and counters.get("fixed_interval") is False
        # While most of the budget is the fixed part, a share of so short a time says nothing about longer runs.
        short = budgeted and share is not None and allowance > share * training
        text = f"capture cost at most {_seconds(cost)}"
        text += "" if short else f" of {_seconds(training)} ({_percent(cost / training)})"
        if device:
            text += f", {_seconds(device)} of it on devices"
        if budgeted and share is not None:
            text += f"; budget {f'{_seconds(allowance)} + ' if allowance else ''}{_percent(share)}"
            text += f" of {_seconds(training)}" if short else ""
        beside = _number(counters, "beside_cpu_ns")
        text += f"; launcher and evaluator used {_seconds(beside)} of processor time" if beside is not None else ""
        yield text
    written = _number(counters, "bytes_written")
    parts = [_kept(counters), _recorded(counters), f"{size(written)} written" if written is not None else ""]
    peak = counters.get("peak_bytes")
    for device, held in peak.items() if isinstance(peak, Mapping) else ():
        if isinstance(held, int) and held:
            parts.append(f"at most {size(held)} of memory" + (f" on {device}" if device != "cpu" else ""))
    if any(parts):
        yield ", ".join(filter(None, parts))


def notable_wait(counters: Mapping[str, Any]) -> float | None:
    """The share of a typical training step that waits for data, 0 to 1; None if it is small or unknown."""
    phases = counters.get("phases")
    waits = _number(phases, "data") if isinstance(phases, Mapping) else None
    return waits if waits is not None and waits >= _NOTABLE_WAIT else None


def memory_growth(counters: Mapping[str, Any]) -> str | None:
    """How memory grows to its limit, in half a sentence; None if no limit is near, or nothing is known."""
    memory = counters.get("memory")
    names = ("bytes", "seconds", "limit_bytes", "left_s")
    numbers = [_number(memory, name) if isinstance(memory, Mapping) else None for name in names]
    grown, seconds, limit, left_s = numbers
    if grown is None or seconds is None or limit is None or left_s is None:
        return None
    return (
        f"memory grew by {size(grown)} in {duration(seconds)} without leveling off; at this rate it reaches "
        f"the limit of {size(limit)} in {duration(left_s)}"
    )


def _kept(counters: Mapping[str, Any]) -> str:
    """How many steps have statistics; "" if all have."""
    captured, steps, interval = (_number(counters, name) for name in ("captured_steps", "train_steps", "interval"))
    if counters.get("fixed_interval") is False and captured is not None and steps is not None:
        return f"statistics of {int(captured):,} of {count(int(steps), 'step')}" if captured < steps else ""
    return f"statistics every {count(int(interval), 'step')}" if interval and interval > 1 else ""


def _recorded(counters: Mapping[str, Any]) -> str:
    """How many steps have a loss; "" if all have."""
    recorded, steps = (_number(counters, name) for name in ("recorded_steps", "train_steps"))
    if recorded is None or steps is None or recorded >= steps:
        return ""
    return f"the loss of {int(recorded):,} of {count(int(steps), 'step')}"


def _seconds(nanoseconds: float) -> str:
    return duration(nanoseconds / 1e9)


def _percent(ratio: float) -> str:
    """Two significant digits below 100 percent, no fraction above: ``"0.83 %"``, ``"1,510 %"``."""
    return f"{100 * ratio:.2g} %" if abs(ratio) < 0.995 else f"{100 * ratio:,.0f} %"


_KINDS = {"raw": "raw tensors"}


def _number(counters: Mapping[str, Any], name: str) -> float | None:
    value = counters.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
