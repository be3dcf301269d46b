"""Object stores: their requests; how they behave if they are unreachable, slow or refuse; secrets stay secret."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from servers.fixtures import S3Server
from servers.proxy import Proxy
from stores.buckets import in_memory, waiting_for
from waiting import PATIENCE_S, until
from watchglass.errors import ForkedError, MissingFileError, RunExistsError, StoreError
from watchglass.store import Store, open_store
from watchglass.store.media.credentials import RequestPatience
from watchglass.store.media.objects import PIECE, ObjectStore

#: Tries are soon given up; one that is answered has the time that a busy server takes.
IMPATIENT = RequestPatience(retry_s=0.6)


def impatient(location: str, patience: RequestPatience = IMPATIENT) -> ObjectStore:
    """A store that gives up within a second or two."""
    return waiting_for(location, patience)


def methods(proxy: Proxy) -> list[str]:
    found = [request.method for request in proxy.requests]
    proxy.forget()
    return found


def failure(call: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as caught:
        call()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return str(caught.value)


def test_each_call_is_one_request(s3_location: str, s3_proxy: Proxy) -> None:
    store = open_store(s3_location)
    calls: list[tuple[Callable[[], Any], list[str]]] = [
        (lambda: store.write("a/1", [b"12", b"34"]), ["PUT"]),
        (lambda: store.write("a/1", b"1234", replace=True), ["PUT"]),
        (lambda: store.read("a/1"), ["GET"]),
        (lambda: store.read("a/1", 1, 3), ["GET"]),
        (lambda: store.map("a/1"), ["GET"]),
        (lambda: store.read("a/1", 2, 2), ["HEAD"]),
        (lambda: store.size("a/1"), ["HEAD"]),
        (lambda: store.list("a", after="a/0"), ["GET"]),
        (lambda: store.folders(), ["GET"]),
        (lambda: store.is_empty(), ["GET"]),
        (lambda: store.read_many([("a/1", 0, 2), ("a/2", 0, 2)]), ["GET", "GET"]),
    ]
    for call, expected in calls:
        call()
        assert methods(s3_proxy) == expected
    store.delete("a/1")
    assert methods(s3_proxy) in (["POST"], ["DELETE"])  # as the client's version has it
    assert store.read_many([]) == []
    assert methods(s3_proxy) == []


def test_a_listing_starts_at_the_server(s3_location: str, s3_proxy: Proxy) -> None:
    """What sorts before the start is not sent."""
    store = open_store(s3_location)
    for number in range(3):
        store.write(f"a/{number}", b"")
    s3_proxy.forget()
    assert [entry.path for entry in store.list("a", after="a/1")] == ["a/2"]
    assert s3_proxy.requests[0].target.endswith("a%2F1")
    assert "start-after=" in s3_proxy.requests[0].target


def test_large_objects_go_in_pieces(s3_location: str, s3_proxy: Proxy) -> None:
    store = open_store(s3_location)
    data = os.urandom(2 * PIECE + 5)
    store.write("large", data, replace=True)
    requests = s3_proxy.requests
    assert sorted(r.length for r in requests if r.method == "PUT") == [5, PIECE, PIECE]
    assert sum(r.method == "POST" for r in requests) == 2
    s3_proxy.forget()
    assert store.read("large") == data
    ranges = sorted(request.headers["range"] for request in s3_proxy.requests)
    assert ranges == [f"bytes=0-{PIECE - 1}", f"bytes={2 * PIECE}-{2 * PIECE + 4}", f"bytes={PIECE}-{2 * PIECE - 1}"]


class OddBucket:
    """A bucket in memory whose answers to requests for objects a test changes.

    Attributes:
        ranges: What was asked for.
        change: Called with the options of each such request; returns those that the bucket gets.
        replaced_by: What the object is once its first piece was read; None if it stays.
    """

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.ranges: list[tuple[int, int]] = []
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = lambda options: options
        self.replaced_by: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    def get(self, key: str, *, options: dict[str, Any]) -> Any:
        self.ranges.append(options["range"])
        found = self.memory.get(key, options=self.change(options))
        if self.replaced_by is not None:
            self.memory.put(key, self.replaced_by)
            self.replaced_by = None
        return found


def test_an_object_replaced_between_two_pieces_is_read_again() -> None:
    """Not the first piece of one and the second of another."""
    bucket = OddBucket()
    store = in_memory(bucket=bucket)
    old, new = b"o" * (PIECE + 1), b"n" * (PIECE + 1)
    store.write("x", old)
    bucket.replaced_by = new
    assert store.read("x") == new


def test_an_object_that_is_never_the_same_is_no_endless_wait() -> None:
    """A server whose answers to conditional requests are wrong says so for ever."""
    bucket = OddBucket()
    store = in_memory(bucket=bucket)
    store.write("x", b"o" * (PIECE + 1))
    bucket.change = lambda options: {**options, "if_match": "another"} if "if_match" in options else options
    with pytest.raises(StoreError, match=r"cannot read .*x: 16 times it was replaced between two of its pieces"):
        store.read("x")
    assert [start for start, _ in bucket.ranges] == [0, PIECE] * 16


def test_a_write_whose_answer_is_lost_has_succeeded(s3_location: str, s3_proxy: Proxy) -> None:
    """The second try gets the answer that the object exists, and it is its own object."""
    store = open_store(s3_location)
    s3_proxy.lose_answers(1)
    store.write("claim", b"mine")
    assert methods(s3_proxy) == ["PUT", "PUT", "HEAD"]
    with pytest.raises(RunExistsError):
        store.write("claim", b"mine")


def test_a_lost_answer_does_not_win_a_race(s3_location: str, s3_proxy: Proxy, s3_server: S3Server) -> None:
    """A second try that finds the object of somebody else has lost, also where the bytes are the same."""
    s3_proxy.refuse(500, "InternalError")
    store = impatient(s3_location, RequestPatience(retry_s=PATIENCE_S, first_pause_s=0.05, longest_pause_s=0.05))
    lost: list[str] = []

    def write() -> None:
        try:
            store.write("claim", b"same")
        except RunExistsError as error:
            lost.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: s3_proxy.requests)
    s3_server.client().put(f"{s3_location.rpartition('/')[2]}/claim", b"same", mode="create")
    s3_proxy.restore()
    writer.join()
    assert len(lost) == 1


def test_a_write_without_an_answer_may_come_again_later(s3_location: str, s3_proxy: Proxy) -> None:
    """The store was unreachable. A writer that sends the same bytes again recognises its object."""
    store = impatient(s3_location)
    s3_proxy.lose_answers(100)
    for path in ("a", "b"):
        assert "the connection broke" in failure(lambda path=path: store.write(path, b"1"))  # type: ignore[misc]
    s3_proxy.restore()
    store.write("a", b"1")
    with pytest.raises(RunExistsError):
        store.write("b", b"2")
    with pytest.raises(RunExistsError):
        store.write("a", b"1")


def test_a_short_failure_is_not_noticed(s3_location: str, s3_proxy: Proxy) -> None:
    store = open_store(s3_location)
    store.write("x", b"1")
    s3_proxy.refuse(503, "SlowDown", count=2)
    assert store.read("x") == b"1"
    s3_proxy.refuse(503, "SlowDown", count=2)
    assert store.size("x") == 1
    s3_proxy.refuse(500, "InternalError", count=1)
    assert len(store.list()) == 1
    s3_proxy.refuse(409, "ConditionalRequestConflict", count=1)
    store.write("y", b"1")
    s3_proxy.lose_answers(1, "GET")
    assert store.read_many([("x", 0, None), ("y", 0, None), ("z", 0, None)]) == [b"1", b"1", None]


def test_a_store_that_is_unreachable_says_so_soon_and_works_again(s3_location: str, s3_proxy: Proxy) -> None:
    store = impatient(s3_location)
    store.write("x", b"1")
    s3_proxy.cut()
    assert "refuses connections" in failure(lambda: store.read("x"))
    assert "refuses connections" in failure(lambda: store.write("y", b"1"))
    assert "refuses connections" in failure(lambda: store.list())
    # All of them are given up as soon as one is: else this many, 16 at a time, would take minutes.
    began = time.monotonic()
    assert "refuses connections" in failure(lambda: store.read_many([("x", 0, 1)] * 6400))
    assert time.monotonic() - began < 200 * IMPATIENT.retry_s
    s3_proxy.restore()
    assert store.read("x") == b"1"


def test_a_server_that_never_answers_is_given_up(s3_location: str, s3_proxy: Proxy) -> None:
    store = impatient(s3_location, replace(IMPATIENT, request_s=1.0))
    s3_proxy.silence()
    assert "did not answer in time" in failure(lambda: store.write("x", b"1"))


def test_a_slow_connection_has_time_for_what_is_large(s3_location: str, s3_proxy: Proxy) -> None:
    """The time limit grows with what a request carries: these take longer than the limit of a small one."""
    store = impatient(s3_location, replace(IMPATIENT, request_s=0.5))
    data = os.urandom(PIECE)
    s3_proxy.limit(8 << 20)
    store.write("large", data)
    s3_proxy.restore()
    assert store.read("large") == data


REFUSALS = [
    (403, "AccessDenied", "permission denied"),
    (403, "InvalidAccessKeyId", "access key is unknown"),
    (403, "SignatureDoesNotMatch", "secret key is wrong"),
    (403, "RequestTimeTooSkewed", "clock of this machine is wrong"),
    (400, "ExpiredToken", "credentials have expired"),
    (401, "Unauthorized", "credentials are not accepted"),
    (404, "NoSuchBucket", "there is no such bucket"),
    (301, "PermanentRedirect", "another region"),
    (501, "NotImplemented", "lacks a required operation"),
    (507, "InsufficientStorage", "server is full"),
    (418, "Teapot", "status 418 Teapot"),
]


@pytest.mark.parametrize(("status", "code", "cure"), REFUSALS)
def test_what_is_refused_is_not_tried_again(
    s3_location: str, s3_proxy: Proxy, status: int, code: str, cure: str
) -> None:
    """One line names the path and the cure, at once."""
    store = open_store(s3_location)
    s3_proxy.refuse(status, code)
    for verb, call in (("write", lambda: store.write("a/b", b"1")), ("read", lambda: store.read("a/b"))):
        message = failure(call)
        assert message.startswith(f"cannot {verb} {s3_location}/a/b: ")
        assert cure in message
        assert "\n" not in message
    assert cure in failure(lambda: store.list("a"))
    assert methods(s3_proxy) == ["PUT", "GET", "GET"]


def test_no_message_holds_a_secret(s3_location: str, s3_proxy: Proxy, s3_server: S3Server, tmp_path: Path) -> None:
    """Neither keys nor signatures nor what the server sent, in any message or representation."""
    profile = f"aws_access_key_id={s3_server.access_key}\naws_secret_access_key={s3_server.secret_key}\n"
    (tmp_path / "keys").write_text(f"[default]\n{profile}aws_session_token=not-to-be-shown\n")
    environ = {"AWS_ENDPOINT_URL": s3_proxy.url, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys")}
    store = waiting_for(s3_location, IMPATIENT, environ)
    said = [repr(store), str(store)]
    s3_proxy.refuse(403, "AccessDenied</Code><Message>signature=not-to-be-shown</Message><Code>")
    said += [failure(lambda: store.read("x")), failure(lambda: store.write("x", b"1"))]
    s3_proxy.cut()
    said += [failure(lambda: store.list()), failure(lambda: store.size("x"))]
    for secret in (s3_server.secret_key, s3_server.access_key, "not-to-be-shown", "Signature=", "signature="):
        assert not any(secret in line for line in said)


def test_a_bucket_that_is_not_there(s3_location: str, s3_server: S3Server) -> None:
    store = open_store("s3://no-such-bucket-anywhere/run")
    for call in (lambda: store.write("x", b"1"), lambda: store.list(), lambda: store.read("x")):
        assert "there is no such bucket; create it" in failure(call)


def test_a_prefix_holds_only_what_is_below_it() -> None:
    """Neighbours with the same beginning, a parent's objects and a console's mark of an empty folder are none of it."""
    memory = MemoryStore()
    store = in_memory("runs/a", memory)
    for key in ("runs/a", "runs/a-2/x", "runs/ab", "runs/x"):
        memory.put(key, b"1")
    assert store.is_empty()
    assert list(store.list()) == []
    assert list(store.folders()) == []
    store.write("x/y", b"1")
    assert not store.is_empty()
    assert memory.head("runs/a/x/y")["size"] == 1


def test_foreign_and_hidden_names_are_left_out(s3_location: str, s3_server: S3Server) -> None:
    """They are another's, and a path with them could not be read again."""
    store = open_store(s3_location)
    bucket, _, prefix = s3_location.removeprefix("s3://").partition("/")
    foreign = _raw(s3_server)
    for name in ("", ".hidden", ".hidden/x"):  # "" is how consoles show an empty folder
        foreign.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=b"")
    assert store.is_empty()
    for name in ("a/.part", "a:b", "back\\slash"):
        foreign.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=b"1")
    store.write("a/b", b"1")
    assert [entry.path for entry in store.list()] == ["a/b"]
    assert list(store.folders()) == ["a"]
    foreign.put_object(Bucket=bucket, Key=f"{prefix}/a//x", Body=b"1")
    assert "an object there has a name that no run has" in failure(lambda: store.list())
    assert not open_store(s3_location).is_empty()
    foreign.delete_object(Bucket=bucket, Key=f"{prefix}/a//x")
    foreign.close()


