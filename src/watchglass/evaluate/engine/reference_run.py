"""Reference runs: read step by step with the evaluated run, up to the steps they had when the evaluation began."""

from __future__ import annotations

from collections.abc import Iterator

from watchglass.evaluate.engine.rule_status import Order
from watchglass.evaluate.follower import Follower
from watchglass.records import Mode, Observation
from watchglass.store import Store, layout, open_store
from watchglass.tables import JointStep, Readable, StepView


class ReferenceRun:
    """Another run, up to the steps that it had when it was pinned. For one thread; reads the store on demand.

    Args:
        location: The value of the rule's parameter.
        readable: What rules read of statistics.
    """

    def __init__(self, location: str, readable: Readable) -> None:
        self.location, self._readable = location, readable
        self._store: Store | None = None
        # Attempt and order of the last step of each worker that counts.
        self._reached: dict[str, tuple[int, Order]] | None = None
        self._cursors: dict[tuple[int, str, int, Mode], _Cursor] = {}

    @property
    def is_pinned(self) -> bool:
        """Whether it is known up to which steps it counts."""
        return self._reached is not None

    def pin(self, attempt: int) -> Observation:
        """The steps that it has now; later ones are never shown. Reads only the ends of its steps, once.

        Args:
            attempt: The attempt of the run that is evaluated.

        Raises:
            NotARunError, MissingFileError, StoreError, CompactedError: See :class:`Follower`.
        """
        follower = self._follower(None, Readable(None))
        self._reached = {view.worker: (view.attempt, view.order) for view in _views_of(follower)}
        rows = {worker: [number, list(order)] for worker, (number, order) in self._reached.items()}
        return Observation(
            "other_run", attempt, None, {"run": self.location, "run_id": follower.run_id, "reached": rows}
        )

    def pinned(self, seen: Observation) -> None:
        """Takes the pin of an earlier evaluation; an invalid one is omitted."""
        rows = seen.data.get("reached")
        if self._reached is not None or not isinstance(rows, dict):
            return
        try:
            self._reached = {str(w): (int(n), (int(o[0]), int(o[1]), int(o[2]))) for w, (n, o) in rows.items()}
        except (TypeError, ValueError, IndexError):
            return

    def at(self, view: StepView) -> StepView | None:
        """The same mode step of the same model on the same worker, or else on the first one; None where there is none.

        Raises:
            NotARunError, MissingFileError, StoreError, CompactedError: See :class:`Follower`.
        """
        assert self._reached is not None
        key = (view.attempt, view.worker, view.model, view.mode)
        cursor = self._cursors.get(key)
        if cursor is None:
            worker = view.worker if view.worker in self._reached else layout.worker_name(0)
            cursor = self._cursors[key] = _Cursor(self._views(worker), view.model, view.mode)
        return cursor.at(view.mode_step)

    def forget(self, before: int) -> None:
        """Closes the cursors of attempts before this one."""
        self._cursors = {key: cursor for key, cursor in self._cursors.items() if key[0] >= before}

    def close(self) -> None:
        """Closes the store."""
        self._cursors.clear()
        if self._store is not None:
            self._store.close()
            self._store = None

    def _follower(self, worker: str | None, readable: Readable) -> Follower:
        if self._store is None:
            self._store = open_store(self.location)
        follower = Follower(self._store, workers=None if worker is None else (worker,))
        follower.readable = readable
        return follower

    def _views(self, worker: str) -> Iterator[StepView]:
        assert self._reached is not None
        if worker not in self._reached:
            return
        last = self._reached[worker]
        yield from (
            view for view in _views_of(self._follower(worker, self._readable)) if (view.attempt, view.order) <= last
        )


def _views_of(follower: Follower) -> Iterator[StepView]:
    for moment in follower.read_all():
        if isinstance(moment, JointStep):
            yield from moment.views


class _Cursor:
    """Steps of one mode and model of a worker, read in ascending order. Of two with one number the first counts."""

    def __init__(self, views: Iterator[StepView], model: int, mode: Mode) -> None:
        self._views = (view for view in views if view.mode is mode and view.model == model)
        self._view: StepView | None = None

    def at(self, mode_step: int) -> StepView | None:
        while self._view is None or self._view.mode_step < mode_step:
            view = next(self._views, None)
            if view is None:
                return None
            self._view = view
        return self._view if self._view.mode_step == mode_step else None
