"""The live view: the verdict first, then loss, time and findings; keys to filter, explain, profile and stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from watchglass import diagnose, view
from watchglass.errors import WatchglassError
from watchglass.records import Finding, Verdict
from watchglass.run import Run, open_run, request_stop
from watchglass.top.braille import braille_line
from watchglass.top.look import RunLook, at_step
from watchglass.view import STYLES, TextRow, live_tone, printable, tone

#: Seconds between two looks at what was read.
_SHOWN_S = 0.25
#: Lines of the loss, rows of the verdict, and steps that are profiled.
_LOSS_LINES, _VERDICT_LINES, _PROFILED = 5, 12, 5
#: Width of lines over the page, in percent of it, and what their border, padding and scroll bar take, in characters.
_WIDTH, _AROUND = 90, 8


class _Lines(ModalScreen[None]):
    """Some lines over the page, until a key closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "Close")]

    def __init__(self, lines: Text) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The lines, and the keys below."""
        with VerticalScroll(id="lines"):
            yield Static(self._lines)
        yield Footer()


class _Question(ModalScreen[bool]):
    """A question, answered by y or n."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question, and the keys below."""
        with Vertical(id="question"):
            yield Static(Text(f"{self._question}\n\ny: yes    n: no", style="bold"))
        yield Footer()

    def action_answer(self, yes: bool) -> None:
        """Close the question with an answer."""
        self.dismiss(yes)