def _raw(server: S3Server) -> Any:
    import boto3

    keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
    return boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **keys)


def test_parts_are_not_copied() -> None:
    """What is sent of a large object is the caller's memory, not a second one of the same size."""
    seen: list[list[memoryview]] = []

    class Client:
        def put(self, key: str, parts: list[memoryview], **how: Any) -> None:
            seen.append(parts)

    client: Any = Client()
    store = ObjectStore("fake://x", "", lambda request_s, tries: client)
    memory = bytearray(1000)
    store.write("a", [memoryview(memory), b"tail", b""])
    assert seen[0][0].obj is memory
    assert [len(part) for part in seen[0]] == [1000, 4]


def _look(store: Store, answers: Any) -> None:
    try:
        store.size("x")
    except ForkedError as error:
        answers.put(str(error))
    store.close()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_is_reported_at_once(tmp_path: Path) -> None:
    """It would wait for ever, since the client's threads are not there; the parent goes on."""
    store = in_memory()
    store.write("x", b"1")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_look, args=(store, answers))
    child.start()
    assert "forked from one that has used an object store" in answers.get(timeout=PATIENCE_S)
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    answers.close()
    answers.join_thread()
    assert store.size("x") == 1


def test_a_closed_store_holds_no_client() -> None:
    made: list[weakref.ref[OddBucket]] = []

    def connect(request_s: float, tries: bool) -> Any:
        bucket = OddBucket()
        made.append(weakref.ref(bucket))
        return bucket

    store = ObjectStore("memory://bucket", "", connect)
    store.write("x", b"1")
    assert made[0]() is not None
    store.close()
    gc.collect()
    assert made[0]() is None


def test_deleting_and_reading_at_once(s3_location: str) -> None:
    """Threads share one store."""
    store = open_store(s3_location)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for count in range(5):
                path = f"t/{number}/{count}"
                store.write(path, path.encode())
                assert store.read(path) == path.encode()
                store.delete(path)
                with pytest.raises(MissingFileError):
                    store.read(path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.list("t") == []
