"""What pages share: what they are made of, links to choose by, and forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from watchglass.dashboard.shell import Links
from watchglass.dashboard.watched_run import Published
from watchglass.errors import InvalidValueError
from watchglass.view import Block, Span, Text, block_html, escaped

#: Most digits of a step.
_DIGITS = 15


class Shown(NamedTuple):
    """What a page is made of."""

    published: Published
    links: Links
    identifier: str
    query: Mapping[str, str]
    live: bool = False  #: Whether the job goes on.
    opened: tuple[str, ...] = ()  #: Modules that a person has unfolded.
    acts: bool = False  #: Whether the page may ask something of a job.

    @property
    def steps(self) -> tuple[int, int] | None:
        """The training steps that a person has chosen, half-open; None for all.

        Raises:
            InvalidValueError: It is not a range.
        """
        return chosen_steps(self.query)

    def number(self, name: str) -> int | None:
        """A number of the query.

        Raises:
            InvalidValueError: It is none.
        """
        text = self.query.get(name, "")
        if text and not _is_number(text):
            raise InvalidValueError(f"{name} must be a number but got {text!r:.50}")
        return int(text) if text else None


def chosen_steps(query: Mapping[str, str]) -> tuple[int, int] | None:
    """See :attr:`Shown.steps`."""
    text = query.get("steps", "")
    if not text:
        return None
    first, _, stop = text.partition(":")
    if not (_is_number(first) and _is_number(stop) and int(first) < int(stop)):
        raise InvalidValueError(f"steps must be FIRST:STOP but got {text!r:.50}")
    return int(first), int(stop)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS


class RunPage(NamedTuple):
    """A page of a run.

    Attributes:
        title: Its title in the bar.
        draw: Its content.
        parts: What it shows of :data:`~watchglass.dashboard.watched_run.PARTS`.
        choices: Names of the query that change its content.
    """

    title: str
    draw: Callable[[Shown], Sequence[Block]]
    parts: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices(Block):
    """Links to the same page with another choice: address, text and whether it is the one that is shown."""

    links: Sequence[tuple[str, str, bool]]


@dataclass(frozen=True)
class StepForm(Block):
    """Chooses a step: an address, the name of its number, the one that is shown, which there are, further fields."""

    address: str
    name: str
    step: int
    about: str
    others: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class ActionForm(Block):
    """Asks something, and shows the answer.

    Attributes:
        address: Where it is asked.
        words: What the button says.
        label: What is before the field.
        name: Name of the field; "" for none.
        value: What it begins with.
        hidden: Further fields.
        options: What can be chosen instead of typed.
        confirm: What a person must confirm; "" for nothing.
    """

    address: str
    words: str
    label: str = ""
    name: str = ""
    value: str = ""
    hidden: Sequence[tuple[str, str]] = field(default=())
    confirm: str = ""
    options: Sequence[str] = ()


@block_html.register
def _choices(block: Choices) -> str:
    links = (
        f'<a href="{escaped(address)}"{" aria-current=true" if here else ""}>{escaped(text)}</a>'
        for address, text, here in block.links
    )
    return f'<p class="choices">{"".join(links)}</p>'


@block_html.register
def _step_form(block: StepForm) -> str:
    others = _hidden(block.others)
    return (
        f'<form class="step" action="{escaped(block.address)}">{others}<label>Step <input type="number" '
        f'name="{block.name}" value="{block.step}" min="0"></label> <button>Show</button> '
        f"<span>{escaped(block.about)}</span></form>"
    )


@block_html.register
def _action_form(block: ActionForm) -> str:
    given = f"<label>{escaped(block.label)} {_field(block)}</label> " if block.name else ""
    confirm = (
        f'<label><input type="checkbox" name="confirmed" value="yes" required> {escaped(block.confirm)}</label> '
        if block.confirm
        else ""
    )
    return (
        f'<form class="action" method="post" action="{escaped(block.address)}">{_hidden(block.hidden)}{given}{confirm}'
        f"<button>{escaped(block.words)}</button> <output></output></form>"
    )


def _field(block: ActionForm) -> str:
    if block.options:
        options = "".join(
            f"<option{' selected' if each == block.value else ''}>{escaped(each)}</option>" for each in block.options
        )
        return f'<select name="{block.name}">{options}</select>'
    kind = 'number" step="any' if block.value.replace(".", "", 1).isdigit() else "text"
    return f'<input type="{kind}" name="{block.name}" value="{escaped(block.value)}">'


def _hidden(pairs: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<input type="hidden" name="{escaped(name)}" value="{escaped(value)}">' for name, value in pairs)


def empty(sentence: str, command: str = "") -> Text:
    """Why nothing is there, and what fills it."""
    return Text((sentence, Span(command, "code")) if command else sentence, "empty")
