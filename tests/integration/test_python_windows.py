"""Windows of profiled Python functions: what is found, what is refused, and that no profiler stays on."""

from __future__ import annotations

import cProfile
import os
import pstats
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import watchglass
from calls import uncollected
from watchglass import ProfilerConfig, open_run
from watchglass.capture import Hook
from watchglass.capture.pytorch import PyTorchAdapter
from watchglass.capture.pytorch.profiling.python_windows import _of_tree
from watchglass.errors import InvalidValueError
from watchglass.records import CallNode, FunctionTotals, PythonWindow, WindowRefusal
from watchglass.run import PythonProfile, Run

pytestmark = pytest.mark.own_process

Between = Callable[[int], object]
#: From Python 3.12 on, cProfile profiles all threads of the process, and there is one such profiler.
MONITORING: Any = getattr(sys, "monitoring", None)


def slow_part(x: Tensor) -> Tensor:
    total = 0
    for number in range(200_000):  # without calls, whose time would be theirs
        total += number
    return x


class Burn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(20_000):  # its own time, so that it is among the functions of most time
            pass
        return slow_part(x)


def train(
    folder: Path, steps: int = 14, between: Between = lambda step: None, **profiler: Any
) -> tuple[Run, list[Tensor]]:
    """Trains; ``between`` is called before each step. Returns the run and the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), Burn(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Hook(run=folder, profiler=ProfilerConfig(**profiler), flight_recorder=False, strict=True) as hook:
        PyTorchAdapter(hook.port, discover=False).attach(model)
        for step in range(steps):
            between(step)
            optimizer.zero_grad()
            model(torch.randn(2, 4)).pow(2).mean().backward()
            optimizer.step()
    assert sys.getprofile() is None, "a profiler of ours is on"
    return open_run(folder), [parameter.detach().clone() for parameter in model.parameters()]


def refusals(run: Run) -> list[tuple[str, str]]:
    return [(fact.data["window"], fact.data["reason"]) for fact in run.facts(WindowRefusal.KIND)]


def test_calls_of_whole_steps_are_counted_with_their_place(tmp_path: Path) -> None:
    run, _ = train(tmp_path / "run", python_profile="5:8")
    (profile,) = run.python_profiles()
    assert (profile.profiler, profile.steps, profile.note, profile.tree) == ("cprofile", range(5, 8), "", ())
    row = profile["slow_part"]
    assert [each.self_s for each in profile.rows] == sorted((each.self_s for each in profile.rows), reverse=True)
    assert (row.file, row.line, row.calls) == (__file__, slow_part.__code__.co_firstlineno, 3)
    assert 0 < row.self_s <= row.total_s
    (forward,) = [each for each in profile.rows if each.file == __file__ and each.name.endswith("forward")]
    assert forward.total_s >= row.total_s
    assert any(not each.file and "pow" in each.name for each in profile.rows), "functions of extensions too"
    assert min(profile.cost.inside_s, profile.cost.outside_s, profile.cost.begin_s, profile.cost.end_s) > 0
    # Where the machine stands still, another function takes the most time.
    assert profile.to_pandas()["function" if "function" in profile.to_pandas() else "name"][0] == profile.rows[0].name
    assert repr(profile).endswith(f"of steps 5:8 of 'worker_0', most time in {profile.rows[0].name})")
    with pytest.raises(KeyError):
        profile["no_such"]
    found = run.sql("select function, calls, profiler from functions where function = 'slow_part'").to_arrow()
    assert found.to_pylist() == [{"function": "slow_part", "calls": 3, "profiler": "cprofile"}]


def test_pyinstrument_gives_the_tree_of_calls(tmp_path: Path) -> None:
    pytest.importorskip("pyinstrument")
    run, _ = train(tmp_path / "run", python_profile="4:12", python_profiler="pyinstrument")
    (profile,) = run.python_profiles()
    assert (profile.profiler, profile.steps) == ("pyinstrument", range(4, 12))
    row = profile["slow_part"]
    assert row.calls == 0
    assert row.self_s > 0.5 * 8 * 0.004, "of eight steps with 4 ms each"
    assert row.total_s <= profile.tree[0].total_s
    places = [place for place, node in enumerate(profile.tree) if profile.rows[node.function] is row]
    assert places
    depth = profile.tree[places[0]].depth
    above = next(node for node in reversed(profile.tree[: places[0]]) if node.depth == depth - 1)
    assert profile.rows[above.function].name.endswith("forward"), "its caller"


class Frame:
    """A frame as pyinstrument gives it."""

    def __init__(self, function: str, seconds: float, *children: Frame) -> None:
        self.function, self.time, self.children = function, seconds, children
        self.file_path, self.line_no = f"{function}.py", 1


def test_a_function_that_calls_itself_has_the_time_of_its_outermost_calls() -> None:
    inner = Frame("walk", 2.0, Frame("[self]", 0.5), Frame("leaf", 1.5))
    root = Frame("main", 10.0, Frame("walk", 6.0, inner), Frame("walk", 3.0), Frame("leaf", 0.01))
    functions, tree = _of_tree(root)
    seconds = {each.name: (each.self_s, each.total_s) for each in functions}
    assert seconds == {
        "main": (pytest.approx(0.99), 10.0), "walk": (pytest.approx(7.5), 9.0), "leaf": (1.51, 1.51),
    }  # fmt: skip
    names = [(functions[node.function].name, node.depth, node.total_s) for node in tree]
    assert names == [("main", 0, 10.0), ("walk", 1, 6.0), ("walk", 2, 2.0), ("leaf", 3, 1.5), ("walk", 1, 3.0)]


def test_pyinstrument_gives_no_file_of_a_function_that_is_not_written_in_python() -> None:
    built_in = Frame("sleep", 1.0)
    built_in.file_path, built_in.line_no = "<built-in>", 0
    functions, _ = _of_tree(Frame("main", 2.0, built_in))
    assert [(each.name, each.file, each.line) for each in functions] == [("main", "main.py", 1), ("sleep", "", 0)]


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_a_window_changes_no_number(tmp_path: Path, profiler: str) -> None:
    pytest.importorskip(profiler if profiler == "pyinstrument" else "cProfile")
    _, profiled = train(tmp_path / "run", python_profile="3:6", python_profiler=profiler)
    _, plain = train(tmp_path / "plain")
    assert all(map(torch.equal, profiled, plain))


@pytest.mark.parametrize(
    ("functions", "operators"), [(range(5, 8), range(8, 9)), (range(8, 9), range(5, 8)), (range(6, 7), range(7, 8))]
)
def test_functions_and_operators_are_profiled_in_steps_that_follow_one_another(
    tmp_path: Path, functions: range, operators: range
) -> None:
    windows = [f"{each.start}:{each.stop}" for each in (functions, operators)]
    run, _ = train(tmp_path / "run", python_profile=windows[0], profile_steps=windows[1])
    assert [each.steps for each in run.python_profiles()] == [functions]
    assert [each.steps for each in run.operators()] == [operators]
    assert refusals(run) == []


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets seconds pass, of which windows know no others."""
    now_ns = 1

    def pass_seconds(seconds: float) -> None:
        nonlocal now_ns
        now_ns += int(seconds * 1e9)

    monkeypatch.setattr("watchglass.capture.profiling.step_windows.monotonic_ns", lambda: now_ns)
    return pass_seconds


