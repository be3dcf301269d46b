"""The needs of a rule: they determine the capture plan, and the reason in the status of a starving rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchglass.config import parameter, validate
from watchglass.errors import InvalidValueError
from watchglass.records import (
    DERIVED_FIELDS,
    ROW_KINDS,
    STATISTIC_FIELDS,
    Mode,
    ModuleKind,
    Role,
    RowKey,
    RowKind,
    RowsHaving,
    TensorInfo,
    of_steps,
)
from watchglass.tables import Selection

#: Columns of :meth:`StepView.statistics`, and its histograms.
_COLUMNS = (*STATISTIC_FIELDS, *DERIVED_FIELDS)
_STATISTICS = (*_COLUMNS, "histogram")
#: Observations of an evaluator that rules may read.
_OBSERVATIONS = ("worker_lost", "worker_returned", "tick")

#: The longest window, in seconds.
_LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Windows:
    """The windows of time of a rule, and the rows in them.

    Attributes:
        kinds: Names of kinds of rows that are keyed by time; a window needs rows of any of them.
        length_s: Length of a window in seconds, from 0.1 to a day.

    Raises:
        InvalidValueError: An argument has another type or value.
    """

    kinds: tuple[str, ...]
    length_s: float = 60.0

    def __post_init__(self) -> None:
        known = [kind.name for kind in ROW_KINDS.values() if kind.key is RowKey.TIME]
        kinds: Any = self.kinds
        if not isinstance(kinds, (tuple, list)) or not kinds or not all(each in known for each in kinds):
            one = f"; for a single kind write kinds=({kinds!r},)" if kinds in known else ""
            raise InvalidValueError(
                f"kinds of Windows must be a tuple of kinds of rows by time ({', '.join(known) or 'there are none'}) "
                f"but got {kinds!r:.80}{one}"
            )
        length: Any = self.length_s
        if type(length) not in (int, float) or not 0.1 <= length <= _LONGEST_S:
            raise InvalidValueError(
                f"length_s of Windows must be from 0.1 to {_LONGEST_S:g} seconds but got {length!r:.80}"
            )
        object.__setattr__(self, "kinds", tuple(kinds))

    @property
    def length_ns(self) -> int:
        """The same in nanoseconds."""
        return int(self.length_s * 1e9)


@dataclass(frozen=True)
class Needs:
    """One kind of data that a rule looks at. Everything that is given must be there at once.

    Attributes:
        role: Role of the tensors whose statistics (or rows) are needed.
        module_kinds: Only of modules of these kinds; empty for all.
        statistics: Names of the statistics that the rule reads, derived ones and ``"histogram"`` among them. It can
            read only these, and others from the same stored columns. Empty for all but histograms; for a need of
            ``raw``, or of rows that have a value, empty for none.
        facts: Kinds of facts, any of which will do.
        scalars: Names of scalars, any of which will do.
        max_interval: Longest useful distance between captures in steps; None where any will do.
        modes: Modes in which the data is needed; ``("eval",)`` is the same as ``(Mode.EVAL,)``.
        name_regex: Only tensors in whose name this is found.
        collection: Only tensors of this collection: a built-in one, ``"attention"``, or one that scripts save under.
        observations: Kinds of observations that an evaluator makes while it follows a run: ``"worker_lost"``. Without
            an evaluator the rule does not apply and is never called.
        raw: Whole tensors are needed, which :meth:`StepView.value` reads. They are recorded at captured steps and cost
            their size on the disk each time: ask for a role, or for names, that are small.
        rows: Kinds of rows that are needed, which :meth:`StepView.rows` reads, such as
            :data:`~watchglass.records.PHASES` or :data:`~watchglass.records.INACTIVE_UNITS`; of those about tensors,
            rows of the tensors that the need selects.
        metrics: Names of system metrics, of which one is enough. This must be a separate ``Needs``, of a rule whose
            :attr:`Rule.streams` have ``samples``. On a machine that has none of them the rule is not applicable.
        optional: The rule also works without it, with fewer findings.
        why: Half a sentence, for the reason that a starving rule gives: ``"to compare layers"``.

    Raises:
        InvalidValueError: One of these is something else.
    """

    role: Role | None = parameter(None)  # noqa: RUF009
    module_kinds: tuple[ModuleKind, ...] = parameter(())
    statistics: tuple[str, ...] = parameter((), choices=_STATISTICS)
    facts: tuple[str, ...] = parameter(())
    scalars: tuple[str, ...] = parameter(())
    max_interval: int | None = parameter(None, ge=1)
    modes: tuple[Mode, ...] = parameter((Mode.TRAIN,))
    name_regex: str | None = parameter(None)
    collection: str | None = parameter(None)
    observations: tuple[str, ...] = parameter((), choices=_OBSERVATIONS)
    raw: bool = parameter(False)
    rows: tuple[RowKind | RowsHaving, ...] = ()
    metrics: tuple[str, ...] = parameter(())
    optional: bool = parameter(False)
    why: str = parameter("")

    def __post_init__(self) -> None:
        validate(self)
        Selection(regex=self.name_regex)  # refuses what does not compile
        given: Any = self.rows  # a rule is user's code
        kinds = [getattr(each, "kind", each) for each in given] if isinstance(given, tuple) else [given]
        if not isinstance(given, tuple) or not all(kind in of_steps() for kind in kinds):
            raise InvalidValueError(
                "rows of Needs must be a tuple of kinds of rows by step, such as watchglass.records.PHASES, but got "
                f"{given!r:.200}"
            )
        if self.metrics and (self.of_tensors or self.facts or self.scalars or self.observations or self.rows):
            raise InvalidValueError(
                f"metrics of Needs must stand alone, because steps have none, but got {self!r:.200}; "
                "declare a second Needs for the rest"
            )

    def wants(self, info: TensorInfo) -> bool:
        """Whether this tensor is one of those needed."""
        selection = Selection(
            self.role, regex=self.name_regex, collection=self.collection, module_kinds=self.module_kinds
        )
        return selection.matcher()(info)

    @property
    def having(self) -> tuple[RowsHaving, ...]:
        """Those of :attr:`rows` that have a value."""
        return tuple(each for each in self.rows if isinstance(each, RowsHaving))

    @property
    def of_tensors(self) -> bool:
        """Whether statistics, values or rows of tensors are needed."""
        return bool(
            self.role is not None or self.raw or self.statistics or self.having or self.module_kinds or self.name_regex
            or self.collection
        )  # fmt: skip

    def describe(self) -> str:
        """The need in a few words: ``"statistics of gradients"``."""
        modes = "" if self.modes == (Mode.TRAIN,) else " of " + "/".join(mode.name for mode in self.modes)
        of_what = f"{self.role.value}s" if self.role is not None else "tensors"
        if self.collection is not None:
            of_what = f"{of_what} of collection {self.collection}" if self.role is not None else self.collection
        of_modules = f" of {', '.join(kind.value for kind in self.module_kinds)} modules" if self.module_kinds else ""
        named = f" named {self.name_regex}" if self.name_regex is not None else ""
        parts = []
        if self.raw:
            parts.append(f"whole {of_what}{of_modules}{named}")
        elif self.of_tensors and not self.having:
            parts.append(f"statistics of {of_what}{of_modules}{named}")
        parts += [f"{each.called} of {of_what}{of_modules}{named}" for each in self.having]
        if self.scalars:
            parts.append(f"the scalar {' or '.join(self.scalars)}")
        if self.observations:
            parts.append(f"the state of workers ({' or '.join(self.observations)})")
        if self.facts:
            parts.append(f"the fact {' or '.join(self.facts)}")
        parts += [kind.called or kind.name for kind in self.rows if isinstance(kind, RowKind)]
        if self.metrics:
            parts.append(f"samples of {' or '.join(self.metrics)}")
        return " and ".join(parts) + modes


def readable_statistics(needs: Sequence[Needs], streams: Windows | None = None) -> frozenset[str]:
    """What a rule with these needs may read of statistics, see :attr:`watchglass.tables.Readable.declared`.

    A rule that declares no needs at all may read all columns.
    """
    from watchglass.stats import stored_fields  # imports NumPy, which a launcher that reads needs does not wait for

    of_tensors = [need for need in needs if need.of_tensors]
    names = {name for need in of_tensors for name in need.statistics}
    if any(not (need.statistics or need.having or need.raw) for need in of_tensors) or not (needs or streams):
        names.update(_COLUMNS)
    elif not of_tensors:
        return frozenset()
    if "histogram" in names:
        names |= {"finite", "zero", "min", "max"}  # these place the quantiles
    stored = set(stored_fields(names))
    return frozenset({"ids", *names, *(name for name in _COLUMNS if stored.issuperset(stored_fields([name])))})
