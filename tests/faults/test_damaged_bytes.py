"""A batch whose stored bytes are not those that were appended: a reader gets 503, never a gap or wrong bytes,
the log of the process says where, and nobody keeps it. And boto3's own replies, cut."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.buckets import key_in_new_bucket, publish
from tests.faults.proxy import Proxy, Reply, Sent
from tests.support import Process, World, a_key
from tidemark.aws.s3 import Refusal
from tidemark.aws.sqs import Queues, QueueUnavailable, sqs_client
from tidemark.blobs import Composition, snapshot_blob_key
from tidemark.log.read import load_last
from tidemark.log.records import Batch, Checksums
from tidemark.log.schema import decode_batch, encode_batch, log_pk, stream_key
from tidemark.log.schema.batches import deflate, inflate
from tidemark.log.tails import RecentBatches
from tidemark.protocol.errors import Damaged, StorageUnavailable
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail
from tidemark.service.append import INLINE_BYTES
from tidemark.service.bootstrap import bootstrap
from tidemark.service.load import load_head
from tidemark.service.read import read
from tidemark.service.snapshots import MAX_ANSWER_BYTES, begin_upload, read_snapshot

SMALL, SHRINKS, LARGE = b"12345", b"shrinks " * 200, b"large " * (INLINE_BYTES // 6 + 1)
Item = dict[str, Any]


def binary(data: bytes) -> dict[str, str]:
    return {"B": b64encode(data).decode()}


def of(item: Item, name: str) -> bytes:
    return b64decode(item[name]["B"])


def flipped(data: bytes, bit: int = 12) -> bytes:
    """With one bit another."""
    return (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")


OTHER = bytes(reversed(SHRINKS))

DAMAGES: dict[str, tuple[bytes, Callable[[Item], Item]]] = {
    "shorter": (SMALL, lambda item: item | {"b": binary(of(item, "b")[:-1])}),
    "longer": (SMALL, lambda item: item | {"b": binary(of(item, "b") + b"6")}),
    "gone": (SMALL, lambda item: {name: value for name, value in item.items() if name != "b"}),
    "no base64": (SMALL, lambda item: item | {"b": {"B": ""}}),
    "a flipped bit": (SMALL, lambda item: item | {"b": binary(flipped(of(item, "b")))}),
    "other bytes": (SMALL, lambda item: item | {"b": binary(b"54321")}),
    "no end": (SMALL, lambda item: {name: value for name, value in item.items() if name != "e"}),
    "an end that is no number": (SMALL, lambda item: item | {"e": {"N": "1x"}}),
    "no lengths": (SMALL, lambda item: item | {"m": {"S": "x"}}),
    "a flipped bit of the checksum": (SMALL, lambda item: item | {"h": binary(flipped(of(item, "h")))}),
    "the checksums of another place": (
        SMALL,
        lambda item: item | {"h": binary(of(encode_batch("", sealed(0, SMALL)), "h"))},
    ),
    "deflated, and other bytes": (SHRINKS, lambda item: item | {"z": binary(deflate(OTHER) or b"")}),
    "deflated shorter": (SHRINKS, lambda item: item | {"z": binary(deflate(SHRINKS[:-1]) or b"")}),
    "deflated longer": (SHRINKS, lambda item: item | {"z": binary(deflate(SHRINKS + b"x") or b"")}),
    "deflated cut": (SHRINKS, lambda item: item | {"z": binary(of(item, "z")[:-3])}),
    "deflated and more": (SHRINKS, lambda item: item | {"z": binary(of(item, "z") + b"more")}),
    "not deflated": (SHRINKS, lambda item: item | {"z": binary(b"\xff\xff\xff")}),
}


def damage(process: Process, key: StreamKey, start: int, change: Callable[[Item], Item]) -> None:
    record = load_head(process.stores, key).record
    (item, *_), _ = process.stores.table.query(log_pk(key, record.incarnation), at_least=f"{start:016d}")
    process.stores.table.put(change(item))


def sealed(start: int, data: bytes) -> Batch:
    return Batch(start, Tail(start + len(data)), "id", 0, data, checksums=Checksums.of(None, start, data))


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_batch_is_never_returned(world: World, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    body, change = DAMAGES[kind]
    writer, reader, key = world.process(), world.process(), a_key()
    writer.create(key)
    for each in (b"first", body, b"last"):
        writer.append(key, each)
    damage(writer, key, 5, change)
    for start in (0, 5, 6):
        with pytest.raises(Damaged):
            read(reader.stores, key, start)
    assert "damaged" in caplog.text
    assert read(reader.stores, key, 5 + len(body)).data == b"last", "what lies behind is well"
    incarnation = load_head(writer.stores, key).record.incarnation
    assert reader.stores.recent.chain(incarnation, 5, 1 << 20) == []


@pytest.mark.parametrize(
    "attribute", [{"ct": {"S": ""}}, {"cr": {"N": "x"}}, {"ln": {"S": "["}}, {"inc": {}}]
)
def test_a_stream_whose_item_is_damaged_is_not_there_in_part(world: World, attribute: Item) -> None:
    writer, key = world.process(), a_key()
    writer.create(key)
    item = writer.stores.table.get(stream_key(key))
    assert item is not None
    writer.stores.table.put(item | attribute)
    with pytest.raises(Damaged):
        read(world.process().stores, key, 0)


def test_writers_can_append_behind_a_damaged_batch(world: World) -> None:
    """They decide on its state, which is there; also one that finds it in its way."""
    writer, rival, key = world.process(), world.process(), a_key()
    writer.create(key)
    rival.append(key, SMALL)
    damage(rival, key, 0, DAMAGES["shorter"][1])
    writer.append(key, b"by a loser of a race")
    assert load_head(rival.stores, key).tail.offset == 25
    assert read(rival.stores, key, 5).data == b"by a loser of a race"


def test_no_flipped_bit_of_a_deflated_body_is_returned() -> None:
    """Some of them inflate to as many bytes, which are others; a few change none."""
    item = encode_batch("", sealed(5, SHRINKS))
    deflated, found = of(item, "z"), 0
    for bit in range(8 * len(deflated)):
        damaged = flipped(deflated, bit)
        with suppress(ValueError):
            found += inflate(damaged, len(SHRINKS)) != SHRINKS
        with suppress(Damaged):
            assert decode_batch(item | {"z": binary(damaged)}).data == SHRINKS
    assert found, "lengths alone do not tell"


@pytest.mark.parametrize("names", ["b", "bh"])
def test_swapped_batches_are_never_returned(
    world: World, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Their bytes alone, or with their checksums: then they do not fit the place."""
    writer, reader, key = world.process(), world.process(), a_key()
    writer.create(key)
    for each in (b"first", b"one", b"two", b"last"):
        writer.append(key, each)
    pk = log_pk(key, load_head(reader.stores, key).record.incarnation)
    _, one, two, _ = writer.stores.table.query(pk)[0]
    for item, other in (one, two), (two, one):
        writer.stores.table.put(item | {name: other[name] for name in names})
    for start in (0, 5, 8):
        with pytest.raises(Damaged):
            read(reader.stores, key, start)
    assert "damaged" in caplog.text


