"""Targets that are given a whole run, some of whose files are hostile."""
# ruff: noqa: B023  (functions made in loops are called at once)

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import hostile, seeds
from fuzz.choices import Choices
from watchglass.errors import WatchglassError
from watchglass.records import Mode
from watchglass.run import Run, open_run


def _changed_run(choices: Choices, folder: Path, sound: Mapping[str, bytes]) -> None:
    """Write sound files below ``folder``, a few of them hostile."""
    files = dict(sound)
    paths = sorted(files)
    for _ in range(1 + choices.number(3)):
        path = choices.one_of(paths)
        how = choices.number(10)
        if how == 0:
            files.pop(path, None)
        elif how == 1:
            files[choices.one_of(paths)] = files.get(path, b"")
        elif how == 2 and "segments/" in path:
            # Another segment of the same number, a hole, an unannounced worker.
            head, _, name = path.rpartition("/")
            other = choices.one_of(["000000000001", "999999999998", head.rpartition("/")[2]])
            worker = choices.one_of([name, "worker_0-00000003", "worker_7-00000000", "worker_0-99999999"])
            files[f"{head.rpartition('/')[0]}/{other}/{worker}"] = files.get(path, b"")
        elif path in files:
            files[path] = hostile.changed_file(path, files[path], choices)
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    if choices.rarely():
        planted = folder / choices.one_of(
            [*paths, "journal/lease", "control/stop/0000/0000/request", "journal/00000001"]
        )
        with suppress(OSError):
            planted.unlink(missing_ok=True)
            planted.parent.mkdir(parents=True, exist_ok=True)
            where = choices.one_of(["/etc/passwd", "../outside/secret", ".", "/dev/zero", "fifo", "folder"])
            if where == "fifo":
                os.mkfifo(planted)
            elif where == "folder":
                planted.mkdir()
            else:
                planted.symlink_to(where)


def _own(path: Path) -> bytes | None:
    """What a file holds; None for what is none: the links that we plant ourselves lead anywhere."""
    return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None


