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

import numpy as np
import pytest

from dashboards import finding
from processes import NEVER, TRAIN, Processes
from waiting import PATIENCE_S, until
from watchglass.dashboard.acting import replay_rule
from watchglass.dashboard.run_pages import RUN_PAGES
from watchglass.diagnose import verdict
from watchglass.errors import InvalidValueError, WatchglassError
from watchglass.records import RuleStatus, Status, facts
from watchglass.run import open_run
from watchglass.testing import Batch, Step, build_run
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
        page.eval_on_selector("figure.lines details", "each => { each.open = true; window.mine = each; }")
        page.focus("figure.lines details summary")
        last = page.locator("figure.lines").first.locator("td").nth(2)
        before = last.inner_text()
        page.wait_for_function(
            "before => document.querySelector('figure.lines td:nth-child(3)').textContent !== before", arg=before
        )
        assert page.evaluate("window.mine.open && window.mine.isConnected")
        assert page.evaluate("document.activeElement.closest('details') === window.mine")
        assert int(last.inner_text().replace(",", "")) > int(before.replace(",", ""))
        assert "not finished" in page.inner_text(".pulse")

        for title in (*(each.title for each in RUN_PAGES.values()), "Run"):
            page.click(f".bar >> text='{title}'")
            page.wait_for_selector(f".bar [aria-current] >> text='{title}'")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, title
            assert page.locator("figure:not(:has(h3)), figure:not(:has(table))").count() == 0
        assert page.locator(".lane").count() >= 4
        page.click(".bar >> text=Time")
        page.fill("input[name=steps]", "2")
        page.click("text='Profile'")
        page.wait_for_selector("output >> text=their operators will appear below")
        page.wait_for_selector("summary >> text=Operators")
        assert "their operators will appear below" in page.inner_text("form output")
        page.click(".bar >> text=Layers")
        page.click("text=update ratio")
        page.wait_for_selector("text=Update size relative to the weight by layer")
        assert "field=update.ratio" in page.url
        page.click("summary >> text=Tensors of these rows")
        page.click("details a >> nth=0")
        page.wait_for_selector("h3 >> text=over time")
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
        cells = page.locator("figure.lines").first.locator("td").all_text_contents()
        assert cells[2] == f"{steps[-1]:,}"
        assert cells[4] == number(float(losses[-1]))

        # Keys move the cursor over the numbers, and dragging chooses steps, which are then in the address.
        page.focus(".lane .picture")
        page.keyboard.press("Home")
        page.wait_for_selector(f".cursor >> text=training step {steps[0]}")
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(f".cursor >> text=training step {page.evaluate(SECOND)}")
        assert page.locator(".cursor-lines i").count() >= 4
        frame = page.locator(".lane .picture").first
        frame.scroll_into_view_if_needed()
        place = page.locator(".lane svg.axes").first.bounding_box()
        page.mouse.move(place["x"] + 0.25 * place["width"], place["y"] + 40)
        page.mouse.down()
        page.mouse.move(place["x"] + 0.75 * place["width"], place["y"] + 40, steps=4)
        page.mouse.up()
        page.wait_for_url("**/*steps=*")
        first, stop = (int(each) for each in page.url.partition("steps=")[2].replace("%3A", ":").split(":"))
        assert 0.2 * steps[-1] < first < 0.3 * steps[-1]
        assert 0.7 * steps[-1] < stop < 0.8 * steps[-1]
        page.wait_for_selector(".lane .picture[tabindex]")
        page.keyboard.press("Escape")
        page.wait_for_function("!location.search.includes('steps=')")
        context.close()
    assert said == []


#: The second place to the right of the first one, of the first picture.
SECOND = "fetch(`${document.body.dataset.at}?x=-1&picture=0&move=2`).then(each => each.json()).then(each => each.text)"


