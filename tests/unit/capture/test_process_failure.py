"""What ends a process becomes a record: the exception, the user's line, no secret, bounded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from watchglass.capture.process.process_failure import failure_from, report
from watchglass.errors import TrainingStopped
from watchglass.records import Failure


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def found(error: BaseException) -> Failure:
    failure = failure_from(raised(error))
    assert failure is not None
    return failure


def test_type_message_and_line_of_the_user() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        failure = failure_from(error)
    assert failure is not None
    assert (failure.kind, failure.type) == ("exception", "json.decoder.JSONDecodeError")
    assert failure.message.startswith("Expecting property name")
    assert Path(failure.file).name == "test_process_failure.py"
    assert failure.source == 'json.loads("{")'


def test_secrets_are_left_out_and_what_is_long_is_cut() -> None:
    failure = found(ValueError("password=hunter2 " + "x" * 10_000 + "\nmore"))
    assert "hunter2" not in failure.message
    assert len(failure.message) == 500


def test_a_secret_at_the_cut_is_not_half_shown() -> None:
    assert "abcd" not in found(ValueError("x" * 480 + " token=abcdefghijklmnopqrstuvwxyz0123456789")).message


def test_of_the_exception_of_another_process_its_last_line_is_kept() -> None:
    text = (
        "Caught IndexError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "data.py", line 7, in __getitem__\n    return self.rows[n]\nIndexError: list index out of range\n'
    )
    expected = "Caught IndexError in DataLoader worker process 0: IndexError: list index out of range"
    assert found(IndexError(text)).message.replace(". Original", "") == expected


@pytest.mark.parametrize("error", [SystemExit(0), SystemExit(None), TrainingStopped("loss became NaN")])
def test_an_exit_in_order_is_no_failure(error: BaseException) -> None:
    assert failure_from(raised(error)) is None


def test_an_exit_status_and_a_message_of_exit() -> None:
    assert (found(SystemExit(3)).kind, found(SystemExit(3)).exit_status) == ("exit", 3)
    assert (found(SystemExit("no data")).message, found(SystemExit("no data")).exit_status) == ("no data", 1)


def test_who_prints_an_exception_and_exits_means_that_exception() -> None:
    try:
        try:
            raise KeyError("batch")
        except KeyError:
            sys.exit(1)
    except SystemExit as error:
        failure = failure_from(error)
    assert failure is not None
    assert (failure.kind, failure.type) == ("exception", "KeyError")


def test_an_exception_that_cannot_be_printed_still_has_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    failure = found(Mute())
    assert failure.type.endswith("Mute")
    assert failure.message == ""


def test_ctrl_c_is_an_interrupt() -> None:
    assert found(KeyboardInterrupt()).kind == "interrupt"


def test_a_report_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "failures"
    report(raised(ValueError("none")), trains=True, path=str(path))
    assert not path.exists()
    path.touch()
    report(raised(ValueError("one")), trains=True, path=str(path))
    report(raised(ValueError("two")), trains=False, first=True, path=str(path))
    report(raised(SystemExit(0)), trains=True, path=str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["message"], line["trains"], line["first"]) for line in lines] == [
        ("one", True, False), ("two", False, True),
    ]  # fmt: skip


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "failures").symlink_to(tmp_path / "victim")
    report(raised(ValueError("one")), trains=True, path=str(tmp_path / "failures"))
    assert (tmp_path / "victim").read_text() == "mine"
