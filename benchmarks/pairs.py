"""Compare what runs in one process, side by side: interleaved steps, paired ratios, a control, an interval."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Step = Callable[[], None]

#: Blocks below which no interval is trusted.
FEWEST_BLOCKS = 20


@dataclass(frozen=True)
class Estimate:
    """A ratio of two times with its 95 % confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """What watching cost against a bare training, and what nothing cost against nothing.

    Attributes:
        watched: Watched over bare, relative to the control: (watched / bare) / (other bare / bare).
        control: One bare training over another one.
        bare_ms: Median of a bare step in milliseconds.
        blocks: Number of paired blocks behind it.
        seconds: Time it took.
        sums: Seconds of each block: (watched, bare, other bare).
    """

    watched: Estimate
    control: Estimate
    bare_ms: float
    blocks: int
    seconds: float
    sums: Sequence[tuple[float, float, float]] = ()


#: Which of the three makes a turn next, the watched one first; the comparison at the end.
Turns = Generator[int, None, Comparison]


def compare(
    watched: Step,
    bare: Step,
    other_bare: Step,
    *,
    block: int,
    half_width: float,
    limit_s: float,
    turn: int = 1,
    charged_s: Callable[[], float] = lambda: 0.0,
    trim: float = 0.0,
    before_block: Callable[[], None] = lambda: None,
    progress: Callable[[Comparison], None] = lambda _: None,
    processor_time: bool = False,
) -> Comparison:
    """Time the three side by side until the control is sharp enough or the time is up; see :func:`turns`.

    Args:
        watched: One watched training step.
        bare: The same training without watching.
        other_bare: The same again, for the control.
        block: Steps of each that are summed up; a multiple of the capture interval, so that blocks are alike.
        half_width: See :func:`turns`.
        limit_s: See :func:`turns`.
        turn: Steps that each makes before the next comes; ``block`` is a multiple of it. With one step each finds the
            caches as two other training runs have left them, which none outside a benchmark does.
        charged_s: Processor seconds spent on watching in the background so far; what passes of them during bare steps
            is charged to the watched ones.
        trim: Share of blocks left out at either end as disturbed; see :func:`estimate`.
        before_block: Called before every block; its time is not counted.
        progress: Called after every block once there are estimates.
        processor_time: Whether processor time of this thread counts in place of time, with all of ``charged_s``. It
            suits a machine with other work, and steps that no other thread computes.
    """
    steps = (watched, bare, other_bare)
    taking = turns(
        block, turn, half_width=half_width, limit_s=limit_s, charged_s=charged_s, trim=trim, before_block=before_block,
        progress=progress, clock=time.thread_time if processor_time else time.perf_counter,
        charges_own=processor_time,
    )  # fmt: skip
    while True:
        try:
            step = steps[next(taking)]
        except StopIteration as over:
            found: Comparison = over.value
            return found
        for _ in range(turn):
            step()


def turns(
    block: int,
    turn: int,
    *,
    half_width: float,
    limit_s: float,
    clock: Callable[[], float],
    charged_s: Callable[[], float] = lambda: 0.0,
    charges_own: bool = False,
    trim: float = 0.0,
    before_block: Callable[[], None] = lambda: None,
    before_turn: Callable[[int], None] = lambda _: None,
    progress: Callable[[Comparison], None] = lambda _: None,
) -> Turns:
    """Says whose turn it is, and times it until the next one is asked for.

    In every round each of the three makes its turn of some steps, in an order drawn at random among the six, so that
    drift, clock changes and neighbours hit all of them alike. ``block`` steps of each are one pair of observations.

    Args:
        block: Steps of each that are summed up.
        turn: Steps of a turn.
        half_width: Enough once the control's interval reaches no farther than this to either side.
        limit_s: Enough in any case.
        clock: Seconds so far.
        charged_s: Processor seconds spent on watching in the background so far.
        charges_own: Whether those during watched turns are charged, too, as the clock does not count them.
        trim: Share of blocks left out at either end as disturbed.
        before_block: Called before every block; its time is not counted.
        before_turn: Called with whose turn it is; its time is not counted.
        progress: Called after every block once there are estimates.
    """
    orders = list(itertools.permutations(range(3)))
    chance = random.Random(0)
    sums: list[tuple[float, float, float]] = []
    start = time.perf_counter()
    while True:
        before_block()
        elapsed = [0.0, 0.0, 0.0]
        for _ in range(block // turn):
            for which in chance.choice(orders):
                before_turn(which)
                charged = charged_s()
                begin = clock()
                yield which
                elapsed[which] += clock() - begin
                if which != 0 or charges_own:
                    elapsed[0] += charged_s() - charged
        sums.append((elapsed[0], elapsed[1], elapsed[2]))
        seconds = time.perf_counter() - start
        if len(sums) < FEWEST_BLOCKS and seconds < limit_s:
            continue
        result = summarize(sums, block, seconds, trim)
        progress(result)
        if (len(sums) >= FEWEST_BLOCKS and result.control.half_width <= half_width) or seconds >= limit_s:
            return result


def summarize(sums: Sequence[tuple[float, float, float]], block: int, seconds: float, trim: float = 0.0) -> Comparison:
    """The comparison that sums of seconds over blocks make: (watched, bare, other bare) for each block."""
    watched, bare, other = np.array(sums).T
    return Comparison(
        # (watched / bare) / (other / bare), block by block: the bare one cancels.
        watched=estimate(np.log(watched / other), trim),
        control=estimate(np.log(other / bare), trim),
        bare_ms=float(np.median(np.concatenate([bare, other]))) / block * 1e3,
        blocks=len(sums),
        seconds=seconds,
        sums=sums,
    )


def estimate(log_ratios: npt.NDArray[np.float64], trim: float = 0.0) -> Estimate:
    """The ratio behind ``log_ratios``: their trimmed mean, with the interval of Yuen (1974).

    With ``trim`` 0 this is the plain mean with its normal interval. A single observation gives an infinite interval.
    """
    ordered = np.sort(log_ratios)
    n, cut = len(ordered), int(trim * len(ordered))
    kept = ordered[cut : n - cut]
    center = float(kept.mean())
    if len(kept) < 2:
        return Estimate(math.exp(center), 0.0, math.inf)
    winsorized = np.clip(ordered, kept[0], kept[-1])
    error = float(winsorized.std(ddof=1)) / ((1 - 2 * cut / n) * math.sqrt(n))
    reach = NormalDist().inv_cdf(0.975) * error
    return Estimate(math.exp(center), math.exp(center - reach), math.exp(center + reach))
