"""What a rule has to be shown, so that capture can be planned from the rules and a starving rule can say so."""

from __future__ import annotations

import re
from dataclasses import dataclass

from watchglass.records import Mode, Role, TensorInfo, UnitKind


@dataclass(frozen=True)
class Needs:
    """One kind of data that a rule looks at. Everything that is given must be there at once.

    Attributes:
        role: Role of the tensors whose statistics (or units) are needed.
        module_types: Only of modules of these class names; empty for all.
        statistics: Names of the statistics; empty where any will do.
        units: Bitmaps over units that are needed.
        facts: Kinds of facts, any of which will do.
        scalars: Names of scalars, any of which will do.
        max_interval: Longest useful distance between captures in steps; None where any will do.
        modes: Modes in which the data is needed.
        name_regex: Only tensors in whose name this is found.
        optional: The rule says more with it, and works without.
        why: Half a sentence, for the reason that a starving rule gives: ``"to compare layers"``.
    """

    role: Role | None = None
    module_types: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    units: tuple[UnitKind, ...] = ()
    facts: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    max_interval: int | None = None
    modes: tuple[Mode, ...] = (Mode.TRAIN,)
    name_regex: str | None = None
    optional: bool = False
    why: str = ""

    def wants(self, info: TensorInfo) -> bool:
        """Whether this tensor is one of those needed."""
        return (
            (self.role is None or info.role is self.role)
            and (not self.module_types or info.module_type in self.module_types)
            and (self.name_regex is None or re.search(self.name_regex, info.name) is not None)
        )

    def describe(self) -> str:
        """What is needed in a few words: ``"statistics of gradients"``."""
        modes = "" if self.modes == (Mode.TRAIN,) else " of " + "/".join(mode.name for mode in self.modes)
        of_what = f"{self.role.value}s" if self.role is not None else "tensors"
        of_modules = f" of {', '.join(self.module_types)} modules" if self.module_types else ""
        parts = []
        if self.units:
            parts.append(f"inactive units of {of_what}{of_modules}")
        elif self.role is not None or self.statistics:
            parts.append(f"statistics of {of_what}{of_modules}")
        if self.scalars:
            parts.append(f"the scalar {' or '.join(self.scalars)}")
        if self.facts:
            parts.append(f"the fact {' or '.join(self.facts)}")
        return " and ".join(parts) + modes
