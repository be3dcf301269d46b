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
from watchglass.control.windows import commit_window

__all__ = [
    "Acknowledgement", "Agreement", "BackgroundMailbox", "Change", "Commit", "Listener", "Mailbox",
    "PlanChange", "ProfileWindow", "Stop", "StoreMailbox", "WorkerProgress", "commit_window",
    "decode_acknowledgement", "decode_commit", "encode",
]  # fmt: skip
