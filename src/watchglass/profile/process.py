"""The sampler process, which accompanies a training run: one for each machine of the run.

Started by command line with a socket as its standard input, as an evaluator is. It ends when the socket closes or its
parent has died, and first writes its samples. Its exit status is 0 after a clean end, or if another sampler of the
machine writes the stream.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress

from watchglass.config import SamplerConfig
from watchglass.control import Change, ProfileWindow, open_mailbox
from watchglass.errors import RunExistsError, StoreError, WatchglassError
from watchglass.profile.sampler import Sampler
from watchglass.profile.sources import open_sources
from watchglass.store import StreamWriter, open_store
from watchglass.supervise import Lifeline, begin_beside

#: Longest wait for the sampler of an attempt that is ending.
_DYING_S, _LOOK_S = 5.0, 0.25
#: Longest wait for requests.
_CONTROL_S = 1.0


def main(arguments: list[str]) -> int:
    """Runs the sampler process, with a :class:`SamplerConfig` as JSON on stdin. Returns its exit status."""
    if arguments:
        print("usage: python -m watchglass.profile, with a SamplerConfig as a line of JSON on stdin", file=sys.stderr)
        return 2
    begin_beside()
    lifeline = Lifeline(0)
    line = lifeline.first_line().decode()
    if not line:
        return 0  # the starter has ended before it sent the configuration
    config = SamplerConfig.from_line(line)
    try:
        with closing(open_store(config.run)) as store:
            writer = _held(lambda: StreamWriter(store, config.attempt, config.stream), lifeline.goes_on)
            if writer is None:
                return 0
            sources, lacking = open_sources(config.root, config.with_root)
            sampler = Sampler(
                sources, writer, config.interval_s, flush_s=store.policy.intervals().flush_s, clock=time
            )  # fmt: skip
            requests = open_mailbox(store, config.attempt, config.stream, kinds=(ProfileWindow,))
            with closing(sampler), closing(requests):
                if config.replaces:
                    sampler.note("sampler", "restarted", f"the sampler {config.replaces} and was started again")
                for name, reason in lacking:
                    sampler.note(name, "unavailable", reason)
                sampler.sample()
                while lifeline.goes_on(min(sampler.wait_s, _CONTROL_S)):
                    with suppress(StoreError):  # seen at a later look
                        for commit in requests.poll(-1):
                            _apply(commit.change, sampler)
                    if not sampler.wait_s:
                        sampler.sample()
                if sampler.wait_s < math.inf:
                    sampler.sample()
    except StoreError:
        return 1  # the store may be reachable again for the next sampler
    except WatchglassError:
        return 2
    return 0


def _apply(change: Change, sampler: Sampler) -> None:
    """Take the settings that a request changes."""
    if isinstance(change, ProfileWindow) and {"enabled", "sample_interval_s"} & set(change.settings):
        sampler.change(change.settings.get("sample_interval_s"), change.settings.get("enabled"))


def _held(take: Callable[[], StreamWriter], goes_on: Callable[[float], bool]) -> StreamWriter | None:
    """The writer of the stream; None where another sampler of this machine writes it."""
    for _ in range(int(_DYING_S / _LOOK_S)):
        try:
            return take()
        except RunExistsError:
            if not goes_on(_LOOK_S):
                break
    return None
