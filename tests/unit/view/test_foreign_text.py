"""Text of a run in a terminal, a log of CI or a browser is text there, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from command_line import training
from watchglass.diagnose import verdict
from watchglass.evaluate import replay
from watchglass.run import open_run
from watchglass.testing import build_run
from watchglass.view import harmless_json, printable, render_report
from watchglass.view.text import harmless_xml

#: What runners take as commands: at the beginning of a line, or anywhere.
AT_BEGIN = re.compile(r"^\s*(::\w|section_)", re.MULTILINE)
ANYWHERE = re.compile(r"##\s*\w*\[")


@pytest.mark.parametrize(
    "text",
    [
        "::error file=a::b", "  ::set-output name=x::y", "a\n::warning::b", "a ::notice::b", "##[error]x",
        "x##vso[task.x]y", "###[group]x", "##teamcity[x]", "a" * 60 + "::error::x",
        "(::add-mask::x)", "##\u200b[error]", "::" * 40,
    ],
)  # fmt: skip
def test_no_runner_of_ci_finds_a_command(text: str) -> None:
    shown = printable(text)
    assert not ANYWHERE.search(shown)
    for width in (*range(40, 90), 200):  # however a terminal breaks the line, at spaces or within a word
        words = shown.split(" ")
        lines = [word[at : at + width] for word in words for at in range(0, len(word), width)]
        if max(map(len, words)) > width or width == 200:
            assert not any(AT_BEGIN.match(line) for line in (*lines, shown))


@pytest.mark.parametrize(
    "text", ["torch::nn::Linear", "at::native::add", "a: b", "# title", "## two", "[0] ## x", "::"]
)
def test_plain_text_stays_readable(text: str) -> None:
    if text == "::":
        assert printable(text) == "\\x3a:"
    else:
        assert printable(text) == text


def test_documents_mean_the_same() -> None:
    value = {"##[error]": ["##vso[x]", "#", "##", "###"]}
    document = harmless_json(json.dumps(value))
    assert "##" not in document
    assert json.loads(document) == value
    xml = harmless_xml('<a b="##[x]">###[y]</a>')
    assert "##" not in xml
    assert (ElementTree.fromstring(xml).get("b"), ElementTree.fromstring(xml).text) == ("##[x]", "###[y]")


class Page(HTMLParser):
    """The policy of a page, and its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.inside, self.parts = "", "", {"script": [], "style": []}
        self.styled: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        self.styled += [tag for name, _ in attrs if name == "style"]
        if tag in self.parts:
            self.inside = tag
            self.parts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.parts[self.inside][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""


@pytest.mark.parametrize("steps", [0, 30])
def test_a_report_has_no_script_and_the_policy_allows_none(tmp_path: Path, steps: int) -> None:
    path = build_run(tmp_path / "run", training(steps), modules={"fc": "Linear"})
    page = Page()
    page.feed(render_report(open_run(path), verdict(open_run(path), replay(path))))
    rules = {rule.split()[0]: rule.split()[1:] for rule in page.policy.split(";")}
    assert rules["default-src"] == ["'none'"]
    assert "script-src" not in rules
    assert page.parts["script"] == []
    (style,) = page.parts["style"]
    assert rules["style-src"] == [f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'"]
    assert page.styled == []
