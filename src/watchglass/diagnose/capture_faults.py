"""What a run says of a failure of watchglass itself in one of its processes."""

from __future__ import annotations

from watchglass.records import facts
from watchglass.run import Run


def capture_fault(run: Run) -> str:
    """The first failure as a sentence without full stop, with the last step that was recorded; "" for none."""
    found = [(each, name) for name in run.workers for each in run.worker(name).facts(facts.CaptureFault.KIND)]
    if not found:
        return ""
    first, worker = min(found, key=lambda each: each[0].global_step)
    fault = facts.CaptureFault.from_data(first.data)
    where = f" on {worker}" if len(run.workers) > 1 else ""
    since = f"after step {first.global_step}" if first.global_step >= 0 else "of the training"
    return (
        f"watchglass failed{where}, and recorded nothing {since}: {fault.error if fault is not None else 'no reason'}"
    )
