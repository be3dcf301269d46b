"""Hang in numbers, and in a run that stands still, evaluated while it does; its journal replays to the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from launched_runs import LaunchedRuns
from silent_runs import SCRIPT, silent, with_pauses
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding
from watchglass.rules import find_rule
from watchglass.testing import Silence, Step, build_run
from watchglass.testing.rule_suite import RuleSuite

WAITS = ["/usr/lib/python3.11/threading.py", 331, "wait"]


def stack(*frames: list[Any]) -> dict[str, Any]:
    """Data of a fact ``stacks`` with a helper thread, and the thread that trains with these frames."""
    return {"step": 19, "seconds": 10.0, "threads": [
        {"name": "helper", "trains": False, "frames": [["helper.py", 1, "run"]]},
        {"name": "MainThread", "trains": True, "frames": list(frames)},
    ]}  # fmt: skip


def found(path: Path, run: Sequence[Step | Silence], workers: int = 1) -> list[Finding]:
    return list(replay(build_run(path, run, workers=workers), [RuleSpec("Hang")]).findings)


class TestHang(RuleSuite):
    rule = find_rule("Hang")

    def sick(self) -> Sequence[Step | Silence]:
        return silent(100, stacks={0: stack(["/home/train.py", 7, "step"])})

    def also_sick(self) -> Sequence[Sequence[Step | Silence]]:
        # Without a stack it waits longer.
        return (silent(190),)

    def healthy(self) -> Sequence[Step | Silence]:
        return with_pauses(stacks={0: stack(["/home/train.py", 9, "evaluate"])})


def test_it_names_the_line_of_the_script_and_the_call_in_it(run_path: Path) -> None:
    here = stack(WAITS, ["/x/site-packages/torch/distributed/c10d.py", 5, "all_reduce"], ["/home/train.py", 7, "step"])
    (finding,) = found(run_path, silent(100, stacks={0: here}))
    assert finding.message == (
        "worker_0 has completed no step for 63 s after step 19; it stands at train.py:7 in step, in wait of "
        "threading.py"
    )
    assert finding.evidence["stacks"]["worker_0"][0] == "/usr/lib/python3.11/threading.py:331 in wait"
    assert finding.causes == ("training_stalled",)


def test_a_function_of_watchglass_is_no_place_of_the_script(run_path: Path) -> None:
    ours = ["/home/me/watchglass/src/watchglass/capture/wrappers_importlib_bootstrap.py", 63, "__next__"]
    (finding,) = found(run_path, silent(100, stacks={0: stack(WAITS, ours, ["/home/train.py", 7, "step"])}))
    assert finding.message.endswith("; it stands at train.py:7 in step, in wait of threading.py")


def test_the_rank_that_stands_elsewhere_comes_first(run_path: Path) -> None:
    together, alone = stack(WAITS, ["/home/train.py", 7, "step"]), stack(["/home/train.py", 30, "save"])
    (finding,) = found(run_path, silent(100, stacks={0: together, 1: alone, 2: together}), workers=3)
    assert finding.message == (
        "worker_0, worker_1, worker_2 have completed no step for 63 s after step 19; worker_1 at train.py:30 in save; "
        "worker_0, worker_2 at train.py:7 in step, in wait of threading.py"
    )


def test_ranks_at_one_line_are_named_together(run_path: Path) -> None:
    here = stack(["/home/train.py", 7, "step"])
    (finding,) = found(run_path, silent(100, stacks={0: here, 1: here}), workers=2)
    assert finding.message.endswith("after step 19; all stand at train.py:7 in step")


@pytest.mark.parametrize(("seconds", "count"), [(119, 0), (190, 1)])
def test_without_a_stack_it_waits_twice_as_long(run_path: Path, seconds: float, count: int) -> None:
    findings = found(run_path, silent(seconds))
    assert len(findings) == count
    assert all(finding.message.endswith("; no stack could be read") for finding in findings)


@pytest.mark.parametrize(
    "data", ["text", {"threads": 3}, {"threads": [3, {"trains": True, "frames": [3, ["f", "x", 1]]}]}]
)
def test_stacks_of_other_programs_are_no_fault(run_path: Path, data: Any) -> None:
    (finding,) = found(run_path, silent(190, stacks={0: data}))
    assert finding.message.endswith("no stack could be read")


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded_python")
class TestHangInRealRuns(LaunchedRuns):
    rule = "Hang"
    # Longer than the ten seconds after which stacks are noted.
    parameters: ClassVar = {"threshold": 14.0, "factor": 0.0, "pauses": 0.0}
    cause = "training_stalled"
    reads_more = "it reads ticks, which any capture has"
    script = SCRIPT

    def found(self, findings: Sequence[Finding]) -> list[str]:
        return [message for message in super().found(findings) if "in wait_for_answer" in message]