class TopApp(App[None]):
    """A run in a terminal, while it is written.

    Args:
        newest: Returns what was read last.
        open_again: Opens the run for a request to its job.
    """

    TITLE = "watchglass top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #progress, #numbers, #time { height: 1; }
    #verdict { height: auto; max-height: 14; margin: 1 0; }
    #loss { height: 6; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    DataTable { height: 1fr; }
    ModalScreen { align: center middle; }
    #lines, #question { width: WIDTH%; height: 80%; border: round $accent; padding: 1 2; background: $surface; }
    #question { height: auto; }
    """.replace("WIDTH", str(_WIDTH))
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("e", "explain", "Explain", key_display="Enter"),  # a table takes Enter for itself
        Binding("p", "profile", "Profile"),
        Binding("S", "stop", "Stop the job"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, newest: Callable[[], RunLook], open_again: Callable[[str], Run] = open_run) -> None:
        super().__init__()
        self._newest, self._open = newest, open_again
        self._look = newest()
        self._drawn: tuple[object, ...] = ()
        self._listed: list[Finding] = []
        self._parts = {name: Static(id=name) for name in ("progress", "verdict", "numbers", "loss", "time")}
        self._words = Input(placeholder="words of a rule, a tensor or a sentence; escape ends the filter", id="filter")
        self._table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)

    def compose(self) -> ComposeResult:
        """The parts of the page, from top to bottom."""
        yield from self._parts.values()
        yield self._words
        yield self._table
        yield Footer()

    def on_mount(self) -> None:
        """Begin to show what is read."""
        table = self._table
        for name, width in (("severity", 9), ("rule", 24), ("step", 10), ("found", None)):
            table.add_column(name, width=width)
        table.focus()
        self._show()
        self.set_interval(_SHOWN_S, self._show)

    def on_resize(self) -> None:
        """Draw the loss as wide as the terminal."""
        self._drawn = ()

    def _show(self) -> None:
        if not self._table.is_attached:
            return  # the terminal is closed
        self._look = look = self._newest()
        said = f"{printable(look.location)}  {look.progress(time.time_ns())}"
        progress = Text(said, no_wrap=True, overflow="ellipsis")
        if look.problem:
            progress.append(f"  cannot be read now: {printable(look.problem)}", style="bold yellow")
        self._parts["progress"].update(progress)
        words = self._words.value.lower().split()
        drawn = (id(look), self.size, tuple(words))
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._parts["verdict"].update(_verdict(look.verdict, live=look.summary.live, width=self.size.width))
        self._parts["numbers"].update(Text(look.numbers(), style="bold"))
        self._parts["loss"].update(_loss(look, self.size.width))
        self._parts["time"].update(_time(look))
        self._list([each for each in look.findings if all(word in _searched(each) for word in words)])

    def _list(self, findings: list[Finding]) -> None:
        """Show findings, with the cursor where it was."""
        table = self._table
        at = self._listed[table.cursor_row].id if table.cursor_row < len(self._listed) else ""
        self._listed = findings
        table.clear()
        for each in findings:
            table.add_row(
                Text(each.severity.value, style=STYLES[each.severity.value]), Text(printable(each.rule)),
                Text(at_step(each)), Text(printable(each.message)),
            )  # fmt: skip
        place = next((row for row, each in enumerate(findings) if each.id == at), 0)
        if findings:
            table.move_cursor(row=place)

    def action_filter(self) -> None:
        """Ask for the words that shown findings have."""
        asked = self._words
        asked.add_class("shown")
        asked.focus()

    @on(Input.Changed)
    def _filtered(self) -> None:
        self._show()

    @on(Input.Submitted)
    def _chosen(self) -> None:
        self._table.focus()

    def on_key(self, event: object) -> None:
        """Escape ends the filter."""
        asked = self._words
        if getattr(event, "key", "") == "escape" and asked.has_class("shown"):
            asked.value = ""
            asked.remove_class("shown")
            self._table.focus()

    @on(DataTable.RowSelected)
    def action_explain(self) -> None:
        """Explain the finding at the cursor."""
        row = self._table.cursor_row
        if row < len(self._listed):
            width = _WIDTH * self.size.width // 100 - _AROUND
            self.push_screen(_Lines(_explained(self._listed[row], self._look.verdict, width)))

    def action_profile(self) -> None:
        """Ask the job to profile its next steps."""
        self._ask(lambda run: _profiled(run))

    def action_stop(self) -> None:
        """Stop the job, if the answer is yes."""

        def answered(yes: bool | None) -> None:
            if yes:
                self._ask(lambda run: f"stops at training step {request_stop(run, 'requested in watchglass top')}")

        self.push_screen(_Question(f"Stop the job of {printable(self._look.location)}?"), answered)

    @work(thread=True)
    def _ask(self, request: Callable[[Run], str]) -> None:
        """Ask the job for something in a thread, because a store may take long to answer."""
        try:
            said, severity = request(self._open(self._look.location)), "information"
        except WatchglassError as error:
            said, severity = str(error), "error"
        self.call_from_thread(self.notify, said, severity=severity, timeout=10, markup=False)


def _profiled(run: Run) -> str:
    steps = run.profile(_PROFILED).steps
    later = view.command("show", run.location)
    return (
        f"training steps {steps.start} to {steps.stop - 1} will be profiled, or the next possible ones; then: {later}"
    )


def _verdict(verdict: Verdict, *, live: bool, width: int) -> Text:
    """The screen of the verdict; of a run that goes on without findings one line."""
    if live and not verdict.findings:
        said = "no findings so far" if verdict.statuses else view.headline(verdict)
        return Text(said, style=STYLES[live_tone(verdict)])
    return _text(view.screen(verdict)[:_VERDICT_LINES], width - 2)


def _text(rows: list[TextRow], width: int) -> Text:
    found = Text()
    for line, style in view.wrapped(rows, max(width, 20)):
        found.append(f"{line}\n", style=style)
    return found


def _loss(look: RunLook, width: int) -> Text:
    if not len(look.loss):
        return Text("no loss yet", style="dim")
    line = braille_line(look.loss, max(width - 14, 10), _LOSS_LINES)
    labels = [view.number(line.high), "", "log axis" if line.logarithmic else "", "", view.number(line.low)]
    found = Text()
    for label, text in zip(labels, line.lines, strict=True):
        found.append(f"{label:>11} ", style="dim")
        found.append(f"{text}\n", style=STYLES[tone(look.verdict)])
    return found


def _time(look: RunLook) -> Text:
    phases = "  ".join(f"{name} {view.percent(share)}" for name, share in look.phases.items())
    return Text(" · ".join(filter(None, (phases, *look.machine))), style="dim", no_wrap=True, overflow="ellipsis")


def _searched(finding: Finding) -> str:
    return " ".join((finding.rule, finding.severity.value, finding.message, *finding.tensors)).lower()


def _explained(finding: Finding, verdict: Verdict, width: int) -> Text:
    from watchglass.rules import documentation, find_rule, load_knowledge, rule_names

    # A journal may name any file as a rule, and looking it up there would execute the file.
    known = {finding.rule: documentation(find_rule(finding.rule))} if finding.rule in rule_names() else {}
    explained = diagnose.explain(finding, verdict, load_knowledge(), known)
    return _text(view.explain_findings([explained], verdict), width)
