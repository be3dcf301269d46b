"""Whether a dead worker left anything to harvest. Imports nothing slow: launchers call it."""

from __future__ import annotations

from collections.abc import Sequence

from watchglass.store import Claim, Store, claims_of_workers, is_alive, rings_exist, spool_exists


def has_unharvested(store: Store, attempt: int) -> bool:
    """Whether :func:`~watchglass.record.harvest` would find something of an attempt on this machine.

    Raises:
        StoreError: The store refused.
        DamagedDataError: A claim cannot be read.
    """
    return any(unharvested_claims(store, claims) for claims in claims_of_workers(store, attempt).values())


def unharvested_claims(store: Store, claims: Sequence[Claim]) -> list[Claim]:
    """Claims of one worker whose process is dead and whose files are on this machine; oldest first."""
    last = {(claim.rings, claim.spool): claim for claim in claims if claim.rings or claim.spool}
    return [
        claim
        for claim in last.values()
        if is_alive(claim) is False and (rings_exist(store, claim.rings) or spool_exists(claim.spool))
    ]
