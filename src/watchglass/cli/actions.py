"""``watchglass actions``: list and document the actions, and send undelivered events again."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated

import typer

from watchglass import evaluate, view
from watchglass.cli.declaring import argument, option
from watchglass.cli.evaluator_options import Actions
from watchglass.cli.failure import COULD_NOT, print_note
from watchglass.cli.shared_options import ActionsFile
from watchglass.cli.terminal import stdout_console, working
from watchglass.errors import InvalidValueError

Name = Annotated[
    str | None,
    argument(
        "NAME|RUN",
        "An action, or FILE.py:CLASS for a custom action; with --resend, the location of a run.",
        show_default=False,
    ),
]
Resend = Annotated[bool, option("--resend", "Send the dead letters of a run again.")]


def actions(
    name: Name = None,
    resend: Resend = False,
    action: Actions = None,
    config: ActionsFile = None,
    as_json: Annotated[bool, option("--json", "Print JSON for programs.")] = False,
) -> int:
    """List the actions, or document one action and its parameters.

    With --resend, send the dead letters of a run again: events that an action could not deliver. The actions of
    watchglass.toml and of --action send them.
    """
    if resend:
        return _resend(name, action or [], config, as_json=as_json)
    if action:
        raise InvalidValueError("--action needs --resend and the location of a run")
    from watchglass.actions import action_names, documentation, find_action
    from watchglass.cli.listing import print_heading, print_hint, print_list, print_parameters

    console = stdout_console()
    if name is None:
        documented = [documentation(find_action(known)) for known in action_names()]
        if as_json:
            listed = [{"name": each.name, "summary": each.summary} for each in documented]
            typer.echo(view.strict_json({"actions": listed}), nl=False)
            return 0
        print_list(console, [(each.name, each.summary) for each in documented])
        print_hint(console, "No action runs unless it is requested. Details of an action: watchglass actions NAME")
        return 0
    found = documentation(find_action(name))
    if as_json:
        typer.echo(view.strict_json(asdict(found)), nl=False)
        return 0
    print_heading(console, found.name, found.summary)
    for paragraph in filter(None, map(str.split, found.text.replace("``", "").split("\n\n"))):
        console.print()
        console.print(" ".join(paragraph), markup=False)
    print_parameters(console, found.parameters)
    example = name if found.example == found.name else found.example
    print_hint(console, f"watchglass run --action '{example}' train.py")
    return 0


def _resend(run: str | None, texts: list[str], config: str | None, *, as_json: bool) -> int:
    """Sends the dead letters of a run again; returns the exit status."""
    if run is None:
        raise InvalidValueError("--resend needs the run whose dead letters are to be sent again; give its location")
    from watchglass.session import action_specs
    from watchglass.store import open_store, read_manifest

    specs = action_specs(texts, None, config, thorough=True)
    with closing(open_store(run)) as store:
        read_manifest(store)
        with working(f"sending the dead letters of {run}"):
            resent = evaluate.resend(store, specs, print_note)
    if as_json:
        rows = [
            {"action": each.action, "arrived": each.arrived, "left": each.left, "reason": each.reason or None}
            for each in resent
        ]
        typer.echo(view.strict_json({"run": run, "actions": rows}), nl=False)
        return COULD_NOT if any(became.left for became in resent) else 0
    if not resent:
        typer.echo(f"{view.printable(run)} has no dead letters to send")
    for became in resent:
        typer.echo(_sentence(became))
    return COULD_NOT if any(became.left for became in resent) else 0


def _sentence(became: evaluate.Resent) -> str:
    """``Webhook: 3 arrived, 1 left (answered with 503)``."""
    left = f", {became.left} left" if became.left else ""
    why = became.reason if became.named else "no such action was named; give it with --action"
    return view.printable(f"{became.action}: {became.arrived} arrived{left}{f' ({why})' if left and why else ''}")
