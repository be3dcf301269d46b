"""docs/object-stores.md says what the code does: requests and their pace, limits, permissions, names of variables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from watchglass.store.media.credentials import RequestPatience
from watchglass.store.media.objects import PIECE, ObjectStore

#: USD of a request, as the page says.
WRITE_USD, READ_USD = 0.005 / 1000, 0.0004 / 1000


@pytest.fixture(scope="module")
def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "object-stores.md").read_text()


def row_of(workers: int) -> str:
    memory = MemoryStore()
    intervals = ObjectStore("memory://", "", lambda request_s, tries: memory).policy.intervals(workers)
    segments, looks, lists = (
        60 * workers / intervals.flush_s,
        2 * 60 * workers / intervals.control_s,
        60 / intervals.poll_s,
    )
    usd = 60 * ((segments + lists) * WRITE_USD + (looks + segments) * READ_USD)
    return (
        f"| {workers:,} | {intervals.flush_s:.1f} | {segments:,.0f} | {looks:,.0f} | {intervals.answer_s:.1f} "
        f"| {lists:,.0f} | {segments:,.0f} | {(2 * segments + looks + lists) / 60:.1f} | {usd:.2f} |"
    )


@pytest.mark.parametrize("workers", [1, 8, 64, 256, 1024])
def test_requests_are_those_of_the_pace(page: str, workers: int) -> None:
    assert row_of(workers) in page.splitlines()


def test_the_formula_is_that_of_the_pace(page: str) -> None:
    assert "5 + 55 · (*W* - 1) / 1023 seconds, 60 at most" in page
    memory = MemoryStore()
    store = ObjectStore("memory://", "", lambda request_s, tries: memory)
    for workers in (1, 2, 100, 1024, 5000):
        expected = min(60.0, 5 + 55 * (workers - 1) / 1023)
        assert store.policy.intervals(workers).flush_s == pytest.approx(expected)
        assert store.policy.intervals(workers).control_s == pytest.approx(expected)


def test_limits_are_those_of_the_code(page: str) -> None:
    patience = RequestPatience()
    limits = f"waits {patience.connect_s:g} seconds for a connection and {patience.request_s:g} for an answer"
    assert limits in page
    assert f"tries again for {patience.retry_s:g} seconds" in page
    assert f"({PIECE >> 20} MiB per request when they are read or replaced)" in page


def test_the_policy_is_one(page: str) -> None:
    policy = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    actions = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert actions == {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"}


def test_variables_of_aws_are_those_that_are_read(page: str, repository: Path) -> None:
    """The client reads the others by itself."""
    source = (repository / "src" / "watchglass" / "store" / "media" / "credentials.py").read_text()
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE", "AWS_SKIP_SIGNATURE"):
        assert f"`{name}" in page
        assert f'"{name}"' in source
