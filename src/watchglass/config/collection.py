"""Collections: named groups of tensors, with what is kept of them and when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from watchglass.config.parameters import parameter, validate, values
from watchglass.errors import InvalidValueError
from watchglass.records import Role

#: Collections that exist in every run, and the roles they hold.
BUILT_IN_ROLES: dict[str, tuple[Role, ...]] = {
    "weights": (Role.WEIGHT,),
    "biases": (Role.BIAS,),
    "gradients": (Role.GRADIENT,),
    "updates": (Role.UPDATE,),
    "inputs": (Role.INPUT,),
    "outputs": (Role.OUTPUT,),
    "losses": (Role.LOSS,),
    "metrics": (Role.METRIC,),
}


@dataclass(frozen=True)
class Collection:
    """A named group of tensors with what is kept of them and when.

    A built-in name (``weights``, ``biases``, ``gradients``, ``updates``, ``inputs``, ``outputs``) selects by role; any
    other name selects by ``include_regex``. Intervals count steps of the mode, and ``end_step`` is exclusive.

    Attributes:
        name: Built-in name, or a new one together with ``include_regex``.
        include_regex: Regular expressions searched (not matched from the start) in tensor names.
        save_interval: Keep every step that is a multiple of it; None lets the overhead budget choose.
        start_step: First step that may be kept.
        end_step: First step that may no longer be kept; None for no end.
        save_raw: Keep the tensors themselves too, not only their statistics.

    Raises:
        InvalidValueError: A name that cannot be a collection's, a regular expression that does not compile, limits
            that leave no step.
    """

    name: str
    include_regex: tuple[str, ...] = parameter((), help="regular expressions searched in tensor names")
    save_interval: int | None = parameter(None, help="keep every step that is a multiple of it", unit="steps", ge=1)
    start_step: int = parameter(0, help="first step that may be kept", unit="steps", ge=0)
    end_step: int | None = parameter(None, help="first step that may no longer be kept", unit="steps", ge=0)
    save_raw: bool = parameter(False, help="keep the tensors themselves too")

    def __post_init__(self) -> None:
        validate(self)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", self.name):
            raise InvalidValueError(
                "a collection's name must be a letter followed by up to 63 letters, digits, _ . or - "
                f"but got {self.name!r}"
            )
        for pattern in self.include_regex:
            try:
                re.compile(pattern)
            except re.error as error:
                raise InvalidValueError(
                    f"collection {self.name}: include_regex {pattern!r} does not compile: {error}"
                ) from None
        if self.name not in BUILT_IN_ROLES and not self.include_regex:
            raise InvalidValueError(
                f"collection {self.name!r} selects nothing: give include_regex, or use one of "
                + ", ".join(sorted(BUILT_IN_ROLES))
            )
        if self.end_step is not None and self.end_step < self.start_step:
            raise InvalidValueError(
                f"collection {self.name}: end_step must be at least start_step ({self.start_step}) "
                f"but got {self.end_step}"
            )

    def selects(self, name: str, role: Role) -> bool:
        """Whether a tensor belongs to this collection."""
        roles = BUILT_IN_ROLES.get(self.name)
        if roles is not None and role not in roles:
            return False
        return not self.include_regex or any(re.search(pattern, name) for pattern in self.include_regex)

    def allows(self, step: int) -> bool:
        """Whether a step lies within ``start_step`` and ``end_step``."""
        return step >= self.start_step and (self.end_step is None or step < self.end_step)

    def to_json(self) -> dict[str, Any]:
        """The name and every parameter that differs from its default."""
        return {"name": self.name, **values(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Collection:
        """The collection that :meth:`to_json` gave."""
        return cls(**data)
