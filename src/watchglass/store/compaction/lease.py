"""The lease of a compaction: one process at a time, until it ends or does not renew it."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, suppress

from watchglass.config import TIMING, Timing
from watchglass.errors import RunExistsError, StoreError
from watchglass.store import claim, layout
from watchglass.store.contract import Store
from watchglass.store.json_documents import read_document


class CompactionLease(AbstractContextManager["CompactionLease"]):
    """The right to compact a run, for as long as it is held and renewed. For one thread.

    Raises:
        RunExistsError: On construction, when another living process compacts the run.
    """

    def __init__(self, store: Store, timing: Timing = TIMING) -> None:
        self._store, self._timing = store, timing
        self._process = claim.this_process()
        holder = claim.holder_of(store, layout.COMPACTION_LEASE)
        unseen = holder if holder is not None and claim.is_alive(holder) is None else None
        if unseen is not None and not self._is_expired(unseen):
            raise RunExistsError(
                f"{store.location} is being compacted by process {unseen.pid} on {unseen.host}; "
                f"wait for it to end (if it has died, the lease ends in {timing.compaction_expiry_s / 60:.0f} minutes)"
            )
        claim.take(store, layout.COMPACTION_LEASE, self._process, f"the compaction of {store.location}", unseen)
        self._renewed_s = float("-inf")
        self.tick()

    def tick(self) -> None:
        """Renew the lease if it is time.

        Raises:
            RunExistsError: Another process has taken it since: this process did not renew it in time.
            StoreError: The store refused.
        """
        if time.monotonic() - self._renewed_s < self._timing.compaction_renewal_s:
            return
        self.check()
        data = json.dumps({"holder": self._process.to_json(), "wall_ns": time.time_ns()}).encode()
        self._store.write(layout.COMPACTION_RENEWED, data, replace=True)
        self._renewed_s = time.monotonic()

    def check(self) -> None:
        """Make sure that the lease is still ours.

        Raises:
            RunExistsError: It is not.
        """
        if claim.holder_of(self._store, layout.COMPACTION_LEASE) != self._process:
            raise RunExistsError(f"another process compacts {self._store.location} now; nothing was lost, run it again")

    def close(self) -> None:
        """Release it. Never raises: it ends with the process anyway."""
        with suppress(StoreError, RunExistsError):
            if claim.holder_of(self._store, layout.COMPACTION_LEASE) == self._process:
                claim.release(self._store, layout.COMPACTION_LEASE)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _is_expired(self, holder: claim.Claim) -> bool:
        """Whether a holder on another machine has not renewed its lease for long."""
        renewed_ns = read_document(self._store, layout.COMPACTION_RENEWED).get("wall_ns")
        renewed_ns = renewed_ns if type(renewed_ns) is int else 0
        return max(renewed_ns, holder.wall_ns) + int(self._timing.compaction_expiry_s * 1e9) < time.time_ns()
