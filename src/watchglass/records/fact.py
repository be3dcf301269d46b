"""Facts as they are stored, and what their declarations share: see :mod:`watchglass.records.facts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, TypeVar

from watchglass.records.declared import Declared
from watchglass.records.json_records import FAULTS, as_json, from_json

_Kind = TypeVar("_Kind", bound="DeclaredFact")


@dataclass(frozen=True)
class Fact:
    """An observation of a step or a run that is not a tensor, as it is stored.

    Attributes:
        kind: What was observed, ``"step_skipped"``, ``"first_bad_module"``; see docs/run-format.md for all.
        global_step: Worker's step it belongs to, -1 for the run.
        source: What observed it, for instance ``"GradScaler.step"``.
        data: Plain JSON values. ``model`` is the number of the model that it concerns, if it concerns one.
    """

    kind: str
    global_step: int
    source: str
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> int | None:
        """Number of the model that it concerns; None if it names none."""
        number = self.data.get("model")
        return number if type(number) is int and number >= 0 else None

    def read(self, kind: type[_Kind]) -> _Kind | None:
        """This fact as its declaration has it; None if it is of another kind, or not valid. It is kept.

        For what soon forgets its facts, and reads each of them several times, as rules do.
        """
        if self.kind != kind.KIND:
            return None
        if "_read" not in self.__dict__:
            self.__dict__["_read"] = kind.from_data(self.data)
        read: _Kind | None = self.__dict__["_read"]
        return read

    def to_json(self) -> dict[str, Any]:
        """This fact as plain JSON types."""
        return {"kind": self.kind, "global_step": self.global_step, "source": self.source, "data": self.data}


def read_facts(facts: Iterable[Fact], kind: type[_Kind]) -> list[_Kind]:
    """The facts of a kind as its declaration has them, without those that are not valid."""
    return [read for fact in facts if fact.kind == kind.KIND and (read := kind.from_data(fact.data)) is not None]


class DeclaredFact(Declared):
    """An observation that is not a tensor. Its fields are the data of the stored fact; its docstring says what it is.

    A field that is None is not stored. What a run has not stored, or another program wrote with another type, reads as
    the field's default. A field named ``model`` is the number of the model that the fact is about.

    Args:
        kind: Name of the kind.
        needed_by: For a kind that can be switched off, who needs it: ``"report"``, which shows it, so that it is
            recorded unless the user chooses the facts; ``"rules"`` of the default set; "" for rules beyond them. None
            for a kind that is always recorded.
    """

    KIND: ClassVar[str]
    NEEDED_BY: ClassVar[str | None]
    #: What it costs, and when; "" for a kind that is always recorded.
    COST: ClassVar[str] = ""
    #: What a run that records it and has none has not seen, as a clause; "" where that is not clear.
    UNSEEN: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str, needed_by: str | None = None) -> None:
        super().__init_subclass__()
        cls.KIND, cls.NEEDED_BY = kind, needed_by

    def to_fact(self, source: str, global_step: int = -1) -> Fact:
        """This as it is stored; ``source`` is the observer, step -1 the run."""
        return Fact(self.KIND, global_step, source, self.to_data())

    def to_data(self) -> dict[str, Any]:
        """The data of the stored fact: plain JSON values."""
        data: dict[str, Any] = as_json(self)
        return data

    @classmethod
    def from_data(cls: type[_Kind], data: Mapping[str, Any]) -> _Kind | None:
        """The fact of such data; None if they lack a field without default. Unknown keys are ignored."""
        try:
            return from_json(cls, data)
        except FAULTS:
            return None


def declared_kinds() -> dict[str, type[DeclaredFact]]:
    """All kinds of facts by name; imports all."""
    for name in ("facts", "functions", "module_times", "operators", "windows"):
        import_module(f"{__package__}.{name}")
    ours = [kind for kind in DeclaredFact.__subclasses__() if kind.__module__.startswith(f"{__package__}.")]
    return {kind.KIND: kind for kind in sorted(ours, key=lambda each: each.KIND)}
