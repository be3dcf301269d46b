"""Actions by name, as people write them; invalid ones are refused before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchglass import Action
from watchglass.actions import build_action, checked_actions, documentation, find_action, parse_action
from watchglass.actions.templates import FIELDS, fields_of
from watchglass.actions.variables import concealed, resolved
from watchglass.config import ActionSpec, find_file, read_actions, read_file
from watchglass.errors import InvalidValueError, MissingFileError, PluginFileError, UnknownNameError
from watchglass.records import Severity, Status
from watchglass.testing import example_event


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("Webhook", "Webhook", {}),
        ("Webhook:url=https://a.org:8080/x?b=c&d=e,severity=error", "Webhook",
         {"url": "https://a.org:8080/x?b=c&d=e", "severity": "error"}),
        ("Notify:urls=mailto://u:p@h?to=a,b", "Notify", {"urls": "mailto://u:p@h?to=a,b"}),
        ("StopTraining:severity=warning, rules=A,B", "StopTraining", {"severity": "warning", "rules": "A,B"}),
        ("my/act.py:Mine:on=finding,status,key=$K", "my/act.py:Mine", {"on": "finding,status", "key": "$K"}),
        ("act.py:key=x", "act.py", {"key": "x"}),
        ("act.py", "act.py", {}),
        ("act.py:Mine", "act.py:Mine", {}),
        ("Webhook:url=https://h/run.py:Mine", "Webhook", {"url": "https://h/run.py:Mine"}),
        ("Command:command=sh {run} a=b", "Command", {"command": "sh {run} a=b"}),
    ],
)  # fmt: skip
def test_how_an_action_is_written(text: str, name: str, parameters: dict[str, str]) -> None:
    spec = parse_action(text)
    assert (spec.name, spec.parameters) == (name, parameters)


@pytest.mark.parametrize("text", ["", "Webhook:nothing", "Webhook:url=a,url=b", ":url=x", "Webhook:1a=x", "=x"])
def test_what_does_not_read_so_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_action(text)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("Webhok", UnknownNameError, 'no action "Webhok" .did you mean "Webhook"'),
        ("Webhook:ulr=https://a.org", UnknownNameError, 'no parameter "ulr" .did you mean "url"'),
        ("Webhook:url=$NO_SUCH_VARIABLE", UnknownNameError, "NO_SUCH_VARIABLE is not set"),
        ("Webhook:url=https://a.org,rules=Overfitt", UnknownNameError, 'no rule "Overfitt" is evaluated .did you mean'),
        ("StopTraining:severity=bad", InvalidValueError, "severity must be one of info, warning, error"),
        ("StopTraining:grace_s=soon", InvalidValueError, "grace_s must be a number or none"),
        ("no.py:Mine", MissingFileError, "there is no action file"),
        ("broken.py:Mine", PluginFileError, "line 1, SyntaxError"),
        ("mine.py:Mein", UnknownNameError, 'no class "Mein" .did you mean "Mine"'),
        ("mine.py:Other", PluginFileError, "is not an action; an action is"),
        ("mine.py:Empty", PluginFileError, r"has no method act\(self, event\)"),
        ("mine.py:Mine:count=x", InvalidValueError, "count must be a whole number"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(text: str, error: type, message: str, in_tmp_path: Path) -> None:
    (in_tmp_path / "broken.py").write_text("class Mine(:\n")
    (in_tmp_path / "mine.py").write_text(
        "from watchglass import Action\n\n\nclass Mine(Action):\n    'Mine.'\n    count: int = 1\n"
        "    def act(self, event):\n        pass\n\n\nclass Empty(Action):\n    'Empty.'\n\n\nclass Other:\n    pass\n"
    )
    with pytest.raises(error, match=message) as refused:
        checked_actions([parse_action(text)], ["Overfit"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("method", "verb"), [("__post_init__", "built"), ("check", "checked")])
def test_what_an_own_action_raises_before_a_training_run_is_a_line(method: str, verb: str, in_tmp_path: Path) -> None:
    (in_tmp_path / "mine.py").write_text(
        f"from watchglass import Action\n\n\nclass Mine(Action):\n    'Mine.'\n    def {method}(self):\n"
        "        raise KeyError('no\\nsuch')\n    def act(self, event):\n        pass\n"
    )
    with pytest.raises(PluginFileError) as refused:
        checked_actions([parse_action("mine.py:Mine")], [])
    assert str(refused.value) == rf"mine.py:Mine cannot be {verb}: KeyError: 'no\nsuch'"


def test_every_built_in_action_is_documented() -> None:
    for name in ("StopTraining", "Notify", "Webhook", "Command", "ProfileSteps"):
        documented = documentation(find_action(name))
        assert documented.summary.endswith(".")
        assert all(parameter.help for parameter in documented.parameters)
        assert parse_action(documented.example).name == name


class Mine(Action):
    """Mine."""

    def act(self, event: object) -> None:
        raise NotImplementedError


def test_what_an_action_wants() -> None:
    finding, status, summary = map(example_event, ("finding", "status", "summary"))
    assert [Mine().wants(event) for event in (finding, status, summary)] == [True, False, False]
    assert Mine(on="status").wants(status)
    assert not Mine(on="status").wants(finding)
    assert not Mine(on="status", statuses="Error,Starved").wants(status)
    assert Mine(on="status", statuses=(Status.ISSUES_FOUND,)).wants(status)
    assert not Mine(on="finding,status", rules="Overfit").wants(status)
    mild = example_event(severity=Severity.INFO)
    assert not Mine().wants(mild)
    assert Mine(severity="info").wants(mild)


def test_a_place_for_everything_that_an_event_says() -> None:
    for kind in ("finding", "status", "summary"):
        assert set(fields_of(example_event(kind))) == set(FIELDS)
    fields = fields_of(example_event())
    assert (fields["time"], fields["value"], fields["limit"]) == ("2023-11-14T22:13:20Z", "nan", "")


def test_variables_are_replaced_and_concealed_again() -> None:
    environ = {"A": "geheim/1", "B": "x"}
    given = {"url": "$A", "list": ["${A}/b", "x$AB", "a$A"], "number": 3}
    assert resolved(given, environ) == {"url": "geheim/1", "list": ("geheim/1/b", "x$AB", "a$A"), "number": 3}
    assert concealed("no geheim/1, geheim%2F1", given, environ) == "no $A, $A"


def test_tables_of_a_file_name_actions(in_tmp_path: Path) -> None:
    path = in_tmp_path / "watchglass.toml"
    path.write_text(
        'save_interval = 5\n\n[[actions]]\nname = "Webhook"\nurl = "https://a.org"\nheaders = ["A: b"]\n\n'
        '[[actions]]\nname = "StopTraining"\nseverity = "warning"\n'
    )
    assert find_file() == path
    assert read_file(path).settings == {"save_interval": 5}
    webhook, stop = read_actions(path, named=True)
    assert webhook == ActionSpec("Webhook", {"url": "https://a.org", "headers": ["A: b"]})
    assert build_action(stop).severity is Severity.WARNING


@pytest.mark.parametrize("text", ["actions = 3", "[actions]\nname = 'Webhook'", "[[actions]]\nurl = 'x'"])
def test_tables_that_are_none_are_refused(in_tmp_path: Path, text: str) -> None:
    (in_tmp_path / "watchglass.toml").write_text(text)
    with pytest.raises(InvalidValueError, match=r"watchglass\.toml: "):
        read_actions(in_tmp_path / "watchglass.toml", named=True)