def test_of_windows_whose_overlap_shows_only_in_the_run_the_later_one_is_refused(
    tmp_path: Path, passes: Callable[[float], None]
) -> None:
    run, _ = train(tmp_path / "run", 14, python_profile="5:8", profile_steps="0s:300s")
    assert [each.steps.start for each in run.operators()] == [1]
    assert refusals(run) == [("5:8", "it would overlap the window 0s:300s of PyTorch's profiler")]
    other, _ = train(
        tmp_path / "other", 14, lambda step: passes(0.5 * (step == 4)), python_profile="2:8",
        profile_steps="0.3s:0.9s",
    )  # fmt: skip
    assert [each.steps for each in other.python_profiles()] == [range(2, 8)]
    assert refusals(other) == [("0.3s:0.9s", "it would overlap the window 2:8 of cProfile")]


@pytest.mark.parametrize("setting", ["profile_steps", "python_profile"])
def test_a_window_of_seconds_has_the_steps_that_begin_in_it(
    tmp_path: Path, setting: str, passes: Callable[[float], None]
) -> None:
    def between(step: int) -> None:
        passes({4: 0.25, 8: 0.75}.get(step, 0.0))

    run, _ = train(tmp_path / "run", 14, between, **{setting: ("0.2s:0.9s", "300s:301s", "0.91s:0.92s")})
    windows = run.operators() if setting == "profile_steps" else run.python_profiles()
    (window,) = windows
    # Between steps 3 and 4 the script sleeps, so the first boundary in the window is the one after step 4.
    assert (window.steps, window.note) == (range(5, 9), "")
    assert refusals(run) == [
        ("0.91s:0.92s", "no step began in this time, or another window was open"),
        ("300s:301s", "the training run ended before the window began"),
    ]


