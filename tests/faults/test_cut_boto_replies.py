"""boto3's own replies, cut and changed: of S3, for what no request does often, and of SQS."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.faults.proxy import Proxy, Reply, Sent, unspoiled
from tests.stack.engines import LocalServices
from tests.support import Process, World
from tidemark.aws.s3 import Objects, Refusal
from tidemark.aws.sqs import Queues, QueueUnavailable, sqs_client
from tidemark.blobs import Blobs, BlobStore, Composition
from tidemark.protocol.errors import StorageUnavailable

SOURCE = bytes(range(256)) * 20
WANTED = Composition("text/plain", b"<", "source", len(SOURCE), b">")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again takes no time."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch, services: LocalServices) -> Iterator[Proxy]:
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"]).on_a_thread() as proxy:
        monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL_S3", proxy.endpoint)
        yield proxy


@pytest.fixture
def process(proxy: Proxy, world: World) -> Process:
    process = world.process()
    process.objects.sleep = lambda _: None
    for key, body in {"a": bytes(1234), "empty": b"", "source": SOURCE}.items():
        process.stores.blobs.put(key, body)
    return process


def cuts(proxy: Proxy, call: Callable[[], object], step: int) -> Iterator[int]:
    """Cut every reply to a call behind each byte, or each few. The operation stands still meanwhile."""
    with proxy.spoiling(unspoiled) as seen:
        call()
    assert seen
    for position in range(0, min(len(reply.raw) for reply in seen), step):
        with proxy.spoiling(lambda reply, position=position: Sent(reply.raw[:position], close=True)):  # type: ignore[misc]
            yield position


CALLS: dict[str, Callable[[Blobs], object]] = {
    "the size of an object": lambda blobs: blobs.stored("a"),
    "an object that is not there": lambda blobs: blobs.stored("nothing"),
    "a deletion": lambda blobs: blobs.delete("b"),
    "a deletion by prefix": lambda blobs: blobs.delete_prefix("log/"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_cut_reply_of_s3_means_that_storage_is_unavailable(
    process: Process, proxy: Proxy, call: Callable[[Blobs], object]
) -> None:
    """A snapshot is published with the size of what was uploaded, and the janitor forgets what it believes to
    be deleted. (botocore reads the body of an error elsewhere than all others.)"""
    for _ in cuts(proxy, lambda: call(process.stores.blobs), 13):
        with pytest.raises(StorageUnavailable):
            call(process.stores.blobs)


def test_a_refused_reply_of_an_object_leaves_no_connection_open(process: Process, proxy: Proxy) -> None:
    """Its body is not read yet, and nobody will read it."""
    answered = list[Any]()

    def keep(response_dict: dict[str, Any], **_: Any) -> None:
        answered.append(response_dict["body"])

    client = process.s3
    client.meta.events.register_first("before-parse", keep)
    with proxy.spoiling(lambda reply: Sent(reply.with_header("etag", None).raw)), pytest.raises(ClientError):
        client.get_object(Bucket=process.settings.bucket_name, Key="a")
    assert len(answered) == 3, "each of three attempts"
    assert all(body._raw_stream.closed for body in answered)


def test_a_deletion_that_fails_for_one_object_has_failed() -> None:
    client = SimpleNamespace(delete_objects=lambda **_: {"Errors": [{"Key": "a", "Code": "InternalError"}]})
    with pytest.raises(StorageUnavailable) as raised:
        BlobStore(Objects(lambda *_: (200, b"")), lambda: client, "bucket").delete("a")
    assert isinstance(raised.value.__cause__, Refusal)
    assert raised.value.__cause__.code == "InternalError"


@pytest.fixture(params=["in one piece", "in parts"])
def is_in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "in parts":
        monkeypatch.setattr("tidemark.blobs.SMALL_OBJECT", 0)
        monkeypatch.setattr("tidemark.blobs._SMALLEST_PART", 1000)
    return bool(request.param == "in parts")


def test_a_composition_is_whole_or_not_there(process: Process, proxy: Proxy, is_in_parts: bool) -> None:
    """One of its replies is cut, in turn: at some five places of each."""
    blobs = process.stores.blobs
    with proxy.spoiling(unspoiled) as seen:
        blobs.compose("composed", WANTED)
    assert len(seen) > 2 or not is_in_parts
    assert blobs.get("composed") == b"<" + SOURCE + b">"
    for number, reply in enumerate(list(seen)):
        for position in range(0, len(reply.raw), max(100, len(reply.raw) // 5)):
            blobs.delete("composed")
            with proxy.spoiling(cut_one(number, position)), suppress(StorageUnavailable):
                blobs.compose("composed", WANTED)
            found = blobs.stored("composed")
            assert found is None or found.size == len(SOURCE) + 2
            blobs.compose("composed", WANTED)
            assert blobs.get("composed") == b"<" + SOURCE + b">", (reply.operation, position)


def cut_one(number: int, position: int) -> Callable[[Reply], Sent]:
    count = iter(range(1000))
    return lambda reply: Sent(reply.raw[:position], close=True) if next(count) == number else Sent(reply.raw)


def test_a_composition_repeats_calls_without_tags(process: Process, proxy: Proxy, is_in_parts: bool) -> None:
    """A reply without a body can end behind its length; the tag may come later."""
    for operation in ("GET", "PUT part" if is_in_parts else "PUT"):
        spoiled = list[Reply]()

        def spoil(reply: Reply, operation: str = operation, spoiled: list[Reply] = spoiled) -> Sent:
            if reply.operation != operation or spoiled:
                return Sent(reply.raw)
            spoiled.append(reply)
            return Sent(reply.with_header("etag", None).raw)

        with proxy.spoiling(spoil) as seen:
            process.stores.blobs.compose("composed", WANTED)
        assert spoiled
        assert [reply.operation for reply in seen].count(operation) > 1
        assert process.stores.blobs.get("composed") == b"<" + SOURCE + b">"


@pytest.mark.parametrize(
    ("body", "checksum"),
    [(SOURCE[1:], True), (SOURCE[1:], False), (SOURCE[::-1], True)],
    ids=["shorter", "shorter, no checksum", "another"],
)
def test_a_composition_is_refused_if_the_source_is_not_the_expected_object(
    process: Process, proxy: Proxy, body: bytes, checksum: bool
) -> None:
    """WaitResult by its checksum, or, where S3 names none that this can compute, by its size."""

    def spoil(reply: Reply) -> Sent:
        if reply.operation != "GET":
            return Sent(reply.raw)
        changed = reply.with_body(body)
        return Sent((changed if checksum else changed.with_header("x-amz-checksum-crc32", None)).raw)

    with proxy.spoiling(spoil), pytest.raises(StorageUnavailable):
        process.stores.blobs.compose("composed", WANTED)


def test_a_cut_reply_of_sqs_is_queue_unavailable(services: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake message that nobody received must not look like none."""
    with Proxy(os.environ["AWS_ENDPOINT_URL_SQS"]).on_a_thread() as proxy:
        monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL_SQS", proxy.endpoint)
        client = sqs_client()
        queues = Queues(lambda: client, "cut-")
        url = queues.create(0)
        calls: list[Callable[[], object]] = [
            lambda: queues.create(0),
            lambda: queues.receive(url, 0),
            lambda: queues.send(url, ["x"]),
            lambda: list(queues.all()),
        ]
        for call in calls:
            for _ in cuts(proxy, call, 20):
                with pytest.raises(QueueUnavailable):
                    call()
        queues.delete(url)
