"""docs/agents.md: its loop runs, question by question, asked by the client of the protocol's SDK over a pipe."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from waiting import PATIENCE_S
from watchglass.questions import make_server


@pytest.fixture(scope="module")
def page(repository: Path) -> str:
    return (repository / "docs" / "agents.md").read_text(encoding="utf-8")


def is_part(expected: Any, found: Any) -> bool:
    """Whether an answer has what the page shows of it."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(key in found and is_part(expected[key], found[key]) for key in expected)
    if isinstance(expected, list):
        parts = zip(expected, found, strict=False)
        return len(found) >= len(expected) and bool(found) == bool(expected) and all(is_part(*pair) for pair in parts)
    return bool(expected == found)


def steps(page: str) -> Iterator[tuple[str, str]]:
    """The blocks of the loop, in order, and the change of the script."""
    loop = page[page.index("## One loop") :]
    for found in re.finditer(r"```(\S*)(?: title=\S+)?\n(.*?)```|`(lr=[\d.]+)` becomes `(lr=[\d.]+)`", loop, re.DOTALL):
        yield ("change", f"{found[3]} {found[4]}") if found[3] else (found[1], found[2])


@pytest.mark.slow
def test_the_loop_runs(page: str, in_tmp_path: Path) -> None:
    asked = []

    async def loop() -> None:
        server = StdioServerParameters(command=sys.executable, args=["-m", "watchglass", "mcp", "runs"])
        with Path("errors").open("w") as errors:
            async with Client(stdio_client(server, errlog=errors)) as client:
                for kind, text in steps(page):
                    if kind == "python":
                        Path("train.py").write_text(text)
                    elif kind == "change":
                        before, after = text.split()
                        script = Path("train.py").read_text()
                        assert before in script
                        Path("train.py").write_text(script.replace(before, after))
                    elif kind == "":
                        words = shlex.split(text)
                        command = [sys.executable, "-m", "watchglass", *words[1:]]
                        await anyio.to_thread.run_sync(
                            lambda: subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True)  # noqa: B023
                        )
                    else:
                        question = json.loads(text)
                        answer = await client.call_tool(question["tool"], question["arguments"])
                        asked.append(question["tool"])
                        assert not answer.is_error, answer.content
                        assert is_part(question["answer"], answer.structured_content), (question, answer)

    Path("runs").mkdir()
    anyio.run(loop)
    assert len(asked) == 7
    (said,) = Path("errors").read_text().splitlines()
    assert "runs holds no runs" in said  # when the server started


def test_every_tool_is_described(page: str, tmp_path: Path) -> None:
    async def tools() -> dict[str, Any]:
        async with Client(make_server(str(tmp_path), allow_actions=True)) as client:
            return {tool.name: tool for tool in (await client.list_tools()).tools}

    found = anyio.run(tools)
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`\w+`.*?) \|", page, re.MULTILINE)))
    assert sorted(described) == sorted(found)
    for tool in found.values():
        assert tool.description.count("\n") < 40
        assert tool.output_schema["type"] == "object"
