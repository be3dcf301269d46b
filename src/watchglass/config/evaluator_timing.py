"""How long an evaluator waits, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluatorTiming:
    """Time constants of an evaluator, in seconds. Users set none of them; tests shorten them."""

    lease_s: float = 30.0  #: Wait for an evaluator of an earlier attempt to release the journal.
    silence_s: float = 60.0  #: Silence after which a worker on another machine is lost, once the lifeline is closed.
    unreachable_s: float = 300.0  #: Wait for an unreachable store, once the lifeline is closed.
    end_s: float = 60.0  #: Wait for an unreachable store at the end of following.
    folder_s: float = 5.0  #: The longest of these two waits for a folder, which seldom comes back: its disk is full.
    longest_retry_s: float = 30.0  #: Longest pause between two tries of an unreachable store.
    settled_s: float = 3.0  #: Silence after the end of a run that succeeded, before following ends.
    restarted_s: float = 30.0  #: The same for a run that failed, and may be started again.
    answer_s: float = 0.05  #: Pause between looks for the answer of a cluster.
    last_look_s: float = 3.0  #: Time for which an evaluator continues to read after a request to end, during the run.
    harvest_s: float = 30.0  #: Time that another process has to recover the last steps of a worker.
    #: Silence, beyond two flush intervals, after which a worker whose launcher saw it end is lost.
    after_launch_s: float = 5.0
    #: Wait for one delivery to arrive, once the run has ended; later ones become dead letters.
    delivery_s: float = 60.0
    leaving_s: float = 2.0  #: Wait for deliveries under way, where the evaluator ends before the run.
    reported_wait_s: float = 1.0  #: Wait for deliveries that is reported to the user.
    delivery_look_s: float = 0.05  #: Pause between looks at deliveries.
    #: Pauses between tries of a delivery, the first and the longest; they double with each try.
    delivery_pauses_s: tuple[float, float] = (1.0, 300.0)
    longest_requested_pause_s: float = 3600.0  #: Longest pause that a receiver can request.
    #: Pause between searches for new runs, in a folder and in an object store, where they cost requests.
    search_s: tuple[float, float] = (1.0, 30.0)
    again_s: float = 15.0  #: Pause before the next try of a run whose store refused.
    #: Pause between looks at a run that another evaluator follows, in a folder and in an object store.
    held_s: tuple[float, float] = (2.0, 10.0)
    member_end_s: float = 5.0  #: Wait for a store that refuses at the end of one of many runs, while the others wait.
    #: Longest pause between two turns of a quiet run, in a folder and in an object store.
    longest_rest_s: tuple[float, float] = (5.0, 15.0)
    leased_s: float = 15.0  #: Longest pause between two turns of any run, short enough to keep its lease.
    publish_s: float = 0.5  #: Pause between publications of snapshots.
    #: A quiet run has its next turn after this share of the time for which it has been quiet.
    quiet_ratio: float = 0.05
    #: Most turns a second of all runs together, in a folder and in an object store.
    turns_per_s: tuple[float, float] = (200.0, 20.0)
    #: Pause after a search in a folder, as a multiple of its length: for new runs, and for the first run.
    search_ratio: tuple[float, float] = (50.0, 20.0)
    #: Pause after a search in an object store, in seconds per request: for new runs, and for the first run.
    search_request_s: tuple[float, float] = (1.0, 2.0)
    longest_wait_s: float = 5.0  #: Longest pause between checks for a run that does not exist yet.
    #: Silence before the first tick, and the longest pause between two ticks.
    ticks_s: tuple[float, float] = (1.0, 60.0)
    #: Silence after which the stacks of a worker that has recorded none are read from outside.
    outside_stacks_s: float = 20.0
    standstill_s: float = 60.0  #: Silence after which it is reported where a run stands.
    standstill_steps: int = 20  #: The same in steps: also as many times as long as a step takes.
    silent_steps: int = 10  #: Number of steps for whose length a worker may be silent.
    #: Longest wait for all deliveries at the end of a run, as a multiple of the wait for one.
    deliveries_ratio: int = 5
    #: Longest pause between two checks of a call of a rule; pause between two attempts to end the call.
    call_checks_s: tuple[float, float] = (2.0, 0.25)
    stop_answer_s: float = 5.0  #: Search for workers that a stop must reach, where none is known.
    kill_after_s: float = 10.0  #: From SIGTERM to SIGKILL, for a worker that is stopped.
    death_s: float = 2.0  #: Wait for the death of a delivery that was killed.
    orphaned_s: float = 2.0  #: Time after its limit in which a delivery ends itself if its evaluator is gone.
    termination_s: float = 5.0  #: From the request to end an evaluator to the kill.
    #: Pause before each replacement of an evaluator that died. The cause of its end may pass, for example a lack of
    #: memory.
    replacement_pauses_s: tuple[float, ...] = (0.0, 5.0, 60.0)
    #: Silence after which an evaluator counts as hung, if rules may not take longer. An evaluator gives a sign of life
    #: after each step and each read of the run.
    hung_s: float = 300.0
    #: Number of rules that may use their time limit in one step before an evaluator counts as hung.
    hung_rules: int = 10
    #: Largest time that counts between two looks at an evaluator: the process that looks may have been stopped, or the
    #: machine suspended.
    longest_look_s: float = 5.0
    last_steps_s: float = 600.0  #: Wait of a launcher for the evaluation of the last steps.
    last_steps_of_ranks_s: float = 6 * 3600.0  #: The same where other ranks may still train.
    last_findings_s: float = 10.0  #: Wait of a script for the last findings of its evaluator.