def test_a_script_that_profiles_itself_keeps_its_profiler(tmp_path: Path) -> None:
    own = cProfile.Profile()

    def between(step: int) -> None:
        if step == 3:
            own.enable()
        if step == 9:
            own.disable()

    run, _ = train(tmp_path / "run", 14, between, python_profile=("5:7", "10:12"))
    assert [each.steps for each in run.python_profiles()] == [range(10, 12)]
    assert refusals(run) == [("5:7", f"the script profiles itself, by {'cProfile' if MONITORING else 'Profile'}")]
    assert calls_of(own) == 6


@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_a_window_ends_where_the_script_begins_to_profile_itself(tmp_path: Path, profiler: str) -> None:
    pytest.importorskip(profiler if profiler == "pyinstrument" else "cProfile")
    own, enable = cProfile.Profile(), cProfile.Profile.enable

    def between(step: int) -> None:
        if step == 7:
            assert cProfile.Profile.enable is not enable
            own.enable()
        if step == 11:
            own.disable()

    run, _ = train(tmp_path / "run", 14, between, python_profile="4:13", python_profiler=profiler)
    (profile,) = run.python_profiles()
    assert profile.steps == range(4, 7)
    assert profile.note.startswith("the script began to use ")
    assert calls_of(own) == 4
    assert cProfile.Profile.enable is enable


class Elsewhere:
    """A thread of the script that does what it is asked for."""

    def __enter__(self) -> Elsewhere:
        self._pool = ThreadPoolExecutor(1)
        self._pool.submit(int).result()
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def __call__(self, function: Callable[[], object]) -> Any:
        return self._pool.submit(function).result()


def elsewhere_part() -> None:
    for _ in range(3):
        len("")


def test_functions_of_other_threads_are_not_counted(tmp_path: Path) -> None:
    over = threading.Event()

    def part() -> int:
        calls = 0
        while not over.wait(0.0001):
            elsewhere_part()
            calls += 1
        return calls

    with ThreadPoolExecutor(1) as pool:
        calls = pool.submit(part)
        run, _ = train(tmp_path / "run", python_profile="4:10")
        over.set()
        assert calls.result() > 10
    (profile,) = run.python_profiles()
    rows = {each.name: each for each in profile.rows}
    assert rows["slow_part"].calls == 6
    assert not [name for name in rows if "elsewhere" in name or "monitoring" in name]
    seconds = profile.cost.inside_s * 6
    assert sum(each.self_s for each in profile.rows) < 1.5 * seconds, "times are those of one thread"


def test_a_script_may_profile_another_thread_while_a_window_is_open(tmp_path: Path) -> None:
    own = cProfile.Profile()
    with Elsewhere() as elsewhere:

        def between(step: int) -> None:
            if step == 6:
                elsewhere(lambda: sys.setprofile(None))  # concerns that thread alone
            if step == 7:
                elsewhere(own.enable)
                elsewhere(elsewhere_part)
            if step == 9:
                elsewhere(own.disable)

        run, _ = train(tmp_path / "run", 14, between, python_profile=("4:8", "10:12"))
    ended = "the script began to use cProfile itself"
    assert [(each.steps, each.note) for each in run.python_profiles()] == [
        (range(4, 7), ended) if MONITORING else (range(4, 8), ""), (range(10, 12), ""),
    ]  # fmt: skip
    stats: dict[Any, Any] = pstats.Stats(own).stats  # type: ignore[attr-defined]
    (calls,) = [found[0] for (file, _, name), found in stats.items() if (file, name) == (__file__, "elsewhere_part")]
    assert calls == 1