def test_a_batch_that_is_gone_is_never_skipped(world: World) -> None:
    writer, reader, key = world.process(), world.process(), a_key()
    writer.create(key)
    for each in (b"first", b"gone", b"last"):
        writer.append(key, each)
    pk = log_pk(key, load_head(reader.stores, key).record.incarnation)
    gone = writer.stores.table.query(pk)[0][1]
    writer.stores.table.delete_many([{"pk": gone["pk"], "sk": gone["sk"]}])
    with pytest.raises(Damaged):
        reader.read_all(key)


@pytest.mark.parametrize("start", [0, 9])
def test_a_stream_does_not_end_before_a_tail_that_was_seen(world: World, start: int) -> None:
    """Where the last batch is gone, a reader is not told that it is up to date, nor that it went too far."""
    writer, key = world.process(), a_key()
    writer.create(key)
    for each in (b"first", b"four", b"last"):
        writer.append(key, each)
    pk = log_pk(key, load_head(writer.stores, key).record.incarnation)
    last = writer.stores.table.query(pk)[0][-1]
    writer.stores.table.delete_many([{"pk": last["pk"], "sk": last["sk"]}])
    writer.stores.recent = RecentBatches(1 << 20)
    with pytest.raises(Damaged):
        read(writer.stores, key, start)


