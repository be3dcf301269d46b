"""Limits on time, memory and steps inside a training process: one record, handed to a hook."""

from __future__ import annotations

from dataclasses import dataclass

from watchglass.config import TIMING, Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """Limits of one hook, each with the reason for its value.

    Attributes:
        early_steps: Evaluation steps held back until the first training step. 4,096 cover an evaluation ahead of
            training; a process that never trains must not fill its memory.
        alike_steps: Steps of one pattern before the fast path begins. After 8, models and optimizers that take turns
            have shown themselves.
        allowance_ns: Processor time that captures may take in addition to their share of the run's time, with one
            model. Half a second pays for the dense start of most models.
        norm_share: Share of the overhead budget for the total gradient norm. A quarter leaves the rest to captures.
        norm_interval: Longest interval of the norm, in steps. A rarer norm would miss most spikes.
        whole_steps: First training steps of a run, which are all recorded, however short they are. 4,096 are as many as
            rules look back on.
        row_ns: What recording one short step costs: at most 30 us of the training thread. So there is at most a row
            for each 3 ms, and an evaluator needs a fraction of a core.
        step_interval: Longest interval of recorded steps. Of 64 steps of 100 us, one is recorded each 6 ms.
        whole_batches: First batches of evaluations that are a step each, however short they are. 1,024 take a fifth of
            a second more, and short runs are complete.
        joined_batches: Most batches of an evaluation in one step. With 32, evaluations have enough steps to see where
            data of another sort begins.
        batch_ns: What a batch of an evaluation costs that is a step: 150 us of the training thread.
        next_steps: Steps in which all modules are watched after a failure without an explanation. 64 reach most second
            failures; each is slower.
        held_steps: Training steps that wait for their number while it is on its way from a device. After 64 the run
            begins at 0.
        kept_forward_bytes: Outputs of a forward that are kept until the update. 4 MiB exclude the logits of a language
            model: they must not live longer than in an unwatched run.
        cost_report_ns: Time between two facts on the cost of capture, for a process that is killed. Every 10 s they
            cost nothing that shows.
        stacks_after_s: Silence after which stacks are recorded. 10 s are before a rule that finds a hang judges, and a
            look takes a millisecond.
        harvest_s: Longest wait for another process that recovers the last steps of a dead worker. 20 s are enough for
            its requests to an object store.
        closing_s: Longest time to send the last records to an object store that is unreachable or slow. Longer than
            the time for which such a store is retried, so that the last attempt can end.
        spool_reserve_bytes: Bytes that the spool leaves free on its disk: the run writes checkpoints there, too.
        timing: How long the recorder waits and its uploads pause.
    """

    early_steps: int = 4096
    alike_steps: int = 8
    allowance_ns: int = 500_000_000
    norm_share: float = 0.25
    norm_interval: int = 64
    whole_steps: int = 4096
    row_ns: int = 30_000
    step_interval: int = 64
    whole_batches: int = 1024
    joined_batches: int = 32
    batch_ns: int = 150_000
    next_steps: int = 64
    held_steps: int = 64
    kept_forward_bytes: int = 4 << 20
    cost_report_ns: int = 10_000_000_000
    stacks_after_s: float = 10.0
    harvest_s: float = 20.0
    closing_s: float = 700.0
    spool_reserve_bytes: int = 256 << 20
    timing: Timing = TIMING


#: The limits of a hook that is given none.
DEFAULT_LIMITS = CaptureLimits()
