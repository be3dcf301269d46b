"""Call a function while watchglass watches its training in this process, and remove every trace afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from watchglass.capture import FRAMEWORKS, Hook, failure_from
from watchglass.config import EvaluatorConfig, SessionConfig, environment
from watchglass.errors import InvalidValueError
from watchglass.session import capture_of_rules, current_hook, on_framework_imported


def call_watched(
    training: Callable[[], Any], evaluator: EvaluatorConfig, settings: Mapping[str, Any]
) -> tuple[BaseException | None, bool]:
    """Call a function under watch; returns its exception, and whether capture failed and was switched off.

    Args:
        training: Called without arguments.
        evaluator: Its rules determine what is captured, its run determines where it is written.
        settings: Fields of :class:`~watchglass.config.SessionConfig`; they override those that the rules request.

    Raises:
        InvalidValueError: A setting is not valid, the process is watched already, or watching is switched off.
    """
    if environment.disabled():
        raise InvalidValueError(
            f"assert_trains_healthy watches a run, but {environment.SWITCH}=0 switches watching off; unset it"
        )
    if current_hook() is not None or SessionConfig.from_env() is not None:
        raise InvalidValueError(
            "assert_trains_healthy watches a run, but this process is watched already; close its hook first, and run "
            "pytest without watchglass run"
        )
    given = {"save_interval": 1, **capture_of_rules(evaluator, settings), **settings}
    config = SessionConfig(run=evaluator.run).with_settings(given)
    failure: BaseException | None = None
    # A hook that was switched off is not the current one at the end.
    hooks: list[Hook | None] = []
    with _session(config), _watched_when_imported(lambda: hooks.append(current_hook())):
        try:
            training()
        except BaseException as error:
            failure = error
        hooks.append(current_hook())
        why = failure_from(failure)
        for hook in filter(None, hooks):
            hook.close("failed" if why is not None else None, why)
    return failure, any(hook.port.guard.broken for hook in filter(None, hooks))


@contextmanager
def _session(config: SessionConfig) -> Iterator[None]:
    """The environment that a launcher sets, by which `watch` and callbacks of the script join the run."""
    given = config.to_env()
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _watched_when_imported(begun: Callable[[], None]) -> Iterator[None]:
    """Watches frameworks: imported ones now, others as soon as the function imports them."""
    names = {entry.module or name for name, entry in FRAMEWORKS.items() if entry.discovers}
    for name in names & set(sys.modules):
        _imported(name, begun)
    finder = _Finder(names - set(sys.modules), begun)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _imported(name: str, begun: Callable[[], None]) -> None:
    on_framework_imported(name)
    begun()


class _Finder:
    """Finds frameworks as the other finders do, and notifies the session once they are loaded."""

    def __init__(self, names: set[str], begun: Callable[[], None]) -> None:
        self._names, self._begun = names, begun

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._names:
            return None
        self._names.discard(name)  # before `find_spec` asks all finders, this one included
        spec = find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            load = loader.exec_module

            def loaded(module: ModuleType) -> None:
                del loader.exec_module
                load(module)
                _imported(name, self._begun)

            loader.exec_module = loaded
        return spec
