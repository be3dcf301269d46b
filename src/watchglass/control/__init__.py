"""Messages to the workers of a training run, from a request to the step at which all of them act; both halves."""

from typing import TYPE_CHECKING

from watchglass.lazy_imports import lazily

if TYPE_CHECKING:
    from watchglass.control.agreement import (
        Agreement as Agreement,
        WorkerProgress as WorkerProgress,
    )
    from watchglass.control.listening import (
        BackgroundMailbox as BackgroundMailbox,
        Listener as Listener,
        Mailbox as Mailbox,
        StoreMailbox as StoreMailbox,
        open_mailbox as open_mailbox,
    )
    from watchglass.control.messages import (
        Acknowledgement as Acknowledgement,
        Change as Change,
        Commit as Commit,
        ProfileWindow as ProfileWindow,
        Stop as Stop,
        decode_acknowledgement as decode_acknowledgement,
        decode_commit as decode_commit,
        encode as encode,
    )
    from watchglass.control.windows import commit_window as commit_window

if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
