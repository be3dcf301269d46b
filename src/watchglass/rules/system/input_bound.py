"""InputBound: steps wait for data, or for its copies to the device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from watchglass.config import parameter
from watchglass.records import LOADER_WORKERS, PHASES, Finding, Mode, Severity, facts, in_percent, rounded
from watchglass.rules import step_windows
from watchglass.rules.gpu_samples import idle_share, with_busiest
from watchglass.rules.needs import Needs, Windows
from watchglass.rules.rule import Rule, state
from watchglass.tables import JointStep

#: What the largest part of a batch is.
_PARTS = {"mean_fetch_s": "to fetch samples from the data set", "mean_collate_s": "in collate_fn",
          "mean_transfer_s": "to transfer it to the script"}  # fmt: skip
#: Steps that are enough at the end of a short run.
_ENOUGH = 16
#: Time to make a batch that is no longer than what a worker process needs to send it (house).
_SMALL_S = 1e-3
#: A gain below this share of the greatest possible one is stated beside it, and the least for which a number of workers
#: is advised (house).
_LESS, _WORTH = 0.9, 1.05


class InputBound(Rule):
    """Training steps wait for the data loader, or copy batches to the device.

    Looks at: the phases of training steps, the settings of the data loaders and the times of their batches, the cores
        that the run may use, the utilization of its GPUs.
    Fires when: in each of the last two windows of `window` steps, at least `high` percent of the time of the steps was
        a wait for a `DataLoader`, a `tf.data.Dataset` or what Keras takes in Python: `warning`; `moderate` percent:
        `info`. The same of copies to the device, of which
        only so much counts as the GPUs were idle, because a copy also waits until the device has done what came before;
        where no sample of a GPU shows that, they are an `info` at most. A run that is too short for two windows is
        judged at its end. The gain is an upper bound: steps without any wait, and all else as it was. On a GPU, which
        computes while the script waits, less may be gained. Where the number of workers that is advised makes batches
        more slowly than the rest of a step takes, the message also states the gain with that number; none is advised
        where it would make batches no faster.
    Usual causes: a loader without worker processes; samples that are decoded or augmented on the way; slow storage;
        copies from memory that is not pinned, or that are not `non_blocking`.
    What to try: worker processes, `num_workers`; samples that are prepared once and stored; larger reads. Where a
        process that trains makes each batch in less than a millisecond, sending it from a worker takes as long: slices
        of tensors in place of single samples. Where a batch takes longer to get to the script than to make, no workers,
        or no more than cores.
        For copies, `pin_memory=True` and `.to(device, non_blocking=True)`.
    Costs: nothing in addition to the phases of steps, which are recorded under a launcher.
    Source: 5 and 20 percent: XProf, input-pipeline analyzer (tensorflow.org/guide/profiler); house: the windows, and
        half of the cores of a rank as the number of workers to try first.
    """

    needs = (
        Needs(rows=(PHASES,), why="to see how long steps wait for data"),
        Needs(facts=("data_loader", "hidden_waits"), optional=True),
        Needs(metrics=("cpu.limit", "gpu.utilization", "gpu.processes"), optional=True),
    )
    streams = Windows(kinds=("samples",), length_s=1)

    moderate: float = parameter(5.0, help="wait that is an info", unit="%", gt=0, le=100)
    high: float = parameter(20.0, help="wait that is a warning", unit="%", gt=0, le=100)
    window: int = parameter(32, help="steps of a window", unit="steps", ge=1)

    #: See :mod:`step_windows`; seconds of wait, of copies, and of all phases, of all ranks.
    windows: dict[str, Any] = state(step_windows.empty)
    #: Whether any step waited or copied at all.
    reads: bool = state(bool)
    #: Number of workers and of batches of each loader.
    loaders: dict[str, list[int]] = state(dict)
    #: Sums of each loader over the judged training steps: batches, seconds to fetch, collate and transfer them; and the
    #: largest number of workers.
    batches: dict[str, list[float]] = state(dict)
    #: Cores that the run may use on one machine; 0 before a sample says it.
    cores: float = state(float)
    #: Whether the last step was a training step that may be judged.
    judges: bool = state(bool)
    #: See :func:`with_busiest`.
    busy: list[float] = state(lambda: [0.0, 0])

    def check_step(self, step: JointStep) -> Iterable[Finding]:
        """A finding after windows with long waits."""
        self._note_loaders(step)
        self.cores = _cores(step) or self.cores
        phases = [row for view in step.views for row in view.rows(PHASES)]
        if step.mode is not Mode.TRAIN or not phases:
            # The last batches of an epoch are in the first step after it.
            if self.judges:
                self._add_batches(step)
            self.judges = False
            return
        self.judges = step_windows.note_step(self.windows)
        if not self.judges:
            return
        self.reads = self.reads or any(each.data_s > 0 or each.copy_s > 0 for each in phases)
        self._add_batches(step)
        self.busy = with_busiest(self.busy, step.streams)
        parts = [sum(each.data_s for each in phases), sum(each.copy_s for each in phases)]
        row = [*parts, sum(map(sum, phases))]
        yield from self._judged(step, step_windows.add(self.windows, row, self.window))

    def finish(self, step: JointStep) -> Iterable[Finding]:
        """The judgement of a short run."""
        rows = step_windows.of_short_run(self.windows, self.window, self._enough)
        parts = (rows[: self.window], rows[self.window :])
        yield from self._judged(step, [part for part in parts if len(part) >= self._enough])

    def applicable(self, step: JointStep) -> str:
        """Not for runs that are too short, that read no loader and copy nothing, or whose waits do not show."""
        if any(view.latest_fact(facts.HiddenWaits) is not None for view in step.views):
            return (
                "Keras reads its data inside its compiled functions on TensorFlow, so waits are a part of phase "
                "compute; --profile-steps shows them as operator IteratorGetNext"
            )
        unread = self.windows["seen"] and not self.reads
        few = step_windows.too_few(self.windows, self._enough)
        none = "no training step read a DataLoader or a tf.data.Dataset, or copied to a device"
        return few or (none if unread else "")

    @property
    def _enough(self) -> int:
        return min(_ENOUGH, self.window)

    def _judged(self, step: JointStep, windows: list[list[step_windows.Row]]) -> Iterable[Finding]:
        if not windows:
            return
        sums = [[sum(column) for column in zip(*rows, strict=True)] for rows in windows]
        yield from self._waits(step, [(wait, whole) for wait, _, whole in sums], sum(map(len, windows)))
        yield from self._copies(step, [(copy, whole) for _, copy, whole in sums])

    def _copies(self, step: JointStep, windows: list[tuple[float, float]]) -> Iterable[Finding]:
        copied, whole = (sum(column) for column in zip(*windows, strict=True))
        idle = idle_share(self.busy)
        # More is no time of copies, but a wait for the computation.
        avoidable = copied if idle is None else min(copied, idle * whole)
        least = min(100 * copy / max(time, 1e-9) for copy, time in windows)
        least = min(least, 100 * avoidable / max(whole, 1e-9))
        if least < self.moderate or avoidable >= whole:
            return
        severe = least >= self.high and idle is not None
        percent, gain = 100 * copied / whole, whole / (whole - avoidable)
        why = (
            "; how much of that is a wait for earlier work of the device is not known"
            if idle is None
            else f", while its GPUs are idle {in_percent(idle)} of the time"
        )
        yield self.finding(
            step,
            severity=Severity.WARNING if severe else Severity.INFO,
            subject="copies to the device",
            value=percent,
            limit=self.high if severe else self.moderate,
            message=f"{in_percent(percent / 100)} of each training step is spent in copies to the device{why}; "
            f"pin_memory=True and "
            f"non_blocking=True let copies run beside the computation; steps are then at most {rounded(gain, 1)} "
            f"times as fast",
            symptoms=("copies_take_time",) if severe else (),
            evidence={"gain": gain, **({} if idle is None else {"idle": idle})},
        )

    def _waits(self, step: JointStep, windows: list[tuple[float, float]], steps: int) -> Iterable[Finding]:
        waited, whole = (sum(column) for column in zip(*windows, strict=True))
        least = min(100 * wait / max(time, 1e-9) for wait, time in windows)
        if least < self.moderate or waited >= whole:
            return
        severe = least >= self.high
        percent, gain = 100 * waited / whole, whole / (whole - waited)
        workers, cores, parts = self._workers(), self.cores, self._parts()
        ranks = len({view.worker for view in step.views})
        of_rank = cores / ranks
        mean = f", in the mean of {ranks} ranks" if ranks > 1 else ""
        small = workers == 0 and bool(parts) and parts["mean_fetch_s"] + parts["mean_collate_s"] < _SMALL_S
        sent = bool(workers and parts) and parts["mean_transfer_s"] > parts["mean_fetch_s"] + parts["mean_collate_s"]
        # More workers than cores take turns: a batch that is made waits until its worker, or the script, has a core.
        crowded = sent and 0 < of_rank < (workers or 0)
        more = None if small else 0 if sent else _workers_to_try(workers, of_rank)
        if crowded:
            more = max(1, int(of_rank / 2))
        tried = gain
        if more and not crowded:  # workers that take turns need longer for a batch than fewer would
            tried = whole / max(whole - waited, self._made_s(ranks) * steps * ranks / more)
        in_vain = tried < _WORTH
        if in_vain:  # it would make batches no faster than now
            more, tried = None, gain
        symptom = "waits_for_small_batches" if small else "waits_for_workers" if workers else "waits_without_workers"
        if sent:
            symptom = "waits_for_crowded_workers" if crowded else "waits_for_transfers"
        if workers is None or (in_vain and not workers):
            symptom = "waits_for_data"
        known = {"loader_workers": workers, "cores": cores or None, "try_workers": more, **parts}
        yield self.finding(
            step,
            severity=Severity.WARNING if severe else Severity.INFO,
            subject="waits for data",
            value=percent,
            limit=self.high if severe else self.moderate,
            message=f"{in_percent(percent / 100)} of each training step waits for "
            f"data{mean}{_loading(workers, cores, more)}"
            f"{f', with which steps are at most {rounded(tried, 1)} times as fast' if tried < _LESS * gain else ''}"
            f"{_making(parts)}; without these waits steps are at most {rounded(gain, 1)} times as fast",
            symptoms=(symptom,) if severe else (),
            evidence={"gain": gain, **{name: number for name, number in known.items() if number is not None}},
        )

    def _note_loaders(self, step: JointStep) -> None:
        for each in (each for view in step.views for each in view.facts(facts.LoaderSettings)):
            if each.loader and each.num_workers is not None and len(self.loaders) < 64:
                self.loaders[each.loader] = [each.num_workers, each.batches or 0]

    def _add_batches(self, step: JointStep) -> None:
        for each in (each for view in step.views for each in view.rows(LOADER_WORKERS)):
            sums = self.batches.setdefault(each.loader.name.lower(), [0.0] * 5)
            for place, number in enumerate((each.batches, each.fetch_s, each.collate_s, each.transfer_s)):
                sums[place] += number
            sums[4] = max(sums[4], each.loader_worker + 1)

    def _parts(self) -> dict[str, float]:
        """Mean seconds of the parts of a batch, of the loader with the most batches; empty where one is unknown."""
        batches, *sums, _ = max(self.batches.values(), default=[0.0, 0.0])
        if not batches or not all(map(math.isfinite, sums)):
            return {}
        return dict(zip(_PARTS, (each / batches for each in sums), strict=True))

    def _made_s(self, ranks: int) -> float:
        """Mean seconds in which one process makes the batches of a step of one rank; 0 where that is unknown."""
        batches = max(self.batches.values(), default=[0.0])[0]
        parts = self._parts()
        steps = max(self.windows["counted"], 1) * ranks
        return (parts["mean_fetch_s"] + parts["mean_collate_s"]) * batches / steps if parts else 0.0

    def _workers(self) -> int | None:
        """The number of workers of the loader with the most batches, which is that of the training data; or None."""
        if self.batches:
            return int(max(self.batches.values())[4])
        return max(self.loaders.values(), key=lambda each: each[1])[0] if self.loaders else None


def _cores(step: JointStep) -> float:
    """Cores that the run may use on one machine; 0 where no sample says it."""
    for window in step.streams:
        values = window.samples("cpu.limit").values
        if len(values):
            return float(values[-1].max())
    return 0.0


def _workers_to_try(workers: int | None, cores: float) -> int | None:
    """A larger number of workers for which a rank has cores; None where there is none."""
    if workers is None or cores < 2:
        return None
    more = max(int(cores / 2), min(2 * workers, int(cores)))
    return more if more > workers else None


def _loading(workers: int | None, cores: float, more: int | None) -> str:
    if workers is None:
        return ""
    on = f" on {cores:g} core{'s' * (cores != 1)}" if cores else ""
    attempt = "" if more is None else f"; try num_workers={more}"
    return f": {workers} loader worker{'s' * (workers != 1)}{on}{attempt}"


def _making(parts: dict[str, float]) -> str:
    """The largest part of the time of a batch."""
    if not parts:
        return ""
    largest = max(parts, key=lambda name: parts[name])
    return f"; of the {_ms(sum(parts.values()))} of a batch, {_ms(parts[largest])} are needed {_PARTS[largest]}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