def test_a_cursor_compares_runs_and_a_link_unfolds_a_module(processes: Processes, tmp_path: Path) -> None:
    for name, factor in (("one", 1.0), ("other", 2.0)):
        steps = [
            Step(
                {"loss": factor / (n + 1)},
                statistics={f"gradient/{layer}.weight": np.ones((2, 2)) for layer in ("a.b", "a.c", "d.b", "d.c")},
            )
            for n in range(20)
        ]
        build_run(tmp_path / "runs" / name, steps)
    with browsing() as browser:
        _, link = served(processes, tmp_path / "runs")
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(link)
        home = page.url.partition("/r/")[0].rstrip("/")
        page.goto(f"{home}/?sort=run")
        page.wait_for_selector("tr >> text=finished >> nth=1")
        runs = [each.get_attribute("data-key") for each in page.locator("tr[data-key]").all()]
        page.goto(f"{home}/compare?run={runs[0]}&run={runs[1]}")
        page.focus(".picture")
        page.keyboard.press("Home")
        page.wait_for_selector(".cursor >> text=one 1, other 2")
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(".cursor >> text=training step 3")
        page.wait_for_selector(".cursor >> text=one 0.25, other 0.5")
        assert page.locator(".cursor-lines i").count() == 1
        page.goto(f"{home}/r/{runs[0]}/layers?depth=1")
        page.click("summary >> text=Modules of these rows")
        page.click("a:text-is('unfold') >> nth=1")
        page.wait_for_url("**/*open=d*")
        assert page.locator("svg.axes text.row").count() == 3
        # Enter in a row of the grid still opens what the row is.
        page.focus(".picture")
        for key in ("Home", "ArrowDown", "Enter"):
            page.keyboard.press(key)
            page.wait_for_timeout(100)
        page.wait_for_url("**/tensor?name=gradient%2Fd.b.weight*")


def test_no_page_has_a_fault_for_who_does_not_see_it(processes: Processes, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    many_parts(tmp_path / "runs")
    with browsing() as browser:
        _, link = served(processes, tmp_path / "runs")
        for scheme, width in (("light", 1280), ("dark", 390)):
            # The policy of the pages forbids the script of the check, too.
            context = browser.new_context(
                bypass_csp=True, color_scheme=scheme, viewport={"width": width, "height": 900}
            )
            page = context.new_page()
            page.goto(link)
            home = page.url.partition("/r/")[0].rstrip("/")
            page.goto(f"{home}/?sort=run")
            page.wait_for_selector("tr >> text=finished >> nth=1")
            runs = [each.get_attribute("data-key") for each in page.locator("tr[data-key]").all()]
            paths = ["/", f"/compare?run={runs[0]}&run={runs[1]}", f"/r/{runs[1]}/tensor?name=fc.weight"]
            for path in (*paths, *(f"/r/{runs[1]}/{name}" for name in RUN_PAGES)):
                page.goto(f"{home}{path}".rstrip("/"))
                page.wait_for_function("!document.querySelector('main').textContent.includes('is being opened')")
                faults = axe.Axe().run(page).response["violations"]
                assert [(path, each["id"], each["nodes"][0]["html"]) for each in faults] == []
            context.close()


def many_parts(folder: Path) -> None:
    """Two runs with something on every page."""
    place = facts.FirstBadPlace(
        level="rerun", where="forward", module="fc", sentence="fc turned finite inputs into NaN"
    )
    names = ("fc.weight", "gradient/fc.weight", "update/fc.weight", "fc.output")
    for name in ("healthy", "sick"):
        steps: list[Step | Batch] = []
        for n in range(24):
            values = {each: np.full((4, 4), 1.0 + n, np.float32) for each in names}
            if name == "sick" and n > 20:
                values["fc.output"][0] = np.nan
            found = {"first_bad_module": place.to_data()} if name == "sick" and n == 21 else {}
            steps.append(Step({"loss": 2.0 / (n + 1), "learning_rate": 0.1}, statistics=values, facts=found))
            if n % 8 == 7:
                steps += [Step({"loss": 1.0}, mode="EVAL"), Batch(metrics={"cpu.utilization": [20.0] * 9}, seconds=9)]
        journal = [
            finding(),
            RuleStatus("ExplodingGradient", Status.ISSUES_FOUND),
            RuleStatus("A", Status.STARVED, "why"),
        ]
        build_run(folder / name, steps, workers=2, modules={"fc": "Linear"}, journal=journal)
