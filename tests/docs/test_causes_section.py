"""The section on causes in docs/rules-engine.md: its file loads, its error is the real one, and every key is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from watchglass.cli import main
from watchglass.diagnose import diagnose
from watchglass.diagnose.diagnosis import _LEAST_SCORE
from watchglass.records import Finding, Mode, Severity
from watchglass.rules import load_knowledge
from watchglass.rules.knowledge import reading


@pytest.fixture(scope="module")
def section(repository: Path) -> str:
    text = (repository / "docs" / "rules-engine.md").read_text()
    (found,) = re.findall(r"^## Causes\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def causes(section: str, in_tmp_path: Path) -> Path:
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    path = Path("causes.toml")
    path.write_text(toml)
    return path


def test_the_file_of_the_page_diagnoses_with_its_own_advice(section: str, causes: Path) -> None:
    (rule,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert 'symptoms=["drift_measured"]' in rule
    found = Finding(
        "0", "Drift", Severity.WARNING, 3, 3, 1, Mode.TRAIN, "worker_0", (), None, None, "they drift",
        evidence={"symptoms": ["drift_measured"], "drift_s": 2.5, "sensor": "camera 2"},
    )  # fmt: skip
    (diagnosis,) = diagnose([found], load_knowledge([causes]))
    assert diagnosis.headline == "The clocks of the sensors have drifted apart: they drift"
    assert diagnosis.what_to_try == ("Shift the labels by 2.50 seconds, as measured at camera 2",)


def test_the_error_of_the_page_is_the_real_one(section: str, causes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    causes.write_text(causes.read_text().replace("loss_flat = { clock_drift", "loss_flat = { clock_drif"))
    ((command, shown),) = re.findall(r"^\$ watchglass (.*?)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert main(command.split()) == 2
    assert capsys.readouterr().err == shown


def test_every_key_is_described(section: str) -> None:
    table = section[section.rindex("| section |") :]
    keys = {key for both in reading._KEYS.values() for row in both for key in row}
    assert {"title", "breaks", "healthy"} < keys
    assert [key for key in sorted(keys) if f"`{key}" not in table] == []
    for name in ("causes", "symptoms", "groups", "links", "placeholders"):
        assert f"`[{name}" in table


def test_the_figures_of_the_page_are_right(section: str) -> None:
    assert "so 0.7 and 0.8 give 0.94" in section
    assert 1 - (1 - 0.7) * (1 - 0.8) == pytest.approx(0.94)  # noqa: SIM300  it reads as the page does
    assert load_knowledge().links["rose_before"]["bad_data"] == -0.6
    assert "takes 60 %" in section
    assert load_knowledge().found_nothing == -0.85
    assert "85 % of the" in section
    assert _LEAST_SCORE == 0.1
    assert "likelier than 10 %" in section
