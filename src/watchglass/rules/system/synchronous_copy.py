"""SynchronousCopy: the script waits for numbers of tensors in each step."""

from __future__ import annotations

from collections.abc import Iterable

from watchglass.config import parameter
from watchglass.records import PHASE_NAMES, PHASES, Finding, Mode, count, facts, in_percent, rounded
from watchglass.rules.needs import Needs
from watchglass.rules.rule import Rule, state
from watchglass.tables import StepView

#: First steps, which start workers and fill caches.
_FIRST = 8
_WHERE = {
    "data": "waits for data", "prepare": "prepares the batch", "copy": "copies to the device",
    "forward": "is the forward with the loss", "backward": "is the backward",
    "update": "is the update", "compute": "is the compiled step",
    "other": "lies between an update and the next batch",
}  # fmt: skip


class SynchronousCopy(Rule):
    """A line of the script waits for the device in each step, or reads numbers one by one.

    Looks at: single steps in which calls of `item`, `tolist`, `cpu`, `to`, `float`, `int` and `bool` on tensors, and of
        `torch.cuda.synchronize`, are observed with their place; the phases of all steps.
    Fires when: in each of the last `looks` observed steps the same line read a tensor on a device, and together these
        calls took `percent` percent of the steps. On the host a read waits for nothing, so there the line must have
        read `reads` numbers or more one by one, in a phase that takes `percent` percent of the time of all steps. The
        gain is an upper bound: without these calls, or without that phase. On a device less may be gained, because
        another call may then wait.
    Usual causes: `loss.item()` in each step, for a log; conditions on tensors; metrics computed element by element;
        `torch.cuda.synchronize()` for timing that was left in.
    What to try: keep sums on the device and read them once in many steps; compute metrics on whole tensors.
    Costs: the fact tensor_reads: 0.2 microseconds at every step, and about ten steps of a run are observed.
    Source: PyTorch documentation: Performance Tuning Guide; house: 10 percent, three looks, 256 reads.
    """

    needs = (
        Needs(facts=("tensor_reads",), why="to see which line reads tensors"),
        Needs(rows=(PHASES,), optional=True),
    )

    percent: float = parameter(10.0, help="share of the time of steps that it takes", unit="%", gt=0, le=100)
    looks: int = parameter(3, help="observed steps in a row", unit="steps", ge=1)
    reads: int = parameter(256, help="reads of one line in a step on the host", unit="reads", ge=1, le=1024)

    #: Steps that were observed; training steps, and their seconds by phase.
    looked: int = state(int)
    seen: int = state(int)
    spent: list[float] = state(lambda: [0.0] * len(PHASE_NAMES))
    #: By line: observed steps in a row in which it read, its reads in the last one, seconds of reads and of the steps.
    lines: dict[str, list[float]] = state(dict)

    def check(self, view: StepView) -> Iterable[Finding]:
        """A finding after enough observed steps with the same line."""
        for phases in view.rows(PHASES) if view.mode is Mode.TRAIN else ():
            self.seen += 1
            if self.seen > _FIRST:
                self.spent = [a + b for a, b in zip(self.spent, phases, strict=True)]
        for fact in view.facts(facts.ReadLines):
            yield from self._looked(view, fact)

    def applicable(self, view: StepView) -> str:
        """Not for runs that are too short."""
        few = f"the run has {count(self.looked, 'observed step')}; {self.looks} are needed"
        return few if self.looked < self.looks else ""

    def _looked(self, view: StepView, fact: facts.ReadLines) -> Iterable[Finding]:
        seconds = fact.seconds
        if seconds is None or seconds <= 0:
            return
        self.looked += 1
        before, self.lines = self.lines, {}
        for each in fact.reads[:8]:
            number, spent = each.count, each.seconds
            if number is None or spent is None or each.phase not in PHASE_NAMES:
                continue
            if number < (self.reads if each.device == "cpu" else 1):
                continue
            key = "\n".join((each.at, each.call, each.device, each.phase))
            row, _, waited, whole = before.get(key, [0, 0, 0.0, 0.0])
            self.lines[key] = [row + 1, number, waited + spent, whole + seconds]
            if row + 1 >= self.looks:
                yield from self._judged(view, key, complete=fact.complete)

    def _judged(self, view: StepView, key: str, *, complete: bool) -> Iterable[Finding]:
        at, call, device, phase = key.split("\n")
        looks, reads, waited, whole = self.lines[key]
        called = f"{call.strip('_')}()"
        if device == "cpu":
            waited, whole = self.spent[PHASE_NAMES.index(phase)], sum(self.spent)
        if not whole or 100 * waited < self.percent * whole:
            return
        percent, gain = 100 * waited / whole, whole / max(whole - waited, 1e-9)
        bound = f"so without it steps are at most {rounded(gain, 1)} times as fast"
        if device == "cpu":
            least = "" if complete else "at least "
            message = (
                f"{at} reads {least}{rounded(reads)} numbers of tensors one by one in each step, by {called}; its "
                f"phase, "
                f"which {_WHERE[phase]}, takes {in_percent(percent / 100)} of the time, {bound}"
            )
        else:
            message = (
                f"{at} waits for the device ({device}) in each step, in {called}: {1000 * waited / looks:.3g} ms of "
                f"{1000 * whole / looks:.3g} ms, {in_percent(percent / 100)}, {bound}"
            )
        yield self.finding(
            view,
            subject=f"{at} {call}",
            value=percent,
            limit=self.percent,
            message=message,
            symptoms=("reads_one_by_one",) if device == "cpu" else ("script_waits_for_device",),
            evidence={
                "gain": gain,
                "at": at,
                "call": call,
                "device": device,
                "phase": phase,
                "reads": reads,
                "waited_s": waited / max(looks, 1),
                "step_s": whole / max(looks, 1),
            },
        )
