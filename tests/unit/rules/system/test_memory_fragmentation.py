from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from facts_of import classifier, facts, watching
from watchglass.config import RuleSpec
from watchglass.evaluate import replay
from watchglass.records import Finding, Status
from watchglass.rules import find_rule
from watchglass.testing import Step, build_run
from watchglass.testing.rule_suite import RuleSuite

GB = 10**9


def steps(count: int, allocated: Callable[[int], float], retries: Callable[[int], int] = lambda n: n) -> list[Step]:
    """Steps with 10 GB reserved on GPU 1."""
    return [
        Step(scalars={"loss": 1.0}, facts={"allocator": {
            "device": 1, "reserved": 10 * GB, "allocated": int(allocated(n) * GB), "retries": retries(n),
        }}) for n in range(count)
    ]  # fmt: skip


def found(path: Path, run: Sequence[Step]) -> list[Finding]:
    return list(replay(build_run(path, run), [RuleSpec("MemoryFragmentation")]).findings)


class TestMemoryFragmentation(RuleSuite):
    rule = find_rule("MemoryFragmentation")

    def sick(self) -> Sequence[Step]:
        return steps(12, lambda n: 6.0)

    def healthy(self) -> Sequence[Step]:
        # Much unused memory without a retry, retries with little of it, and both now and then.
        return [
            *steps(12, lambda n: 2.0, lambda n: 3), *steps(12, lambda n: 9.0, lambda n: 3 + n),
            *steps(12, lambda n: 6.0 if n % 4 else 9.0, lambda n: 15 + n),
        ]  # fmt: skip


def test_the_message_has_bytes_and_retries(run_path: Path) -> None:
    finding = found(run_path, steps(8, lambda n: 6.0, lambda n: 2 * n))[0]
    assert finding.message == (
        "PyTorch holds 10.00 GB of GPU 1, of which tensors use 6.00 GB; 40 % is in pieces that do not fit: 14 "
        "allocations had to give all of them back and wait over the last 8 captured steps"
    )
    assert finding.causes == ("gpu_memory_fragmented",)


@pytest.mark.parametrize(("allocated", "count"), [(7.1, 0), (6.9, 1)])
def test_the_limit_is_a_share_of_what_is_reserved(run_path: Path, allocated: float, count: int) -> None:
    assert len(found(run_path, steps(8, lambda n: allocated))) == count


@pytest.mark.parametrize(
    ("run", "status"),
    [([Step(scalars={"loss": 1.0})] * 20, Status.NOT_APPLICABLE), (steps(7, lambda n: 6.0), Status.NOT_APPLICABLE),
     (steps(8, lambda n: 9.0), Status.NO_ISSUES_FOUND)],
)  # fmt: skip
def test_without_numbers_of_a_gpu_nothing_is_judged(run_path: Path, run: list[Step], status: Status) -> None:
    (judged,) = replay(build_run(run_path, run), [RuleSpec("MemoryFragmentation")]).statuses
    assert judged.status is status


@pytest.mark.parametrize("initialized", [True, False])
def test_the_fact_has_the_numbers_of_the_allocator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, initialized: bool
) -> None:
    """This machine need not have a GPU: what PyTorch would say of one is made up here."""
    stats = {"reserved_bytes.all.current": 9, "allocated_bytes.all.current": 4, "num_alloc_retries": 2, "num_ooms": 0}
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized, current_device=lambda: 3, memory_stats=lambda device: stats
    )
    monkeypatch.setattr("watchglass.capture.pytorch.facts.memory.torch", SimpleNamespace(cuda=cuda))
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watching(model, tmp_path / "run", facts=("allocator",)):
        for _ in range(2):
            model(torch.randn(4, next(model.parameters()).shape[1])).sum().backward()
            optimizer.step()
    expected = {"device": 3, "reserved": 9, "allocated": 4, "retries": 2, "out_of_memory": 0}
    assert facts(tmp_path / "run", "allocator") == [expected] * 2 * initialized
