"""Rules that installed packages offer by entry points are named like built-in ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from watchglass.cli import main
from watchglass.config import RuleSpec, name_of
from watchglass.errors import PluginFileError, UnknownNameError
from watchglass.evaluate import replay
from watchglass.rules import CONTRACT, find_rule, installed_rules
from watchglass.testing import Step, build_run

_MODULE = '''
from watchglass import Rule, Severity

class Always(Rule):
    """Fires at every step."""

    def check(self, view):
        yield self.finding(view, severity=Severity.WARNING, message="here", causes=["bad_data"])

class NoRule:
    pass
'''

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with a module and entry points, as pip lays them out."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def made(package: str, **rules: str) -> None:
        (folder / f"{package}.py").write_text(_MODULE)
        about = folder / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {package}:{value}" for name, value in rules.items()]
        (about / "entry_points.txt").write_text("\n".join(["[watchglass.rules]", *lines, ""]))

    yield made
    for name in [name for name in sys.modules if name.startswith("offers_")]:
        del sys.modules[name]


def test_an_installed_rule_is_named_like_a_built_in_one(install: Install, run_path: Path) -> None:
    install("offers_one", Always="Always")
    assert installed_rules() == ["Always"]
    (finding,) = replay(build_run(run_path, [Step(scalars={"loss": 1.0})]), [RuleSpec("Always")]).findings
    assert finding.rule == "Always"
    # Another process finds it by this name, and not by its file, whose relative imports would fail.
    assert name_of(find_rule("Always"), CONTRACT) == "Always"


def test_it_is_listed_and_documented(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("offers_listed", Always="Always", Broken="Missing")
    assert main(["rules"]) == 0
    listed = capsys.readouterr().out
    assert "Rules of installed packages\nAlways  Fires at every step." in listed
    assert "Broken  rule Broken of package offers_listed cannot be imported: AttributeError" in listed
    assert main(["rules", "Always"]) == 0
    assert "Fires at every step." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rules", "name", "message"),
    [
        ({"Other": "NoRule"}, "Other", "Other is not a rule; a rule is a class that derives from watchglass.Rule"),
        ({"Gone": "Missing"}, "Gone", "rule Gone of package offers_bad cannot be imported: AttributeError: "),
    ],
)
def test_what_is_no_rule_is_one_line(install: Install, rules: dict[str, str], name: str, message: str) -> None:
    install("offers_bad", **rules)
    with pytest.raises(PluginFileError, match=message):
        find_rule(name)


def test_one_name_in_two_packages_is_refused(install: Install) -> None:
    install("offers_a", Always="Always")
    install("offers_b", Always="Always")
    with pytest.raises(PluginFileError, match="several packages offer rule Always: offers_a, offers_b; uninstall all"):
        find_rule("Always")


def test_a_built_in_rule_stays_what_it_is(install: Install) -> None:
    install("offers_dead", DeadRelu="Always")
    assert find_rule("DeadRelu").__module__.startswith("watchglass.")
    assert installed_rules() == []


def test_a_similar_name_is_suggested(install: Install) -> None:
    install("offers_near", Always="Always")
    with pytest.raises(UnknownNameError, match='did you mean "Always"'):
        find_rule("Alwys")