def test_a_batch_that_another_history_followed_is_never_returned(world: World) -> None:
    """Each batch is well by itself, and was written behind other bytes than those before it."""
    writer, reader, key = world.process(), world.process(), a_key()
    writer.create(key)
    for each in (b"first", b"last"):
        writer.append(key, each)
    checksums = Checksums.of(None, 0, b"other")
    other = encode_batch("", Batch(0, Tail(5), "id", 0, b"other", lengths=(5,), checksums=checksums))
    damage(writer, key, 0, lambda item: item | {name: other[name] for name in "bh"})
    with pytest.raises(Damaged):
        read(reader.stores, key, 0)
    assert read(reader.stores, key, 5).data == b"last"


def test_batches_without_checksums_stay_readable(world: World) -> None:
    """Those that earlier releases wrote. A chain begins anew behind them, and goes on."""
    key = a_key()
    for number, each in enumerate((b"first", LARGE, SHRINKS, b"last")):
        writer = world.process()
        if number == 0:
            writer.create(key)
        writer.append(key, each)
        if number < 2:
            start = load_head(writer.stores, key).tail.offset - len(each)
            damage(writer, key, start, lambda item: {name: item[name] for name in item if name != "h"})
    assert world.process().read_all(key) == b"first" + LARGE + SHRINKS + b"last"
    damage(world.process(), key, 5 + len(LARGE), DAMAGES["deflated, and other bytes"][1])
    with pytest.raises(Damaged):
        world.process().read_all(key)


