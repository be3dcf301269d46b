"""The formats of verdicts: one contract, and for each format one file and one line in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from watchglass.records import Verdict, count
from watchglass.view.conclusion import Terms
from watchglass.view.verdict_sentences import headline

if TYPE_CHECKING:
    from watchglass.run import Run

_AMOUNTS = {"issues found": "with issues", "no data": "without data", "no issues found": "without issues"}
_ORDER = (
    "failed", "interrupted", "issues found", "stopped", "damaged", "unreadable", "incomplete", "no data", "not judged",
    "no issues found",
)  # fmt: skip


@dataclass(frozen=True)
class RuleText:
    """The documentation of a rule."""

    summary: str  #: One sentence.
    sections: Mapping[str, str]  #: Texts by title: what it looks at, when it fires, what to try.
    parameters: Mapping[str, Any] = field(default_factory=dict)  #: Its parameters with their defaults.


@dataclass(frozen=True)
class Judged:
    """Runs with their verdicts: what each format shows.

    Attributes:
        verdicts: One for each run; exactly one without ``many``.
        terms: Which findings count.
        many: Whether they are all runs of a folder, with any number of runs.
        options: Options with which ``explain`` gives the same verdicts.
        verbose: Whether a text has cost and counts.
        rules: Makes the documentation of the rules, by name; a rule without it has its name.
        runs: The runs by their locations, as far as they are open.
    """

    verdicts: Sequence[Verdict]
    terms: Terms = Terms()  # noqa: RUF009 - frozen
    many: bool = False
    options: Sequence[str] = ()
    verbose: bool = False
    rules: Callable[[], Mapping[str, RuleText]] = dict
    runs: Mapping[str, Run] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """All verdicts in one line."""
        if not self.many:
            return headline(self.verdicts[0])
        amounts = {status: sum(verdict.status == status for verdict in self.verdicts) for status in _ORDER}
        words = [f"{amount:,} {_AMOUNTS.get(status, status)}" for status, amount in amounts.items() if amount]
        return f"{count(len(self.verdicts), 'run')}: {', '.join(words)}"


class Renderer(Protocol):
    """A format: it makes one document of runs and their verdicts. It escapes whatever comes from a run."""

    def __call__(self, judged: Judged) -> str:
        """The document."""


class Format(NamedTuple):
    """Where a format is."""

    ending: str  #: How the names of its files end.
    module: str  #: Its file in this package, imported when it is used.
    function: str  #: The renderer in it.


#: The formats by name, in the order in which they are listed.
FORMATS = {
    "text": Format("txt", "verdict", "text_document"),
    "json": Format("json", "json_format", "json_document"),
    "sarif": Format("sarif", "sarif", "sarif_document"),
    "junit": Format("xml", "junit", "junit_document"),
    "markdown": Format("md", "markdown", "markdown_document"),
    "html": Format("html", "report", "html_document"),
}


def renderer(name: str) -> Renderer:
    """The renderer of a format in :data:`FORMATS`."""
    found: Renderer = getattr(import_module(f"watchglass.view.{FORMATS[name].module}"), FORMATS[name].function)
    return found
