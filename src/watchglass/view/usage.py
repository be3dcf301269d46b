"""How much of a machine a run used, where the time of its steps went, in which modules and operators, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from watchglass.records import FunctionTotals, WindowCost, count
from watchglass.view.text import duration, exact_duration, percent, printable, size

if TYPE_CHECKING:
    from watchglass.run import LoaderWorkers, ModuleTimes, Operators, Phases, PythonProfile, Usage

#: Functions that are not written in Python, as cProfile names them.
_BUILT_IN = re.compile(r"<built-in method (\S+)>")
_METHOD = re.compile(r"<method '(\S+)' of '(\S+)' objects>")


def usage_sentence(usage: Usage) -> str:
    """``"processor 43 % on average, 95th percentile 98 %; processes of the run at most 1.2 GB"``.

    Figures that are unknown are left out. Those of a long run, of which not all samples were read, are marked.
    """
    parts = []
    if not math.isnan(usage.cpu_mean):
        mean, p95 = percent(usage.cpu_mean / 100), percent(usage.cpu_p95 / 100)
        parts.append(f"processor {mean} on average, 95th percentile {p95}")
    if not math.isnan(usage.memory_bytes):
        parts.append(f"processes of the run {'at most' if usage.whole else 'up to'} {size(usage.memory_bytes)}")
    if not math.isnan(usage.gpu_mean):
        parts.append(f"{count(usage.gpus, 'GPU')} {percent(usage.gpu_mean / 100)} on average")
    if parts and not usage.whole:
        parts.append("from a part of the samples")
    name = "" if usage.stream == "system" else f"{usage.stream}: "
    return name + ("; ".join(parts) or "no samples of processor and memory")


#: What a phase does with its share of a step.
_PHASE_WORDS = {
    "data": "waits for data", "prepare": "prepares it", "copy": "copies to the device", "forward": "forward",
    "backward": "backward", "update": "update", "compute": "compiled step", "other": "other",
}  # fmt: skip


def phases_sentence(phases: Phases) -> str:
    """``"training step 25 ms on average: 38 % waits for data, 2 % prepares it, 24 % forward, ..."``.

    Phases without any time are left out. Steps that are far longer than the others are counted separately.
    """
    typical = phases.typical()
    shares = [(name, share) for name, share in typical.shares.items() if share > 0]
    words = ", ".join(f"{percent(share)} {_PHASE_WORDS[name]}" for name, share in shares)
    seconds, whole = float(typical.seconds.sum()), float(phases.seconds.sum())
    longer = far_longer_steps(len(phases) - len(typical), whole - seconds, whole)
    return f"training step {exact_duration(seconds / len(typical))} on average: {words}{longer}"


def far_longer_steps(number: int, seconds: float, whole: float) -> str:
    """``"; 3 far longer steps took 1 min 6 s of 1 min 24 s"``; "" without any."""
    return f"; {count(number, 'far longer step')} took {duration(seconds)} of {duration(whole)}" if number else ""


def loading_sentence(loading: LoaderWorkers) -> str:
    """``"batch of 2 processes: 18 ms to fetch samples, 1.5 ms collate, 0.4 ms until the script has it"``.

    Of the loader with the most batches; what is unknown is left out.
    """
    mean = loading.largest()
    if mean is None:
        return ""
    makers = [row.loader_worker for row in loading.rows if row.loader == mean.loader]
    who = "the process that trains" if makers == [-1] else count(len(makers), "loader worker")
    parts = (
        (mean.mean_fetch_s, "to fetch its samples"), (mean.mean_collate_s, "in collate_fn"),
        (mean.mean_queued_s, "in the queue"),
    )  # fmt: skip
    words = ", ".join(f"{duration(seconds)} {words}" for seconds, words in parts if not math.isnan(seconds))
    return f"batch of {who}, on average: {words}"


#: Operators, and modules, that a sentence names.
_NAMED = 3


def operators_sentence(operators: Operators) -> str:
    """``"steps 10:15, host: 41 % aten::addmm, 20 % aten::mm; a step took 30 ms, 25 ms in the steps before"``.

    Shares are of the time of the host in all recorded operators.
    """
    rows = sorted((row for row in operators.rows if not row.on_device), key=lambda row: -row.self_cpu_s)
    whole = sum(row.self_cpu_s for row in rows)
    words = ", ".join(f"{percent(row.self_cpu_s / whole)} {row.name}" for row in rows[:_NAMED] if row.self_cpu_s > 0)
    steps = f"steps {operators.steps.start}:{operators.steps.stop}, host: {words or 'no time'}"
    return "; ".join(filter(None, (steps, window_cost_sentence(operators.cost))))


def functions_sentence(profile: PythonProfile) -> str:
    """``"steps 10:15, cprofile: 41 % Burn.forward, 20 % sort; a step took 30 ms, 25 ms in the steps before"``.

    Shares are of the time in all recorded functions.
    """
    whole = sum(row.self_s for row in profile.rows)
    words = ", ".join(
        f"{percent(row.self_s / whole)} {function_name(row)}" for row in profile.rows[:_NAMED] if row.self_s > 0
    )
    steps = f"steps {profile.steps.start}:{profile.steps.stop}, {profile.profiler}: {words or 'no time'}"
    return "; ".join(filter(None, (steps, window_cost_sentence(profile.cost))))


def function_name(row: FunctionTotals) -> str:
    """The name that the script calls it by: ``torch._C._nn.linear`` for ``<built-in method torch._C._nn.linear>``."""
    found = _BUILT_IN.fullmatch(row.name) or _METHOD.fullmatch(row.name)
    return ".".join(reversed(found.groups())) if found else row.name


def window_cost_sentence(cost: WindowCost) -> str:
    """``"a step took 30 ms, 25 ms in the steps before"``; "" where it is unknown."""
    if math.isnan(cost.inside_s):
        return ""
    before = "" if math.isnan(cost.outside_s) else f", {exact_duration(cost.outside_s)} in the steps before"
    return f"a step took {exact_duration(cost.inside_s)}{before}"


def refusal_sentence(refusal: Mapping[str, Any]) -> str:
    """``"steps 100:105: the training run ended before step 100"``, from the data of a fact ``window_refused``."""
    return printable(f"steps {refusal.get('window')}: {refusal.get('reason')}")


def untimed_sentence(untimed: Mapping[str, Any]) -> str:
    """``"modules of Net: it is compiled, ..."``, from the data of a fact ``modules_not_timed``."""
    return printable(f"modules of {untimed.get('model')}: {untimed.get('reason')}")


def modules_sentence(times: ModuleTimes) -> str:
    """``"12 steps, forward and backward: 41 % fc2 (Linear), 20 % fc1 (Linear), 9 % the model itself (Net)"``.

    Shares are of the time in all modules, each without its submodules.
    """
    rows = sorted(zip(times.shares.tolist(), times.rows, strict=True), key=lambda each: -each[0])[:_NAMED]
    words = [f"{percent(share)} {row.module or 'the model itself'} ({row.type})" for share, row in rows if share > 0]
    where = ", on the device" if times.on_device else ""
    return f"{count(len(times.steps), 'step')}, forward and backward{where}: {', '.join(words) or 'no time'}"
