"""What makes a folder a run, and attempts in it."""

import json
import threading

import pytest

from watchglass.errors import FormatVersionError, MissingFileError, NotARunError, RunExistsError
from watchglass.store import LocalStore, attempts, create_attempt, create_run, read_manifest


def test_a_run_is_what_it_was_created_as(tmp_path):
    store = LocalStore(tmp_path / "run")
    made = create_run(store, command=["train.py", "--lr", "1"])
    assert read_manifest(store) == made
    assert made.command == ("train.py", "--lr", "1")
    assert len(made.run_id) == 32


def test_an_existing_run_is_not_touched(tmp_path):
    store = LocalStore(tmp_path)
    made = create_run(store, command=[])
    with pytest.raises(RunExistsError, match="is a run already"):
        create_run(store, command=["other"])
    assert read_manifest(store) == made


def test_a_folder_with_other_things_is_not_made_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(NotARunError, match="not empty and not a run"):
        create_run(LocalStore(tmp_path), command=[])
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_nothing_and_something_else_are_distinguished(tmp_path):
    with pytest.raises(MissingFileError, match="nope"):
        read_manifest(LocalStore(tmp_path / "nope"))
    (tmp_path / "x").write_text("x")
    with pytest.raises(NotARunError, match=r"no run\.json"):
        read_manifest(LocalStore(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"product": "other", "format": [2, 0]}', b'{"product": "watchglass"}',
                b'{"product": "watchglass", "format": ["1", 0], "run_id": "x", "created_ns": 1}',
                b'{"product": "watchglass", "format": [2, 0], "run_id": "x", "created_ns": 9223372036854775808}',
                b'{"product": "watchglass", "format": [2, 0], "run_id": "x", "created_ns": -1}',
                b'{"product": "watchglass", "format": [2, 0]}', b"[" * 100000, b"\xff\xfe"]
)  # fmt: skip
def test_a_foreign_manifest_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(NotARunError) as caught:
        read_manifest(LocalStore(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "cure"),
    [([2, 7], ""), ([2, 0, 3], ""), ([3, 0], "upgrade watchglass"), ([1, 2], "read it with the watchglass that wrote")],
)
def test_newer_minor_versions_are_read_and_other_major_versions_refused(tmp_path, version, cure):
    store = LocalStore(tmp_path)
    manifest = {**create_run(store, command=[]).to_json(), "format": version, "new": 1}
    store.write("run.json", json.dumps(manifest).encode(), replace=True)
    if not cure:
        assert read_manifest(store).format == tuple(version[:2])
    else:
        with pytest.raises(
            FormatVersionError, match=rf"format {version[0]}\.{version[1]} but .* reads format 2; {cure}"
        ):
            read_manifest(store)


def test_one_launch_is_one_attempt_and_the_next_another(tmp_path):
    store = LocalStore(tmp_path)
    create_run(store, command=[])
    assert attempts(store) == []
    found = []
    threads = [threading.Thread(target=lambda: found.append(create_attempt(store, "launch"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 8
    assert create_attempt(store, "other") == 1
    assert create_attempt(store, "") == 2
    assert create_attempt(store, "") == 3
    assert attempts(store) == [0, 1, 2, 3]


def test_a_manifest_holds_no_secrets(tmp_path):
    command = [
        "train.py",
        "--api-key",
        "SECRET",
        "AWS_SECRET_ACCESS_KEY=SECRET/x+y",
        "--endpoint-url=http://me:SECRET@h",
    ]
    create_run(LocalStore(tmp_path / "run"), command=command)
    text = (tmp_path / "run" / "run.json").read_text()
    assert "SECRET/" not in text
    assert "SECRET@" not in text
    assert '"SECRET"' not in text
    assert "AWS_SECRET_ACCESS_KEY=[redacted]" in text


@pytest.mark.parametrize(
    "command",
    [[f"data/{n:06}.npz" for n in range(200_000)], ["-c", "x" * (4 << 20)], ["\U0001f525" * 5000] * 300],
    ids=["many words", "a long word", "both, of characters that take twelve bytes"],
)
def test_a_command_of_any_length_leaves_a_readable_run(tmp_path, command):
    store = LocalStore(tmp_path)
    made = create_run(store, command=["train.py", *command])
    assert read_manifest(store) == made
    assert made.command[:2] == ("train.py", made.command[1])
    assert made.command[1][:4096] == command[0][:4096]
    assert "more" in " ".join(made.command[-2:])


def test_a_file_is_no_run_and_is_not_made_one(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x")
    with pytest.raises(NotARunError, match=r"train\.py is not a run"):
        read_manifest(LocalStore(script))
    with pytest.raises(NotARunError, match="choose an empty or new folder"):
        create_run(LocalStore(script), command=[])
    assert script.read_text() == "x"
