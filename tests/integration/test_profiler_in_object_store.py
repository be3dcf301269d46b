"""What the profiler adds to a run on an object store: its report, traces, and changes that a sampler reads there."""

from __future__ import annotations

from contextlib import closing
from time import monotonic_ns

import pytest
import torch
from torch import nn

from waiting import until
from watchglass import open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.cli import main
from watchglass.control import ProfileWindow, commit_window, open_mailbox
from watchglass.records import NOTES
from watchglass.store import StreamWriter, layout, open_store


@pytest.mark.slow
def test_report_trace_and_changes(s3_location: str) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    opened: list[int] = []
    profiler = {"profile_steps": "5:7", "keep_traces": True}
    with Hook(run=s3_location, profiler=profiler, flight_recorder=False, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        hook.port.on_start.append(lambda attempt: opened.append(attempt))
        for step in range(12):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
            if step == 4:  # the place of a trace is known once the run is open
                until(lambda: opened)
    run = open_run(s3_location)
    (window,) = run.operators()
    assert run.store.size(window.trace)
    assert main(["report", "--profiler", s3_location]) == 0
    with closing(open_store(s3_location)) as store:
        assert b"watchglass profiler report" in store.read(layout.PROFILER_REPORT)
        with closing(StreamWriter(store, 0, "system")) as stream:
            stream.write({NOTES: [(monotonic_ns(), "test", "began", "")]})
        commit_window(store, 0, ProfileWindow(0, settings={"sample_interval_s": 5.0}), 12)
        with closing(open_mailbox(store, 0, "system", kinds=(ProfileWindow,))) as mailbox:
            (commit,) = until(lambda: mailbox.poll(-1))
    assert commit.change == ProfileWindow(0, settings={"sample_interval_s": 5.0})
    assert main(["rm", "-y", s3_location]) == 0
    assert not open_store(s3_location).list()
