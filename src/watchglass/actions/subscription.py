"""Which findings concern an action: of which rules, and of which severity."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from watchglass.config import parameter, validate, with_parameters
from watchglass.records import Finding, Severity

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[T], T]:
        """Stands in for typing.dataclass_transform, which Python 3.10 does not have; only type checkers use it."""
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(parameter,))
class Subscription(ABC):  # noqa: B024  subclasses say how to act on the findings
    """The findings that concern an action. Subclasses become keyword-only dataclasses by themselves."""

    severity: Severity = parameter(Severity.WARNING, help="least severity of a finding")
    rules: tuple[str, ...] = parameter((), help="names of rules; none for every rule")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        with_parameters(cls)

    def __post_init__(self) -> None:
        validate(self)

    @property
    def name(self) -> str:
        """Name of its class."""
        return type(self).__name__

    def concerned_by(self, finding: Finding) -> bool:
        """Whether a finding is bad enough, and of one of the rules."""
        return finding.severity.rank >= self.severity.rank and (not self.rules or finding.rule in self.rules)


with_parameters(Subscription)