@pytest.mark.skipif(MONITORING is None, reason="this Python has no sys.monitoring")
def test_a_window_ends_where_the_script_takes_the_place_of_the_profiler(tmp_path: Path) -> None:
    starts: list[object] = []

    def between(step: int) -> None:
        if step == 5:
            MONITORING.use_tool_id(MONITORING.COVERAGE_ID, "coverage of the script")
            MONITORING.free_tool_id(MONITORING.COVERAGE_ID)
        if step == 7:
            MONITORING.use_tool_id(MONITORING.PROFILER_ID, "profiler of the script")
            MONITORING.register_callback(
                MONITORING.PROFILER_ID, MONITORING.events.PY_START, lambda *at: starts.append(at)
            )
            MONITORING.set_events(MONITORING.PROFILER_ID, MONITORING.events.PY_START)
        if step == 10:
            assert starts, "its events are its own"
            assert MONITORING.get_tool(MONITORING.PROFILER_ID) == "profiler of the script"
            MONITORING.set_events(MONITORING.PROFILER_ID, 0)
            MONITORING.register_callback(MONITORING.PROFILER_ID, MONITORING.events.PY_START, None)
            MONITORING.free_tool_id(MONITORING.PROFILER_ID)

    use = MONITORING.use_tool_id
    run, _ = train(tmp_path / "run", 14, between, python_profile=("4:9", "11:13"))
    note = "the script began to use cProfile itself"
    assert [(each.steps, each.note) for each in run.python_profiles()] == [(range(4, 7), note), (range(11, 13), "")]
    assert MONITORING.get_tool(MONITORING.PROFILER_ID) is None
    assert MONITORING.use_tool_id is use


def profiles() -> bool:
    tool = MONITORING.get_tool(MONITORING.PROFILER_ID) if MONITORING else None
    return tool is not None or sys.getprofile() is not None or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]


def child_profiles() -> bool:
    """Whether a process that is forked now profiles."""
    with uncollected():  # in the child, an object of another test may miss its threads
        child = os.fork()
        if child == 0:
            os._exit(profiles())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (False, True), f"the child ended with status {status}"
    return bool(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument", "operators"])
def test_a_forked_process_does_not_go_on_profiling(tmp_path: Path, profiler: str) -> None:
    found: list[tuple[bool, bool]] = []

    def between(step: int) -> None:
        if step == 7:
            found.append((profiles(), child_profiles()))

    window = {"python_profile": "4:12", "python_profiler": profiler}
    run, _ = train(tmp_path / "run", 14, between, **({"profile_steps": "4:12"} if profiler == "operators" else window))
    assert found == [(True, False)]
    (ended,) = run.operators() if profiler == "operators" else run.python_profiles()
    expected = (range(4, 7), "the script forked a process") if profiler == "operators" else (range(4, 12), "")
    assert (ended.steps, ended.note) == expected


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("window", "steps"),
    [("4:12", range(5, 12)), ("4:5", None), ("0s:60s", range(2, 14))],
    ids=["steps", "one", "seconds"],
)
def test_a_window_of_operators_whose_first_step_forks_begins_a_step_later(
    tmp_path: Path, window: str, steps: range | None
) -> None:
    forked: list[bool] = []

    def between(step: int) -> None:
        if step == (1 if window.endswith("s") else 4):
            forked.append(child_profiles())

    run, _ = train(tmp_path / "run", 14, between, profile_steps=window)
    assert forked == [False]
    assert [each.steps for each in run.operators()] == ([] if steps is None else [steps])
    assert refusals(run) == ([(window, "the script forked a process")] if steps is None else [])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_of_another_thread_does_not_profile(tmp_path: Path) -> None:
    found: list[bool] = []
    with Elsewhere() as elsewhere:
        run, _ = train(
            tmp_path / "run", 14, lambda step: found.append(elsewhere(child_profiles)) if step == 7 else None,
            python_profile="4:12",
        )  # fmt: skip
    assert found == [False]
    (profile,) = run.python_profiles()
    assert profile.steps == range(4, 12)


def test_a_profile_function_that_replaces_ours_unseen_stays(tmp_path: Path) -> None:
    seen: list[str] = []
    replace_unseen = sys.setprofile

    def between(step: int) -> None:
        if step == 6:
            replace_unseen(lambda frame, event, argument: seen.append(event))
        if step == 12:
            assert sys.getprofile() is not None, "closing our window has switched off the script's profiler"
            replace_unseen(None)

    run, _ = train(tmp_path / "run", 14, between, python_profile="4:8")
    assert [each.steps for each in run.python_profiles()] == [range(4, 8)]
    assert seen


