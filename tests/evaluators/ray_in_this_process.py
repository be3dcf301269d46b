"""Stands in for Ray where a test judges live runs elsewhere: its processes are objects in this one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from watchglass.evaluate import Judging
from watchglass.evaluate.scaling import followed_run
from watchglass.evaluate.scaling.cluster import Cluster
from watchglass.evaluate.scaling.judging_elsewhere import judging_on
from watchglass.store import Store, open_store


class RayError(Exception):
    pass


class Processes:
    """Stands in for Ray: actors are objects in this process, and answers come when they are asked for.

    Args:
        dies: Whether the process dies at its n-th request of all, counted from 0.
        late: How often it is looked for an answer in vain.
        opened: Opens the store of a run in the process.
    """

    exceptions = SimpleNamespace(RayError=RayError, LocalRayletDiedError=type("LocalRayletDiedError", (RayError,), {}))

    def __init__(
        self,
        dies: Callable[[int], bool] = lambda number: False,
        late: int = 0,
        opened: Callable[[str], Store] = open_store,
    ) -> None:
        self.setups: list[str] = []
        self.requests: list[str] = []
        self._dies, self._late, self._opened = dies, late, opened
        self._looks = 0

    def remote(self, cls: type[followed_run.FollowedRun]) -> Any:
        def begin(setup: str) -> Any:
            self.setups.append(setup)
            process = cls(setup, self._opened)

            def ask(request: str) -> Callable[[], str]:
                self.requests.append(request)
                self._looks = 0
                if self._dies(len(self.requests) - 1):
                    return self._raise
                answer = process.answer(request)
                return lambda: answer

            return SimpleNamespace(answer=SimpleNamespace(remote=ask))

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=begin))

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self._looks += 1
        return (references, []) if self._looks > self._late else ([], references)

    def get(self, reference: Callable[[], str]) -> str:
        return reference()

    def kill(self, actor: Any) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "own", "Alive": True}]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "own")

    def _raise(self) -> str:
        raise RayError("the worker died")


def elsewhere(ray: Processes) -> Callable[..., Judging]:
    return judging_on(Cluster(ray))  # type: ignore[arg-type]