@pytest.mark.parametrize(
    "stored",
    [b"", LARGE[:-1], LARGE + b"x", bytes(reversed(LARGE))],
    ids=["empty", "shorter", "longer", "other bytes"],
)
def test_a_large_body_that_is_not_as_it_was_is_never_returned(
    world: World, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    writer, reader, key = world.process(), world.process(), a_key()
    writer.create(key)
    for each in (b"first", LARGE, b"last"):
        writer.append(key, each)
    incarnation = load_head(writer.stores, key).record.incarnation
    last = load_last(writer.stores.table, log_pk(key, incarnation))
    assert last is not None
    (found,) = writer.s3.list_objects_v2(Bucket=world.bucket_name, Prefix=f"log/{incarnation}/")["Contents"]
    writer.s3.put_object(Bucket=world.bucket_name, Key=found["Key"], Body=stored)
    reader.objects.sleep = lambda _: None
    with pytest.raises(Damaged):
        read(reader.stores, key, 0)
    assert found["Key"] in caplog.text
    assert reader.stores.recent.chain(incarnation, 5, 1 << 20) == []


@pytest.mark.parametrize("stored", [LARGE[:-1], bytes(reversed(LARGE))], ids=["shorter", "other bytes"])
def test_a_fork_inherits_a_part_of_a_large_body(world: World, stored: bytes) -> None:
    """Its part of the batch is shorter than the object, and the object is checked as a whole."""
    process, key, forked = world.process(), a_key(), a_key("fork")
    process.create(key)
    process.append(key, LARGE)
    process.fork(forked, key, 0, 10)
    assert world.process().read_all(forked) == LARGE[:10]
    record = load_head(process.stores, key).record
    (found,) = process.s3.list_objects_v2(Bucket=world.bucket_name, Prefix=f"log/{record.incarnation}/")[
        "Contents"
    ]
    process.s3.put_object(Bucket=world.bucket_name, Key=found["Key"], Body=stored)
    reader = world.process()
    reader.objects.sleep = lambda _: None
    with pytest.raises(Damaged):
        reader.read_all(forked)


@pytest.mark.parametrize("stored", [b"<x", b"<y>"], ids=["shorter", "other bytes"])
def test_a_snapshot_that_is_not_as_it_was_is_never_returned(
    world: World, caplog: pytest.LogCaptureFixture, stored: bytes
) -> None:
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    process.append(key, b"x")
    snapshot = publish(process, key, 1, b"<x>")
    process.s3.put_object(Bucket=world.bucket_name, Key=snapshot.blob, Body=stored)
    process.objects.sleep = lambda _: None
    with pytest.raises(Damaged):
        read_snapshot(process.stores, key, 1)
    with pytest.raises(Damaged):
        bootstrap(process.stores, key)
    assert snapshot.blob in caplog.text


@pytest.mark.parametrize("size", [3, MAX_ANSWER_BYTES + 1])
@pytest.mark.parametrize("offset", [0, 1], ids=["same size", "longer"])
def test_an_upload_is_read_as_it_was_published(
    world: World, caplog: pytest.LogCaptureFixture, size: int, offset: int
) -> None:
    """Whoever writes over it past the URL that was given."""
    process = world.process()
    key = key_in_new_bucket(process)
    process.create(key)
    process.append(key, b"x")
    begun = begin_upload(process.stores, key, 1)
    name = snapshot_blob_key(load_head(process.stores, key).record.incarnation, 1, begun.id.mark)
    process.s3.put_object(Bucket=world.bucket_name, Key=name, Body=bytes(size))
    publish(process, key, 1, upload=begun.id)
    process.objects.sleep = lambda _: None
    process.s3.put_object(Bucket=world.bucket_name, Key=name, Body=b"y" * (size + offset))
    with pytest.raises(Damaged):
        read_snapshot(process.stores, key, 1)
    assert name in caplog.text


@pytest.mark.parametrize("data", [None, b"", b"123", b"12345678"])
def test_a_batch_without_all_its_bytes_is_not_kept_in_memory(data: bytes | None) -> None:
    whole = Batch(0, Tail(5), "id", 0, b"12345")
    recent = RecentBatches(1 << 20)
    recent.keep("incarnation", replace(whole, data=data))
    assert recent.chain("incarnation", 0, 100) == []
    recent.keep("incarnation", whole)
    assert recent.chain("incarnation", 0, 100) == [whole]


@pytest.mark.parametrize("size", [0, 799, 801, 5000])
def test_data_that_inflates_to_another_size_is_refused(size: int) -> None:
    deflated = deflate(b"x" * 800)
    assert deflated is not None
    with pytest.raises(ValueError, match="inflate"):
        inflate(deflated, size)


# --- boto3's own replies ---------------------------------------------------------------------


@pytest.fixture
def bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Process, Proxy]]:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with Proxy(os.environ["AWS_ENDPOINT_URL_S3"]) as proxy:
        monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL_S3", proxy.endpoint)
        process = world.process()
        process.objects.sleep = lambda _: None
        yield process, proxy


def cuts(proxy: Proxy, call: Callable[[], object], step: int) -> Iterator[int]:
    """Cut every reply to a call behind each byte, or each few. The operation stands still meanwhile."""
    with proxy.spoiling(lambda reply: Sent(reply.raw)) as seen:
        call()
    assert seen
    for position in range(0, min(len(reply.raw) for reply in seen), step):
        with proxy.spoiling(lambda reply, position=position: Sent(reply.raw[:position], close=True)):  # type: ignore[misc]
            yield position


