"""The capture plan: which tensors are kept at each step, and in which form."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from watchglass.capture.limits import DEFAULT_LIMITS
from watchglass.capture.module_places import NOWHERE, Place
from watchglass.capture.planning.budget import Budget
from watchglass.capture.planning.sketch_pace import sketch_spacing
from watchglass.config import (
    DEFAULT_COLLECTIONS,
    EXACT_REDUCTIONS,
    MODE_NAMES,
    PART_OF,
    SKETCHES,
    Collection,
    Schedule,
    SessionConfig,
    chosen_facts,
    environment,
)
from watchglass.records import Mode, Reduction, Role, facts

#: The answer of :meth:`Plan.next_due` for "never".
NEVER = 1 << 62

#: Listed steps of a collection that its description names.
_MOST_STEPS = 64

#: Suggestions for a name that matches nothing.
_MOST_NEAR = 3

_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Keep:
    """Form in which a tensor is kept at a step, in addition to its one-pass statistics."""

    histogram: bool = False  #: Its histogram.
    raw: bool = False  #: The tensor itself.
    shape: bool = False  #: Its shape at this step.
    reductions: tuple[Reduction, ...] = ()  #: Exact numbers to be computed.


class _View:
    """Answers for one set of collections that are due together (``due``: a bit for each); filled on demand."""

    __slots__ = ("due", "keeps", "roles", "tags")

    def __init__(self, due: int, chosen: Sequence[Collection]) -> None:
        self.due = due
        self.keeps: dict[str, Keep | None] = {}
        self.roles = frozenset(role for collection in chosen for role in collection.looks_at)
        self.tags = frozenset(tag for collection in chosen for tag in collection.tags)


class Plan:
    """Answers, for a step and a tensor, whether to capture it.

    For the training thread. A set of collections is an integer with a bit for each: those that are due at a step, and
    those that a tensor belongs to. The form in which a tensor is kept follows from the bits that both have.

    Args:
        config: The collections and their schedules.
        rank: Returns this process's rank; called at the first training step if only one rank keeps tensors.
        allowance_ns: See :attr:`~watchglass.capture.limits.CaptureLimits.allowance_ns`.
    """

    def __init__(
        self,
        config: SessionConfig,
        rank: Callable[[], int] = environment.rank,
        allowance_ns: int = DEFAULT_LIMITS.allowance_ns,
    ) -> None:
        self._ask_rank, self._allowance_ns = rank, allowance_ns
        self.configure(config)

    def configure(self, config: SessionConfig) -> None:
        """Start over with another configuration, which holds from the next step on."""
        self.budget = Budget(config.overhead_budget, config.train_interval, self._allowance_ns)
        #: Whether the budget chose the current TRAIN step, at least for some collections.
        self.chosen = False
        self._config = config
        self._collections = config.all_collections
        self._rank = self._ask_rank if config.include_workers == "one" else None
        self._silent = False
        self._sketches = not SKETCHES.isdisjoint(chosen_facts(config.facts))
        self._schedules = {mode: self._grouped(name) for name, mode in MODE_NAMES.items()}
        self._views: dict[int, _View] = {}
        self._train = self._view = self._view_of(0)
        self._members: dict[str, int] = {}
        self._combined: dict[int, Keep] = {}
        self._modules: dict[str, None] = {}
        self._module_types: dict[str, None] = {}
        self._commanding = self._bits(
            lambda collection: collection.narrows or bool(collection.tags) or collection.name == "default"
        )
        self._unasked = _combined((Collection("default"),), config)
        # Bits of collections: requested ones that no tensor has matched yet, and those that were due at a step.
        self._awaited = self._bits(_expects_a_match)
        self._was_due = 0

    def describe(self) -> facts.CapturePlan:
        """Captured collections by mode, and facts."""
        modes = {
            name: tuple(_described(collection, schedule) for _, collection, schedule in self._planned_in(name))
            for name in MODE_NAMES
        }
        recorded = tuple(sorted(chosen_facts(self._config.facts)))
        return facts.CapturePlan(modes, recorded, not self._is_silent(Mode.EVAL), self._config.overhead_budget)

    # -- steps ----------------------------------------------------------------------------------------------------

    def due(self, mode: Mode, mode_step: int, model: int = 0) -> bool:
        """Whether anything is to be captured at a step of a model that opens now."""
        schedules = () if self._is_silent(mode) else self._schedules[mode]
        chosen = mode is Mode.TRAIN and self.budget.due(mode_step, model) and self.budget.pays(model)
        due = 0
        by_budget = False
        for schedule, members in schedules:
            if schedule.holds(mode_step, chosen):
                due |= members
                by_budget |= schedule.interval is None
        self._was_due |= due
        if mode is Mode.TRAIN:
            self.chosen = by_budget
            self._train = self._view = self._view_of(due)
            return due != 0
        # Facts of an evaluation need no collection that is due.
        sketched = mode is Mode.EVAL and self._sketches and mode_step % sketch_spacing(mode_step) == 0
        if due or sketched:
            self._view = self._view_of(due)
        return due != 0 or sketched

    def has_facts_alone(self, mode: Mode) -> bool:
        """Whether steps of a mode are due for their facts only: no collection is captured in it."""
        return self._sketches and (self._is_silent(mode) or not self._schedules[mode])

    def next_due(self, train_step: int, model: int = 0) -> int:
        """The smallest TRAIN step of a model from ``train_step`` on at which anything is due; :data:`NEVER` for none.

        Valid until that step, because the interval of the budget changes only at captured steps. The step may still be
        skipped if the remaining budget does not pay for it.
        """
        if self._is_silent(Mode.TRAIN):
            return NEVER
        schedules = self._schedules[Mode.TRAIN]
        return min((self._next(schedule, train_step, model) for schedule, _ in schedules), default=NEVER)

    def next_due_evaluation(self, step: int) -> int:
        """The smallest EVAL step from ``step`` on at which anything is due; :data:`NEVER` for none."""
        spacing = sketch_spacing(step)
        sketched = -(-step // spacing) * spacing if self._sketches else NEVER
        schedules = () if self._is_silent(Mode.EVAL) else self._schedules[Mode.EVAL]
        return min([sketched, *(self._next(schedule, step, 0) for schedule, _ in schedules)])

    def resume(self) -> None:
        """An evaluation inside an open TRAIN step is over: answers are about the TRAIN step again."""
        self._view = self._train

    # -- tensors --------------------------------------------------------------------------------------------------

    def keep(self, name: str, role: Role, place: Place = NOWHERE, tags: tuple[str, ...] = ()) -> Keep | None:
        """The form in which to keep a tensor at the step that opened last, None for none.

        Args:
            name: Its name; everything else is examined only when the name is new.
            role: Its role.
            place: Its module's.
            tags: Its tags from structure, and the collection that a script saves it under.
        """
        found = self._view.keeps.get(name, _UNKNOWN)
        if found is _UNKNOWN:
            members = self._members.get(name)
            if members is None:
                members = self._meet(name, role, place, tags)
            found = self._view.keeps[name] = self._keep_of(members & self._view.due)
        return found  # type: ignore[return-value]

    @property
    def answers(self) -> Mapping[str, Keep | None]:
        """The answers of :meth:`keep` so far, by name, for the step that opened last."""
        return self._view.keeps

    def keep_saved(self, name: str, tags: tuple[str, ...] = (), role: Role = Role.CUSTOM) -> Keep | None:
        """The form in which to keep a tensor that the script itself saves now, None for none.

        It is always kept, with two exceptions: a collection that names it, or that it is saved under, has a schedule;
        or this worker keeps no tensors.
        """
        keep = self.keep(name, role, tags=tags)
        if keep is not None:
            return keep
        if self._members[name] & self._commanding or self._is_silent(Mode.EVAL):
            return None
        return self._unasked

    def wants(self, role: Role) -> bool:
        """Whether a collection that is due can hold tensors of a role, so that looking is worth it."""
        return role in self._view.roles

    def wants_tag(self, tag: str) -> bool:
        """Whether a collection that is due asks for a tag, so that its tensors must be computed."""
        return tag in self._view.tags

    def takes_elements(self, role: Role) -> bool:
        """Whether a collection keeps more of tensors of a role than their statistics, at any step."""
        forms = (_combined((each,), self._config) for each in self._collections if role in each.looks_at)
        return any(keep.raw or keep.reductions for keep in forms)

    def collections_of(
        self, name: str, role: Role, place: Place = NOWHERE, tags: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Names for the catalog: the user's collections that hold a tensor, and its tags from structure."""
        own = (
            collection.name
            for collection in self._collections
            if (collection.built_in is None or collection.narrows) and _selects(collection, name, role, place, tags)
        )
        return tuple(dict.fromkeys((*tags, *own)))

    def unmatched(self) -> list[tuple[Collection, tuple[str, ...]]]:
        """Collections that were due but matched no tensor so far, with similar names; each is returned once."""
        reported = self._awaited & self._was_due
        self._awaited &= ~reported
        return [(collection, self._near(collection)) for collection in self._of(reported)]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _is_silent(self, mode: Mode) -> bool:
        if self._rank is None:
            return self._silent
        silent = self._rank() != 0
        if mode is Mode.TRAIN:
            # Ranks are known at the first training step and do not change afterwards.
            self._rank, self._silent = None, silent
        return silent

    def _next(self, schedule: Schedule, step: int, model: int) -> int:
        listed = schedule.next_listed(step)
        start = max(step, schedule.start)
        interval = schedule.interval
        regular = self.budget.next_due(start, model) if interval is None else -(-start // interval) * interval
        if schedule.end is not None and regular >= schedule.end:
            regular = NEVER
        return regular if listed is None else min(listed, regular)

    def _planned_in(self, mode: str) -> Iterator[tuple[int, Collection, Schedule]]:
        for index, collection in enumerate(self._collections):
            schedule = self._config.schedule(collection, mode)
            if schedule is not None:
                yield index, collection, schedule

    def _grouped(self, mode: str) -> tuple[tuple[Schedule, int], ...]:
        """Schedules of a mode, each with the collections that follow it."""
        groups: dict[Schedule, int] = {}
        for index, _, schedule in self._planned_in(mode):
            groups[schedule] = groups.get(schedule, 0) | 1 << index
        return tuple(groups.items())

    def _bits(self, belongs: Callable[[Collection], bool]) -> int:
        return sum(1 << index for index, collection in enumerate(self._collections) if belongs(collection))

    def _of(self, bits: int) -> list[Collection]:
        return [collection for index, collection in enumerate(self._collections) if bits >> index & 1]

    def _view_of(self, due: int) -> _View:
        view = self._views.get(due)
        if view is None:
            view = self._views[due] = _View(due, self._of(due))
        return view

    def _meet(self, name: str, role: Role, place: Place, tags: tuple[str, ...]) -> int:
        members = self._bits(lambda collection: _selects(collection, name, role, place, tags))
        self._members[name] = members
        self._modules[place.path] = self._module_types[place.module_type] = None
        self._awaited &= ~members
        return members

    def _keep_of(self, members: int) -> Keep | None:
        if not members:
            return None
        keep = self._combined.get(members)
        if keep is None:
            keep = self._combined[members] = _combined(self._of(members), self._config)
        return keep

    def _near(self, collection: Collection) -> tuple[str, ...]:
        if collection.module_types:
            return _nearest(collection.module_types, self._module_types)
        if collection.modules:
            return _nearest(collection.modules, self._modules)
        return _nearest((*collection.tensors, *collection.include_regex), self._members)


def _selects(collection: Collection, name: str, role: Role, place: Place, tags: tuple[str, ...]) -> bool:
    return collection.selects(name, role, place.path, place.module_type, tags, place.kind)


def _combined(collections: Iterable[Collection], config: SessionConfig) -> Keep:
    """The union of what several collections keep, each by its settings or, by default, those of the run."""
    histogram = raw = shape = False
    reductions: set[Reduction] = set()
    for collection in collections:
        histogram |= _own_or(collection.save_histogram, config.save_histogram, True)
        raw |= _own_or(collection.save_raw, config.save_raw, False)
        shape |= _own_or(collection.save_shape, config.save_shape, False)
        names = config.reductions if collection.reductions is None else collection.reductions
        reductions.update(EXACT_REDUCTIONS[name] for name in names or () if name in EXACT_REDUCTIONS)
    return Keep(histogram, raw, shape, tuple(sorted(reductions)))


def _described(collection: Collection, schedule: Schedule) -> facts.PlannedCollection:
    roles = tuple(sorted(role.value for role in collection.looks_at))
    return facts.PlannedCollection(
        collection.name, roles, collection.tags, collection.narrows, schedule.interval, schedule.start, schedule.end,
        schedule.steps[:_MOST_STEPS],
    )  # fmt: skip


def _own_or(own: bool | None, general: bool | None, default: bool) -> bool:
    return own if own is not None else general if general is not None else default


def _expects_a_match(collection: Collection) -> bool:
    """Whether to report that a collection matches nothing: the user selected tensors by it."""
    built_in = collection.built_in
    if built_in is not None and (built_in.every_step or built_in.rare):
        return False
    if collection.name.startswith(PART_OF):
        return False  # a rule needs it, and reports missing data itself
    return (collection.narrows or bool(collection.tags)) and collection not in DEFAULT_COLLECTIONS


def _nearest(wanted: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Known names that are most similar to one of those wanted."""
    names = [name for name in known if name]
    near: dict[str, None] = {}
    for text in wanted:
        near.update(dict.fromkeys(difflib.get_close_matches(text, names, _MOST_NEAR, cutoff=0.5)))
    return tuple(near)[:_MOST_NEAR]
