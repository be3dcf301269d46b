"""Which process of a machine samples, what it watches, and the name of its stream."""

from __future__ import annotations

import os

import pytest

from watchglass.config import SamplerConfig, SessionConfig
from watchglass.errors import InvalidValueError


def here(*, of_script: bool = False, **environ: str) -> SamplerConfig | None:
    return SamplerConfig.here("run", 2, 0.5, of_script=of_script, environ=environ)


def test_a_launcher_watches_what_it_starts_and_a_script_itself() -> None:
    for of_script in (False, True):
        config = here(of_script=of_script)
        assert config is not None
        assert (config.root, config.with_root, config.stream) == (os.getpid(), of_script, "system")


def test_of_the_ranks_of_a_machine_the_first_watches_all() -> None:
    ranks = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    found = here(**ranks, RANK="4", LOCAL_RANK="0")
    assert found is not None
    assert (found.root, found.with_root, found.stream) == (os.getppid(), False, "system_1")
    assert here(**ranks, RANK="5", LOCAL_RANK="1") is None
    alone = here(WORLD_SIZE="2", LOCAL_WORLD_SIZE="1", RANK="1", LOCAL_RANK="0")
    assert alone is not None
    assert (alone.root, alone.stream) == (os.getpid(), "system_1")
    unknown = here(RANK="1", WORLD_SIZE="2")  # no rank within the machine: the claim of the stream decides
    assert unknown is not None


def test_it_goes_to_the_process_and_back() -> None:
    config = SamplerConfig("/run", 1, 7, True, "system_1", 0.1, "died")
    assert SamplerConfig.from_line(config.to_line()) == config


@pytest.mark.parametrize("interval_s", [0.05, 61, float("nan")])
def test_intervals_are_from_a_tenth_of_a_second_to_a_minute(interval_s: float) -> None:
    with pytest.raises(InvalidValueError, match=r"profiler\.sample_interval_s must be"):
        SessionConfig("run", profiler={"sample_interval_s": interval_s})