def test_a_cut_reply_never_gives_an_object_a_wrong_size(bucket: tuple[Process, Proxy]) -> None:
    """The size of what a client has uploaded is what its snapshot is published with."""
    process, proxy = bucket

    def size_of(key: str) -> int | None:
        found = process.stores.blobs.stored(key)
        return None if found is None else found.size

    process.stores.blobs.put("a", bytes(1234))
    positions = list(cuts(proxy, lambda: process.stores.blobs.stored("a"), 7))
    assert len(positions) > 50
    for _ in cuts(proxy, lambda: process.stores.blobs.stored("a"), 7):
        with pytest.raises(StorageUnavailable):
            process.stores.blobs.stored("a")
    assert size_of("a") == 1234
    process.stores.blobs.put("empty", b"")
    assert size_of("empty") == 0
    assert size_of("nothing") is None


def test_a_refused_reply_of_an_object_leaves_no_connection_open(bucket: tuple[Process, Proxy]) -> None:
    """Its body is not read yet, and nobody will read it."""
    process, proxy = bucket
    process.stores.blobs.put("a", bytes(1234))
    answered = list[Any]()

    def keep(response_dict: dict[str, Any], **_: Any) -> None:
        answered.append(response_dict["body"])

    client = process.s3
    client.meta.events.register_first("before-parse", keep)
    with (
        proxy.spoiling(lambda reply: Sent(reply.with_header("etag", None).raw)),
        pytest.raises(ClientError),
    ):
        client.get_object(Bucket=process.settings.bucket_name, Key="a")
    assert len(answered) == 3, "each of three attempts"
    assert all(body._raw_stream.closed for body in answered)


def test_a_deletion_whose_reply_is_cut_has_failed(bucket: tuple[Process, Proxy]) -> None:
    """The janitor forgets what it believes to be deleted."""
    process, proxy = bucket
    for _ in cuts(proxy, lambda: process.stores.blobs.delete("a"), 9):
        with pytest.raises(StorageUnavailable):
            process.stores.blobs.delete("a")
    for _ in cuts(proxy, lambda: process.stores.blobs.delete_prefix("log/"), 9):
        with pytest.raises(StorageUnavailable):
            process.stores.blobs.delete_prefix("log/")


def test_a_deletion_that_fails_for_one_object_has_failed(bucket: tuple[Process, Proxy]) -> None:
    process, proxy = bucket
    error = b"<Error><Key>a</Key><Code>InternalError</Code><Message>no</Message></Error>"

    def failed(reply: Reply) -> Sent:
        return Sent(reply.with_body(b"<DeleteResult>" + error + b"</DeleteResult>").raw)

    with proxy.spoiling(failed), pytest.raises(StorageUnavailable) as raised:
        process.stores.blobs.delete("a")
    assert isinstance(raised.value.__cause__, Refusal)
    assert raised.value.__cause__.code == "InternalError"


