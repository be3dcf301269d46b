"""The settings of the profiler: in code, in a file and on the command line, and how these are merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import watchglass
from watchglass.cli.capture_options import capture_config, given_settings
from watchglass.config import ProfilerConfig, SessionConfig
from watchglass.errors import InvalidValueError


@pytest.mark.parametrize("enabled", [True, False, None])
def test_a_truth_is_its_enabled_alone(enabled: bool | None) -> None:
    config = SessionConfig("run", profiler=enabled)  # type: ignore[arg-type]
    assert config.profiler == ProfilerConfig(enabled=enabled)
    assert config.records_phases is bool(enabled)
    assert SessionConfig("run", attempt=0, profiler=enabled).records_phases is (enabled is not False)  # type: ignore[arg-type]


def test_the_settings_reach_a_training_process() -> None:
    given = watchglass.ProfilerConfig(sample_interval_s=1, profile_steps="5:7,60s:65s", python_profile=("2:3",))
    config = SessionConfig("/run", attempt=0, profiler=given)
    assert given.profile_steps == ("5:7", "60s:65s")
    assert SessionConfig.from_env(config.to_env()) == config
    assert SessionConfig("run").settings().keys() == {"collections"}, "defaults are not passed on"


def options(**given: Any) -> dict[str, Any]:
    return given_settings(collections=None, save_raw=None, overhead_budget=None, profiler=given)


def test_settings_of_file_script_and_command_line_are_merged_one_by_one(in_tmp_path: Path) -> None:
    file = in_tmp_path / "watchglass.toml"
    file.write_text('[profiler]\nenabled = false\nsample_interval_s = 2\nprofile_steps = "5:7"\n')
    _, config = capture_config(str(file), options(sample_interval_s="1"))
    assert config.profiler == ProfilerConfig(enabled=False, sample_interval_s=1, profile_steps=("5:7",))
    scripted = config.with_settings({"profiler": ProfilerConfig(sample_interval_s=5, module_times=True)})
    assert scripted.profiler == ProfilerConfig(
        enabled=False, sample_interval_s=1, profile_steps=("5:7",), module_times=True
    )
    file.write_text("profiler = false\n")
    _, config = capture_config(str(file), options(module_times=True))
    assert config.profiler == ProfilerConfig(enabled=False, module_times=True)


@pytest.mark.parametrize(
    ("toml", "given", "message"),
    [
        ("", {"sample_interval_s": "0.05"}, r"--sample-interval must be >= 0.1 and <= 60 but got '0.05'"),
        ("", {"python_profiler": "perf"}, r"--python-profiler must be one of cprofile, pyinstrument but got 'perf'"),
        ("", {"python_profile": "0:5"}, r"--python-profile must begin at step 1 or later"),
        (
            "[profiler]\npython_profile = ['12:18']\n",
            {"profile_steps": "10:15"},
            r"python.profile must not overlap the windows of operators, because each profiler would time the other, "
            r"but got 12:18, and 10:15 for operators; use 15:21$",
        ),
        ("[profiler]\nsample_interval_s = 90\n", {}, r"watchglass.toml: profiler.sample_interval_s must be >= 0.1"),
        ("[profiler]\ninterval = 1\n", {}, r"watchglass.toml: profiler.interval is unknown"),
        ("profiler = 3\n", {}, r"watchglass.toml: profiler must be a table of settings but got 3$"),
        ("sample_interval_s = 1\n", {}, r"sample_interval_s is unknown"),
    ],
)
def test_invalid_settings_are_spelled_as_their_source_does(
    in_tmp_path: Path, toml: str, given: dict[str, str], message: str
) -> None:
    file = in_tmp_path / "watchglass.toml"
    file.write_text(toml)
    with pytest.raises(InvalidValueError, match=message) as refused:
        capture_config(str(file), options(**given))
    assert "\n" not in str(refused.value)
