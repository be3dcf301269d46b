"""The first bad module where two gloo processes train together, and only one of them fails.

A rank that repeated a forward by itself would wait for the other one for ever, which then would wait for it: each test
ends, and both ranks compute the same bits as in an unwatched run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import failing_ranks
import ranks
from watchglass import open_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def facts_of_ranks(tmp_path: Path, training: ranks.Training, **settings: Any) -> list[list[dict[str, Any]]]:
    """What each rank of a failing training says about the first bad module, in order."""
    bare = ranks.run_ranks(training, tmp_path / "bare", None)
    seen = ranks.run_ranks(training, tmp_path / "watched", tmp_path / "run", **{"save_interval": 1, **settings})
    for rank, (without, with_us) in enumerate(zip(bare, seen, strict=True)):
        differing = sorted(key for key in without.keys() | with_us.keys() if without.get(key) != with_us.get(key))
        assert not differing, f"watching changed rank {rank}: {differing}"
    run = open_run(tmp_path / "run")
    assert list(run.workers) == ["worker_0", "worker_1"]
    found = []
    for worker in run.workers:
        assert run.steps(worker=worker) == list(range(failing_ranks.STEPS))
        assert not run.facts("capture_fault", worker=worker)
        facts = run.facts("first_bad_module", worker=worker)
        found.append([{**fact.data, "at": fact.global_step} for fact in facts])
    return found


@pytest.mark.parametrize("training", [failing_ranks.fully_sharded, failing_ranks.fully_sharded_parts])
def test_a_fully_sharded_forward_is_not_repeated_by_one_rank(tmp_path: Path, training: ranks.Training) -> None:
    first, second = facts_of_ranks(tmp_path, training)
    assert (first[0]["at"], first[0]["level"], first[0]["where"]) == (failing_ranks.FAILS, "flags", "loss")
    # Its loss is finite, and what the other one sent makes its gradients not finite.
    assert (second[0]["at"], second[0]["level"], second[0]["where"]) == (failing_ranks.FAILS, "flags", "backward")
    for facts in (first, second):
        assert facts[0]["refused"].startswith("the forward of FSDP")
        assert facts[0]["refused"].endswith("waits for other ranks")
        assert all(fact["level"] != "rerun" for fact in facts)


def test_nor_is_it_between_captures(tmp_path: Path) -> None:
    first, second = facts_of_ranks(tmp_path, failing_ranks.fully_sharded, save_interval=1000)
    assert (first[0]["at"], first[0]["level"], first[0]["where"]) == (failing_ranks.FAILS, "flags", "loss")
    assert first[0]["refused"].endswith("waits for other ranks")
    # Here gradients are examined when the budget allows, and else the weights that they have spoilt.
    assert second[0]["at"] in (failing_ranks.FAILS, failing_ranks.FAILS + 1)
    assert (second[0]["level"], second[0]["where"] in ("backward", "weights")) == ("flags", True)
    assert all(fact["level"] != "rerun" for fact in (*first, *second))


def test_tensor_parallel_layers_are_not_repeated_by_one_rank(tmp_path: Path) -> None:
    for facts in facts_of_ranks(tmp_path, failing_ranks.tensor_parallel):
        assert (facts[0]["at"], facts[0]["level"], facts[0]["where"]) == (failing_ranks.FAILS, "flags", "loss")
        assert facts[0]["refused"] == "the parameters are sharded over ranks"
        assert all(fact["level"] != "rerun" for fact in facts)


def test_a_collective_inside_the_forward_stops_a_rerun_before_it_waits(tmp_path: Path) -> None:
    first, second = facts_of_ranks(tmp_path, failing_ranks.collective_in_the_forward)
    assert (first[0]["at"], first[0]["level"], first[0]["where"]) == (failing_ranks.FAILS, "flags", "loss")
    assert first[0]["refused"] == "the forward calls allreduce of torch.distributed, which needs all ranks"
    assert all(fact["level"] != "rerun" for fact in first)
    assert second == [], "nothing of it is not finite"


def test_data_parallel_ranks_repeat_their_own_forward_and_name_the_module(tmp_path: Path) -> None:
    first, second = facts_of_ranks(tmp_path, failing_ranks.data_parallel)
    (found,) = first
    assert (found["at"], found["level"], found["where"]) == (failing_ranks.FAILS, "rerun", "forward")
    assert (found["module"], found["module_type"], found["refused"]) == ("norm", "Bad", "")
    # Its own backward was finite: the value of the other rank cannot be traced here, so no module is blamed.
    assert second[0]["at"] == failing_ranks.FAILS
    assert (second[0]["level"], second[0]["where"]) == ("flags", "backward")
    assert second[0]["refused"]
