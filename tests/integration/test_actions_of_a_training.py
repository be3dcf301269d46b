"""A training run that breaks, and what is done about it: by the command line, from a script, by a file of settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from command_line import training
from evaluators.receivers import mail_server, receiver
from waiting import PATIENCE_S
from watchglass.errors import EXIT_STOPPED
from watchglass.run import open_run
from watchglass.store import LocalStore, layout
from watchglass.testing import build_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("preloaded_python")]

TRAIN = """
    import time
    import torch
    from torch import nn
    {before}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    {watch}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range({steps}):
        inputs = torch.randn(16, 8)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        (loss * float("nan") if step == 20 else loss).backward()
        optimizer.step()
        time.sleep(0.005)
"""


def script(folder: Path, *, watch: str = "", steps: int = 60) -> Path:
    path = folder / "train.py"
    before = "import watchglass" if watch else ""
    path.write_text(textwrap.dedent(TRAIN).format(before=before, watch=watch, steps=steps))
    return path


def python(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def watchglass(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "watchglass", *words, **environ)


def outcomes(run: Path) -> list[tuple[str, Any]]:
    return [
        (seen.kind, seen.data["action"])
        for seen in open_run(run).journal.observations
        if seen.kind.startswith("action_")
    ]


def test_an_email_and_a_webhook_of_one_finding(tmp_path: Path) -> None:
    script(tmp_path)
    with mail_server() as mail, receiver(503, 204) as hook:
        ended = watchglass(
            tmp_path, "run", "--run", "run", "--rules", "ExplodingTensor",
            "--action", "Notify:urls=$MAIL,severity=error",
            "--action", f"Webhook:url={hook.url},secret=$KEY", "train.py", MAIL=mail.url, KEY="geheim-1234",
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    (message,) = mail.messages
    (finding,) = [f for f in open_run(tmp_path / "run").journal.findings if f.severity.value == "error"]
    text = message.get_content()
    assert finding.message in text
    assert f"step    {finding.step} (TRAIN, worker_0)" in text
    assert finding.what_to_try[0] in text
    first, again = hook.requests
    assert json.loads(first.body)["id"] == json.loads(again.body)["id"]
    assert again.verified(b"geheim-1234")
    assert sorted(outcomes(tmp_path / "run")) == [
        ("action_done", "Notify"), ("action_done", "Webhook"), ("action_due", "Notify"), ("action_due", "Webhook"),
    ]  # fmt: skip
    everything = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"geheim" not in everything + ended.stderr.encode()


def test_stopping_by_name_stops_at_findings_of_its_rules(tmp_path: Path) -> None:
    script(tmp_path, steps=100_000)
    ended = watchglass(tmp_path, "run", "--run", "run", "--action", "StopTraining:rules=ExplodingTensor", "train.py")
    assert ended.returncode == EXIT_STOPPED, ended.stderr


def test_a_script_that_watches_itself_names_actions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import watchglass\n\n\nclass Note(watchglass.Action):\n    '''Notes.'''\n    path: str = 'note'\n\n"
        "    def act(self, event):\n        open(self.path, 'a').write(event.message)\n"
    )
    with receiver() as hook:
        watch = (
            f"watchglass.watch(model, run='{tmp_path}/run', strict=True, "
            "rules=['ExplodingTensor', 'my_rules.py:Quiet'], "
            f"actions=['mine.py:Note:path={tmp_path}/noted', 'Webhook:url={hook.url}']); "
            "import os; os.chdir('/')"  # before the evaluator begins
        )
        (tmp_path / "my_rules.py").write_text(
            "import watchglass\n\n\nclass Quiet(watchglass.Rule):\n    '''Says nothing.'''\n\n"
            "    def check(self, view):\n        return ()\n"
        )
        ended = python(tmp_path, str(script(tmp_path, watch=watch)))
        assert ended.returncode == 0, ended.stderr
    assert len(hook.requests) == 1
    assert "NaN" in (tmp_path / "noted").read_text()


def test_tables_of_the_file_act_in_run_and_in_watch(tmp_path: Path) -> None:
    with receiver() as hook:
        (tmp_path / "watchglass.toml").write_text(f'[[actions]]\nname = "Webhook"\nurl = "{hook.url}"\n')
        script(tmp_path)
        assert watchglass(tmp_path, "run", "--run", "one", "--rules", "ExplodingTensor", "train.py").returncode == 0
        script(tmp_path, watch="watchglass.watch(model, run='two', rules='ExplodingTensor')")
        assert python(tmp_path, "train.py").returncode == 0
    assert [json.loads(request.body)["data"]["run"] for request in hook.requests] == [
        str(tmp_path / "one"), str(tmp_path / "two"),
    ]  # fmt: skip


def test_a_follower_acts_and_the_next_one_does_not_again(tmp_path: Path) -> None:
    build_run(tmp_path / "run", training(40, broken_at=20))
    with receiver() as hook:
        words = ("follow", "run", "--rules", "ExplodingTensor", "--action", f"Webhook:url={hook.url}")
        for _ in range(2):
            ended = watchglass(tmp_path, *words)
            assert ended.returncode == 1, ended.stderr
    assert len(hook.requests) == 1


@pytest.mark.parametrize("below", ["", "many"])
def test_tables_of_the_file_act_in_follow(tmp_path: Path, below: str) -> None:
    run = str(Path(below, "run"))
    build_run(tmp_path / run, training(40, broken_at=20))
    with receiver() as hook:
        (tmp_path / "watchglass.toml").write_text(f'[[actions]]\nname = "Webhook"\nurl = "{hook.url}"\n')
        words = ("follow", "many", "--until-idle", "0.5") if below else ("follow", "run")
        ended = watchglass(tmp_path, *words, "--rules", "ExplodingTensor")
    assert ended.returncode == 1, ended.stderr
    assert [json.loads(request.body)["data"]["run"] for request in hook.requests] == [str(tmp_path / run)]


def test_one_that_cannot_deliver_harms_neither_training_nor_verdict(tmp_path: Path) -> None:
    script(tmp_path)
    ended = watchglass(
        tmp_path, "run", "--run", "run", "--rules", "ExplodingTensor", "--action",
        "Webhook:url=http://127.0.0.1:9/,retries=0", "train.py",
    )  # fmt: skip
    assert ended.returncode == 0
    assert (
        "Webhook: 1 not delivered (cannot be reached: Connection refused), see dead-letters/ in the run" in ended.stderr
    )
    assert "the loss became NaN" in ended.stderr
    assert len(LocalStore(tmp_path / "run").list(layout.DEAD_LETTERS)) == 1
    ended = watchglass(tmp_path, "rm", "--yes", "run")
    assert not (tmp_path / "run").exists(), ended.stderr


@pytest.mark.parametrize("verb", ["run", "follow"])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("Webhok:url=https://a.org", 'there is no action "Webhok" (did you mean "Webhook"?)'),
        ("Webhook", "Webhook needs url"),
        ("broken.py:Mine", "broken.py cannot be imported: line 1, SyntaxError"),
        ("Webhook:url=https://a.org,retries=x", "retries must be a whole number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_the_training(
    tmp_path: Path, verb: str, action: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    (tmp_path / "train.py").write_text("open('trained', 'w')")
    ended = watchglass(tmp_path, verb, "--action", action, "train.py" if verb == "run" else "run")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "trained").exists()