def calls_of(profiler: cProfile.Profile) -> int:
    stats: dict[Any, Any] = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    (calls,) = [found[0] for (file, _, name), found in stats.items() if (file, name) == (__file__, "slow_part")]
    return int(calls)


def test_a_profiler_that_is_not_installed_is_refused_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("watchglass.config.profiler.find_spec", lambda name: None)
    with pytest.raises(InvalidValueError, match=r"pip install 'watchglass\[pyinstrument\]'"):
        ProfilerConfig(python_profile="5:7", python_profiler="pyinstrument")
    assert ProfilerConfig(python_profiler="pyinstrument").python_windows == ()


def test_damaged_windows_are_left_out() -> None:
    functions = (FunctionTotals("f", "a.py", 3, 1, 0.1, 0.2), FunctionTotals("x" * 300, "", 0, 1, 0.0, 0.1))
    window = PythonWindow("pyinstrument", 1, 2, functions, (CallNode(0, 0, 0.2), CallNode(1, 1, 0.1)))
    fact = window.to_fact("pyinstrument")
    read = fact.read(PythonWindow)
    assert read is not None
    assert (read.functions[0], read.tree, len(read.functions[1].name)) == (functions[0], window.tree, 200)
    for key, value in (
        ("functions", 3), ("functions", {"name": [1]}), ("first_step", "1"), ("end_step", 1), ("profiler", "perf"),
        ("tree", {"function": [2], "depth": [0], "total_s": [0.1]}),
    ):  # fmt: skip
        assert replace(fact, data={**fact.data, key: value}).read(PythonWindow) is None
    for key, value in (("tree", None), ("tree", {"depth": [0]}), ("cost", None)):
        rest = replace(fact, data={**fact.data, key: value}).read(PythonWindow)
        assert rest is not None, "what else it has is shown"
        assert rest.functions == read.functions


def test_only_the_functions_of_most_time_are_kept_and_the_tree_without_the_others() -> None:
    functions = tuple(FunctionTotals(f"f{n}", "", 0, 1, 1.0 / (n + 1), 1.0) for n in range(600))
    tree = (CallNode(0, 0, 1.0), CallNode(550, 1, 0.5), CallNode(1, 2, 0.4), CallNode(2, 1, 0.3))
    read = PythonWindow("pyinstrument", 1, 2, functions, tree).to_fact("test").read(PythonWindow)
    assert read is not None
    assert (len(read.functions), read.omitted, read.tree) == (500, 100, (tree[0], tree[3]))


def test_functions_that_only_call_others_are_kept_and_so_is_their_tree() -> None:
    busy = [FunctionTotals(f"f{n}", "", 0, 1, 0.001, 0.001) for n in range(600)]
    callers = [FunctionTotals("main", "", 0, 1, 0.0, 0.6), FunctionTotals("forward", "", 0, 1, 0.0, 0.5)]
    tree = (CallNode(600, 0, 0.6), CallNode(601, 1, 0.5), CallNode(7, 2, 0.001), CallNode(599, 1, 0.001))
    read = PythonWindow("pyinstrument", 1, 2, (*busy, *callers), tree).to_fact("test").read(PythonWindow)
    assert read is not None
    assert (len(read.functions), read.omitted) == (500, 102)
    assert [each.self_s for each in read.functions] == [0.001] * 498 + [0.0] * 2, "longest first"
    kept = [(read.functions[node.function].name, node.depth) for node in read.tree]
    assert kept == [("main", 0), ("forward", 1), ("f7", 2)]


def test_both_reports_and_show_have_the_functions(tmp_path: Path) -> None:
    from watchglass.view import function_rows, functions_sentence

    row = FunctionTotals("slow<part>", "/home/me/lib/parts.py", 12, 10, 0.06, 0.08)
    profile = PythonProfile("worker_0", "cprofile", range(5, 10), (row,), (), watchglass.records.WindowCost(), 0, "")
    assert function_rows(profile) == [("slow<part>", "lib/parts.py:12", "2", "12 ms", "100 %", "16 ms")]
    assert functions_sentence(profile) == "steps 5:10, cprofile: 100 % slow<part>"
