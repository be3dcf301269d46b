"""Pages show what the Run API says, escape what runs are named, and say what is missing."""

from __future__ import annotations

import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from dashboards import HOSTILE
from watchglass.dashboard.listing import Listing, chosen
from watchglass.dashboard.run_pages import RUN_PAGES
from watchglass.dashboard.runs_page import runs_page
from watchglass.dashboard.shell import Links
from watchglass.diagnose import RunSummary, verdict
from watchglass.run import ListedRun, open_run
from watchglass.testing import Step, build_run
from watchglass.view import LAYER_FIELDS, colour_of, headline, number

PAGES = [*RUN_PAGES, *(f"layers?field={field}" for field in LAYER_FIELDS)]


class Page(HTMLParser):
    """The elements, handlers and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: list[str] = []
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names += [name for name, _ in attrs]
        self.loaded += [
            str(value) for name, value in attrs if name in ("src", "action") or (name, tag) == ("href", "link")
        ]
        self.links += [str(value) for name, value in attrs if (name, tag) == ("href", "a")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def get(client: TestClient, path: str) -> Page:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Page(answer.text)


@pytest.mark.parametrize("path", ["", *PAGES])
def test_hostile_names_are_text_and_nothing_is_inline(
    client: TestClient, identifiers: dict[str, str], path: str
) -> None:
    address = f"/r/{identifiers[HOSTILE]}/{path}".rstrip("/") if path else "/"
    page = get(client, address)
    assert "img" not in page.tags
    assert not [name for name in page.names if name.startswith("on") or name == "style"]
    assert "style" not in page.tags
    assert page.tags.count("script") == 2
    assert page.tags.count("h1") == 1
    assert all(each.startswith(("/static/", "data:,")) or each in ("/", "/compare") for each in page.loaded)


def test_the_page_of_a_run_says_what_the_run_api_says(
    client: TestClient, identifiers: dict[str, str], folder: Path
) -> None:
    run = open_run(folder / HOSTILE)
    expected = verdict(run)
    page = get(client, f"/r/{identifiers[HOSTILE]}")
    assert headline(expected) in page.text
    assert f"{len(run.steps()):,} training steps" in page.text
    assert HOSTILE in page.text
    losses = run.scalars("loss")[1]
    for value in (losses[0], losses[-1], losses.min(), losses.max()):
        assert number(float(value)) in page.words
    assert "1 rule could not be evaluated" in page.text
    assert "rules evaluated to the end" in page.text
    # The verdict comes before the charts.
    assert page.text.index(headline(expected)) < page.text.index("Figures")


@pytest.mark.parametrize("field", LAYER_FIELDS)
def test_layers_show_the_statistics_of_the_run_or_how_to_record_them(
    client: TestClient, identifiers: dict[str, str], folder: Path, field: str
) -> None:
    page = get(client, f"/r/{identifiers[HOSTILE]}/layers?field={field}")
    if field in ("gradient.l2", "weight.l2"):
        name = f"{'gradient/' if field.startswith('gradient') else ''}{HOSTILE}.weight"
        norm = open_run(folder / HOSTILE).tensor(name).reductions("l2")[1][-1]
        assert number(math.log10(norm)) in page.words
    elif field == "output.inactive":
        missing = "Dead units were not recorded; a model without ReLU has none. watchglass run --collection relu_output"
        assert missing in page.text
    else:
        assert re.search(
            r"(Outputs|Updates) were not recorded\. watchglass run --collection (outputs|updates)", page.text
        )


def test_a_run_has_the_same_colour_in_the_table_and_among_others(
    client: TestClient, identifiers: dict[str, str], folder: Path
) -> None:
    colours = {name: colour_of(open_run(folder / name).manifest.run_id) for name in (HOSTILE, "healthy")}
    table = client.get("/").text
    for name, colour in colours.items():
        (row,) = re.findall(rf'<tr data-key="{identifiers[name]}">.*?</tr>', table)
        assert f'<path stroke="{colour}" d="M' in row
    page = client.get(f"/compare?run={identifiers[HOSTILE]}&run={identifiers['healthy']}").text
    assert f'stroke="{colours[HOSTILE]}"' in page


def test_layers_are_joined_by_modules_which_links_open(client: TestClient, listing: Listing, folder: Path) -> None:
    names = ("blocks.0.a", "blocks.0.b", "blocks.1.a", "head")
    step = Step({"loss": 1.0}, statistics={f"gradient/{name}.weight": np.ones((2, 2)) for name in names})
    build_run(folder / "tree", [step] * 3)
    listing.look()
    (run,) = (row.identifier for row in listing.rows if row.listed.name == "tree")
    whole = get(client, f"/r/{run}/layers?scale=relative&steps=1:3")
    assert "modules at depth 2" in whole.text
    joined = get(client, f"/r/{run}/layers?scale=relative&steps=1:3&depth=2")
    assert "a cell is that of the tensor farthest from its own median" in joined.text
    inside = next(link for link in joined.links if "within=" in link)
    assert inside == f"/r/{run}/layers?field=gradient.l2&steps=1%3A3&scale=relative&within=blocks.0"
    # A module of one tensor leads to that.
    assert f"/r/{run}/tensor?name=gradient%2Fhead.weight" in joined.links
    opened = get(client, inside)
    assert "blocks.0.b.weight" in opened.text
    assert "blocks.1.a.weight" not in opened.text
    assert client.get(f"/r/{run}/layers?within=c").status_code == 404
    rows = client.get(f"/at/{run}/layers?x=1&picture=0&depth=2").json()["values"][0]
    assert [name for name, _ in rows] == ["blocks.0", "blocks.1.a.weight", "head.weight"]


def test_modules_are_unfolded_one_by_one_by_links(client: TestClient, listing: Listing, folder: Path) -> None:
    names = ("blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b", "he,ad&.a", "he,ad&.b")
    step = Step({"loss": 1.0}, statistics={f"gradient/{name}.weight": np.ones((2, 2)) for name in names})
    build_run(folder / "tree", [step] * 3)
    listing.look()
    (run,) = (row.identifier for row in listing.rows if row.listed.name == "tree")

    def rows(address: str) -> list[str]:
        answer = client.get(address.replace("/r/", "/at/", 1) + "&x=1&picture=0").json()
        return [name for name, _ in answer["values"][0]]

    joined = f"/r/{run}/layers?depth=1&steps=1:3"
    assert rows(joined) == ["blocks", "he,ad&"]
    blocks, head = [link for link in get(client, joined).links if "open=" in link and "field=gradient.l2" in link][-2:]
    assert rows(blocks) == ["blocks.0", "blocks.1", "he,ad&"]
    assert rows(head) == ["blocks", "he,ad&.a.weight", "he,ad&.b.weight"]
    first = next(link for link in get(client, blocks).links if "open=blocks.0" in link)
    assert "steps=1%3A3" in first
    assert rows(first) == ["blocks.0.a.weight", "blocks.0.b.weight", "blocks.1", "he,ad&"]
    # Other choices keep what is unfolded; folding a module folds what is in it.
    page = get(client, first)
    assert "fold blocks.0" in page.text
    assert all("open=blocks&open=blocks.0" in link for link in page.links if "scale=relative" in link)
    assert any("depth=1" in link and "open=" not in link for link in page.links)


def test_scalars_are_those_that_the_script_saved(client: TestClient, identifiers: dict[str, str]) -> None:
    page = get(client, f"/r/{identifiers[HOSTILE]}/scalars")
    assert f"{HOSTILE}/reward" in page.text
    assert "19" in page.words


def test_what_is_not_there_is_said_in_a_line(client: TestClient, identifiers: dict[str, str]) -> None:
    run = identifiers["healthy"]
    for path in ("/r/0000000000000000", f"/r/{run}/tensors", "/?sort=price", "/events?run=x", "/nothing"):
        answer = client.get(path)
        assert (answer.status_code, answer.text.count("\n")) == (404, 1), path
    answer = client.get(f"/r/{run}/layers?field=colour")
    assert answer.status_code == 404
    assert "field must be one of gradient.l2, " in answer.text
    answer = client.get(f"/r/{identifiers['torn']}")
    assert answer.status_code == 503
    assert "run.json" in answer.text


def test_a_run_that_was_removed_is_said_to_be_missing(
    client: TestClient, identifiers: dict[str, str], folder: Path
) -> None:
    shutil.rmtree(folder / "healthy")
    assert client.get(f"/r/{identifiers['healthy']}").status_code == 503


def test_the_report_is_a_file(client: TestClient, identifiers: dict[str, str]) -> None:
    answer = client.get(f"/r/{identifiers['healthy']}/report.html")
    assert answer.headers["content-disposition"] == f'attachment; filename="report-{identifiers["healthy"]}.html"'
    assert "no issues found" in answer.text


def test_assets_are_kept_for_ever_by_a_name_that_changes_with_them(client: TestClient) -> None:
    for name, kind in (
        ("dashboard.css", "text/css"),
        ("dashboard.js", "text/javascript"),
        ("pictures.js", "text/javascript"),
    ):
        answer = client.get(Links().asset(name))
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/dashboard.js").status_code == 404


def test_the_newest_run_has_an_address_of_its_own(client: TestClient, listing: Listing) -> None:
    assert client.get("/latest").headers["location"] == f"/r/{listing.rows[0].identifier}"


# The table of runs


def test_the_table_says_of_each_run_what_its_verdict_says(client: TestClient, folder: Path) -> None:
    page = get(client, "/")
    for name in (HOSTILE, "healthy"):
        assert headline(verdict(open_run(folder / name))) in page.text
    assert "run.json" in page.text  # why the third cannot be read
    assert "3 runs" in page.text


def rows(count: int) -> list[RunSummary]:
    return [
        RunSummary(ListedRun(f"r{n}", f"/runs/r{n}", n + 1), read=True, state="finished", train_steps=n)
        for n in range(count)
    ]


def test_thousands_of_rows_have_pages_of_a_hundred() -> None:
    text = runs_page(rows(2050), Links(), page=21, sort="-started")
    assert text.count("<tr data-key") == 50
    assert "page 21 of 21" in text
    assert "page=20" in text
    assert "page=22" not in text
    assert runs_page(rows(2050), Links(), page=999) == runs_page(rows(2050), Links(), page=21)


def test_a_search_has_all_words_and_stays_while_sorting() -> None:
    text = runs_page(rows(30), Links(), query="R2 finished", sort="-steps")
    assert "11 runs of 30" in text
    assert text.count("<tr data-key") == 11
    assert 'href="/?q=R2+finished&amp;sort=loss"' in text
    assert "No run has the words &lt;b&gt;" in runs_page(rows(3), Links(), query="<b>")


@pytest.mark.parametrize(("sort", "first"), [("started", "r4"), ("-started", "r0"), ("steps", "r4"), ("run", "r0")])
def test_rows_are_sorted_by_a_column(sort: str, first: str) -> None:
    assert chosen(rows(5), "", sort)[0].listed.name == first


def test_a_single_run_is_a_table_of_one(folder: Path) -> None:
    listing = Listing(str(folder / "healthy"))
    (row,) = listing.rows
    assert row.listed.name == "healthy"
    assert listing[row.identifier] is row
