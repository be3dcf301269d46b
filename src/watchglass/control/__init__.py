"""Messages to the workers of a training run, from a request to the step at which all of them act; both halves."""

from watchglass.control.agreement import Agreement, WorkerProgress
from watchglass.control.listening import BackgroundMailbox, Listener, Mailbox, StoreMailbox, open_mailbox
from watchglass.control.messages import (
    Acknowledgement,
    Change,
    Commit,
    ProfileWindow,
    Stop,
    decode_acknowledgement,
    decode_commit,
    encode,
)
from watchglass.control.windows import commit_window

__all__ = [
    "Acknowledgement", "Agreement", "BackgroundMailbox", "Change", "Commit", "Listener", "Mailbox",
    "ProfileWindow", "Stop", "StoreMailbox", "WorkerProgress", "commit_window",
    "decode_acknowledgement", "decode_commit", "encode", "open_mailbox",
]  # fmt: skip
