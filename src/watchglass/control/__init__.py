"""Messages to the workers of a training run, from a request to the step at which all of them act; both halves."""

from watchglass.control.agreement import Agreement, WorkerProgress
from watchglass.control.listening import BackgroundMailbox, Listener, Mailbox, StoreMailbox
from watchglass.control.messages import (
    Acknowledgement,
    Change,
    Commit,
    PlanChange,
    ProfileWindow,
    Stop,
    decode_acknowledgement,
    decode_commit,
    encode,
)

__all__ = [
    "Acknowledgement", "Agreement", "BackgroundMailbox", "Change", "Commit", "Listener", "Mailbox",
    "PlanChange", "ProfileWindow", "Stop", "StoreMailbox", "WorkerProgress", "decode_acknowledgement", "decode_commit",
    "encode",
]  # fmt: skip
