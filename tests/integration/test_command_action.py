"""Command: a program that gets each argument as it is meant, and never a shell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from watchglass.actions import DeliveryOutcome, checked_actions, parse_action
from watchglass.config import ActionSpec, environment
from watchglass.errors import InvalidValueError, WatchglassError
from watchglass.testing import delivered, example_event

SAVE = """
import json, os, sys
given = {"arguments": sys.argv[2:], "event": json.load(sys.stdin), "environ": dict(os.environ)}
json.dump(given, open(sys.argv[1], "w"))
"""


def call(*words: str, environ: dict[str, str] | None = None, **changed: Any) -> DeliveryOutcome:
    return delivered(
        ActionSpec("Command", {"command": list(words)}),
        example_event(**changed),
        environ={**os.environ, **(environ or {})},
    )


def test_each_template_fills_one_argument(tmp_path: Path) -> None:
    nasty = 'a b\'; rm -rf "$HOME" `id` {rule} $(id) \n*'
    outcome = call(
        sys.executable, "-c", SAVE, f"{tmp_path}/given", "{message}", "{rule}:{step}", "{{rule}}", "$HOME", "{env.JOB}",
        "{.items[0]}", environ={"JOB": "7 8", "WATCHGLASS": "0"}, message=nasty,
    )  # fmt: skip
    assert outcome.done, outcome.reason
    given = json.loads((tmp_path / "given").read_text())
    assert given["arguments"] == [nasty, "ExplodingTensor:7", "{rule}", "$HOME", "7 8", "{.items[0]}"]
    assert given["event"]["finding"]["id"] == "abcdefabcdef"
    assert given["environ"]["WATCHGLASS_EVENT_RULE"] == "ExplodingTensor"
    assert given["environ"]["WATCHGLASS_EVENT_FINDING_ID"] == "abcdefabcdef"
    assert "WATCHGLASS" not in given["environ"], "a training run that the program starts may be watched"


def test_a_program_has_the_environment_of_its_user_and_not_that_of_an_evaluator(tmp_path: Path) -> None:
    """A script finds modules beside it, and a training run has all cores."""
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "save.py").write_text("import beside\n" + SAVE)
    environ = environment.for_companion({**os.environ, "MKL_NUM_THREADS": "3", "PYTHONSAFEPATH": "1"})
    spec = ActionSpec("Command", {"command": [sys.executable, f"{tmp_path}/save.py", f"{tmp_path}/given"]})
    outcome = delivered(spec, example_event(), environ=environ)
    assert outcome.done, outcome.reason
    given = json.loads((tmp_path / "given").read_text())["environ"]
    assert given["MKL_NUM_THREADS"] == "3"
    assert not {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "WATCHGLASS", "PYTHONSAFEPATH"} & set(given)


def test_one_text_is_split_at_spaces_before_it_is_filled(tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    text = f"Command:command={sys.executable} {tmp_path}/save.py {tmp_path}/given 'two words' {{message}}"
    (spec,) = checked_actions([parse_action(text)], [])
    assert delivered(spec, example_event()).done
    assert json.loads((tmp_path / "given").read_text())["arguments"] == ["two words", "the loss became NaN at step 7"]


def test_a_program_that_fails_is_reported_with_its_last_words() -> None:
    outcome = call(sys.executable, "-c", "import sys; print('a\\nno such job', file=sys.stderr); sys.exit(3)")
    assert (outcome.done, outcome.again) == (False, True)
    assert "ended with exit status 3: no such job" in outcome.reason


def test_what_a_variable_holds_is_in_no_reason_where_a_program_repeats_its_arguments() -> None:
    code = "import sys; sys.exit('bad argument: ' + sys.argv[1])"
    outcome = call(sys.executable, "-c", code, "{env.DOOR}", environ={"DOOR": "geheim-1"})
    assert "ended with exit status 1: bad argument: $DOOR" in outcome.reason


def test_a_program_ended_by_a_signal_is_reported() -> None:
    assert "ended with signal 9" in call(sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").reason


def test_much_output_does_no_harm() -> None:
    outcome = call(
        sys.executable, "-c", "import os; [os.write(n, b'x' * 1_000_000) for n in (1, 2) for _ in range(200)]"
    )
    assert outcome.done, outcome.reason


def test_one_that_leaves_something_running_is_not_waited_for() -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    assert call(sys.executable, "-c", code).done


def test_a_program_that_has_gone_meanwhile_makes_no_sense_to_try_again(tmp_path: Path) -> None:
    outcome = call(f"{tmp_path}/gone")
    assert (outcome.again, outcome.reason) == (False, f"{tmp_path}/gone cannot be called: No such file or directory")


def test_an_argument_that_none_can_be_is_reported() -> None:
    outcome = call(sys.executable, "-c", "pass", "{message}", message="a\0b")
    assert (outcome.again, outcome.reason) == (False, "an argument contains a character that arguments cannot contain")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "Command needs command"),
        ("no-such-program {run}", "there is no program 'no-such-program'"),
        ("true {stpe}", 'has no placeholder {stpe} .did you mean "step"'),
        ("true {env.NO_SUCH_VARIABLE}", "environment variable NO_SUCH_VARIABLE is not set"),
        ("true 'open", "cannot be split into words"),
    ],
)
def test_what_cannot_be_is_refused_before_a_training_run(command: str, message: str) -> None:
    with pytest.raises(WatchglassError, match=message):
        checked_actions([parse_action(f"Command:command={command}")], [])


def test_a_list_of_one_word_with_a_space_is_one_program() -> None:
    with pytest.raises(InvalidValueError, match="there is no program 'true x'"):
        checked_actions([ActionSpec("Command", {"command": ["true x"]})], [])
