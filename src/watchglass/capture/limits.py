"""Limits on time, memory and steps inside a training process: one record, handed to a hook."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.config import TIMING, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """Limits of one hook, each with the reason for its value."""

    #: Evaluation steps held back until the first training step. 4,096 cover an evaluation ahead of training; a process
    #: that never trains must not fill its memory.
    early_steps: int = 4096
    #: Steps of one pattern before the fast path begins. After 8, models and optimizers that take turns have shown
    #: themselves.
    alike_steps: int = 8
    #: Processor time that captures may take in addition to their share of the run's time, with one model. Half a second
    #: pays for the dense start of most models.
    allowance_ns: int = 500_000_000
    #: Share of the overhead budget for the total gradient norm. A quarter leaves the rest to captures.
    norm_share: float = 0.25
    norm_interval: int = 64  #: Longest interval of the norm, in steps. A rarer norm would miss most spikes.
    #: First training steps of a run, which are all recorded, however short they are. 4,096 are as many as rules look
    #: back on.
    whole_steps: int = 4096
    #: What recording one short step costs: at most 30 us of the training thread. So there is at most a row for each 3
    #: ms, and an evaluator needs a fraction of a core.
    row_ns: int = 30_000
    step_interval: int = 64  #: Longest interval of recorded steps. Of 64 steps of 100 us, one is recorded each 6 ms.
    #: First batches of evaluations that are a step each, however short they are. 1,024 take a fifth of a second more,
    #: and short runs are complete.
    whole_batches: int = 1024
    #: Most batches of an evaluation in one step. With 32, evaluations have enough steps to see where data of another
    #: sort begins.
    joined_batches: int = 32
    batch_ns: int = 150_000  #: What a batch of an evaluation costs that is a step: 150 us of the training thread.
    #: Steps in which all modules are watched after a failure without an explanation. 64 reach most second failures;
    #: each is slower.
    next_steps: int = 64
    #: Training steps that wait for their number while it is on its way from a device. After 64 the run begins at 0.
    held_steps: int = 64
    #: Outputs of a forward that are kept until the update. 4 MiB exclude the logits of a language model: they must not
    #: live longer than in an unwatched run.
    kept_forward_bytes: int = 4 << 20
    #: Time between two facts on the cost of capture, for a process that is killed. Every 10 s they cost nothing that
    #: shows.
    cost_report_ns: int = 10_000_000_000
    #: Silence after which stacks are recorded. 10 s are before a rule that finds a hang judges, and a look takes a
    #: millisecond.
    stacks_after_s: float = 10.0
    #: Longest wait for another process that recovers the last steps of a dead worker. 20 s are enough for its requests
    #: to an object store.
    harvest_s: float = 20.0
    #: Longest time to send the last records to an object store that is unreachable or slow. Longer than the time for
    #: which such a store is retried, so that the last attempt can end.
    closing_s: float = 700.0
    #: Bytes that the spool leaves free on its disk: the run writes checkpoints there, too.
    spool_reserve_bytes: int = 256 << 20
    timing: Timing = TIMING  #: How long the recorder waits and its uploads pause.


#: The limits of a hook that is given none.
DEFAULT_LIMITS = CaptureLimits()
