"""A sampler, or an export, that dies is started again once, and the second time it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchglass.config import SamplerConfig
from watchglass.errors import LaunchError
from watchglass.supervise import RestartedOnce

CONFIG = SamplerConfig("here", 0, 1)


class Process:
    """A process that ends when a test says so."""

    def __init__(self, config: SamplerConfig) -> None:
        self.config, self.code, self.let, self.ended = config, None, False, False
        self.stuck = False

    def poll(self) -> int | None:
        return self.code

    def let_go(self) -> None:
        self.let = True

    def wait(self, timeout_s: float) -> int | None:
        return None if self.stuck else 0

    def end(self) -> None:
        self.ended = True


class World:
    def __init__(self, *, refused: bool = False) -> None:
        self.refused, self.said, self.started = refused, list[str](), list[Any]()
        self.supervision = RestartedOnce(CONFIG, {}, self.said.append, start=self.start)

    def start(self, config: SamplerConfig, environ: Mapping[str, str]) -> Any:
        if self.refused:
            raise LaunchError("the sampler cannot be started: no memory")
        self.started.append(Process(config))
        return self.started[-1]

    def die(self, code: int) -> None:
        self.started[-1].code = code
        for _ in range(3):
            self.supervision.look()


def test_it_is_started_again_once_and_the_successor_knows_why() -> None:
    world = World()
    world.die(-9)
    assert [process.config.replaces for process in world.started] == [
        "", "was killed by SIGKILL (possibly out of memory)"
    ]  # fmt: skip
    assert world.said == []
    world.die(-11)
    assert len(world.started) == 2
    assert world.said == ["the sampler was killed by SIGSEGV, for the second time; this run has no more system metrics"]


def test_one_that_left_the_stream_to_another_is_not_replaced() -> None:
    world = World()
    world.die(0)
    assert (len(world.started), world.said) == (1, [])


def test_one_that_cannot_be_started_is_said() -> None:
    world = World(refused=True)
    assert world.said == ["the sampler cannot be started: no memory; this run has no system metrics"]
    world.supervision.look()
    world.supervision.finish(1.0)


def test_at_the_end_it_may_write_its_last_samples_and_is_ended_if_it_hangs() -> None:
    for stuck in (False, True):
        world = World()
        world.started[0].stuck = stuck
        world.supervision.finish(1.0)
        assert (world.started[0].let, world.started[0].ended) == (True, stuck)