def _fingerprint(folder: Path) -> dict[str, str]:
    """What is below a folder: content of files by path, targets of links."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            data = _own(path)
            kind = os.readlink(path) if path.is_symlink() else "no file"
            found[str(path.relative_to(folder))] = kind if data is None else hashlib.md5(data).hexdigest()
    return found


@contextmanager
def hostile_run(
    choices: Choices, sound: Mapping[str, bytes] | None = None, *, may_write: bool = False, beside: bool = False
) -> Iterator[Path]:
    """A run that is partly hostile. Nothing may change beside it, and in it only where that is asked for.

    With ``beside`` there is a sound run in the same folder, ``sound``.
    """
    around = seeds.scratch() / f"around-{os.getpid()}"
    shutil.rmtree(around, ignore_errors=True)
    (around / "outside").mkdir(parents=True)
    (around / "outside" / "secret").write_text("secret")
    _changed_run(choices, around / "run", seeds.files() if sound is None else sound)
    if beside:
        shutil.copytree(seeds.run(), around / "sound")
    before = _fingerprint(around)
    with suppress(WatchglassError):
        yield around / "run"
    after = _fingerprint(around)
    if may_write:
        before, after = ({p: c for p, c in found.items() if not p.startswith("run/")} for found in (before, after))
    assert after == before, "something was written that must not be"


def _each(*calls: Callable[[], Any]) -> None:
    for call in calls:
        with suppress(WatchglassError):
            call()


def run_api(choices: Choices) -> None:
    """open_run, and everything that a run can be asked."""
    with hostile_run(choices) as path, np.errstate(all="ignore"):
        run = open_run(path, attempt=choices.one_of([None, 0, 1]))
        ask(run)


def ask(run: Run) -> None:
    """Ask a run for everything."""
    _each(
        lambda: repr(run), lambda: run._repr_html_(), lambda: run.problems, lambda: run.lost, run.refresh,
        run.stretches, run.facts, lambda: list(map(str, run.seams)),
        lambda: (repr(run.journal), run.journal.findings, run.journal.statuses, run.journal.observations),
        lambda: run.statistics().to_arrow(), lambda: run.statistics(role="gradient").to_arrow(),
        *(lambda name=name: run.table(name).to_arrow() for name in ("scalars", "steps", "facts", "findings")),
    )  # fmt: skip
    for worker in [None, *run.workers[:3]]:
        for mode in Mode:
            _each(lambda: run.steps(mode, worker), lambda: run.scalars("loss", mode, worker))
        _each(
            lambda: repr(run.worker(worker)), lambda: run.worker(worker).lifecycle, lambda: run.worker(worker).seconds,
            lambda: run.worker(worker).tables, lambda: run.facts(worker=worker),
        )  # fmt: skip
        for step in (0, 1, 2):
            _each(lambda: run.step(step, worker=worker), lambda: repr(run.step(step, worker=worker)))
    for name in run.tensor_names()[:12]:
        tensor = run.tensor(name)
        _each(lambda: repr(tensor), lambda: tensor.info)
        for mode in (Mode.TRAIN, Mode.EVAL):
            _each(
                lambda: tensor.steps(mode), lambda: tensor.values(mode), lambda: tensor.histograms(mode),
                lambda: tensor.quantiles(0.5, mode), lambda: tensor.value(1, mode), lambda: tensor.histogram(1, mode),
                *(lambda which=which: tensor.reductions(which, mode) for which in ("std", "median", "abs_std", "mean")),
            )  # fmt: skip
    for problem in run.problems:
        assert problem.path
        assert problem.offset >= 0
        assert "\n" not in str(problem)


def run_replayed(choices: Choices) -> None:
    """replay, and the verdict on what it found."""
    from watchglass.diagnose import verdict
    from watchglass.evaluate import replay
    from watchglass.view import verdict_text

    with hostile_run(choices) as path, np.errstate(all="ignore"):
        found = replay(path)
        verdict_text(verdict(open_run(path), found))


def run_harvest(choices: Choices) -> None:
    """harvest: reads what a dead process left in rings, and appends it to the run and to nothing else."""
    from watchglass.record import harvest

    with hostile_run(choices, may_write=True) as path:
        _add_rings(path, choices)
        _each(lambda: harvest(open_run(path).store, by="fuzz"), lambda: ask(open_run(path)))


def _add_rings(path: Path, choices: Choices) -> None:
    """A ring file of a worker whose process is gone, and a claim that names it."""
    run_id = "0" * 32
    with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
        run_id = json.loads(_own(path / "run.json") or b"").get("run_id", "")
    label = json.dumps({"run": run_id, "attempt": 1, "worker": "worker_0"}).encode()
    head = b"WGENTR1\n" + len(label).to_bytes(4, "little") + label
    entry = hostile.ring_entry(choices)
    content = head.ljust(4096, b"\0") + entry
    ring = path / "attempts/0001/.x.entries"
    ring.parent.mkdir(parents=True, exist_ok=True)
    ring.write_bytes(hostile.changed_bytes(content, choices) if choices.rarely() else content)
    claim = json.loads(seeds.file("worker_0.json"))
    claim.update(rings=["attempts/0001/.x.entries"], pid=4_000_000, process_start=1, released=False)
    folder = path / "attempts/0001/workers"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("worker_0*"):
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    (folder / "worker_0.json").write_text(json.dumps(claim))


def run_command(choices: Choices) -> None:
    """The command line: status 0, 1 or 2, one line per error, nothing that steers the terminal."""
    from watchglass.cli import main

    verb = choices.one_of([["show"], ["show", "--tensors"], ["check"], ["check", "--format", "json"]])
    with hostile_run(choices) as path, np.errstate(all="ignore"):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main([*verb, str(path)])
        assert status in (0, 1, 2), status
        if "not expected" in err.getvalue():
            with redirect_stdout(out), redirect_stderr(err):
                main([*verb, "--debug", str(path)])
            raise AssertionError(err.getvalue()[-2000:])
        for text in (out.getvalue(), err.getvalue()):
            commands = [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
            assert not commands, f"a runner of CI would run {commands[:1]!r}"
            assert "##vso[" not in text
            steering = sorted({c for c in text if not c.isprintable() and c != "\n"})
            assert not steering, f"{steering!r} in the output of {verb}"
        if verb[-1] == "json" and out.getvalue():
            json.loads(out.getvalue(), parse_constant=_no_constant)


def run_among_many(choices: Choices) -> None:
    """check and show of a folder: whatever is wrong with one run, the sound one beside it is judged."""
    from watchglass.cli import main
    from watchglass.run import open_runs

    with hostile_run(choices, beside=True) as path, np.errstate(all="ignore"):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(["check", str(path.parent), "--format", "json"])
        assert status in (0, 1, 2), status
        judged = {Path(each["run"]).name: each["status"] for each in json.loads(out.getvalue())["runs"]}
        assert judged.get("sound", "unreadable") != "unreadable", (judged, err.getvalue()[-500:])
        assert "not expected" not in err.getvalue(), err.getvalue()[-2000:]
        rows = {row["name"]: row for row in open_runs(path.parent).to_arrow().to_pylist()}
        assert rows["sound"]["problem"] is None


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


#: How an address begins that holds the cells of a grid.
_CELLS = "data:image/png;base64,"


class _Page(HTMLParser):
    """Finds what a page would run, and where text of the run could be markup."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("img", "iframe", "object", "embed", "link", "base", "form"):
            self.bad.append(tag)
        self.bad += [name for name, _ in attrs if name.startswith("on") or name == "src"]
        self.bad += [value or "" for name, value in attrs if name == "href" and not (value or "").startswith(_CELLS)]


def run_report(choices: Choices) -> None:
    """The report: text of the run is text, whatever it holds."""
    from watchglass.diagnose import verdict
    from watchglass.evaluate import replay
    from watchglass.view import render_report

    with hostile_run(choices) as path, np.errstate(all="ignore"):
        run = open_run(path)
        text = render_report(run, verdict(run, replay(path)))
        page = _Page()
        page.feed(text)
        page.close()
        assert page.bad == []
        assert text.count("<script") == text.count("</script")
        text.encode()
