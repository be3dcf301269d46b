"""The dashboard as a process: ended by a signal at once, and looked at with a browser while a run goes on."""

from __future__ import annotations

import http.client
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from processes import NEVER, TRAIN, Processes
from waiting import PATIENCE_S, until
from watchglass.dashboard.acting import replay_rule
from watchglass.diagnose import verdict
from watchglass.errors import InvalidValueError, WatchglassError
from watchglass.run import open_run
from watchglass.testing import build_run
from watchglass.view import headline, number

pytestmark = pytest.mark.slow


@pytest.fixture
def processes() -> Iterator[Processes]:
    found = Processes()
    yield found
    found.close()


def served(processes: Processes, runs: Path) -> tuple[subprocess.Popen[str], str]:
    """A dashboard and its link."""
    process = processes.start("-m", "watchglass", "dashboard", runs, "--port", "0", cwd=runs.parent)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_although_a_page_listens(processes: Processes, tmp_path: Path, number: int) -> None:
    build_run(tmp_path / "runs" / "one", [{"scalars": {"loss": 1.0}}] * 3)
    process, link = served(processes, tmp_path / "runs")
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE_S)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    answer.read()
    cookie = answer.headers["set-cookie"].partition(";")[0]
    connection.request("GET", "/events", headers={"Cookie": cookie})
    stream = connection.getresponse()
    assert stream.readline() == b"retry: 2000\n"
    process.send_signal(number)
    assert process.wait(PATIENCE_S) in (-number, 128 + number)
    connection.close()
    assert process.stdout is not None
    assert process.stderr is not None
    # Neither requests nor the token are logged, and an end by a signal is no error.
    assert process.stdout.read() + process.stderr.read() == ""


def test_a_rule_is_replayed_in_a_process_of_its_own(tmp_path: Path) -> None:
    losses = [1.0] * 20 + [float("nan")] * 5
    run = build_run(tmp_path / "run", [{"scalars": {"loss": loss}} for loss in losses])
    found = replay_rule(run, {"rule": "ExplodingTensor", "parameters": " only_nan=true"})
    assert found.startswith("with only_nan=true it finds issues at 5 steps, first at step 20, last at 24")
    with pytest.raises(InvalidValueError, match="no_such"):
        replay_rule(run, {"rule": "ExplodingTensor", "parameters": "no_such=1"})


def test_nothing_else_imports_a_web_server() -> None:
    program = "import sys; from watchglass.cli.app import application; application(); import watchglass.dashboard; " + (
        "print([name for name in ('starlette', 'uvicorn', 'watchglass.dashboard.serving') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


@contextmanager
def browsing() -> Iterator[Any]:
    """Chromium; a skip names what is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Debian's package chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_live_run_in_a_browser(processes: Processes, tmp_path: Path, width: int, scheme: str) -> None:
    runs, end = tmp_path / "runs", tmp_path / "end"
    (tmp_path / "train.py").write_text(TRAIN)
    words = ["-m", "watchglass", "run", "--run", runs / "live", "--save-interval", "4", "train.py", end, NEVER, "0.05"]
    with browsing() as browser:
        training = processes.start(*words, cwd=tmp_path)
        until(lambda: len(open_run(runs / "live").steps()) > 3, despite=(WatchglassError,))
        _, link = served(processes, runs)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(1000 * PATIENCE_S)
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("response", lambda answer: said.append(answer.url) if answer.status >= 400 else None)

        page.goto(link)  # of one run, which is the newest
        assert "token" not in page.url
        page.wait_for_selector("text=Loss of every training step")
        overview = page.url
        # A new step appears, while what a person has opened and chosen stays.
        page.eval_on_selector("figure details", "each => { each.open = true; window.mine = each; }")
        page.focus("figure details summary")
        last = page.locator("figure").first.locator("td").nth(2)
        before = last.inner_text()
        page.wait_for_function(
            "before => document.querySelector('figure td:nth-child(3)').textContent !== before", arg=before
        )
        assert page.evaluate("window.mine.open && window.mine.isConnected")
        assert page.evaluate("document.activeElement.closest('details') === window.mine")
        assert int(last.inner_text().replace(",", "")) > int(before.replace(",", ""))
        assert "not finished" in page.inner_text(".pulse")

        for tab in ("Layers", "Scalars", "Time", "Settings", "Run"):
            page.click(f".bar >> text='{tab}'")
            page.wait_for_selector(f".bar [aria-current] >> text='{tab}'")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("figure:not(:has(h3)), figure:not(:has(table))").count() == 0
        page.click(".bar >> text=Time")
        page.fill("input[name=steps]", "2")
        page.click("text='Profile'")
        page.wait_for_selector("output >> text=their operators will appear below")
        page.wait_for_selector("summary >> text=Operators")
        assert "their operators will appear below" in page.inner_text("output")
        page.click(".bar >> text=Layers")
        page.click("text=update ratio")
        page.wait_for_selector("text=Update size relative to the weight by layer")
        assert page.url.endswith("/layers?field=update.ratio")
        page.click(".bar .home")
        page.wait_for_selector("tr >> text=not finished")
        page.keyboard.press("/")
        page.keyboard.type("liv")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=1 run of 1")
        assert page.evaluate("document.documentElement.scrollWidth") <= width

        page.goto(overview)
        end.touch()
        assert training.wait(PATIENCE_S) == 0
        page.wait_for_function("document.querySelector('.pulse').textContent.startsWith('finished')")
        run = open_run(runs / "live")
        expected = headline(verdict(run))
        page.wait_for_function("words => document.querySelector('h1').textContent.endsWith(words)", arg=expected)
        steps, losses = run.scalars("loss")
        cells = page.locator("figure").first.locator("td").all_text_contents()
        assert cells[2] == f"{steps[-1]:,}"
        assert cells[4] == number(float(losses[-1]))
        context.close()
    assert said == []