@pytest.mark.parametrize("small_object", [20 * 1024 * 1024, 0], ids=["in one piece", "in parts"])
def test_a_composition_is_whole_or_not_there(
    bucket: tuple[Process, Proxy], monkeypatch: pytest.MonkeyPatch, small_object: int
) -> None:
    """One of its replies is cut, in turn: some ten bytes of each reply."""
    monkeypatch.setattr("tidemark.blobs.SMALL_OBJECT", small_object)
    monkeypatch.setattr("tidemark.blobs._SMALLEST_PART", 1000)
    process, proxy = bucket
    data = bytes(range(256)) * 20
    process.stores.blobs.put("source", data)
    wanted = Composition("text/plain", b"<", "source", len(data), b">")
    with proxy.spoiling(lambda reply: Sent(reply.raw)) as seen:
        process.stores.blobs.compose("composed", wanted)
    assert process.stores.blobs.get("composed") == b"<" + data + b">"
    for number, reply in enumerate(list(seen)):
        for position in range(0, len(reply.raw), max(60, len(reply.raw) // 10)):
            process.stores.blobs.delete("composed")
            with proxy.spoiling(cut_one(number, position)), suppress(StorageUnavailable):
                process.stores.blobs.compose("composed", wanted)
            found = process.stores.blobs.stored("composed")
            assert found is None or found.size == len(data) + 2
            process.stores.blobs.compose("composed", wanted)
            assert process.stores.blobs.get("composed") == b"<" + data + b">", (reply.operation, position)


@pytest.mark.parametrize("tag", [None, '"0123'], ids=["none", "half"])
@pytest.mark.parametrize("operation", ["PutObject", "UploadPart", "GetObject"])
def test_a_composition_repeats_calls_whose_reply_has_no_tag(
    bucket: tuple[Process, Proxy], monkeypatch: pytest.MonkeyPatch, operation: str, tag: str | None
) -> None:
    """A reply without a body can end behind its length; the tag may come later."""
    if operation != "PutObject":
        monkeypatch.setattr("tidemark.blobs.SMALL_OBJECT", 0)
        monkeypatch.setattr("tidemark.blobs._SMALLEST_PART", 1000)
    process, proxy = bucket
    data, spoiled = bytes(5000), list[Reply]()
    process.stores.blobs.put("source", data)

    def spoil(reply: Reply) -> Sent:
        if reply.operation != operation or spoiled:
            return Sent(reply.raw)
        spoiled.append(reply)
        return Sent(reply.with_header("etag", tag).raw)

    with proxy.spoiling(spoil) as seen:
        process.stores.blobs.compose("composed", Composition("text/plain", b"<", "source", len(data), b">"))
    assert spoiled
    assert [reply.operation for reply in seen].count(operation) > 1
    assert process.stores.blobs.get("composed") == b"<" + data + b">"


@pytest.mark.parametrize(
    ("body", "checksum"),
    [(bytes(4999), True), (bytes(4999), False), (b"x" * 5000, True)],
    ids=["shorter", "shorter, no checksum", "another"],
)
def test_a_composition_is_refused_if_the_source_is_not_the_expected_object(
    bucket: tuple[Process, Proxy], body: bytes, checksum: bool
) -> None:
    """Told by its checksum, or, where S3 names none that this can compute, by its size."""
    process, proxy = bucket
    process.stores.blobs.put("source", bytes(5000))

    def spoil(reply: Reply) -> Sent:
        if reply.operation != "GetObject":
            return Sent(reply.raw)
        changed = reply.with_body(body)
        return Sent((changed if checksum else changed.with_header("x-amz-checksum-crc32", None)).raw)

    with proxy.spoiling(spoil), pytest.raises(StorageUnavailable):
        process.stores.blobs.compose("composed", Composition("text/plain", b"<", "source", 5000, b">"))


def test_an_error_reply_that_is_cut_means_storage_is_unavailable(bucket: tuple[Process, Proxy]) -> None:
    """botocore reads the body of an error elsewhere than all others."""
    process, proxy = bucket
    for _ in cuts(proxy, lambda: process.stores.blobs.stored("nothing"), 23):
        with pytest.raises(StorageUnavailable):
            process.stores.blobs.stored("nothing")


def cut_one(number: int, position: int) -> Callable[[Reply], Sent]:
    count = iter(range(1000))
    return lambda reply: Sent(reply.raw[:position], close=True) if next(count) == number else Sent(reply.raw)


@pytest.mark.parametrize("operation", ["create", "receive", "send", "all"])
def test_a_cut_reply_of_sqs_means_the_queue_is_unavailable(
    services: object, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """A wake message that nobody received must not look like none."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    with Proxy(os.environ["AWS_ENDPOINT_URL_SQS"]) as proxy:
        monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL_SQS", proxy.endpoint)
        client = sqs_client()
        queues = Queues(lambda: client, "cut-")
        url = queues.create(0)
        calls: dict[str, Callable[[], object]] = {
            "create": lambda: queues.create(0),
            "receive": lambda: queues.receive(url, 0),
            "send": lambda: queues.send(url, ["x"]),
            "all": lambda: list(queues.all()),
        }
        for _ in cuts(proxy, calls[operation], 20):
            with pytest.raises(QueueUnavailable):
                calls[operation]()
        queues.delete(url)
