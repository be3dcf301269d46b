"""Every built-in action that is delivered, and one of a user's, does what actions must."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.receivers import MailServer, Receiver, mail_server, receiver
from watchglass.config import ActionSpec
from watchglass.records import Event
from watchglass.testing import ActionSuite, RunBuilder, delivered

CLOSED = "127.0.0.1:9"  # nothing listens on the discard port


class TestWebhook(ActionSuite):
    name = "Webhook"

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        with receiver() as self.receiver:
            yield

    receiver: Receiver

    def works(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": self.receiver.url}

    def fails(self, tmp_path: Path) -> dict[str, Any]:
        return {"url": f"http://{CLOSED}/"}

    def arrived(self, tmp_path: Path) -> int:
        return len(self.receiver.requests)


class TestNotify(ActionSuite):
    name = "Notify"

    @pytest.fixture(autouse=True)
    def server(self) -> Iterator[None]:
        with mail_server() as self.mail:
            yield

    mail: MailServer

    def works(self, tmp_path: Path) -> dict[str, Any]:
        return {"urls": [self.mail.url]}

    def fails(self, tmp_path: Path) -> dict[str, Any]:
        return {"urls": [f"mailto://{CLOSED}?from=a@example.org&to=b@example.org&mode=insecure"]}

    def arrived(self, tmp_path: Path) -> int:
        return len(self.mail.messages)


class TestCommand(ActionSuite):
    name = "Command"

    def works(self, tmp_path: Path) -> dict[str, Any]:
        code = "import sys; open(sys.argv[1], 'a').write(ascii(sys.argv[2]) + chr(10))"
        return {"command": [sys.executable, "-c", code, str(tmp_path / "events"), "{message}"]}

    def fails(self, tmp_path: Path) -> dict[str, Any]:
        return {"command": [sys.executable, "-c", "import sys; print('a\\nno room', file=sys.stderr); sys.exit(3)"]}

    def arrived(self, tmp_path: Path) -> int:
        return len((tmp_path / "events").read_text().splitlines())


class TestProfileSteps(ActionSuite):
    name = "ProfileSteps"

    @pytest.fixture(autouse=True)
    def job(self, tmp_path: Path) -> Iterator[None]:
        """A running job; it has ended for parameters that fail."""
        with RunBuilder(tmp_path / "run") as self.builder:
            self.go_on()
            yield

    builder: RunBuilder

    def go_on(self) -> None:
        for _ in range(10):
            self.builder.step(scalars={"loss": 1.0})

    def event(self, tmp_path: Path, kind: str = "finding", **changed: Any) -> Event:
        return replace(super().event(tmp_path, kind, **changed), run=str(tmp_path / "run"))

    def works(self, tmp_path: Path) -> dict[str, Any]:
        return {"steps": 3}

    def fails(self, tmp_path: Path) -> dict[str, Any]:
        self.builder.leave()
        return {"steps": 3}

    def arrived(self, tmp_path: Path) -> int:
        self.go_on()
        return len([*(tmp_path / "run/control/profile/0000").glob("*/commit")])

    def test_the_request_names_its_cause_and_further_events_add_none(self, tmp_path: Path) -> None:
        event = self.event(tmp_path)
        for _ in range(2):
            assert delivered(ActionSpec(self.name, {"steps": 3}), event).done
        (commit,) = (tmp_path / "run/control/profile/0000").glob("*/commit")
        written = json.loads(commit.read_text())
        assert (written["at_step"], written["steps"], written["finding"]) == (10, 3, "abcdefabcdef")
        assert written["reason"] == "the loss became NaN at step 7"


class TestOneOfAUsersOwn(ActionSuite):
    name = ""

    @pytest.fixture(autouse=True)
    def written(self, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text(
            textwrap.dedent('''
                import watchglass

                class AppendToFile(watchglass.Action):
                    """Writes a line per event."""

                    path: str = "findings.txt"

                    def act(self, event):
                        print("what a user prints is no answer")
                        with open(self.path, "a") as file:
                            print(ascii(event.message), file=file)
            ''')
        )
        type(self).name = f"{tmp_path}/mine.py:AppendToFile"

    def works(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "events")}

    def fails(self, tmp_path: Path) -> dict[str, Any]:
        return {"path": str(tmp_path / "no" / "folder")}

    def arrived(self, tmp_path: Path) -> int:
        return len((tmp_path / "events").read_text().splitlines())
